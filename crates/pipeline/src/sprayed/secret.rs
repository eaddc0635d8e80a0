//! The hash of queue pairs.

use std::hash::{BuildHasher, Hasher};

use path::hash;

/// The hash of queue pairs. Hosts choose their numbers, so it has a secret.
#[derive(Debug, Clone)]
pub(super) struct Secret(pub(super) u64);

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
