//! A fabric with a dataplane on its leaves, and the measurement of one run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use experiment::Experiment;
use experiment::Run;
use experiment::file::{BINS, Dataplane};
use experiment::plan::Key;
use experiment::record::{Role, Tier};
use experiment::units::InnerPort;

use super::{RunError, Settings};
use crate::daemon::{self, Daemon};
use crate::deployed::{Deployed, Host, Overlay};
use crate::fabric::Fabric;
use crate::machine;
use crate::process::wait_until;
use crate::progress::OnProgress;
use crate::roce::Limit;
use crate::spread::{self, Paths};
use crate::stream::Stream;
use crate::topology::Topology;

const CONVERGENCE_LIMIT: Duration = Duration::from_secs(240);
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
/// How long vtepd may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of attempts of a run, if routes change meanwhile.
const ATTEMPTS: u32 = 5;

/// A fabric that is up.
pub(super) struct Bench<'a> {
    settings: &'a Settings,
    experiment: &'a Experiment,
    fabric: Fabric,
    deployed: Deployed,
    from: Host,
    to: Host,
    paths: Paths,
    /// The number of VNIs of each leaf.
    leaves: BTreeMap<String, usize>,
    daemons: Vec<Daemon>,
    /// The settings of vtepd; `None` if kernel VXLAN forwards.
    current: Option<daemon::Settings>,
}

impl<'a> Bench<'a> {
    /// Brings the fabric up. Kernel VXLAN forwards.
    pub(super) fn up(
        settings: &'a Settings,
        experiment: &'a Experiment,
        topology: &Path,
        name: &str,
        report: OnProgress,
    ) -> Result<Self, RunError> {
        let fabric = Fabric::up(Topology::load(topology)?, Some(name), report)?;
        fabric.converge(CONVERGENCE_LIMIT, report)?;
        let deployed = fabric.deployed();
        let overlay = deployed.overlay()?;
        let (from, to) = ends(experiment, fabric.topology(), &overlay)?;
        let paths = Paths::new(fabric.topology(), &from.leaf, &to.leaf);
        let mut leaves = BTreeMap::new();
        for tunnel in &overlay.tunnels {
            *leaves.entry(tunnel.node.clone()).or_default() += 1;
        }
        Ok(Self {
            settings,
            experiment,
            fabric,
            deployed,
            from,
            to,
            paths,
            leaves,
            daemons: Vec::new(),
            current: None,
        })
    }

    /// Takes the fabric down.
    pub(super) fn down(self) -> Result<(), RunError> {
        Ok(self.fabric.down()?)
    }

    /// Makes a dataplane forward on all leaves, with this seed of its hashes.
    pub(super) fn switch(&mut self, dataplane: &Dataplane, seed: u64) -> Result<(), RunError> {
        let wanted = (!dataplane.is_kernel()).then(|| wanted(dataplane, seed));
        if self.current == wanted {
            return Ok(());
        }
        let Some(settings) = wanted else {
            self.current = None;
            for daemon in self.daemons.drain(..) {
                daemon.identity().stop(STOP_LIMIT)?;
            }
            return Ok(());
        };
        if self.daemons.is_empty() {
            for leaf in self.leaves.keys() {
                let node = self.fabric.node(leaf)?;
                let daemon = Daemon::start(&node, &self.settings.vtepd, settings.clone(), &[])?;
                self.daemons.push(daemon);
            }
        } else {
            let before: Vec<_> = self.daemons.iter().map(Daemon::generations).collect();
            self.daemons.iter().try_for_each(|daemon| daemon.reload(settings.clone()))?;
            for (daemon, before) in self.daemons.iter().zip(before) {
                // `wait` below reports a vtepd that has not followed.
                wait_until(ATTACH_LIMIT, || {
                    !daemon.identity().alive()
                        || daemon.generations().iter().zip(before).all(|(now, then)| *now > then)
                });
            }
        }
        for (daemon, vnis) in self.daemons.iter().zip(self.leaves.values()) {
            daemon.wait(settings.clone(), *vnis, ATTACH_LIMIT)?;
        }
        self.current = Some(settings);
        Ok(())
    }

    /// Measures a run. It is repeated if routes change meanwhile: on a busy machine, a late BFD
    /// packet can take a link down, and the result then says nothing about the dataplane.
    pub(super) fn measure(
        &self,
        key: Key,
        report: OnProgress,
        interrupted: &AtomicBool,
    ) -> Result<Run, RunError> {
        for attempt in 1..=ATTEMPTS {
            let before = self.deployed.routes()?;
            let run = self.send(&key, attempt, interrupted)?;
            if self.deployed.routes()? == before {
                return Ok(run);
            }
            report(&format!("routes changed during a run of {}: again", key.dataplane))?;
            self.fabric.converge(CONVERGENCE_LIMIT, report)?;
        }
        Err(RunError::Unstable(ATTEMPTS))
    }

    /// Sends the frames of a run and reads the load of each link.
    fn send(&self, key: &Key, attempts: u32, interrupted: &AtomicBool) -> Result<Run, RunError> {
        let traffic = &self.experiment.traffic;
        let queue_pairs = key.point.queue_pairs.get();
        let frames = u64::from(traffic.frames.get()) * queue_pairs as u64;
        let (rate, limit) = (traffic.rate.get(), Limit::Frames(frames));
        let own_ports = key.point.inner_port == InnerPort::PerQueuePair;
        let stream =
            Stream::between(&self.deployed, &self.from, &self.to, queue_pairs, rate, limit)?
                .with(key.seed, own_ports);
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let (busy, total) = machine::cpu_time();
        let before = self.paths.loads(&self.deployed)?;
        let (sent, arrived) = stream.run(interrupted, |_| Ok::<_, RunError>(()))?;
        let spread = self.paths.spread(&before, &self.paths.loads(&self.deployed)?, &arrived);
        let (busy_after, total_after) = machine::cpu_time();
        let ticks = total_after.saturating_sub(total).max(1);
        Ok(Run {
            key: key.clone(),
            unix_time,
            tiers: tiers(&self.paths, &spread.links),
            sent: sent.frames,
            lost: spread.lost,
            reordered: spread.reordered,
            duplicated: spread.duplicated,
            seconds: sent.nanoseconds as f64 / 1e9,
            busy: busy_after.saturating_sub(busy) as f64 / ticks as f64,
            attempts,
        })
    }
}

/// The settings of vtepd for a dataplane.
fn wanted(dataplane: &Dataplane, seed: u64) -> daemon::Settings {
    daemon::Settings {
        policy: dataplane.policy.to_string(),
        datapath: dataplane.datapath.as_ref().map(ToString::to_string),
        bins: dataplane.bins.unwrap_or(BINS).into(),
        seed,
    }
}

/// The loads by tier.
fn tiers(paths: &Paths, loads: &BTreeMap<String, u64>) -> Vec<Tier> {
    let names = paths.tiers();
    let last = names.len().saturating_sub(1);
    let tier = |(at, names): (usize, &Vec<String>)| {
        let role = match at {
            0 => Role::Leaf,
            at if at == last => Role::FarLeaf,
            _ => Role::Spine,
        };
        let load = |name: &String| (name.clone(), loads.get(name).copied().unwrap_or_default());
        Tier { role, links: names.iter().map(load).collect() }
    };
    names.iter().enumerate().map(tier).collect()
}

/// The two hosts of the experiment.
fn ends(
    experiment: &Experiment,
    topology: &Topology,
    overlay: &Overlay,
) -> Result<(Host, Host), RunError> {
    let named = |name: &experiment::units::Name| {
        let found = overlay.hosts.iter().find(|host| host.end.node == name.as_str());
        found.cloned().ok_or_else(|| {
            let hosts: Vec<&str> =
                overlay.hosts.iter().map(|host| host.end.node.as_str()).collect();
            RunError::NoHosts(format!("'{name}' is no host: expected {}", hosts.join(", ")))
        })
    };
    let chosen = spread::ends(topology, overlay);
    let missing = || {
        RunError::NoHosts("the fabric has no two hosts of one VNI at different leaves".to_owned())
    };
    let traffic = &experiment.traffic;
    let (from, to) = match (&traffic.from, &traffic.to) {
        (Some(from), Some(to)) => (named(from)?, named(to)?),
        (from, to) => {
            let (first, second) = chosen.ok_or_else(missing)?;
            let from = from.as_ref().map_or_else(|| Ok(first.clone()), named)?;
            (from, to.as_ref().map_or_else(|| Ok(second.clone()), named)?)
        }
    };
    if from.vni != to.vni || from.leaf == to.leaf {
        let (from, to) = (from.end.node, to.end.node);
        return Err(RunError::NoHosts(format!(
            "{from} and {to} are not two hosts of one VNI at different leaves"
        )));
    }
    Ok((from, to))
}
