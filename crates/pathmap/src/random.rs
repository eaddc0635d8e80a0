//! A small generator of pseudo-random numbers. It is for choices, not for secrets: who sees some
//! numbers can compute all others. Secrets are numbers of a key ([`crate::Key::number`]).

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that always returns the same numbers for one seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        path::choose(self.next(), bound)
    }

    /// A time below twice this one, which is the mean.
    pub fn around(&mut self, mean: Duration) -> Duration {
        mean * self.below(1 << 16) as u32 / (1 << 15)
    }
}
