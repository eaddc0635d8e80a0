//! REPS, "recycled entropy packet spraying" (T. Bonato and others, arXiv 2407.21625): a path from
//! which a good acknowledgement came is used once more.

use crate::random::Random;
use crate::signal::{Entropy, Nanos, Signal, Spray, Values};

/// The paths that are remembered.
const SLOTS: usize = 8;
/// The packets with random paths after a freeze.
const EXPLORE: u8 = 16;
/// The least length of a freeze.
const FREEZE: Nanos = 10_000_000;

/// A remembered path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    entropy: Entropy,
    /// Whether it was not used since the acknowledgement.
    fresh: bool,
}

/// Takes the path that was good longest ago and was not used since; without one, a random path.
///
/// After a timeout it freezes: it takes the remembered paths in turn, used or not. The first
/// feedback after 10 ms ends this, and the next 16 packets have random paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reps {
    values: Values,
    slots: [Slot; SLOTS],
    /// The slot that is written next.
    head: usize,
    /// The slots that were written, at most all.
    written: usize,
    /// The slot that is taken next while frozen.
    turn: usize,
    /// The end of the freeze.
    frozen_until: Option<Nanos>,
    /// The packets left with random paths.
    explore: u8,
}

impl Reps {
    /// Sprays over so many paths.
    #[must_use]
    pub const fn new(values: Values) -> Self {
        let slot = Slot { entropy: Entropy(0), fresh: false };
        Self {
            values,
            slots: [slot; SLOTS],
            head: 0,
            written: 0,
            turn: 0,
            frozen_until: None,
            explore: 0,
        }
    }

    /// The fresh path that was written longest ago.
    fn oldest_fresh(&mut self) -> Option<Entropy> {
        let (new, old) = self.slots.split_at_mut_checked(self.head)?;
        let slot = old.iter_mut().chain(new).find(|slot| slot.fresh)?;
        slot.fresh = false;
        Some(slot.entropy)
    }

    /// The next remembered path, fresh or not.
    fn in_turn(&mut self) -> Option<Entropy> {
        let slot = self.slots.get_mut(..self.written)?.get_mut(self.turn)?;
        slot.fresh = false;
        self.turn = (self.turn + 1) % self.written;
        Some(slot.entropy)
    }
}

impl Spray for Reps {
    fn next(&mut self, _now: Nanos, random: &mut Random) -> Entropy {
        let known = if self.explore > 0 {
            self.explore -= 1;
            None
        } else if self.frozen_until.is_some() {
            self.in_turn()
        } else {
            self.oldest_fresh()
        };
        known.unwrap_or_else(|| Entropy(random.below_u16(self.values.get())))
    }

    fn feedback(&mut self, now: Nanos, entropy: Entropy, signal: Signal) {
        if signal == Signal::Silent && self.frozen_until.is_none() && self.explore == 0 {
            self.frozen_until = Some(now.saturating_add(FREEZE));
        }
        if self.frozen_until.is_some_and(|until| now > until) {
            *self = Self { explore: EXPLORE, ..Self::new(self.values) };
        }
        let Signal::Good(packets) = signal else { return };
        for _ in 0..usize::from(packets).min(SLOTS) {
            if let Some(slot) = self.slots.get_mut(self.head) {
                *slot = Slot { entropy, fresh: true };
            }
            self.head = (self.head + 1) % SLOTS;
            self.written = (self.written + 1).min(SLOTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Signal = Signal::Good(1);

    fn reps() -> (Reps, Random) {
        (Reps::new(Values::new(64).unwrap()), Random::new(7))
    }

    fn good(reps: &mut Reps, entropies: impl IntoIterator<Item = u16>) {
        for entropy in entropies {
            reps.feedback(0, Entropy(entropy), GOOD);
        }
    }

    fn take(reps: &mut Reps, random: &mut Random, number: usize) -> Vec<u16> {
        (0..number).map(|_| reps.next(0, random).0).collect()
    }

    #[test]
    fn good_paths_are_used_once_more_in_their_order() {
        let (mut reps, mut random) = reps();
        good(&mut reps, [5, 9, 5]);
        reps.feedback(0, Entropy(11), Signal::Marked(1));
        reps.feedback(0, Entropy(12), Signal::Lost(1));
        assert_eq!(take(&mut reps, &mut random, 3), [5, 9, 5]);
        // Now they are random.
        let mut same = random.clone();
        let expected: Vec<u16> = (0..20).map(|_| same.below_u16(64)).collect();
        assert_eq!(take(&mut reps, &mut random, 20), expected);
    }

    #[test]
    fn eight_paths_are_remembered() {
        let (mut reps, mut random) = reps();
        good(&mut reps, 0..11);
        assert_eq!(take(&mut reps, &mut random, 8), [3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_timeout_freezes_for_ten_milliseconds() {
        let (mut reps, mut random) = reps();
        good(&mut reps, [1, 2, 3]);
        reps.feedback(0, Entropy(0), Signal::Silent);
        assert_eq!(take(&mut reps, &mut random, 7), [1, 2, 3, 1, 2, 3, 1]);
        good(&mut reps, [4]);
        assert_eq!(take(&mut reps, &mut random, 3), [2, 3, 4]);
        // The first feedback after 10 ms ends it: 16 random paths, then the good one.
        reps.feedback(FREEZE + 1, Entropy(33), GOOD);
        let mut same = random.clone();
        let expected: Vec<u16> = (0..16).map(|_| same.below_u16(64)).collect();
        assert_eq!(take(&mut reps, &mut random, 16), expected);
        assert_eq!(take(&mut reps, &mut random, 1), [33]);
    }
}
