//! The quick way of packets that are next in their order: where their queue pairs are.
//!
//! The search for a queue pair hashes its key with a secret, because hosts choose their numbers. A
//! place that is remembered by a simpler number only saves that search: if others take it, packets
//! are searched for as before.

use frame::ETHERNET;
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

/// A RoCE packet in an untagged frame over IPv4 without options.
pub(super) struct Plain {
    /// The inner addresses, as they are in the frame.
    pub(super) hosts: [u8; 8],
    /// The number of the queue pair.
    pub(super) number: u32,
    pub(super) slot: u16,
    pub(super) opcode: u8,
    /// The PSN in the low 24 bits, and what is before it in the frame.
    pub(super) psn: u32,
}

impl Plain {
    /// The RoCE packet in this frame of a VNI, or what to do with the frame otherwise.
    #[inline(always)]
    pub(super) fn of(inner: &[u8], slot: u16) -> Result<Self, Admission> {
        let headers = inner.first_chunk::<HEADERS>().ok_or(Admission::Unknown)?;
        let word = |at| u32::from_be_bytes(field(headers, at));
        // The EtherType, the version and the length of the IP header.
        if word(12) & 0xffff_ff00 != 0x0800_4500 {
            return Err(Admission::Unknown);
        }
        // The fragment, the time to live and the protocol. A fragment is no request.
        if word(20) & 0x3fff_00ff != PROTOCOL_UDP.into()
            || field(headers, 36) != PORT_ROCE.to_be_bytes()
        {
            return Err(Admission::Passes);
        }
        // The datagram fills the frame, so it has all headers. If the IP header has another length, the
        // host drops the packet.
        if field(headers, 38) != ((inner.len() - ETHERNET - 20) as u16).to_be_bytes() {
            return Err(Admission::Unknown);
        }
        let (opcode, number, psn) = (headers[42], word(46) & 0x00ff_ffff, word(50));
        Ok(Self { hosts: field(headers, 26), number, slot, opcode, psn })
    }
}

/// Bytes of the headers, from this offset on.
#[inline(always)]
fn field<const N: usize>(headers: &[u8; HEADERS], at: usize) -> [u8; N] {
    headers.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// Where queue pairs are.
#[derive(Debug)]
pub(super) struct Places(Box<[(Key, Place); PLACES]>);

/// The inner addresses, and the number of a queue pair with the slot of its VNI.
type Key = [u64; 2];

impl Default for Places {
    fn default() -> Self {
        Self(Box::new([([0; 2], Place::NONE); PLACES]))
    }
}

impl Places {
    #[inline(always)]
    fn key(of: &Plain) -> (Key, usize) {
        let hosts = u64::from_ne_bytes(of.hosts);
        let pair = u64::from(of.number.to_be()) | u64::from(of.slot) << 32;
        let mixed = (hosts ^ pair).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ([hosts, pair], (mixed >> (64 - PLACES.ilog2())) as usize)
    }

    /// Where the queue pair of a packet is.
    #[inline(always)]
    pub(super) fn find(&self, of: &Plain) -> Option<Place> {
        let (key, number) = Self::key(of);
        self.0.get(number).filter(|(known, _)| *known == key).map(|(_, at)| *at)
    }

    pub(super) fn remember(&mut self, of: &Plain, at: Place) {
        let (key, number) = Self::key(of);
        if let Some(place) = self.0.get_mut(number) {
            *place = (key, at);
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
        let plain = |host, number, slot| {
            let hosts = [host; 8];
            Plain { hosts, number, slot, opcode: 0, psn: 0 }
        };
        let first = plain(1, 1, 0);
        let mut places = Places::default();
        places.remember(&first, at);
        assert_eq!(places.find(&first), Some(at));
        // Some of these have the same number, and none is the same.
        let others =
            (2..4000).flat_map(|of| [plain(1, of, 0), plain(1, 1, of as u16), plain(2, of, 0)]);
        let place = |of: &Plain| Places::key(of).1;
        let same: Vec<_> = others.filter(|of| place(of) == place(&first)).collect();
        assert!(same.len() > 10 && same.iter().all(|of| places.find(of).is_none()));
        assert_eq!(places.find(&plain(2, 1, 0)), None);
    }
}
