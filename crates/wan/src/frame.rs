//! A frame with the description of its pending offloads.

use pipeline::gso::Segmenter;
use pipeline::{Checksum, Gso, GsoKind};
use wire::ecn::{self, Codepoint};

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

    /// Sets the ECN mark "congestion experienced" of an ECN-capable IPv4 or IPv6 packet behind at
    /// most one tag (RFC 3168 section 5). Returns whether it did.
    pub(super) fn mark(&mut self) -> bool {
        let ethertype = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 2).and_then(|field| field.try_into().ok()).map(u16::from_be_bytes)
        };
        let mut start = VNET_HEADER + wire::Ethernet::LENGTH;
        if let Some(0x8100 | 0x88a8) = ethertype(&self.0, start - 2) {
            start += wire::Vlan::LENGTH;
        }
        let capable = match (ethertype(&self.0, start - 2), self.0.get(start..start + 2)) {
            (Some(wire::number::ETHERTYPE_IPV4), Some([_, tos])) => Codepoint::of(*tos),
            (Some(wire::number::ETHERTYPE_IPV6), Some([_, low])) => Codepoint::of(low >> 4),
            _ => Codepoint::NotEct,
        };
        matches!(capable, Codepoint::Ect0 | Codepoint::Ect1)
            && self.0.get_mut(start..).is_some_and(|packet| ecn::set(packet, Codepoint::Ce))
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

    #[test]
    fn only_ecn_capable_packets_are_marked() {
        let ipv4 = |tos: u8| {
            let mut packet = vec![0x45, tos, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
            packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = wire::checksum::checksum(&packet).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
            ([8, 0], packet)
        };
        let ipv6 = |class: u8| {
            let mut packet = vec![0; 40];
            packet[..2].copy_from_slice(&[0x60 | class >> 4, class << 4]);
            ([0x86, 0xdd], packet)
        };
        for tag in [None, Some([0x81, 0, 0, 5])] {
            for codepoint in 0..4 {
                for (ethertype, packet) in [ipv4(0xb8 | codepoint), ipv6(0xb8 | codepoint)] {
                    let bytes = [&[0; VNET_HEADER + 12][..], &ethertype, &packet].concat();
                    let before = Frame::new(&bytes, tag);
                    let mut frame = before.clone();
                    assert_eq!(frame.mark(), codepoint == 1 || codepoint == 2, "{codepoint}");
                    assert_eq!(frame != before, codepoint == 1 || codepoint == 2);
                    let start = frame.0.len() - packet.len();
                    if frame != before && ethertype == [8, 0] {
                        assert_eq!(frame.0[start + 1], 0xbb);
                        assert_eq!(wire::checksum::checksum(&frame.0[start..]), 0);
                    }
                    assert_eq!(frame.0[..start], before.0[..start]);
                }
            }
        }
        assert!(!Frame::new(&[2; VNET_HEADER + 14], None).mark());
        assert!(!Frame::new(&[2; 3], None).mark());
    }
}
