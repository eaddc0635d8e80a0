//! Segments of a TCP stream that can be sent to a host as one super-frame. The conditions are those
//! of the kernel's GRO (`tcp_gro_receive()`, `net/ipv4/tcp_offload.c`).

use frame::{Checksum, ETHERNET, Gso, GsoKind, Offload};
use wire::Tcp;
use wire::checksum::Sum;
use wire::number::PROTOCOL_TCP;

use crate::grouping::mixed;
use crate::gso::Layer;

const IPV4: usize = 20;
const IPV6: usize = 40;
/// More-fragments bit and fragment offset.
const FRAGMENT: u16 = 0x3fff;

/// The role of a frame in a TCP stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A data segment that may be joined with the segments before it.
    Data(Segment),
    /// A frame of the TCP stream with this hash that cannot be joined.
    Other(u32),
    /// Not TCP.
    None,
    /// Unknown. It may belong to any stream.
    Unknown,
}

/// A segment that may be joined with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Hash of the stream.
    pub(crate) hash: u32,
    pub(crate) layout: Layout,
    /// Length of the payload in bytes, at least one.
    pub(crate) payload: u32,
    /// Whether the PSH flag is set.
    pub(crate) push: bool,
}

/// Offsets of the headers in the segments of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Length of all headers in bytes, 54 to 114.
    pub(crate) headers: u8,
    /// Offset of the TCP header in the frame: 34 or 54.
    pub(crate) l4: u8,
}

impl Part {
    /// Classifies an Ethernet frame without pending offloads.
    pub(crate) fn of(frame: &[u8]) -> Self {
        let (protocol, l4, end) = match frame.get(12..) {
            Some([0x08, 0x00, 0x45, _, l0, l1, _, _, f0, f1, _, protocol, ..]) => {
                if u16::from_be_bytes([*f0, *f1]) & FRAGMENT != 0 {
                    return Self::Unknown;
                }
                (*protocol, ETHERNET + IPV4, ETHERNET + usize::from(u16::from_be_bytes([*l0, *l1])))
            }
            Some([0x86, 0xdd, 0x60..=0x6f, _, _, _, l0, l1, protocol, ..]) => (
                *protocol,
                ETHERNET + IPV6,
                ETHERNET + IPV6 + usize::from(u16::from_be_bytes([*l0, *l1])),
            ),
            _ => return Self::Unknown,
        };
        if protocol != PROTOCOL_TCP {
            // Extension headers are not parsed.
            return if protocol == wire::number::PROTOCOL_UDP { Self::None } else { Self::Unknown };
        }
        let Some((tcp, payload)) = frame.get(l4..).and_then(|bytes| {
            let segment = Tcp::parse(bytes).ok()?.0;
            let header = usize::from(segment.data_offset()) * 4;
            Some((segment, bytes.get(header..).filter(|_| header >= 20)?))
        }) else {
            return Self::Unknown;
        };
        let hash = mixed(u64::from(tcp.source_port()) << 16 | u64::from(tcp.destination_port()));
        let plain = tcp.flags() & !Tcp::PSH == Tcp::ACK;
        if !plain || payload.is_empty() || end != frame.len() || !is_intact(frame, layer(l4)) {
            return Self::Other(hash);
        }
        Self::Data(Segment {
            hash,
            layout: Layout { headers: (frame.len() - payload.len()) as u8, l4: l4 as u8 },
            payload: payload.len() as u32,
            push: tcp.flags() & Tcp::PSH != 0,
        })
    }
}

/// Whether the checksums of the IPv4 header and the TCP segment are right.
fn is_intact(frame: &[u8], layer: Layer) -> bool {
    let segment = frame.get(layer.l4..).unwrap_or_default();
    let header = frame.get(layer.l3..layer.l4).unwrap_or_default();
    let sum = layer.pseudo(frame).map(|pseudo| pseudo.word(segment.len() as u16).bytes(segment));
    (layer.ipv6 || Sum::new().bytes(header).is_intact()) && sum.is_some_and(Sum::is_intact)
}

/// The TCP layer behind an IPv4 header without options, or an IPv6 header without extension
/// headers.
const fn layer(l4: usize) -> Layer {
    Layer { l3: ETHERNET, l4, ipv6: l4 == ETHERNET + IPV6, protocol: PROTOCOL_TCP }
}

impl Layout {
    /// Whether `other` could be a later segment of the same super-frame as `this`. It follows by
    /// `places` segments and `bytes` bytes of payload.
    pub(crate) fn is_followed(
        self,
        (this, other): (&[u8], &[u8]),
        (places, bytes): (u32, u32),
    ) -> bool {
        let (Layer { l4, ipv6, .. }, headers) = (layer(self.l4.into()), usize::from(self.headers));
        let same = |range: core::ops::Range<usize>| this.get(range.clone()) == other.get(range);
        let network = if ipv6 {
            same(0..18) && same(20..l4)
        } else {
            let id = |frame: &[u8]| {
                frame.get(18..20).and_then(<[u8]>::first_chunk).map(|id| u16::from_be_bytes(*id))
            };
            let counted = id(this).map(|id| id.wrapping_add(places as u16)) == id(other);
            same(0..16) && same(20..24) && same(26..l4) && counted
        };
        let sequence = |frame: &[u8]| {
            frame
                .get(l4 + 4..)
                .and_then(<[u8]>::first_chunk)
                .map(|number| u32::from_be_bytes(*number))
        };
        network
            && sequence(this).map(|number| number.wrapping_add(bytes)) == sequence(other)
            // Ports, acknowledgment, header length, window, urgent pointer and options.
            && same(l4..l4 + 4)
            && same(l4 + 8..l4 + 13)
            && same(l4 + 14..l4 + 16)
            && same(l4 + 18..headers)
    }

    /// Patches the first segment's headers for `payload` bytes of payload in total. `push` is the
    /// PSH flag of the last segment. Returns the offloads to request from the kernel.
    pub(crate) fn patch(
        self,
        headers: &mut [u8],
        payload: u32,
        size: u32,
        push: bool,
    ) -> Option<Offload> {
        let layer = layer(self.l4.into());
        let length = usize::from(self.headers) - layer.l4 + payload as usize;
        layer.patch(headers, 0, length)?;
        let pseudo = layer.pseudo(headers)?.word(u16::try_from(length).ok()?).fold();
        let kind = if layer.ipv6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let (mut tcp, _) = Tcp::parse_mut(headers.get_mut(layer.l4..)?).ok()?;
        if push {
            tcp.set_flags(tcp.flags() | Tcp::PSH);
        }
        tcp.set_checksum(pseudo);
        Some(Offload {
            checksum: Checksum::Partial {
                start: self.l4.into(),
                offset: Tcp::CHECKSUM_OFFSET as u16,
            },
            gso: Some(Gso { kind, size: u16::try_from(size).ok()?, ecn: false }),
        })
    }
}
