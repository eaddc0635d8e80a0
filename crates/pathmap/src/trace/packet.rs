//! Packets whose time to live expires, and the ICMP errors of the routers that drop them.

use std::net::Ipv4Addr;

use wire::checksum::Sum;
use wire::number::{ETHERTYPE_IPV4, PROTOCOL_ICMP, PROTOCOL_UDP};

use crate::packet::{self, Headers};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
/// Type, code, checksum and four bytes that are not used (RFC 792).
const ICMP: usize = 8;
/// Time to live exceeded in transit: type 11, code 0.
const EXPIRED: [u8; 2] = [11, 0];
/// Where the identification and the checksum of the outer IPv4 header are, from the Ethernet header on.
const IDENTIFICATION: usize = ETHERNET + 4;
const CHECKSUM: usize = ETHERNET + 10;

/// A router's error about a packet whose time to live has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The router, by the address from which it sends the error.
    pub router: Ipv4Addr,
    /// Source and destination address of the packet.
    pub ends: (Ipv4Addr, Ipv4Addr),
    /// Its UDP source and destination port.
    pub ports: (u16, u16),
    /// Its identification.
    pub id: u16,
}

/// Builds a packet without a message, with this identification. VTEPs drop it: the VNI is reserved.
#[must_use]
pub fn build(headers: &Headers, id: u16) -> Vec<u8> {
    let mut packet = packet::build(headers, &[]);
    for (at, bytes) in [(IDENTIFICATION, id.to_be_bytes()), (CHECKSUM, [0; 2])] {
        if let Some(field) = packet.get_mut(at..at + 2) {
            field.copy_from_slice(&bytes);
        }
    }
    let header = packet.get(ETHERNET..ETHERNET + IPV4).unwrap_or_default();
    let checksum = Sum::new().bytes(header).checksum().to_be_bytes();
    if let Some(field) = packet.get_mut(CHECKSUM..CHECKSUM + 2) {
        field.copy_from_slice(&checksum);
    }
    packet
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_be_bytes(*half))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    bytes.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

/// The header of an IPv4 packet that carries this protocol, and what is behind the header. `None` for
/// any other packet, and for a fragment.
fn ipv4(packet: &[u8], protocol: u8) -> Option<(&[u8], &[u8])> {
    let first = *packet.first()?;
    let header = usize::from(first & 0x0f) * 4;
    let is_fragment = half(packet, 6)? & 0x3fff != 0;
    let fits = first >> 4 == 4 && header >= IPV4 && !is_fragment && *packet.get(9)? == protocol;
    fits.then(|| packet.split_at_checked(header)).flatten()
}

/// Reads an ICMP error, from the Ethernet header on. `None` for any other packet, for a wrong checksum
/// and for an error about another packet than one of UDP.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Expired> {
    if half(packet, 12)? != ETHERTYPE_IPV4 {
        return None;
    }
    let ip = packet.get(ETHERNET..)?;
    let ip = ip.get(..usize::from(half(ip, 2)?))?;
    let (header, icmp) = ipv4(ip, PROTOCOL_ICMP)?;
    if Sum::new().bytes(header).checksum() != 0 || Sum::new().bytes(icmp).checksum() != 0 {
        return None;
    }
    if icmp.get(..2)? != EXPIRED {
        return None;
    }
    // The header of the dropped packet and at least 8 bytes of what it carries.
    let quoted = icmp.get(ICMP..)?;
    let (quoted, udp) = ipv4(quoted, PROTOCOL_UDP)?;
    Some(Expired {
        router: address(header, 12)?,
        ends: (address(quoted, 12)?, address(quoted, 16)?),
        ports: (half(udp, 0)?, half(udp, 2)?),
        id: half(quoted, 4)?,
    })
}

/// An error of a router about a packet, as it is received. For tests and as a seed of fuzzing.
#[must_use]
pub fn error(router: Ipv4Addr, packet: &[u8]) -> Vec<u8> {
    let quoted = packet.get(ETHERNET..).unwrap_or_default();
    let receiver = address(quoted, 12).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let mut icmp = EXPIRED.to_vec();
    icmp.extend_from_slice(&[0; ICMP - 2]);
    icmp.extend_from_slice(quoted.get(..IPV4 + 8).unwrap_or(quoted));
    let checksum = Sum::new().bytes(&icmp).checksum().to_be_bytes();
    if let Some(field) = icmp.get_mut(2..4) {
        field.copy_from_slice(&checksum);
    }
    let total = (IPV4 + icmp.len()) as u16;
    let mut ip = vec![0x45, 0xc0];
    ip.extend_from_slice(&total.to_be_bytes());
    ip.extend_from_slice(&[0, 7, 0, 0, 62, PROTOCOL_ICMP, 0, 0]);
    ip.extend_from_slice(&router.octets());
    ip.extend_from_slice(&receiver.octets());
    let checksum = Sum::new().bytes(&ip).checksum().to_be_bytes();
    if let Some(field) = ip.get_mut(10..12) {
        field.copy_from_slice(&checksum);
    }
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    bytes.extend_from_slice(&ip);
    bytes.extend_from_slice(&icmp);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::MacAddr;

    use super::*;

    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);

    fn sent() -> Vec<u8> {
        let headers = Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            ports: (50_000, 4789),
            ttl: 2,
            records: false,
        };
        build(&headers, 0x1234)
    }

    #[test]
    fn an_error_names_its_router_and_the_packet() {
        let packet = sent();
        assert!(packet::parse(&packet).is_some_and(|received| received.ttl == 2));
        let expected = Expired {
            router: ROUTER,
            ends: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            ports: (50_000, 4789),
            id: 0x1234,
        };
        assert_eq!(parse(&error(ROUTER, &packet)), Some(expected));
        // A longer quotation and bytes behind the packet change nothing.
        let mut padded = error(ROUTER, &packet);
        padded.extend_from_slice(&[0; 4]);
        assert_eq!(parse(&padded), Some(expected));
        assert_eq!(parse(&packet), None);
    }

    proptest! {
        #[test]
        fn damaged_errors_are_none(bit in 0..(20 + 8 + 28) * 8usize, length in 0..70usize) {
            let packet = error(ROUTER, &sent());
            prop_assert_eq!(packet.len(), 70);
            prop_assert!(parse(&packet[..length]).is_none());
            let mut changed = packet;
            changed[ETHERNET + bit / 8] ^= 1 << (bit % 8);
            prop_assert!(parse(&changed).is_none());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&bytes);
        }
    }
}
