//! One pass over an Ethernet frame: where each header starts and what a path decision needs to know.
//!
//! Nothing is copied but the fields below, nothing is allocated, and no input is an error: where a header is
//! cut short, contradicts the frame's length or is of an unknown kind, the result is weaker, as each field says.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::number::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_AUTHENTICATION, PROTOCOL_DCCP,
    PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP, PROTOCOL_NO_NEXT_HEADER,
    PROTOCOL_ROUTING, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_UDP_LITE, is_vlan,
};
use crate::types::{MacAddr, QueuePair};

/// VLAN tags that are followed; a further one is left as the EtherType.
const MAX_VLAN_TAGS: u8 = 4;
/// IPv6 extension headers that are followed; behind more than these the transport is unknown.
const MAX_EXTENSIONS: usize = 8;
const ETHERNET_LENGTH: u16 = 14;
const IPV6_LENGTH: u16 = 40;
const UDP_LENGTH: usize = 8;

/// What one Ethernet frame says about itself. Offsets count bytes from the frame's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dissection {
    /// Destination MAC address.
    pub destination: MacAddr,
    /// Source MAC address.
    pub source: MacAddr,
    /// How many VLAN tags (0x8100, 0x88a8, 0x9100) stand before `ethertype`, 0 to 4.
    pub vlan_tags: u8,
    /// EtherType behind the VLAN tags. A tag that is cut short, or the fifth, stays here as its own EtherType;
    /// below 0x600 it is an IEEE 802.3 length.
    pub ethertype: u16,
    /// Where the network header starts.
    pub l3_offset: u16,
    /// The network header. [`Network::Other`] for a broken or cut IP header too: then `ethertype` still says IP.
    pub network: Network,
    /// The transport header. `None` if the network is not IP, for later fragments, for datagrams longer than
    /// the frame, and behind extension headers that are cut short or more than 8.
    pub transport: Option<Transport>,
    /// RoCEv2: whole datagrams to UDP port 4791 whose base transport header is complete.
    pub roce: Option<Roce>,
}

/// The network header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// IPv4 with a complete and consistent fixed header.
    Ipv4(Ipv4Summary),
    /// IPv6 with a complete fixed header.
    Ipv6(Ipv6Summary),
    /// Anything else.
    Other,
}

/// Fields of an IPv4 header (RFC 791 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Summary {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Header with options in bytes, 20 to 60. The options may lie beyond the frame's end.
    pub header_length: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// The don't-fragment flag.
    pub dont_fragment: bool,
    /// Which part of a datagram this is.
    pub fragment: Fragment,
    /// Header and payload in bytes, as claimed; not checked against the frame.
    pub total_length: u16,
    /// Protocol, the same in every fragment of a datagram.
    pub protocol: u8,
}

/// Fields of an IPv6 header and its fragment header (RFC 8200 sections 3 and 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Summary {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Which part of a datagram this is. An atomic fragment (RFC 6946) is whole.
    pub fragment: Fragment,
    /// Payload with extension headers in bytes, as claimed; not checked against the frame.
    pub payload_length: u16,
    /// In a fragment, the next header that its fragment header names (the same in every fragment of a
    /// datagram); otherwise the upper-layer protocol, or the first next header that could not be followed.
    pub protocol: u8,
}

/// Which part of an IP datagram a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// All of it.
    Whole,
    /// The first part: it holds the transport header.
    First,
    /// A later part.
    Later,
}

/// The transport header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// Where the header starts.
    pub offset: u16,
    /// Source and destination port of TCP, UDP, UDP-Lite, SCTP and DCCP. `None` if they are cut off, or if the
    /// UDP length contradicts the IP length.
    pub ports: Option<(u16, u16)>,
}

/// Fields of a RoCEv2 base transport header (InfiniBand architecture 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roce {
    /// Opcode, for example 0x11 for an RC acknowledgement, 0x81 for a congestion notification.
    pub opcode: u8,
    /// Destination queue pair.
    pub destination: QueuePair,
    /// Packet sequence number, 24 bits.
    pub sequence: u32,
}

impl Network {
    /// Source and destination address, of IP only.
    #[must_use]
    pub const fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Self::Ipv4(ip) => Some((IpAddr::V4(ip.source), IpAddr::V4(ip.destination))),
            Self::Ipv6(ip) => Some((IpAddr::V6(ip.source), IpAddr::V6(ip.destination))),
            Self::Other => None,
        }
    }

    /// IPv4 type of service or IPv6 traffic class.
    #[must_use]
    pub const fn traffic_class(&self) -> Option<u8> {
        match self {
            Self::Ipv4(ip) => Some(ip.tos),
            Self::Ipv6(ip) => Some(ip.traffic_class),
            Self::Other => None,
        }
    }
}

impl Transport {
    /// Whether the protocol begins with a source and a destination port.
    #[inline]
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        matches!(
            self.protocol,
            PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_DCCP | PROTOCOL_SCTP | PROTOCOL_UDP_LITE
        )
    }
}

impl Dissection {
    /// Length in bytes of all headers through TCP (with options) or UDP: what each segment of a GSO frame
    /// repeats, and where its payload starts. `frame` is the frame that was dissected. `None` if the transport
    /// is neither, or its header is not complete in the frame.
    #[must_use]
    pub fn gso_header_length(&self, frame: &[u8]) -> Option<usize> {
        let transport = self.transport?;
        let start = usize::from(transport.offset);
        let header = frame.get(start..)?;
        let length = match transport.protocol {
            PROTOCOL_UDP => UDP_LENGTH,
            PROTOCOL_TCP => usize::from(header.first_chunk::<20>()?[12] >> 4) * 4,
            _ => return None,
        };
        let minimum = if transport.protocol == PROTOCOL_TCP { 20 } else { UDP_LENGTH };
        (length >= minimum && length <= header.len()).then_some(start + length)
    }
}

/// Dissects an Ethernet frame (without preamble and FCS; trailing padding is allowed). `None` if it is shorter than an Ethernet
/// header; otherwise always a result, as complete as the frame.
#[inline]
#[must_use]
pub fn dissect(frame: &[u8]) -> Option<Dissection> {
    let (&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1], mut l3) = frame.split_first_chunk()?;
    let mut ethertype = u16::from_be_bytes([t0, t1]);
    let mut vlan_tags = 0;
    while is_vlan(ethertype) && vlan_tags < MAX_VLAN_TAGS {
        let Some((&[_, _, t0, t1], rest)) = l3.split_first_chunk() else { break };
        ethertype = u16::from_be_bytes([t0, t1]);
        l3 = rest;
        vlan_tags += 1;
    }
    let mut dissection = Dissection {
        destination: MacAddr([d0, d1, d2, d3, d4, d5]),
        source: MacAddr([s0, s1, s2, s3, s4, s5]),
        vlan_tags,
        ethertype,
        l3_offset: ETHERNET_LENGTH + 4 * u16::from(vlan_tags),
        network: Network::Other,
        transport: None,
        roce: None,
    };
    match ethertype {
        ETHERTYPE_IPV4 => dissection.ipv4(l3),
        ETHERTYPE_IPV6 => dissection.ipv6(l3),
        _ => {}
    }
    Some(dissection)
}

impl Dissection {
    #[inline]
    fn ipv4(&mut self, l3: &[u8]) {
        let Some(&[version, tos, l0, l1, _, _, f0, f1, ttl, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3]) =
            l3.first_chunk()
        else {
            return;
        };
        let header_length = (version & 0x0f) * 4;
        if version >> 4 != 4 || header_length < 20 {
            return;
        }
        let total_length = u16::from_be_bytes([l0, l1]);
        let flags = u16::from_be_bytes([f0, f1]);
        let fragment = fragment(flags & 0x1fff != 0, flags & 0x2000 != 0);
        self.network = Network::Ipv4(Ipv4Summary {
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
            header_length,
            tos,
            ttl,
            dont_fragment: flags & 0x4000 != 0,
            fragment,
            total_length,
            protocol,
        });
        if let Some(payload) = l3.get(usize::from(header_length)..usize::from(total_length)) {
            self.transport(protocol, self.l3_offset + u16::from(header_length), payload, fragment);
        }
    }

    fn ipv6(&mut self, l3: &[u8]) {
        let Some((&[v0, v1, v2, v3, l0, l1, next, hop_limit], addresses)) = l3.split_first_chunk() else {
            return;
        };
        let Some((source, rest)) = addresses.split_first_chunk::<16>() else { return };
        let Some((destination, rest)) = rest.split_first_chunk::<16>() else { return };
        if v0 >> 4 != 6 {
            return;
        }
        let payload_length = u16::from_be_bytes([l0, l1]);
        // A datagram longer than the frame is not walked: what cannot be trusted is not followed.
        let chain = match rest.get(..usize::from(payload_length)) {
            Some(payload) => extensions(next, payload),
            None => Chain { protocol: next, fragment: Fragment::Whole, upper: None },
        };
        self.network = Network::Ipv6(Ipv6Summary {
            source: Ipv6Addr::from(*source),
            destination: Ipv6Addr::from(*destination),
            traffic_class: (v0 << 4) | (v1 >> 4),
            hop_limit,
            flow_label: u32::from_be_bytes([0, v1 & 0x0f, v2, v3]),
            fragment: chain.fragment,
            payload_length,
            protocol: chain.protocol,
        });
        if let Some((protocol, skipped, payload)) = chain.upper {
            self.transport(protocol, self.l3_offset + IPV6_LENGTH + skipped, payload, chain.fragment);
        }
    }

    #[inline]
    fn transport(&mut self, protocol: u8, offset: u16, payload: &[u8], fragment: Fragment) {
        if fragment == Fragment::Later {
            return;
        }
        let mut ports = None;
        match protocol {
            PROTOCOL_UDP => {
                if let Some(&[s0, s1, d0, d1, l0, l1, _, _]) = payload.first_chunk() {
                    let length = usize::from(u16::from_be_bytes([l0, l1]));
                    // The first fragment is shorter than its datagram.
                    let whole = fragment == Fragment::Whole;
                    if length >= UDP_LENGTH && (!whole || length <= payload.len()) {
                        let destination = u16::from_be_bytes([d0, d1]);
                        ports = Some((u16::from_be_bytes([s0, s1]), destination));
                        if destination == PORT_ROCE && whole {
                            self.roce = payload.get(UDP_LENGTH..length).and_then(roce);
                        }
                    }
                }
            }
            PROTOCOL_TCP | PROTOCOL_SCTP | PROTOCOL_DCCP | PROTOCOL_UDP_LITE => {
                if let Some(&[s0, s1, d0, d1]) = payload.first_chunk() {
                    ports = Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])));
                }
            }
            _ => {}
        }
        self.transport = Some(Transport { protocol, offset, ports });
    }
}

#[inline]
const fn fragment(offset: bool, more: bool) -> Fragment {
    match (offset, more) {
        (true, _) => Fragment::Later,
        (false, true) => Fragment::First,
        (false, false) => Fragment::Whole,
    }
}

#[inline]
fn roce(datagram: &[u8]) -> Option<Roce> {
    let &[opcode, _, _, _, _, q0, q1, q2, _, p0, p1, p2] = datagram.first_chunk()?;
    Some(Roce {
        opcode,
        destination: QueuePair::from_be_bytes([q0, q1, q2]),
        sequence: u32::from_be_bytes([0, p0, p1, p2]),
    })
}

/// The end of an IPv6 header chain.
struct Chain<'a> {
    protocol: u8,
    fragment: Fragment,
    /// Protocol, bytes before it, and payload of the upper layer, if it was reached.
    upper: Option<(u8, u16, &'a [u8])>,
}

/// Follows IPv6 extension headers (RFC 8200 section 4) from `next` at the start of `payload`.
#[inline]
fn extensions(next: u8, payload: &[u8]) -> Chain<'_> {
    let mut chain = Chain { protocol: next, fragment: Fragment::Whole, upper: None };
    let (mut next, mut rest) = (next, payload);
    for _ in 0..=MAX_EXTENSIONS {
        // Behind a fragment header, `protocol` stays what every fragment shows.
        if chain.fragment == Fragment::Whole {
            chain.protocol = next;
        }
        let length = match (next, rest.first_chunk()) {
            (PROTOCOL_HOP_BY_HOP | PROTOCOL_ROUTING | PROTOCOL_DESTINATION_OPTIONS, Some(&[_, units])) => {
                (usize::from(units) + 1) * 8
            }
            (PROTOCOL_AUTHENTICATION, Some(&[_, units])) => (usize::from(units) + 2) * 4,
            // A fragment within a fragment is not followed: later parts could not show it.
            (PROTOCOL_FRAGMENT, Some(_)) if chain.fragment == Fragment::Whole => 8,
            (
                PROTOCOL_HOP_BY_HOP
                | PROTOCOL_ROUTING
                | PROTOCOL_DESTINATION_OPTIONS
                | PROTOCOL_AUTHENTICATION
                | PROTOCOL_FRAGMENT
                | PROTOCOL_NO_NEXT_HEADER,
                _,
            ) => return chain,
            _ => {
                // At most 8 headers of 2 kB precede it, so the offset fits.
                let skipped = u16::try_from(payload.len() - rest.len()).unwrap_or(u16::MAX);
                chain.upper = Some((next, skipped, rest));
                return chain;
            }
        };
        let Some((header, behind)) = rest.split_at_checked(length) else { return chain };
        let Some(&[following, _, f0, f1]) = header.first_chunk() else { return chain };
        if next == PROTOCOL_FRAGMENT {
            let word = u16::from_be_bytes([f0, f1]);
            chain.fragment = fragment(word & 0xfff8 != 0, word & 1 != 0);
            chain.protocol = following;
            if chain.fragment == Fragment::Later {
                return chain;
            }
        }
        next = following;
        rest = behind;
    }
    chain
}
