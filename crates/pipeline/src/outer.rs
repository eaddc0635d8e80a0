//! The outer headers: Ethernet, IPv4, UDP and VXLAN (RFC 7348 section 5).

use std::net::Ipv4Addr;

use tables::{DontFragment, NextHop, Tos, Ttl, Tunnel};
use wire::Network;
use wire::checksum::{Sum, checksum};
use wire::ecn::Ingress;

/// Ethernet, IPv4, UDP and VXLAN header in bytes.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;
/// Where the outer UDP header starts.
pub const UDP_AT: usize = 14 + 20;
/// Where UDP has its checksum.
pub const UDP_CHECKSUM: u16 = 6;

/// What the outer header takes over from the inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inherited {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// The don't-fragment bit.
    pub dont_fragment: bool,
}

impl Inherited {
    /// As `vxlan_xmit_one()` does it (`drivers/net/vxlan/vxlan_core.c`).
    pub fn of(tunnel: &Tunnel, inner: &Network) -> Self {
        let (inner_tos, inner_ttl, inner_df) = match inner {
            Network::Ipv4(ip) => (Some(ip.tos), Some(ip.ttl), ip.dont_fragment),
            Network::Ipv6(ip) => (Some(ip.traffic_class), Some(ip.hop_limit), true),
            Network::Other => (None, None, false),
        };
        let tos = match tunnel.tos {
            Tos::Fixed(tos) => tos,
            Tos::Inherit => inner_tos.unwrap_or(0),
        };
        let ttl = match tunnel.ttl {
            Ttl::Fixed(ttl) => ttl,
            Ttl::Inherit { default } => inner_ttl.filter(|&ttl| ttl != 0).unwrap_or(default),
        };
        let dont_fragment = match tunnel.df {
            DontFragment::Unset => false,
            DontFragment::Set => true,
            DontFragment::Inherit => inner_df,
        };
        let tos = wire::ecn::encapsulate(Ingress::Linux, tos, inner_tos.unwrap_or(0));
        Self { tos, ttl, dont_fragment }
    }
}

/// The fields that differ from frame to frame.
pub struct Outer<'a> {
    pub tunnel: &'a Tunnel,
    pub hop: &'a NextHop,
    pub remote: Ipv4Addr,
    pub source_port: u16,
    /// The outer IPv4 packet's length in bytes, at least 36.
    pub l3_length: u16,
    pub identification: u16,
    pub inherited: Inherited,
}

impl Outer<'_> {
    /// The headers. A next hop that is not resolved gets the MAC address 00:00:00:00:00:00, for now.
    pub fn bytes(&self) -> [u8; OVERHEAD] {
        let Self { tunnel, hop, remote, inherited: Inherited { tos, ttl, dont_fragment }, .. } = *self;
        let [d0, d1, d2, d3, d4, d5] = hop.destination_mac.unwrap_or_default().0;
        let [s0, s1, s2, s3, s4, s5] = hop.source_mac.0;
        let [l0, l1] = self.l3_length.to_be_bytes();
        let [i0, i1] = self.identification.to_be_bytes();
        let flags = if dont_fragment { 0x40 } else { 0 };
        let [a0, a1, a2, a3] = tunnel.local.octets();
        let [r0, r1, r2, r3] = remote.octets();
        let ip = [0x45, tos, l0, l1, i0, i1, flags, 0, ttl, 17, 0, 0, a0, a1, a2, a3, r0, r1, r2, r3];
        let [c0, c1] = checksum(&ip).to_be_bytes();
        let udp_length = self.l3_length.saturating_sub(20);
        let [u0, u1] = udp_length.to_be_bytes();
        let [p0, p1] = self.source_port.to_be_bytes();
        let [q0, q1] = tunnel.destination_port.to_be_bytes();
        let [_, v0, v1, v2] = tunnel.vni.get().to_be_bytes();
        let [k0, k1] = if tunnel.udp_checksum {
            // What CHECKSUM_PARTIAL expects in the field: the pseudo header's sum, not complemented.
            Sum::new().pseudo_ipv4(tunnel.local, remote, 17, udp_length).fold().to_be_bytes()
        } else {
            [0, 0]
        };
        [
            d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, 0x08, 0x00, // Ethernet
            0x45, tos, l0, l1, i0, i1, flags, 0, ttl, 17, c0, c1, a0, a1, a2, a3, r0, r1, r2,
            r3, // IPv4
            p0, p1, q0, q1, u0, u1, k0, k1, // UDP
            0x08, 0, 0, 0, v0, v1, v2, 0, // VXLAN
        ]
    }
}
