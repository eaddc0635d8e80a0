//! Assigned numbers that this project uses: EtherTypes, IP protocols and UDP ports.

/// EtherType of IPv4 (RFC 894).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6 (RFC 2464 section 3).
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tag protocol identifier of a customer tag (IEEE 802.1Q-2022 section 9.5).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Tag protocol identifier of a service tag, "QinQ" (IEEE 802.1Q-2022 section 9.5).
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Tag protocol identifier of outer tags before 802.1ad; some switches still send it.
pub const ETHERTYPE_OLD_SERVICE_VLAN: u16 = 0x9100;

/// Whether an EtherType is followed by a four-byte VLAN tag.
#[must_use]
pub const fn is_vlan(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN | ETHERTYPE_OLD_SERVICE_VLAN)
}

/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub const PROTOCOL_HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4 (RFC 792).
pub const PROTOCOL_ICMP: u8 = 1;
/// TCP (RFC 9293).
pub const PROTOCOL_TCP: u8 = 6;
/// UDP (RFC 768).
pub const PROTOCOL_UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const PROTOCOL_DCCP: u8 = 33;
/// IPv6 routing header (RFC 8200 section 4.4).
pub const PROTOCOL_ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub const PROTOCOL_FRAGMENT: u8 = 44;
/// IP authentication header (RFC 4302).
pub const PROTOCOL_AUTHENTICATION: u8 = 51;
/// ICMP for IPv6 (RFC 4443).
pub const PROTOCOL_ICMPV6: u8 = 58;
/// No next header: nothing follows the IPv6 header (RFC 8200 section 4.7).
pub const PROTOCOL_NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 section 4.6).
pub const PROTOCOL_DESTINATION_OPTIONS: u8 = 60;
/// SCTP (RFC 9260).
pub const PROTOCOL_SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const PROTOCOL_UDP_LITE: u8 = 136;

/// UDP destination port of VXLAN (RFC 7348 section 5).
pub const PORT_VXLAN: u16 = 4789;
/// UDP destination port of RoCEv2 (InfiniBand architecture, annex A17.3).
pub const PORT_ROCE: u16 = 4791;
