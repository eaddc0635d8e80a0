//! The sections of the configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use api::Address;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::arguments::{DatapathChoice, FlowLabelChoice, HookChoice, RoutePerFrameChoice};
use crate::standalone;

/// The configuration file. Everything has a default; unknown keys are errors.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct File {
    /// Where it was read from.
    #[serde(skip)]
    pub(super) path: Option<PathBuf>,
    /// Which VNIs are taken over, and how frames are forwarded.
    pub(super) takeover: TakeoverSection,
    /// The source port policy of all VNIs, and the flow label over IPv6.
    pub(super) entropy: EntropySection,
    /// How the paths of `qp-pin` and `spray` are found.
    pub(super) probing: ProbingSection,
    /// How the policy `spray` deals packets to paths. Changes take effect at the next start.
    pub(super) spraying: SprayingSection,
    /// Limits for what is learned from received frames.
    pub(super) learning: LearningSection,
    /// Next hops.
    pub(super) underlay: UnderlaySection,
    /// One VNI, `[vni.N]`. A key that is not set is as for all VNIs.
    pub(super) vni: BTreeMap<String, VniSection>,
    /// A VNI without kernel bridge and netdev, `[[standalone]]`. While there is one, vxlan netdevs
    /// stay with the kernel, and FPM is off. Changes take effect at the next start.
    #[serde(deserialize_with = "standalone::sections")]
    #[cfg_attr(test, schemars(with = "Vec<standalone::Section>"))]
    pub(super) standalone: Vec<standalone::Section>,
    /// zebra's FPM stream.
    pub(super) fpm: FpmSection,
    /// OpenMetrics for Prometheus.
    pub(super) metrics: MetricsSection,
    /// The gRPC API, which `vtepctl` uses.
    pub(super) api: ApiSection,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct TakeoverSection {
    /// VNIs to take over. Default: every VNI found.
    pub(super) vnis: Option<Vec<u32>>,
    /// VNIs to leave to the kernel.
    pub(super) exclude: Vec<u32>,
    /// How BPF programs are attached. `auto`: tcx links where the kernel has them (Linux 6.6),
    /// clsact filters elsewhere. Takes effect at the next start. Default: `auto`.
    pub(super) hook: Option<HookChoice>,
    /// Set `/sys/kernel/rcu_expedited` while 16 programs or more, or those of host ports, are
    /// attached or detached. They are then attached in less than a millisecond each instead of 7
    /// to 31. The switch belongs to the whole machine and interrupts all its CPUs. Takes effect at
    /// the next start. Default: `false`.
    pub(super) expedited_rcu: bool,
    /// Who forwards, where it does so as the kernel would: `offload` (BPF programs, and a worker for
    /// what is not decided yet), `userspace` (a worker), `kernel` (kernel VXLAN, with source ports
    /// that vtepd chooses) or `auto` (`offload`, but `userspace` for standalone VNIs). Default:
    /// `auto`.
    pub(super) datapath: Option<DatapathChoice>,
    /// Whether kernel VXLAN looks up the route for each frame, by a mark on the frame. `auto`: for
    /// VNIs in the `kernel` datapath with several next hops to a VTEP. Default: `auto`.
    pub(super) route_per_frame: RoutePerFrameChoice,
    /// Drop frames from VTEPs that no table names. Default: `false`.
    pub(super) strict_vtep: bool,
    /// Let known unicast of hosts skip the kernel bridge, in both directions. Default: `true`.
    pub(super) bridge_bypass: Option<bool>,
    /// Milliseconds that frames wait for a hanging worker before the kernel forwards, 20 to 10000.
    /// Takes effect at the next start. Default: 200.
    pub(super) stall_limit_ms: Option<u64>,
    /// Run the worker before ordinary threads while it has little to do. Takes effect at the next
    /// start. Default: `true`.
    pub(super) realtime: Option<bool>,
    /// Send frames together as super-frames; `false`: each by itself. Takes effect at the next
    /// start. Default: `true`.
    pub(super) gso: Option<bool>,
    /// The worker never sleeps and keeps a core busy. Takes effect at the next start. Default:
    /// `false`.
    pub(super) busy_poll: bool,
    /// Threads that forward, 1 to 8. Takes effect at the next start. Default: 1.
    pub(super) workers: Option<usize>,
    /// The CPU of each worker, on which it stays. Takes effect at the next start. Default: chosen
    /// at the start among the CPUs with the fewest workers of other vtepd processes.
    pub(super) cpus: Vec<usize>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct EntropySection {
    /// How the outer UDP source port is chosen: `qp-hash`, `qp-bins`, `qp-pin`, `spray` or
    /// `five-tuple`. `qp-pin` and `spray` need `probing.key`. Default: `qp-hash`.
    pub(super) policy: Option<String>,
    /// Number of source ports of `qp-bins`, 1 to 65535. Default: 4.
    pub(super) bins: Option<u16>,
    /// Seed of the hashes. Default: 0.
    pub(super) seed: Option<u64>,
    /// Outer source ports of all policies but `five-tuple`, `"MIN-MAX"`. Default: `"49152-65535"`.
    pub(super) source_ports: Option<String>,
    /// Flow label of outer IPv6 headers: `source-port` (the outer UDP source port, if the netdev has
    /// no `flowlabel` of its own) or `netdev` (always the netdev's, as with kernel VXLAN). The
    /// `kernel` datapath always has the netdev's. Default: `source-port`.
    pub(super) flow_label: Option<FlowLabelChoice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct ProbingSection {
    /// The secret that all leaves share, 16 to 32 bytes. With it, vtepd answers probes of other
    /// leaves. Nobody else should be able to read the file. Changes of this section take effect at
    /// the next start. Default: none, and no probes.
    pub(super) key: Option<String>,
    /// A file with nothing but the secret, instead of `key`. A line feed at its end does not count. A
    /// relative path begins at the folder of the configuration file. Default: none.
    pub(super) key_file: Option<PathBuf>,
    /// How often a path in use is probed, in milliseconds, 10 to 1000. Default: 50.
    pub(super) interval_ms: Option<u64>,
    /// Gone, with BFD over VXLAN. Read to say so.
    #[cfg_attr(test, schemars(skip))]
    pub(super) detector: Option<IgnoredAny>,
    /// Whether the paths to a VTEP that answers no probes are traced: packets with a short time to live
    /// are sent to it, 100 a second at most, and routers answer with ICMP errors. Default: true.
    pub(super) trace: Option<bool>,
    /// Source ports that are probed on every next hop at the start, 1 to 1024. Default: 64.
    pub(super) ports: Option<u16>,
    /// Most source ports that are probed on every next hop, `ports` to 1024. Default: 256, or `ports`
    /// if that is more.
    pub(super) most_ports: Option<u16>,
    /// Most probes that are sent to one VTEP in a second, and that are answered to one, 100 to 20000
    /// packets. Set the same on all leaves: what is above the other end's rate is not answered.
    /// Default: 4000.
    pub(super) rate: Option<u32>,
    /// Most queue pairs that are placed, 1 to 1000000. A VNI can have half of them and a host a
    /// sixteenth, but at least 1024 each. Others have the path of `qp-hash`. Default: 65536.
    pub(super) queue_pairs: Option<u32>,
    /// Seconds without a frame after which a queue pair is forgotten, 1 to 3600. In a full
    /// table, 1 second. Default: 30.
    pub(super) idle: Option<u64>,
    /// Let a queue pair move to a less loaded path after a pause in its traffic. It leaves a dead path
    /// in any case. Default: `true`.
    pub(super) moves: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct SprayingSection {
    /// What chooses the path of each packet: `prime-like` (a reconstruction of PRIME from its
    /// abstract), `bitmap`, `mixed`, `reps` or `oblivious`. Default: `prime-like`.
    pub(super) scheme: Option<String>,
    /// The order in which hosts get packets that other VTEPs have sprayed: `psn` (that of their
    /// packet sequence numbers) or `none` (as they arrive, for hosts that place packets out of
    /// order). Default: `psn`.
    pub(super) order: Option<OrderChoice>,
    /// Which ECN marks of the underlay hosts get with sprayed packets: `all` (RFC 6040), or `most` (those
    /// that come while at least half of the paths have marks; others are left to the scheme). Default:
    /// `all`.
    pub(super) marks: Option<MarksChoice>,
}

/// Which ECN marks hosts get with sprayed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum MarksChoice {
    /// All.
    All,
    /// Those that come while at least half of the paths have marks.
    Most,
}

/// The order in which hosts get sprayed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderChoice {
    /// That of the packet sequence numbers.
    Psn,
    /// As they arrive.
    None,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct LearningSection {
    /// MAC addresses that the FDB of one netdev may hold by learning. Default: 16384.
    pub(super) addresses: Option<usize>,
    /// The same for all netdevs together. Default: 65536.
    pub(super) total: Option<usize>,
    /// Remote VTEPs that are learned. Default: 1024.
    pub(super) vteps: Option<usize>,
    /// Moves of one MAC address in a second that are followed. Default: 5.
    pub(super) moves: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct UnderlaySection {
    /// Flows return to a next hop that returns. `false`: they stay where they are. Default: `true`.
    pub(super) rebalance: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct VniSection {
    /// As in `[takeover]`.
    pub(super) datapath: Option<DatapathChoice>,
    /// As in `[entropy]`.
    pub(super) policy: Option<String>,
    /// As in `[entropy]`.
    pub(super) bins: Option<u16>,
    /// As in `[entropy]`.
    pub(super) source_ports: Option<String>,
    /// As in `[entropy]`.
    pub(super) flow_label: Option<FlowLabelChoice>,
    /// Outer TTL, 1 to 255, instead of the netdev's.
    pub(super) ttl: Option<u8>,
    /// As in `[takeover]`.
    pub(super) strict_vtep: Option<bool>,
    /// As in `[learning]`.
    pub(super) addresses: Option<usize>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct FpmSection {
    /// Listen for zebra's FPM stream. Takes effect at the next start. Default: `true`.
    pub(super) enabled: Option<bool>,
    /// Address and port where zebra connects. Takes effect at the next start. Default:
    /// `"127.0.0.1:2620"`.
    pub(super) listen: Option<SocketAddr>,
    /// Listen even where an old zebra might crash when it connects. Takes effect at the next start.
    /// Default: `false`.
    #[serde(rename = "unsafe")]
    pub(super) accept_hazard: bool,
    /// Seconds for which routes of a lost connection are kept, 0 to 3600. Default: 120.
    pub(super) stale_time: Option<u64>,
    /// Users whose zebra may connect, by name or number, beside root; `"anybody"`: all users and
    /// hosts. If FRR runs in another container, its user may have no name here: give the number.
    /// Takes effect at the next start. Default: `["frr"]`.
    pub(super) users: Option<Vec<standalone::Owner>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct MetricsSection {
    /// Address and port of `/metrics`. Takes effect at the next start. Default: `"127.0.0.1:9472"`.
    pub(super) listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct ApiSection {
    /// Answer `vtepctl`. Takes effect at the next start. Default: `true`.
    pub(super) enabled: Option<bool>,
    /// `@NAME`, an abstract socket, or a path. Takes effect at the next start. Default:
    /// `"@vtepd-api"`.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) listen: Option<Address>,
}
