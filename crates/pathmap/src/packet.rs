//! The packet of a message: Ethernet, IPv4, UDP and VXLAN as in a data packet, then an inner
//! Ethernet header and the message.
//!
//! A router that hashes outer addresses and ports sends it where it sends data with the same port.
//! The VNI is reserved ([`VNI`]): kernel VXLAN and hardware VTEPs drop it. The inner EtherType is
//! one for experiments (IEEE 802, local experimental EtherType 1).

use std::net::Ipv4Addr;

use wire::checksum::Sum;
use wire::number::{ETHERTYPE_IPV4, PROTOCOL_UDP};
use wire::{MacAddr, Vxlan};

use crate::message::MOST_RECORDED;

/// The VNI of probes and answers: the highest one. A leaf must not use it for data.
pub const VNI: u32 = 0x00ff_ffff;
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
    /// Source and destination address.
    pub ends: (Ipv4Addr, Ipv4Addr),
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Time to live.
    pub ttl: u8,
    /// Whether routers are asked to record their addresses.
    pub records: bool,
}

/// A received packet of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<'p> {
    /// Source and destination address.
    pub ends: (Ipv4Addr, Ipv4Addr),
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Time to live.
    pub ttl: u8,
    /// The addresses that were recorded; `None` without a Record Route option.
    pub recorded: Option<Vec<Ipv4Addr>>,
    /// The message, with its tag.
    pub message: &'p [u8],
}

/// Builds the packet of a message with its tag.
#[must_use]
pub fn build(headers: &Headers, message: &[u8]) -> Vec<u8> {
    let mut inner = Vec::with_capacity(ETHERNET + message.len());
    inner.extend_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    inner.extend_from_slice(&ETHERTYPE.to_be_bytes());
    inner.extend_from_slice(message);
    encapsulate(headers, VNI, &inner)
}

/// Builds the packet of an inner frame.
pub(crate) fn encapsulate(headers: &Headers, vni: u32, inner: &[u8]) -> Vec<u8> {
    let Headers { macs, ends, ports, ttl, records } = *headers;
    let options = if records { OPTION } else { 0 };
    let udp_length = UDP + VXLAN + inner.len();
    let total = IPV4 + options + udp_length;
    let mut packet = Vec::with_capacity(ETHERNET + total);
    packet.extend_from_slice(&macs.1.0);
    packet.extend_from_slice(&macs.0.0);
    packet.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let mut ip = Vec::with_capacity(IPV4 + options);
    ip.extend_from_slice(&[0x40 | ((IPV4 + options) / 4) as u8, 0]);
    ip.extend_from_slice(&(total as u16).to_be_bytes());
    // Identification 0 and the don't-fragment bit (RFC 6864 section 4.1).
    ip.extend_from_slice(&[0, 0, 0x40, 0, ttl, PROTOCOL_UDP, 0, 0]);
    ip.extend_from_slice(&ends.0.octets());
    ip.extend_from_slice(&ends.1.octets());
    if records {
        ip.extend_from_slice(&[OPTION_RECORD_ROUTE, OPTION as u8 - 1, 4]);
        ip.resize(IPV4 + OPTION - 1, 0);
        ip.push(0);
    }
    let checksum = Sum::new().bytes(&ip).checksum().to_be_bytes();
    if let Some(field) = ip.get_mut(10..12) {
        field.copy_from_slice(&checksum);
    }
    packet.extend_from_slice(&ip);
    packet.extend_from_slice(&ports.0.to_be_bytes());
    packet.extend_from_slice(&ports.1.to_be_bytes());
    packet.extend_from_slice(&(udp_length as u16).to_be_bytes());
    // No UDP checksum, as VXLAN allows over IPv4 (RFC 7348 section 5).
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&[Vxlan::I_FLAG, 0, 0, 0]);
    packet.extend_from_slice(&(vni << 8).to_be_bytes());
    packet.extend_from_slice(inner);
    packet
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_be_bytes(*half))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
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
/// fragment and for a wrong header checksum. Bytes behind the packet are ignored.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Received<'_>> {
    let received = decapsulate(packet, VNI)?;
    let inner = received.message;
    if half(inner, 12)? != ETHERTYPE {
        return None;
    }
    Some(Received { message: inner.get(ETHERNET..)?, ..received })
}

/// Reads the outer headers of a packet with this VNI. The message is the whole inner frame.
pub(crate) fn decapsulate(packet: &[u8], expected: u32) -> Option<Received<'_>> {
    let ip = packet.get(ETHERNET..)?;
    let ethertype = half(packet, 12)?;
    let first = *ip.first()?;
    let header = usize::from(first & 0x0f) * 4;
    if ethertype != ETHERTYPE_IPV4 || first >> 4 != 4 || header < IPV4 {
        return None;
    }
    let total = usize::from(half(ip, 2)?);
    let ip = ip.get(..total)?;
    let headers = ip.get(..header)?;
    let is_fragment = half(ip, 6)? & 0x3fff != 0;
    if is_fragment || *ip.get(9)? != PROTOCOL_UDP || Sum::new().bytes(headers).checksum() != 0 {
        return None;
    }
    let udp = ip.get(header..)?;
    let length = usize::from(half(udp, 4)?);
    let tunnel = udp.get(..length)?.get(UDP..)?;
    let flags = *tunnel.first()?;
    let vni = tunnel.get(4..)?.first_chunk().map(|word| u32::from_be_bytes(*word) >> 8)?;
    let inner = tunnel.get(VXLAN..)?;
    if flags & Vxlan::I_FLAG == 0 || vni != expected {
        return None;
    }
    Some(Received {
        ends: (address(ip, 12)?, address(ip, 16)?),
        ports: (half(udp, 0)?, half(udp, 2)?),
        ttl: *ip.get(8)?,
        recorded: recorded(headers.get(IPV4..)?),
        message: inner,
    })
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
            ttl: 64,
            records,
        }
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
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = recorded(&bytes);
        }
    }
}
