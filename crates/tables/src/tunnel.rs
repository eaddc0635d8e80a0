//! The settings of a vxlan netdev for the outer header.

use std::net::IpAddr;

use wire::Vni;
use wire::number::PORT_VXLAN;

/// Outer TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// This value, 1 to 255. If the netdev has 0, this is the namespace's
    /// `net.ipv4.ip_default_ttl`.
    Fixed(u8),
    /// The TTL or hop limit of the inner packet. Frames without an IP header get `default`, as from
    /// `ip4_dst_hoplimit()`.
    Inherit {
        /// The namespace's `net.ipv4.ip_default_ttl`.
        default: u8,
    },
}

/// Outer type of service. The ECN bits always follow RFC 6040.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tos {
    /// This value. Its lower two bits are replaced by ECN.
    Fixed(u8),
    /// The DSCP of the inner packet (a netdev's tos 1).
    Inherit,
}

/// Outer don't-fragment bit (`IFLA_VXLAN_DF`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DontFragment {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// The bit of an inner IPv4 packet; set for inner IPv6 (`drivers/net/vxlan/vxlan_core.c`,
    /// `VXLAN_DF_INHERIT`).
    Inherit,
}

/// Outer flow label (RFC 6437), for an IPv6 underlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowLabel {
    /// The outer UDP source port of the packet (RFC 6438 section 3). Routers that hash no ports,
    /// such as those of Linux with `net.ipv6.fib_multipath_hash_policy` 0, then distribute flows as
    /// routers do that hash them.
    ///
    /// The RFC asks for a value by RFC 6437, which is the same for all packets of a flow. The
    /// source port is such a value: it comes from a hash of the flow (RFC 7348 section 5) with 14
    /// bits in the default range. It is never 0, which would mean "no label". RFC 6437 section 3
    /// recommends values that are uniform over 20 bits. Fewer bits are enough here, because routers
    /// hash the label together with both addresses, and flows with one port have one path anyway.
    #[default]
    SourcePort,
    /// This value, 20 bits, as kernel VXLAN writes it (`flowlabel` of the netdev).
    Fixed(u32),
}

impl FlowLabel {
    /// The label of a packet with this UDP source port, 20 bits.
    #[must_use]
    pub const fn of(self, source_port: u16) -> u32 {
        match self {
            Self::SourcePort => source_port as u32,
            Self::Fixed(label) => label & 0xf_ffff,
        }
    }
}

/// The tunnel parameters of one VNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The VNI.
    pub vni: Vni,
    /// Outer source address: this leaf's VTEP.
    pub local: IpAddr,
    /// Outer UDP destination port, for sent and received packets.
    pub destination_port: u16,
    /// Outer TTL.
    pub ttl: Ttl,
    /// Outer ToS.
    pub tos: Tos,
    /// Outer DF.
    pub df: DontFragment,
    /// Whether the outer UDP checksum is computed.
    pub udp_checksum: bool,
    /// Outer flow label, for an IPv6 underlay.
    pub flow_label: FlowLabel,
    /// Whether received packets without a UDP checksum are accepted over IPv6 (RFC 6935,
    /// `udp6zerocsumrx`). Over IPv4 they always are.
    pub accepts_no_checksum: bool,
}

impl Tunnel {
    /// The parameters of a vxlan netdev that is created without options but the port 4789.
    #[must_use]
    pub fn new(vni: Vni, local: IpAddr) -> Self {
        Self {
            vni,
            local,
            destination_port: PORT_VXLAN,
            ttl: Ttl::Fixed(64),
            tos: Tos::Fixed(0),
            df: DontFragment::Unset,
            udp_checksum: true,
            flow_label: FlowLabel::default(),
            accepts_no_checksum: false,
        }
    }
}
