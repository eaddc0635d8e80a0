//! What the parts of a connection share while they handle an event.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::histogram::Histogram;
use crate::settings::Settings;
use crate::work::{Completion, Handle, Status, WorkRequest};

/// The state of the endpoint that an event of one queue pair may change.
pub(crate) struct Context<'a> {
    pub(crate) now: u64,
    pub(crate) queue_pair: Handle,
    pub(crate) settings: &'a Settings,
    pub(crate) counters: &'a mut Counters,
    pub(crate) latencies: &'a mut Histogram,
    pub(crate) completions: &'a mut VecDeque<Completion>,
}

impl Context<'_> {
    pub(crate) fn complete(&mut self, work: &WorkRequest, posted: u64, status: Status) {
        let nanoseconds = self.now.saturating_sub(posted);
        if status == Status::Success {
            self.latencies.record(nanoseconds);
        }
        let queue_pair = self.queue_pair;
        let completion = Completion::Request { queue_pair, id: work.id, status, nanoseconds };
        self.completions.push_back(completion);
    }
}
