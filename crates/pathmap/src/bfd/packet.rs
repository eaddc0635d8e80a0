//! The packet of a control packet: the outer headers of data, the Management VNI, and an inner
//! Ethernet frame with UDP over the outer protocol, IPv4 or IPv6 (RFC 8971 section 4, RFC 5881).

use std::net::{IpAddr, Ipv4Addr};

use wire::MacAddr;
use wire::checksum::Sum;
use wire::number::PROTOCOL_UDP;

use super::control::Control;
use crate::packet::{self, Headers, Received};

/// The Management VNI, which has no tenants: the default of RFC 8971. A leaf must not use it for
/// data.
pub const VNI: u32 = 1;
/// The inner destination MAC address that IANA has assigned to BFD for VXLAN.
pub const MAC: MacAddr = MacAddr([0x00, 0x00, 0x5e, 0x00, 0x52, 0x02]);
/// The inner UDP destination port (RFC 5881 section 4).
pub const PORT: u16 = 3784;
/// The inner TTL or hop limit: no router may have forwarded the inner packet (RFC 5881 section 5).
pub const TTL: u8 = 255;
/// The lowest inner UDP source port. Each session has its own (RFC 5881 section 4).
pub const LEAST_SOURCE: u16 = 49_152;
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const UDP: usize = 8;
/// Class selector 6, as for routing protocols.
const CLASS: u8 = 0xc0;

/// A received control packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Outer source and destination address, of one family.
    pub ends: (IpAddr, IpAddr),
    /// Outer UDP source and destination port.
    pub ports: (u16, u16),
    /// Inner UDP source port. While the sender does not know the receiver's discriminator, it tells
    /// the sessions of two VTEPs apart.
    pub source: u16,
    /// The control packet.
    pub control: Control,
}

/// Builds the packet of a control packet. `source` is the inner UDP source port of the session.
#[must_use]
pub fn build(headers: &Headers, source: u16, control: &Control) -> Vec<u8> {
    let Headers { macs, ends, .. } = *headers;
    let loopback = match ends.0 {
        IpAddr::V4(_) => LOOPBACK.into(),
        IpAddr::V6(_) => LOOPBACK.to_ipv6_mapped().into(),
    };
    let inner = Headers {
        macs: (macs.0, MAC),
        ends: (ends.0, loopback),
        ports: (source, PORT),
        label: 0,
        ttl: TTL,
        records: false,
    };
    let inner = packet::build_udp(&inner, CLASS, true, &control.bytes());
    packet::encapsulate(headers, VNI, &inner)
}

/// Reads a packet from its outer Ethernet header on. `None` for any that is not a control packet for
/// this VTEP: the inner TTL or hop limit must be 255, and the inner destination the VTEP or in 127/8,
/// over IPv6 in `::ffff:127.0.0.0/104`. The inner source must be the VTEP that sent it.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Arrived> {
    let Received { ends, ports, message, .. } = packet::decapsulate(bytes, VNI)?;
    let inner = packet::parse_udp(message)?;
    let (from, to) = inner.ends;
    // One of 127/8 that is mapped counts, and `::1` does not (RFC 8971 section 4).
    let is_loopback = matches!(to.to_canonical(), IpAddr::V4(to) if to.is_loopback());
    let is_for_us = (is_loopback || ends.1 == to) && ends.0 == from;
    let (source, destination) = inner.ports;
    if !is_for_us
        || inner.ttl != TTL
        || destination != PORT
        || source < LEAST_SOURCE
        || !is_intact(&inner)
    {
        return None;
    }
    let control = Control::parse(inner.message.get(UDP..)?).ok()?;
    Some(Arrived { ends, ports, source, control })
}

/// Whether the UDP checksum of the inner packet is right. Over IPv4 there may be none, and over IPv6
/// it has been checked.
fn is_intact(inner: &Received<'_>) -> bool {
    let (IpAddr::V4(from), IpAddr::V4(to)) = inner.ends else { return true };
    let length = inner.message.len() as u16;
    let sum = Sum::new().pseudo_ipv4(from, to, PROTOCOL_UDP, length).bytes(inner.message);
    packet::half(inner.message, 6) == Some(0) || sum.is_intact()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;
    use wire::Ipv6Packet;

    use super::*;
    use crate::bfd::{Role, Session, Timers, control};
    use crate::random::Random;

    const ETHERNET: usize = 14;
    /// The length of the IP header over IPv4 and over IPv6.
    const IP: [usize; 2] = [20, 40];
    /// Where the inner IP header begins.
    const INNER: [usize; 2] = [14 + 20 + 16 + 14, 14 + 40 + 16 + 14];

    fn ends(family: usize) -> (IpAddr, IpAddr) {
        let ends = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]][family];
        (ends[0].parse().unwrap(), ends[1].parse().unwrap())
    }

    fn headers(family: usize) -> Headers {
        Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: ends(family),
            ports: (50_000, 4789),
            label: 0xc350,
            ttl: 64,
            records: false,
        }
    }

    fn control() -> Control {
        let timers = Timers { interval: Duration::from_millis(10), multiplier: 3 };
        let my = NonZeroU32::new(0x0102_0304).unwrap();
        let mut session = Session::new(Role::Active, timers, my, Duration::ZERO);
        session.tick(Duration::ZERO, &mut Random::new(1)).unwrap()
    }

    fn built(family: usize) -> Vec<u8> {
        build(&headers(family), 49_200, &control())
    }

    /// A packet with this inner source and destination and this inner TTL or hop limit.
    fn with(family: usize, ends: [&str; 2], ttl: u8) -> Vec<u8> {
        let [from, to] = ends.map(|address| address.parse().unwrap());
        let outer = headers(family);
        let inner = Headers { ends: (from, to), ports: (49_200, PORT), ttl, ..outer };
        let inner = packet::build_udp(&inner, CLASS, true, &control().bytes());
        packet::encapsulate(&outer, VNI, &inner)
    }

    #[test]
    fn a_packet_is_read_as_it_was_written() {
        for family in [0, 1] {
            let Headers { ends, ports, .. } = headers(family);
            let arrived = Arrived { ends, ports, source: 49_200, control: control() };
            assert_eq!(parse(&built(family)), Some(arrived));
            let inner = wire::dissect(&built(family)[INNER[family] - ETHERNET..]).unwrap();
            assert_eq!(inner.transport.unwrap().ports, Some((49_200, PORT)));
        }
    }

    /// RFC 8971 section 4.
    #[test]
    fn a_packet_over_ipv6_has_hop_limit_255_and_a_mapped_destination() {
        let packet = built(1);
        let outer = Ipv6Packet::parse(&packet[ETHERNET..]).unwrap().header;
        assert_eq!((outer.traffic_class(), outer.flow_label()), (0, 0xc350));
        let Ipv6Packet { header, payload } = Ipv6Packet::parse(&packet[INNER[1]..]).unwrap();
        assert_eq!((header.hop_limit(), header.traffic_class()), (255, CLASS));
        let ends = (IpAddr::from(header.source()), header.destination().to_string());
        assert_eq!(ends, (headers(1).ends.0, "::ffff:127.0.0.1".to_owned()));
        // UDP has to have a checksum.
        assert_ne!(packet::half(payload, 6), Some(0));
        let mut without = packet;
        packet::put(&mut without, INNER[1] + 40 + 6, 0);
        assert_eq!(parse(&without), None);
    }

    #[test]
    fn inner_addresses_and_ttl_decide() {
        let accepted = [
            (0, ["10.0.0.1", "127.0.0.1"]),
            (0, ["10.0.0.1", "127.255.255.255"]),
            (0, ["10.0.0.1", "10.0.0.2"]),
            (1, ["fd00::1", "::ffff:127.0.0.1"]),
            (1, ["fd00::1", "::ffff:127.255.255.255"]),
            (1, ["fd00::1", "fd00::2"]),
        ];
        for (family, ends) in accepted {
            assert!(parse(&with(family, ends, TTL)).is_some(), "{ends:?}");
            // A router has forwarded it.
            assert_eq!(parse(&with(family, ends, TTL - 1)), None, "{ends:?}");
        }
        let refused = [
            (0, ["10.0.0.3", "127.0.0.1"]),
            (0, ["10.0.0.1", "10.0.0.3"]),
            (0, ["10.0.0.1", "128.0.0.1"]),
            (1, ["fd00::3", "::ffff:127.0.0.1"]),
            (1, ["fd00::1", "fd00::3"]),
            (1, ["fd00::1", "::ffff:128.0.0.1"]),
            (1, ["fd00::1", "::1"]),
            (1, ["fd00::1", "::127.0.0.1"]),
            // The inner packet has the other protocol.
            (0, ["::ffff:10.0.0.1", "::ffff:127.0.0.1"]),
            (1, ["10.0.0.1", "127.0.0.1"]),
        ];
        for (family, ends) in refused {
            assert_eq!(parse(&with(family, ends, TTL)), None, "{ends:?}");
        }
    }

    #[test]
    fn truncated_packets_are_none() {
        for family in [0, 1] {
            let packet = built(family);
            assert_eq!(packet.len(), INNER[family] + IP[family] + UDP + control::LENGTH);
            for length in 0..packet.len() {
                assert_eq!(parse(&packet[..length]), None, "{length}");
            }
        }
    }

    fn flip(bytes: &mut [u8], bit: usize) {
        bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// From the inner IP header on, inner checksums cover every bit but traffic class and flow label.
    #[test]
    fn inner_damage_is_found_by_the_inner_checksums() {
        for family in [0, 1] {
            for bit in 0..(IP[family] + UDP + control::LENGTH) * 8 {
                let mut inner = built(family).split_off(INNER[family] - ETHERNET);
                flip(&mut inner[ETHERNET..], bit);
                let changed = packet::encapsulate(&headers(family), VNI, &inner);
                let is_free = family == 1 && matches!(bit, 0..4 | 8..32);
                assert_eq!(parse(&changed).is_some(), is_free, "{bit}");
            }
        }
    }

    #[test]
    fn damaged_packets_over_ipv6_are_none() {
        for bit in 0..built(1).len() * 8 {
            let mut changed = built(1);
            flip(&mut changed, bit);
            // No checksum covers outer MAC addresses, traffic class, flow label and hop limit.
            let is_free = bit < 96 || matches!(bit - 96, 16..20 | 24..48 | 72..80);
            assert_eq!(parse(&changed).is_some(), is_free, "{bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            family in 0..2usize,
        ) {
            let _ = parse(&bytes);
            let _ = parse(&packet::encapsulate(&headers(family), VNI, &bytes));
        }
    }
}
