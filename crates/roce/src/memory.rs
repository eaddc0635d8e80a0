//! The memory that requests read and write.

/// Memory of a host, addressed as InfiniBand's memory regions are: by a key and a virtual address.
pub trait Memory {
    /// Copies the bytes at `address` to `into`. Returns whether the whole range may be read.
    fn read(&self, key: u32, address: u64, into: &mut [u8]) -> bool;

    /// Copies `from` to `address`. Returns whether the whole range may be written.
    fn write(&mut self, key: u32, address: u64, from: &[u8]) -> bool;
}

/// One memory region of real bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Region {
    /// The local and remote key.
    pub key: u32,
    /// The virtual address of the first byte.
    pub base: u64,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Region {
    fn start(&self, key: u32, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        (key == self.key).then_some(usize::try_from(offset).ok()?)
    }
}

impl Memory for Region {
    fn read(&self, key: u32, address: u64, into: &mut [u8]) -> bool {
        let start = self.start(key, address);
        let place = start.and_then(|start| self.bytes.get(start..start.checked_add(into.len())?));
        place.map(|place| into.copy_from_slice(place)).is_some()
    }

    fn write(&mut self, key: u32, address: u64, from: &[u8]) -> bool {
        let start = self.start(key, address);
        let place =
            start.and_then(|start| self.bytes.get_mut(start..start.checked_add(from.len())?));
        place.map(|place| place.copy_from_slice(from)).is_some()
    }
}

/// Unlimited memory in which each byte is a function of its address. What is written is compared
/// with it and not stored, so a workload of any size needs no memory, and every byte is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Differs between experiments whose bytes must not be taken for each other's.
    pub seed: u64,
    /// Number of writes whose bytes were not those of their address.
    pub mismatches: u64,
}

/// An odd constant with well mixed bits (2⁶⁴ divided by the golden ratio).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Pattern {
    /// A pattern with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, mismatches: 0 }
    }

    /// The eight bytes at `address`, which is a multiple of eight.
    const fn word(&self, address: u64) -> [u8; 8] {
        ((address >> 3).wrapping_add(self.seed)).wrapping_mul(STEP).to_le_bytes()
    }

    /// Calls `run` with each run of bytes that share an aligned word: where it starts in the range,
    /// and its bytes.
    fn unaligned(&self, address: u64, length: usize, mut run: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        while at < length {
            let place = address.wrapping_add(at as u64);
            let skip = (place & 7) as usize;
            let count = (8 - skip).min(length - at);
            let word = self.word(place & !7);
            run(at, word.get(skip..skip + count).unwrap_or_default());
            at += count;
        }
    }
}

impl Memory for Pattern {
    fn read(&self, _: u32, address: u64, into: &mut [u8]) -> bool {
        if address & 7 == 0 {
            let (words, tail) = into.as_chunks_mut::<8>();
            let first = (address >> 3).wrapping_add(self.seed).wrapping_mul(STEP);
            let mut value = first;
            for word in words.iter_mut() {
                *word = value.to_le_bytes();
                value = value.wrapping_add(STEP);
            }
            tail.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, value)| *byte = value);
            return true;
        }
        self.unaligned(address, into.len(), |at, bytes| {
            if let Some(place) = into.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        });
        true
    }

    fn write(&mut self, _: u32, address: u64, from: &[u8]) -> bool {
        let mut right = true;
        if address & 7 == 0 {
            let (words, tail) = from.as_chunks::<8>();
            let mut value = (address >> 3).wrapping_add(self.seed).wrapping_mul(STEP);
            let mut differences = 0;
            for word in words {
                differences |= u64::from_le_bytes(*word) ^ value;
                value = value.wrapping_add(STEP);
            }
            right = differences == 0
                && tail.iter().zip(value.to_le_bytes()).all(|(byte, value)| *byte == value);
        } else {
            let check = *self;
            check.unaligned(address, from.len(), |at, bytes| {
                right &= from.get(at..at + bytes.len()) == Some(bytes);
            });
        }
        self.mismatches += u64::from(!right);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_knows_every_byte_by_its_address() {
        let mut pattern = Pattern::new(5);
        let mut whole = [0; 64];
        assert!(pattern.read(0, 0x1000, &mut whole));
        for start in 0..16 {
            for length in 0..40 {
                let mut part = vec![0; length];
                assert!(pattern.read(9, 0x1000 + start as u64, &mut part));
                assert_eq!(part, whole[start..start + length]);
                assert!(pattern.write(9, 0x1000 + start as u64, &part));
                assert_eq!(pattern.mismatches, 0, "{start} {length}");
            }
        }
        for at in 0..64 {
            for start in [0, at] {
                let mut wrong = whole;
                wrong[at] ^= 1;
                let before = pattern.mismatches;
                pattern.write(0, 0x1000 + start as u64, &wrong[start..]);
                assert_eq!(pattern.mismatches, before + 1, "{at} {start}");
            }
        }
        let mut other = [0; 64];
        Pattern::new(6).read(0, 0x1000, &mut other);
        assert_ne!(other, whole);
    }

    #[test]
    fn a_region_refuses_what_is_outside() {
        let mut region = Region { key: 7, base: 100, bytes: vec![0; 10] };
        assert!(region.write(7, 105, &[1, 2, 3, 4, 5]));
        let mut read = [0; 5];
        assert!(region.read(7, 105, &mut read));
        assert_eq!(read, [1, 2, 3, 4, 5]);
        for (key, address, length) in [(7, 99, 1), (7, 106, 5), (8, 105, 1), (7, u64::MAX, 2)] {
            assert!(!region.write(key, address, &vec![9; length]));
            assert!(!region.read(key, address, &mut vec![9; length]));
        }
    }
}
