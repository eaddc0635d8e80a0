//! A fabric with a dataplane on its leaves, and the measurement of one run.

mod attempts;
mod bfd;
mod circuits;
mod drops;
mod failure;
mod pairs;
mod subjects;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use experiment::Experiment;
use experiment::Run;
use experiment::circuits::Circuits;
use experiment::file::{BINS, Dataplane};
use experiment::plan::Key;
use experiment::random::Random;
use experiment::record::{Discarded, Tier};
use experiment::role::Role;
use experiment::units::{InnerPort, Name};
use roce::SourcePort;

use super::Settings;
use crate::daemon::{self, Policy};
use crate::error::RunError;
use crate::leaves;
use crate::machine;
use circuits::Undo;
use fabric::Fabric;
use fabric::counters;
use fabric::deployed::{Deployed, Host, Overlay};
use fabric::netns::{self, NetnsError};
use fabric::progress::OnProgress;
use fabric::topology::{Endpoint, Topology};
use subjects::Subjects;
use traffic::completions::{Kind, Teller};
use traffic::roce::Limit;
use traffic::spread::{self, Paths};
use traffic::stream::{INNER_PORT, Stream};
use traffic::trace::Trace;

const CONVERGENCE_LIMIT: Duration = Duration::from_secs(240);
/// The processes that get real-time priority if a failure is measured.
const REAL_TIME: [&str; 2] = ["bfdd", "lab"];
/// Time between runs. For 0.1 s after its last frame, a policy that probes takes a queue pair for one
/// that sends, and would place those of the next run beside it. With 0.25 s, 3 of 90 short runs were
/// off the floor, probably for this.
const ENDED: Duration = Duration::from_millis(500);

/// A fabric that is up.
pub(super) struct Bench<'a> {
    settings: &'a Settings,
    experiment: &'a Experiment,
    fabric: Fabric,
    /// Live pages are told how long operations took.
    teller: Teller,
    deployed: Deployed,
    from: Host,
    to: Host,
    hosts: Vec<Host>,
    /// The nodes with VXLAN netdevs.
    leaves: BTreeSet<String>,
    paths: Paths,
    /// What is under test, and was so when the current dataplane and variant were set; `None` until
    /// the next run.
    subjects: Option<Subjects>,
    /// The settings of vtepd, without them kernel VXLAN; `None` if they are not known.
    current: Option<Option<daemon::Settings>>,
    /// The index of the variant that the routers have.
    variant: Option<usize>,
    /// The changes of the circuits.
    undo: Undo,
}

impl<'a> Bench<'a> {
    /// Brings the fabric up, or uses the one that is up. Kernel VXLAN forwards.
    pub(super) fn up(
        settings: &'a Settings,
        experiment: &'a Experiment,
        topology: &Path,
        name: &Name,
        report: OnProgress,
    ) -> Result<Self, RunError> {
        let (fabric, mut undo) = match settings.deployed {
            true => (attach(settings, topology)?, Undo::Changes(Vec::new())),
            false => (Fabric::up(Topology::load(topology)?, Some(name), report)?, Undo::Own(None)),
        };
        circuits::set(&fabric, experiment, &Circuits::default(), &mut undo)?;
        if experiment.has_failures() {
            run_before_others(&fabric)?;
        }
        fabric.converge(CONVERGENCE_LIMIT, report)?;
        let deployed = fabric.deployed();
        let overlay = deployed.overlay()?;
        let (from, to) = ends(experiment, fabric.topology(), &overlay)?;
        let paths = Paths::new(fabric.topology(), &from.leaf, &to.leaf);
        Ok(Self {
            settings,
            experiment,
            teller: Teller::of(fabric.name()),
            fabric,
            deployed,
            from,
            to,
            hosts: overlay.hosts,
            leaves: overlay.tunnels.into_iter().map(|tunnel| tunnel.node).collect(),
            paths,
            subjects: None,
            current: None,
            variant: None,
            undo,
        })
    }

    /// The fabric.
    pub(super) const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// A host of the workload.
    fn host(&self, name: &Name) -> Result<&Host, RunError> {
        let host = self.hosts.iter().find(|host| host.end.node == name.as_str());
        host.ok_or_else(|| {
            RunError::NoHosts(format!("'{name}' in 'sites' is no host of the fabric"))
        })
    }

    /// Takes the fabric down. One that was up before stays up: kernel VXLAN forwards, and circuits
    /// have their earlier properties.
    pub(super) fn down(self) -> Result<(), RunError> {
        if !self.settings.deployed {
            return Ok(self.fabric.down()?);
        }
        leaves::set(&self.fabric, &self.settings.vtepd, None, &[])?;
        drop(self.undo);
        Ok(())
    }

    /// Makes a dataplane forward on all leaves, with this seed of its hashes.
    fn switch(
        &mut self,
        dataplane: &Dataplane,
        seed: u64,
        report: OnProgress,
    ) -> Result<(), RunError> {
        let probing = probing(dataplane);
        // The leaves of several senders place by what they know of each other, and would do so as in
        // the repetition before. A vtepd that begins anew makes repetitions independent.
        let begins_anew = self.experiment.workload.is_some() && !self.settings.deployed;
        // After a change, a policy that probes finds its paths again, so it keeps one seed.
        let keeps = probing.is_some() && !begins_anew;
        let wanted = wanted(dataplane, if keeps { self.experiment.seed } else { seed });
        if self.current != Some(wanted.clone()) {
            (self.current, self.subjects) = (None, None);
            if probing.is_some() && begins_anew {
                leaves::set(&self.fabric, &self.settings.vtepd, None, &[])?;
            }
            leaves::set(&self.fabric, &self.settings.vtepd, wanted.as_ref(), &[])?;
            if let Some(policy) = probing {
                leaves::await_paths(&self.fabric, policy, report)?;
            }
            self.current = Some(wanted);
        }
        Ok(())
    }

    /// Configures all routers for a variant.
    fn vary(&mut self, key: &Key, report: OnProgress) -> Result<(), RunError> {
        let Some(index) = key.point.index() else {
            return Ok(());
        };
        if self.variant == Some(index) {
            return Ok(());
        }
        (self.variant, self.subjects) = (None, None);
        let Some(variant) = self.experiment.variants.get(index) else { return Ok(()) };
        let options = variant.commands.iter().flat_map(|command| ["-c", command.as_str()]);
        let words: Vec<&str> = std::iter::once("vtysh").chain(options).collect();
        if variant.routers.is_empty() && !variant.commands.is_empty() {
            for node in self.fabric.speakers()? {
                node.run(&words)?;
            }
        }
        for name in &variant.routers {
            self.fabric.node(name.as_str())?.run(&words)?;
        }
        let changed =
            circuits::set(&self.fabric, self.experiment, &variant.circuits, &mut self.undo)?;
        if self.experiment.has_failures() {
            run_before_others(&self.fabric)?;
        } else if !changed && variant.commands.is_empty() {
            self.variant = Some(index);
            return Ok(());
        }
        self.fabric.converge(CONVERGENCE_LIMIT, report)?;
        bfd::wait(&self.fabric, CONVERGENCE_LIMIT, report)?;
        if let Some(policy) = self.probes(key) {
            leaves::await_moves(&self.fabric, policy, report)?;
        }
        self.variant = Some(index);
        Ok(())
    }

    /// Whether vtepd is to forward.
    const fn has_vtepd(&self) -> bool {
        matches!(self.current, Some(Some(_)))
    }

    /// Measures a run without failures. It does not count if routes change meanwhile: on a busy
    /// machine, a late BFD packet can take a link down, and the result then says nothing about the
    /// dataplane.
    fn undisturbed(
        &self,
        key: &Key,
        report: OnProgress,
        interrupted: &AtomicBool,
    ) -> Result<Attempt, RunError> {
        if self.probes(key).is_some() {
            std::thread::sleep(ENDED);
        }
        let before = self.deployed.routes()?;
        let run = match &self.experiment.workload {
            Some(_) => workload::measure(self, key, interrupted)?,
            None => self.send(key, interrupted)?,
        };
        if self.deployed.routes()? == before {
            return Ok(Ok(run));
        }
        self.fabric.settle(CONVERGENCE_LIMIT, report, || {
            if let Some(policy) = self.probes(key) {
                leaves::await_moves(&self.fabric, policy, report)?;
            }
            Ok::<_, RunError>(())
        })?;
        Ok(Err(Discarded { reason: "routes changed".to_owned(), failed: false }))
    }

    /// The policy of a run, if it finds paths by probes.
    fn probes(&self, key: &Key) -> Option<Policy> {
        let mut dataplanes = self.experiment.dataplanes.iter();
        probing(dataplanes.find(|dataplane| dataplane.label() == key.dataplane)?)
    }

    /// The stream of a run.
    fn stream(&self, key: &Key, limit: Limit) -> Result<Stream, NetnsError> {
        let (queue_pairs, rate) = (key.point.queue_pairs.get(), self.experiment.traffic.rate.get());
        let stream =
            Stream::between(&self.deployed, &self.from, &self.to, queue_pairs, rate, limit)?;
        Ok(stream.with(key.numbers_seed(), source_port(key)))
    }

    /// Sends the frames of a run and reads the load of each link.
    fn send(&self, key: &Key, interrupted: &AtomicBool) -> Result<Run, RunError> {
        let traffic = &self.experiment.traffic;
        let frames = u64::from(traffic.frames.get()) * key.point.queue_pairs.get() as u64;
        let stream = self.stream(key, Limit::Frames(frames))?;
        self.observe(key, |run| {
            let (streamed, traced) = pairs::traced(self.trace(key)?, || {
                stream.run(interrupted, |_| Ok::<_, RunError>(()))
            })?;
            pairs::fill(run, &streamed, traced.as_ref(), None);
            self.tell(Kind::Stream, (key, "stream"), run.seconds * 1e9);
            Ok(Duration::try_from_secs_f64(run.seconds).unwrap_or_default())
        })
    }

    /// Tells live pages how many nanoseconds an operation of a run took that has ended now.
    fn tell(&self, kind: Kind, (key, name): (&Key, &str), nanoseconds: f64) {
        let took = Duration::try_from_secs_f64(nanoseconds / 1e9).unwrap_or_default();
        self.teller.tell(kind, &format!("{name}, {}", key.dataplane), took);
    }

    /// What follows the frames of a run. `None` if packets of a queue pair take all paths.
    fn trace(&self, key: &Key) -> Result<Option<Trace>, RunError> {
        let mut dataplanes = self.experiment.dataplanes.iter();
        let dataplane = dataplanes.find(|dataplane| dataplane.label() == key.dataplane);
        if dataplane.is_some_and(|dataplane| dataplane.policy.as_str() == "spray") {
            return Ok(None);
        }
        Ok(Some(Trace::open(&self.deployed, &self.from, &self.paths.senders())?))
    }

    /// Reads the load of each link and of the CPUs while `work` fills in the rest of a run and returns
    /// how long traffic flowed.
    fn observe(
        &self,
        key: &Key,
        work: impl FnOnce(&mut Run) -> Result<Duration, RunError>,
    ) -> Result<Run, RunError> {
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let cpus = machine::cpu_time();
        let before = self.paths.loads(&self.deployed)?;
        let bytes = self.circuit_bytes()?;
        let drops = drops::read(&self.deployed)?;
        let mut run = Run { key: key.clone(), unix_time, ..Run::default() };
        let time = work(&mut run)?;
        run.full = self.full(&bytes, time)?;
        run.dropped = drops::read(&self.deployed)?.since(&drops);
        let mut loads = self.paths.loads(&self.deployed)?;
        for (name, load) in &mut loads {
            *load = load.saturating_sub(before.get(name).copied().unwrap_or_default());
        }
        run.busy = machine::cpu_time().busy_since(&cpus);
        run.tiers = tiers(&self.paths, &loads);
        Ok(run)
    }
}

/// The bytes that the near ends of the links into circuits have sent.
type Bytes = BTreeMap<Endpoint, u64>;

impl Bench<'_> {
    fn circuit_bytes(&self) -> Result<Bytes, RunError> {
        let mut bytes = Bytes::new();
        for near in self.paths.circuits(self.deployed.topology()).into_keys() {
            let counters = counters::read(&self.deployed.namespace(&near.node)?)?;
            let sent = counters.get(&near.interface).map_or(0, |counters| counters.tx_bytes);
            bytes.insert(near, sent);
        }
        Ok(bytes)
    }

    /// The largest share of its rate that a circuit on the path carried since `before`, in `time`. The
    /// circuits themselves say what their rates are.
    fn full(&self, before: &Bytes, time: Duration) -> Result<Option<f64>, RunError> {
        let after = self.circuit_bytes()?;
        let mut full: Option<f64> = None;
        for (near, circuit) in self.paths.circuits(self.deployed.topology()) {
            let Some(rate) = circuits::rate(&self.deployed, &circuit)? else { continue };
            let [before, after] = [before, &after].map(|of| of.get(&near).copied());
            let bytes = after.unwrap_or_default().saturating_sub(before.unwrap_or_default());
            let share = bytes as f64 * 8.0 / (rate as f64 * time.as_secs_f64().max(1e-9));
            full = Some(full.map_or(share, |full| full.max(share)));
        }
        Ok(full)
    }
}

/// Gives BFD and the circuits real-time priority. Routers and circuits of hardware do not wait for
/// other work, and BFD with 10 ms × 3 bears no delay of 30 ms.
fn run_before_others(fabric: &Fabric) -> Result<(), RunError> {
    let mut pids = BTreeSet::new();
    for node in fabric.nodes() {
        let all = node.namespace()?.pids()?;
        pids.extend(all.into_iter().filter(|pid| REAL_TIME.contains(&&*program_name(*pid))));
    }
    for pid in pids {
        netns::run(&["chrt", "--all-tasks", "--rr", "--pid", "1", &pid.to_string()])?;
    }
    Ok(())
}

/// The result of an attempt: a run, or that it does not count.
type Attempt = Result<Run, Discarded>;

/// The name of a process; empty if it has ended.
fn program_name(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// The fabric of a topology file that is up. No vtepd runs in it.
fn attach(settings: &Settings, topology: &Path) -> Result<Fabric, RunError> {
    let mut topology = Topology::load(topology)?;
    if let Some(name) = &settings.fabric {
        topology.name.clone_from(name);
    }
    let fabric = Fabric::attach(topology)?;
    let leaves = leaves::taken_over(&fabric)?;
    if leaves.is_empty() { Ok(fabric) } else { Err(RunError::TakenOver(leaves)) }
}

/// The version of FRR in the experiment's fabrics, which must all be up.
pub(super) fn deployed_frr(
    settings: &Settings,
    experiment: &Experiment,
) -> Result<String, RunError> {
    let mut version = String::new();
    for topology in &experiment.topologies {
        let fabric = attach(settings, topology)?;
        if let Some(node) = fabric.speakers()?.first() {
            let text = node.run(&["vtysh", "-c", "show version"])?;
            // FRRouting 8.4.4 (leaf1) on Linux(6.18.0).
            text.split_whitespace().nth(1).unwrap_or_default().clone_into(&mut version);
        }
    }
    Ok(version)
}

/// The policy of a dataplane, if it finds paths by probes.
fn probing(dataplane: &Dataplane) -> Option<Policy> {
    dataplane.policy.as_str().parse().ok().filter(|policy: &Policy| policy.places_queue_pairs())
}

/// The settings of vtepd for a dataplane; `None` for kernel VXLAN. The names have been checked.
fn wanted(dataplane: &Dataplane, seed: u64) -> Option<daemon::Settings> {
    let scheme = dataplane.scheme.as_ref().and_then(|name| name.as_str().parse().ok());
    Some(daemon::Settings {
        policy: dataplane.policy.as_str().parse().ok()?,
        datapath: dataplane.datapath.as_ref().map(ToString::to_string),
        bins: dataplane.bins.unwrap_or(BINS).into(),
        scheme: scheme.unwrap_or(daemon::SCHEME),
        seed,
    })
}

/// The inner source ports of a run. Kernel VXLAN takes the path of one port for all queue pairs, so
/// each repetition draws another one, of the 2¹⁴ that RoCE uses.
fn source_port(key: &Key) -> SourcePort {
    match key.point.inner_port {
        InnerPort::Constant => {
            let drawn = Random::new(key.seed).below(1 << 14);
            SourcePort::Constant(INNER_PORT | drawn as u16)
        }
        InnerPort::PerQueuePair => SourcePort::PerQueuePair,
        InnerPort::SoftRoce => SourcePort::SoftRoce,
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
    let named = |name: &Name| {
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
    let site = |site: Option<&Vec<Name>>| site.and_then(|hosts| hosts.first().cloned());
    let from = traffic.from.clone().or_else(|| site(traffic.sites.first()));
    let to = traffic.to.clone().or_else(|| site(traffic.sites.last()));
    let (from, to) = match (from, to) {
        (Some(from), Some(to)) => (named(&from)?, named(&to)?),
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
