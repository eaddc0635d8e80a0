//! The configuration, and defaults of the network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use path::{Bins, Policy, SourcePortRange};
use tables::Rebalance;
use wire::Vni;

use crate::sources::standalone::StandaloneVni;

/// The configuration. By default every VNI is taken over, with the settings of its netdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Only these VNIs are taken over. `None`: all of them.
    pub include: Option<BTreeSet<Vni>>,
    /// These VNIs stay with the kernel.
    pub exclude: BTreeSet<Vni>,
    /// These VNIs stay with the kernel because they were detached while the daemon ran.
    pub detached: BTreeSet<Vni>,
    /// Seed of every hash. Leaves with different seeds distribute the same flow differently.
    pub seed: u64,
    /// Whether a next hop that is new or has returned takes flows from the others.
    pub rebalance: Rebalance,
    /// Whether frames of hosts may use the bridge bypass.
    pub bypass: bool,
    /// How long zebra's entries are kept after its FPM connection was lost.
    pub stale_time: StaleTime,
    /// Limits for MAC addresses learned from received frames.
    pub learning: LearnLimits,
    /// Whether kernel VXLAN looks up the route for each frame whose source port vtepd chooses.
    pub route_per_frame: RoutePerFrame,
    /// VNIs without netdevs. If there are any, all netdevs stay with the kernel.
    pub standalone: Vec<StandaloneVni>,
    /// Settings of VNIs that are not in `vnis`.
    pub default: VniSettings,
    /// Settings of single VNIs. They are complete: nothing is inherited from `default`.
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

/// How long zebra's entries are kept after its FPM connection was lost, unless it repeats them
/// earlier.
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

/// Limits for MAC addresses learned from received frames. They bound the memory and CPU time that
/// forged addresses can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnLimits {
    /// Number of addresses of all netdevs that learn, together.
    pub total: usize,
    /// Number of known remote VTEPs at which no address is learned from a further one.
    pub vteps: usize,
    /// Moves of an address within a second. If it moves more often, further moves are refused and
    /// it is reported as flapping.
    pub moves: u32,
}

impl LearnLimits {
    /// The largest number of addresses or VTEPs.
    pub const MAX: usize = 1_000_000;
}

impl Default for LearnLimits {
    fn default() -> Self {
        Self { total: 65_536, vteps: 1024, moves: 5 }
    }
}

/// The datapath of a VNI: what encapsulates and decapsulates its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Datapath {
    /// A worker if it forwards as the kernel would, otherwise the kernel.
    Userspace,
    /// BPF programs, for flows whose path is decided; a worker for the rest. The kernel, where a
    /// worker would not forward as it does.
    Offload,
    /// Kernel VXLAN, with source ports that vtepd chooses.
    Kernel,
    /// `Offload`, but `Userspace` for standalone VNIs.
    #[default]
    Auto,
}

impl Datapath {
    /// Its name in the configuration and in all output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Userspace => "userspace",
            Self::Offload => "offload",
            Self::Kernel => "kernel",
            Self::Auto => "auto",
        }
    }
}

/// Whether kernel VXLAN looks up the route for each frame in the `kernel` datapath.
///
/// The kernel caches one route for each remote VTEP and CPU (`dst_cache`), so the CPU decides which
/// of several next hops a flow takes. A mark on the frame disables the cache
/// (`ip_tunnel_dst_cache_usable()`, `include/net/ip_tunnels.h`), which costs CPU time for each
/// frame (docs/adr/0014-kernel-datapath.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoutePerFrame {
    /// If a remote VTEP has several next hops, or if their number is unknown.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Where the flow label of outer IPv6 headers comes from, in the datapaths `userspace` and
/// `offload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowLabelSource {
    /// The outer UDP source port, unless the netdev has a label other than 0.
    #[default]
    SourcePort,
    /// The netdev in any case, as with kernel VXLAN.
    Netdev,
}

impl FlowLabelSource {
    /// Its name in the configuration and in all output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SourcePort => "source-port",
            Self::Netdev => "netdev",
        }
    }
}

/// The configuration of one VNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VniSettings {
    /// What encapsulates and decapsulates its frames.
    pub datapath: Datapath,
    /// The policy that chooses the outer source port.
    pub policy: Policy,
    /// Number of ports of `qp-bins`.
    pub bins: Bins,
    /// Outer source ports of `qp-hash`, `qp-bins` and `qp-pin`. `five-tuple` uses those of the
    /// netdev.
    pub source_ports: SourcePortRange,
    /// Where the flow label of outer IPv6 headers comes from.
    pub flow_label: FlowLabelSource,
    /// Outer TTL, 1 to 255, instead of the netdev's.
    pub ttl: Option<u8>,
    /// Whether frames are dropped if no FDB or flood list of a VNI taken over has their VTEP. The
    /// kernel accepts them.
    pub strict_vtep: bool,
    /// Number of addresses in the netdev's FDB at which no more are learned. The netdev's
    /// `maxaddress` is a further limit.
    pub addresses: usize,
}

impl Default for VniSettings {
    fn default() -> Self {
        Self {
            datapath: Datapath::default(),
            policy: Policy::default(),
            bins: Bins::default(),
            source_ports: SourcePortRange::default(),
            flow_label: FlowLabelSource::default(),
            ttl: None,
            strict_vtep: false,
            addresses: 16_384,
        }
    }
}

/// Values of the network namespace that apply where a netdev has none of its own.
///
/// The kernel sends no notification when they change. They are read at start and on reload, and
/// [`Defaults`] once a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespace {
    /// Default values.
    pub defaults: Defaults,
    /// Packet filters that see bridged frames.
    pub filters: Filters,
}

/// Packet filters of the namespace that may see every frame which a bridge forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filters {
    /// nftables has rules in the families bridge or netdev.
    pub bridge: bool,
    /// Legacy ebtables is loaded. Its rules cannot be read without creating its tables.
    pub ebtables: bool,
    /// nftables has rules for IP, or legacy iptables has a table.
    pub ip: bool,
    /// `net.bridge.bridge-nf-call-iptables` or `-ip6tables`: rules for IP see bridged frames.
    pub call_ip: bool,
    /// nftables has rules for IPv6 packets of this host, or legacy ip6tables has a table. Their
    /// rules are not read.
    pub ipv6: bool,
}

impl Filters {
    /// Reads them in the network namespace of the calling thread.
    #[must_use]
    pub fn read() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let on =
            |name: &str| text(&format!("/proc/sys/net/bridge/bridge-nf-call-{name}")).trim() == "1";
        let legacy = |ip: &str| !text(&format!("/proc/net/{ip}_tables_names")).is_empty();
        let nftables = netlink::packet_filters().unwrap_or_else(|error| {
            // A dump that changes keep interrupting means that there are rules. A kernel that
            // returns another error has none.
            let changing = matches!(error, netlink::Error::Interrupted { .. });
            netlink::PacketFilters { frames: changing, packets: changing, ipv6: changing }
        });
        Self {
            bridge: nftables.frames,
            ebtables: text("/proc/modules").lines().any(|module| module.starts_with("ebtable_")),
            ip: legacy("ip") || legacy("ip6") || nftables.packets,
            call_ip: on("iptables") || on("ip6tables"),
            ipv6: legacy("ip6") || nftables.ipv6,
        }
    }
}

/// What the kernel puts into packets where a netdev has no value of its own, and accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// `net.ipv4.ip_default_ttl`, 1 to 255.
    pub ttl: u8,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: SourcePortRange,
    /// `net.ipv4.conf.all.accept_local`: packets of others may have this host's own addresses as
    /// their source.
    pub accept_local: bool,
}

impl Defaults {
    /// Reads them in the network namespace of the calling thread; `None` if that fails.
    #[must_use]
    pub fn read() -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
        let ttl = read("ip_default_ttl")?.trim().parse().ok().filter(|ttl| *ttl > 0)?;
        let ports = read("ip_local_port_range")?;
        let mut bounds = ports.split_whitespace().map(str::parse);
        let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
        let accept_local = read("conf/all/accept_local")?.trim() != "0";
        Some(Self { ttl, local_ports: SourcePortRange::try_from((low, high)).ok()?, accept_local })
    }
}

impl Default for Defaults {
    /// Linux's own.
    fn default() -> Self {
        Self { ttl: 64, local_ports: SourcePortRange::KERNEL_DEFAULT, accept_local: false }
    }
}

impl Namespace {
    /// Reads them in the network namespace of the calling thread. Default values that cannot be
    /// read are replaced by Linux's own.
    #[must_use]
    pub fn read() -> Self {
        Self { defaults: Defaults::read().unwrap_or_default(), filters: Filters::read() }
    }
}
