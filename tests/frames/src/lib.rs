//! Builds frames for tests, benchmarks and fuzzing.
//!
//! etherparse writes all headers that it knows, so that a test does not depend on the code under
//! test. Functions take what a header contains and return bytes; a frame is a call in a call:
//!
//! ```
//! use test_frames::{Ipv4, ROCE, UDP, bth, ethernet, ipv4, udp};
//!
//! let (host, far) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
//! let addresses = ([10, 0, 0, 1], [10, 0, 0, 2]);
//! let datagram = udp((49152, ROCE), &bth(0x04, 0x11, 1, &[0; 64]));
//! let frame = ethernet(host, far, 0x0800, &ipv4(addresses, UDP, &datagram, Ipv4::default()));
//! assert_eq!(frame.len(), 14 + 20 + 8 + 12 + 64 + 4);
//! ```

use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options,
    Ipv6FlowLabel, Ipv6Header, UdpHeader,
};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// UDP destination port of RoCEv2.
pub const ROCE: u16 = 4791;
/// UDP destination port of VXLAN (RFC 7348).
pub const VXLAN: u16 = 4789;

/// A MAC address.
pub type Mac = [u8; 6];

/// Fields of an IPv4 header besides addresses, protocol and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv4 {
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub identification: u16,
    /// The flag "don't fragment".
    pub dont_fragment: bool,
    /// The flag "more fragments".
    pub more_fragments: bool,
    /// Fragment offset in units of 8 bytes.
    pub fragment_offset: u16,
    /// Options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Total length, if it is not that of header and payload.
    pub total_length: Option<u16>,
}

impl Ipv4 {
    /// Sets flags and fragment offset as they stand in the header, without the reserved flag.
    #[must_use]
    pub fn fragment(self, field: u16) -> Self {
        Self {
            dont_fragment: field & 0x4000 != 0,
            more_fragments: field & 0x2000 != 0,
            fragment_offset: field & 0x1fff,
            ..self
        }
    }
}

impl Default for Ipv4 {
    fn default() -> Self {
        Self {
            tos: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            options: Vec::new(),
            total_length: None,
        }
    }
}

/// An Ethernet frame from one MAC address to another.
#[must_use]
pub fn ethernet(from: Mac, to: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let header =
        Ethernet2Header { source: from, destination: to, ether_type: EtherType(ethertype) };
    [&header.to_bytes()[..], payload].concat()
}

/// The frame with a VLAN tag behind its MAC addresses.
#[must_use]
pub fn tagged(frame: &[u8], tpid: u16, tci: u16) -> Vec<u8> {
    [&frame[..12], &tpid.to_be_bytes(), &tci.to_be_bytes(), &frame[12..]].concat()
}

/// An IPv4 packet from one address to another, with a correct header checksum.
#[must_use]
pub fn ipv4((from, to): ([u8; 4], [u8; 4]), protocol: u8, payload: &[u8], fields: Ipv4) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap();
    let mut header = Ipv4Header::new(length, fields.ttl, IpNumber(protocol), from, to).unwrap();
    header.options = Ipv4Options::try_from(&fields.options[..]).unwrap();
    header.set_payload_len(payload.len()).unwrap();
    header.dscp = IpDscp::try_new(fields.tos >> 2).unwrap();
    header.ecn = IpEcn::try_new(fields.tos & 3).unwrap();
    header.identification = fields.identification;
    header.dont_fragment = fields.dont_fragment;
    header.more_fragments = fields.more_fragments;
    header.fragment_offset = IpFragOffset::try_new(fields.fragment_offset).unwrap();
    header.total_len = fields.total_length.unwrap_or(header.total_len);
    header.header_checksum = header.calc_header_checksum();
    [&header.to_bytes()[..], payload].concat()
}

/// Fields of an IPv6 header besides addresses, next header and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Default for Ipv6 {
    fn default() -> Self {
        Self { traffic_class: 0, hop_limit: 64 }
    }
}

/// An IPv6 packet. `next` is the number of the first header behind it.
#[must_use]
pub fn ipv6((from, to): ([u8; 16], [u8; 16]), next: u8, payload: &[u8], fields: Ipv6) -> Vec<u8> {
    let header = Ipv6Header {
        traffic_class: fields.traffic_class,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: u16::try_from(payload.len()).unwrap(),
        next_header: IpNumber(next),
        hop_limit: fields.hop_limit,
        source: from,
        destination: to,
    };
    [&header.to_bytes()[..], payload].concat()
}

fn udp_header((from, to): (u16, u16), payload: &[u8]) -> UdpHeader {
    UdpHeader::without_ipv4_checksum(from, to, payload.len()).unwrap()
}

/// A UDP datagram without a checksum, from one port to another.
#[must_use]
pub fn udp(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    [&udp_header(ports, payload).to_bytes()[..], payload].concat()
}

/// A UDP datagram with a checksum over IPv4.
#[must_use]
pub fn udp_over_ipv4((from, to): ([u8; 4], [u8; 4]), ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut header = udp_header(ports, payload);
    header.checksum = header.calc_checksum_ipv4_raw(from, to, payload).unwrap();
    [&header.to_bytes()[..], payload].concat()
}

/// A UDP datagram with a checksum over IPv6.
#[must_use]
pub fn udp_over_ipv6(
    (from, to): ([u8; 16], [u8; 16]),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut header = udp_header(ports, payload);
    header.checksum = header.calc_checksum_ipv6_raw(from, to, payload).unwrap();
    [&header.to_bytes()[..], payload].concat()
}

/// A RoCEv2 base transport header with the default partition key, then payload and four zero bytes
/// in place of the ICRC. `queue_pair` and `sequence` have 24 bits.
#[must_use]
pub fn bth(opcode: u8, queue_pair: u32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let ([_, q @ ..], [_, s @ ..]) = (queue_pair.to_be_bytes(), sequence.to_be_bytes());
    let header = [opcode, 0x40, 0xff, 0xff, 0, q[0], q[1], q[2], 0, s[0], s[1], s[2]];
    [&header[..], payload, &[0; 4]].concat()
}

/// A VXLAN header (RFC 7348, section 5) with this VNI, and the inner frame. `flip` inverts bits of
/// the header; the first byte is the highest.
#[must_use]
pub fn vxlan(vni: u32, flip: u64, inner: &[u8]) -> Vec<u8> {
    let header = (0x08 << 56 | u64::from(vni) << 8) ^ flip;
    [&header.to_be_bytes()[..], inner].concat()
}

/// A VXLAN packet in an Ethernet frame: from one MAC address and VTEP to another. The outer UDP
/// checksum is 0.
#[must_use]
pub fn tunnelled(
    (from, to): (Mac, Mac),
    vteps: ([u8; 4], [u8; 4]),
    source_port: u16,
    vni: u32,
    inner: &[u8],
    fields: Ipv4,
) -> Vec<u8> {
    let datagram = udp((source_port, VXLAN), &vxlan(vni, 0, inner));
    ethernet(from, to, IPV4, &ipv4(vteps, UDP, &datagram, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_follow_each_other() {
        let addresses = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let fields =
            Ipv4 { tos: 0xb9, dont_fragment: true, options: vec![1; 4], ..Ipv4::default() };
        let packet = ipv4(addresses, UDP, &udp_over_ipv4(addresses, (1, 2), b"data"), fields);
        let frame = tagged(&ethernet([2; 6], [4; 6], IPV4, &packet), 0x8100, 5);
        let read = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = read.net else { panic!("{read:?}") };
        assert_eq!((ip.header().dcp().value(), ip.header().ecn().value()), (0x2e, 1));
        assert_eq!(ip.header().options(), [1; 4]);
        let Some(etherparse::TransportSlice::Udp(udp)) = read.transport else { panic!("no UDP") };
        assert_eq!(
            (udp.source_port(), udp.destination_port(), udp.payload()),
            (1, 2, &b"data"[..])
        );
    }
}
