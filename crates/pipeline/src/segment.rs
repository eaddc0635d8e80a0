//! Cutting a super-frame into the frames that would have been on the wire: what `tcp_gso_segment`, `__udp_gso_segment`
//! and `inet_gso_segment` do in the kernel (`net/ipv4/{tcp_offload,udp_offload,af_inet}.c`).

use core::ops::Range;

use wire::checksum::Sum;
use wire::{Dissection, Network};

use crate::batch::HEAD_CAPACITY;
use crate::drop_reason::DropReason;
use crate::frame::{Gso, GsoKind};

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// One super-frame, ready to be cut.
#[derive(Debug)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    gso: Gso,
    l3: usize,
    l4: usize,
    ipv6: bool,
    header_length: usize,
}

/// Longest inner headers that fit a head beside the outer ones.
const HEADERS_MAX: usize = HEAD_CAPACITY - crate::encapsulate::OVERHEAD;

impl<'a> Segmenter<'a> {
    /// Checks that the frame's headers are those of the segmentation asked for.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if they are not, [`DropReason::TooBig`] if they are too long to be repeated.
    pub fn new(frame: &'a [u8], dissection: &Dissection, gso: Gso) -> Result<Self, DropReason> {
        let transport = dissection.transport.ok_or(DropReason::BadOffload)?;
        let header_length = dissection.gso_header_length(frame).ok_or(DropReason::BadOffload)?;
        let ipv6 = matches!(dissection.network, Network::Ipv6(_));
        let fits = match gso.kind {
            GsoKind::TcpV4 => transport.protocol == TCP && !ipv6,
            GsoKind::TcpV6 => transport.protocol == TCP && ipv6,
            GsoKind::Udp => transport.protocol == UDP,
        };
        if !fits || gso.size == 0 {
            return Err(DropReason::BadOffload);
        }
        if header_length > HEADERS_MAX {
            return Err(DropReason::TooBig);
        }
        let (l3, l4) = (usize::from(dissection.l3_offset), usize::from(transport.offset));
        Ok(Self { frame, gso, l3, l4, ipv6, header_length })
    }

    /// Number of segments, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        let payload = self.frame.len() - self.header_length;
        payload.div_ceil(usize::from(self.gso.size)).max(1)
    }

    /// Writes the headers of segment `index` to `head`, whose length is returned with the payload's place in the frame.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the headers turn out inconsistent.
    pub fn segment(
        &self,
        index: usize,
        head: &mut [u8; HEAD_CAPACITY],
    ) -> Result<(usize, Range<usize>), DropReason> {
        self.build(index, head).ok_or(DropReason::BadOffload)
    }

    fn build(&self, index: usize, head: &mut [u8; HEAD_CAPACITY]) -> Option<(usize, Range<usize>)> {
        let size = usize::from(self.gso.size);
        let start = self.header_length + index * size;
        let end = (start + size).min(self.frame.len());
        let payload = self.frame.get(start..end)?;
        let head = head.get_mut(..self.header_length)?;
        head.copy_from_slice(self.frame.get(..self.header_length)?);

        let l4_length = self.header_length - self.l4 + payload.len();
        let pseudo = self.network(head, index, l4_length)?;
        let last = end == self.frame.len();
        let checksum_at = match self.gso.kind {
            GsoKind::Udp => {
                put(head, self.l4 + 4, u16::try_from(l4_length).ok()?)?;
                self.l4 + 6
            }
            GsoKind::TcpV4 | GsoKind::TcpV6 => {
                let tcp = head.get_mut(self.l4..)?;
                let sequence = tcp.get_mut(4..8)?.first_chunk_mut::<4>()?;
                let advanced = u32::from_be_bytes(*sequence).wrapping_add((index * size) as u32);
                *sequence = advanced.to_be_bytes();
                let flags = tcp.get_mut(13)?;
                if !last {
                    *flags &= !FIN_PSH;
                }
                if index > 0 {
                    *flags &= !CWR;
                }
                self.l4 + 16
            }
        };
        put(head, checksum_at, 0)?;
        // The headers' length is even for TCP (whole words) and for UDP (eight bytes), so the pieces just add up.
        let sum = pseudo.bytes(head.get(self.l4..)?).bytes(payload);
        let sum = if self.gso.kind == GsoKind::Udp { sum.checksum_not_zero() } else { sum.checksum() };
        put(head, checksum_at, sum)?;
        Some((self.header_length, start..end))
    }

    /// Patches the network header; returns the pseudo header's sum.
    fn network(&self, head: &mut [u8], index: usize, l4_length: usize) -> Option<Sum> {
        let protocol = match self.gso.kind {
            GsoKind::Udp => UDP,
            GsoKind::TcpV4 | GsoKind::TcpV6 => TCP,
        };
        let length = self.l4 - self.l3 + l4_length;
        if self.ipv6 {
            put(head, self.l3 + 4, u16::try_from(length.checked_sub(40)?).ok()?)?;
            let addresses = head.get(self.l3 + 8..self.l3 + 40)?;
            return Some(
                Sum::new().bytes(addresses).word(u16::from(protocol)).long(u32::try_from(l4_length).ok()?),
            );
        }
        put(head, self.l3 + 2, u16::try_from(length).ok()?)?;
        let id = head.get(self.l3 + 4..)?.first_chunk::<2>()?;
        let id = u16::from_be_bytes(*id).wrapping_add(index as u16);
        put(head, self.l3 + 4, id)?;
        put(head, self.l3 + 10, 0)?;
        let sum = wire::checksum::checksum(head.get(self.l3..self.l4)?);
        put(head, self.l3 + 10, sum)?;
        let addresses = head.get(self.l3 + 12..self.l3 + 20)?;
        Some(Sum::new().bytes(addresses).word(u16::from(protocol)).word(u16::try_from(l4_length).ok()?))
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<2>()? = value.to_be_bytes();
    Some(())
}
