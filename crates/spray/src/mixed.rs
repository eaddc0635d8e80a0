//! REPS and penalties together.

use crate::bitmap::Bitmap;
use crate::order::Tiers;
use crate::random::Random;
use crate::signal::{Entropy, Nanos, Signal, Spray};

/// The good paths that wait for their use. More than packets that are under way do not help.
const QUEUE: usize = 256;

/// Good paths are used once more, in the order of their feedback; without one, [`Bitmap`] chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixed {
    bitmap: Bitmap,
    queue: Box<[Entropy]>,
    /// The place of the oldest entry, and the number of entries.
    first: usize,
    count: usize,
}

impl Mixed {
    /// Sprays over these paths.
    #[must_use]
    pub fn new(tiers: Tiers, random: &mut Random) -> Self {
        let queue = vec![Entropy::default(); QUEUE].into();
        Self { bitmap: Bitmap::new(tiers, random), queue, first: 0, count: 0 }
    }
}

impl Spray for Mixed {
    fn next(&mut self, now: Nanos, random: &mut Random) -> Entropy {
        match self.queue.get(self.first) {
            Some(&entropy) if self.count > 0 => {
                self.first = (self.first + 1) % QUEUE;
                self.count -= 1;
                entropy
            }
            _ => self.bitmap.next(now, random),
        }
    }

    fn feedback(&mut self, now: Nanos, entropy: Entropy, signal: Signal) {
        self.bitmap.feedback(now, entropy, signal);
        let Signal::Good(packets) = signal else { return };
        for _ in 0..usize::from(packets).min(QUEUE - self.count) {
            if let Some(slot) = self.queue.get_mut((self.first + self.count) % QUEUE) {
                *slot = entropy;
            }
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::Values;

    #[test]
    fn good_paths_first_then_those_without_penalty() {
        let mut random = Random::new(5);
        let mut mixed = Mixed::new(Tiers::unknown(Values::new(2).unwrap()), &mut random);
        mixed.feedback(0, Entropy(0), Signal::Silent);
        mixed.feedback(0, Entropy(0), Signal::Good(2));
        mixed.feedback(0, Entropy(1), Signal::Good(1));
        let sent: Vec<u16> = (0..9).map(|_| mixed.next(0, &mut random).0).collect();
        assert_eq!(sent, [0, 0, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn the_queue_has_a_bound() {
        let mut random = Random::new(5);
        let mut mixed = Mixed::new(Tiers::unknown(Values::new(64).unwrap()), &mut random);
        for path in 0..1000 {
            mixed.feedback(0, Entropy(path % 64), Signal::Good(3));
        }
        assert_eq!((mixed.count, mixed.queue.len()), (QUEUE, QUEUE));
    }
}
