//! The queue pairs that are to be reported to a VTEP.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use path::CounterId;

/// What is to be reported to a VTEP.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// The counters of queue pairs to report, and the one that was reported last.
    pub(super) waiting: BTreeSet<CounterId>,
    pub(super) last: Option<CounterId>,
    /// When all are reported again.
    pub(super) again: Duration,
    /// While they are: who encapsulates, and the counter after which it goes on.
    pub(super) round: Option<(bool, Option<CounterId>)>,
}

impl Telling {
    /// The next one in turn.
    pub(super) fn next(&mut self) -> Option<CounterId> {
        let behind = (self.last.map_or(Unbounded, Excluded), Unbounded);
        let behind = self.waiting.range(behind).next();
        let next = behind.or_else(|| self.waiting.first()).copied()?;
        self.waiting.remove(&next);
        self.last = Some(next);
        Some(next)
    }
}
