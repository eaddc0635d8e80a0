//! The outer headers of a VXLAN packet: Ethernet, IPv4 or IPv6, UDP and VXLAN (RFC 7348 section 5).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};
use crate::{Ethernet, Ipv4, Ipv6, MacAddr, Udp, Vni, Vxlan};

/// An address of the underlay: [`Ipv4Addr`] or [`Ipv6Addr`].
pub trait Address: Copy + Into<IpAddr> {
    /// Whether it is an IPv4 address.
    const IS_IPV4: bool;
    /// Length of the IP header in bytes.
    const IP: usize;
    /// Offset of the UDP header in the packet.
    const UDP_AT: usize = Ethernet::LENGTH + Self::IP;
    /// Length of all outer headers in bytes.
    const OUTER: usize = Self::UDP_AT + Udp::LENGTH + Vxlan::LENGTH;

    /// The address, if it is of this family.
    fn of(address: IpAddr) -> Option<Self>;

    /// Writes EtherType and IP header. Returns the sum of the pseudo header.
    fn write_ip(outer: &OuterHeaders<Self>, udp_length: u16, to: &mut Writer<'_>) -> Sum;
}

/// The outer headers of a VXLAN packet between addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeaders<A> {
    /// Source and destination MAC address.
    pub macs: (MacAddr, MacAddr),
    /// Source and destination address.
    pub ends: (A, A),
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Identification; only over IPv4.
    pub identification: u16,
    /// The don't-fragment bit; only over IPv4.
    pub dont_fragment: bool,
    /// Flow label, 20 bits; only over IPv6.
    pub flow_label: u32,
    /// Length of the outer IP packet in bytes, at least that of the headers.
    pub l3_length: u16,
    /// Whether the UDP checksum is [to be completed](crate::checksum::complete). Otherwise it is 0.
    pub udp_checksum: bool,
    /// The VNI.
    pub vni: Vni,
}

impl<A: Address> OuterHeaders<A> {
    /// Writes the headers to the start of `packet`, which holds at least [`Address::OUTER`] bytes.
    ///
    /// They are written in place and in words, because a byte array in between is much slower.
    #[inline(always)]
    pub fn write(&self, packet: &mut [u8]) {
        let udp_length = self.l3_length.saturating_sub(A::IP as u16);
        let mut to = Writer(packet);
        to.put(&self.macs.1.0);
        to.put(&self.macs.0.0);
        let pseudo = A::write_ip(self, udp_length, &mut to);
        // With a partial checksum, the field holds the sum of the pseudo header, not complemented.
        let checksum = if self.udp_checksum { pseudo.fold() } else { 0 };
        to.halves(self.ports.0, self.ports.1);
        to.halves(udp_length, checksum);
        to.put(&[Vxlan::I_FLAG, 0, 0, 0]);
        to.put(&(self.vni.get() << 8).to_be_bytes());
    }
}

/// Where headers are written.
#[derive(Debug)]
pub struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        if let Some((place, rest)) = core::mem::take(&mut self.0).split_at_mut_checked(bytes.len())
        {
            place.copy_from_slice(bytes);
            self.0 = rest;
        }
    }

    #[inline(always)]
    fn halves(&mut self, high: u16, low: u16) {
        self.put(&(u32::from(high) << 16 | u32::from(low)).to_be_bytes());
    }
}

impl Address for Ipv4Addr {
    const IS_IPV4: bool = true;
    const IP: usize = Ipv4::LENGTH;

    #[inline(always)]
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }

    #[inline(always)]
    fn write_ip(outer: &OuterHeaders<Self>, udp_length: u16, to: &mut Writer<'_>) -> Sum {
        let OuterHeaders { ends: (source, destination), l3_length, identification, .. } = *outer;
        let flags = if outer.dont_fragment { 0x4000 } else { 0 };
        let first = u16::from_be_bytes([0x45, outer.tos]);
        let time = u16::from_be_bytes([outer.ttl, PROTOCOL_UDP]);
        let addresses = Sum::new().long(source.to_bits()).long(destination.to_bits());
        let sum = addresses.word(first).word(l3_length).word(identification).word(flags).word(time);
        to.put(&ETHERTYPE_IPV4.to_be_bytes());
        to.halves(first, l3_length);
        to.halves(identification, flags);
        to.halves(time, sum.checksum());
        to.put(&source.octets());
        to.put(&destination.octets());
        addresses.word(PROTOCOL_UDP.into()).word(udp_length)
    }
}

impl Address for Ipv6Addr {
    const IS_IPV4: bool = false;
    const IP: usize = Ipv6::LENGTH;

    #[inline(always)]
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }
    }

    #[inline(always)]
    fn write_ip(outer: &OuterHeaders<Self>, udp_length: u16, to: &mut Writer<'_>) -> Sum {
        let (source, destination) = outer.ends;
        let first = 6 << 28 | u32::from(outer.tos) << 20 | outer.flow_label & 0xf_ffff;
        to.put(&ETHERTYPE_IPV6.to_be_bytes());
        to.put(&first.to_be_bytes());
        to.halves(udp_length, u16::from_be_bytes([PROTOCOL_UDP, outer.ttl]));
        to.put(&source.octets());
        to.put(&destination.octets());
        Sum::new().pseudo_ipv6(source, destination, PROTOCOL_UDP, udp_length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ipv4Packet, Ipv6Packet};

    const PAYLOAD: &[u8] = b"inner frame";

    fn headers<A: Address>(ends: (A, A), udp_checksum: bool) -> OuterHeaders<A> {
        OuterHeaders {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends,
            ports: (50_000, 4789),
            tos: 0x62,
            ttl: 9,
            identification: 0x1234,
            dont_fragment: true,
            flow_label: 0xa_bcde,
            l3_length: (A::OUTER - Ethernet::LENGTH + PAYLOAD.len()) as u16,
            udp_checksum,
            vni: Vni::try_from(0x12_3456).unwrap(),
        }
    }

    /// The headers with their payload, and with a complete checksum.
    fn packet<A: Address>(headers: &OuterHeaders<A>) -> Vec<u8> {
        let mut packet = vec![0xa5; A::OUTER];
        headers.write(&mut packet);
        packet.extend_from_slice(PAYLOAD);
        if headers.udp_checksum {
            crate::checksum::complete(&mut packet, A::UDP_AT, 6).unwrap();
        }
        packet
    }

    /// Checks Ethernet, UDP and VXLAN header.
    fn assert_carries<A: Address>(headers: &OuterHeaders<A>, packet: &[u8], ethertype: u16) {
        let (ethernet, _) = Ethernet::parse(packet).unwrap();
        assert_eq!((ethernet.source(), ethernet.destination()), headers.macs);
        assert_eq!(ethernet.ethertype(), ethertype);
        let (udp, rest) = Udp::parse(&packet[A::UDP_AT..]).unwrap();
        assert_eq!((udp.source_port(), udp.destination_port()), headers.ports);
        assert_eq!(usize::from(udp.length()), 16 + PAYLOAD.len());
        assert_eq!(udp.checksum() != 0, headers.udp_checksum);
        let (vxlan, rest) = Vxlan::parse(rest).unwrap();
        assert_eq!((vxlan.vni().unwrap(), vxlan.reserved_bits(), rest), (headers.vni, 0, PAYLOAD));
    }

    #[test]
    fn headers_over_ipv4_have_every_field() {
        for udp_checksum in [false, true] {
            let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let headers = headers::<Ipv4Addr>(ends, udp_checksum);
            let packet = packet(&headers);
            assert_carries(&headers, &packet, ETHERTYPE_IPV4);
            let ip = Ipv4Packet::parse(&packet[Ethernet::LENGTH..]).unwrap().header;
            assert_eq!((ip.source(), ip.destination()), ends);
            assert_eq!((ip.tos(), ip.ttl(), ip.identification()), (0x62, 9, 0x1234));
            assert_eq!((ip.dont_fragment(), ip.more_fragments()), (true, false));
            assert!(Sum::new().bytes(ip.as_bytes()).is_intact());
            let length = headers.l3_length - 20;
            let pseudo = Sum::new().pseudo_ipv4(ends.0, ends.1, PROTOCOL_UDP, length);
            let is_intact = pseudo.bytes(&packet[Ipv4Addr::UDP_AT..]).is_intact();
            assert_eq!(is_intact, udp_checksum);
        }
    }

    #[test]
    fn headers_over_ipv6_have_every_field() {
        for udp_checksum in [false, true] {
            let ends = ([0xfd; 16].into(), [0xfe; 16].into());
            let headers = headers::<Ipv6Addr>(ends, udp_checksum);
            let packet = packet(&headers);
            assert_carries(&headers, &packet, ETHERTYPE_IPV6);
            let ip = Ipv6Packet::parse(&packet[Ethernet::LENGTH..]).unwrap().header;
            assert_eq!((ip.source(), ip.destination()), ends);
            assert_eq!((ip.traffic_class(), ip.hop_limit()), (0x62, 9));
            assert_eq!(ip.flow_label(), 0xa_bcde);
            let length = headers.l3_length - 40;
            let pseudo = Sum::new().pseudo_ipv6(ends.0, ends.1, PROTOCOL_UDP, length.into());
            let is_intact = pseudo.bytes(&packet[Ipv6Addr::UDP_AT..]).is_intact();
            assert_eq!(is_intact, udp_checksum);
        }
    }
}
