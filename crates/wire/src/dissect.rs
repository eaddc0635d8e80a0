//! Reads an Ethernet frame in one pass: where each header starts, and the fields that forwarding
//! needs.
//!
//! Nothing is allocated, and no input is an error. If a header is truncated, contradicts the
//! frame's length or is of an unknown kind, the result has less information. Each field describes
//! how.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ethernet::{Ethernet, Vlan};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::ipv6_chain::{Chain, Upper, extensions};
use crate::number::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_DCCP, PROTOCOL_SCTP, PROTOCOL_TCP,
    PROTOCOL_UDP, PROTOCOL_UDP_LITE, is_vlan,
};
use crate::roce::Bth;
use crate::tcp::Tcp;
use crate::types::{MacAddr, QueuePair};
use crate::udp::Udp;

/// Largest number of VLAN tags that are skipped. The EtherType of a further tag is reported as the
/// frame's.
const MAX_VLAN_TAGS: u8 = 4;
const ETHERNET_LENGTH: u16 = Ethernet::LENGTH as u16;
const IPV6_LENGTH: u16 = Ipv6::LENGTH as u16;

/// The parsed headers of one Ethernet frame. Offsets are in bytes from the frame's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dissection {
    /// Destination MAC address.
    pub destination: MacAddr,
    /// Source MAC address.
    pub source: MacAddr,
    /// Number of VLAN tags (0x8100, 0x88a8, 0x9100) before `ethertype`, 0 to 4.
    pub vlan_tags: u8,
    /// EtherType behind the VLAN tags. For a truncated or fifth tag it is the tag's own EtherType.
    /// Below 0x600 it is an IEEE 802.3 length.
    pub ethertype: u16,
    /// Offset of the network header.
    pub l3_offset: u16,
    /// The network header. It is also [`Network::Other`] for an invalid or truncated IP header;
    /// `ethertype` is then still that of IP.
    pub network: Network,
    /// The transport header. `None` if the network is not IP, for later fragments, and for
    /// datagrams longer than the frame. Also `None` behind truncated extension headers, or more
    /// than 8 of them.
    pub transport: Option<Transport>,
    /// The RoCEv2 header, of an unfragmented datagram to UDP port 4791 with a complete base
    /// transport header.
    pub roce: Option<Roce>,
}

/// The network header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// IPv4 with a complete and consistent fixed header.
    Ipv4(Ipv4Summary),
    /// IPv6 with a complete fixed header.
    Ipv6(Ipv6Summary),
    /// Any other network layer.
    Other,
}

/// Fields of an IPv4 header (RFC 791 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Summary {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Length of the header with options in bytes, 20 to 60. The options may extend beyond the
    /// frame's end.
    pub header_length: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// The don't-fragment flag.
    pub dont_fragment: bool,
    /// The part of a datagram that the packet carries.
    pub fragment: Fragment,
    /// Total length in bytes from the header; not checked against the frame.
    pub total_length: u16,
    /// Protocol number; the same in every fragment of a datagram.
    pub protocol: u8,
}

/// Fields of an IPv6 header and its fragment header (RFC 8200 sections 3 and 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Summary {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The part of a datagram that the packet carries. An atomic fragment (RFC 6946) is whole.
    pub fragment: Fragment,
    /// Payload length in bytes from the header, including extension headers; not checked against the
    /// frame.
    pub payload_length: u16,
    /// In a fragment, the next header in its fragment header, which is the same in every fragment
    /// of a datagram. Otherwise the upper-layer protocol, or the first next header that could not
    /// be parsed.
    pub protocol: u8,
}

/// The part of an IP datagram that a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// The whole datagram.
    Whole,
    /// The first fragment, which holds the transport header.
    First,
    /// A later fragment.
    Later,
}

/// The transport header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// Offset of the header.
    pub offset: u16,
    /// Source and destination port of TCP, UDP, UDP-Lite, SCTP and DCCP. `None` if they are
    /// truncated, or if the UDP length contradicts the IP length.
    pub ports: Option<(u16, u16)>,
}

/// Fields of a RoCEv2 base transport header (InfiniBand architecture 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roce {
    /// Opcode, for example 0x11 for an RC acknowledgement, 0x81 for a congestion notification.
    pub opcode: u8,
    /// Destination queue pair.
    pub destination: QueuePair,
    /// Packet sequence number, 24 bits.
    pub sequence: u32,
}

impl Network {
    /// Source and destination address, if the network is IP.
    #[must_use]
    pub const fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Self::Ipv4(ip) => Some((IpAddr::V4(ip.source), IpAddr::V4(ip.destination))),
            Self::Ipv6(ip) => Some((IpAddr::V6(ip.source), IpAddr::V6(ip.destination))),
            Self::Other => None,
        }
    }

    /// IPv4 type of service or IPv6 traffic class, if the network is IP.
    #[must_use]
    pub const fn traffic_class(&self) -> Option<u8> {
        match self {
            Self::Ipv4(ip) => Some(ip.tos),
            Self::Ipv6(ip) => Some(ip.traffic_class),
            Self::Other => None,
        }
    }
}

impl Transport {
    /// Whether the protocol's header begins with source and destination port.
    #[inline]
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        matches!(
            self.protocol,
            PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_DCCP | PROTOCOL_SCTP | PROTOCOL_UDP_LITE
        )
    }
}

impl Dissection {
    /// Length in bytes of all headers up to TCP (with options) or UDP, which each segment of a GSO
    /// frame repeats. The payload starts there. `frame` must be the dissected frame. `None` if the
    /// transport is neither, or its header is truncated.
    #[must_use]
    pub fn gso_header_length(&self, frame: &[u8]) -> Option<usize> {
        let transport = self.transport?;
        let start = usize::from(transport.offset);
        let header = frame.get(start..)?;
        let (length, minimum) = match transport.protocol {
            PROTOCOL_UDP => (Udp::LENGTH, Udp::LENGTH),
            PROTOCOL_TCP => {
                (usize::from(Tcp::parse(header).ok()?.0.data_offset()) * 4, Tcp::LENGTH)
            }
            _ => return None,
        };
        (length >= minimum && length <= header.len()).then_some(start + length)
    }
}

/// Dissects an Ethernet frame without preamble and FCS. Trailing padding is allowed. `None` only if
/// the frame is shorter than an Ethernet header.
#[inline]
#[must_use]
pub fn dissect(frame: &[u8]) -> Option<Dissection> {
    // Almost all frames are RoCE over IPv4, so this case is inlined.
    roce_over_ipv4(frame).or_else(|| dissect_any(frame))
}

/// The result of [`dissect_any`] for a complete RoCE frame over IPv4 without tags and options;
/// `None` for all other frames.
#[inline(always)]
fn roce_over_ipv4(frame: &[u8]) -> Option<Dissection> {
    let headers = frame.first_chunk::<54>()?;
    let (ethernet, rest) = headers.split_first_chunk::<14>()?;
    let (ip, rest) = rest.split_first_chunk::<20>()?;
    let (udp, bth) = rest.split_first_chunk::<8>()?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ethertype @ ..] = *ethernet;
    let [version, tos, l0, l1, _, _, f0, f1, ttl, protocol, _, _, a0, a1, a2, a3, b0, b1, b2, b3] =
        *ip;
    let [source_port @ .., p0, p1, u0, u1, _, _] = *udp;
    let source_port: [u8; 2] = source_port;
    let [opcode, _, _, _, _, q0, q1, q2, _, n0, n1, n2] = *bth.first_chunk::<12>()?;
    let flags = u16::from_be_bytes([f0, f1]);
    let (total_length, length) = (u16::from_be_bytes([l0, l1]), u16::from_be_bytes([u0, u1]));
    let plain = u16::from_be_bytes(ethertype) == ETHERTYPE_IPV4
        && version == 0x45
        && flags & 0x3fff == 0
        && protocol == PROTOCOL_UDP
        && u16::from_be_bytes([p0, p1]) == PORT_ROCE;
    let whole = usize::from(length) >= Udp::LENGTH + 12
        && u32::from(length) + 20 <= u32::from(total_length)
        && usize::from(total_length) + 14 <= frame.len();
    if !plain || !whole {
        return None;
    }
    let network = Network::Ipv4(Ipv4Summary {
        source: Ipv4Addr::new(a0, a1, a2, a3),
        destination: Ipv4Addr::new(b0, b1, b2, b3),
        header_length: 20,
        tos,
        ttl,
        dont_fragment: flags & 0x4000 != 0,
        fragment: Fragment::Whole,
        total_length,
        protocol,
    });
    let ports = (u16::from_be_bytes(source_port), PORT_ROCE);
    let destination = QueuePair::from_be_bytes([q0, q1, q2]);
    Some(Dissection {
        destination: MacAddr([d0, d1, d2, d3, d4, d5]),
        source: MacAddr([s0, s1, s2, s3, s4, s5]),
        vlan_tags: 0,
        ethertype: ETHERTYPE_IPV4,
        l3_offset: ETHERNET_LENGTH,
        network,
        transport: Some(Transport { protocol, offset: ETHERNET_LENGTH + 20, ports: Some(ports) }),
        roce: Some(Roce { opcode, destination, sequence: u32::from_be_bytes([0, n0, n1, n2]) }),
    })
}

#[inline(never)]
fn dissect_any(frame: &[u8]) -> Option<Dissection> {
    let (ethernet, mut l3) = Ethernet::parse(frame).ok()?;
    let mut ethertype = ethernet.ethertype();
    let mut vlan_tags = 0;
    while is_vlan(ethertype) && vlan_tags < MAX_VLAN_TAGS {
        let Ok((tag, rest)) = Vlan::parse(l3) else { break };
        ethertype = tag.ethertype();
        l3 = rest;
        vlan_tags += 1;
    }
    let l3_offset = ETHERNET_LENGTH + 4 * u16::from(vlan_tags);
    // Each case constructs its own result in place. A shared result that is filled step by step
    // would be copied.
    let result = |network, (transport, roce)| Dissection {
        destination: ethernet.destination(),
        source: ethernet.source(),
        vlan_tags,
        ethertype,
        l3_offset,
        network,
        transport,
        roce,
    };
    if ethertype == ETHERTYPE_IPV4
        && let Some((ip, payload)) = ipv4(l3)
    {
        let above = match payload {
            Some(payload) => transport(
                ip.protocol,
                l3_offset + u16::from(ip.header_length),
                payload,
                ip.fragment,
            ),
            None => (None, None),
        };
        return Some(result(Network::Ipv4(ip), above));
    }
    if ethertype == ETHERTYPE_IPV6
        && let Some((ip, upper)) = ipv6(l3)
    {
        let above = match upper {
            Some((protocol, skipped, payload)) => {
                transport(protocol, l3_offset + IPV6_LENGTH + skipped, payload, ip.fragment)
            }
            None => (None, None),
        };
        return Some(result(Network::Ipv6(ip), above));
    }
    Some(result(Network::Other, (None, None)))
}

/// Parses the IPv4 header at the start of `l3`. Also returns the payload, if it lies within the
/// frame.
#[inline(always)]
fn ipv4(l3: &[u8]) -> Option<(Ipv4Summary, Option<&[u8]>)> {
    let (ip, _) = Ipv4::parse(l3).ok()?;
    let header_length = ip.ihl() * 4;
    if ip.version() != 4 || header_length < 20 {
        return None;
    }
    let total_length = ip.total_length();
    let summary = Ipv4Summary {
        source: ip.source(),
        destination: ip.destination(),
        header_length,
        tos: ip.tos(),
        ttl: ip.ttl(),
        dont_fragment: ip.dont_fragment(),
        fragment: Fragment::of(ip.fragment_offset(), ip.more_fragments()),
        total_length,
        protocol: ip.protocol(),
    };
    Some((summary, l3.get(usize::from(header_length)..usize::from(total_length))))
}

/// Parses the IPv6 header at the start of `l3` and its extension headers.
#[inline(always)]
fn ipv6(l3: &[u8]) -> Option<(Ipv6Summary, Option<Upper<'_>>)> {
    let (ip, rest) = Ipv6::parse(l3).ok()?;
    if ip.version() != 6 {
        return None;
    }
    let (payload_length, next) = (ip.payload_length(), ip.next_header());
    let chain = match rest.get(..usize::from(payload_length)) {
        // TCP and UDP without extension headers need no loop.
        Some(payload) if matches!(next, PROTOCOL_UDP | PROTOCOL_TCP) => {
            Chain { protocol: next, fragment: Fragment::Whole, upper: Some((next, 0, payload)) }
        }
        Some(payload) => extensions(next, payload),
        // A datagram longer than the frame is not parsed further.
        None => Chain { protocol: next, fragment: Fragment::Whole, upper: None },
    };
    let summary = Ipv6Summary {
        source: ip.source(),
        destination: ip.destination(),
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit(),
        flow_label: ip.flow_label(),
        fragment: chain.fragment,
        payload_length,
        protocol: chain.protocol,
    };
    Some((summary, chain.upper))
}

/// Parses the transport header at the start of `payload`, which is at `offset` in the frame.
#[inline(always)]
fn transport(
    protocol: u8,
    offset: u16,
    payload: &[u8],
    fragment: Fragment,
) -> (Option<Transport>, Option<Roce>) {
    if fragment == Fragment::Later {
        return (None, None);
    }
    let (mut ports, mut roce) = (None, None);
    match protocol {
        PROTOCOL_UDP => {
            if let Ok((udp, _)) = Udp::parse(payload) {
                let length = usize::from(udp.length());
                // The first fragment is shorter than its datagram.
                let whole = fragment == Fragment::Whole;
                if length >= Udp::LENGTH && (!whole || length <= payload.len()) {
                    ports = Some((udp.source_port(), udp.destination_port()));
                    if udp.destination_port() == PORT_ROCE && whole {
                        roce = payload.get(Udp::LENGTH..length).and_then(Roce::of);
                    }
                }
            }
        }
        PROTOCOL_TCP | PROTOCOL_SCTP | PROTOCOL_DCCP | PROTOCOL_UDP_LITE => {
            if let Some(&[s0, s1, d0, d1]) = payload.first_chunk() {
                ports = Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])));
            }
        }
        _ => {}
    }
    (Some(Transport { protocol, offset, ports }), roce)
}

impl Fragment {
    #[inline]
    pub(crate) const fn of(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (1.., _) => Self::Later,
            (0, true) => Self::First,
            (0, false) => Self::Whole,
        }
    }
}

impl Roce {
    #[inline]
    fn of(datagram: &[u8]) -> Option<Self> {
        let (bth, _) = Bth::parse(datagram).ok()?;
        Some(Self {
            opcode: bth.opcode(),
            destination: bth.destination(),
            sequence: bth.sequence(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8192))]

        /// The fast path returns the same as the general one, or nothing. The input is RoCE frames
        /// of any length with random changes.
        #[test]
        fn both_ways_say_the_same(
            (length, change) in (0usize..90, prop::option::weighted(0.7, (0usize..56, any::<u8>()))),
            (total, udp) in (prop::option::of(0u8..90), prop::option::of(0u8..90)),
        ) {
            let mut frame = [0x5a; 90];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[16..18].copy_from_slice(&[0, total.unwrap_or((length as u8).saturating_sub(14))]);
            (frame[20], frame[21], frame[23]) = (0x40, 0, PROTOCOL_UDP);
            frame[36..38].copy_from_slice(&PORT_ROCE.to_be_bytes());
            frame[38..40].copy_from_slice(&[0, udp.unwrap_or((length as u8).saturating_sub(34))]);
            if let Some((at, byte)) = change {
                frame[at] = byte;
            }
            let frame = &frame[..length];
            let (short, long) = (roce_over_ipv4(frame), dissect_any(frame));
            prop_assert!(short.is_none() || short == long, "{short:?} {long:?}");
            prop_assert!(short.is_some() || change.is_some() || long.is_none_or(|long| long.roce.is_none()));
        }
    }
}
