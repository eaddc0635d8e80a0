//! The worker: one thread that runs frames to completion. It receives from the punt pairs and
//! access ports, processes a batch, and transmits it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bpf::{PuntSide, Watchdog};
use frame::{Batch, DropReason, Queue, TxBatch};
use nix::sys::eventfd::{EfdFlags, EventFd};
use pipeline::{Adjacency, Counters, Cursor, Grouping, PAUSE, Pipeline};
use ports::{AccessPort, PacketSocket, Poller};
use tables::{Learned, OpenPort, Snapshot};

use crate::access_ports::{Stations, WorkerPorts, deliver};
use crate::affinity;
use crate::punt::of_worker;
use crate::scheduling::Scheduling;

/// How often a busy worker reads the overrun counters of its sockets.
const OVERRUN_INTERVAL: Duration = Duration::from_millis(100);
/// A worker also reads the overrun counters before it sleeps, if it has moved at least this many
/// frames since the last time. Fewer frames cannot have filled a ring. Overruns of a socket's queue
/// of long frames are known without a system call (`has_overruns`).
const FEW: usize = 64;
/// How often a worker checks ports whose ring may be stuck. A stuck ring wakes no worker.
const STUCK_INTERVAL: Duration = Duration::from_secs(1);
/// How often frames that wait for a next hop are checked, in addition to each new snapshot.
const HOLD_INTERVAL: Duration = Duration::from_millis(100);
/// How long frames may pass the bridge only because recent frames for the same host did. Then the
/// worker pauses, so that they can use the bypass (docs/adr/0011-five-millisecond-pause.md).
const RESTLESS: Duration = Duration::from_millis(100);
/// The upper bound of that time, which doubles while pauses do not help.
const MOST_RESTLESS: Duration = Duration::from_secs(30);
/// When stopping, the worker ends after nothing has arrived for this long. Frames that were
/// redirected just before the kill switch was emptied pass the kernel's backlog in far less time.
const QUIET: Duration = Duration::from_millis(20);
/// When stopping, the worker ends after this time even if frames still arrive: stations on its own
/// access ports may send all the time.
const LAST: Duration = Duration::from_millis(100);

/// The sockets of a worker, its watchdog and its options.
#[derive(Debug)]
pub struct Sockets {
    /// Far end of the underlay punt pair.
    pub underlay: PacketSocket,
    /// Far end of the bridge punt pair.
    pub bridge: PacketSocket,
    /// Sends to the uplinks.
    pub uplinks: PacketSocket,
    /// Sends to host ports past the bridge. It is a socket of its own, so that a congested host
    /// port does not delay frames to the uplinks.
    pub hosts: PacketSocket,
    /// Shows the steering programs that this worker is alive.
    pub patience: Watchdog,
    /// The CPU on which the worker stays. `None` if the kernel does not tell which there are.
    pub cpu: Option<usize>,
    /// Which frames are grouped for transmission.
    pub grouping: Grouping,
    /// The configured options.
    pub options: WorkerOptions,
}

/// Options of the workers from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerOptions {
    /// How many workers there are.
    pub workers: usize,
    /// Whether workers may use real-time scheduling.
    pub realtime: bool,
    /// Whether super-frames and bundles may be used where the kernel supports them.
    pub gso: bool,
    /// Whether workers poll and never sleep. They then run as ordinary threads, because a polling
    /// real-time thread would leave no time to other threads of its core.
    pub busy_poll: bool,
}

/// Interfaces that the worker may send to only because steering programs are attached there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BypassTargets {
    /// Bridge ports to which frames may be sent past the bridge.
    pub ports: Vec<OpenPort>,
    /// Interface indices of uplinks over which TCP super-frames may leave whole.
    pub uplinks: Vec<u32>,
}

/// What a worker reports to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// A next hop without a MAC address, for which frames wait.
    Unresolved(Adjacency),
    /// A source address that was learned from a received frame.
    Learned(Learned),
    /// The worker read nothing for longer than the stall limit.
    Stalled {
        /// How long frames have waited.
        waited: Duration,
        /// Number of frames that were dropped.
        dropped: u64,
    },
}

/// Takes a report, without blocking. Returns `false` if it is lost because too many wait.
pub type Reports = Box<dyn Fn(Report) -> bool + Send>;

/// Called with the stations that a worker's bridge has learned.
pub(crate) type Answer = Box<dyn FnOnce(Stations) + Send>;

/// What a worker shares with the rest of the daemon.
pub(crate) struct Shared {
    snapshot: ArcSwap<Snapshot>,
    /// As set last by [`Worker::open`].
    bypass_targets: ArcSwap<BypassTargets>,
    counters: Arc<Counters>,
    wake: EventFd,
    stopping: AtomicBool,
    /// What to call with the stations, if they were requested. Only workers with access ports look at it.
    answer: Mutex<Option<Answer>>,
    asked: AtomicBool,
    /// Access ports that were opened again, by their numbers among all workers' ports.
    new_ports: Mutex<Vec<(u16, AccessPort)>>,
    has_new_ports: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// The access ports that were opened again since the last call.
    pub(crate) fn take_new_ports(&self) -> Vec<(u16, AccessPort)> {
        if !self.has_new_ports.load(Ordering::Relaxed)
            || !self.has_new_ports.swap(false, Ordering::Acquire)
        {
            return Vec::new();
        }
        std::mem::take(&mut *self.new_ports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What to call with the stations, if they were requested since the last call.
    pub(crate) fn take_answer(&self) -> Option<Answer> {
        let asked = self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Acquire);
        if asked { self.answer.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None }
    }
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    /// The numbers of its access ports.
    numbers: Vec<u16>,
    thread: JoinHandle<io::Result<()>>,
}

impl Worker {
    /// Starts the thread of the worker with this number. The worker sends addresses to resolve,
    /// learned addresses and stalls to `reports`. `stopped` is called when the thread ends.
    ///
    /// # Errors
    /// When the thread or its eventfd cannot be created.
    pub fn start(
        number: usize,
        sockets: Sockets,
        share: WorkerPorts,
        reports: Reports,
        stopped: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::default(),
            bypass_targets: ArcSwap::default(),
            counters: Arc::new(Counters::new()),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stopping: AtomicBool::new(false),
            answer: Mutex::default(),
            asked: AtomicBool::new(false),
            new_ports: Mutex::default(),
            has_new_ports: AtomicBool::new(false),
        });
        let WorkerPorts { ports, bridge, numbers, vnis: _ } = share;
        let own = numbers.clone();
        let mut engine = Engine {
            shared: Arc::clone(&shared),
            sockets,
            access: ports,
            numbers,
            pipeline: Pipeline::new(Arc::clone(&shared.counters)),
            out: TxBatch::new(),
            reports,
            generation: 0,
            bypass_targets: Arc::default(),
            restless_since: None,
            restless: RESTLESS,
            settled_at: None,
            pending: Pending::default(),
            scheduling: Scheduling::fair(),
        };
        engine.pipeline.set_grouping(engine.sockets.grouping);
        bridge.into_iter().for_each(|bridge| engine.pipeline.set_bridge(bridge));
        let thread =
            std::thread::Builder::new().name(of_worker("worker", number)).spawn(move || {
                let _told = AtTheEnd(Some(stopped));
                engine.run()
            })?;
        Ok(Self { shared, numbers: own, thread })
    }

    /// The worker's counters.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Has `answer` called on the worker's thread with the stations that its own bridge has learned.
    /// It must not block. A worker without access ports does not answer. A later call replaces an
    /// earlier one that is not answered yet.
    pub fn stations(&self, answer: impl FnOnce(Stations) + Send + 'static) {
        *self.shared.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(answer));
        self.shared.asked.store(true, Ordering::Release);
        self.wake();
    }

    /// Passes an access port that was opened again to the worker. The worker ignores it if the
    /// number is not one of its own.
    pub fn replace_port(&self, number: u16, port: AccessPort) {
        self.shared.new_ports.lock().unwrap_or_else(PoisonError::into_inner).push((number, port));
        self.shared.has_new_ports.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the access port of this number belongs to the worker.
    #[must_use]
    pub fn has_port(&self, number: u16) -> bool {
        self.numbers.contains(&number)
    }

    /// Publishes a snapshot. The worker uses it from its next batch on.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        let before = self.shared.snapshot.swap(snapshot);
        // An idle worker may sleep on. But with the new snapshot, unresolved frames may be sent
        // now. Before the first snapshot, the worker does not read its access ports.
        if self.shared.counters.held.get() > 0 || before.generation() == 0 {
            self.wake();
        }
    }

    /// Replaces the worker's bypass targets. The worker uses them from its next batch on.
    pub fn open(&self, bypass_targets: &BypassTargets) {
        if **self.shared.bypass_targets.load() != *bypass_targets {
            self.shared.bypass_targets.store(Arc::new(bypass_targets.clone()));
        }
    }

    /// Makes the worker forward what still arrives until nothing more comes, and then end.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Waits until the thread ends.
    ///
    /// # Errors
    /// The error that ended the worker.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().map_err(|_| io::Error::other("the worker panicked"))?
    }

    /// Wakes the worker, which then reads its sockets.
    pub fn wake(&self) {
        // This fails only if the counter is full, and then the worker is awake.
        let _ = self.shared.wake.write(1);
    }
}

/// Calls the function when dropped, even if a panic ends the thread.
struct AtTheEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for AtTheEnd<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// The thread's own state.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sockets: Sockets,
    /// Access ports (standalone).
    pub(crate) access: Vec<AccessPort>,
    /// The access ports' numbers among all workers' ports.
    pub(crate) numbers: Vec<u16>,
    pub(crate) pipeline: Pipeline,
    pub(crate) out: TxBatch,
    reports: Reports,
    /// Generation of the snapshot of the last batch.
    generation: u64,
    /// The bypass targets that the pipeline uses.
    bypass_targets: Arc<BypassTargets>,
    /// Since when no pause in the traffic has let hosts' frames move from the bridge to the bypass.
    restless_since: Option<Instant>,
    /// How long that may last before the worker pauses, and when it paused last.
    restless: Duration,
    settled_at: Option<Instant>,
    pub(crate) pending: Pending,
    pub(crate) scheduling: Scheduling,
}

/// Batches that are sent in parts, because their frames have many copies. A cursor is where the
/// next part begins.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    underlay: Option<Cursor>,
    bridge: Option<Cursor>,
    /// Index of the access port, and the cursor of its batch.
    pub(crate) port: Option<(usize, Cursor)>,
}

impl Pending {
    const fn is_empty(&self) -> bool {
        self.underlay.is_none() && self.bridge.is_none() && self.port.is_none()
    }
}

impl Engine {
    fn run(&mut self) -> io::Result<()> {
        let busy_poll = self.sockets.options.busy_poll;
        if let Some(cpu) = self.sockets.cpu
            && let Err(error) = affinity::stay_on(cpu)
        {
            tracing::warn!(
                "the worker does not stay on CPU {cpu}, so its frames may overtake each other when it moves: {error}"
            );
        }
        if self.sockets.options.realtime && !busy_poll {
            match Scheduling::prompt() {
                Ok(scheduling) => self.scheduling = scheduling,
                Err(error) => tracing::info!(
                    "the worker is scheduled like any thread, so frames may wait some milliseconds on a busy machine: {error} \
                     (CAP_SYS_NICE would help)"
                ),
            }
        }
        let mut poller = Poller::default();
        let (mut quiet_since, mut told_to_stop) = (None, None);
        let (mut counted, mut uncounted) = (Instant::now(), 0);
        loop {
            let now = Instant::now();
            let moved = self.turn(now)?;
            uncounted += moved;
            let falls_asleep = moved == 0 && !busy_poll;
            // Counting also recreates a stuck ring, which must not happen while a part of its batch
            // is still to be sent.
            if ((falls_asleep && (uncounted >= FEW || self.has_overruns()))
                || now.saturating_duration_since(counted) >= OVERRUN_INTERVAL)
                && self.pending.is_empty()
            {
                (counted, uncounted) = (now, 0);
                self.count_overruns()?;
            }
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            if stopping
                && now.saturating_duration_since(*told_to_stop.get_or_insert(now)) >= LAST
                && self.pending.is_empty()
            {
                self.pipeline.stop();
                return Ok(());
            }
            if moved > 0 {
                quiet_since = None;
                self.scheduling.work(now, moved);
                continue;
            }
            self.scheduling.rest(now);
            if stopping && quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
                self.pipeline.stop();
                return Ok(());
            }
            let timeout = match (stopping, self.pipeline.holds()) {
                (true, _) => Some(QUIET),
                (false, _) if busy_poll => Some(Duration::ZERO),
                (false, true) => Some(HOLD_INTERVAL),
                (false, false) if self.access.iter().any(AccessPort::may_stick) => {
                    Some(STUCK_INTERVAL)
                }
                (false, false) => None,
            };
            self.sleep(&mut poller, timeout)?;
        }
    }

    /// Processes one batch in each direction, or one part of a batch whose frames have many copies.
    /// Returns how many frames there were.
    fn turn(&mut self, now: Instant) -> io::Result<usize> {
        let snapshot = self.shared.snapshot.load();
        if self.generation != snapshot.generation() || self.pipeline.holds() {
            self.generation = snapshot.generation();
            self.pipeline.release(&snapshot, now, &mut self.out);
            flush(&mut self.sockets.uplinks, &Batch::none(), &mut self.out, &self.pipeline);
        }
        let bypass_targets = self.shared.bypass_targets.load();
        if !Arc::ptr_eq(&bypass_targets, &self.bypass_targets) {
            self.bypass_targets = Arc::clone(&bypass_targets);
            self.pipeline.open_ports(&bypass_targets.ports);
            if self.sockets.options.gso {
                self.pipeline.tunnel_uplinks(&bypass_targets.uplinks);
            }
        }
        let stalled =
            [PuntSide::Underlay, PuntSide::Bridge].map(|punt| self.sockets.patience.look(punt));
        if stalled != [None, None] {
            // Not zero: the worker must not sleep before it has read what arrived meanwhile.
            return self.catch_up(stalled).map(|()| 1);
        }
        let (from, from_underlay) = next(&mut self.sockets.underlay, self.pending.underlay);
        let batch = self.sockets.underlay.batch();
        self.pending.underlay =
            self.pipeline.decapsulate_part(batch, from, &snapshot, now, &mut self.out);
        self.scheduling.begin(self.out.len());
        if self.access.is_empty() {
            let sockets = (&mut self.sockets.bridge, &mut self.sockets.hosts);
            hand_in(sockets, batch, &mut self.out, &self.pipeline);
        } else {
            deliver(
                (&mut self.access, &mut []),
                &mut self.sockets.uplinks,
                batch,
                &mut self.out,
                &self.pipeline,
            );
        }
        for learned in self.pipeline.learned() {
            // If the queue is full the report is lost. A later frame makes it again.
            if !(self.reports)(Report::Learned(learned)) {
                self.shared.counters.learn_limited.add(1);
            }
        }

        if from_underlay > 0 {
            self.pipeline.handed_in(now, Instant::now());
            self.settle(now);
        }

        let (from, from_bridge) = next(&mut self.sockets.bridge, self.pending.bridge);
        let batch = self.sockets.bridge.batch();
        self.pending.bridge =
            self.pipeline.encapsulate_part(batch, from, &snapshot, now, &mut self.out);
        self.scheduling.begin(self.out.len());
        flush(&mut self.sockets.uplinks, batch, &mut self.out, &self.pipeline);
        let from_ports = if self.serves_ports() { self.turn_ports(&snapshot, now) } else { 0 };
        for adjacency in self.pipeline.resolve_requests() {
            // If the queue is full the request is lost. A later frame makes it again.
            let _ = (self.reports)(Report::Unresolved(adjacency));
        }
        Ok(from_ports + from_underlay + from_bridge)
    }

    /// Pauses if the traffic has had no pause for `restless`, so that hosts' frames can use the
    /// bypass afterwards. The rings hold what arrives meanwhile.
    fn settle(&mut self, now: Instant) {
        if !self.pipeline.is_unsettled() {
            self.restless_since = None;
            return;
        }
        let since = *self.restless_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.restless {
            return;
        }
        std::thread::sleep(PAUSE);
        self.pipeline.settle();
        self.restless_since = None;
        // If one pause did not help, another one soon after hardly will.
        let again =
            self.settled_at.is_some_and(|at| now.saturating_duration_since(at) < self.restless * 2);
        self.restless = if again { (self.restless * 2).min(MOST_RESTLESS) } else { RESTLESS };
        self.settled_at = Some(Instant::now());
    }

    /// The worker did not read for longer than the stall limit, so the kernel has forwarded
    /// meanwhile. Frames that still wait are older than those. They are dropped, so that they
    /// overtake nothing.
    fn catch_up(&mut self, [underlay, bridge]: [Option<Duration>; 2]) -> io::Result<()> {
        let counters = &self.shared.counters;
        let mut dropped = 0;
        let Pending { underlay: underlay_rest, bridge: bridge_rest, .. } = &mut self.pending;
        for (waited, punt, socket, received, rest) in [
            (
                underlay,
                PuntSide::Underlay,
                &mut self.sockets.underlay,
                &counters.underlay_received,
                underlay_rest,
            ),
            (
                bridge,
                PuntSide::Bridge,
                &mut self.sockets.bridge,
                &counters.bridge_received,
                bridge_rest,
            ),
        ] {
            if waited.is_none() {
                continue;
            }
            if let Some(rest) = rest.take() {
                // These frames have been counted as received.
                dropped += rest.untouched(socket.batch().len()) as u64;
            }
            loop {
                let frames = socket.receive().len() as u64;
                if frames == 0 {
                    break;
                }
                received.add(frames);
                dropped += frames;
            }
            self.sockets.patience.forgive(punt);
        }
        self.pipeline.others_sent(Instant::now());
        counters.drop_frames(DropReason::WaitedTooLong, 0, dropped);
        counters.stalls.add(1);
        let waited = underlay.max(bridge).unwrap_or_default();
        // If the queue is full, the counter still shows the stall.
        let _ = (self.reports)(Report::Stalled { waited, dropped });
        tracing::warn!(
            worker = std::thread::current().name(),
            ?waited,
            dropped,
            "the worker was not run for longer than frames may wait: the kernel forwarded meanwhile (limit {:?}); what had \
             waited was dropped",
            self.sockets.patience.limit()
        );
        Ok(())
    }

    fn has_overruns(&self) -> bool {
        self.sockets.underlay.has_overruns()
            || self.sockets.bridge.has_overruns()
            || self.access.iter().any(AccessPort::has_overruns)
    }

    /// Counts frames that found no room in the rings.
    fn count_overruns(&mut self) -> io::Result<()> {
        let counters = &self.shared.counters;
        let punts = [
            (self.sockets.underlay.overruns(), &counters.underlay_received),
            (self.sockets.bridge.overruns(), &counters.bridge_received),
        ];
        let ports = self.access.iter_mut().map(|port| (port.overruns(), &counters.bridge_received));
        for (lost, received) in punts.into_iter().chain(ports) {
            let lost = lost?;
            if lost > 0 {
                received.add(lost);
                counters.drop_frames(DropReason::ReceiveOverrun, 0, lost);
            }
        }
        Ok(())
    }

    /// Sleeps until a punt pair or an access port has frames, the eventfd was written, or the
    /// timeout expires.
    fn sleep(&self, poller: &mut Poller, timeout: Option<Duration>) -> io::Result<()> {
        let wake = self.shared.wake.as_fd();
        let sockets = [&self.sockets.underlay, &self.sockets.bridge];
        let descriptors = sockets.into_iter().map(AsFd::as_fd).chain([wake]);
        let ports =
            self.access.iter().filter(|_| self.serves_ports()).flat_map(AccessPort::descriptors);
        for ready in poller.wait(descriptors.chain(ports), timeout)? {
            match sockets.get(ready.number) {
                Some(socket) if ready.failed => socket.clear_error(),
                // The loop handles the request for which the worker was woken.
                None if ready.number == sockets.len() => drop(self.shared.wake.read()),
                None if ready.failed => self.clear_error(ready.number - sockets.len() - 1),
                _ => {}
            }
        }
        Ok(())
    }

    /// Clears the error of the port with this descriptor. Descriptors are numbered over all ports.
    fn clear_error(&self, descriptor: usize) {
        let of_port = |port| std::iter::repeat_n(port, AccessPort::descriptors(port).count());
        if let Some(port) = self.access.iter().flat_map(of_port).nth(descriptor) {
            port.clear_error();
        }
    }

    /// Whether frames from access ports are read. They are not before the first snapshot.
    fn serves_ports(&self) -> bool {
        self.generation > 0 && !self.access.is_empty()
    }
}

/// The start of a punt pair's next batch or of the rest of its pending one, and how many frames
/// count as moved.
fn next(socket: &mut PacketSocket, pending: Option<Cursor>) -> (Cursor, usize) {
    match pending {
        Some(from) => (from, 1),
        None => (Cursor::default(), socket.receive().len()),
    }
}

/// Sends the pipeline's output to the uplinks, and accounts for it.
fn flush(socket: &mut PacketSocket, batch: &Batch<'_>, out: &mut TxBatch, pipeline: &Pipeline) {
    socket.transmit_queue(batch, out, Queue::Uplinks);
    pipeline.account(out);
    out.clear();
}

/// Sends frames for host ports by the second socket and all others to the bridge by the first, and
/// accounts for them. The order matters: within a batch, a frame of a flow that passes the bridge
/// may follow one past the bridge, but not the reverse.
fn hand_in(
    (bridge, hosts): (&mut PacketSocket, &mut PacketSocket),
    batch: &Batch<'_>,
    out: &mut TxBatch,
    pipeline: &Pipeline,
) {
    hosts.transmit_queue(batch, out, Queue::Hosts);
    bridge.transmit_queue(batch, out, Queue::Bridge);
    pipeline.account(out);
    out.clear();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The daemon must end with its first worker, even if the worker panics.
    #[test]
    fn the_end_is_told_of_after_a_panic_too() {
        let (told, tale) = mpsc::channel();
        let others = told.clone();
        let thread = std::thread::spawn(move || {
            let _told = AtTheEnd(Some(move || {
                let _ = told.send(());
            }));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
        assert_eq!(tale.try_recv(), Ok(()));
        drop(others);
    }
}
