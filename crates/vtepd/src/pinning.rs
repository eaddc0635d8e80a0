//! The placement of queue pairs that all workers share, for the policy `qp-pin`.

use std::hint::spin_loop;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bpf::{OffloadUsage, PinnedFlow, ProbesRefused};
use nix::time::{ClockId, clock_gettime};
use path::{
    Answer, Before, CounterId, Fate, Flow, PathId, Pin, Pinning, Policy, Remote, SprayOptions,
    Spraying, Usage, Version,
};
use pathmap::cm::Event;
use pathmap::placer::{FlowId, Found, Options, Reading, Target, Tick};
use pathmap::responder::Counts;
use pathmap::{Placement, Placer, Random};
use tables::{KernelVni, Snapshot};
use wire::{MacAddr, Vni};

mod listed;
mod refused;

use refused::Refused;

/// How often a worker tries to get the placement: for about as long as a step of the probing thread
/// takes. That thread may wait for a processor, so a worker does not wait for it.
const TRIES: u32 = 256;
/// How often another thread looks whether workers want the placement, before it takes it.
const YIELDS: u32 = 4096;
/// The most messages of the communication manager that wait for the probing thread.
const MOST_MESSAGES: usize = 4096;
/// Messages that are handled before others can use the placement.
const MESSAGES: usize = 64;

/// What became of messages of probing since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Messages {
    /// As [`Probed::counts`], of all VTEPs that are or were probed.
    pub probes: [u64; 3],
    /// Received messages.
    pub responded: Counts,
    /// Those that were not received.
    pub refused: ProbesRefused,
}

/// What probing knows about one remote VTEP.
#[derive(Debug, Clone)]
pub(crate) struct Probed {
    /// The VTEP.
    pub target: Target,
    /// Whether the paths were probed at the start, or traced if no probe was answered.
    pub ready: bool,
    /// Paths that are probed.
    pub paths: usize,
    /// Paths whose route is known.
    pub known: usize,
    /// Paths that are dead.
    pub lost: usize,
    /// Number of routers on the way of each known path, from the fewest to the most.
    pub routers: (u8, u8),
    /// Whether every router on every known path is known.
    pub recorded: bool,
    /// Whether paths are traced by expired TTLs, because the VTEP answers no probes.
    pub traced: bool,
    /// When the last answer arrived.
    pub heard: Option<Duration>,
    /// Probes sent, answers accepted, answers that fitted no probe.
    pub counts: [u64; 3],
    /// Over which paths packets are sprayed.
    pub sprayed: SprayedTo,
}

/// How packets to a VTEP are sprayed.
#[derive(Debug, Clone, Default)]
pub(crate) struct SprayedTo {
    /// The VNIs of which both VTEPs spray.
    pub vnis: Vec<u32>,
    /// The number of paths that are not dead.
    pub up: usize,
    /// The paths, the packets that were sent on each, and what became of them.
    pub paths: Vec<(PathId, u64, Fate)>,
    /// How long one more packet would wait on each of these, in nanoseconds, and whether packets pass
    /// it over; `None` if it is down.
    pub waits: Vec<Option<(u64, bool)>>,
}

/// A message of the communication manager that a host has sent.
#[derive(Debug)]
struct Observed {
    target: Target,
    vni: u32,
    hosts: (IpAddr, IpAddr),
    event: Event,
}

/// What workers were answered without the placement, in numbers.
#[derive(Debug, Default)]
struct Unanswered {
    refused: AtomicU64,
    busy: AtomicU64,
    messages: AtomicU64,
}

/// The placement, its counts, and what probing knows.
///
/// Workers wait for no other thread. Other threads hold the placement for short steps, and let workers
/// go first.
#[derive(Debug)]
pub(crate) struct Shared {
    start: Instant,
    placer: Mutex<Placer>,
    /// The number of workers that want the placement now.
    asking: AtomicU32,
    version: AtomicU64,
    /// Hosts that were refused a place lately.
    refused: Refused,
    unanswered: Unanswered,
    messages: (SyncSender<Observed>, Mutex<Receiver<Observed>>),
    /// What workers send.
    usage: Usage,
    /// What the programs send, and the time of the start on their clock.
    offloaded: OnceLock<(Arc<OffloadUsage>, Duration)>,
    probed: Mutex<(Vec<Probed>, Messages)>,
    /// Over which paths packets are sprayed; `None` if they cannot be.
    pub(crate) spraying: Option<Arc<Spraying>>,
}

impl Shared {
    /// Nothing is placed yet. `seed` differs between leaves.
    #[must_use]
    pub(crate) fn new(options: Options, seed: u64) -> Self {
        let start = Instant::now();
        let placer = Placer::new(options, Random::new(seed));
        let (sender, receiver) = sync_channel(MOST_MESSAGES);
        Self {
            start,
            version: AtomicU64::new(placer.version().number()),
            placer: Mutex::new(placer),
            asking: AtomicU32::new(0),
            refused: Refused::new(seed),
            unanswered: Unanswered::default(),
            messages: (sender, Mutex::new(receiver)),
            usage: Usage::new(options.most, start),
            offloaded: OnceLock::new(),
            probed: Mutex::default(),
            spraying: None,
        }
    }

    /// Sprays packets by these options. `secret` is known to this process alone.
    #[must_use]
    pub(crate) fn with_spraying(self, options: SprayOptions, secret: u64) -> Self {
        Self { spraying: Some(Arc::new(Spraying::new(options, secret))), ..self }
    }

    /// The time since the start.
    #[must_use]
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The placement, for a thread that is no worker.
    fn lock(&self) -> MutexGuard<'_, Placer> {
        for _ in 0..YIELDS {
            if self.asking.load(Ordering::Relaxed) == 0 {
                break;
            }
            spin_loop();
        }
        self.placer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The placement, for a worker. `None`: another thread has it for too long.
    fn try_lock(&self) -> Option<MutexGuard<'_, Placer>> {
        self.asking.fetch_add(1, Ordering::Relaxed);
        let lock = || match self.placer.try_lock() {
            Ok(placer) => Some(placer),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                spin_loop();
                None
            }
        };
        let placer = (0..TRIES).find_map(|_| lock());
        self.asking.fetch_sub(1, Ordering::Relaxed);
        placer
    }

    /// Changes the placement, in a step that is short whatever it contains. Workers ask again for the
    /// queue pairs that this concerns.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Placer) -> T) -> T {
        let mut placer = self.lock();
        let result = change(&mut placer);
        placer.recalled().into_iter().for_each(|counter| self.usage.change(counter));
        self.version.store(placer.version().number(), Ordering::Release);
        result
    }

    /// Reads the placement, in a step that is short whatever it contains.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Placer) -> T) -> T {
        read(&self.lock())
    }

    /// Sets what is known of the paths to a target: [`Placer::update`] in short steps.
    pub(crate) fn update(
        &self,
        target: Target,
        weights: &std::collections::BTreeMap<u64, u16>,
        found: &[Found],
        lost: &std::collections::BTreeSet<PathId>,
    ) {
        self.change(|placer| placer.learn(target, weights, found, lost));
        while self.change(Placer::clean) {}
    }

    /// Forgets targets: [`Placer::remove`] in short steps.
    pub(crate) fn remove(&self, targets: impl IntoIterator<Item = Target>) {
        targets.into_iter().for_each(|target| self.change(|placer| placer.remove(target)));
        while self.change(Placer::clean) {}
    }

    /// Begins a tick, which [`Self::step`] goes on with.
    #[must_use]
    pub(crate) fn begin_tick(&self) -> Tick {
        let now = self.now();
        self.change(|placer| placer.begin_tick(now))
    }

    /// Takes a step of a tick. Returns whether there are more.
    pub(crate) fn step(&self, tick: &mut Tick) -> bool {
        tick.compute();
        self.change(|placer| placer.step(tick, &|counter| self.reading(counter)))
    }

    /// Hands the messages of the communication manager that hosts have sent to the placement.
    pub(crate) fn take_messages(&self) {
        let receiver = self.messages.1.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..MOST_MESSAGES.div_ceil(MESSAGES) {
            let some: Vec<Observed> = receiver.try_iter().take(MESSAGES).collect();
            if some.is_empty() {
                return;
            }
            let now = self.now();
            self.change(|placer| {
                for Observed { target, vni, hosts, event } in some {
                    placer.observe((target, vni), hosts, event, now);
                }
            });
        }
    }

    /// Decisions by `qp-hash` although the policy is `qp-pin`, and messages of the communication manager
    /// that were left out, by reason.
    #[must_use]
    pub(crate) fn beyond(&self) -> [(&'static str, u64); 8] {
        use pathmap::placer::Beyond;
        let counts = self.read(|placer| placer.counts);
        let Unanswered { refused, busy, messages } = &self.unanswered;
        let [table, vni, host, vni_rate, host_rate] = counts.beyond;
        let messages = messages.load(Ordering::Relaxed) + counts.beyond_messages;
        let [a, b, c, d, e] = Beyond::ALL.map(Beyond::name);
        [
            (a, table),
            (b, vni),
            (c, host),
            (d, vni_rate),
            (e, host_rate),
            ("refused", refused.load(Ordering::Relaxed)),
            ("busy", busy.load(Ordering::Relaxed)),
            ("messages", messages),
        ]
    }

    /// Adds what the programs of the `offload` datapath send.
    pub(crate) fn add_offloaded(&self, usage: OffloadUsage) {
        let clock = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
        let started = clock.unwrap_or_default().saturating_sub(self.start.elapsed());
        let usage = Arc::new(usage);
        // A queue pair keeps its record when it goes from the worker to the programs or back.
        self.usage.record_in(usage.clone());
        let _ = self.offloaded.set((usage, started));
    }

    /// What is counted of a queue pair, by whichever datapath.
    #[must_use]
    pub(crate) fn reading(&self, counter: CounterId) -> Reading {
        let (mut bytes, mut frames, mut last) = self.usage.read(counter);
        if let Some((offloaded, started)) = self.offloaded.get() {
            let (more_bytes, more_frames, later) = offloaded.read(counter);
            (bytes, frames) = (bytes + more_bytes, frames + more_frames);
            last = last.max(later.map(|later| later.saturating_sub(*started)));
        }
        let (counts, recorded) = self.usage.recorded(counter);
        Reading { bytes, frames, last, counts, recorded }
    }

    /// Up to `most` counters about whose queue pairs the programs of the `offload` datapath are to
    /// be told, each with the queue pair that they may forward.
    #[must_use]
    pub(crate) fn unwritten(&self, most: usize) -> Vec<(CounterId, Option<PinnedFlow>)> {
        let now = self.now();
        let flow = |(id, placed): (FlowId, Placement)| {
            Some(PinnedFlow {
                vni: Vni::try_from(id.vni).ok()?,
                vtep: id.target.address,
                key: id.key,
                path: placed.path,
                counter: placed.counter,
            })
        };
        let last = |counter| self.reading(counter).last;
        self.change(|placer| {
            let counters = placer.unwritten(most);
            let settled = |counter| placer.settled(counter, last, now).and_then(flow);
            counters.into_iter().map(|counter| (counter, settled(counter))).collect()
        })
    }

    /// The programs are to be told about these queue pairs again.
    pub(crate) fn rewrite(&self, counters: impl Iterator<Item = CounterId>) {
        self.change(|placer| placer.rewrite(counters));
    }

    /// The programs are to be told about all queue pairs again.
    pub(crate) fn rewrite_all(&self) {
        const STEP: usize = 1024;
        let counters: Vec<CounterId> = self.read(|placer| placer.counters()).collect();
        counters.chunks(STEP).for_each(|some| self.rewrite(some.iter().copied()));
    }

    /// Places a queue pair that is sent from the inner source port `port`, in the probing thread.
    /// `hashed` is its path by `qp-hash`. `None`: it keeps that one.
    pub(crate) fn place(&self, id: FlowId, port: u16, hashed: PathId) -> Option<Placement> {
        let placed = self.place_in(&mut self.lock(), (id, port), (hashed, true));
        if placed.is_none() {
            self.refused.note(&id, self.now());
        }
        placed
    }

    /// Whether the host of a queue pair was refused one a short time ago. If so, that is counted.
    pub(crate) fn refuses(&self, id: &FlowId) -> bool {
        let refuses = self.refused.has(id, self.now());
        if refuses {
            count(&self.unanswered.refused);
        }
        refuses
    }

    fn place_in(
        &self,
        placer: &mut Placer,
        (id, port): (FlowId, u16),
        hashed: (PathId, bool),
    ) -> Option<Placement> {
        let placed = placer.counts.placed;
        let read = |counter| self.reading(counter);
        let placement = placer.place_begun((id, port), hashed, read, self.now())?;
        if placer.counts.placed > placed {
            self.usage.restart(placement.counter);
        }
        Some(placement)
    }

    /// What probing knows about each remote VTEP.
    #[must_use]
    pub(crate) fn probed(&self) -> Vec<Probed> {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What became of all messages.
    #[must_use]
    pub(crate) fn messages(&self) -> Messages {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Sets what probing knows.
    pub(crate) fn set_probed(&self, probed: Vec<Probed>, messages: Messages) {
        *self.probed.lock().unwrap_or_else(PoisonError::into_inner) = (probed, messages);
    }
}

/// Where kernel VXLAN sends frames for this address. `None` if its FDB has no VTEP for it.
#[must_use]
pub(crate) fn target_by_kernel(
    snapshot: &Snapshot,
    vni: &KernelVni,
    mac: MacAddr,
) -> Option<Target> {
    let address = snapshot.vtep(*vni.fdb.get(&mac)?)?.address;
    let (local, port) = (vni.tunnel.local, vni.tunnel.destination_port);
    Some(Target { local, address, port, by_kernel: true })
}

const fn target(to: &Remote<'_>) -> Target {
    Target { local: to.local, address: to.address, port: to.destination_port, by_kernel: false }
}

const fn id(flow: &Flow, to: &Remote<'_>) -> FlowId {
    FlowId { vni: to.vni.get(), key: flow.key, target: target(to) }
}

fn pin(placement: Placement, usage: &Usage) -> Pin {
    let Placement { path, counter } = placement;
    Pin { path, counter, changes: usage.changes(counter) }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Pinning for Shared {
    fn pin(&self, flow: &Flow, to: &Remote<'_>, hashed: PathId, before: Before) -> Answer {
        let id = id(flow, to);
        // What has a place is not refused.
        if before != Before::Pinned && self.refuses(&id) {
            return Answer::Hashed;
        }
        let Some(mut placer) = self.try_lock() else {
            count(&self.unanswered.busy);
            return Answer::Busy;
        };
        let hashed = (hashed, before == Before::Hashed);
        let placed = self.place_in(&mut placer, (id, flow.roce_port), hashed);
        // While nobody can change it.
        let pin = placed.map(|placement| pin(placement, &self.usage));
        drop(placer);
        pin.map_or_else(
            || {
                self.refused.note(&id, self.now());
                Answer::Hashed
            },
            Answer::Pinned,
        )
    }

    fn observe(&self, hosts: (IpAddr, IpAddr), to: &Remote<'_>, packet: &[u8]) {
        let Some(event) = Event::parse(packet) else { return };
        let observed = Observed { target: target(to), vni: to.vni.get(), hosts, event };
        if self.messages.0.try_send(observed).is_err() {
            count(&self.unanswered.messages);
        }
    }

    fn version(&self) -> Version<Policy> {
        Version::of(self.version.load(Ordering::Acquire))
    }

    fn spraying(&self) -> Option<Arc<Spraying>> {
        self.spraying.clone()
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Tells the paths of known queue pairs, places none, and counts nothing. For explanations.
#[derive(Debug)]
pub(crate) struct Known {
    shared: Arc<Shared>,
    nowhere: Usage,
}

impl Known {
    /// The paths that `shared` knows.
    #[must_use]
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, nowhere: Usage::new(0, Instant::now()) }
    }
}

impl Pinning for Known {
    fn pin(&self, flow: &Flow, to: &Remote<'_>, _: PathId, _: Before) -> Answer {
        let placed = self.shared.read(|placer| placer.peek(&id(flow, to)));
        let pin = placed.map(|placement| pin(placement, &self.nowhere));
        pin.map_or(Answer::Hashed, Answer::Pinned)
    }

    fn version(&self) -> Version<Policy> {
        self.shared.version()
    }

    fn usage(&self) -> &Usage {
        &self.nowhere
    }
}
