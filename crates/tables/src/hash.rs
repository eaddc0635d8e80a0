//! The hasher of all tables here: each word is multiplied, and the halves of the product are
//! folded.
//!
//! Keys are MAC addresses, IP addresses and VNIs. They come from the operator's control plane, so
//! collision attacks do not justify the cost of SipHash for every frame.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with this module's hasher.
pub type TableMap<K, V> = HashMap<K, V, BuildHasherDefault<TableHasher>>;

/// Odd constant with well-spread bits: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A fast hasher without protection against collision attacks.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableHasher(u64);

impl TableHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ MULTIPLIER) * u128::from(MULTIPLIER);
        // Without the folding, high input bits would not reach the low output bits, which are the
        // table index.
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for TableHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            self.mix(u64::from(u32::from_le_bytes(*word)));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.mix(u64::from(word));
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.mix(u64::from(word));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    #[inline]
    fn write_u128(&mut self, word: u128) {
        self.mix(word as u64);
        self.mix((word >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn neighbouring_macs_fill_the_low_bits_evenly() {
        let build = BuildHasherDefault::<TableHasher>::default();
        let mut buckets = [0u32; 64];
        for host in 0u32..6_400 {
            let [_, _, c, d] = host.to_be_bytes();
            let hash = build.hash_one(wire::MacAddr([2, 0, 0, 0, c, d]));
            buckets[(hash & 63) as usize] += 1;
        }
        assert!(buckets.iter().all(|&n| (50..=160).contains(&n)), "{buckets:?}");
    }
}
