//! Checksums that a sender left to its network card (`VIRTIO_NET_HDR_F_NEEDS_CSUM`), and the room
//! in which inner headers are rewritten.

use wire::Dissection;
use wire::checksum::Sum;
use wire::number::PROTOCOL_SCTP;

use crate::batch::HEAD_CAPACITY;
use crate::crc32c::crc32c;
use crate::outer::OVERHEAD;

/// Longest inner headers that fit a head beside the outer ones.
pub const INNER_CAPACITY: usize = HEAD_CAPACITY - OVERHEAD;

/// Where SCTP has its checksum (RFC 9260 section 3.1).
const SCTP_CHECKSUM: usize = 8;

/// Inner headers that had to be changed; the rest of the frame is sent from where it was received.
#[derive(Debug)]
pub struct InnerHead {
    bytes: [u8; INNER_CAPACITY],
    length: usize,
}

impl Default for InnerHead {
    fn default() -> Self {
        Self { bytes: [0; INNER_CAPACITY], length: 0 }
    }
}

impl InnerHead {
    /// Nothing is changed.
    pub const fn clear(&mut self) {
        self.length = 0;
    }

    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Starts from these headers; they can be changed in what is returned. `None`, and empty, if
    /// they do not fit.
    pub fn start(&mut self, headers: &[u8]) -> Option<&mut [u8]> {
        self.length = 0;
        let room = self.bytes.get_mut(..headers.len())?;
        room.copy_from_slice(headers);
        self.length = headers.len();
        Some(room)
    }
}

/// A checksum that has been worked out, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// The Internet checksum.
    Internet { at: usize, value: [u8; 2] },
    /// CRC-32C.
    Sctp { at: usize, value: [u8; 4] },
}

impl Completed {
    /// Completes the checksum that covers `frame` from `start` on and goes to `offset` behind it,
    /// as `skb_checksum_help()` and `skb_crc32c_csum_help()` do (`net/core/dev.c`). `None` if it
    /// does not lie within the frame.
    pub fn of(frame: &[u8], dissection: &Dissection, start: u16, offset: u16) -> Option<Self> {
        let (start, offset) = (usize::from(start), usize::from(offset));
        let at = start + offset;
        let covered = frame.get(start..)?;
        if is_sctp(dissection, start, offset) {
            let (before, rest) = covered.split_at_checked(offset)?;
            let (_, behind) = rest.split_first_chunk::<4>()?;
            // The field itself counts as zero.
            let register = [before, &[0; 4], behind].into_iter().fold(u32::MAX, crc32c);
            return Some(Self::Sctp { at, value: (!register).to_le_bytes() });
        }
        covered.get(offset..)?.first_chunk::<2>()?;
        // Zero would say "no checksum" in UDP; in TCP both forms of zero are right
        // (CSUM_MANGLED_0).
        let value = Sum::new().bytes(covered).checksum_not_zero().to_be_bytes();
        Some(Self::Internet { at, value })
    }

    /// The first byte behind the checksum.
    pub const fn end(&self) -> usize {
        match self {
            Self::Internet { at, .. } => *at + 2,
            Self::Sctp { at, .. } => *at + 4,
        }
    }

    /// Writes it into the frame's first bytes. `None` if they do not reach that far.
    pub fn write(&self, headers: &mut [u8]) -> Option<()> {
        let (at, value): (usize, &[u8]) = match self {
            Self::Internet { at, value } => (*at, value),
            Self::Sctp { at, value } => (*at, value),
        };
        headers.get_mut(at..at + value.len())?.copy_from_slice(value);
        Some(())
    }
}

/// Whether a partial checksum is SCTP's.
pub fn is_sctp(dissection: &Dissection, start: usize, offset: usize) -> bool {
    offset == SCTP_CHECKSUM
        && dissection.transport.is_some_and(|transport| {
            transport.protocol == PROTOCOL_SCTP && usize::from(transport.offset) == start
        })
}
