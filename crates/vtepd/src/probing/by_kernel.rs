//! Places queue pairs whose frames kernel VXLAN encapsulates.
//!
//! A program tells of each first frame, which has left with the port of `qp-hash`. Then it gets the
//! place of the queue pair, and moves it when the placement says so: at once from a dead path, and
//! otherwise at the first frame after a pause.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bpf::{NewQueuePair, Place, PlacedKey, PlacedPorts};
use path::{CounterId, Key, PathId, Version};
use pathmap::Placer;
use pathmap::placer::{Course, FlowId, Target};
use tables::Snapshot;
use wire::MacAddr;

use crate::pinning::{Shared, target_by_kernel};

/// First frames that are handled at once.
const AT_ONCE: usize = 256;
/// Queue pairs that are followed before others can use the placement.
const STEP: usize = 16;
/// After this time, a queue pair that could not be placed is told of again.
const AGAIN: Duration = Duration::from_secs(1);
/// The most of these. The programs have room for four times as many queue pairs.
const MOST_REFUSED: usize = 16_384;

/// A queue pair in the programs' map.
#[derive(Debug)]
struct Placed {
    id: FlowId,
    /// Inner destination.
    mac: MacAddr,
    counter: CounterId,
    /// What the programs have.
    course: Course,
}

/// The queue pairs that kernel VXLAN encapsulates.
#[derive(Debug)]
pub(super) struct ByKernel {
    ports: Option<PlacedPorts>,
    flows: BTreeMap<PlacedKey, Placed>,
    /// Those that could not be placed, in the order in which they are forgotten.
    refused: VecDeque<(Duration, PlacedKey)>,
    /// The snapshot that the VTEPs of the queue pairs are from.
    snapshot: Version<Snapshot>,
    /// The revision of the placement that the programs have.
    revision: Version<Placer>,
}

impl ByKernel {
    /// No queue pair is known yet. Without `ports`, none will be.
    pub(super) fn new(ports: Option<PlacedPorts>) -> Self {
        let (flows, refused) = (BTreeMap::new(), VecDeque::new());
        Self { ports, flows, refused, snapshot: Version::NONE, revision: Version::NONE }
    }

    /// The descriptor that is readable when there are new queue pairs.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ports.as_ref().map(AsFd::as_fd)
    }

    /// Takes first frames, and forgets queue pairs whose frames go elsewhere now. `hop` tells by which
    /// next hop the kernel sends from a port.
    pub(super) fn take(
        &mut self,
        shared: &Shared,
        snapshot: &Snapshot,
        mut hop: impl FnMut(Target, u16) -> Option<u64>,
    ) {
        let now = shared.now();
        if std::mem::replace(&mut self.snapshot, snapshot.version()) != snapshot.version() {
            self.leave(shared, snapshot);
        }
        let is_due = |(at, _): &(Duration, _)| now.saturating_sub(*at) >= AGAIN;
        while self.refused.len() > MOST_REFUSED || self.refused.front().is_some_and(is_due) {
            let gone = self.refused.pop_front();
            gone.into_iter().for_each(|(_, key)| self.remove(key));
        }
        for _ in 0..AT_ONCE {
            let Some(new) = self.ports.as_mut().and_then(PlacedPorts::next_new) else { return };
            let key = new.key;
            match place(shared, snapshot, &mut hop, &new) {
                Some(placed) if self.enter(key, &placed) => {
                    self.flows.insert(key, placed);
                }
                refused => {
                    refused.into_iter().for_each(|of| shared.change(|p| p.drop_flow(&of.id)));
                    self.refused.push_back((now, key));
                }
            }
        }
    }

    fn enter(&mut self, key: PlacedKey, placed: &Placed) -> bool {
        let Some(ports) = &mut self.ports else { return false };
        let entered = ports.enter(key, placed.counter.get(), place_of(&placed.course));
        entered.unwrap_or_else(|error| {
            tracing::debug!("a queue pair stays on its path: {error}");
            false
        })
    }

    /// Forgets the queue pairs whose VTEP or hash is another one now.
    fn leave(&mut self, shared: &Shared, snapshot: &Snapshot) {
        let stays = |key: &PlacedKey, placed: &Placed| {
            snapshot.kernel_vnis().get(&key.ifindex()).is_some_and(|vni| {
                placed.id.key.hash(vni.entropy.seed()) == key.hash()
                    && target_by_kernel(snapshot, vni, placed.mac) == Some(placed.id.target)
            })
        };
        let gone = self.flows.iter().filter(|(key, placed)| !stays(key, placed));
        let gone: Vec<(PlacedKey, FlowId)> = gone.map(|(key, placed)| (*key, placed.id)).collect();
        for (key, id) in gone {
            shared.change(|placer| placer.drop_flow(&id));
            self.remove(key);
        }
    }

    fn remove(&mut self, key: PlacedKey) {
        self.flows.remove(&key);
        if let Some(Err(error)) = self.ports.as_mut().map(|ports| ports.remove(key)) {
            tracing::debug!("a queue pair is not forgotten: {error}");
        }
    }

    /// As [`Self::follow`], if the placement has changed.
    pub(super) fn follow_changes(&mut self, shared: &Shared) {
        if shared.read(Placer::revision) != self.revision {
            self.follow(shared);
        }
    }

    /// Tells the placement which queue pairs have moved, and the programs what it wants. To be called
    /// every few milliseconds.
    pub(super) fn follow(&mut self, shared: &Shared) {
        let Some(ports) = &self.ports else { return };
        if self.flows.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        let mut flows = self.flows.iter_mut();
        loop {
            let some: Vec<_> = flows.by_ref().take(STEP).collect();
            if some.is_empty() {
                break;
            }
            shared.change(|placer| {
                let gone_now = some.into_iter().filter_map(|(key, placed)| {
                    let is_there = follow(placer, ports, placed);
                    (!is_there).then_some(*key)
                });
                gone.extend(gone_now);
            });
        }
        self.revision = shared.read(Placer::revision);
        gone.into_iter().for_each(|key| self.remove(key));
    }
}

/// Tells the placement whether a queue pair has moved, and the programs what it wants. Returns whether
/// it is still placed.
fn follow(placer: &mut Placer, ports: &PlacedPorts, placed: &mut Placed) -> bool {
    let Placed { id, counter, course, .. } = placed;
    let has = ports.place(counter.get());
    if let Some((next, _)) = course.next
        && has == (Place { port: next.source_port, next: None })
    {
        // Unless it has left a dead path since.
        if placer.course(id).is_some_and(|now| now.path == course.path) {
            placer.moved(id, next);
        }
        *course = Course { path: next, next: None };
    }
    match placer.course(id) {
        None => return false,
        Some(wanted) if place_of(&wanted) == has => *course = wanted,
        // If it has just moved, it is looked at again with the next call.
        Some(wanted) if ports.change(counter.get(), has, place_of(&wanted)) => *course = wanted,
        Some(_) => {}
    }
    true
}

/// Places a queue pair.
fn place(
    shared: &Shared,
    snapshot: &Snapshot,
    hop: &mut impl FnMut(Target, u16) -> Option<u64>,
    new: &NewQueuePair,
) -> Option<Placed> {
    let vni = snapshot.kernel_vnis().get(&new.key.ifindex())?;
    let frame = wire::dissect(&new.frame)?;
    let explained = vni.entropy.explain(&frame);
    let is_placed =
        matches!(explained.key, Key::QueuePair { .. }) && !explained.key.is_management();
    let key = Some(explained.key).filter(|_| is_placed)?;
    let target = target_by_kernel(snapshot, vni, frame.destination)?;
    let id = FlowId { vni: vni.tunnel.vni.get(), key, target };
    // Before the kernel is asked for a route.
    if shared.refuses(&id) {
        return None;
    }
    let port = explained.decision.source_port;
    let hashed = PathId { hop: hop(target.vtep(), port)?, source_port: port };
    let (from, _) = frame.transport?.ports?;
    let placement = shared.place(id, from, hashed)?;
    let course = shared.read(|placer| placer.course(&id))?;
    Some(Placed { id, mac: frame.destination, counter: placement.counter, course })
}

/// What the programs need of a course. They count microseconds.
fn place_of(course: &Course) -> Place {
    let whole =
        |pause: Duration| u64::try_from(pause.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
    let next = course.next.map(|(to, pause)| (to.source_port, Duration::from_micros(whole(pause))));
    Place {
        port: course.path.source_port,
        next: next.filter(|(port, _)| *port != course.path.source_port),
    }
}
