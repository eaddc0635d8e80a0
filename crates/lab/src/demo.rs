//! The same traffic through kernel VXLAN and through vtepd by each of its policies, on one fabric that stays up.

mod report;
mod setup;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::counters::{self, CountersError};
use crate::daemon::{Daemon, DaemonError, Policy};
use crate::fabric::{Fabric, FabricError, OnProgress};
use crate::netns::NetnsError;
use crate::node::NodeError;
use crate::roce::{End, Limit, RoceError, Stream};
use crate::topology::{Endpoint, Topology, TopologyError};

pub use report::{Outcome, PolicyOutcome};
pub use setup::Setup;

/// What the demo's fabric is called unless told otherwise.
pub const FABRIC: &str = "demo";

/// The file of its fabric, in this repository.
pub const TOPOLOGY: &str = "deploy/containerlab/scaleacross.clab.yml";

const SENDER: &str = "host1";
const RECEIVER: &str = "host4";
const RECEIVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 4);
const HOST_INTERFACE: &str = "eth1";
/// VNIs on each leaf.
const VNIS: usize = 2;
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(90);
const ATTACH_LIMIT: Duration = Duration::from_secs(30);

/// The demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The topology file.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// vtepd.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The traffic.
    #[error(transparent)]
    Roce(#[from] RoceError),
    /// The counters.
    #[error(transparent)]
    Counters(#[from] CountersError),
}

/// What to show.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the fabric is called; [`FABRIC`] by default.
    pub fabric: String,
    /// The ScaleAcross topology file.
    pub topology: PathBuf,
    /// The vtepd program.
    pub vtepd: PathBuf,
    /// Queue pairs between the two hosts.
    pub queue_pairs: usize,
    /// Frames per second.
    pub rate: u32,
    /// Frames per policy.
    pub frames: u64,
}

/// A link of the topology, in the direction of the traffic: from the first data centre to the second.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Direction {
    /// `node:interface` of the end that is named after what it is: a leaf's uplink, or a spine's `dci` of the sender's side.
    name: Endpoint,
    /// Whether frames leave there, or arrive.
    sends: bool,
    /// Between the data centres?
    between: bool,
}

/// Brings the fabric up and shows every policy. The caller keeps the fabric or lets it go.
///
/// # Errors
/// [`DemoError`]; the fabric has been taken down then.
pub fn run(
    settings: &Settings,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<(Fabric, Outcome), DemoError> {
    let setup = Setup::of(settings);
    let fabric = Fabric::up(Topology::load(&settings.topology)?, Some(&settings.fabric), report)?;
    fabric.converge(CONVERGENCE_LIMIT, report)?;
    let directions = directions(fabric.topology());
    let mut policies = vec![measure(&fabric, settings, &directions, None, report, interrupted)?];

    let mut daemons: Vec<Daemon> = Vec::new();
    for policy in [Policy::FiveTuple, Policy::QpBins, Policy::QpHash] {
        if daemons.is_empty() {
            report("vtepd takes over on every leaf")?;
            for node in fabric.nodes().iter().filter(|node| node.name().starts_with("leaf")) {
                daemons.push(Daemon::start(node, &settings.vtepd, policy, &[])?);
            }
        } else {
            report(&format!("vtepd changes to {policy} on every leaf"))?;
            daemons.iter().try_for_each(|daemon| daemon.reload(policy))?;
        }
        for daemon in &daemons {
            daemon.wait(policy, VNIS, ATTACH_LIMIT)?;
        }
        report(&format!("{policy}: vtepd forwards on all {} leaves", daemons.len()))?;
        policies.push(measure(&fabric, settings, &directions, Some(policy), report, interrupted)?);
    }
    let between = directions.iter().filter(|direction| direction.between);
    let outcome = Outcome {
        setup,
        between: between.map(|direction| direction.name.to_string()).collect(),
        on_the_way: on_the_way(&directions, fabric.topology()),
        hash_seeds: fabric.hash_seeds(),
        policies,
    };
    Ok((fabric, outcome))
}

/// Sends the frames once and reads what each link carried meanwhile.
fn measure(
    fabric: &Fabric,
    settings: &Settings,
    directions: &[Direction],
    policy: Option<Policy>,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<PolicyOutcome, DemoError> {
    let name = policy.map_or_else(|| "kernel".to_owned(), |policy| policy.to_string());
    let end = |node: &str| {
        Ok::<_, DemoError>(End {
            namespace: fabric.node(node)?.namespace()?,
            interface: HOST_INTERFACE.to_owned(),
        })
    };
    let stream = Stream {
        from: end(SENDER)?,
        to: end(RECEIVER)?,
        address: RECEIVER_ADDRESS,
        queue_pairs: settings.queue_pairs,
        rate: settings.rate,
        limit: Limit::Frames(settings.frames),
    };
    let before = loads(fabric, directions)?;
    let mut shown = 0;
    let (_, arrived) = stream.run(interrupted, |frames| {
        let percent = frames * 100 / settings.frames.max(1);
        if percent < shown + 10 {
            return Ok(());
        }
        shown = percent;
        Ok::<_, DemoError>(report(&format!("{name}: {percent} % of {} frames sent", settings.frames))?)
    })?;
    report(&format!("{name}: {} frames received", arrived.received()))?;
    let links = loads(fabric, directions)?
        .into_iter()
        .map(|(name, after)| {
            let carried = after - before.get(&name).copied().unwrap_or_default();
            (name, carried)
        })
        .collect();
    let between: Vec<String> = directions
        .iter()
        .filter(|direction| direction.between)
        .map(|direction| direction.name.to_string())
        .collect();
    Ok(PolicyOutcome::new(name, links, &between, &arrived))
}

/// Frames that each link has carried in the traffic's direction.
fn loads(fabric: &Fabric, directions: &[Direction]) -> Result<BTreeMap<String, u64>, DemoError> {
    let mut loads = BTreeMap::new();
    for direction in directions {
        let counters = counters::read(&fabric.node(&direction.name.node)?.namespace()?)?;
        let interface = counters.get(&direction.name.interface).copied().unwrap_or_default();
        let frames = if direction.sends { interface.tx_packets } else { interface.rx_packets };
        loads.insert(direction.name.to_string(), frames);
    }
    Ok(loads)
}

/// All uplinks and all links between the data centres. The sender's data centre is the one whose spines the links
/// between name first.
fn directions(topology: &Topology) -> Vec<Direction> {
    let ends = |prefix: &'static str| {
        topology.links.iter().filter_map(move |link| {
            let [a, b] = &link.ends;
            (a.interface.starts_with(prefix)).then_some((a, b))
        })
    };
    let first_spines: Vec<&str> = ends("dci").map(|(a, _)| a.node.as_str()).collect();
    let uplinks = ends("up").map(|(leaf, spine)| Direction {
        name: leaf.clone(),
        sends: first_spines.contains(&spine.node.as_str()),
        between: false,
    });
    let between = ends("dci").map(|(spine, _)| Direction { name: spine.clone(), sends: true, between: true });
    uplinks.chain(between).collect()
}

/// The names of the links that the traffic can take, in its order, in groups that share it.
fn on_the_way(directions: &[Direction], topology: &Topology) -> Vec<Vec<String>> {
    let leaf_of = |host: &str| {
        let end = Endpoint { node: host.to_owned(), interface: HOST_INTERFACE.to_owned() };
        topology.peer(&end).map(|end| end.node.clone()).unwrap_or_default()
    };
    let uplinks = |leaf: String| {
        let of_leaf =
            directions.iter().filter(move |direction| direction.name.node == leaf && !direction.between);
        of_leaf.map(|direction| direction.name.to_string()).collect::<Vec<_>>()
    };
    let between = directions.iter().filter(|direction| direction.between);
    vec![
        uplinks(leaf_of(SENDER)),
        between.map(|direction| direction.name.to_string()).collect(),
        uplinks(leaf_of(RECEIVER)),
    ]
}
