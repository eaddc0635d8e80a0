//! Queue pairs that kernel VXLAN encapsulates ([`Target::by_kernel`](super::Target)).
//!
//! No worker asks for them when a frame is sent. Each first frame has left by the path of `qp-hash`.
//! Programs move a queue pair at its first frame after a pause, and tell afterwards.

use std::time::Duration;

use path::PathId;

use super::{FlowId, Placer};

/// Where a queue pair is, and where it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    /// Its path.
    pub path: PathId,
    /// The path to which it moves, and the pause that this needs.
    pub next: Option<(PathId, Duration)>,
}

impl Placer {
    /// The course of a known queue pair.
    #[must_use]
    pub fn course(&self, id: &FlowId) -> Option<Course> {
        let flow = self.flows.get(id)?;
        let pause = |next| self.targets.get(&id.target).map(|paths| paths.pause(flow.path, next));
        Some(Course {
            path: flow.path,
            next: flow.wanted.and_then(|next| Some((next, pause(next)?))),
        })
    }

    /// A queue pair has moved after a pause. The first path after that of `qp-hash` is no move.
    pub fn moved(&mut self, id: &FlowId, to: PathId) {
        let Some(is_first) = self.edit(id, |flow| {
            let is_first = flow.hashed;
            flow.settle(to);
            flow.moves -= u32::from(is_first);
            is_first
        }) else {
            return;
        };
        if !is_first {
            self.counts.moved_balance += 1;
        }
        self.tell(id);
    }

    /// Forgets a queue pair, because its frames go elsewhere now.
    pub fn drop_flow(&mut self, id: &FlowId) {
        self.forget(id, self.measured);
    }
}
