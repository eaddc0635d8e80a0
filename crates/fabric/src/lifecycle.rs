//! Brings a topology up in network namespaces, and takes it down again.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use experiment::units::Name;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::deployed::{Deployed, DeployedError};
use crate::frr_root;
use crate::half_links::HalfLinkError;
use crate::netns::{self, Namespace, NetnsError};
use crate::node::{INIT, Node, NodeError};
use crate::node_root;
use crate::process::{ancestry, command_line, wait_until};
use crate::progress::{Interrupted, OnProgress, note};
use crate::state::{Lock, Record, State, StateError};
use crate::topology::Topology;

/// How long a process may take to end after SIGTERM before the lab sends SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// How long [`Fabric::down`] waits for processes that the lab did not start.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Seed of the multipath hash, which prevents polarisation. Linux 6.11 and later have it.
pub(crate) const HASH_SEED: &str = "net.ipv4.fib_multipath_hash_seed";

/// A fabric could not be brought up, found or taken down.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// An operation on a node failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An operation on a namespace or link failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The state on disk cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The name of the fabric with ContainerLab's prefix is too long.
    #[error("{0}")]
    Name(String),
    /// There is no fabric of that name.
    #[error(
        "fabric '{0}' is not running: start it with 'lab up FILE'; 'lab list' names those that run"
    )]
    NotUp(String),
    /// A fabric of that name runs, and is to stay.
    #[error(
        "fabric '{0}' is already running and is left as it is: stop it with 'lab down {0}', rebuild it with 'lab up --rebuild', or choose another name with --name"
    )]
    AlreadyUp(String),
    /// The topology has no node of that name.
    #[error("no node '{0}'")]
    NoSuchNode(String),
    /// A kernel parameter could not be set.
    #[error("{node}: cannot set {name}={value}")]
    Sysctl {
        /// The node.
        node: String,
        /// The parameter.
        name: String,
        /// The value.
        value: String,
        /// The cause.
        source: io::Error,
    },
    /// A link with one end in the fabric could not be made.
    #[error("the link of {end}: {error}")]
    HalfLink {
        /// Its end, as `node:interface`.
        end: String,
        /// The cause.
        error: HalfLinkError,
    },
    /// The output of a command could not be parsed.
    #[error("cannot parse the output of '{command}'")]
    Answer {
        /// The command.
        command: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The fabric did not converge in time.
    #[error("not converged after {limit:?}: {missing}")]
    NotConverged {
        /// The time limit.
        limit: Duration,
        /// What is missing.
        missing: String,
        /// Whether no entry is missing, and no route has changed for a second: only BGP sessions are
        /// not established.
        forwards: bool,
    },
    /// Processes that the lab did not start run in its namespaces. The namespaces are not deleted,
    /// because these processes could not be found without the names.
    #[error("other processes are running in fabric '{fabric}', so nothing was changed; stop them and try again:{}",
        list(.foreign))]
    Occupied {
        /// The fabric.
        fabric: String,
        /// The processes that the lab did not start.
        foreign: Vec<ForeignProcess>,
    },
    /// `LAB_FRR_ROOT` names a directory without FRR.
    #[error("LAB_FRR_ROOT is not a root file system with FRR (/usr/lib/frr/zebra): {0}")]
    FrrRoot(io::Error),
    /// The overlay could not be read.
    #[error(transparent)]
    Deployed(#[from] DeployedError),
    /// The user interrupted the command.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// A fabric that is up. Dropping a value that [`Fabric::up`] returned takes the fabric down, unless
/// [`Fabric::keep`] was called.
#[derive(Debug)]
pub struct Fabric {
    name: Name,
    topology: Topology,
    state: State,
    /// Whether its nodes are containers of ContainerLab. Then the lab only records what it starts
    /// in them, and [`remove`] finds no namespaces of the lab.
    containers: bool,
    /// While it is held, no other process can build or remove the fabric.
    lock: Option<Lock>,
}

impl Fabric {
    /// Creates a fabric without namespaces and processes. What a killed process left under this name
    /// is removed first.
    pub(crate) fn create(
        mut topology: Topology,
        name: Option<&Name>,
        report: OnProgress,
    ) -> Result<Self, FabricError> {
        let frr_root = frr_root::from_environment().map_err(FabricError::FrrRoot)?;
        for node in topology.nodes.values_mut() {
            node.frr_root.clone_from(&frr_root);
        }
        let name = name.unwrap_or(&topology.name).to_owned();
        let lock = State::lock(&name)?;
        let state = State::of(&name);
        if state.is_kept() {
            return Err(FabricError::AlreadyUp(name.to_string()));
        }
        if let Ok(earlier) = state.topology() {
            report("removing the fabric of an earlier run")?;
            remove(&name, &state, &earlier)?;
        }
        state.create(&topology)?;
        Ok(Self { name, topology, state, containers: false, lock: Some(lock) })
    }

    /// Uses the fabric of this topology that ContainerLab or `lab up` has brought up. Dropping the
    /// value, or [`Fabric::down`], ends what the lab started in ContainerLab's containers, and
    /// leaves them up. What a killed process left there is ended first.
    ///
    /// # Errors
    /// [`DeployedError::NotUp`]; [`StateError::Busy`] if another `lab` uses the containers.
    pub fn attach(topology: Topology) -> Result<Self, FabricError> {
        let deployed = Deployed::find(topology)?;
        let topology = deployed.topology().clone();
        if !deployed.is_containerlab() {
            return Self::open(&topology.name);
        }
        let name: Name = format!("clab-{}", topology.name).parse().map_err(FabricError::Name)?;
        let lock = State::lock(&name)?;
        let state = State::of(&name);
        if state.is_kept() {
            return Err(FabricError::AlreadyUp(name.to_string()));
        }
        if let Ok(earlier) = state.topology() {
            remove(&name, &state, &earlier)?;
        }
        state.create(&topology)?;
        let fabric = Self { name, topology, state, containers: true, lock: Some(lock) };
        for node in fabric.nodes() {
            fabric.state.make(&node.directory())?;
        }
        Ok(fabric)
    }

    /// Opens a fabric that is already up. Dropping the value leaves the fabric up.
    ///
    /// # Errors
    /// [`FabricError::NotUp`].
    pub fn open(name: &Name) -> Result<Self, FabricError> {
        let state = State::of(name);
        let topology = state.topology().map_err(|error| match error {
            StateError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                FabricError::NotUp(name.to_string())
            }
            error => error.into(),
        })?;
        Ok(Self { name: name.clone(), topology, state, containers: false, lock: None })
    }

    /// The names of all fabrics that are up, including those that a killed process left.
    #[must_use]
    pub fn list() -> Vec<Name> {
        State::list()
    }

    /// Leaves the fabric up when this value is dropped, and records that it is to stay.
    ///
    /// # Errors
    /// If the record cannot be written. The fabric is taken down then.
    pub fn keep(mut self) -> Result<Self, FabricError> {
        self.state.keep()?;
        self.lock = None;
        Ok(self)
    }

    /// Whether a fabric of that name was kept by [`Fabric::keep`]. A fabric that a killed process
    /// left is not kept.
    #[must_use]
    pub fn is_kept(name: &Name) -> bool {
        State::of(name).is_kept()
    }

    /// Ends every process that the lab started in the fabric and removes its namespaces.
    ///
    /// # Errors
    /// [`FabricError::Occupied`] if other processes run in the fabric; nothing is changed then.
    /// Other errors if a process cannot be ended or a namespace cannot be removed.
    pub fn down(mut self) -> Result<(), FabricError> {
        let lock = self.lock.take();
        let _held = match lock {
            Some(lock) => lock,
            None => State::lock(&self.name)?,
        };
        remove(&self.name, &self.state, &self.topology)
    }

    /// The name of the fabric.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The topology that the fabric was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Access to the fabric by its namespaces only.
    #[must_use]
    pub fn deployed(&self) -> Deployed {
        Deployed::new(self.topology.clone(), self.prefix())
    }

    /// What the names of its namespaces begin with.
    fn prefix(&self) -> String {
        match self.containers {
            true => format!("{}-", self.name),
            false => prefix(&self.name),
        }
    }

    /// Whether its nodes are containers of ContainerLab.
    #[must_use]
    pub fn has_containers(&self) -> bool {
        self.containers
    }

    /// A node.
    ///
    /// # Errors
    /// [`FabricError::NoSuchNode`].
    pub fn node(&self, name: &str) -> Result<Node, FabricError> {
        let settings = self
            .topology
            .nodes
            .get(name)
            .ok_or_else(|| FabricError::NoSuchNode(name.to_owned()))?;
        let owner = settings.shares.as_deref().unwrap_or(name);
        let mut settings = settings.clone();
        if let Some(of) = settings.shares.as_ref().and_then(|owner| self.topology.nodes.get(owner))
        {
            // As in Docker, they share the host name, too.
            settings.hostname = of.hostname.clone().or_else(|| settings.shares.clone());
        }
        Ok(Node {
            name: name.to_owned(),
            namespace: format!("{}{owner}", self.prefix()),
            settings,
            state: self.state.clone(),
            container: self.containers.then(|| format!("{}{name}", self.prefix())),
        })
    }

    /// The name of a namespace between nodes: one of [`BETWEEN`].
    pub(crate) fn between(&self, what: &str) -> String {
        between(&self.name, what)
    }

    /// All nodes, sorted by name.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        self.topology.nodes.keys().filter_map(|name| self.node(name).ok()).collect()
    }

    /// The processes that the lab started and that are still running, without the first one of each
    /// node.
    ///
    /// # Errors
    /// If the state on disk is damaged.
    pub fn processes(&self) -> Result<Vec<Record>, FabricError> {
        let mut records = self.state.records()?;
        records.retain(|record| record.name != INIT && record.identity.alive());
        Ok(records)
    }

    /// Whether the kernel supports the hash seeds that the topology requires. Without them, all
    /// routers on this kernel compute the same hash, and each tier repeats the choice of the
    /// previous one.
    #[must_use]
    pub fn hash_seeds(&self) -> bool {
        let required =
            self.topology.nodes.values().any(|node| node.sysctls.contains_key(HASH_SEED));
        !required || sysctl_path(HASH_SEED).exists()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Err(error) = remove(&self.name, &self.state, &self.topology)
        {
            note(error);
        }
    }
}

/// Namespaces between nodes: for the tunnels of `vxlan-stitch` links, and the management network.
const BETWEEN: [&str; 2] = ["stitch", "mgmt"];

/// No node has this name, because it begins with a full stop.
fn between(name: &str, what: &str) -> String {
    format!("{}.{what}", prefix(name))
}

fn prefix(name: &str) -> String {
    format!("lab-{name}-")
}

pub(crate) fn sysctl_path(name: &str) -> std::path::PathBuf {
    std::path::Path::new("/proc/sys").join(name.replace('.', "/"))
}

/// A process in a node that the lab did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignProcess {
    /// The node.
    pub node: String,
    /// The process id.
    pub pid: i32,
    /// Its command line.
    pub command: String,
}

fn list(foreign: &[ForeignProcess]) -> String {
    let line = |ForeignProcess { node, pid, command }: &ForeignProcess| {
        format!("\n  kill {pid}   # {command}, in {node}")
    };
    foreign.iter().map(line).collect()
}

/// Finds processes in the fabric's namespaces that are neither recorded, nor descendants of a
/// recorded process, nor this process.
fn foreign_processes(
    name: &str,
    records: &[Record],
    topology: &Topology,
) -> Result<Vec<ForeignProcess>, FabricError> {
    let processes = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let machine = processes(std::process::id().cast_signed());
    let first = records.iter().filter(|record| record.name == INIT && record.identity.alive());
    // What runs in the PID namespace of a node ends with its first process.
    let of_nodes: BTreeSet<_> = first
        .filter_map(|record| processes(record.identity.pid))
        .filter(|of| Some(of) != machine.as_ref())
        .collect();
    let known = |pid: i32| {
        pid == std::process::id().cast_signed()
            || ancestry(pid).any(|pid| records.iter().any(|record| record.identity.pid == pid))
            || processes(pid).is_some_and(|of| of_nodes.contains(&of))
    };
    let mut foreign = Vec::new();
    for node in topology.nodes.keys() {
        // The node shares a namespace, or its namespace does not exist yet.
        let Ok(namespace) = Namespace::open(format!("{}{node}", prefix(name))) else { continue };
        for pid in namespace.pids()?.into_iter().filter(|pid| !known(*pid)) {
            let command = command_line(pid).unwrap_or_else(|| "?".to_owned());
            foreign.push(ForeignProcess { node: node.clone(), pid, command });
        }
    }
    Ok(foreign)
}

/// Ends the recorded processes. Then removes the namespaces with their links, and the state on
/// disk.
fn remove(name: &str, state: &State, topology: &Topology) -> Result<(), FabricError> {
    let records = state.records()?;
    let mut found = Ok(Vec::new());
    // Give processes that are about to end the time to do so.
    wait_until(EXIT_LIMIT, || {
        found = foreign_processes(name, &records, topology);
        found.as_ref().is_ok_and(Vec::is_empty)
    });
    let foreign = found?;
    if !foreign.is_empty() {
        return Err(FabricError::Occupied { fabric: name.to_owned(), foreign });
    }
    let (first, others): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.name == INIT);
    for record in &others {
        // `stop` below reports processes that cannot be ended.
        let _ = record.identity.signal(Signal::SIGTERM);
    }
    for record in others {
        record.identity.stop(GRACE).map_err(NodeError::from)?;
        // It may be a child of this process.
        let _ = waitpid(Pid::from_raw(record.identity.pid), Some(WaitPidFlag::WNOHANG));
    }
    for record in first {
        // The kernel kills the node's other processes with it. It waits for their parents to reap
        // them, which process 1 of a container may never do.
        let _ = record.identity.signal(Signal::SIGKILL);
    }
    for node in topology.nodes.keys() {
        // Otherwise the state on disk would be removed with the machine's files in it.
        node_root::remove(&state.node(node)).map_err(|(target, source)| NodeError::Mount {
            node: node.clone(),
            target,
            source,
        })?;
        // The node shares a namespace, or its namespace does not exist yet.
        let Ok(namespace) = Namespace::open(format!("{}{node}", prefix(name))) else { continue };
        netns::delete(namespace.name())?;
    }
    for what in BETWEEN {
        if let Ok(between) = Namespace::open(between(name, what)) {
            netns::delete(between.name())?;
        }
    }
    Ok(state.remove()?)
}
