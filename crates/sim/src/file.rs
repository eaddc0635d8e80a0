//! The file of a simulation.

mod build;
mod sweep;
pub mod units;

use std::path::{Path, PathBuf};

use quantity::NumberOrText;
use schemars::JsonSchema;
use serde::Deserialize;

use build::Size;
use units::{BitRate, Bytes, SchemeName, Time};

pub use sweep::{Case, cases};

/// Reads a file that is named in the file of a simulation. An error is a sentence.
pub type Read<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// A simulation: a fabric, traffic, faults, and the schemes to compare.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// The name, for results: letters, digits, `-` and `.`.
    pub name: String,
    /// The title of the report.
    pub title: String,
    /// What the simulation answers, in a few sentences.
    pub question: String,
    /// What it does not show, a sentence each.
    #[serde(default)]
    pub limits: Vec<String>,
    /// The number of seeds, from 1. A seed makes the traffic and all random choices.
    #[serde(default = "five")]
    pub seeds: u64,
    /// A run ends then, finished or not.
    #[serde(default = "end")]
    pub end: Time,
    /// The fabric.
    pub fabric: Fabric,
    /// The queues of switches.
    #[serde(default)]
    pub queue: Queue,
    /// The transport.
    #[serde(default)]
    pub transport: TransportSettings,
    /// The hosts.
    #[serde(default)]
    pub hosts: Hosts,
    /// The traffic. Several jobs run at the same time.
    pub traffic: Vec<Traffic>,
    /// What fails.
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultSettings>,
    /// The schemes to compare. The first one is the baseline.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// Values to vary: the place of a value in this file, such as `traffic.0.bytes`, and a list.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, Vec<serde_json::Value>>")]
    pub sweep: toml::Table,
}

const fn five() -> u64 {
    5
}

const fn end() -> Time {
    Time(60 * crate::time::MILLISECOND)
}

/// A fabric.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Fabric {
    /// Three tiers: leaves and aggregation switches in pods, and cores.
    #[serde(rename_all = "kebab-case")]
    FatTree {
        /// Pods.
        pods: u32,
        /// Leaves of a pod.
        leaves: u32,
        /// Hosts of a leaf.
        hosts: u32,
        /// Aggregation switches of a pod: uplinks of a leaf.
        aggregations: u32,
        /// Cores of an aggregation switch: its uplinks.
        cores: u32,
        /// The rate of all links.
        rate: BitRate,
        /// The delay of all links.
        delay: Time,
    },
    /// Two tiers. With fewer spines than hosts of a leaf it is oversubscribed.
    #[serde(rename_all = "kebab-case")]
    LeafSpine {
        /// Leaves.
        leaves: u32,
        /// Hosts of a leaf.
        hosts: u32,
        /// Spines: uplinks of a leaf.
        spines: u32,
        /// The rate of all links.
        rate: BitRate,
        /// The delay of all links.
        delay: Time,
    },
    /// Two fabrics of leaves and spines, with a circuit between each two spines.
    #[serde(rename_all = "kebab-case")]
    TwoSites {
        /// Leaves of a site.
        leaves: u32,
        /// Hosts of a leaf.
        hosts: u32,
        /// Spines of a site.
        spines: u32,
        /// The rate of the links in a site.
        rate: BitRate,
        /// The delay of the links in a site.
        delay: Time,
        /// The rate of a circuit.
        circuit_rate: BitRate,
        /// The delay of a circuit.
        circuit_delay: Time,
    },
    /// The nodes and links of a topology file of `lab up`. Nodes with one link are hosts, all others
    /// switches.
    #[serde(rename_all = "kebab-case")]
    Topology {
        /// The file, relative to this one.
        file: PathBuf,
        /// The rate of all links.
        rate: BitRate,
        /// The delay of all links.
        delay: Time,
        /// The rate of circuits of `lab wan`. Default: `rate`.
        circuit_rate: Option<BitRate>,
        /// Their delay. Default: `delay`.
        circuit_delay: Option<Time>,
    },
}

/// The queues of switches.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Queue {
    /// Bytes. Default: those that a host sends in a round trip time, in whole packets.
    #[serde(deserialize_with = "quantity::some_bytes")]
    #[schemars(with = "Option<NumberOrText>")]
    pub bytes: Option<u32>,
    /// ECN marks begin at the first share of the queue, and all packets have one from the second on.
    pub ecn: [f64; 2],
    /// Whether a full queue trims packets. Otherwise it loses them.
    pub trim: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { bytes: None, ecn: [0.2, 0.8], trim: true }
    }
}

/// The transport: unordered, with NSCC, selective acknowledgements and answers to trimmed packets.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TransportSettings {
    /// Bytes of a packet, with a header of 64.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "NumberOrText")]
    pub packet: u16,
    /// Data is acknowledged after so many bytes.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "NumberOrText")]
    pub acknowledge: u32,
    /// A packet that is not acknowledged in this time seems lost. Default: 15 µs and the time of six
    /// full queues.
    pub timeout: Option<Time>,
    /// The hosts are the RoCE endpoints of `lab roce` with these settings, instead of all this.
    /// Queues do not trim. Default of `rate`: that of the hosts.
    pub roce: Option<roce::Settings>,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self { packet: 4150, acknowledge: 16_384, timeout: None, roce: None }
    }
}

/// The hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Hosts {
    /// A record stands for a packet, and the host itself chooses its path.
    #[default]
    Abstract,
    /// Each has a VTEP, which encapsulates frames with bytes and chooses their paths. At most 16.
    Real,
}

/// A job.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Traffic {
    /// Each host sends to one other host and receives from one.
    Permutation {
        /// Bytes of a flow.
        #[serde(deserialize_with = "quantity::bytes")]
        #[schemars(with = "NumberOrText")]
        bytes: u64,
        /// The share of flows whose packets must stay in order, and so take one path.
        #[serde(default)]
        ordered: f64,
    },
    /// Many hosts send to one.
    Incast {
        /// Bytes of a flow.
        #[serde(deserialize_with = "quantity::bytes")]
        #[schemars(with = "NumberOrText")]
        bytes: u64,
        /// The number of senders.
        senders: u32,
        /// Whether all others have a permutation among themselves.
        #[serde(default)]
        background: bool,
    },
    /// AllReduce along rings.
    Ring {
        /// Bytes that each rank reduces.
        #[serde(deserialize_with = "quantity::bytes")]
        #[schemars(with = "NumberOrText")]
        bytes: u64,
        /// The ranks of a ring.
        group: u32,
    },
    /// AllToAll within groups.
    AllToAll {
        /// Bytes that each rank sends to all others.
        #[serde(deserialize_with = "quantity::bytes")]
        #[schemars(with = "NumberOrText")]
        bytes: u64,
        /// The ranks of a group.
        group: u32,
        /// The flows of a rank at a time.
        window: u32,
    },
    /// Flows between random hosts, which begin at random times.
    Random {
        /// The distribution of their bytes: pairs of bytes and the share of flows with at most so
        /// many.
        sizes: Vec<(Bytes, f64)>,
        /// The share of the hosts' rate that they need, above 0.
        load: f64,
        /// When the last one may begin.
        until: Time,
    },
    /// Flows from one host to another, all from the start on: queue pairs.
    Stream {
        /// The sending host, such as `host0`.
        from: String,
        /// The receiving host.
        to: String,
        /// The number of flows.
        flows: u32,
        /// Bytes of a flow.
        #[serde(deserialize_with = "quantity::bytes")]
        #[schemars(with = "NumberOrText")]
        bytes: u64,
    },
    /// A traffic matrix of htsim.
    Matrix {
        /// The file, relative to this one. It is the same for all seeds.
        file: PathBuf,
    },
}

/// A fault of a link.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultSettings {
    /// What it does.
    pub kind: FaultKind,
    /// The node at one end, such as `core0`.
    pub from: String,
    /// The node at the other end.
    pub to: String,
    /// Whether both directions are hit, or only that from `from` to `to`.
    #[serde(default = "yes")]
    pub both: bool,
    /// For a slow link, the share that is left of its rate, its queue and its marks.
    #[serde(default = "quarter")]
    pub share: f64,
    /// When it begins.
    #[serde(default)]
    pub at: Time,
    /// When it ends. Default: never.
    pub until: Option<Time>,
}

const fn yes() -> bool {
    true
}

const fn quarter() -> f64 {
    0.25
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The link has a share of its rate.
    Slow,
    /// Packets are lost, and switches use other ways.
    Dead,
    /// Packets are lost, and switches do not know.
    Silent,
}

/// A scheme to compare.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// The name in the report. Default: the scheme and its paths.
    pub name: Option<String>,
    /// The scheme.
    pub scheme: SchemeName,
    /// Whether flows between two hosts take the known paths in turns, one each, as with the policy
    /// `qp-pin`. The scheme is `ecmp` then.
    #[serde(default)]
    pub placed: bool,
    /// The number of paths of a flow: numbers that switches hash. Default: the sender knows the paths
    /// of the fabric.
    pub values: Option<u32>,
    /// What acknowledgements tell the scheme. Default for `prime-like`: `each-packet`; for others:
    /// `acknowledged`.
    pub feedback: Option<FeedbackName>,
}

/// What acknowledgements tell a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FeedbackName {
    /// The path of the packet that caused the acknowledgement.
    Acknowledged,
    /// The paths of all packets that it newly acknowledges, which the sender remembers.
    EachPacket,
}

/// A file that is no simulation.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is no TOML, or has wrong keys or values.
    #[error("{path}: {source}", path = path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        source: Box<toml::de::Error>,
    },
    /// Its values do not fit together.
    #[error("{path}: {problem}", path = path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to write.
        problem: String,
    },
}

/// The schema of the file.
#[must_use]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(File)
}

impl Variant {
    /// The name in the report.
    #[must_use]
    pub fn label(&self) -> String {
        let scheme = self.scheme.0;
        match (&self.name, self.values) {
            (Some(name), _) => name.clone(),
            (None, Some(values)) if scheme != spray::Scheme::Ecmp => format!("{scheme}-{values}"),
            (None, Some(_)) => scheme.to_string(),
            (None, None) if self.placed => "placed".to_owned(),
            (None, None) => format!("known-{scheme}"),
        }
    }
}

impl File {
    /// What is wrong with its values.
    fn problem(&self) -> Option<String> {
        let labels: std::collections::BTreeSet<String> =
            self.variants.iter().map(Variant::label).collect();
        let size = self.fabric.size();
        let many = self.traffic.len().max(self.faults.len()) > 1000;
        let [from, all] = self.queue.ecn;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        let shares = self.traffic.iter().all(|job| match job {
            Traffic::Permutation { ordered, .. } => is_share(*ordered),
            _ => true,
        });
        let groups = self.traffic.iter().all(|job| match job {
            Traffic::Ring { group, .. } | Traffic::AllToAll { group, .. } => *group >= 2,
            _ => true,
        });
        let slow = self.faults.iter().all(|fault| fault.share > 0.0 && fault.share <= 1.0);
        let named = !self.name.is_empty()
            && self.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
        let problem = match size.and_then(Size::problem) {
            _ if !named => "'name': use letters, digits, '-' and '.'",
            _ if self.seeds == 0 || self.seeds > 10_000 => "'seeds': use 1 to 10000",
            _ if self.variants.is_empty() => "there is no [[variant]]",
            _ if labels.len() < self.variants.len() => "two variants have the same name",
            _ if self.traffic.is_empty() => "there is no [[traffic]]",
            _ if size.is_none() => "'fabric': each number must be at least 1",
            Some(problem) => problem,
            _ if many => "use at most 1000 [[traffic]] and as many [[fault]]",
            _ if !(is_share(from) && is_share(all) && from <= all) => {
                "'queue.ecn': use two shares from 0 to 1, the smaller one first"
            }
            _ if self.transport.packet < 128 => "'transport.packet': use at least 128",
            _ if !shares => "'ordered': use a share from 0 to 1",
            _ if !groups => "'group': use at least 2",
            _ if !slow => "'share' of a fault: use more than 0 and at most 1",
            None => return None,
        };
        Some(problem.to_owned())
    }
}
