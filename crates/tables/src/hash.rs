//! The hasher of all tables here: each word is multiplied, and the halves of the product are
//! folded.
//!
//! Keys are MAC addresses, IP addresses and VNIs. Hosts choose MAC addresses, so the hash has a
//! secret: otherwise they could choose 100,000 that collide. SipHash costs too much for every frame.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A hash map with this module's hasher.
pub type TableMap<K, V> = HashMap<K, V, BuildHasherDefault<TableHasher>>;

/// Odd constant with well-spread bits: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first state and the multiplier of this process.
static KEY: [AtomicU64; 2] = [AtomicU64::new(MULTIPLIER), AtomicU64::new(MULTIPLIER)];

/// Makes the hash one of this process, by two secret numbers. To be called before there is a table:
/// tables do not find what they hold after a change. Without a call, the hash is known to everybody.
pub fn set_key([state, multiplier]: [u64; 2]) {
    let [first, second] = &KEY;
    first.store(state, Ordering::Relaxed);
    second.store(multiplier | 1, Ordering::Relaxed);
}

/// A fast hasher. Who does not know its key cannot choose keys of a table that collide.
#[derive(Debug, Clone, Copy)]
pub struct TableHasher {
    state: u64,
    multiplier: u64,
}

impl Default for TableHasher {
    #[inline]
    fn default() -> Self {
        let [state, multiplier] = KEY.each_ref().map(|word| word.load(Ordering::Relaxed));
        Self { state, multiplier }
    }
}

impl TableHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.multiplier);
        // Without the folding, high input bits would not reach the low output bits, which are the
        // table index.
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for TableHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.state
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

    /// Addresses that collide with one key do not with another.
    #[test]
    fn hosts_cannot_choose_addresses_that_collide() {
        let low = |key: [u64; 2], mac: u64| {
            let mut hasher = TableHasher { state: key[0], multiplier: key[1] | 1 };
            hasher.write_u64(mac);
            hasher.finish() & 0xffff
        };
        let known = [MULTIPLIER, MULTIPLIER];
        let chosen: Vec<u64> =
            (0..1 << 23).filter(|mac| low(known, *mac) == 0x1234).take(64).collect();
        assert_eq!(chosen.len(), 64);
        let secret = [0x0123_4567_89ab_cdef, 0xd1b5_4a32_d192_ed03];
        let apart: std::collections::BTreeSet<u64> =
            chosen.iter().map(|mac| low(secret, *mac)).collect();
        assert!(apart.len() >= 60, "{}", apart.len());
    }

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
