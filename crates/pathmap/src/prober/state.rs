//! What is known about one path.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use path::PathId;

use super::{Known, RECORD_EVERY, REFRESH, ROUNDS};
use crate::message::Answer;

/// When a path without any answer is probed again, and how often before this takes [`REFRESH`]: the
/// route to a new VTEP may be seconds behind its entry in the FDB.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_TIMES: u8 = 15;

/// A probe that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outstanding {
    pub(super) path: PathId,
    pub(super) nonce: u32,
    pub(super) token: u32,
    pub(super) at: Duration,
    pub(super) records: bool,
    /// Whether it counts in the window.
    pub(super) explores: bool,
}

/// A route as a probe with Record Route reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    arrival: u32,
    routers: u8,
    addresses: Option<Arc<[Ipv4Addr]>>,
}

/// The state of one path.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// By plain probes, with the recorded addresses if those of a probe with Record Route agree.
    pub(super) known: Option<Known>,
    /// Whether probes with Record Route are sent. Without them, plain ones tell all there is.
    records: bool,
    record: Option<Record>,
    /// Rounds of plain probes without an answer.
    pub(super) tries: u8,
    /// Rounds of probes with Record Route.
    pub(super) record_tries: u8,
    /// Plain probes without an answer, one after the other.
    pub(super) missed: u8,
    /// Whether the last plain probe was not answered in time.
    pub(super) suspect: bool,
    /// When the youngest answered plain probe was sent.
    answered: Option<Duration>,
    pub(super) lost: bool,
    pub(super) due: Duration,
    /// Whether it is in the queue of those that wait for room in the window.
    pub(super) held: bool,
    sent: u32,
}

impl State {
    pub(super) fn new(due: Duration, records: bool) -> Self {
        Self { records, due, ..Self::default() }
    }

    /// Whether a probe with Record Route is missing.
    pub(super) const fn wants_record(&self) -> bool {
        self.known.is_some() && self.record.is_none()
    }

    /// Whether its route is known, with what the routers record.
    pub(super) const fn is_settled(&self) -> bool {
        self.known.is_some() && self.record.is_some()
    }

    /// Whether it is known what the routers record, or enough probes have asked for it.
    pub(super) const fn has_tried_record(&self) -> bool {
        self.record.is_some() || self.record_tries >= ROUNDS
    }

    /// Whether the answer to a probe of this path would show that the VTEP answers.
    pub(super) fn is_control(&self, now: Duration, soon: Duration) -> bool {
        self.known.is_some() && !self.suspect && self.due > now + soon
    }

    /// The number of probes that [`Self::next_probes`] returns next.
    pub(super) fn probes_next(&self, is_used: bool, interval: Duration) -> u32 {
        let (kinds, _) = self.clone().next_probes(is_used, interval);
        kinds.iter().flatten().count() as u32
    }

    /// The probes to send now (whether each records), and the time until the next ones. A path in use
    /// is probed every `interval`.
    pub(super) fn next_probes(
        &mut self,
        is_used: bool,
        interval: Duration,
    ) -> ([Option<bool>; 2], Duration) {
        self.sent = self.sent.wrapping_add(1);
        let round = Duration::from_millis(100);
        if self.lost {
            return ([Some(false), None], super::EXPLORE);
        }
        if self.known.is_none() {
            let wait = if self.tries < ROUNDS { round } else { REFRESH };
            let record = (self.records && self.record.is_none()).then_some(true);
            return ([Some(false), record], wait);
        }
        let refresh = if is_used { interval } else { REFRESH };
        if self.record.is_none() && self.record_tries < ROUNDS {
            self.record_tries += 1;
            let wait = if is_used { interval } else { round };
            return ([Some(false), Some(true)], wait);
        }
        if self.suspect {
            // It is probed earlier if this probe is not answered in time.
            let next = if is_used { interval / 4 } else { REFRESH };
            return ([Some(false), None], next);
        }
        let records = self.record.as_ref().is_some_and(|record| record.addresses.is_some())
            && (!is_used || self.sent.is_multiple_of(RECORD_EVERY));
        ([Some(false), records.then_some(true)], refresh)
    }

    /// Notes a probe that was not answered in time. `false` if that says nothing.
    /// It `counts` if other paths were answered at that time.
    pub(super) fn miss(&mut self, sent: &Outstanding, counts: bool) -> bool {
        if sent.records || self.answered.is_some_and(|at| at > sent.at) {
            return false;
        }
        if self.known.is_none() {
            self.tries = self.tries.saturating_add(1);
        } else {
            self.missed = self.missed.saturating_add(u8::from(counts));
            self.suspect = true;
        }
        true
    }

    /// How long to wait before a path without any answer is probed again.
    pub(super) fn again(&self) -> Duration {
        if self.tries < ROUNDS + AGAIN_TIMES { AGAIN } else { REFRESH }
    }

    /// The path is dead.
    pub(super) fn mark_dead(&mut self) {
        (self.known, self.record, self.lost) = (None, None, true);
        (self.missed, self.tries, self.record_tries) = (0, 0, 0);
        self.suspect = false;
    }

    /// Takes an answer. Returns whether what is known has changed, and whether a known route has.
    pub(super) fn answered(
        &mut self,
        answer: &Answer,
        sent: &Outstanding,
        now: Duration,
        delay: Duration,
    ) -> (bool, bool) {
        let routers = answer.probe.ttl - answer.ttl_seen;
        let arrival = answer.arrival;
        if sent.records {
            let complete = answer.recorded.len() == usize::from(routers);
            let addresses = complete.then(|| Arc::from(answer.recorded.as_slice()));
            self.record = Some(Record { arrival, routers, addresses });
        } else {
            if !self.records {
                self.record = Some(Record { arrival, routers, addresses: None });
            }
            (self.missed, self.tries, self.suspect) = (0, 0, false);
            self.answered = self.answered.max(Some(sent.at));
            self.lost = false;
        }
        let before = self
            .known
            .as_ref()
            .map(|known| (known.arrival, known.routers, known.recorded.clone(), known.delay));
        if !sent.records {
            let delay = match before {
                Some((.., least)) if delay > least => least + (delay - least) / 16,
                _ => delay,
            };
            self.known =
                Some(Known { arrival, routers, recorded: None, traced: None, delay, heard: now });
        }
        let Some(known) = &mut self.known else { return (false, false) };
        // Both must agree, or the option itself has changed the path.
        let agrees =
            |record: &&Record| (record.arrival, record.routers) == (known.arrival, known.routers);
        let agreed = self.record.as_ref().filter(agrees);
        if agreed.is_none() && !sent.records {
            // The route has moved: the record is that of the route before.
            self.record = None;
            self.record_tries = 0;
            known.recorded = None;
        } else {
            known.recorded = agreed.and_then(|record| record.addresses.clone());
        }
        let after = (known.arrival, known.routers, &known.recorded);
        match &before {
            None => (true, false),
            Some((arrival, routers, recorded, _)) => {
                let plain = (*arrival, *routers) != (after.0, after.1);
                let middle = recorded != after.2;
                (plain || middle, plain || middle && recorded.is_some() && after.2.is_some())
            }
        }
    }
}
