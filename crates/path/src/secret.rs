//! The hash of tables of queue pairs.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::hash;

/// The hash of tables of queue pairs, in a few nanoseconds. Hosts choose their numbers, so its seed is
/// a secret.
#[derive(Debug, Clone)]
pub struct Secret(u64);

impl Secret {
    /// With this seed, which no host may know.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(hash::begin(seed))
    }
}

/// With a seed of its own.
impl Default for Secret {
    fn default() -> Self {
        Self::new(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Secret {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for Secret {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = hash::with(self.0, word);
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        hash::finish(self.0)
    }
}
