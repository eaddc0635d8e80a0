//! The hash of all decisions. It is seeded, and the same in every release and on every machine.
//!
//! The input is a fixed number of 64-bit words. Each word is folded in by a 64 × 64 → 128 bit
//! multiplication whose halves are XORed. A final xor-shift-multiply step mixes the result:
//!
//! ```text
//! fold(a, b) = low64(a · b) ^ high64(a · b)
//! state      = fold(seed ^ K0, K1)
//! state      = fold(state ^ word, K2) + K1     for each word
//! hash       = finish(state)
//! finish(x)  = x ^= x >> 32; x *= K3; x ^= x >> 29; x *= K2; x ^= x >> 32
//! ```
//!
//! All arithmetic is modulo 2⁶⁴. The constants are the first 64 bits of the fractional parts of √2,
//! √3, √5 and √7, made odd. The hash does not resist an attacker who knows the seed.

const K0: u64 = 0x6a09_e667_f3bc_c909;
const K1: u64 = 0xbb67_ae85_84ca_a73b;
const K2: u64 = 0x3c6e_f372_fe94_f82b;
const K3: u64 = 0xa54f_f53a_5f1d_36f1;

#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The state of the hash after its seed. BPF programs start with it.
#[inline]
#[must_use]
pub const fn begin(seed: u64) -> u64 {
    fold(seed ^ K0, K1)
}

/// Hashes `words` under `seed`. The number of words is not hashed. Keys of different kinds must
/// therefore differ in a word, not only in length.
#[inline(always)]
#[must_use]
pub fn hash<const N: usize>(seed: u64, words: [u64; N]) -> u64 {
    finish(words.into_iter().fold(begin(seed), with))
}

/// The state of the hash after another word.
#[inline(always)]
#[must_use]
pub const fn with(state: u64, word: u64) -> u64 {
    fold(state ^ word, K2).wrapping_add(K1)
}

/// The hash with this state.
#[inline(always)]
#[must_use]
pub const fn finish(mut state: u64) -> u64 {
    state ^= state >> 32;
    state = state.wrapping_mul(K3);
    state ^= state >> 29;
    state = state.wrapping_mul(K2);
    state ^ (state >> 32)
}

/// Scales a hash to `0..buckets` by multiplication. Each bucket gets ⌊2⁶⁴ / buckets⌋ hashes or one
/// more. The result depends mostly on the high bits, so the low bits may be weak. Returns 0 if
/// there are no buckets.
#[inline]
#[must_use]
pub const fn choose(hash: u64, buckets: usize) -> usize {
    ((hash as u128 * buckets as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_is_unbiased() {
        for buckets in (1..300).chain([1000, 4096, 16384, 65535]) {
            let mut start = 0u128;
            for bucket in 0..buckets {
                // The first hash of the next bucket is ⌈(bucket + 1) · 2⁶⁴ / buckets⌉.
                let end = ((bucket as u128 + 1) << 64).div_ceil(buckets as u128);
                assert_eq!(choose(start as u64, buckets), bucket);
                assert_eq!(choose((end - 1) as u64, buckets), bucket);
                let (size, fair) = (end - start, (1u128 << 64) / buckets as u128);
                assert!(size == fair || size == fair + 1);
                start = end;
            }
            assert_eq!(start, 1 << 64);
        }
    }

    #[test]
    fn choose_among_nothing_is_zero() {
        assert_eq!(choose(u64::MAX, 0), 0);
    }
}
