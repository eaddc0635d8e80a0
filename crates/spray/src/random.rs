//! Pseudo-random numbers, for choices and not for secrets: who sees some can compute all others.

use core::time::Duration;

/// The SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014): 8 bytes of state, and the same numbers on every machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one of many things that have a seed in common, such as a port.
    #[must_use]
    pub const fn stream(seed: u64, number: u64) -> Self {
        let mut mixed = Self(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(mixed.next())
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniformly distributed number below `bound` (with an error of `bound` in 2⁶⁴).
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A uniformly distributed index of a list of this length; 0 if it is empty.
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A time below twice this one, which is the mean.
    pub fn around(&mut self, mean: Duration) -> Duration {
        mean * self.index(1 << 16) as u32 / (1 << 15)
    }

    /// Puts a list into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }

    /// A uniformly distributed number below `bound`.
    pub const fn below_u16(&mut self, bound: u16) -> u16 {
        self.below(bound as u64) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn streams_differ() {
        let first: std::collections::BTreeSet<u64> = (0..100)
            .flat_map(|seed| (0..100).map(move |n| Random::stream(seed, n).next()))
            .collect();
        assert_eq!(first.len(), 10_000);
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut random = Random::new(7);
        let mut seen = [0; 7];
        for _ in 0..700 {
            seen[usize::try_from(random.below(7)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (60..150).contains(count)), "{seen:?}");
    }

    #[test]
    fn a_shuffle_keeps_all_and_gives_every_order() {
        let mut random = Random::new(7);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut list = [1, 2, 3];
            random.shuffle(&mut list);
            orders.insert(list);
        }
        assert_eq!(orders.len(), 6);
        assert!(orders.iter().all(|list| list.iter().sum::<i32>() == 6));
    }
}
