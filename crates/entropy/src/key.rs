//! What a frame is hashed by, and why by that.

use core::fmt;
use core::net::IpAddr;

use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_UDP};
use wire::{Dissection, Fragment, MacAddr, Network, QueuePair};

use crate::hash::hash;
use crate::policy::Policy;

/// What one frame's decision depends on. VLAN tags are never part of it: a flow keeps its path when tags change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// RoCE: every opcode, sequence number and inner source port of a queue pair has this one key.
    QueuePair {
        /// Inner source address.
        source: IpAddr,
        /// Inner destination address.
        destination: IpAddr,
        /// Destination queue pair.
        queue_pair: QueuePair,
    },
    /// A transport flow.
    FiveTuple {
        /// Inner source address.
        source: IpAddr,
        /// Inner destination address.
        destination: IpAddr,
        /// IP protocol number.
        protocol: u8,
        /// Inner source port.
        source_port: u16,
        /// Inner destination port.
        destination_port: u16,
    },
    /// IP without (usable) ports; all fragments of a datagram.
    Addresses {
        /// Inner source address.
        source: IpAddr,
        /// Inner destination address.
        destination: IpAddr,
        /// IP protocol number that every fragment shows.
        protocol: u8,
    },
    /// Anything that is not IP.
    Macs {
        /// Source MAC address.
        source: MacAddr,
        /// Destination MAC address.
        destination: MacAddr,
        /// EtherType behind the VLAN tags.
        ethertype: u16,
    },
}

/// Why a frame has the key it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A whole RoCEv2 base transport header.
    Roce,
    /// RoCE, but the policy looks at the inner five-tuple only.
    RoceByFiveTuple,
    /// A UDP datagram to the RoCE port that is too short for a base transport header.
    TruncatedRoce,
    /// A complete transport flow that is not RoCE.
    NotRoce,
    /// The first fragment of a datagram: later ones show no ports, so it must not use its own.
    FirstFragment,
    /// A later fragment of a datagram.
    LaterFragment,
    /// A protocol without ports.
    NoPorts,
    /// The transport header is cut short or contradicts the length of the datagram or of the frame.
    BrokenTransport,
    /// The EtherType says IP, the header behind it does not.
    BrokenIp,
    /// Not IP.
    NotIp,
}

impl Reason {
    /// The reason as a report has it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Roce => "RoCE BTH found",
            Self::RoceByFiveTuple => "RoCE, but the policy does not look at queue pairs",
            Self::TruncatedRoce => "RoCE port, but the BTH is truncated",
            Self::NotRoce => "not RoCE",
            Self::FirstFragment => "first fragment: ports unused, as later fragments have none",
            Self::LaterFragment => "later fragment: no ports",
            Self::NoPorts => "protocol without ports",
            Self::BrokenTransport => "transport header truncated or of inconsistent length",
            Self::BrokenIp => "IP header truncated or malformed",
            Self::NotIp => "not IP",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl Key {
    /// The key of a frame under `policy`, and the reason for it.
    #[inline]
    #[must_use]
    pub fn of(frame: &Dissection, policy: Policy) -> (Self, Reason) {
        let (source, destination, protocol, fragment) = match &frame.network {
            Network::Ipv4(ip) => {
                (IpAddr::V4(ip.source), IpAddr::V4(ip.destination), ip.protocol, ip.fragment)
            }
            Network::Ipv6(ip) => {
                (IpAddr::V6(ip.source), IpAddr::V6(ip.destination), ip.protocol, ip.fragment)
            }
            Network::Other => return Self::of_macs(frame),
        };
        if let Some(roce) = frame.roce
            && policy != Policy::FiveTuple
        {
            return (Self::QueuePair { source, destination, queue_pair: roce.destination }, Reason::Roce);
        }
        let addresses = Self::Addresses { source, destination, protocol };
        match fragment {
            Fragment::First => return (addresses, Reason::FirstFragment),
            Fragment::Later => return (addresses, Reason::LaterFragment),
            Fragment::Whole => {}
        }
        let Some(transport) = frame.transport else { return (addresses, Reason::BrokenTransport) };
        let Some((source_port, destination_port)) = transport.ports else {
            let reason = if transport.has_ports() { Reason::BrokenTransport } else { Reason::NoPorts };
            return (addresses, reason);
        };
        let reason = if frame.roce.is_some() {
            Reason::RoceByFiveTuple
        } else if transport.protocol == PROTOCOL_UDP && destination_port == PORT_ROCE {
            Reason::TruncatedRoce
        } else {
            Reason::NotRoce
        };
        (
            Self::FiveTuple {
                source,
                destination,
                protocol: transport.protocol,
                source_port,
                destination_port,
            },
            reason,
        )
    }

    fn of_macs(frame: &Dissection) -> (Self, Reason) {
        let Dissection { source, destination, ethertype, .. } = *frame;
        let broken = matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
        let reason = if broken { Reason::BrokenIp } else { Reason::NotIp };
        (Self::Macs { source, destination, ethertype }, reason)
    }

    /// The key's hash under `seed`. Each kind of key has its own tag in the last word.
    #[inline]
    #[must_use]
    pub fn hash(&self, seed: u64) -> u64 {
        match *self {
            Self::QueuePair { source, destination, queue_pair } => {
                of_addresses(seed, source, destination, 1 << 48 | u64::from(queue_pair.get()))
            }
            Self::FiveTuple { source, destination, protocol, source_port, destination_port } => {
                let flow =
                    u64::from(protocol) << 32 | u64::from(source_port) << 16 | u64::from(destination_port);
                of_addresses(seed, source, destination, 2 << 48 | flow)
            }
            Self::Addresses { source, destination, protocol } => {
                of_addresses(seed, source, destination, 3 << 48 | u64::from(protocol))
            }
            Self::Macs { source, destination, ethertype } => {
                hash(seed, [mac_word(source), mac_word(destination), 4 << 48 | u64::from(ethertype)])
            }
        }
    }
}

#[inline]
fn of_addresses(seed: u64, source: IpAddr, destination: IpAddr, last: u64) -> u64 {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            hash(seed, [u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()), last])
        }
        _ => {
            let ([a, b], [c, d]) = (address_words(source), address_words(destination));
            hash(seed, [a, b, c, d, last])
        }
    }
}

/// An IPv6 address as two words; an IPv4 address as the IPv6 address that maps it (RFC 4291 section 2.5.5.2).
#[inline]
pub(crate) fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

#[inline]
fn mac_word(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
