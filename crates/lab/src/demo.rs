//! Sends the same traffic through kernel VXLAN and through vtepd with each of its policies, on one
//! fabric.

mod figures;
mod report;
mod setup;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::daemon::{Daemon, DaemonError, Policy};
use crate::leaves::{self, LeavesError};
use fabric::counters::CountersError;
use fabric::deployed::{Deployed, DeployedError, Host};
use fabric::netns::NetnsError;
use fabric::node::NodeError;
use fabric::progress::{Interrupted, OnProgress};
use fabric::topology::{Topology, TopologyError};
use fabric::{Fabric, FabricError};
use traffic::roce::{Limit, RoceError};
use traffic::spread::{self, Paths};
use traffic::stream::{Stream, Streamed};

pub use figures::{Figures, FiguresError};
pub use report::{Outcome, PolicyOutcome};
pub use setup::{Settings, Setup};

/// The default name of the demo's fabric.
pub const FABRIC: &str = "demo";

/// The topology file of the demo in this repository.
pub const TOPOLOGY: &str = "deploy/containerlab/scaleacross.clab.yml";

/// The name of the measurement without vtepd.
pub(crate) const KERNEL: &str = "kernel";
/// The number of VNIs on each leaf.
const VNIS: usize = 2;
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(240);
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// How often the progress of a measurement is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of measurements of a policy, if routes change meanwhile.
const ATTEMPTS: u32 = 3;

/// The demo could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The topology file cannot be used.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An operation on the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The overlay could not be read.
    #[error(transparent)]
    Deployed(#[from] DeployedError),
    /// vtepd does not find its paths.
    #[error(transparent)]
    Leaves(#[from] LeavesError),
    /// The user interrupted the command.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// An operation on a node failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An operation on a namespace failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// vtepd could not be run.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The traffic could not be sent or received.
    #[error(transparent)]
    Roce(#[from] RoceError),
    /// The interface counters could not be read.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// The fabric has no two hosts that could exchange traffic.
    #[error("the fabric has no two hosts of one VNI at different leaves")]
    NoHosts,
}

/// The parameters of the measurements.
struct Traffic<'a> {
    settings: &'a Settings,
    report: OnProgress<'a>,
    interrupted: &'a AtomicBool,
    fabric: &'a Fabric,
    deployed: &'a Deployed,
    from: &'a Host,
    to: &'a Host,
    paths: &'a Paths,
    /// The number of best path changes when the fabric last converged.
    stable: Vec<u64>,
}

/// Brings the fabric up and measures kernel VXLAN and every policy. The caller keeps or drops the
/// fabric.
///
/// # Errors
/// [`DemoError`]. The fabric has been taken down then.
pub fn run(
    settings: &Settings,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<(Fabric, Outcome), DemoError> {
    let setup = Setup::of(settings);
    let fabric = Fabric::up(Topology::load(&settings.topology)?, Some(&settings.fabric), report)?;
    fabric.converge(CONVERGENCE_LIMIT, report)?;
    let stable = fabric.best_path_changes()?;
    let deployed = fabric.deployed();
    let overlay = deployed.overlay()?;
    let (from, to) = spread::ends(fabric.topology(), &overlay).ok_or(DemoError::NoHosts)?;
    let paths = Paths::new(fabric.topology(), &from.leaf, &to.leaf);
    let mut traffic = Traffic {
        settings,
        report,
        interrupted,
        fabric: &fabric,
        deployed: &deployed,
        from,
        to,
        paths: &paths,
        stable,
    };
    let mut policies = vec![traffic.measure_on_stable_routes(None)?];

    let mut daemons: Vec<Daemon> = Vec::new();
    for policy in [Policy::FiveTuple, Policy::QpBins, Policy::QpHash, Policy::QpPin] {
        if daemons.is_empty() {
            report("starting vtepd on every leaf")?;
            for node in fabric.nodes().iter().filter(|node| node.name().starts_with("leaf")) {
                daemons.push(Daemon::start(node, &settings.vtepd, policy, &[])?);
            }
        } else {
            report(&format!("changing the policy to {policy} on every leaf"))?;
            daemons.iter().try_for_each(|daemon| daemon.reload(policy))?;
        }
        for daemon in &daemons {
            daemon.wait(policy, VNIS, ATTACH_LIMIT)?;
        }
        if policy == Policy::QpPin {
            leaves::await_paths(&fabric, policy, report)?;
        }
        report(&format!("{policy}: vtepd forwards on all {} leaves", daemons.len()))?;
        policies.push(traffic.measure_on_stable_routes(Some(policy))?);
    }
    let outcome = Outcome {
        setup,
        between: paths.widest(),
        tiers: paths.tiers(),
        hash_seeds: fabric.hash_seeds(),
        policies,
    };
    Ok((fabric, outcome))
}

impl Traffic<'_> {
    /// Measures a policy, and repeats it if a best path changed since the fabric last converged. On a
    /// busy machine, a late BFD packet can take a link down, and the result then says nothing about
    /// the policy.
    fn measure_on_stable_routes(
        &mut self,
        policy: Option<Policy>,
    ) -> Result<PolicyOutcome, DemoError> {
        let mut attempts = 1;
        loop {
            let outcome = PolicyOutcome { attempts, ..self.measure(policy)? };
            if self.fabric.best_path_changes()? == self.stable || attempts == ATTEMPTS {
                return Ok(outcome);
            }
            (self.report)(&format!(
                "{}: BGP changed paths meanwhile, so it is measured again",
                outcome.name
            ))?;
            self.stable = self.fabric.settle(CONVERGENCE_LIMIT, self.report, || {
                if policy == Some(Policy::QpPin) {
                    leaves::await_moves(self.fabric, Policy::QpPin, self.report)?;
                }
                Ok::<_, DemoError>(())
            })?;
            attempts += 1;
        }
    }

    /// Sends the frames once and reads the load of each link.
    fn measure(&self, policy: Option<Policy>) -> Result<PolicyOutcome, DemoError> {
        let name = policy.map_or_else(|| KERNEL.to_owned(), |policy| policy.to_string());
        let Self { settings, report, interrupted, deployed, from, to, paths, .. } = self;
        let limit = Limit::Frames(settings.frames);
        let stream =
            Stream::between(deployed, from, to, settings.queue_pairs, settings.rate, limit)?;
        let before = paths.loads(deployed)?;
        report(&format!("{name}: sending {} frames", settings.frames))?;
        let mut reported = Instant::now();
        let Streamed { arrived, .. } = stream.run(interrupted, |progress| {
            if reported.elapsed() < REPORT_INTERVAL {
                return Ok(());
            }
            reported = Instant::now();
            let percent = progress.sent * 100 / settings.frames.max(1);
            Ok::<_, DemoError>(report(&format!(
                "{name}: {percent} % of {} frames sent",
                settings.frames
            ))?)
        })?;
        report(&format!("{name}: {} frames received", arrived.received()))?;
        let spread = paths.spread(&before, &paths.loads(deployed)?, &arrived);
        Ok(PolicyOutcome { name, attempts: 1, spread })
    }
}
