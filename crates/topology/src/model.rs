//! A fabric as described by its ContainerLab file.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use experiment::units::Name;
use serde::{Deserialize, Serialize};

use super::circuit::Circuit;

/// The interface of nodes in the management network.
pub const ETH0: &str = "eth0";

/// MTU in bytes of a link without an `mtu:` key. ContainerLab has the same default.
pub const LINK_MTU: u32 = 9500;

/// Returns whether a program name refers to `lab`, in whatever directory it is.
#[must_use]
pub fn is_lab(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "lab")
}

/// Returns whether a program or an image is vtepd's, in whatever directory or registry, with
/// whatever tag.
pub(crate) fn is_vtepd(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next() == Some("vtepd")
}

/// A parsed and checked ContainerLab file. [`Topology::load`] refuses what namespaces cannot
/// provide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// `name:` of the file.
    pub name: Name,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The links in the order of the file.
    pub links: Vec<Link>,
    /// The links with one end in the fabric, in the order of the file.
    #[serde(default)]
    pub half_links: Vec<HalfLink>,
    /// The management network.
    #[serde(default)]
    pub management: Management,
    /// Settings of the file that the lab ignores, as messages for the user.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The network that joins the `eth0` of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Management {
    /// The address of its bridge. Nodes have no route through it.
    pub gateway: Ipv4Addr,
    /// The prefix length of its subnet, 1 to 30.
    pub prefix_length: u8,
    /// The MTU in bytes.
    pub mtu: u32,
    /// What ContainerLab's names of containers begin with.
    pub prefix: String,
}

impl Default for Management {
    fn default() -> Self {
        Self {
            gateway: Ipv4Addr::UNSPECIFIED,
            prefix_length: 24,
            mtu: 1500,
            prefix: "clab".to_owned(),
        }
    }
}

impl Management {
    /// ContainerLab's name of the container of a node.
    #[must_use]
    pub fn container(&self, fabric: &str, node: &str) -> String {
        match self.prefix.as_str() {
            "" => node.to_owned(),
            "__lab-name" => format!("{fabric}-{node}"),
            prefix => format!("{prefix}-{fabric}-{node}"),
        }
    }
}

/// The kind of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// `linux`: a namespace that its files and commands configure.
    #[default]
    Linux,
    /// `bridge`: a Linux bridge with the name of the node. All links of the node are its ports.
    Bridge,
}

/// A node: a network namespace and the processes in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `kind:`.
    pub kind: Kind,
    /// `group:`. Settings of the group are merged into the node when the file is read.
    pub group: Option<String>,
    /// The node whose namespace this node uses (`network-mode: container:NODE`).
    pub shares: Option<String>,
    /// The address of `eth0` in the management network; `None` without it (`network-mode: none`).
    pub management: Option<Ipv4Addr>,
    /// Further names of this address (`aliases:`).
    pub aliases: Vec<String>,
    /// Files and directories that are bind-mounted in the node.
    pub binds: Vec<Bind>,
    /// `hostname:`; without it, the host name is the node's.
    pub hostname: Option<String>,
    /// Commands as lists of words. They run after the stage `configure`.
    pub exec: Vec<Vec<String>>,
    /// A program and its arguments (`entrypoint:` and `cmd:`); empty for none. It starts once the
    /// node's links exist and ends with the fabric. A program named `lab` is the running `lab`
    /// itself.
    pub program: Vec<String>,
    /// The flags of vtepd, if the node runs it in the namespace of another one. `lab up` starts it
    /// with the machine's own program, because the lab uses no images.
    pub vtepd: Option<Vec<String>>,
    /// `startup-delay:` in seconds, before the node's links are made and its processes start.
    pub startup_delay: u64,
    /// `stages:`. Stages without settings are absent.
    pub stages: BTreeMap<Stage, StageSettings>,
    /// `healthcheck:`. It runs if some node waits for this one to be healthy, or that stage has
    /// commands.
    pub healthcheck: Option<Healthcheck>,
    /// The environment of all commands of the node, from `env-files` and `env`.
    pub env: BTreeMap<String, String>,
    /// Kernel parameters (sysctls) of the namespace. All of them start with `net.`.
    pub sysctls: BTreeMap<String, String>,
    /// File systems in memory (`tmpfs:`), by their mount points.
    pub tmpfs: BTreeMap<PathBuf, Tmpfs>,
    /// The text of `/etc/resolv.conf`, if the node has `dns:`.
    pub resolver: Option<String>,
    /// Whether the node sees the machine's processes (`pid-mode: host`).
    pub machine_pids: bool,
    /// The root file system that FRR runs from: `LAB_FRR_ROOT` at the time the fabric was made.
    /// `None` is the machine's own root.
    pub frr_root: Option<PathBuf>,
}

/// How a file system in memory is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Flags of mount(2).
    pub flags: u64,
    /// Options of the file system, separated by commas (tmpfs(5)).
    pub data: String,
}

/// A bind mount: `source:target[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// An absolute path on the machine.
    pub source: PathBuf,
    /// An absolute path in the node.
    pub target: PathBuf,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// The stages of a node's start, in order (`stages:`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The namespace exists.
    Create,
    /// The links exist, and FRR and the node's program have started.
    CreateLinks,
    /// The commands of this stage have finished; `exec` follows.
    Configure,
    /// The health check has passed.
    Healthy,
    /// The node's program has ended.
    Exit,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::CreateLinks, Self::Configure, Self::Healthy, Self::Exit];

    /// The name of the stage in a topology file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::CreateLinks => "create-links",
            Self::Configure => "configure",
            Self::Healthy => "healthy",
            Self::Exit => "exit",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// The settings of one stage of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSettings {
    /// Nodes that must complete a stage before this one begins.
    pub wait_for: Vec<(String, Stage)>,
    /// Commands, as lists of words, that run when the stage begins.
    pub on_enter: Vec<Vec<String>>,
    /// Commands, as lists of words, that run when the stage is complete.
    pub on_exit: Vec<Vec<String>>,
}

impl StageSettings {
    /// Whether there are commands.
    #[must_use]
    pub fn has_commands(&self) -> bool {
        !self.on_enter.is_empty() || !self.on_exit.is_empty()
    }

    /// Adds the settings of a more specific level, as ContainerLab does.
    pub(crate) fn add(&mut self, other: Self) {
        for wait in other.wait_for {
            if !self.wait_for.contains(&wait) {
                self.wait_for.push(wait);
            }
        }
        self.on_enter.extend(other.on_enter);
        self.on_exit.extend(other.on_exit);
    }
}

/// How to test whether a node is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healthcheck {
    /// The command as a list of words. Exit status 0 means healthy.
    pub test: Vec<String>,
    /// The time between two tests.
    pub interval: Duration,
    /// The time limit of one test.
    pub timeout: Duration,
    /// The number of failures after which the node is unhealthy.
    pub retries: u64,
    /// The time after the start during which failures do not count.
    pub start_period: Duration,
}

impl Default for Healthcheck {
    /// The same values as Docker's.
    fn default() -> Self {
        let half_a_minute = Duration::from_secs(30);
        Self {
            test: Vec::new(),
            interval: half_a_minute,
            timeout: half_a_minute,
            retries: 3,
            start_period: Duration::ZERO,
        }
    }
}

impl Node {
    /// Whether a program takes the place of FRR: any but that of FRR's image.
    #[must_use]
    pub fn has_own_program(&self) -> bool {
        let of_image = |last: &String| last.ends_with("/docker-start") && !last.contains(' ');
        self.vtepd.is_some() || self.program.last().is_some_and(|last| !of_image(last))
    }
}

/// A link: a veth pair between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The two ends.
    pub ends: [Endpoint; 2],
    /// The settings of each end.
    #[serde(default)]
    pub settings: [EndSettings; 2],
    /// The MTU in bytes.
    pub mtu: u32,
}

/// A link with one end in the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfLink {
    /// Its end.
    pub end: Endpoint,
    /// The settings of the end.
    pub settings: EndSettings,
    /// The MTU in bytes; `None` for [`LINK_MTU`], or what fits into the tunnel.
    pub mtu: Option<u32>,
    /// Where it leads to.
    pub to: FarEnd,
}

/// Where a link leads to that has one end in the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FarEnd {
    /// `dummy`: nowhere.
    Dummy,
    /// `vxlan`: another machine. The interface is a VXLAN netdev, whose packets this machine sends.
    Vxlan(Tunnel),
    /// `vxlan-stitch`: another machine. The interface is one end of a veth pair, whose other end is
    /// joined with a VXLAN netdev.
    Stitched(Tunnel),
}

/// The tunnel of a link to another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The other machine.
    pub remote: IpAddr,
    /// 1 to 2^24 - 1.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// The interface of this machine that sends; `None` for that of the route to `remote`.
    pub parent: Option<String>,
}

impl Tunnel {
    /// The port of a link without `udp-port:`. ContainerLab has the same.
    pub const PORT: u16 = 14789;
}

/// The settings of one end of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndSettings {
    /// The MAC address; `None` for a random one.
    pub mac: Option<String>,
    /// The alternative name of the interface, if the kernel cannot have the file's as its name.
    #[serde(default)]
    pub alternative: Option<String>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The name of the node.
    pub node: String,
    /// The name of the interface in the node.
    pub interface: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.node, self.interface)
    }
}

impl Topology {
    /// The node whose namespace a node uses: another one, with `network-mode: container:NODE`.
    #[must_use]
    pub fn owner<'a>(&'a self, node: &'a str) -> &'a str {
        self.nodes.get(node).and_then(|node| node.shares.as_deref()).unwrap_or(node)
    }

    /// The other end of the link that ends at `end`.
    #[must_use]
    pub fn peer(&self, end: &Endpoint) -> Option<&Endpoint> {
        self.links.iter().find_map(|link| match &link.ends {
            [a, b] if a == end => Some(b),
            [a, b] if b == end => Some(a),
            _ => None,
        })
    }

    /// The circuits that nodes emulate with `lab wan`, each as its two ends.
    pub fn circuits(&self) -> impl Iterator<Item = [Endpoint; 2]> {
        let wans = self.nodes.iter().filter_map(|(name, node)| {
            let (_, words) = node.program.split_first().filter(|(program, _)| is_lab(program))?;
            let (_, words) = words.split_first().filter(|(command, _)| *command == "wan")?;
            Some((name, words))
        });
        wans.flat_map(|(name, words)| {
            let circuits = words.iter().filter_map(|word| word.parse::<Circuit>().ok());
            circuits.map(|Circuit(ends)| {
                ends.map(|interface| Endpoint { node: name.clone(), interface })
            })
        })
    }
}
