//! Pseudo-random numbers that are the same in every run.

/// The seed of all pseudo-random values in this repository, such as queue pair numbers.
pub const SEED: u64 = 0x5a31_a557_391f_47ec;

/// The SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
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

    /// Puts a list into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or_default();
            list.swap(last, other);
        }
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
    fn below_stays_below_and_reaches_all() {
        let mut random = Random::new(SEED);
        let mut seen = [0; 7];
        for _ in 0..700 {
            seen[usize::try_from(random.below(7)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (60..150).contains(count)), "{seen:?}");
    }

    #[test]
    fn a_shuffle_keeps_all_and_gives_every_order() {
        let mut random = Random::new(SEED);
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
