//! Remembers what [`Pinning::pin`](super::Pinning::pin) said, because asking takes a lock that all
//! workers share.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use std::collections::HashMap;

use crate::policy::Policy;
use crate::secret::Secret;
use crate::version::Version;
use wire::{Vni, as_ipv6};

use super::{Answer, Before, Pin, Usage};
use crate::choice::{Flow, Remote};
use crate::key::Key;

/// Number of entries for queue pairs on the path of `qp-hash`. One whose entry another one has taken
/// is asked about again.
const HASHED: usize = 4096;

/// A queue pair towards a remote VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Question {
    key: Key,
    roce_port: u16,
    vni: Vni,
    ends: (IpAddr, IpAddr),
    destination_port: u16,
}

impl Question {
    const fn of(flow: &Flow, to: &Remote<'_>) -> Self {
        let Remote { vni, local, address, destination_port, .. } = *to;
        let (key, roce_port, ends) = (flow.key, flow.roce_port, (local, address));
        Self { key, roce_port, vni, ends, destination_port }
    }
}

/// In few words, because each frame that no cache knows is looked up.
impl Hash for Question {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { key, roce_port, vni, ends, destination_port } = *self;
        let ports = u64::from(roce_port) << 16 | u64::from(destination_port);
        match key {
            Key::QueuePair { source, destination, queue_pair } => {
                hash_pair((source, destination), state);
                state.write_u64(u64::from(queue_pair.get()) << 32 | ports);
            }
            _ => (key, ports).hash(state),
        }
        hash_pair(ends, state);
        state.write_u64(vni.get().into());
    }
}

fn hash_pair<H: Hasher>(pair: (IpAddr, IpAddr), state: &mut H) {
    match pair {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            state.write_u64(u64::from(one.to_bits()) << 32 | u64::from(other.to_bits()));
        }
        (one, other) => {
            [one, other].into_iter().for_each(|of| state.write_u128(as_ipv6(of).to_bits()));
        }
    }
}

/// A path, and the version for which it was told.
#[derive(Debug, Clone, Copy)]
struct Known {
    pin: Pin,
    version: Version<Policy>,
}

/// The paths of queue pairs.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownPins {
    /// All queue pairs of this worker with a path: as many as can be counted, whatever others send.
    pinned: HashMap<Question, Known, Secret>,
    /// Which of them has counters.
    by_counter: Vec<Option<Question>>,
    /// The queue pairs on the path of `qp-hash` that were asked about last, and for which version;
    /// `None`: there was no answer. One place for each hash. Empty until there is one.
    hashed: Box<[Option<Hashed>]>,
}

/// A queue pair on the path of `qp-hash`, and the version of the answer.
type Hashed = (Question, Option<Version<Policy>>);

impl KnownPins {
    /// The path of a queue pair, if it is to have a certain one, and whether the next frame has it
    /// too. `ask` is asked if it is not known, or may have changed.
    pub(super) fn get_or(
        &mut self,
        (flow, to): (&Flow, &Remote<'_>),
        (version, usage): (Version<Policy>, &Usage),
        ask: impl FnOnce(Before) -> Answer,
    ) -> (Option<Pin>, bool) {
        let question = Question::of(flow, to);
        if let Some(known) = self.pinned.get_mut(&question) {
            let pin = known.pin;
            if known.version != version && usage.changes(pin.counter) == pin.changes {
                known.version = version;
            }
            if known.version == version {
                return (Some(pin), true);
            }
            return match ask(Before::Pinned) {
                Answer::Busy => (Some(pin), false),
                answer => self.learn(question, flow, answer, (version, usage)),
            };
        }
        let hashed = self.hashed.get(flow.hash as usize % HASHED).copied().flatten();
        let hashed = hashed.filter(|(known, _)| *known == question);
        if hashed.is_some_and(|(_, of)| of == Some(version)) {
            return (None, true);
        }
        let answer = ask(if hashed.is_some() { Before::Hashed } else { Before::New });
        self.learn(question, flow, answer, (version, usage))
    }

    fn learn(
        &mut self,
        question: Question,
        flow: &Flow,
        answer: Answer,
        (version, usage): (Version<Policy>, &Usage),
    ) -> (Option<Pin>, bool) {
        let Answer::Pinned(pin) = answer else {
            self.pinned.remove(&question);
            if self.hashed.is_empty() {
                self.hashed = vec![None; HASHED].into();
            }
            let told = (answer == Answer::Hashed).then_some(version);
            if let Some(entry) = self.hashed.get_mut(flow.hash as usize % HASHED) {
                *entry = Some((question, told));
            }
            return (None, told.is_some());
        };
        let counter = pin.counter.index();
        if self.by_counter.is_empty() {
            // Otherwise memory would be moved while frames wait.
            self.pinned.reserve(usage.most() as usize);
            self.by_counter.reserve(usage.most() as usize + 1);
        }
        if self.by_counter.len() <= counter {
            self.by_counter.resize(counter + 1, None);
        }
        let owner = self.by_counter.get_mut(counter).and_then(|owner| owner.replace(question));
        if let Some(before) = owner.filter(|before| *before != question) {
            self.pinned.remove(&before);
        }
        self.pinned.insert(question, Known { pin, version });
        (Some(pin), true)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::time::Instant;

    use super::*;
    use crate::group::Paths;
    use crate::key::Reason;
    use crate::path_id::{CounterId, PathId};

    /// What is asked, and who asks.
    struct Asking {
        group: Paths,
        usage: Usage,
        known: KnownPins,
    }

    fn host(low: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, low).into()
    }

    fn flow(queue_pair: u32) -> Flow {
        let queue_pair = queue_pair.try_into().unwrap();
        let key = Key::QueuePair { source: host(1), destination: host(2), queue_pair };
        Flow { key, reason: Reason::Roce, hash: 5, roce_port: 50_000, is_sprayed: false }
    }

    fn counter(number: u32) -> CounterId {
        CounterId::new(number).unwrap()
    }

    fn pin(number: u32, changes: u64) -> Pin {
        let path = PathId { hop: 1, source_port: 50_000 };
        Pin { path, counter: counter(number), changes: Version::of(changes) }
    }

    impl Asking {
        fn new() -> Self {
            let (usage, known) = (Usage::new(10, Instant::now()), KnownPins::default());
            Self { group: Paths::default(), usage, known }
        }

        /// Asks, and returns what was known before if that was not enough.
        fn ask(
            &mut self,
            flow: &Flow,
            (vni, ends, port): (u32, (IpAddr, IpAddr), u16),
            version: u64,
            answer: Answer,
        ) -> ((Option<Pin>, bool), Option<Before>) {
            let vni = Vni::try_from(vni).unwrap();
            let group = &self.group;
            let to = Remote { vni, local: ends.0, address: ends.1, destination_port: port, group };
            let mut asked = None;
            let path =
                self.known.get_or((flow, &to), (Version::of(version), &self.usage), |before| {
                    asked = Some(before);
                    answer
                });
            (path, asked)
        }
    }

    const TO: fn() -> (u32, (IpAddr, IpAddr), u16) = || (100, (host(3), host(4)), 4789);

    #[test]
    fn each_question_is_asked_once() {
        let mut asking = Asking::new();
        let (port, of) = (Flow { roce_port: 50_001, ..flow(17) }, (host(3), host(4)));
        let back = (host(4), host(3));
        let questions = [
            (flow(17), TO()),
            (port, TO()),
            (flow(18), TO()),
            (flow(17), (101, of, 4789)),
            (flow(17), (100, back, 4789)),
            (flow(17), (100, of, 8472)),
        ];
        for (number, (flow, to)) in (1..).zip(questions) {
            let told = Answer::Pinned(pin(number, 0));
            let new = asking.ask(&flow, to, 1, told);
            assert_eq!(new, ((Some(pin(number, 0)), true), Some(Before::New)));
        }
        for (number, (flow, to)) in (1..).zip(questions) {
            let again = asking.ask(&flow, to, 1, Answer::Busy);
            assert_eq!(again, ((Some(pin(number, 0)), true), None));
        }
    }

    /// Others come and go. What is asked again is only what has changed.
    #[test]
    fn a_path_is_asked_for_again_when_its_counters_change() {
        let mut asking = Asking::new();
        asking.ask(&flow(17), TO(), 1, Answer::Pinned(pin(1, 0)));
        asking.usage.change(counter(2));
        assert_eq!(asking.ask(&flow(17), TO(), 2, Answer::Busy).1, None);
        asking.usage.change(counter(1));
        // It is not asked in the version in which it was told.
        assert_eq!(asking.ask(&flow(17), TO(), 2, Answer::Busy).1, None);
        let busy = asking.ask(&flow(17), TO(), 3, Answer::Busy);
        assert_eq!(busy, ((Some(pin(1, 0)), false), Some(Before::Pinned)), "it keeps its path");
        let moved = asking.ask(&flow(17), TO(), 3, Answer::Pinned(pin(1, 1)));
        assert_eq!(moved, ((Some(pin(1, 1)), true), Some(Before::Pinned)));
        assert_eq!(asking.ask(&flow(17), TO(), 4, Answer::Busy).1, None);
        // It was forgotten, and its counters belong to another one.
        asking.usage.change(counter(1));
        asking.ask(&flow(18), TO(), 5, Answer::Pinned(pin(1, 2)));
        let forgotten = asking.ask(&flow(17), TO(), 5, Answer::Pinned(pin(2, 1)));
        assert_eq!(forgotten.1, Some(Before::New));
        assert_eq!(asking.ask(&flow(18), TO(), 5, Answer::Busy).1, None);
        assert_eq!(asking.known.pinned.len(), 2);
    }

    #[test]
    fn without_a_path_the_version_counts_and_that_frames_have_left() {
        let mut asking = Asking::new();
        let busy = asking.ask(&flow(17), TO(), 1, Answer::Busy);
        assert_eq!(busy, ((None, false), Some(Before::New)));
        let hashed = asking.ask(&flow(17), TO(), 1, Answer::Hashed);
        assert_eq!(hashed, ((None, true), Some(Before::Hashed)));
        assert_eq!(asking.ask(&flow(17), TO(), 1, Answer::Busy), ((None, true), None));
        assert_eq!(asking.ask(&flow(17), TO(), 2, Answer::Hashed).1, Some(Before::Hashed));
        // Others that are not placed take no path away from one that is.
        asking.ask(&flow(18), TO(), 2, Answer::Pinned(pin(1, 0)));
        (20..30).for_each(|of| _ = asking.ask(&flow(of), TO(), 2, Answer::Hashed));
        assert_eq!(asking.ask(&flow(18), TO(), 2, Answer::Busy).1, None);
    }
}
