//! Requests that arrived before those that precede them (`order = place`).

use std::collections::VecDeque;

use crate::packet::Header;
use wire::Psn;

/// How far a request may be ahead of the first one that is missing.
pub(crate) const AHEAD: usize = 256;

/// Which packets after a number have arrived: a bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Map([u64; AHEAD / 64]);

impl Map {
    /// Bytes on the wire.
    pub(crate) const LENGTH: usize = AHEAD / 8;

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    pub(crate) fn set(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn to_be_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let words = self.0.map(u64::to_be_bytes);
        bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
        bytes
    }

    pub(crate) fn from_be_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let mut map = Self::default();
        map.0.iter_mut().zip(words).for_each(|(to, from)| *to = u64::from_be_bytes(*from));
        map
    }
}

/// What a selective acknowledgement says beside the number before the first missing packet:
///
/// ```text
/// | 0 (8 bits) | PSN that caused it (24 bits) | map (256 bits) |
/// ```
///
/// It follows the AETH. Bit 0 of the map, the lowest of its first 64 bits, stands for the first
/// missing packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sack {
    pub(crate) cause: Psn,
    pub(crate) map: Map,
}

impl Sack {
    pub(crate) const LENGTH: usize = 4 + Map::LENGTH;

    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (cause, rest) = bytes.split_first_chunk()?;
        let (map, rest) = rest.split_first_chunk()?;
        let cause = Psn::new(u32::from_be_bytes(*cause));
        Some((Self { cause, map: Map::from_be_bytes(*map) }, rest))
    }

    pub(crate) fn write(&self, out: &mut [u8]) -> Option<()> {
        let (cause, rest) = out.split_first_chunk_mut()?;
        *cause = self.cause.get().to_be_bytes();
        *rest.first_chunk_mut()? = self.map.to_be_bytes();
        Some(())
    }
}

/// A request that waits for its turn.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) header: Header,
    /// Its payload; `Err` with its length if that is in the memory already.
    pub(crate) payload: Result<Vec<u8>, u32>,
}

/// The requests from the first one that is missing.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    packets: VecDeque<Option<Early>>,
}

impl Kept {
    pub(crate) fn has(&self, ahead: usize) -> bool {
        self.packets.get(ahead).is_some_and(Option::is_some)
    }

    pub(crate) fn keep(&mut self, ahead: usize, early: Early) {
        if self.packets.len() <= ahead {
            self.packets.resize_with(ahead + 1, || None);
        }
        if let Some(place) = self.packets.get_mut(ahead) {
            *place = Some(early);
        }
    }

    /// The first missing packet is now `count` further.
    pub(crate) fn advance(&mut self, count: u32) {
        let count = self.packets.len().min(count as usize);
        self.packets.drain(..count);
    }

    /// The request whose turn it is, if it has arrived.
    pub(crate) fn take(&mut self) -> Option<Early> {
        self.packets.front_mut()?.take()
    }

    pub(crate) fn map(&self) -> Map {
        let mut map = Map::default();
        let kept = self.packets.iter().enumerate().filter(|(_, packet)| packet.is_some());
        kept.for_each(|(at, _)| map.set(at));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selective_acknowledgement_reads_as_it_was_written() {
        let mut map = Map::default();
        [1, 63, 64, 200, 255].iter().for_each(|at| map.set(*at));
        map.set(256);
        let sack = Sack { cause: Psn::new(0x12_3456), map };
        let mut bytes = [0xff; Sack::LENGTH];
        sack.write(&mut bytes).unwrap();
        assert_eq!(bytes[..12], [0, 0x12, 0x34, 0x56, 0x80, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(Sack::parse(&bytes), Some((sack, &[][..])));
        assert_eq!(Sack::parse(&bytes[1..]), None);
        let found: Vec<usize> = (0..300).filter(|at| map.has(*at)).collect();
        assert_eq!(found, [1, 63, 64, 200, 255]);
    }
}
