//! Access to the running takeover for the control task, the metrics and the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bpf::{
    BypassState, Hook, KillSwitch, Offload, OffloadCounts, OffloadTraffic, PlacedPorts,
    SteeringCounts, SteeringError,
};
use configuration::PortSummary;
use control::{Status, Update};
use netlink::Direction;
use path::Version;
use pipeline::counters::{Forwarded, Programs, vtep_id};
use pipeline::{CachedFlow, Counters, Pins};
use tables::{BypassPort, OpenPort, Snapshot, SteeringDiff, SteeringPlan, VtepIndex};
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use worker::{Features, Stations, Worker};

use crate::guard::Guarded;
use crate::own_links::OwnLinkError;
use crate::pinning::{Known, Shared};
use crate::program_drops::ProgramDrops;
use crate::takeover::{Takeover, TakeoverError};
use crate::{log, metrics_view};

/// Queue pairs whose paths are written before the control task can have the takeover.
const PINNED_AT_ONCE: usize = 256;

/// How long a worker may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// The running takeover with the state around it. The control task changes it; metrics and the API
/// read it.
#[derive(Debug)]
pub(crate) struct Handle {
    takeover: Mutex<Option<Takeover>>,
    snapshot: Mutex<Arc<Snapshot>>,
    plan: Mutex<Arc<SteeringPlan>>,
    /// Why the last configuration was rejected.
    not_configured: Mutex<Option<String>>,
    /// Why listeners are not open. The key is what they serve.
    not_served: Mutex<BTreeMap<&'static str, String>>,
    configurations: AtomicU64,
    /// Access ports, by their numbers.
    pub access: Vec<PortSummary>,
    /// The numbers of access ports whose interfaces are gone.
    gone_ports: Mutex<BTreeSet<u16>>,
    /// The counters of each worker.
    workers: Vec<Arc<Counters>>,
    /// What the programs drop.
    pub program_drops: Arc<ProgramDrops>,
    /// Whoever asks workers holds this, so that each has one question at a time.
    asking: tokio::sync::Mutex<()>,
    /// The status that the control task publishes.
    pub status: watch::Receiver<Status>,
    /// How programs are attached.
    pub hook: Hook,
    /// What the kernel can do.
    pub features: Features,
    /// Whether super-frames may be used where the kernel supports them.
    pub gso: bool,
    /// The placement of queue pairs; `None` without a key for probes.
    pub pinning: Option<Arc<Shared>>,
    /// State that is shared with the guard threads.
    guarded: Arc<Guarded>,
    /// When the daemon was started.
    pub start: Instant,
}

impl Handle {
    /// A handle for a takeover to which nothing has been published yet.
    pub(crate) fn new(
        takeover: Takeover,
        access: Vec<PortSummary>,
        hook: Hook,
        features: Features,
        (gso, pinning): (bool, Option<Arc<Shared>>),
        status: watch::Receiver<Status>,
        guarded: Arc<Guarded>,
    ) -> Self {
        Self {
            workers: takeover.counters(),
            program_drops: takeover.program_drops(),
            asking: tokio::sync::Mutex::default(),
            takeover: Mutex::new(Some(takeover)),
            snapshot: Mutex::default(),
            plan: Mutex::default(),
            configurations: AtomicU64::new(1),
            not_configured: Mutex::default(),
            not_served: Mutex::default(),
            access,
            gone_ports: Mutex::default(),
            status,
            hook,
            features,
            gso,
            pinning,
            guarded,
            start: Instant::now(),
        }
    }

    fn takeover(&self) -> MutexGuard<'_, Option<Takeover>> {
        self.takeover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `act` returns of the takeover; `None` after [`Self::stop`].
    fn with<T>(&self, act: impl FnOnce(&mut Takeover) -> T) -> Option<T> {
        self.takeover().as_mut().map(act)
    }

    /// Applies an update: publishes its snapshot and changes what is steered by `diff`.
    ///
    /// # Errors
    /// As [`Takeover::apply`].
    pub(crate) fn apply(&self, update: &Update, diff: &SteeringDiff) -> Result<(), TakeoverError> {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) =
            Arc::clone(&update.snapshot);
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&update.plan);
        self.with(|takeover| takeover.apply(update, diff)).unwrap_or(Ok(()))
    }

    /// The host ports to which workers may send frames past the bridge.
    pub(crate) fn open_ports(&self) -> Vec<OpenPort> {
        self.with(|takeover| takeover.steering().delivering_ports()).unwrap_or_default()
    }

    /// The snapshot that was published last.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The steering plan that was applied last.
    pub(crate) fn plan(&self) -> Arc<SteeringPlan> {
        Arc::clone(&self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The sum of the counters of all workers and of the `offload` datapath. VTEP counters are
    /// included for the VTEPs of the current snapshot only.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        let snapshot = self.snapshot();
        let offloaded = self.offload_counts(&snapshot);
        let steering = self.steering_counts();
        let by_programs = programs(&steering);
        if let ([one], true) = (self.workers.as_slice(), by_programs == Programs::default()) {
            return Arc::clone(one);
        }
        let vteps = snapshot.vteps().map(|vtep| vtep.address);
        let id = |address| Some(vtep_id(snapshot.find_vtep(address)?, &snapshot));
        let vteps = vteps.filter_map(id);
        let sum = Counters::sum(self.workers.iter().map(AsRef::as_ref), vteps);
        offloaded.vnis.iter().for_each(|(slot, counted)| sum.add_vni(*slot, &forwarded(counted)));
        sum.add_programs(&by_programs);
        for (index, counted) in &offloaded.vteps {
            sum.add_peer(vtep_id(VtepIndex(*index), &snapshot), &forwarded(counted));
        }
        for (path, counted) in &offloaded.paths {
            if let Some(all) = sum.path(*path) {
                all.add(counted.frames, counted.bytes);
            }
        }
        Arc::new(sum)
    }

    /// Writes the paths of some queue pairs that have changed for the `offload` datapath, or of all if
    /// `written`, the version of the tables for which they were written, is an old one. Returns the
    /// version now, and whether there is more to write. `None` if the takeover is being changed:
    /// probes are not to wait for that.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn pin_offloaded(
        &self,
        pinning: &Shared,
        written: Version<Offload>,
    ) -> Result<Option<(Version<Offload>, bool)>, SteeringError> {
        let mut takeover = match self.takeover.try_lock() {
            Ok(takeover) => takeover,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let Some(takeover) = takeover.as_mut() else { return Ok(None) };
        let steering = takeover.steering_mut();
        let version = steering.offload_version();
        if version != written {
            pinning.rewrite_all();
        }
        let changes = pinning.unwritten(PINNED_AT_ONCE);
        let pinned = steering.pin(&changes);
        if pinned.is_err() {
            pinning.rewrite(changes.iter().map(|(counter, _)| *counter));
        }
        pinned.map(|()| Some((version, changes.len() == PINNED_AT_ONCE)))
    }

    /// The queue pairs of the `kernel` datapath. `None` without a takeover.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn take_placed(&self) -> Result<Option<PlacedPorts>, SteeringError> {
        self.with(|takeover| takeover.steering_mut().take_placed()).transpose()
    }

    /// The counters of the `offload` datapath; empty if they cannot be read.
    fn offload_counts(&self, snapshot: &Snapshot) -> OffloadCounts {
        let counts = self.with(|takeover| takeover.steering().offload_counts(snapshot));
        counts.and_then(Result::ok).unwrap_or_default()
    }

    /// The counters of each worker.
    pub(crate) fn workers(&self) -> &[Arc<Counters>] {
        &self.workers
    }

    /// Asks each worker. Returns the answers with the workers' numbers. There is none if the worker
    /// ends or hangs.
    async fn ask<T>(&self, query: impl Fn(&Worker, oneshot::Sender<T>)) -> Vec<(usize, T)> {
        let _one = self.asking.lock().await;
        let asked = self.with(|takeover| takeover.ask(query));
        let mut answers = Vec::new();
        for (worker, answer) in asked.into_iter().flatten().enumerate() {
            if let Ok(Ok(answer)) = timeout(ANSWER, answer).await {
                answers.push((worker, answer));
            }
        }
        answers
    }

    /// The flows that each worker remembers.
    pub(crate) async fn flows(&self) -> Vec<(usize, Vec<CachedFlow>)> {
        // An error means that the receiver no longer waits.
        self.ask(|worker, sender| worker.flows(|flows| drop(sender.send(flows)))).await
    }

    /// The stations that the workers' own bridges have learned. Empty without access ports.
    pub(crate) async fn stations(&self) -> Stations {
        if self.access.is_empty() {
            return Stations::new();
        }
        let query = |worker: &Worker, sender: oneshot::Sender<Stations>| {
            worker.stations(|stations| drop(sender.send(stations)));
        };
        self.ask(query).await.into_iter().flat_map(|(_, stations)| stations).collect()
    }

    /// As [`Takeover::own_links`].
    pub(crate) fn own_links(&self) -> Vec<String> {
        self.with(|takeover| takeover.own_links()).unwrap_or_default()
    }

    /// As [`Takeover::repair`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn repair(&self) -> Result<Vec<String>, OwnLinkError> {
        self.with(Takeover::repair).unwrap_or_else(|| Ok(Vec::new()))
    }

    /// As [`Takeover::replace_port`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn replace_port(
        &self,
        number: u16,
        port: ports::AccessPort,
    ) -> Result<(), bpf::SteeringError> {
        self.with(|takeover| takeover.replace_port(number, port)).unwrap_or(Ok(()))
    }

    /// Records whether the interface of an access port is gone.
    pub(crate) fn set_port_gone(&self, number: u16, gone: bool) {
        let mut all = self.gone_ports.lock().unwrap_or_else(PoisonError::into_inner);
        if gone {
            all.insert(number);
        } else {
            all.remove(&number);
        }
    }

    /// Whether the interface of an access port is gone.
    pub(crate) fn is_port_gone(&self, number: u16) -> bool {
        self.gone_ports.lock().unwrap_or_else(PoisonError::into_inner).contains(&number)
    }

    /// The paths of known queue pairs, to explain decisions by.
    pub(crate) fn known_pins(&self) -> Pins {
        Pins::new(self.pinning.clone().map(|shared| Arc::new(Known::new(shared)) as _))
    }

    /// Whether frames are redirected.
    pub(crate) fn is_engaged(&self) -> bool {
        self.with(|takeover| takeover.is_engaged()).unwrap_or(false)
    }

    /// Whether frames are redirected, and the status tells which: it follows the first publication,
    /// and on a busy machine some time later.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_engaged() && self.status.borrow().turns > 0
    }

    /// The kill switch; `None` after [`Self::stop`].
    pub(crate) fn kill_switch(&self) -> Option<KillSwitch> {
        self.with(|takeover| takeover.steering().kill_switch())
    }

    /// Gives everything back to the kernel, and notifies the guard once nothing is redirected any
    /// more.
    ///
    /// # Errors
    /// As [`Takeover::stop`].
    pub(crate) fn stop(&self) -> Result<(), TakeoverError> {
        let takeover = self.takeover().take();
        takeover.map_or(Ok(()), |takeover| takeover.stop(&self.guarded))
    }

    /// The counters of the steering programs; zeros if the kernel refuses.
    pub(crate) fn steering_counts(&self) -> SteeringCounts {
        let counts = self.with(|takeover| takeover.steering().counts());
        counts.and_then(Result::ok).unwrap_or_default()
    }

    /// The ports that use the bypass, and its counters; empty if the kernel refuses.
    pub(crate) fn bypass(&self) -> BypassState {
        let state = self.with(|takeover| takeover.steering().bypass());
        state.and_then(Result::ok).unwrap_or_default()
    }

    /// Checks again whether programs of other software prevent the bypass: at these interfaces or,
    /// with `None`, at the next few ports. The kernel answers under a lock that others may hold for
    /// long. Therefore a blocking thread asks, and no lock is held meanwhile.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) async fn review(
        &self,
        interfaces: Option<BTreeSet<u32>>,
    ) -> Result<(), SteeringError> {
        let ports = self.with(|takeover| takeover.bypass_ports(interfaces.as_ref()));
        let ports = ports.unwrap_or_default();
        if ports.is_empty() {
            return Ok(());
        }
        let look = move |port: BypassPort| {
            let obstacle = bpf::bypass_obstacle(&port);
            (port, obstacle)
        };
        let found = spawn_blocking(move || ports.into_iter().map(look).collect()).await;
        // An error is possible only when the runtime shuts down.
        let Ok(found) = found else { return Ok(()) };
        self.with(|takeover| takeover.review(found)).unwrap_or(Ok(()))
    }

    /// Moves vtepd's programs at these interfaces behind filters of other software that were added,
    /// or back if those were removed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) async fn place_behind(
        &self,
        interfaces: &BTreeSet<u32>,
    ) -> Result<(), SteeringError> {
        let placed = self.with(|takeover| takeover.steering().placed_at(interfaces));
        let (hook, placed) = (self.hook, placed.unwrap_or_default());
        if placed.is_empty() {
            return Ok(());
        }
        let look = move |(ifindex, direction): (u32, Direction)| {
            (ifindex, direction, bpf::foreign_programs::hook_behind(ifindex, direction, hook))
        };
        let found = spawn_blocking(move || placed.into_iter().map(look).collect()).await;
        // An error is possible only when the runtime shuts down.
        let Ok(found) = found else { return Ok(()) };
        self.with(|takeover| takeover.steering_mut().place_behind(found)).unwrap_or(Ok(()))
    }

    /// Attaches vtepd's clsact filters at these interfaces again if other software has deleted them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) async fn attach_again(
        &self,
        interfaces: &BTreeSet<u32>,
    ) -> Result<(), SteeringError> {
        let filters = self.with(|takeover| takeover.steering().filters_at(interfaces));
        let Some(filters) = filters.filter(|filters| !filters.is_empty()) else { return Ok(()) };
        let look = move || bpf::foreign_programs::without_own(filters);
        // An error is possible only when the runtime shuts down.
        let Ok(lost) = spawn_blocking(look).await else { return Ok(()) };
        for (ifindex, _) in &lost {
            let name = nix::net::if_::if_indextoname(*ifindex).unwrap_or_default();
            let name = name.to_string_lossy();
            tracing::warn!(
                "other software has deleted vtepd's clsact filter on {name}, or the qdisc: it is attached again"
            );
        }
        self.with(|takeover| takeover.steering_mut().attach_again(&lost)).unwrap_or(Ok(()))
    }

    /// Records that a new configuration was accepted.
    pub(crate) fn configured(&self) {
        self.configurations.fetch_add(1, Ordering::Relaxed);
        self.set_not_configured(None);
    }

    /// Records why the last configuration was rejected; `None` if it was accepted.
    pub(crate) fn set_not_configured(&self, reason: Option<String>) {
        *self.not_configured.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Why the last configuration was rejected.
    pub(crate) fn not_configured(&self) -> Option<String> {
        self.not_configured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the listener. With an error, logs and records it.
    pub(crate) fn note<T>(&self, what: &'static str, opened: Result<T, String>) -> Option<T> {
        match opened {
            Ok(listener) => Some(listener),
            Err(reason) => {
                let text = format!("{reason}; vtepd forwards without it, and tries again");
                tracing::error!("{text}");
                self.not_served.lock().unwrap_or_else(PoisonError::into_inner).insert(what, text);
                None
            }
        }
    }

    /// Records that a listener is open now that was not before.
    pub(crate) fn served(&self, what: &'static str) {
        tracing::info!("the listener for {what} is open now");
        self.not_served.lock().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    /// Why listeners are not open.
    pub(crate) fn not_served(&self) -> Vec<String> {
        self.not_served.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How many configurations were accepted, including the first.
    pub(crate) fn configurations(&self) -> u64 {
        self.configurations.load(Ordering::Relaxed)
    }

    /// The metrics in OpenMetrics text format.
    ///
    /// # Errors
    /// As [`telemetry::render`].
    pub(crate) fn render(&self) -> Result<String, std::fmt::Error> {
        let counters = self.counters();
        // The control task must not wait for what follows.
        let status = self.status.borrow().clone();
        let mut view = metrics_view::view(
            &status,
            &self.snapshot(),
            self.steering_counts(),
            &self.bypass(),
            &counters.stations,
        );
        view.ready = self.is_ready();
        view.control_stalls = self.guarded.stalls();
        view.log_lines_lost = log::lost();
        view.configuration = self.configurations();
        view.workers = self.workers.clone();
        view.probing = self.pinning.as_deref().map(metrics_view::probing);
        telemetry::render(&counters, view)
    }
}

/// What the programs did with all frames, in the terms of the worker.
const fn programs(counts: &SteeringCounts) -> Programs {
    Programs {
        encapsulated: counts.offload_encapsulated,
        decapsulated: counts.offload_decapsulated,
        copies: counts.offload_copies,
        failed: counts.offload_failed,
        by_default: counts.offload_by_default,
        past_bridge: counts.offload_past_bridge,
    }
}

/// The counters of a VNI or VTEP in the `offload` datapath.
const fn forwarded(counted: &OffloadTraffic) -> Forwarded {
    Forwarded {
        sent: (counted.sent, counted.sent_bytes),
        received: (counted.received, counted.received_bytes),
        by_default: counted.by_default,
    }
}
