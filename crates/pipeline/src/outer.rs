//! The outer headers: Ethernet, IPv4, UDP and VXLAN (RFC 7348 section 5).

use std::net::Ipv4Addr;

use tables::{DontFragment, NextHop, Tos, Ttl, Tunnel};
use wire::Network;
use wire::checksum::Sum;
use wire::ecn::Ingress;
use wire::number::{ETHERTYPE_IPV4, PROTOCOL_UDP};

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
    /// Writes the headers. A next hop that is not resolved gets the MAC address 00:00:00:00:00:00, for now.
    ///
    /// Word by word, and where they stay: byte by byte, as one array, it took half as long as all of the rest.
    #[inline]
    pub fn write(&self, headers: &mut [u8; OVERHEAD]) {
        let Self { tunnel, hop, remote, inherited: Inherited { tos, ttl, dont_fragment }, .. } = *self;
        let flags = if dont_fragment { 0x4000 } else { 0 };
        let udp_length = self.l3_length.saturating_sub(20);
        let first = u16::from_be_bytes([0x45, tos]);
        let time = u16::from_be_bytes([ttl, PROTOCOL_UDP]);
        let addresses = Sum::new().long(tunnel.local.to_bits()).long(remote.to_bits());
        let sum = addresses.word(first).word(self.l3_length).word(self.identification).word(flags).word(time);
        let udp_checksum = if tunnel.udp_checksum {
            // What CHECKSUM_PARTIAL expects in the field: the pseudo header's sum, not complemented.
            addresses.word(PROTOCOL_UDP.into()).word(udp_length).fold()
        } else {
            0
        };
        let pair = |high: u16, low: u16| (u32::from(high) << 16 | u32::from(low)).to_be_bytes();
        let mut rest = headers.as_mut_slice();
        let mut put = |bytes: &[u8]| {
            if let Some((place, behind)) = std::mem::take(&mut rest).split_at_mut_checked(bytes.len()) {
                place.copy_from_slice(bytes);
                rest = behind;
            }
        };
        put(&hop.destination_mac.unwrap_or_default().0);
        put(&hop.source_mac.0);
        put(&ETHERTYPE_IPV4.to_be_bytes());
        put(&pair(first, self.l3_length));
        put(&pair(self.identification, flags));
        put(&pair(time, sum.checksum()));
        put(&tunnel.local.octets());
        put(&remote.octets());
        put(&pair(self.source_port, tunnel.destination_port));
        put(&pair(udp_length, udp_checksum));
        put(&[0x08, 0, 0, 0]);
        put(&(tunnel.vni.get() << 8).to_be_bytes());
    }
}
