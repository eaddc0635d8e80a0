//! Sends the same traffic through kernel VXLAN and through vtepd with each of its policies, on one
//! fabric.

mod figures;
mod report;
mod setup;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fabric::Fabric;
use fabric::deployed::{Deployed, Host};
use fabric::progress::OnProgress;
use fabric::topology::Topology;
use study::RunError;
use study::daemon::{Daemon, Policy};
use study::leaves;
use traffic::roce::Limit;
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
/// [`RunError`]. The fabric has been taken down then.
pub fn run(
    settings: &Settings,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<(Fabric, Outcome), RunError> {
    let setup = Setup::of(settings);
    let fabric = Fabric::up(Topology::load(&settings.topology)?, Some(&settings.fabric), report)?;
    fabric.converge(CONVERGENCE_LIMIT, report)?;
    let stable = fabric.best_path_changes()?;
    let deployed = fabric.deployed();
    let overlay = deployed.overlay()?;
    let (from, to) = spread::ends(fabric.topology(), &overlay).ok_or_else(|| {
        RunError::NoHosts("the fabric has no two hosts of one VNI at different leaves".to_owned())
    })?;
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
    ) -> Result<PolicyOutcome, RunError> {
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
                Ok::<_, RunError>(())
            })?;
            attempts += 1;
        }
    }

    /// Sends the frames once and reads the load of each link.
    fn measure(&self, policy: Option<Policy>) -> Result<PolicyOutcome, RunError> {
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
            Ok::<_, RunError>(report(&format!(
                "{name}: {percent} % of {} frames sent",
                settings.frames
            ))?)
        })?;
        report(&format!("{name}: {} frames received", arrived.received()))?;
        let spread = paths.spread(&before, &paths.loads(deployed)?, &arrived);
        Ok(PolicyOutcome { name, attempts: 1, spread })
    }
}
