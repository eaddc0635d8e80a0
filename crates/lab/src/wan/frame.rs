//! A frame with the description of its pending offloads.

use pipeline::gso::Segmenter;
use pipeline::{Checksum, Gso, GsoKind};

/// Length of `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`), in host byte order: flags
/// (8 bits), GSO type (8), header length, segment size, checksum start and checksum offset (16
/// each).
pub(super) const VNET_HEADER: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// A frame in transit: [`VNET_HEADER`], then the frame with its VLAN tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// The length on the wire in bytes: for a super-frame, of all its segments.
    pub(super) fn wire_bytes(&self) -> u64 {
        let length = self.0.len().saturating_sub(VNET_HEADER);
        let Some(segment) = self.number(4).filter(|size| *size > 0 && self.kind() != 0) else {
            return length as u64;
        };
        let transport = self.number(6).unwrap_or_default();
        let headers = transport
            + match self.kind() & 0xf {
                GSO_UDP_L4 => 8,
                // TCP's data offset in units of 32 bits (RFC 9293 section 3.1).
                _ => self
                    .0
                    .get(VNET_HEADER + transport + 12)
                    .map_or(20, |byte| usize::from(byte >> 4) * 4),
            };
        let segments = length.saturating_sub(headers).div_ceil(segment).max(1);
        (length + (segments - 1) * headers) as u64
    }

    /// The bytes for the kernel, including the header.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Splits super-frames inside a tunnel (VXLAN), because the header cannot describe tunnels.
    /// Also splits UDP super-frames, whose segments may be lost individually. Other frames are
    /// returned unchanged; `None` if the headers are inconsistent.
    pub(super) fn cut(self) -> Option<Vec<Self>> {
        let (header, frame) = self.0.split_at_checked(VNET_HEADER)?;
        let flags = header.first()?;
        if self.kind() == 0 || flags & NEEDS_CSUM == 0 {
            return Some(vec![self]);
        }
        let dissection = wire::dissect(frame)?;
        let start = self.number(6)?;
        let tunnelled =
            dissection.transport.is_some_and(|transport| usize::from(transport.offset) != start);
        if !tunnelled && self.kind() & 0xf != GSO_UDP_L4 {
            return Some(vec![self]);
        }
        let kind = match self.kind() & 0xf {
            GSO_TCPV4 => GsoKind::TcpV4,
            GSO_TCPV6 => GsoKind::TcpV6,
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return None,
        };
        let number = |at| self.number(at).and_then(|number| u16::try_from(number).ok());
        let gso = Gso { kind, size: number(4)?, ecn: self.kind() & GSO_ECN != 0 };
        let checksum = Checksum::Partial { start: number(6)?, offset: number(8)? };
        let segmenter = Segmenter::new(frame, &dissection, gso, checksum).ok()?;
        let segment = |index| {
            // The segment has no pending offloads.
            let mut bytes = vec![0; VNET_HEADER];
            bytes.extend(segmenter.frame(index).ok()?);
            Some(Self(bytes))
        };
        (0..segmenter.count()).map(segment).collect()
    }

    /// The memory of the frame in bytes.
    pub(super) fn size(&self) -> usize {
        self.0.len()
    }

    fn kind(&self) -> u8 {
        self.0.get(1).copied().unwrap_or_default()
    }

    /// A 16-bit field of the header.
    fn number(&self, at: usize) -> Option<usize> {
        let bytes = self.0.get(at..at + 2)?;
        Some(usize::from(u16::from_ne_bytes(bytes.try_into().ok()?)))
    }

    /// A received frame. The VLAN tag, which the kernel has removed, is inserted again.
    pub(super) fn new(bytes: &[u8], tag: Option<[u8; 4]>) -> Self {
        let addresses = VNET_HEADER + 12;
        let Some((tag, (head, rest))) = tag.zip(bytes.split_at_checked(addresses)) else {
            return Self(bytes.to_vec());
        };
        let mut frame = Self([head, &tag, rest].concat());
        // Both offsets are relative to the start of the frame.
        let needs_checksum = frame.0.first().is_some_and(|flags| flags & NEEDS_CSUM != 0);
        for (at, moved) in [(2, frame.kind() != 0), (6, needs_checksum)] {
            if moved
                && let Some(number) =
                    frame.number(at).and_then(|number| u16::try_from(number + tag.len()).ok())
                && let Some(place) = frame.0.get_mut(at..at + 2)
            {
                place.copy_from_slice(&number.to_ne_bytes());
            }
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these fields (header length, segment size, checksum start), and a frame of
    /// `length` bytes.
    fn bytes(flags: u8, kind: u8, numbers: [u16; 3], length: usize) -> Vec<u8> {
        let mut bytes = vec![flags, kind];
        bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend([16, 0]);
        bytes.extend((0..length).map(|index| index as u8));
        bytes
    }

    #[test]
    fn a_super_frame_counts_as_its_segments() {
        assert_eq!(Frame::new(&bytes(0, 0, [0; 3], 1514), None).wire_bytes(), 1514);
        // 42 bytes of headers and three segments: two of 1,000 bytes and one of 1.
        let udp = Frame::new(&bytes(NEEDS_CSUM, GSO_UDP_L4, [42, 1000, 34], 42 + 2001), None);
        assert_eq!(udp.wire_bytes(), 2001 + 3 * 42);
        let mut tcp = bytes(NEEDS_CSUM, 1, [66, 1448, 34], 66 + 4 * 1448);
        tcp[VNET_HEADER + 34 + 12] = 8 << 4;
        assert_eq!(Frame::new(&tcp, None).wire_bytes(), 4 * (66 + 1448));
    }

    #[test]
    fn a_tag_comes_back_where_it_was() {
        let tag = Some([0x88, 0xa8, 0, 100]);
        let frame = Frame::new(&bytes(NEEDS_CSUM, 1, [66, 1448, 34], 100), tag);
        assert_eq!(
            frame.0[VNET_HEADER + 10..VNET_HEADER + 18],
            [10, 11, 0x88, 0xa8, 0, 100, 12, 13]
        );
        assert_eq!(
            (frame.number(2), frame.number(4), frame.number(6)),
            (Some(70), Some(1448), Some(38))
        );
        let plain = Frame::new(&bytes(0, 0, [0; 3], 60), tag);
        assert_eq!((plain.number(2), plain.number(6), plain.wire_bytes()), (Some(0), Some(0), 64));
    }
}
