//! Queue pair numbers of connections.

use std::collections::BTreeSet;

use experiment::random::Random;
use wire::QueuePair;

/// Draws queue pair numbers, none twice.
#[derive(Default)]
pub(crate) struct Numbers(BTreeSet<u32>);

impl Numbers {
    pub(crate) fn draw(&mut self, random: &mut Random) -> QueuePair {
        loop {
            // 0 and 1 are reserved for management.
            let number = 2 + random.below(u64::from(QueuePair::MAX) - 1);
            let [.., high, middle, low] = number.to_be_bytes();
            let pair = QueuePair::from_be_bytes([high, middle, low]);
            if self.0.insert(pair.get()) {
                return pair;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers_and_none_twice() {
        let draw = |seed| {
            let (mut numbers, mut random) = (Numbers::default(), Random::new(seed));
            (0..2000).map(|_| numbers.draw(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let unique: BTreeSet<_> = draw(3).into_iter().collect();
        assert_eq!(unique.len(), 2000);
        assert!(unique.iter().all(|number| number.get() > 1));
        // Two jobs with the same seed have different numbers.
        let (mut numbers, seed) = (Numbers::default(), 7);
        let [one, other] =
            [Random::new(seed), Random::new(seed)].map(|mut random| numbers.draw(&mut random));
        assert_ne!(one, other);
    }
}
