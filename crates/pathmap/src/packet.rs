//! The packet of a message: Ethernet, IPv4 or IPv6, UDP and VXLAN as in a data packet, then an
//! inner Ethernet header and the message.
//!
//! A router that hashes outer addresses, ports and flow label sends it where it sends data with the
//! same port. Over IPv6 there is no Record Route.
//! The VNI is reserved ([`VNI`]): kernel VXLAN and hardware VTEPs drop it. The inner EtherType is
//! one for experiments (IEEE 802, local experimental EtherType 1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::checksum::{self, Sum};
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};
use wire::outer::{Address, OuterHeaders};
use wire::{Ipv4Packet, Ipv6Packet, MacAddr, Vni, Vxlan, as_ipv6};

use crate::message::MOST_RECORDED;

/// The VNI of probes and answers: the highest one. A leaf must not use it for data.
pub const VNI: Vni = Vni::HIGHEST;
/// The inner EtherType.
pub const ETHERTYPE: u16 = 0x88b5;
/// Record Route (RFC 791 section 3.1).
const OPTION_RECORD_ROUTE: u8 = 7;
const OPTION_NOP: u8 = 1;
/// Length of the option with its padding, in bytes.
const OPTION: usize = 40;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const VXLAN: usize = 8;

/// The outer headers of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Source and destination MAC address.
    pub macs: (MacAddr, MacAddr),
    /// Source and destination address, of one family.
    pub ends: (IpAddr, IpAddr),
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Flow label over IPv6, 20 bits.
    pub label: u32,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Whether routers are asked to record their addresses. Over IPv6 they cannot.
    pub records: bool,
}

/// A received packet of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<'p> {
    /// Source and destination address, of one family.
    pub ends: (IpAddr, IpAddr),
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// The addresses that were recorded; `None` without a Record Route option.
    pub recorded: Option<Vec<Ipv4Addr>>,
    /// The message, with its tag.
    pub message: &'p [u8],
}

/// Builds the packet of a message with its tag. Over IPv6 there is always a UDP checksum. VXLAN
/// allows packets without one over IPv4 (RFC 7348 section 5).
#[must_use]
pub fn build(headers: &Headers, message: &[u8]) -> Vec<u8> {
    build_with(headers, 0, message)
}

/// As [`build`], with an identification over IPv4.
pub(crate) fn build_with(headers: &Headers, identification: u16, message: &[u8]) -> Vec<u8> {
    match headers.ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = packet(headers, (from, to), identification, message);
            if headers.records {
                add_record_route(&mut packet);
            }
            packet
        }
        (from, to) => {
            let mut packet = packet(headers, (as_ipv6(from), as_ipv6(to)), 0, message);
            // The packet holds the field.
            let _ = checksum::complete(&mut packet, Ipv6Addr::UDP_AT, 6);
            packet
        }
    }
}

/// Builds the packet of a message over one address family, over IPv6 with a partial checksum.
fn packet<A: Address>(
    headers: &Headers,
    ends: (A, A),
    identification: u16,
    message: &[u8],
) -> Vec<u8> {
    let l3_length = (A::OUTER + message.len()) as u16;
    let outer = OuterHeaders {
        macs: headers.macs,
        ends,
        ports: headers.ports,
        tos: 0,
        ttl: headers.ttl,
        identification,
        dont_fragment: true,
        flow_label: headers.label,
        l3_length,
        udp_checksum: !A::IS_IPV4,
        vni: VNI,
    };
    let mut packet = vec![0; A::OUTER];
    outer.write(&mut packet);
    packet.extend_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    packet.extend_from_slice(&ETHERTYPE.to_be_bytes());
    packet.extend_from_slice(message);
    packet
}

/// Adds an empty Record Route option to an IPv4 packet without options.
fn add_record_route(packet: &mut Vec<u8>) {
    let mut option = [0; OPTION];
    [option[0], option[1], option[2]] = [OPTION_RECORD_ROUTE, OPTION as u8 - 1, 4];
    packet.splice(Ipv4Addr::UDP_AT..Ipv4Addr::UDP_AT, option);
    let total = half(packet, ETHERNET + 2).unwrap_or_default() + OPTION as u16;
    put(packet, ETHERNET, u16::from_be_bytes([0x40 | ((IPV4 + OPTION) / 4) as u8, 0]));
    put(packet, ETHERNET + 2, total);
    put(packet, ETHERNET + 10, 0);
    let header = packet.get(ETHERNET..ETHERNET + IPV4 + OPTION).unwrap_or_default();
    let sum = checksum::checksum(header);
    put(packet, ETHERNET + 10, sum);
}

pub(crate) fn put(bytes: &mut [u8], at: usize, half: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&half.to_be_bytes());
    }
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_be_bytes(*half))
}

pub(crate) fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    bytes.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

/// The addresses that a Record Route option holds; `None` without a correct one.
fn recorded(options: &[u8]) -> Option<Vec<Ipv4Addr>> {
    let mut rest = options;
    loop {
        match *rest {
            [OPTION_NOP, ref next @ ..] => rest = next,
            [OPTION_RECORD_ROUTE, length, pointer, ..] => {
                // The pointer counts from 1 and is that of the next free address.
                let (length, end) = (usize::from(length), usize::from(pointer).checked_sub(1)?);
                let bytes = rest.get(3..end).filter(|bytes| bytes.len() % 4 == 0)?;
                let most = MOST_RECORDED * 4;
                if end > length || bytes.len() > most {
                    return None;
                }
                return Some(bytes.chunks_exact(4).filter_map(|chunk| address(chunk, 0)).collect());
            }
            [kind, length, ..] if kind != 0 && length >= 2 => {
                rest = rest.get(usize::from(length)..)?;
            }
            _ => return None,
        }
    }
}

/// Reads the packet of a message, from its Ethernet header on. `None` for any other packet, for a
/// fragment, for extension headers, and for a wrong checksum. Bytes behind the packet are ignored.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Received<'_>> {
    let received = parse_udp(packet)?;
    let tunnel = received.message.get(UDP..)?;
    let flags = *tunnel.first()?;
    let vni = tunnel.get(4..)?.first_chunk().map(|word| u32::from_be_bytes(*word) >> 8)?;
    let inner = tunnel.get(VXLAN..)?;
    let is_message =
        flags & Vxlan::I_FLAG != 0 && vni == VNI.get() && half(inner, ETHERNET - 2)? == ETHERTYPE;
    let message = inner.get(ETHERNET..)?;
    is_message.then_some(Received { message, ..received })
}

/// Reads a UDP packet, from its Ethernet header on. The message is the UDP datagram. Over IPv4, its
/// checksum is not looked at.
fn parse_udp(packet: &[u8]) -> Option<Received<'_>> {
    let ip = packet.get(ETHERNET..)?;
    match half(packet, 12)? {
        ETHERTYPE_IPV4 => over_ipv4(ip),
        ETHERTYPE_IPV6 => over_ipv6(ip),
        _ => None,
    }
}

/// Reads an IPv4 packet. The message is the UDP datagram.
fn over_ipv4(ip: &[u8]) -> Option<Received<'_>> {
    let packet = Ipv4Packet::parse(ip).ok()?;
    let Ipv4Packet { header, options, payload } = packet;
    let is_fragment = header.more_fragments() || header.fragment_offset() != 0;
    if is_fragment || header.protocol() != PROTOCOL_UDP || !packet.checksum_is_right() {
        return None;
    }
    let (ports, message) = datagram(payload)?;
    let ends = (header.source().into(), header.destination().into());
    Some(Received { ends, ports, ttl: header.ttl(), recorded: recorded(options), message })
}

/// Reads an IPv6 packet. It needs a UDP checksum: a sender of messages always computes it.
fn over_ipv6(ip: &[u8]) -> Option<Received<'_>> {
    let Ipv6Packet { header, payload } = Ipv6Packet::parse(ip).ok()?;
    if header.next_header() != PROTOCOL_UDP {
        return None;
    }
    let (from, to) = (header.source(), header.destination());
    let (ports, message) = datagram(payload)?;
    let sum = Sum::new().pseudo_ipv6(from, to, PROTOCOL_UDP, message.len() as u32).bytes(message);
    let is_intact = half(message, 6)? != 0 && sum.is_intact();
    let ttl = header.hop_limit();
    let ends = (from.into(), to.into());
    is_intact.then_some(Received { ends, ports, ttl, recorded: None, message })
}

/// The ports and the bytes of a UDP datagram.
fn datagram(udp: &[u8]) -> Option<((u16, u16), &[u8])> {
    let length = usize::from(half(udp, 4)?);
    Some(((half(udp, 0)?, half(udp, 2)?), udp.get(..length)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(records: bool) -> Headers {
        Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            ports: (50_000, 4789),
            label: 0,
            ttl: 64,
            records,
        }
    }

    /// Headers over IPv6.
    fn headers_ipv6() -> Headers {
        let ends = ([0xfd; 16].into(), [0xfe; 16].into());
        Headers { ends, label: 0xa_bcde, ..headers(false) }
    }

    #[test]
    fn a_packet_over_ipv6_has_flow_label_and_checksum() {
        let packet = build(&headers_ipv6(), b"message");
        let header = Ipv6Packet::parse(&packet[ETHERNET..]).unwrap().header;
        assert_eq!((header.traffic_class(), header.flow_label()), (0, 0xa_bcde));
        let transport = wire::dissect(&packet).unwrap().transport.unwrap();
        assert_eq!(transport.ports, Some((50_000, 4789)));
        let expected = Received {
            ends: headers_ipv6().ends,
            ports: (50_000, 4789),
            ttl: 64,
            recorded: None,
            message: b"message",
        };
        assert_eq!(parse(&packet), Some(expected.clone()));
        let padded = [&packet[..], &[0; 4]].concat();
        assert_eq!(parse(&padded), Some(expected));
        // Without a checksum, with a hop-by-hop header, and with IPv4 in the version field.
        for (at, bytes) in [(ETHERNET + 46, vec![0, 0]), (ETHERNET + 6, vec![0]), (14, vec![0x45])]
        {
            let mut changed = packet.clone();
            changed[at..at + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(parse(&changed), None, "{at}");
        }
        // Record Route is not asked for.
        let records = Headers { records: true, ..headers_ipv6() };
        assert_eq!(build(&records, b"message"), packet);
    }

    #[test]
    fn a_packet_is_one_to_a_parser_of_others_too() {
        for records in [false, true] {
            let packet = build(&headers(records), b"message");
            let dissection = wire::dissect(&packet).unwrap();
            let transport = dissection.transport.unwrap();
            assert_eq!(transport.ports, Some((50_000, 4789)));
            let parsed = parse(&packet).unwrap();
            assert_eq!(
                (parsed.ends, parsed.ports, parsed.ttl),
                (headers(records).ends, (50_000, 4789), 64)
            );
            assert_eq!(parsed.recorded, records.then(Vec::new));
            assert_eq!(parsed.message, b"message");
        }
    }

    #[test]
    fn recorded_addresses_are_read_up_to_the_pointer() {
        let mut options = vec![1, 7, 11, 8, 10, 1, 0, 1, 10, 1, 0, 2];
        assert_eq!(recorded(&options), Some(vec![[10, 1, 0, 1].into()]));
        options[3] = 12;
        assert_eq!(recorded(&options).map(|all| all.len()), Some(2));
        for pointer in [0, 1, 3, 5, 13, 16, 255] {
            options[3] = pointer;
            assert_eq!(recorded(&options), None, "{pointer}");
        }
        assert_eq!(recorded(&[148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0]), Some(vec![]));
        assert_eq!(recorded(&[148, 0]), None);
        assert_eq!(recorded(&[]), None);
    }

    proptest! {
        #[test]
        fn damaged_packets_are_no_messages(bit in 0..(20 + 40) * 8usize, length in 0..150usize) {
            let packet = build(&headers(true), b"message");
            prop_assert!(parse(&packet[..length.min(packet.len() - 1)]).is_none());
            let mut changed = packet;
            changed[ETHERNET + bit / 8] ^= 1 << (bit % 8);
            prop_assert!(parse(&changed).is_none());
        }

        #[test]
        fn damaged_packets_over_ipv6_are_no_messages(bit in 0..77 * 8usize, length in 0..150usize) {
            let packet = build(&headers_ipv6(), b"message");
            prop_assert_eq!(packet.len(), ETHERNET + 40 + UDP + VXLAN + ETHERNET + 7);
            prop_assert!(parse(&packet[..length.min(packet.len() - 1)]).is_none());
            let mut changed = packet;
            changed[ETHERNET + bit / 8] ^= 1 << (bit % 8);
            // No checksum covers traffic class, flow label and hop limit.
            let is_free = bit < 4 || matches!(bit / 8, 1..4 | 7);
            prop_assert_eq!(parse(&changed).is_some(), is_free, "{}", bit);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = recorded(&bytes);
        }
    }
}
