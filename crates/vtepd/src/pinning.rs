//! The placement of queue pairs that all workers share, for the policy `qp-pin`.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bpf::{OffloadUsage, PinnedFlow, ProbesRefused};
use nix::time::{ClockId, clock_gettime};
use path::{Flow, Pin, Pinning, Remote, Usage};
use pathmap::cm::Event;
use pathmap::placer::{FlowId, Options, Reading, Target};
use pathmap::responder::Counts;
use pathmap::{Pair, Placement, Placer, Random};
use tables::{KernelVni, Snapshot};
use wire::{MacAddr, Vni};

/// What probing knows about one remote VTEP.
#[derive(Debug, Clone)]
pub struct Probed {
    /// The VTEP.
    pub target: Target,
    /// Whether the pairs were probed at the start, or traced if no probe was answered.
    pub ready: bool,
    /// Pairs that are probed.
    pub pairs: usize,
    /// Pairs whose route is known.
    pub known: usize,
    /// Pairs that are dead.
    pub lost: usize,
    /// Number of routers on the way of each known pair, from the fewest to the most.
    pub routers: (u8, u8),
    /// Whether every router on every known path is known.
    pub recorded: bool,
    /// Whether paths are traced by expired TTLs, because the VTEP answers no probes.
    pub traced: bool,
    /// When the last answer arrived.
    pub heard: Option<Duration>,
    /// Probes sent, answers accepted, answers that fitted no probe.
    pub counts: [u64; 3],
}

/// The placement, its counts, and what probing knows.
#[derive(Debug)]
pub struct Shared {
    start: Instant,
    placer: Mutex<Placer>,
    version: AtomicU64,
    /// What workers send.
    usage: Usage,
    /// What the programs send, and the time of the start on their clock.
    offloaded: OnceLock<(Arc<OffloadUsage>, Duration)>,
    probed: Mutex<(Vec<Probed>, (Counts, ProbesRefused))>,
}

impl Shared {
    /// Nothing is placed yet. `seed` differs between leaves.
    #[must_use]
    pub fn new(options: Options, seed: u64) -> Self {
        let start = Instant::now();
        let placer = Placer::new(options, Random::new(seed));
        Self {
            start,
            version: AtomicU64::new(placer.version()),
            placer: Mutex::new(placer),
            usage: Usage::new(options.most, start),
            offloaded: OnceLock::new(),
            probed: Mutex::default(),
        }
    }

    /// The time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Placer> {
        self.placer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the placement. Workers ask again for their queue pairs if its version changes.
    pub fn change<T>(&self, change: impl FnOnce(&mut Placer) -> T) -> T {
        let mut placer = self.lock();
        let result = change(&mut placer);
        self.version.store(placer.version(), Ordering::Release);
        result
    }

    /// Reads the placement.
    pub fn read<T>(&self, read: impl FnOnce(&Placer) -> T) -> T {
        read(&self.lock())
    }

    /// Adds what the programs of the `offload` datapath send.
    pub fn add_offloaded(&self, usage: OffloadUsage) {
        let clock = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
        let started = clock.unwrap_or_default().saturating_sub(self.start.elapsed());
        let usage = Arc::new(usage);
        // A queue pair keeps its record when it goes from the worker to the programs or back.
        self.usage.record_in(usage.clone());
        let _ = self.offloaded.set((usage, started));
    }

    /// The counts of a slot, by whichever datapath.
    #[must_use]
    pub fn reading(&self, slot: u32) -> Reading {
        let (mut bytes, mut frames, mut last) = self.usage.read(slot);
        if let Some((offloaded, started)) = self.offloaded.get() {
            let (more_bytes, more_frames, later) = offloaded.read(slot);
            (bytes, frames) = (bytes + more_bytes, frames + more_frames);
            last = last.max(later.map(|later| later.saturating_sub(*started)));
        }
        let (counts, recorded) = self.usage.recorded(slot);
        Reading { bytes, frames, last, counts, recorded }
    }

    /// The queue pairs that the programs of the `offload` datapath may forward.
    #[must_use]
    pub fn settled(&self) -> Vec<PinnedFlow> {
        let now = self.now();
        let flow = |(id, placed): (&FlowId, Placement)| {
            Some(PinnedFlow {
                vni: Vni::try_from(id.vni).ok()?,
                vtep: id.target.address,
                key: id.key,
                hop: placed.pair.hop,
                source_port: placed.pair.port,
                usage: placed.slot,
            })
        };
        let last = |slot| self.reading(slot).last;
        self.read(|placer| placer.settled(last, now).filter_map(flow).collect())
    }

    /// Places a queue pair that is sent from the inner source port `port`. `hashed` is its path by
    /// `qp-hash`. `None`: it keeps that one.
    pub fn place(&self, id: FlowId, port: u16, hashed: Pair) -> Option<Placement> {
        let mut placer = self.lock();
        let is_new = placer.peek(&id).is_none();
        let read = |slot| self.reading(slot);
        let placed = placer.place(id, port, hashed, read, self.now())?;
        if is_new {
            self.usage.restart(placed.slot);
        }
        Some(placed)
    }

    /// What probing knows about each remote VTEP.
    #[must_use]
    pub fn probed(&self) -> Vec<Probed> {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What became of received messages, and which were not received.
    #[must_use]
    pub fn responded(&self) -> (Counts, ProbesRefused) {
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Sets what probing knows.
    pub fn set_probed(&self, probed: Vec<Probed>, responded: (Counts, ProbesRefused)) {
        *self.probed.lock().unwrap_or_else(PoisonError::into_inner) = (probed, responded);
    }
}

/// Where kernel VXLAN sends frames for this address. `None` if its FDB has no VTEP for it.
#[must_use]
pub fn target_by_kernel(snapshot: &Snapshot, vni: &KernelVni, mac: MacAddr) -> Option<Target> {
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

fn pin(placement: Placement) -> Option<Pin> {
    let Placement { pair: Pair { hop, port }, slot } = placement;
    Some(Pin { hop, source_port: port, slot: NonZeroU32::new(slot)? })
}

impl Pinning for Shared {
    fn pin(&self, flow: &Flow, to: &Remote<'_>, (hop, port): (u64, u16)) -> Option<Pin> {
        pin(self.place(id(flow, to), flow.roce_port, Pair { hop, port })?)
    }

    fn observe(&self, hosts: (IpAddr, IpAddr), to: &Remote<'_>, packet: &[u8]) {
        if let Some(event) = Event::parse(packet) {
            self.change(|placer| placer.observe(target(to), to.vni.get(), hosts, event));
        }
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Tells the paths of known queue pairs, places none, and counts nothing. For explanations.
#[derive(Debug)]
pub struct Known {
    shared: Arc<Shared>,
    nowhere: Usage,
}

impl Known {
    /// The paths that `shared` knows.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, nowhere: Usage::new(0, Instant::now()) }
    }
}

impl Pinning for Known {
    fn pin(&self, flow: &Flow, to: &Remote<'_>, _: (u64, u16)) -> Option<Pin> {
        pin(self.shared.read(|placer| placer.peek(&id(flow, to)))?)
    }

    fn version(&self) -> u64 {
        self.shared.version()
    }

    fn usage(&self) -> &Usage {
        &self.nowhere
    }
}
