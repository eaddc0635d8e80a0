//! The outer headers of a VXLAN frame.

use std::net::Ipv4Addr;

use wire::{Ethernet, Ipv4Packet, MacAddr, UdpDatagram, Vxlan, number};

/// Fields of the outer headers, and the inner frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outer {
    /// Destination MAC address.
    pub to: MacAddr,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// UDP source port: the entropy.
    pub source_port: u16,
    /// UDP checksum, 0 for none. Parsing fails if it is wrong.
    pub udp_checksum: u16,
    /// The whole VXLAN header.
    pub vxlan: [u8; 8],
    /// The VNI.
    pub vni: u32,
    /// The inner frame.
    pub inner: Vec<u8>,
}

impl Outer {
    /// Whether a frame is UDP over IPv4 to this port, and not a later fragment.
    #[must_use]
    pub fn is_vxlan(frame: &[u8], port: u16) -> bool {
        let Ok((ethernet, packet)) = Ethernet::parse(frame) else { return false };
        let Ok(ip) = Ipv4Packet::parse(packet) else { return false };
        ethernet.ethertype() == number::ETHERTYPE_IPV4
            && ip.header.protocol() == number::PROTOCOL_UDP
            && ip.header.fragment_offset() == 0
            && ip.payload.get(2..4) == Some(&port.to_be_bytes()[..])
    }

    /// Parses a frame. Returns `None` if it is not VXLAN to this port.
    ///
    /// # Panics
    /// If it is VXLAN, but a length or a checksum is wrong.
    #[must_use]
    pub fn parse(frame: &[u8], port: u16) -> Option<Self> {
        if !Self::is_vxlan(frame, port) {
            return None;
        }
        let (ethernet, packet) = Ethernet::parse(frame).ok()?;
        let ip = Ipv4Packet::parse(packet).ok()?;
        assert!(ip.checksum_is_right(), "outer IPv4 checksum");
        assert_eq!(usize::from(ip.header.total_length()), packet.len(), "outer IPv4 length");
        let udp = UdpDatagram::parse(ip.payload).expect("outer UDP");
        assert_eq!(usize::from(udp.header.length()), ip.payload.len(), "outer UDP length");
        let udp_checksum = udp.header.checksum();
        let sum = wire::checksum::Sum::new().pseudo_ipv4(
            ip.header.source(),
            ip.header.destination(),
            number::PROTOCOL_UDP,
            udp.header.length(),
        );
        assert!(
            udp_checksum == 0 || sum.bytes(ip.payload).is_intact(),
            "outer UDP checksum {udp_checksum:#x}"
        );
        let (vxlan, inner) = Vxlan::parse(udp.payload).expect("VXLAN");
        Some(Self {
            to: ethernet.destination(),
            source: ip.header.source(),
            destination: ip.header.destination(),
            tos: ip.header.tos(),
            ttl: ip.header.ttl(),
            dont_fragment: ip.header.dont_fragment(),
            source_port: udp.header.source_port(),
            udp_checksum,
            vxlan: *vxlan.as_bytes(),
            vni: vxlan.vni_number(),
            inner: inner.to_vec(),
        })
    }
}
