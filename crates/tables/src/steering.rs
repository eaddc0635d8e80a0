//! The frames that BPF programs redirect to workers. `control` builds this plan, and `bpf`
//! applies it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use path::Entropy;
use wire::Vni;

use crate::bypass::BypassPort;
use crate::kernel_vni::PinnedTunnel;
use crate::snapshot::VniIndex;

/// Where a VNI comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VniSource {
    /// A vxlan netdev, by its interface index.
    Netdev(u32),
    /// The configuration (standalone mode), by its place there, from 0.
    Configured(u16),
}

impl VniSource {
    /// The interface index of the vxlan netdev, if there is one.
    #[must_use]
    pub const fn netdev(self) -> Option<u32> {
        match self {
            Self::Netdev(ifindex) => Some(ifindex),
            Self::Configured(_) => None,
        }
    }

    /// Whether the VNI comes from the configuration: there is no netdev.
    #[must_use]
    pub const fn is_configured(self) -> bool {
        matches!(self, Self::Configured(_))
    }
}

/// An Ethernet interface outside the bridges that a route to a VTEP uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uplink {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name, for logs.
    pub name: String,
}

/// A VNI that is taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenVni {
    /// The VNI.
    pub vni: Vni,
    /// Where it comes from.
    pub source: VniSource,
    /// Name of its vxlan netdev or of the configured VNI, for logs.
    pub name: String,
    /// Its index in the snapshot.
    pub index: VniIndex,
    /// This leaf's VTEP address.
    pub local: IpAddr,
    /// The UDP port of received packets.
    pub destination_port: u16,
    /// Longest Ethernet frame that fits the underlay when it is encapsulated, in bytes, with header
    /// and inner tags. Longer frames stay with the kernel, which fragments them or answers with an
    /// ICMP error.
    pub frame_limit: u32,
}

impl TakenVni {
    /// Whether at most the frame limit or the name differs, so that the VNI need not be given back
    /// before it changes.
    #[must_use]
    pub fn is_same_place(&self, new: &Self) -> bool {
        let Self { vni, source, index, local, destination_port, name: _, frame_limit: _ } = self;
        (vni, source, index, local, destination_port)
            == (&new.vni, &new.source, &new.index, &new.local, &new.destination_port)
    }
}

/// The outer source port policy for frames that kernel VXLAN encapsulates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortChoice {
    /// Interface index of the vxlan netdev.
    pub ifindex: u32,
    /// Name of the vxlan netdev, for logs.
    pub name: String,
    /// The policy. `five-tuple` is the kernel's own hash.
    pub entropy: Entropy,
    /// Policies of single VNIs of an `external` netdev.
    pub vnis: BTreeMap<Vni, Entropy>,
    /// Whether the netdev is `external`: packets bring their VNI as tunnel metadata.
    pub external: bool,
    /// The range to which the kernel scales its hash: `srcport MIN MAX`. The kernel never uses MAX.
    pub kernel_ports: (u16, u16),
    /// Whether the kernel looks up the route for each frame instead of using the per-CPU cached
    /// route.
    pub route_per_frame: bool,
    /// The tunnel, if `qp-pin` places its queue pairs.
    pub pins: Option<PinnedTunnel>,
}

/// What programs redirect, and how: uplinks, VNIs, host ports and source port policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SteeringPlan {
    /// Interfaces with a program at their ingress.
    pub uplinks: BTreeSet<Uplink>,
    /// Uplinks with a reverse path filter, by interface index, and the sources whose packets are
    /// redirected there. Packets from other sources stay with the kernel.
    pub checked_sources: BTreeMap<u32, BTreeSet<Ipv4Addr>>,
    /// VNIs taken over.
    pub vnis: BTreeMap<VniSource, TakenVni>,
    /// Host ports with the bridge bypass, or with a program that only watches source addresses, by
    /// interface index.
    pub ports: BTreeMap<u32, BypassPort>,
    /// Source port policies for frames that the kernel encapsulates, by the interface index of the
    /// vxlan netdev.
    pub choices: BTreeMap<u32, PortChoice>,
}

impl SteeringPlan {
    /// The source port policy for frames of a VNI that the kernel encapsulates.
    #[must_use]
    pub fn choice_of(&self, source: VniSource) -> Option<&PortChoice> {
        self.choices.get(&source.netdev()?)
    }

    /// Whether this vxlan netdev has a program at its egress.
    #[must_use]
    pub fn is_hooked(&self, ifindex: u32) -> bool {
        self.vnis.contains_key(&VniSource::Netdev(ifindex)) || self.choices.contains_key(&ifindex)
    }

    /// Interface indices of all vxlan netdevs with a program at their egress.
    pub fn hooked(&self) -> impl Iterator<Item = u32> + '_ {
        let taken = |ifindex: &u32| self.vnis.contains_key(&VniSource::Netdev(*ifindex));
        let others = self.choices.keys().copied().filter(move |ifindex| !taken(ifindex));
        self.vnis.keys().filter_map(|source| source.netdev()).chain(others)
    }
}
