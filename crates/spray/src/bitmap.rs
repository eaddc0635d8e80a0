//! Spraying with a penalty for each path, which decays with each visit.

use crate::order::{Order, Tiers};
use crate::random::Random;
use crate::signal::{Entropy, Nanos, Signal, Spray};

/// The highest penalty.
const MOST: u8 = 15;

/// The order of oblivious spraying without the paths that have a penalty.
///
/// A mark adds 1 to the penalty, a loss 4, a timeout 15, up to 15. Each packet takes 1 off the first
/// penalty that it meets. If all paths have one, it takes the next in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    order: Order,
    penalties: Box<[u8]>,
    /// The paths with a penalty.
    penalised: u16,
}

impl Bitmap {
    /// Sprays over these paths.
    #[must_use]
    pub fn new(tiers: Tiers, random: &mut Random) -> Self {
        let penalties = vec![0; usize::from(tiers.paths())].into();
        Self { order: Order::new(tiers, random), penalties, penalised: 0 }
    }

    fn penalty(&self, entropy: Entropy) -> u8 {
        self.penalties.get(entropy.index()).copied().unwrap_or_default()
    }
}

impl Spray for Bitmap {
    fn next(&mut self, _now: Nanos, random: &mut Random) -> Entropy {
        let mut entropy = self.order.next(random);
        match self.penalties.get_mut(entropy.index()) {
            Some(penalty) if *penalty > 0 => {
                *penalty -= 1;
                self.penalised -= u16::from(*penalty == 0);
            }
            _ => return entropy,
        }
        entropy = self.order.next(random);
        if self.penalised < self.order.paths() {
            // A whole round is among the next two.
            for _ in 0..2 * self.order.paths() {
                if self.penalty(entropy) == 0 {
                    break;
                }
                entropy = self.order.next(random);
            }
        }
        entropy
    }

    fn feedback(&mut self, _now: Nanos, entropy: Entropy, signal: Signal) {
        let more = match signal {
            Signal::Good(_) => return,
            Signal::Marked(packets) => packets,
            Signal::Lost(packets) => packets.saturating_mul(4),
            Signal::Silent => u16::from(MOST),
        };
        let Some(penalty) = self.penalties.get_mut(entropy.index()) else { return };
        let more = more.min(u16::from(MOST)) as u8;
        self.penalised += u16::from(*penalty == 0 && more > 0);
        *penalty = (*penalty + more).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::signal::Values;

    fn bitmap(values: u32) -> (Bitmap, Random) {
        let mut random = Random::new(3);
        (Bitmap::new(Tiers::unknown(Values::new(values).unwrap()), &mut random), random)
    }

    #[test]
    fn a_penalty_lasts_so_many_visits() {
        let (mut bitmap, mut random) = bitmap(2);
        bitmap.feedback(0, Entropy(1), Signal::Lost(1));
        // Each visit of path 1 takes 1 off, and path 0 follows.
        let sent: Vec<u16> = (0..40).map(|_| bitmap.next(0, &mut random).0).collect();
        let first = sent.iter().position(|&path| path == 1).unwrap();
        assert!((4..=8).contains(&first), "{sent:?}");
        assert_eq!((bitmap.penalised, &*bitmap.penalties), (0, &[0, 0][..]));
    }

    #[test]
    fn penalties_have_a_bound() {
        let (mut bitmap, _) = bitmap(4);
        for (signal, expected) in [
            (Signal::Good(9), 0),
            (Signal::Marked(1), 1),
            (Signal::Marked(2), 3),
            (Signal::Lost(1), 7),
            (Signal::Silent, 15),
            (Signal::Lost(u16::MAX), 15),
        ] {
            bitmap.feedback(0, Entropy(2), signal);
            assert_eq!(&*bitmap.penalties, [0, 0, expected, 0], "{signal:?}");
        }
        bitmap.feedback(0, Entropy(4), Signal::Silent);
        assert_eq!(bitmap.penalised, 1);
    }

    #[test]
    fn with_all_paths_penalised_it_goes_on_in_the_order() {
        let (mut bitmap, mut random) = bitmap(8);
        for path in 0..8 {
            bitmap.feedback(0, Entropy(path), Signal::Silent);
        }
        let mut counts = [0; 8];
        for _ in 0..80 {
            counts[bitmap.next(0, &mut random).index()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    }

    proptest! {
        #[test]
        fn never_a_penalised_path_while_another_is_clean(
            bits in 0_u32..7,
            steps in prop::collection::vec((0_u16..64, 0_u8..5, 0_usize..20), 1..40),
        ) {
            let (mut bitmap, mut random) = bitmap(1 << bits);
            for (path, signal, packets) in steps {
                let signal = [
                    Signal::Good(1), Signal::Marked(1), Signal::Marked(3), Signal::Lost(1),
                    Signal::Silent,
                ][usize::from(signal)];
                bitmap.feedback(0, Entropy(path), signal);
                for _ in 0..packets {
                    let path = bitmap.next(0, &mut random);
                    let clean = bitmap.penalties.contains(&0);
                    prop_assert!(!clean || bitmap.penalty(path) == 0);
                    let penalised =
                        bitmap.penalties.iter().filter(|penalty| **penalty > 0).count();
                    prop_assert_eq!(usize::from(bitmap.penalised), penalised);
                }
            }
        }
    }
}
