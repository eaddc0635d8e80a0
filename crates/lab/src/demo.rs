//! The same traffic through kernel VXLAN and through vtepd by each of its policies, on one fabric
//! that stays up.

mod figures;
mod report;
mod setup;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::counters::CountersError;
use crate::daemon::{Daemon, DaemonError, Policy};
use crate::deployed::{Deployed, Host};
use crate::fabric::{Fabric, FabricError, OnProgress};
use crate::netns::NetnsError;
use crate::node::NodeError;
use crate::roce::{Limit, RoceError, Stream};
use crate::spread::{self, Way};
use crate::topology::{Topology, TopologyError};

pub use figures::{Figures, FiguresError};
pub use report::{Outcome, PolicyOutcome};
pub use setup::Setup;

/// What the demo's fabric is called unless told otherwise.
pub const FABRIC: &str = "demo";

/// The file of its fabric, in this repository.
pub const TOPOLOGY: &str = "deploy/containerlab/scaleacross.clab.yml";

/// What the figures without vtepd are called.
pub(crate) const KERNEL: &str = "kernel";
/// VNIs on each leaf.
const VNIS: usize = 2;
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(240);
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// A policy is measured so often at most, if routes change meanwhile.
const ATTEMPTS: u32 = 3;

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
    /// There is nobody to send to.
    #[error("the fabric has no two hosts of one VNI at different leaves")]
    NoHosts,
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

/// Who sends to whom, which way, and what is told of it.
struct Traffic<'a> {
    settings: &'a Settings,
    report: OnProgress<'a>,
    interrupted: &'a AtomicBool,
    fabric: &'a Fabric,
    deployed: &'a Deployed,
    from: &'a Host,
    to: &'a Host,
    way: &'a Way,
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
    let deployed = fabric.deployed();
    let overlay = deployed.overlay()?;
    let (from, to) = spread::ends(fabric.topology(), &overlay).ok_or(DemoError::NoHosts)?;
    let way = Way::new(fabric.topology(), &from.leaf, &to.leaf);
    let traffic = Traffic {
        settings,
        report,
        interrupted,
        fabric: &fabric,
        deployed: &deployed,
        from,
        to,
        way: &way,
    };
    let mut policies = vec![traffic.measure_on_calm_routes(None)?];

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
        policies.push(traffic.measure_on_calm_routes(Some(policy))?);
    }
    let outcome = Outcome {
        setup,
        between: way.widest(),
        on_the_way: way.tiers(),
        hash_seeds: fabric.hash_seeds(),
        policies,
    };
    Ok((fabric, outcome))
}

impl Traffic<'_> {
    /// Measures a policy, once more where a path changed meanwhile (BFD takes a link down when a
    /// busy machine does not let it speak): what traffic did then says nothing about the policy.
    fn measure_on_calm_routes(&self, policy: Option<Policy>) -> Result<PolicyOutcome, DemoError> {
        let mut before = self.fabric.best_path_changes()?;
        let mut attempts = 1;
        loop {
            let outcome = PolicyOutcome { attempts, ..self.measure(policy)? };
            let after = self.fabric.best_path_changes()?;
            if before == after || attempts == ATTEMPTS {
                return Ok(outcome);
            }
            (self.report)(&format!(
                "{}: BGP changed paths meanwhile, so it is measured again",
                outcome.name
            ))?;
            self.fabric.converge(CONVERGENCE_LIMIT, self.report)?;
            before = self.fabric.best_path_changes()?;
            attempts += 1;
        }
    }

    /// Sends the frames once and reads what each link carried meanwhile.
    fn measure(&self, policy: Option<Policy>) -> Result<PolicyOutcome, DemoError> {
        let name = policy.map_or_else(|| KERNEL.to_owned(), |policy| policy.to_string());
        let Self { settings, report, interrupted, deployed, from, to, way, .. } = self;
        let limit = Limit::Frames(settings.frames);
        let stream =
            Stream::between(deployed, from, to, settings.queue_pairs, settings.rate, limit)?;
        let before = way.loads(deployed)?;
        let mut shown = 0;
        let (_, arrived) = stream.run(interrupted, |frames| {
            let percent = frames * 100 / settings.frames.max(1);
            if percent < shown + 10 {
                return Ok(());
            }
            shown = percent;
            Ok::<_, DemoError>(report(&format!(
                "{name}: {percent} % of {} frames sent",
                settings.frames
            ))?)
        })?;
        report(&format!("{name}: {} frames received", arrived.received()))?;
        let spread = way.spread(&before, &way.loads(deployed)?, &arrived);
        Ok(PolicyOutcome { name, attempts: 1, spread })
    }
}
