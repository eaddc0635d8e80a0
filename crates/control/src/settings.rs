//! What the user sets, and what the namespace has set already.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use entropy::{Bins, Policy, SourcePortRange};
use tables::Rebalance;
use wire::Vni;

use crate::standalone::StandaloneVni;

/// The user's wishes. The default takes every VNI over and follows the netdevs in everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Only these VNIs are taken over; all of them if absent.
    pub include: Option<BTreeSet<Vni>>,
    /// These VNIs are left to the kernel.
    pub exclude: BTreeSet<Vni>,
    /// These VNIs are left to the kernel as well, because somebody said so while the daemon ran.
    pub detached: BTreeSet<Vni>,
    /// Seed of every hash: leaves with different seeds place the same flow differently.
    pub seed: u64,
    /// Whether a next hop that is new or came back takes flows from the others.
    pub rebalance: Rebalance,
    /// Whether hosts' frames for known remote MAC addresses skip the bridge where they can.
    pub bypass: bool,
    /// How long what zebra said is kept when its FPM connection is lost.
    pub stale_time: StaleTime,
    /// How much may be learned from received frames.
    pub learning: LearnLimits,
    /// Whether kernel VXLAN looks up the route for each frame whose source port is chosen here.
    pub route_per_frame: RoutePerFrame,
    /// VNIs without netdevs. Where there are any, netdevs stay with the kernel.
    pub standalone: Vec<StandaloneVni>,
    /// For the VNIs without settings of their own.
    pub default: VniSettings,
    /// Settings of single VNIs, complete: nothing is inherited from `default`.
    pub vnis: BTreeMap<Vni, VniSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            include: None,
            exclude: BTreeSet::new(),
            detached: BTreeSet::new(),
            seed: 0,
            rebalance: Rebalance::default(),
            bypass: true,
            stale_time: StaleTime::default(),
            learning: LearnLimits::default(),
            route_per_frame: RoutePerFrame::default(),
            standalone: Vec::new(),
            default: VniSettings::default(),
            vnis: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// The settings of one VNI.
    #[must_use]
    pub fn of(&self, vni: Vni) -> &VniSettings {
        self.vnis.get(&vni).unwrap_or(&self.default)
    }
}

/// How long what zebra said over a lost FPM connection is kept, unless it comes back and says it
/// again.
///
/// The default is FRR's own for a restart, `bgp graceful-restart restart-time`
/// (`BGP_DEFAULT_RESTART_TIME`, `bgpd/bgpd.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleTime(pub Duration);

impl Default for StaleTime {
    fn default() -> Self {
        Self(Duration::from_secs(120))
    }
}

/// How much may be learned from received frames: made-up addresses must not fill the memory, nor
/// keep anybody busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnLimits {
    /// Addresses of all netdevs that learn, together.
    pub total: usize,
    /// Remote VTEPs that may be known for an address to be learned from one that is not.
    pub vteps: usize,
    /// Moves of an address in a second; one that is to move more often stays where it is, and is
    /// called flapping.
    pub moves: u32,
}

impl LearnLimits {
    /// Of any number.
    pub const MAX: usize = 1_000_000;
}

impl Default for LearnLimits {
    fn default() -> Self {
        Self { total: 65_536, vteps: 1024, moves: 5 }
    }
}

/// Who encapsulates and decapsulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Datapath {
    /// A worker, where it forwards as the kernel would; else the kernel.
    #[default]
    Userspace,
    /// Kernel VXLAN, with source ports that are chosen here.
    Kernel,
}

impl Datapath {
    /// Its name in the configuration and wherever it is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Userspace => "userspace",
            Self::Kernel => "kernel",
        }
    }
}

/// Whether kernel VXLAN looks up the route for each frame in the `kernel` datapath.
///
/// It keeps one route for each remote VTEP and CPU (`dst_cache`), so the CPU decides which next hop
/// of several a flow takes. A mark on the frame makes it look up the route each time
/// (`ip_tunnel_dst_cache_usable()`, `include/net/ip_tunnels.h`); that costs about a seventh of the
/// CPU time of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoutePerFrame {
    /// Where a remote VTEP has several next hops, or where that is not known.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The user's wishes for one VNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VniSettings {
    /// Who encapsulates and decapsulates.
    pub datapath: Datapath,
    /// Who picks the outer source port.
    pub policy: Policy,
    /// Number of ports of `qp-bins`.
    pub bins: Bins,
    /// Outer source ports of `qp-hash` and `qp-bins`; `five-tuple` has those of the netdev.
    pub source_ports: SourcePortRange,
    /// Outer TTL, 1 to 255, instead of the netdev's.
    pub ttl: Option<u8>,
    /// Whether frames from a VTEP that neither FDB nor flood list names are dropped. The kernel
    /// accepts them.
    pub strict_vtep: bool,
    /// Addresses that the netdev's FDB may hold for more to be learned, whatever its `maxaddress`
    /// allows.
    pub addresses: usize,
}

impl Default for VniSettings {
    fn default() -> Self {
        Self {
            datapath: Datapath::default(),
            policy: Policy::default(),
            bins: Bins::default(),
            source_ports: SourcePortRange::default(),
            ttl: None,
            strict_vtep: false,
            addresses: 16_384,
        }
    }
}

/// Values of the namespace that stand in where a netdev says "default".
///
/// The kernel sends no event when they change, so they are read at start, on reload, and
/// [`Defaults`] once a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// `net.ipv4.ip_default_ttl`, 1 to 255.
    pub default_ttl: u8,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: SourcePortRange,
    /// A packet filter that sees what bridges forward.
    pub filters: Filters,
}

/// Packet filters of the namespace, which may look at every frame that a bridge forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filters {
    /// nftables has rules for bridges or for single interfaces.
    pub bridge: bool,
    /// Legacy ebtables is there. What rules it has cannot be asked without making its tables.
    pub ebtables: bool,
    /// nftables has rules for IP, or legacy iptables a table.
    pub ip: bool,
    /// `net.bridge.bridge-nf-call-iptables` or `-ip6tables`: what is for IP sees what bridges
    /// forward.
    pub call_ip: bool,
}

impl Filters {
    /// Reads them in the calling thread's network namespace.
    #[must_use]
    pub fn read() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let on =
            |name: &str| text(&format!("/proc/sys/net/bridge/bridge-nf-call-{name}")).trim() == "1";
        let legacy = ["ip", "ip6"]
            .iter()
            .any(|ip| !text(&format!("/proc/net/{ip}_tables_names")).is_empty());
        let nftables = netlink::packet_filters().unwrap_or_else(|error| {
            // Rules that change all the time are there; a kernel that does not tell has none.
            let changing = matches!(error, netlink::Error::Interrupted { .. });
            netlink::PacketFilters { frames: changing, packets: changing }
        });
        Self {
            bridge: nftables.frames,
            ebtables: text("/proc/modules").lines().any(|module| module.starts_with("ebtable_")),
            ip: legacy || nftables.packets,
            call_ip: on("iptables") || on("ip6tables"),
        }
    }
}

/// What the kernel puts into packets whose netdev names nothing itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// `net.ipv4.ip_default_ttl`, 1 to 255.
    pub ttl: u8,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: SourcePortRange,
}

impl Defaults {
    /// Reads them in the calling thread's network namespace; `None` where that fails.
    #[must_use]
    pub fn read() -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        let ttl = read("ip_default_ttl")?.trim().parse().ok().filter(|ttl| *ttl > 0)?;
        let ports = read("ip_local_port_range")?;
        let mut bounds = ports.split_whitespace().map(str::parse);
        let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
        Some(Self { ttl, local_ports: SourcePortRange::try_from((low, high)).ok()? })
    }
}

impl Namespace {
    pub(crate) const fn defaults(&self) -> Defaults {
        Defaults { ttl: self.default_ttl, local_ports: self.local_ports }
    }

    pub(crate) const fn set_defaults(&mut self, Defaults { ttl, local_ports }: Defaults) {
        (self.default_ttl, self.local_ports) = (ttl, local_ports);
    }

    /// Reads them in the calling thread's network namespace. What cannot be read is as Linux starts
    /// with.
    #[must_use]
    pub fn read() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        let ttl =
            read("ip_default_ttl").and_then(|text| text.trim().parse().ok()).filter(|ttl| *ttl > 0);
        let ports = read("ip_local_port_range").and_then(|text| {
            let mut bounds = text.split_whitespace().map(str::parse);
            let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
            SourcePortRange::try_from((low, high)).ok()
        });
        let default = Self::default();
        Self {
            default_ttl: ttl.unwrap_or(default.default_ttl),
            local_ports: ports.unwrap_or(default.local_ports),
            filters: Filters::read(),
        }
    }
}

impl Default for Namespace {
    /// What Linux starts with.
    fn default() -> Self {
        Self {
            default_ttl: 64,
            local_ports: SourcePortRange::KERNEL_DEFAULT,
            filters: Filters::default(),
        }
    }
}
