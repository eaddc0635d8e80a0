//! Checksums that a sender left to its device (`VIRTIO_NET_HDR_F_NEEDS_CSUM`), and the buffer for
//! rewritten inner headers.

use frame::HEAD_CAPACITY;
use wire::Dissection;
use wire::checksum::Sum;
use wire::number::PROTOCOL_SCTP;

use crate::crc32c::crc32c;
use crate::outer::OVERHEAD_IPV6;

/// Longest inner headers that fit a head together with the outer headers, in bytes.
pub(crate) const INNER_CAPACITY: usize = HEAD_CAPACITY - OVERHEAD_IPV6;

/// Offset of the checksum in the SCTP header (RFC 9260 section 3.1).
const SCTP_CHECKSUM: usize = 8;

/// Rewritten inner headers. The rest of the frame is sent from the receive buffer.
#[derive(Debug)]
pub(crate) struct InnerHead {
    bytes: [u8; INNER_CAPACITY],
    length: usize,
}

impl Default for InnerHead {
    fn default() -> Self {
        Self { bytes: [0; INNER_CAPACITY], length: 0 }
    }
}

impl InnerHead {
    /// Empties the buffer: no header is rewritten.
    pub(crate) const fn clear(&mut self) {
        self.length = 0;
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Copies `headers` into the buffer and returns them for patching. `None`, and an empty buffer,
    /// if they do not fit.
    pub(crate) fn start(&mut self, headers: &[u8]) -> Option<&mut [u8]> {
        self.length = 0;
        let room = self.bytes.get_mut(..headers.len())?;
        room.copy_from_slice(headers);
        self.length = headers.len();
        Some(room)
    }
}

/// A computed checksum and its offset in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completed {
    /// The Internet checksum.
    Internet { at: usize, value: [u8; 2] },
    /// CRC-32C.
    Sctp { at: usize, value: [u8; 4] },
}

impl Completed {
    /// Computes the checksum of `frame` from `start` on, to be stored at `start + offset`, as
    /// `skb_checksum_help()` and `skb_crc32c_csum_help()` do (`net/core/dev.c`). `None` if the
    /// field does not lie within the frame.
    pub(crate) fn of(
        frame: &[u8],
        dissection: &Dissection,
        start: u16,
        offset: u16,
    ) -> Option<Self> {
        let (start, offset) = (usize::from(start), usize::from(offset));
        let at = start + offset;
        let covered = frame.get(start..)?;
        if is_sctp(dissection, start, offset) {
            let (before, rest) = covered.split_at_checked(offset)?;
            let (_, behind) = rest.split_first_chunk::<4>()?;
            // The checksum field counts as zero.
            let register = [before, &[0; 4], behind].into_iter().fold(u32::MAX, crc32c);
            return Some(Self::Sctp { at, value: (!register).to_le_bytes() });
        }
        covered.get(offset..)?.first_chunk::<2>()?;
        // Zero means "no checksum" in UDP. In TCP, 0x0000 and 0xffff are both valid
        // (CSUM_MANGLED_0).
        let value = Sum::new().bytes(covered).checksum_not_zero().to_be_bytes();
        Some(Self::Internet { at, value })
    }

    /// Offset of the first byte behind the checksum field.
    pub(crate) const fn end(&self) -> usize {
        match self {
            Self::Internet { at, .. } => *at + 2,
            Self::Sctp { at, .. } => *at + 4,
        }
    }

    /// Writes the checksum into the frame's headers. `None` if they are too short.
    pub(crate) fn write(&self, headers: &mut [u8]) -> Option<()> {
        let (at, value): (usize, &[u8]) = match self {
            Self::Internet { at, value } => (*at, value),
            Self::Sctp { at, value } => (*at, value),
        };
        headers.get_mut(at..at + value.len())?.copy_from_slice(value);
        Some(())
    }
}

/// Whether a partial checksum is a CRC-32C of SCTP.
pub(crate) fn is_sctp(dissection: &Dissection, start: usize, offset: usize) -> bool {
    offset == SCTP_CHECKSUM
        && dissection.transport.is_some_and(|transport| {
            transport.protocol == PROTOCOL_SCTP && usize::from(transport.offset) == start
        })
}
