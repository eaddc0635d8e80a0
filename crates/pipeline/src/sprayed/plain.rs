//! The quick way of packets that are next in their order: where their queue pairs are.
//!
//! The search for a queue pair hashes its key with a secret, because hosts choose their numbers. A
//! place that is remembered by a simpler number only saves that search: if others take it, packets
//! are searched for as before.

use frame::ETHERNET;
use path::is_request;
use spray::resequence::Place;
use wire::number::{PORT_ROCE, PROTOCOL_UDP};

/// Length of Ethernet, IPv4 (without options), UDP and base transport header in bytes.
const HEADERS: usize = ETHERNET + 20 + 8 + 12;
/// Queue pairs whose places are remembered.
const PLACES: usize = 256;

/// What to do with a frame of a known VTEP that sprays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Its host gets it now: it is the next one in its order, or has none.
    Passes,
    /// It has to be put in its order.
    Ordered,
    /// It takes the full path.
    Unknown,
}

/// A packet of a request in an untagged frame over IPv4 without options.
pub(super) struct Plain {
    /// The inner addresses, as they are in the frame.
    pub(super) hosts: [u8; 8],
    /// The number of the queue pair, and the slot of the VNI above it.
    pub(super) number: u64,
    pub(super) opcode: u8,
    pub(super) psn: u32,
}

impl Plain {
    /// The packet in this frame of a VNI, or what to do with it otherwise.
    #[inline(always)]
    pub(super) fn of(inner: &[u8], slot: u16) -> Result<Self, Admission> {
        let headers = inner.first_chunk::<HEADERS>().ok_or(Admission::Unknown)?;
        let half = |at: usize| match headers.get(at..).and_then(<[u8]>::first_chunk) {
            Some(half) => u16::from_be_bytes(*half),
            None => 0,
        };
        let word = |at: usize| match headers.get(at..).and_then(<[u8]>::first_chunk) {
            Some(word) => u32::from_be_bytes(*word),
            None => 0,
        };
        let (total, datagram) = (usize::from(half(16)), usize::from(half(38)));
        // The EtherType and the first byte of the IP header; the fragment.
        let is_plain = word(12) >> 8 == 0x08_0045 && half(20) & 0x3fff == 0;
        if !is_plain || total + ETHERNET > inner.len() {
            return Err(Admission::Unknown);
        }
        if headers[23] != PROTOCOL_UDP || half(36) != PORT_ROCE {
            return Err(Admission::Passes);
        }
        if datagram + 20 > total || datagram < 8 + 12 {
            return Err(Admission::Unknown);
        }
        let opcode = headers[42];
        if !is_request(opcode) {
            return Err(Admission::Passes);
        }
        let hosts = headers.get(26..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        let number = u64::from(word(46) & 0x00ff_ffff) | u64::from(slot) << 32;
        Ok(Self { hosts, number, opcode, psn: word(50) & 0x00ff_ffff })
    }
}

/// Where queue pairs are.
#[derive(Debug)]
pub(super) struct Places(Box<[([u8; 8], u64, Place); PLACES]>);

impl Default for Places {
    fn default() -> Self {
        Self(Box::new([([0; 8], 0, Place::NONE); PLACES]))
    }
}

impl Places {
    #[inline(always)]
    fn number(of: &Plain) -> usize {
        let mixed = (u64::from_le_bytes(of.hosts) ^ of.number.rotate_left(24))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - PLACES.ilog2())) as usize
    }

    /// Where the queue pair of a packet is.
    #[inline(always)]
    pub(super) fn find(&self, of: &Plain) -> Place {
        match self.0.get(Self::number(of)) {
            Some((hosts, number, at)) if *hosts == of.hosts && *number == of.number => *at,
            _ => Place::NONE,
        }
    }

    pub(super) fn remember(&mut self, of: &Plain, at: Place) {
        if let Some(place) = self.0.get_mut(Self::number(of)) {
            *place = (of.hosts, of.number, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use spray::resequence::{Limits, Packet, Resequencer};

    use super::*;

    #[test]
    fn a_place_is_found_by_the_whole_queue_pair() {
        let mut order = Resequencer::<u8, (), BuildHasherDefault<DefaultHasher>>::new(
            Limits::default(),
            0,
            Default::default(),
        );
        order.receive(0, 1, Packet { psn: 1, uses: Some(1) }, || (), |_| ());
        let at = order.find(&1).unwrap();
        let plain = |host, number| Plain { hosts: [host; 8], number, opcode: 0, psn: 0 };
        let first = plain(1, 1);
        let mut places = Places::default();
        places.remember(&first, at);
        assert_eq!(places.find(&first), at);
        // Some of these have the same number, and none is the same.
        let others = (2..4000).flat_map(|of| [plain(1, of), plain(1, 1 | of << 32), plain(2, of)]);
        let same: Vec<_> =
            others.filter(|of| Places::number(of) == Places::number(&first)).collect();
        assert!(same.len() > 10 && same.iter().all(|of| places.find(of) == Place::NONE));
        assert_eq!(places.find(&plain(2, 1)), Place::NONE);
    }
}
