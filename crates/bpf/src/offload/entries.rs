//! The entries of the offload's maps (`programs/offload.bpf.h`).

use std::net::{IpAddr, Ipv6Addr};

use path::{BUCKETS, NextHop, Policy};
use tables::{DontFragment, FlowLabel, Learning, Tos, Ttl, VniTable};

shared! {
    /// `struct offload_vni` of the programs.
    #[derive(PartialEq, Eq)]
    pub(crate) struct VniEntry {
        pub(crate) state: u64,
        pub(crate) local: [u32; 4],
        pub(crate) vni: u32,
        pub(crate) label: u32,
        pub(crate) destination_port: u16,
        pub(crate) min: u16,
        pub(crate) ports: u16,
        pub(crate) bins: u16,
        pub(crate) flags: u16,
        pub(crate) tos: u8,
        pub(crate) ttl: u8,
        pub(crate) mac: [u8; 6],
        pub(crate) zero: [u8; 2],
        pub(crate) refresh: u32,
    }

    /// `struct offload_hop` of the programs.
    #[derive(PartialEq, Eq, Hash)]
    pub(crate) struct HopEntry {
        pub(crate) ifindex: u32,
        pub(crate) mtu: u32,
        pub(crate) destination: [u8; 6],
        pub(crate) source: [u8; 6],
        pub(crate) path: u16,
        pub(crate) by_default: u8,
        pub(crate) impaired: u8,
    }

    /// `struct offload_address` of the programs.
    #[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub(crate) struct AddressEntry {
        pub(crate) words: [u32; 4],
    }

    /// `struct offload_group` of the programs.
    #[derive(PartialEq, Eq, Hash)]
    pub(crate) struct GroupEntry {
        pub(crate) hops: [u16; BUCKETS],
    }
}

/// Flags of a VNI (`OFFLOAD_FIVE_TUPLE` and so on in the programs).
pub(crate) const FIVE_TUPLE: u16 = 1;
pub(crate) const TOS_INHERIT: u16 = 2;
pub(crate) const TTL_INHERIT: u16 = 4;
pub(crate) const DF_SET: u16 = 8;
pub(crate) const DF_INHERIT: u16 = 16;
pub(crate) const CHECKSUM: u16 = 32;
pub(crate) const LEARNS: u16 = 64;
pub(crate) const IPV6: u16 = 128;
pub(crate) const NO_CHECKSUM: u16 = 256;
pub(crate) const PINS: u16 = 512;
pub(crate) const PORT_LABEL: u16 = 1024;

/// Times of learning are in units of two to this power of nanoseconds (`LEARN_UNIT_SHIFT` of the
/// programs).
pub(crate) const LEARN_UNIT_SHIFT: u32 = 20;

/// After how many units the worker sees a known source address again; 0: never. It does so twice for
/// each of its reports, so that none waits long for a frame.
fn refresh(learning: &Learning) -> u32 {
    let interval = learning.ageing.map(|ageing| ageing / (2 * Learning::REFRESHES));
    let units = interval.map_or(0, |interval| (interval.as_nanos() >> LEARN_UNIT_SHIFT).max(1));
    u32::try_from(units).unwrap_or(u32::MAX / 2)
}

/// The octets of an IPv6 address, as the programs read them.
pub(crate) fn words_of_ipv6(address: Ipv6Addr) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, octets) in words.iter_mut().zip(address.octets().as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*octets);
    }
    words
}

/// The octets of an address. That of IPv4 is in the first word.
pub(crate) fn words_of(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
        IpAddr::V6(address) => words_of_ipv6(address),
    }
}

impl VniEntry {
    /// The settings of a VNI.
    pub(crate) fn of(table: &VniTable) -> Self {
        let VniTable { tunnel, entropy, mac, learning, .. } = table;
        let (tos, tos_flag) = match tunnel.tos {
            Tos::Fixed(tos) => (tos, 0),
            Tos::Inherit => (0, TOS_INHERIT),
        };
        let (ttl, ttl_flag) = match tunnel.ttl {
            Ttl::Fixed(ttl) => (ttl, 0),
            Ttl::Inherit { default } => (default, TTL_INHERIT),
        };
        let df = match tunnel.df {
            DontFragment::Unset => 0,
            DontFragment::Set => DF_SET,
            DontFragment::Inherit => DF_INHERIT,
        };
        let (label, label_flag) = match tunnel.flow_label {
            FlowLabel::SourcePort => (0, PORT_LABEL),
            FlowLabel::Fixed(label) => (label & 0xf_ffff, 0),
        };
        let range = entropy.range();
        let (ports, policy) = match entropy.policy() {
            // The kernel never uses the last port.
            Policy::FiveTuple => (range.max() - range.min(), FIVE_TUPLE),
            Policy::QpHash | Policy::QpBins | Policy::QpPin | Policy::Spray => (range.ports(), 0),
        };
        let set = |flag, wanted| if wanted { flag } else { 0 };
        Self {
            state: path::hash::begin(entropy.seed()),
            local: words_of(tunnel.local),
            vni: (tunnel.vni.get() << 8).to_be(),
            label,
            destination_port: tunnel.destination_port.to_be(),
            min: range.min(),
            ports,
            bins: entropy.bins().map_or(0, |bins| bins.get()),
            flags: policy
                | tos_flag
                | ttl_flag
                | df
                | label_flag
                | set(CHECKSUM, tunnel.udp_checksum)
                | set(LEARNS, learning.is_some())
                | set(IPV6, tunnel.local.is_ipv6())
                | set(PINS, entropy.policy() == Policy::QpPin)
                | set(NO_CHECKSUM, tunnel.accepts_no_checksum),
            tos,
            ttl,
            mac: mac.unwrap_or_default().0,
            zero: [0; 2],
            refresh: learning.as_ref().map_or(0, refresh),
        }
    }
}

impl HopEntry {
    /// A next hop. Without a MAC address, the worker gets its frames.
    pub(crate) fn of(hop: &NextHop) -> Self {
        Self {
            ifindex: hop.destination_mac.map_or(0, |_| hop.ifindex),
            mtu: hop.mtu,
            destination: hop.destination_mac.unwrap_or_default().0,
            source: hop.source_mac.0,
            path: hop.path,
            by_default: hop.by_default.into(),
            impaired: hop.impaired.into(),
        }
    }
}
