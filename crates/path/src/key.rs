//! Hash keys of frames, and the reasons for their choice.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::number::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PORT_ROCE, PROTOCOL_UDP};
use wire::{Dissection, Fragment, MacAddr, Network, QueuePair, as_ipv6};

use crate::hash::hash;
use crate::policy::Policy;

/// The fields of a frame that its source port depends on. VLAN tags are never included, so a flow
/// keeps its path when tags change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// RoCE. All opcodes, sequence numbers and inner source ports of a queue pair have the same
    /// key.
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
    /// IP without usable ports, and all fragments of a datagram.
    Addresses {
        /// Inner source address.
        source: IpAddr,
        /// Inner destination address.
        destination: IpAddr,
        /// IP protocol number; the same in every fragment.
        protocol: u8,
    },
    /// A frame that is not IP.
    Macs {
        /// Source MAC address.
        source: MacAddr,
        /// Destination MAC address.
        destination: MacAddr,
        /// EtherType behind the VLAN tags.
        ethertype: u16,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueuePair { source, destination, queue_pair } => {
                write!(f, "queue pair {queue_pair}, {source} to {destination}")
            }
            Self::FiveTuple { source, destination, protocol, source_port, destination_port } => {
                write!(
                    f,
                    "protocol {protocol}, {source} port {source_port} to {destination} port {destination_port}"
                )
            }
            Self::Addresses { source, destination, protocol } => {
                write!(f, "protocol {protocol}, {source} to {destination}")
            }
            Self::Macs { source, destination, ethertype } => {
                write!(f, "EtherType {ethertype:#06x}, {source} to {destination}")
            }
        }
    }
}

/// The reason why a frame has its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A complete RoCEv2 base transport header.
    Roce,
    /// RoCE, but the policy uses the inner five-tuple only.
    RoceByFiveTuple,
    /// A UDP datagram to the RoCE port that is too short for a base transport header.
    TruncatedRoce,
    /// A complete transport flow that is not RoCE.
    NotRoce,
    /// The first fragment of a datagram. Its ports are not used, because later fragments have none.
    FirstFragment,
    /// A later fragment of a datagram.
    LaterFragment,
    /// A protocol without ports.
    NoPorts,
    /// The transport header is truncated, or contradicts the length of the datagram or the frame.
    BrokenTransport,
    /// The EtherType is that of IP, but the IP header is invalid or truncated.
    BrokenIp,
    /// Not IP.
    NotIp,
}

impl Reason {
    /// The reason as text, for reports.
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
    /// The key of a frame under `policy`, the reason for it, and its hash under `seed`.
    ///
    /// The hash equals [`Key::hash`]. It is computed here because the address family is known,
    /// which saves a second match.
    #[inline(always)]
    pub(crate) fn of(frame: &Dissection, policy: Policy, seed: u64) -> (Self, Reason, u64) {
        match &frame.network {
            Network::Ipv4(ip) => {
                let (source, destination) = (IpAddr::V4(ip.source), IpAddr::V4(ip.destination));
                let (key, reason) =
                    Self::of_ip(frame, policy, source, destination, ip.protocol, ip.fragment);
                (key, reason, hash_v4(seed, ip.source, ip.destination, key.last_word()))
            }
            Network::Ipv6(ip) => {
                let (source, destination) = (IpAddr::V6(ip.source), IpAddr::V6(ip.destination));
                let (key, reason) =
                    Self::of_ip(frame, policy, source, destination, ip.protocol, ip.fragment);
                (key, reason, hash_v6(seed, ip.source, ip.destination, key.last_word()))
            }
            Network::Other => {
                let Dissection { source, destination, ethertype, .. } = *frame;
                let broken = matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
                let reason = if broken { Reason::BrokenIp } else { Reason::NotIp };
                let key = Self::Macs { source, destination, ethertype };
                (key, reason, hash_macs(seed, source, destination, key.last_word()))
            }
        }
    }

    #[inline(always)]
    fn of_ip(
        frame: &Dissection,
        policy: Policy,
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        fragment: Fragment,
    ) -> (Self, Reason) {
        if let Some(roce) = frame.roce
            && policy != Policy::FiveTuple
        {
            return (
                Self::QueuePair { source, destination, queue_pair: roce.destination },
                Reason::Roce,
            );
        }
        let addresses = Self::Addresses { source, destination, protocol };
        match fragment {
            Fragment::First => return (addresses, Reason::FirstFragment),
            Fragment::Later => return (addresses, Reason::LaterFragment),
            Fragment::Whole => {}
        }
        let Some(transport) = frame.transport else { return (addresses, Reason::BrokenTransport) };
        let Some((source_port, destination_port)) = transport.ports else {
            let reason =
                if transport.has_ports() { Reason::BrokenTransport } else { Reason::NoPorts };
            return (addresses, reason);
        };
        let reason = if frame.roce.is_some() {
            Reason::RoceByFiveTuple
        } else if transport.protocol == PROTOCOL_UDP && destination_port == PORT_ROCE {
            Reason::TruncatedRoce
        } else {
            Reason::NotRoce
        };
        let protocol = transport.protocol;
        (Self::FiveTuple { source, destination, protocol, source_port, destination_port }, reason)
    }

    /// Whether it is that of a management queue pair: 0 or 1 (InfiniBand architecture 3.9.3).
    #[must_use]
    pub const fn is_management(&self) -> bool {
        matches!(self, Self::QueuePair { queue_pair, .. } if queue_pair.get() <= 1)
    }

    /// The hash of the key under `seed`.
    #[must_use]
    pub fn hash(&self, seed: u64) -> u64 {
        let last = self.last_word();
        match *self {
            Self::QueuePair { source, destination, .. }
            | Self::FiveTuple { source, destination, .. }
            | Self::Addresses { source, destination, .. } => {
                hash_addresses(seed, source, destination, last)
            }
            Self::Macs { source, destination, .. } => hash_macs(seed, source, destination, last),
        }
    }

    /// The part of the key without addresses. Each kind of key has its own tag in it.
    #[inline(always)]
    fn last_word(&self) -> u64 {
        match *self {
            Self::QueuePair { queue_pair, .. } => 1 << 48 | u64::from(queue_pair.get()),
            Self::FiveTuple { protocol, source_port, destination_port, .. } => {
                let ports = u64::from(source_port) << 16 | u64::from(destination_port);
                2 << 48 | u64::from(protocol) << 32 | ports
            }
            Self::Addresses { protocol, .. } => 3 << 48 | u64::from(protocol),
            Self::Macs { ethertype, .. } => 4 << 48 | u64::from(ethertype),
        }
    }
}

/// Hashes two addresses and a word. Callers pass addresses of one family; a mixed pair would be
/// hashed as IPv6.
#[inline(always)]
pub(crate) fn hash_addresses(seed: u64, source: IpAddr, destination: IpAddr, last: u64) -> u64 {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => hash_v4(seed, source, destination, last),
        _ => hash_v6(seed, as_ipv6(source), as_ipv6(destination), last),
    }
}

#[inline(always)]
fn hash_v4(seed: u64, source: Ipv4Addr, destination: Ipv4Addr, last: u64) -> u64 {
    hash(seed, [u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()), last])
}

#[inline(always)]
fn hash_v6(seed: u64, source: Ipv6Addr, destination: Ipv6Addr, last: u64) -> u64 {
    let [a, b] = words(source);
    let [c, d] = words(destination);
    hash(seed, [a, b, c, d, last])
}

#[inline(always)]
fn hash_macs(seed: u64, source: MacAddr, destination: MacAddr, last: u64) -> u64 {
    hash(seed, [word(source), word(destination), last])
}

#[inline(always)]
fn words(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

#[inline(always)]
fn word(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}
