//! The packet of a control packet: the outer headers of data, the Management VNI, and an inner
//! Ethernet frame with IPv4 and UDP (RFC 8971 section 4, RFC 5881).

use std::net::Ipv4Addr;

use wire::MacAddr;
use wire::checksum::Sum;
use wire::number::{ETHERTYPE_IPV4, PROTOCOL_UDP};

use super::control::{self, Control};
use crate::packet::{self, Headers, Received};

/// The Management VNI, which has no tenants: the default of RFC 8971. A leaf must not use it for
/// data.
pub const VNI: u32 = 1;
/// The inner destination MAC address that IANA has assigned to BFD for VXLAN.
pub const MAC: MacAddr = MacAddr([0x00, 0x00, 0x5e, 0x00, 0x52, 0x02]);
/// The inner UDP destination port (RFC 5881 section 4).
pub const PORT: u16 = 3784;
/// The inner TTL: no router may have forwarded the inner packet (RFC 5881 section 5).
pub const TTL: u8 = 255;
/// The lowest inner UDP source port. Each session has its own (RFC 5881 section 4).
pub const LEAST_SOURCE: u16 = 49_152;
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const IPV4: usize = 20;
const UDP: usize = 8;
/// Class selector 6, as for routing protocols.
const TOS: u8 = 0xc0;

/// A received control packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Outer source and destination address.
    pub ends: (Ipv4Addr, Ipv4Addr),
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
    let from = headers.ends.0;
    let length = UDP + control::LENGTH;
    let mut inner = Vec::with_capacity(14 + IPV4 + length);
    inner.extend_from_slice(&MAC.0);
    inner.extend_from_slice(&headers.macs.0.0);
    inner.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let mut ip = vec![0x45, TOS, 0, (IPV4 + length) as u8, 0, 0, 0x40, 0, TTL, PROTOCOL_UDP, 0, 0];
    ip.extend_from_slice(&from.octets());
    ip.extend_from_slice(&LOOPBACK.octets());
    let sum = Sum::new().bytes(&ip).checksum().to_be_bytes();
    if let Some(field) = ip.get_mut(10..12) {
        field.copy_from_slice(&sum);
    }
    inner.extend_from_slice(&ip);
    let bytes = control.bytes();
    let pseudo = Sum::new().pseudo_ipv4(from, LOOPBACK, PROTOCOL_UDP, length as u16);
    let sum = pseudo.word(source).word(PORT).word(length as u16).bytes(&bytes).checksum_not_zero();
    for word in [source, PORT, length as u16, sum] {
        inner.extend_from_slice(&word.to_be_bytes());
    }
    inner.extend_from_slice(&bytes);
    packet::encapsulate(headers, VNI, &inner)
}

/// Reads a packet from its outer Ethernet header on. `None` for any that is not a control packet
/// for this VTEP: the inner TTL must be 255, and the inner destination in 127/8 or the VTEP.
/// The inner source must be the VTEP that sent it.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Arrived> {
    let Received { ends, ports, message, .. } = packet::decapsulate(bytes, VNI)?;
    let ethertype = message.get(12..14)?;
    let ip = message.get(14..)?;
    let header = ip.first_chunk::<IPV4>()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let address = |at: usize| ip.get(at..)?.first_chunk::<4>().map(|four| Ipv4Addr::from(*four));
    let (from, to) = (address(12)?, address(16)?);
    let is_for_us = (to.is_loopback() || to == ends.1) && from == ends.0;
    if ethertype != ETHERTYPE_IPV4.to_be_bytes()
        || header[0] != 0x45
        || header[8] != TTL
        || header[9] != PROTOCOL_UDP
        || is_fragment
        || !is_for_us
        || !Sum::new().bytes(header).is_intact()
    {
        return None;
    }
    let udp = ip.get(IPV4..total)?;
    let half = |at: usize| udp.get(at..)?.first_chunk().map(|half| u16::from_be_bytes(*half));
    let (source, destination, length) = (half(0)?, half(2)?, half(4)?);
    let udp = udp.get(..usize::from(length))?;
    let sum = Sum::new().pseudo_ipv4(from, to, PROTOCOL_UDP, length).bytes(udp);
    let has_checksum = udp.get(6..8)? != [0, 0];
    if destination != PORT || source < LEAST_SOURCE || has_checksum && !sum.is_intact() {
        return None;
    }
    let control = Control::parse(udp.get(UDP..)?).ok()?;
    Some(Arrived { ends, ports, source, control })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::bfd::{Role, Session, Timers};
    use crate::random::Random;

    fn headers() -> Headers {
        Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
            ports: (50_000, 4789),
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

    #[test]
    fn a_packet_is_read_as_it_was_written() {
        let bytes = build(&headers(), 49_200, &control());
        let arrived = Arrived {
            ends: headers().ends,
            ports: headers().ports,
            source: 49_200,
            control: control(),
        };
        assert_eq!(parse(&bytes), Some(arrived));
        // Forwarded by a router, with a correct header checksum.
        let mut changed = bytes;
        changed[64 + 8] = 254;
        changed[64 + 10..64 + 12].fill(0);
        let sum = Sum::new().bytes(&changed[64..84]).checksum();
        changed[64 + 10..64 + 12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse(&changed), None);
    }

    proptest! {
        #[test]
        fn damaged_packets_are_none(bit in 0..52 * 8usize, length in 0..116usize) {
            let packet = build(&headers(), 49_200, &control());
            prop_assert!(parse(&packet[..length.min(packet.len() - 1)]).is_none());
            // From the inner IPv4 header on, checksums cover every bit.
            let mut changed = packet;
            changed[50 + 14 + bit / 8] ^= 1 << (bit % 8);
            prop_assert!(parse(&changed).is_none());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
