//! What the user sets, and what the namespace has set already.

use std::collections::{BTreeMap, BTreeSet};

use entropy::{Bins, Policy, SourcePortRange};
use wire::Vni;

/// The user's wishes. The default takes every VNI over and follows the netdevs in everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Only these VNIs are taken over; all of them if absent.
    pub include: Option<BTreeSet<Vni>>,
    /// These VNIs are left to the kernel.
    pub exclude: BTreeSet<Vni>,
    /// Seed of every hash: leaves with different seeds place the same flow differently.
    pub seed: u64,
    /// For the VNIs without settings of their own.
    pub default: VniSettings,
    /// Settings of single VNIs, complete: nothing is inherited from `default`.
    pub vnis: BTreeMap<Vni, VniSettings>,
}

impl Settings {
    /// The settings of one VNI.
    #[must_use]
    pub fn of(&self, vni: Vni) -> &VniSettings {
        self.vnis.get(&vni).unwrap_or(&self.default)
    }
}

/// The user's wishes for one VNI.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VniSettings {
    /// Who picks the outer source port.
    pub policy: Policy,
    /// Number of ports of `qp-bins`.
    pub bins: Bins,
    /// Outer source ports of `qp-hash` and `qp-bins`; `five-tuple` has those of the netdev.
    pub source_ports: SourcePortRange,
    /// Outer TTL, 1 to 255, instead of the netdev's.
    pub ttl: Option<u8>,
    /// Whether frames from a VTEP that neither FDB nor flood list names are dropped. The kernel accepts them.
    pub strict_vtep: bool,
}

/// Values of the namespace that stand in where a netdev says "default".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// `net.ipv4.ip_default_ttl`, 1 to 255.
    pub default_ttl: u8,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: SourcePortRange,
}

impl Default for Namespace {
    /// What Linux starts with.
    fn default() -> Self {
        Self { default_ttl: 64, local_ports: SourcePortRange::KERNEL_DEFAULT }
    }
}
