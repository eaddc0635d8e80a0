//! Spraying like PRIME (A. Sobhani, S. Sadrhaghighi and X. Chu, arXiv 2507.23012).
//!
//! This is a reconstruction: only PRIME's abstract was readable. It says: pseudo-random round robin
//! that considers the topology; congestion as the reason to re-balance; several signals, with their
//! severity and decay times. The forms of all these, and their figures, are ours.
//!
//! - The order is that of [`crate::order`]: consecutive packets leave by different links.
//! - Severity and decay are one number for each path: the time until which it is avoided. A signal
//!   moves it by an amount that grows with severity, so worse signals last longer. Good feedback
//!   halves what is left. The unit is a round: the time in which each path could have one packet.
//! - A path that is avoided is skipped, at most two rounds for each packet.
//! - A path that owes answers longer than a round trip should take is avoided before a timeout. For
//!   some time after a timeout, one such answer is enough: only paths that answer are used.
//!
//! Every packet needs feedback. A sender that gets one acknowledgement for several packets remembers
//! the path of each outstanding packet, and gives feedback for all that are new. One object serves
//! all flows between two VTEPs, and outlives them.

use crate::order::{Order, Tiers};
use crate::random::Random;
use crate::signal::{Entropy, Nanos, Signal, Spray};

/// Packets without an answer that make a path a suspect.
const SUSPECT: u16 = 4;
/// Marks alone reach at most so many rounds ahead.
const MARKS: Nanos = 4;
/// A loss adds so many rounds.
const LOSS: Nanos = 4;
/// Marks and losses reach at most so many rounds ahead.
const LOSSES: Nanos = 15;

/// For how long a path is avoided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The time of a packet of each path at full rate. A mark adds one, at most four ahead; a loss
    /// adds four, at most 15 ahead.
    pub round: Nanos,
    /// After this, a packet without an answer counts.
    pub patience: Nanos,
    /// A path that is silent is tried again after this.
    pub silence: Nanos,
}

impl Times {
    /// The times for so many paths with this round trip time without load, if a packet takes so long
    /// at full rate.
    #[must_use]
    pub const fn new(paths: u16, round_trip: Nanos, packet: Nanos) -> Self {
        Self { round: packet * paths as Nanos, patience: 5 * round_trip / 2, silence: 10_000_000 }
    }
}

/// What is known about a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Path {
    /// The path is avoided until then.
    avoided_until: Nanos,
    /// The time of the first packet after the last answer.
    owes_since: Nanos,
    /// The packets after the last answer.
    owes: u16,
}

/// A reconstruction of PRIME from its abstract: [the module](self) says what is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrimeLike {
    order: Order,
    times: Times,
    paths: Box<[Path]>,
    /// Until then, one packet without an answer makes a path a suspect.
    frozen_until: Nanos,
}

impl PrimeLike {
    /// Sprays over these paths.
    #[must_use]
    pub fn new(tiers: Tiers, times: Times, random: &mut Random) -> Self {
        let paths = vec![Path::default(); usize::from(tiers.paths())].into();
        Self { order: Order::new(tiers, random), times, paths, frozen_until: 0 }
    }

    #[inline]
    fn is_clean(&self, entropy: Entropy, now: Nanos) -> bool {
        let Some(path) = self.paths.get(entropy.index()) else { return false };
        let enough = if now < self.frozen_until { 1 } else { SUSPECT };
        let is_suspect = || {
            let owes_for = now.saturating_sub(path.owes_since);
            (self.times.patience..self.times.silence).contains(&owes_for)
        };
        path.avoided_until <= now && (path.owes < enough || !is_suspect())
    }
}

impl Spray for PrimeLike {
    #[inline]
    fn next(&mut self, now: Nanos, random: &mut Random) -> Entropy {
        let first = self.order.next(random);
        let mut entropy = first;
        // A whole round is among two.
        let mut left = 2 * self.order.paths() - 1;
        while !self.is_clean(entropy, now) {
            if left == 0 {
                entropy = first;
                break;
            }
            entropy = self.order.next(random);
            left -= 1;
        }
        if let Some(path) = self.paths.get_mut(entropy.index()) {
            if path.owes == 0 || now.saturating_sub(path.owes_since) >= self.times.silence {
                (path.owes, path.owes_since) = (0, now);
            }
            path.owes = path.owes.saturating_add(1);
        }
        entropy
    }

    fn feedback(&mut self, now: Nanos, entropy: Entropy, signal: Signal) {
        let Self { times, paths, .. } = self;
        let Some(path) = paths.get_mut(entropy.index()) else { return };
        let left = path.avoided_until.saturating_sub(now);
        let more = |rounds: Nanos, packets: u16, most: Nanos| {
            let added = (rounds * times.round).saturating_mul(packets.into());
            left.saturating_add(added).min(most * times.round).max(left)
        };
        let left = match signal {
            // A silence ends.
            Signal::Good(_) if left > LOSSES * times.round => 0,
            Signal::Good(packets) => left.checked_shr(packets.into()).unwrap_or_default(),
            Signal::Marked(packets) => more(1, packets, MARKS),
            Signal::Lost(packets) => more(LOSS, packets, LOSSES),
            Signal::Silent => {
                self.frozen_until = now.saturating_add(times.silence);
                times.silence
            }
        };
        path.avoided_until = now.saturating_add(left);
        if signal != Signal::Silent {
            path.owes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const RTT: Nanos = 16_000;
    const ROUND: Nanos = 4_000;

    fn prime(uplinks: &[u16]) -> (PrimeLike, Random) {
        let mut random = Random::new(11);
        let tiers = Tiers::new(uplinks).unwrap();
        let times = Times::new(tiers.paths(), RTT, ROUND / Nanos::from(tiers.paths()));
        (PrimeLike::new(tiers, times, &mut random), random)
    }

    /// The paths of a round at a time, each answered.
    fn round(prime: &mut PrimeLike, random: &mut Random, now: Nanos) -> BTreeSet<u16> {
        let sent = (0..prime.order.paths()).map(|_| prime.next(now, random).0).collect();
        for &path in &sent {
            prime.paths[usize::from(path)].owes = 0;
        }
        sent
    }

    fn without(paths: u16, missing: &[u16]) -> BTreeSet<u16> {
        (0..paths).filter(|path| !missing.contains(path)).collect()
    }

    #[test]
    fn worse_signals_avoid_a_path_longer() {
        for (signal, until) in [
            (Signal::Good(1), 0),
            (Signal::Marked(1), ROUND),
            (Signal::Marked(3), 3 * ROUND),
            (Signal::Marked(100), 4 * ROUND),
            (Signal::Lost(1), 4 * ROUND),
            (Signal::Lost(100), 15 * ROUND),
            (Signal::Silent, 10_000_000),
        ] {
            let (mut prime, mut random) = prime(&[4, 4]);
            prime.feedback(1000, Entropy(6), signal);
            for now in [1000, 1000 + until - 1, 1000 + until] {
                let avoided = if now < 1000 + until { &[6][..] } else { &[] };
                // Two rounds, because the order goes on after the skipped path.
                let mut sent = round(&mut prime, &mut random, now);
                sent.extend(round(&mut prime, &mut random, now));
                assert_eq!(sent, without(16, avoided), "{signal:?} at {now}");
            }
        }
    }

    #[test]
    fn good_feedback_shortens_the_time_and_ends_a_silence() {
        let (mut prime, _) = prime(&[8]);
        prime.feedback(0, Entropy(1), Signal::Lost(2));
        prime.feedback(0, Entropy(1), Signal::Good(2));
        assert_eq!(prime.paths[1].avoided_until, 2 * ROUND);
        prime.feedback(0, Entropy(1), Signal::Good(u16::MAX));
        assert_eq!(prime.paths[1].avoided_until, 0);
        prime.feedback(0, Entropy(1), Signal::Silent);
        prime.feedback(9, Entropy(1), Signal::Marked(1));
        assert!(prime.paths[1].avoided_until > 9_000_000, "a mark does not end it");
        prime.feedback(9, Entropy(1), Signal::Good(1));
        assert_eq!(prime.paths[1].avoided_until, 9);
    }

    #[test]
    fn a_path_that_owes_answers_is_avoided_before_a_timeout() {
        let (mut prime, mut random) = prime(&[4]);
        let mut now = 0;
        let mut last = None;
        // Path 2 is silently dead; the others answer at once.
        while now < 20 * RTT {
            let path = prime.next(now, &mut random);
            if path == Entropy(2) {
                last = Some(now);
            } else {
                prime.feedback(now, path, Signal::Good(1));
            }
            now += RTT / 8;
        }
        let last = last.unwrap();
        assert!((2 * RTT..3 * RTT).contains(&last), "{last}");
        // Later it is tried again.
        let mut sent = round(&mut prime, &mut random, last + 11_000_000);
        sent.extend(round(&mut prime, &mut random, last + 11_000_000));
        assert_eq!(sent, without(4, &[]));
    }

    #[test]
    fn after_a_timeout_only_paths_that_answer_are_used() {
        let (mut prime, mut random) = prime(&[4]);
        for _ in 0..4 {
            let path = prime.next(0, &mut random);
            if path != Entropy(1) {
                prime.feedback(0, path, Signal::Good(1));
            }
        }
        let now = 3 * RTT;
        assert!(prime.is_clean(Entropy(1), now), "one answer is missing");
        prime.feedback(now, Entropy(3), Signal::Silent);
        assert!(!prime.is_clean(Entropy(1), now) && !prime.is_clean(Entropy(3), now));
        assert!(prime.is_clean(Entropy(0), now) && prime.is_clean(Entropy(2), now));
    }

    #[test]
    fn with_all_paths_avoided_it_goes_on_in_the_order() {
        let (mut prime, mut random) = prime(&[4, 2]);
        for path in 0..8 {
            prime.feedback(0, Entropy(path), Signal::Lost(9));
        }
        let mut counts = [0; 8];
        for _ in 0..400 {
            let path = prime.next(1, &mut random);
            prime.feedback(1, path, Signal::Marked(1));
            counts[path.index()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    }

    proptest! {
        #[test]
        fn never_an_avoided_path_while_another_is_clean(
            steps in prop::collection::vec((0_u16..20, 0_u8..5, 0_usize..20, 0_u64..RTT), 1..60),
        ) {
            let (mut prime, mut random) = prime(&[4, 4]);
            let mut now = 0;
            for (path, signal, packets, pause) in steps {
                let signal = [
                    Signal::Good(1), Signal::Marked(1), Signal::Marked(3), Signal::Lost(1),
                    Signal::Silent,
                ][usize::from(signal)];
                prime.feedback(now, Entropy(path), signal);
                for _ in 0..packets {
                    let clean: Vec<bool> =
                        (0..16).map(|path| prime.is_clean(Entropy(path), now)).collect();
                    let path = prime.next(now, &mut random);
                    prop_assert!(clean[path.index()] || !clean.contains(&true));
                }
                now += pause;
            }
            prop_assert_eq!(prime.paths.len(), 16);
        }
    }
}
