//! What a vxlan netdev says of the outer header that its frames get.

use std::net::Ipv4Addr;

use wire::Vni;

/// Outer time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// This value, 1 to 255. (A netdev's 0 stands for the namespace's `net.ipv4.ip_default_ttl`.)
    Fixed(u8),
    /// The inner packet's; for frames without an IP header this default, as `ip4_dst_hoplimit`
    /// gives it.
    Inherit {
        /// The namespace's `net.ipv4.ip_default_ttl`.
        default: u8,
    },
}

/// Outer type of service. The ECN bits always follow the inner packet (RFC 6040).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tos {
    /// This value; its lower two bits are replaced by ECN.
    Fixed(u8),
    /// The inner packet's DSCP (a netdev's tos 1).
    Inherit,
}

/// Outer don't-fragment bit (`IFLA_VXLAN_DF`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DontFragment {
    /// Never.
    Unset,
    /// Always.
    Set,
    /// The inner IPv4 packet's; set for inner IPv6 (`drivers/net/vxlan/vxlan_core.c`,
    /// `VXLAN_DF_INHERIT`).
    Inherit,
}

/// The tunnel parameters of one VNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// The VNI.
    pub vni: Vni,
    /// Outer source address: this leaf's VTEP.
    pub local: Ipv4Addr,
    /// Outer UDP destination port, sent and listened to.
    pub destination_port: u16,
    /// Outer TTL.
    pub ttl: Ttl,
    /// Outer ToS.
    pub tos: Tos,
    /// Outer DF.
    pub df: DontFragment,
    /// Whether the outer UDP checksum is filled in.
    pub udp_checksum: bool,
}
