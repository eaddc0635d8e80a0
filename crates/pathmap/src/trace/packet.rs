//! Packets whose time to live expires, and the ICMP errors of the routers that drop them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::checksum::Sum;
use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_UDP};
use wire::{Ipv6, Ipv6Packet};

use crate::packet::{self, Headers, address, half, put};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
/// Type, code, checksum and four bytes that are not used (RFC 792, RFC 4443).
const ICMP: usize = 8;
/// Time to live exceeded in transit: type 11, code 0 (RFC 792).
const EXPIRED: [u8; 2] = [11, 0];
/// Hop limit exceeded in transit: type 3, code 0 (RFC 4443 section 3.3).
const EXPIRED_IPV6: [u8; 2] = [3, 0];
/// Where the message is in a UDP datagram: behind UDP, VXLAN and the inner Ethernet header.
const MESSAGE: usize = 8 + 8 + ETHERNET;

/// A router's error about a packet whose time to live or hop limit has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The router, by the address from which it sends the error.
    pub router: IpAddr,
    /// Source and destination address of the packet, of one family.
    pub ends: (IpAddr, IpAddr),
    /// Its UDP source and destination port.
    pub ports: (u16, u16),
    /// Its identification.
    pub id: u16,
}

/// Builds a packet with this identification as its message. VTEPs drop it: the VNI is reserved.
///
/// ICMP errors may quote only 8 bytes behind the IPv4 header (RFC 792), so the header has the
/// identification, too. ICMPv6 errors quote all of the packet (RFC 4443 section 2.4).
#[must_use]
pub fn build(headers: &Headers, id: u16) -> Vec<u8> {
    packet::build_with(headers, id, &id.to_be_bytes())
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
/// and for an error about another packet than one of UDP. IPv6 extension headers are not followed.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Expired> {
    let ip = packet.get(ETHERNET..)?;
    match half(packet, 12)? {
        ETHERTYPE_IPV4 => over_ipv4(ip),
        ETHERTYPE_IPV6 => over_ipv6(ip),
        _ => None,
    }
}

fn over_ipv4(ip: &[u8]) -> Option<Expired> {
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
        router: address(header, 12)?.into(),
        ends: (address(quoted, 12)?.into(), address(quoted, 16)?.into()),
        ports: (half(udp, 0)?, half(udp, 2)?),
        id: half(quoted, 4)?,
    })
}

fn over_ipv6(ip: &[u8]) -> Option<Expired> {
    let Ipv6Packet { header, payload: icmp } = Ipv6Packet::parse(ip).ok()?;
    let (router, receiver) = (header.source(), header.destination());
    let is_icmp = header.next_header() == PROTOCOL_ICMPV6;
    if !is_icmp || !icmpv6((router, receiver), icmp).is_intact() {
        return None;
    }
    if icmp.get(..2)? != EXPIRED_IPV6 {
        return None;
    }
    let (quoted, udp) = Ipv6::parse(icmp.get(ICMP..)?).ok()?;
    if quoted.version() != 6 || quoted.next_header() != PROTOCOL_UDP {
        return None;
    }
    Some(Expired {
        router: router.into(),
        ends: (quoted.source().into(), quoted.destination().into()),
        ports: (half(udp, 0)?, half(udp, 2)?),
        id: half(udp, MESSAGE)?,
    })
}

/// The sum of an ICMPv6 message and of its pseudo header (RFC 4443 section 2.3).
fn icmpv6((from, to): (Ipv6Addr, Ipv6Addr), message: &[u8]) -> Sum {
    Sum::new().pseudo_ipv6(from, to, PROTOCOL_ICMPV6, message.len() as u32).bytes(message)
}

/// An error of a router about a packet of its family, as it is received. For tests and as a seed of
/// fuzzing.
#[must_use]
pub fn error(router: IpAddr, packet: &[u8]) -> Vec<u8> {
    let quoted = packet.get(ETHERNET..).unwrap_or_default();
    let (ethertype, ip) = match router {
        IpAddr::V4(router) => (ETHERTYPE_IPV4, error_ipv4(router, quoted)),
        IpAddr::V6(router) => (ETHERTYPE_IPV6, error_ipv6(router, quoted)),
    };
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend_from_slice(&ethertype.to_be_bytes());
    bytes.extend_from_slice(&ip);
    bytes
}

fn error_ipv4(router: Ipv4Addr, quoted: &[u8]) -> Vec<u8> {
    let receiver = address(quoted, 12).unwrap_or(Ipv4Addr::UNSPECIFIED);
    let mut icmp = [&EXPIRED[..], &[0; ICMP - 2]].concat();
    icmp.extend_from_slice(quoted.get(..IPV4 + 8).unwrap_or(quoted));
    let checksum = Sum::new().bytes(&icmp).checksum();
    put(&mut icmp, 2, checksum);
    let total = (IPV4 + icmp.len()) as u16;
    let mut ip = vec![0x45, 0xc0];
    ip.extend_from_slice(&total.to_be_bytes());
    ip.extend_from_slice(&[0, 7, 0, 0, 62, PROTOCOL_ICMP, 0, 0]);
    ip.extend_from_slice(&router.octets());
    ip.extend_from_slice(&receiver.octets());
    let checksum = Sum::new().bytes(&ip).checksum();
    put(&mut ip, 10, checksum);
    [ip, icmp].concat()
}

fn error_ipv6(router: Ipv6Addr, quoted: &[u8]) -> Vec<u8> {
    let receiver = Ipv6::parse(quoted).map_or(Ipv6Addr::UNSPECIFIED, |(ip, _)| ip.source());
    let mut icmp = [&EXPIRED_IPV6[..], &[0; ICMP - 2], quoted].concat();
    let checksum = icmpv6((router, receiver), &icmp).checksum();
    put(&mut icmp, 2, checksum);
    let mut ip = Ipv6::zeroed();
    ip.set_version(6).set_payload_length(icmp.len() as u16).set_next_header(PROTOCOL_ICMPV6);
    ip.set_hop_limit(62).set_source(router).set_destination(receiver);
    [ip.as_bytes().as_slice(), &icmp].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::MacAddr;

    use super::*;

    const ID: u16 = 0x1234;
    /// The shortest errors of both families, from the Ethernet header on.
    const SHORTEST: [usize; 2] = [14 + 20 + 8 + 28, 14 + 40 + 8 + 40 + MESSAGE + 2];

    fn ends() -> [(IpAddr, IpAddr); 2] {
        let ends = |ends: [&str; 2]| (ends[0].parse().unwrap(), ends[1].parse().unwrap());
        [ends(["10.0.0.1", "10.0.0.2"]), ends(["fd00::1", "fd00::2"])]
    }

    fn routers() -> [IpAddr; 2] {
        ["10.1.0.9", "fd01::9"].map(|router| router.parse().unwrap())
    }

    fn sent(family: usize) -> Vec<u8> {
        let headers = Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: ends()[family],
            ports: (50_000, 4789),
            label: 0xc350,
            ttl: 2,
            records: false,
        };
        build(&headers, ID)
    }

    fn received(family: usize) -> Vec<u8> {
        error(routers()[family], &sent(family))
    }

    #[test]
    fn an_error_names_its_router_and_the_packet() {
        for family in [0, 1] {
            let packet = sent(family);
            assert!(packet::parse(&packet).is_some_and(|received| received.ttl == 2));
            let expected = Expired {
                router: routers()[family],
                ends: ends()[family],
                ports: (50_000, 4789),
                id: ID,
            };
            let error = received(family);
            assert_eq!((error.len(), parse(&error)), (SHORTEST[family], Some(expected)));
            let transport = wire::dissect(&error).unwrap().transport.unwrap();
            assert_eq!(transport.protocol, [PROTOCOL_ICMP, PROTOCOL_ICMPV6][family]);
            // Bytes behind the packet change nothing.
            let padded = [&error[..], &[0; 4]].concat();
            assert_eq!(parse(&padded), Some(expected));
            assert_eq!(parse(&packet), None);
        }
    }

    #[test]
    fn a_packet_over_ipv6_has_the_flow_label_and_the_checksum_of_data() {
        let packet = sent(1);
        let header = Ipv6Packet::parse(&packet[ETHERNET..]).unwrap().header;
        assert_eq!((header.flow_label(), header.hop_limit()), (0xc350, 2));
        assert_ne!(half(&packet, ETHERNET + 40 + 6), Some(0));
    }

    /// Another code, type and quoted protocol, and an extension header, each with a right checksum.
    #[test]
    fn other_errors_over_ipv6_are_none() {
        let [outer, quoted] = [ETHERNET, ETHERNET + 40 + ICMP];
        let changes = [(outer + 40, 1), (outer + 41, 1), (quoted, 0x45), (quoted + 6, 0)];
        for (at, byte) in changes.into_iter().chain([(outer + 6, 0)]) {
            let mut packet = received(1);
            packet[at] = byte;
            put(&mut packet, outer + 42, 0);
            let Ipv6Packet { header, payload } = Ipv6Packet::parse(&packet[outer..]).unwrap();
            let sum = icmpv6((header.source(), header.destination()), payload).checksum();
            put(&mut packet, outer + 42, sum);
            assert_eq!(parse(&packet), None, "{at}");
        }
    }

    #[test]
    fn damaged_errors_are_none() {
        for (family, shortest) in SHORTEST.into_iter().enumerate() {
            for bit in 0..(shortest - ETHERNET) * 8 {
                let mut changed = received(family);
                changed[ETHERNET + bit / 8] ^= 1 << (bit % 8);
                // No checksum covers traffic class, flow label and hop limit.
                let is_free = family == 1 && matches!(bit, 0..4 | 8..32 | 56..64);
                assert_eq!(parse(&changed).is_some(), is_free, "{bit}");
            }
        }
    }

    #[test]
    fn truncated_errors_are_none() {
        for (family, shortest) in SHORTEST.into_iter().enumerate() {
            for length in 0..shortest {
                assert_eq!(parse(&received(family)[..length]), None, "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..180),
            family in 0..2usize,
        ) {
            let _ = parse(&bytes);
            // With the headers of an error.
            let mut packet = received(family);
            let behind = packet.len() - 8;
            packet.splice(behind.min(bytes.len()).., bytes);
            let _ = parse(&packet);
        }
    }
}
