//! The thread of a worker: it polls its ports, forwards, and sleeps when nothing arrives.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bpf::{PuntSide, Watchdog};
use frame::DropReason;
use pipeline::PAUSE;
use ports::{AccessPort, PacketSocket, Poller, Port};
use tables::{Addition, OpenPort, Snapshot, Version};

use crate::affinity;
use crate::forwarder::{Forwarder, Ports};
use crate::scheduling::Scheduling;
use crate::worker::{Report, Reports, Shared, WorkerOptions};

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

/// How long frames of a VNI may wait in the kernel's backlogs when the VNI is taken over.
const KERNEL_BACKLOG: Duration = Duration::from_millis(5);

/// The thread's own state.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    forwarder: Forwarder<PacketSocket, AccessPort>,
    watchdog: Watchdog,
    options: WorkerOptions,
    /// The access ports' numbers among all workers' ports.
    numbers: Vec<u16>,
    reports: Reports,
    /// The snapshot of the last batch.
    snapshot: Version<Snapshot>,
    /// The last addition of a VNI that the worker has seen.
    addition: Version<Addition>,
    /// The host ports that the pipeline uses.
    open_ports: Arc<Vec<OpenPort>>,
    /// Since when no pause in the traffic has let hosts' frames move from the bridge to the bypass.
    restless_since: Option<Instant>,
    /// How long that may last before the worker pauses, and when it paused last.
    restless: Duration,
    settled_at: Option<Instant>,
    scheduling: Scheduling,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        forwarder: Forwarder<PacketSocket, AccessPort>,
        numbers: Vec<u16>,
        reports: Reports,
        (watchdog, options): (Watchdog, WorkerOptions),
    ) -> Self {
        Self {
            shared,
            forwarder,
            watchdog,
            options,
            numbers,
            reports,
            snapshot: Version::NONE,
            addition: Version::NONE,
            open_ports: Arc::default(),
            restless_since: None,
            restless: RESTLESS,
            settled_at: None,
            scheduling: Scheduling::fair(),
        }
    }

    /// Forwards until the worker is stopped. The thread stays on `cpu` if there is one.
    pub(crate) fn run(&mut self, cpu: Option<usize>) -> io::Result<()> {
        let busy_poll = self.options.busy_poll;
        if let Some(cpu) = cpu
            && let Err(error) = affinity::stay_on(cpu)
        {
            tracing::warn!(
                "the worker does not stay on CPU {cpu}, so its frames may overtake each other when it moves: {error}"
            );
        }
        if self.options.realtime && !busy_poll {
            match Scheduling::prompt() {
                Ok(scheduling) => self.scheduling = scheduling,
                Err(error) => tracing::info!(
                    "the worker is scheduled like any thread, so frames may wait some milliseconds on a busy machine: {error} \
                     (CAP_SYS_NICE would help)"
                ),
            }
        }
        let mut poller = Poller::default();
        let (mut quiet_since, mut stopping_since) = (None, None);
        let (mut counted, mut uncounted) = (Instant::now(), 0);
        loop {
            let now = Instant::now();
            self.watchdog.set_idle(false);
            let moved = self.poll_once(now)?;
            uncounted += moved;
            let falls_asleep = moved == 0 && !busy_poll;
            // Counting also recreates a stuck ring, which must not happen while a part of its batch
            // is still to be sent.
            if ((falls_asleep && (uncounted >= FEW || self.forwarder.has_overruns()))
                || now.saturating_duration_since(counted) >= OVERRUN_INTERVAL)
                && self.forwarder.is_idle()
            {
                (counted, uncounted) = (now, 0);
                self.forwarder.count_overruns(&self.shared.counters)?;
            }
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            if stopping
                && now.saturating_duration_since(*stopping_since.get_or_insert(now)) >= LAST
                && self.forwarder.is_idle()
            {
                self.forwarder.pipeline.stop();
                return Ok(());
            }
            if moved > 0 {
                quiet_since = None;
                self.scheduling.work(now, moved);
                continue;
            }
            self.scheduling.rest(now);
            if self.forwarder.is_idle() && !self.forwarder.pipeline.holds() {
                self.watchdog.set_idle(true);
            }
            if stopping && quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
                self.forwarder.pipeline.stop();
                return Ok(());
            }
            let ages = self.forwarder.pipeline.age(now);
            let timeout = match (stopping, self.forwarder.pipeline.holds()) {
                (true, _) => Some(QUIET),
                (false, _) if busy_poll => Some(Duration::ZERO),
                (false, true) => {
                    let deadline = self.forwarder.pipeline.deadline();
                    Some(deadline.map_or(HOLD_INTERVAL, |wait| wait.min(HOLD_INTERVAL)))
                }
                (false, false) if self.forwarder.access.iter().any(AccessPort::may_stick) => {
                    Some(STUCK_INTERVAL)
                }
                (false, false) => ages,
            };
            self.sleep(&mut poller, timeout)?;
        }
    }

    /// Processes one batch in each direction, or one part of a batch whose frames have many copies.
    /// Returns how many frames there were.
    fn poll_once(&mut self, now: Instant) -> io::Result<usize> {
        let snapshot = self.shared.snapshot.load();
        if self.snapshot != snapshot.version() || self.forwarder.pipeline.holds() {
            self.snapshot = snapshot.version();
            self.forwarder.release(&snapshot, now);
        }
        if self.addition != snapshot.addition_version() {
            self.addition = snapshot.addition_version();
            // The kernel's own frames of a new VNI may still wait in backlogs of the kernel. The
            // rings hold what arrives meanwhile.
            std::thread::sleep(KERNEL_BACKLOG);
        }
        let open_ports = self.shared.open_ports.load();
        if !Arc::ptr_eq(&open_ports, &self.open_ports) {
            self.open_ports = Arc::clone(&open_ports);
            self.forwarder.pipeline.open_ports(&open_ports);
        }
        let stalled = [PuntSide::Underlay, PuntSide::Bridge].map(|punt| self.watchdog.look(punt));
        if stalled != [None, None] {
            // Not zero: the worker must not sleep before it has read what arrived meanwhile.
            return self.catch_up(stalled).map(|()| 1);
        }
        let Self { forwarder, scheduling, .. } = self;
        let from_underlay =
            forwarder.from_underlay(&snapshot, now, |frames| scheduling.begin(frames))?;
        // What has arrived while the worker did not run ends gaps first.
        if self.forwarder.pipeline.deadline().is_some() && self.forwarder.has_read_underlay() {
            self.forwarder.expire(&snapshot, now);
        }
        for learned in self.forwarder.pipeline.learned() {
            // If the queue is full the report is lost. A later frame makes it again.
            if !(self.reports)(Report::Learned(learned)) {
                self.shared.counters.learn_limited.add(1);
            }
        }

        if from_underlay > 0 {
            self.forwarder.pipeline.handed_in(now, Instant::now());
            self.settle(now);
        }

        let Self { forwarder, scheduling, .. } = self;
        let from_bridge =
            forwarder.from_bridge(&snapshot, now, |frames| scheduling.begin(frames))?;
        let from_ports =
            if self.serves_ports() { self.poll_access_ports(&snapshot, now) } else { 0 };
        for query in self.shared.take_queries() {
            query(&mut self.forwarder.pipeline, now);
        }
        for adjacency in self.forwarder.pipeline.resolve_requests() {
            // If the queue is full the request is lost. A later frame makes it again.
            let _ = (self.reports)(Report::Unresolved(adjacency));
        }
        Ok(from_ports + from_underlay + from_bridge)
    }

    /// Pauses if the traffic has had no pause for `restless`, so that hosts' frames can use the
    /// bypass afterwards. The rings hold what arrives meanwhile.
    fn settle(&mut self, now: Instant) {
        if !self.forwarder.pipeline.is_unsettled() {
            self.restless_since = None;
            return;
        }
        let since = *self.restless_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.restless {
            return;
        }
        std::thread::sleep(PAUSE);
        self.forwarder.pipeline.settle();
        self.restless_since = None;
        // If one pause did not help, another one soon after hardly will.
        let again =
            self.settled_at.is_some_and(|at| now.saturating_duration_since(at) < self.restless * 2);
        self.restless = if again { (self.restless * 2).min(MOST_RESTLESS) } else { RESTLESS };
        self.settled_at = Some(Instant::now());
    }

    /// Processes one batch of each access port, or one part of a batch.
    fn poll_access_ports(&mut self, snapshot: &Snapshot, now: Instant) -> usize {
        if !self.forwarder.is_port_pending() {
            self.take_new_ports();
        }
        let Self { forwarder, scheduling, .. } = self;
        forwarder.from_access_ports(snapshot, now, |frames| scheduling.begin(frames))
    }

    /// Takes over access ports that were opened again.
    fn take_new_ports(&mut self) {
        for (number, port) in self.shared.take_new_ports() {
            let index = self.numbers.iter().position(|own| *own == number);
            if let Some(old) = index.and_then(|index| self.forwarder.access.get_mut(index)) {
                *old = port;
            }
        }
    }

    /// The worker did not read for longer than the stall limit, so the kernel has forwarded
    /// meanwhile. Frames that still wait are older than those. They are dropped, so that they
    /// overtake nothing.
    fn catch_up(&mut self, [underlay, bridge]: [Option<Duration>; 2]) -> io::Result<()> {
        let counters = &self.shared.counters;
        let mut dropped = 0;
        for (waited, side) in [(underlay, PuntSide::Underlay), (bridge, PuntSide::Bridge)] {
            if waited.is_some() {
                dropped += self.forwarder.discard(side, counters)?;
                self.watchdog.forgive(side);
            }
        }
        self.forwarder.pipeline.others_sent(Instant::now());
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
            self.watchdog.limit()
        );
        Ok(())
    }

    /// Sleeps until a punt pair or an access port has frames, the eventfd was written, or the
    /// timeout expires.
    fn sleep(&self, poller: &mut Poller, timeout: Option<Duration>) -> io::Result<()> {
        let wake = self.shared.wake.as_fd();
        let Ports { underlay, bridge, .. } = &self.forwarder.ports;
        let sockets = [underlay, bridge];
        let descriptors = sockets.into_iter().map(AsFd::as_fd).chain([wake]);
        let ports = self
            .forwarder
            .access
            .iter()
            .filter(|_| self.serves_ports())
            .flat_map(AccessPort::descriptors);
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
        if let Some(port) = self.forwarder.access.iter().flat_map(of_port).nth(descriptor) {
            port.clear_error();
        }
    }

    /// Whether frames from access ports are read. They are not before the first snapshot.
    fn serves_ports(&self) -> bool {
        self.snapshot != Version::NONE && !self.forwarder.access.is_empty()
    }
}
