//! A fabric as its ContainerLab file describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wan::Circuit;
use crate::{expand, parse, stages};

/// The MTU of a link that gives none, in bytes: ContainerLab's.
pub const LINK_MTU: u32 = 9500;

/// The longest name the kernel takes for an interface (`IFNAMSIZ` without its final zero).
const INTERFACE_NAME_MAX: usize = 15;

/// A topology file that cannot be read, or that asks for something namespaces cannot give.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file, or a file it binds, cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no YAML.
    #[error("no valid YAML")]
    Yaml(#[from] serde_norway::Error),
    /// An environment variable is unset and has no default, or the expression is another than
    /// `${NAME:-default}`.
    #[error(
        "cannot replace '${{{expression}}}': not set, and no default given as ${{NAME:-default}}"
    )]
    Variable {
        /// What stands behind the `$`.
        expression: String,
    },
    /// ContainerLab may know this, but namespaces cannot, or not yet.
    #[error("{place}: not supported by lab{}", reason(.why))]
    Unsupported {
        /// Where in the file, for example `topology.nodes.leaf1.startup-config`.
        place: String,
        /// Why, or empty.
        why: &'static str,
    },
    /// A value has the wrong type or form.
    #[error("{place}: expected {expected}")]
    Expected {
        /// Where in the file.
        place: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// Something is missing.
    #[error("{place}: missing")]
    Missing {
        /// Where in the file.
        place: String,
    },
    /// A link or a `network-mode` names a node that the file does not have.
    #[error("{place}: no node '{node}'")]
    NoSuchNode {
        /// Where in the file.
        place: String,
        /// The name.
        node: String,
    },
    /// Nodes wait for each other.
    #[error("{place}: waits for itself: {circle}")]
    Circle {
        /// Where in the file.
        place: String,
        /// Who waits for whom.
        circle: String,
    },
    /// Two links end at the same interface.
    #[error("{place}: interface '{interface}' is used twice")]
    Twice {
        /// Where in the file.
        place: String,
        /// `node:interface`.
        interface: String,
    },
}

/// Whether a program of a file is this one, wherever its image has it.
pub(crate) fn is_lab(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "lab")
}

fn reason(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}

/// What a ContainerLab file says, as far as namespaces can do it; the rest was refused when it was
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// `name:` of the file.
    pub name: String,
    /// By name.
    pub nodes: BTreeMap<String, Node>,
    /// In the order of the file.
    pub links: Vec<Link>,
    /// What the file asks for that is left out here, in words for its author.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// `linux`: whatever its files and commands make of it.
    #[default]
    Linux,
    /// `bridge`: one bridge, called as the node, with all its links in it.
    Bridge,
}

/// A node: a network namespace, and what runs in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `kind:`.
    pub kind: Kind,
    /// `group:`, which has no effect of its own.
    pub group: Option<String>,
    /// The node whose namespace this one shares (`network-mode: container:NODE`).
    pub shares: Option<String>,
    /// Files and directories that the node sees at another place.
    pub binds: Vec<Bind>,
    /// Commands, in words, run once all links are there and FRR has started.
    pub exec: Vec<Vec<String>>,
    /// A program and its arguments (`entrypoint:` and `cmd:`), started once the node's links are
    /// there; it ends with the fabric. Empty for none. One that is called `lab` is this very
    /// program.
    pub program: Vec<String>,
    /// `startup-delay:`, in seconds, before the node's links are made and anything runs.
    pub startup_delay: u64,
    /// `stages:`; those without settings are absent.
    pub stages: BTreeMap<Stage, StageSettings>,
    /// `healthcheck:`; it is run where a node waits for this one to be healthy.
    pub healthcheck: Option<Healthcheck>,
    /// Environment of every command of the node; `env-files` and `env`.
    pub env: BTreeMap<String, String>,
    /// Kernel parameters of the namespace; all begin with `net.`.
    pub sysctls: BTreeMap<String, String>,
    /// The root file system that FRR is run from, if it is not this machine's: `LAB_FRR_ROOT` when
    /// the fabric was made.
    pub frr_root: Option<PathBuf>,
}

/// `source:target[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// An absolute path outside.
    pub source: PathBuf,
    /// An absolute path inside.
    pub target: PathBuf,
    /// Whether the node may only read it.
    pub read_only: bool,
}

/// Where a node is on its way, in this order (`stages:`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Its namespace is there.
    Create,
    /// Its links are there, and its processes run.
    CreateLinks,
    /// Its `exec` has been run.
    Configure,
    /// Its health check has passed.
    Healthy,
    /// Its program has ended.
    Exit,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::CreateLinks, Self::Configure, Self::Healthy, Self::Exit];

    /// As files call it.
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

/// One stage of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSettings {
    /// Nodes that must have completed a stage before this one begins.
    pub wait_for: Vec<(String, Stage)>,
    /// Commands, in words, when it begins.
    pub on_enter: Vec<Vec<String>>,
    /// Commands, in words, when it is complete.
    pub on_exit: Vec<Vec<String>>,
}

/// How it is found out that a node is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healthcheck {
    /// A command in words; 0 is healthy.
    pub test: Vec<String>,
    /// Between two tests.
    pub interval: Duration,
    /// How long one test may take.
    pub timeout: Duration,
    /// So many failures in a row are a sick node.
    pub retries: u64,
    /// Failures in the beginning that do not count.
    pub start_period: Duration,
}

impl Default for Healthcheck {
    /// Docker's.
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

/// A veth pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its two ends.
    pub ends: [Endpoint; 2],
    /// What is set at each.
    #[serde(default)]
    pub settings: [EndSettings; 2],
    /// In bytes.
    pub mtu: u32,
}

/// What is set at one end of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndSettings {
    /// The MAC address, if it is not to be drawn.
    pub mac: Option<String>,
    /// IPv4 and IPv6 addresses with their prefix lengths.
    pub addresses: Vec<String>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The node.
    pub node: String,
    /// The interface in it.
    pub interface: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.node, self.interface)
    }
}

impl Topology {
    /// Reads a ContainerLab file. Variables in it come from the environment.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let read_error = |source| TopologyError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        let absolute = path.canonicalize().map_err(read_error)?;
        Self::parse(&text, absolute.parent().unwrap_or(Path::new("/")), |name| {
            std::env::var(name).ok()
        })
    }

    /// Reads the text of a ContainerLab file that lies in `directory` (binds are relative to it),
    /// with `lookup` as its environment.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn parse(
        text: &str,
        directory: &Path,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TopologyError> {
        let mut file: serde_norway::Value = serde_norway::from_str(&expand::expand(text, lookup)?)?;
        file.apply_merge()?;
        let topology = parse::topology(&file, directory)?;
        topology.check()?;
        Ok(topology)
    }

    /// The other end of the link that ends here.
    #[must_use]
    pub fn peer(&self, end: &Endpoint) -> Option<&Endpoint> {
        self.links.iter().find_map(|link| match &link.ends {
            [a, b] if a == end => Some(b),
            [a, b] if b == end => Some(a),
            _ => None,
        })
    }

    /// The circuits that `lab wan` runs on a node, each by its two ends; none where it does not.
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

    fn check(&self) -> Result<(), TopologyError> {
        for (name, node) in &self.nodes {
            let Some(shared) = &node.shares else { continue };
            let place = format!("topology.nodes.{name}.network-mode");
            match self.nodes.get(shared) {
                None => return Err(TopologyError::NoSuchNode { place, node: shared.clone() }),
                Some(target) if target.shares.is_some() => {
                    return Err(TopologyError::Unsupported {
                        place,
                        why: "the shared node shares another's",
                    });
                }
                Some(_) => {}
            }
        }
        stages::check(self)?;
        let mut ends = BTreeSet::new();
        for (index, link) in self.links.iter().enumerate() {
            let place = || format!("topology.links[{index}]");
            for end in &link.ends {
                if !self.nodes.contains_key(&end.node) {
                    return Err(TopologyError::NoSuchNode {
                        place: place(),
                        node: end.node.clone(),
                    });
                }
                if end.interface.is_empty() || end.interface.len() > INTERFACE_NAME_MAX {
                    let expected = "an interface name of 1 to 15 characters";
                    return Err(TopologyError::Expected { place: place(), expected });
                }
                if !ends.insert(end) {
                    return Err(TopologyError::Twice {
                        place: place(),
                        interface: end.to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}
