//! The command line of vtepd.

use std::net::SocketAddr;
use std::path::PathBuf;

use api::Address;
use clap::{Parser, ValueEnum};
use control::{Datapath, FlowLabelSource, RoutePerFrame};
use path::{Bins, Policy, SourcePortRange};
use serde::Deserialize;
use wire::Vni;

use crate::standalone::Owner;

const EXAMPLES: &str = "\
Examples:
  vtepd                                take over every VNI of this network namespace
  vtepd --dry-run                      show what would be taken over, and why the rest would not
  vtepd --vni 10010 --policy qp-bins   take over one VNI, with four source ports
  ip netns exec leaf1 vtepd --config leaf1.toml
  vtepd --config alone.toml            standalone, if the file has [[standalone]] tables

Signals: SIGHUP reads the configuration file again. SIGTERM and SIGINT give everything back to the
kernel and end.";

/// Takes over the VXLAN forwarding of a running FRR leaf. Run it in the leaf's network namespace.
///
/// A flag wins over the configuration file, the file over the default. Of --gso and --no-gso, the
/// last counts.
#[derive(Debug, Clone, Parser)]
#[command(name = "vtepd", version, after_help = EXAMPLES)]
pub struct Arguments {
    /// Configuration file (TOML); read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Take over only this VNI; may be repeated [default: every VNI found]
    #[arg(long = "vni", value_name = "VNI", value_parser = vni)]
    pub vnis: Vec<Vni>,
    /// Leave this VNI to the kernel; may be repeated [default: none]
    #[arg(long = "exclude", value_name = "VNI", value_parser = vni)]
    pub exclude: Vec<Vni>,
    /// How the outer UDP source port is chosen: five-tuple, qp-hash, qp-bins, qp-pin or spray. The
    /// last two need `key` in `[probing]` of the file [default: qp-hash]
    #[arg(long)]
    pub policy: Option<Policy>,
    /// Number of source ports of qp-bins [default: 4]
    #[arg(long)]
    pub bins: Option<Bins>,
    /// Seed of the hashes [default: 0]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Outer source ports of all policies but five-tuple [default: 49152-65535]
    #[arg(long, value_name = "MIN-MAX")]
    pub source_ports: Option<SourcePortRange>,
    /// Flow label of outer IPv6 headers: the outer UDP source port, if the netdev has no label of
    /// its own, or always the netdev's [default: source-port]
    #[arg(long, value_enum, value_name = "SOURCE")]
    pub(super) flow_label: Option<FlowLabelChoice>,
    /// Who forwards: BPF programs, a worker, or kernel VXLAN with source ports that vtepd chooses
    /// [default: auto]
    #[arg(long, value_enum)]
    pub datapath: Option<DatapathChoice>,
    /// Whether kernel VXLAN looks up the route for each frame of VNIs in the kernel datapath
    /// [default: auto]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(super) route_per_frame: Option<RoutePerFrameChoice>,
    /// Drop frames from VTEPs that are in no table; the kernel accepts them
    #[arg(long)]
    pub strict_vtep: bool,
    /// Let known unicast skip the kernel bridge, in both directions [default: on]
    #[arg(long, overrides_with_all = ["bridge_bypass", "no_bridge_bypass"])]
    pub bridge_bypass: bool,
    /// Send every frame through the kernel bridge
    #[arg(long, overrides_with_all = ["bridge_bypass", "no_bridge_bypass"])]
    pub no_bridge_bypass: bool,
    /// Send frames of one queue pair together as UDP super-frames, but not over uplinks with netem
    /// or another shaping queueing discipline [default: on]
    #[arg(long, overrides_with_all = ["gso", "no_gso"])]
    pub gso: bool,
    /// Send each frame as one packet, for routers that impair their links (netem)
    #[arg(long, overrides_with_all = ["gso", "no_gso"])]
    pub no_gso: bool,
    /// Workers never sleep; each keeps a core busy
    #[arg(long)]
    pub busy_poll: bool,
    /// Threads that forward, 1 to 8; each flow and each standalone VNI belongs to one of them
    /// [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub workers: Option<usize>,
    /// The CPU of each worker, as a comma-separated list [default: chosen at the start]
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// How BPF programs are attached [default: auto]
    #[arg(long, value_enum)]
    pub hook: Option<HookChoice>,
    /// Set the machine's switch rcu_expedited while many programs are attached or detached. It
    /// disturbs every CPU of the machine
    #[arg(long)]
    pub expedited_rcu: bool,
    /// Address where zebra's FPM client connects [default: 127.0.0.1:2620]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "no_fpm")]
    pub fpm_listen: Option<SocketAddr>,
    /// Do not listen for FPM; use rtnetlink only
    #[arg(long)]
    pub no_fpm: bool,
    /// Listen for FPM even where an old zebra might crash on it
    #[arg(long)]
    pub fpm_unsafe: bool,
    /// User whose zebra may connect, beside root: a name, a number, or `anybody` for all users and
    /// hosts; may be repeated [default: frr]
    #[arg(long = "fpm-user", value_name = "USER")]
    #[arg(env = "VTEPD_FPM_USER", hide_env_values = true, value_delimiter = ',')]
    pub(crate) fpm_users: Vec<Owner>,
    /// Address of the metrics for Prometheus [default: 127.0.0.1:9472]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Socket for vtepctl
    #[arg(long, value_name = "SOCKET", conflicts_with = "no_api")]
    #[arg(help = "Socket for vtepctl: @NAME or a path [default: @vtepd-api]")]
    pub api_listen: Option<Address>,
    /// No API; vtepctl does not work
    #[arg(long)]
    pub no_api: bool,
    /// Take over from the vtepd that runs in this namespace. No frame is lost, except of standalone
    /// VNIs
    #[arg(long)]
    pub replace: bool,
    /// Print what would be taken over, change nothing, and end
    #[arg(long)]
    pub dry_run: bool,
    /// Output of --dry-run
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Log more: -v events, -vv every change. RUST_LOG wins if it is set
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log lines as JSON
    #[arg(long)]
    pub log_json: bool,
    /// Write vtepd's man page and shell completions into this folder, and end
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub manual: Option<PathBuf>,
}

/// Who encapsulates and decapsulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DatapathChoice {
    /// A worker, where it forwards as the kernel would; else the kernel
    Userspace,
    /// BPF programs, for flows whose path is decided; a worker for the rest, and the kernel where
    /// a worker would not forward as it does
    Offload,
    /// Kernel VXLAN, with source ports that vtepd chooses
    Kernel,
    /// offload, but userspace for standalone VNIs
    Auto,
}

impl From<DatapathChoice> for Datapath {
    fn from(choice: DatapathChoice) -> Self {
        match choice {
            DatapathChoice::Userspace => Self::Userspace,
            DatapathChoice::Offload => Self::Offload,
            DatapathChoice::Kernel => Self::Kernel,
            DatapathChoice::Auto => Self::Auto,
        }
    }
}

/// Whether kernel VXLAN looks up the route for each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum RoutePerFrameChoice {
    /// For VNIs with several next hops to a VTEP
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

impl From<RoutePerFrameChoice> for RoutePerFrame {
    fn from(choice: RoutePerFrameChoice) -> Self {
        match choice {
            RoutePerFrameChoice::Auto => Self::Auto,
            RoutePerFrameChoice::On => Self::On,
            RoutePerFrameChoice::Off => Self::Off,
        }
    }
}

/// Where the flow label of outer IPv6 headers comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum FlowLabelChoice {
    /// The outer UDP source port, if the netdev has no label
    SourcePort,
    /// The netdev, as with kernel VXLAN
    Netdev,
}

impl From<FlowLabelChoice> for FlowLabelSource {
    fn from(choice: FlowLabelChoice) -> Self {
        match choice {
            FlowLabelChoice::SourcePort => Self::SourcePort,
            FlowLabelChoice::Netdev => Self::Netdev,
        }
    }
}

/// How BPF programs are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HookChoice {
    /// tcx links where the kernel has them (Linux 6.6), clsact filters elsewhere
    #[default]
    Auto,
    /// tcx links
    Tcx,
    /// clsact filters
    Clsact,
}

/// Form of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table
    Table,
    /// JSON
    Json,
}

pub(super) fn vni(text: &str) -> Result<Vni, String> {
    let number: u32 = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    Vni::try_from(number).map_err(|error| error.to_string())
}
