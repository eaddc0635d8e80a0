//! Which frames the steering programs redirect to the worker: the control room's wish, applied by
//! `ports`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use entropy::Entropy;
use wire::Vni;

use crate::bypass::BypassPort;
use crate::snapshot::Slot;

/// Interface indices from here on are no interface's (the kernel's are positive `int`s): those of
/// VNIs without netdev.
pub const FIRST_VIRTUAL: u32 = 1 << 31;

/// An Ethernet interface outside the bridges that a route to a VTEP uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uplink {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name, for logs.
    pub name: String,
}

/// A VNI whose frames are redirected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenVni {
    /// The VNI.
    pub vni: Vni,
    /// Interface index of its vxlan netdev.
    pub ifindex: u32,
    /// Name of its vxlan netdev, for logs.
    pub name: String,
    /// The tag that numbers it on the bridge punt pair.
    pub slot: Slot,
    /// This leaf's VTEP address.
    pub local: Ipv4Addr,
    /// The UDP port it is listened to on.
    pub destination_port: u16,
    /// Longest Ethernet frame, in bytes with header and inner tags, that fits the underlay once
    /// encapsulated; longer ones stay the kernel's, which fragments or answers them.
    pub frame_limit: u32,
}

/// How the outer source port of frames is chosen that kernel VXLAN encapsulates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortChoice {
    /// Interface index of the vxlan netdev.
    pub ifindex: u32,
    /// Name of the vxlan netdev, for logs.
    pub name: String,
    /// The policy. `five-tuple` is the kernel's own hash.
    pub entropy: Entropy,
    /// Policies of single VNIs of a netdev that serves many (`external`).
    pub vnis: BTreeMap<Vni, Entropy>,
    /// Whether packets bring their VNI (`external`).
    pub external: bool,
    /// The range that the kernel scales its hash to: `srcport MIN MAX`, of which MAX is never used.
    pub kernel_ports: (u16, u16),
    /// Whether the kernel is made to look up the route for each frame, and not once for each CPU.
    pub route_per_frame: bool,
}

/// Everything that is to be redirected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SteeringPlan {
    /// Interfaces whose ingress is steered.
    pub uplinks: BTreeSet<Uplink>,
    /// Uplinks with a reverse path filter, by interface index, and the sources whose packets are
    /// redirected there: the others are the kernel's.
    pub checked_sources: BTreeMap<u32, BTreeSet<Ipv4Addr>>,
    /// VNIs taken over, by the interface index of their vxlan netdev.
    pub vnis: BTreeMap<u32, TakenVni>,
    /// Ports of bridges that have the bypass, or only listen for it, by interface index.
    pub ports: BTreeMap<u32, BypassPort>,
    /// How source ports are chosen for what the kernel encapsulates, by the interface index of the
    /// vxlan netdev.
    pub choices: BTreeMap<u32, PortChoice>,
}

impl SteeringPlan {
    /// Whether a program is at the egress of this vxlan netdev.
    #[must_use]
    pub fn is_hooked(&self, ifindex: u32) -> bool {
        self.vnis.contains_key(&ifindex) || self.choices.contains_key(&ifindex)
    }

    /// Interface indices of all vxlan netdevs with a program at their egress.
    pub fn hooked(&self) -> impl Iterator<Item = u32> + '_ {
        let others = self.choices.keys().filter(|ifindex| !self.vnis.contains_key(ifindex));
        self.vnis.keys().chain(others).copied()
    }
}
