//! The worker: one thread that moves frames from the splices through the pipeline to the ports, run to completion.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use control::{Adjacency, Request};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use pipeline::{Batch, Counters, DropReason, Pipeline, Transmit};
use ports::{AccessPort, PacketSocket, Patience, Scheduling, Waiting};
use tables::Snapshot;
use tokio::sync::{mpsc, oneshot};

use crate::standalone::{Access, Stations};

/// Frames that wait for a next hop are looked at this often, beside each new snapshot.
const HOLD_INTERVAL: Duration = Duration::from_millis(100);
/// When stopping: nothing may arrive for this long before the worker is done. Frames that were redirected just before the kill
/// switch was emptied pass the kernel's backlog in far less.
const QUIET: Duration = Duration::from_millis(20);

/// What a worker reads and writes.
#[derive(Debug)]
pub struct Sockets {
    /// Far end of the underlay splice.
    pub underlay: PacketSocket,
    /// Far end of the bridge splice.
    pub bridge: PacketSocket,
    /// Sends to the uplinks.
    pub uplinks: PacketSocket,
    /// By which the steering programs know that the worker is alive.
    pub patience: Patience,
    /// How it goes about it.
    pub options: WorkerOptions,
}

/// What the configuration says of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Whether it may run before ordinary threads.
    pub realtime: bool,
    /// Whether frames of one outer flow may leave together, where the kernel can.
    pub gso: bool,
}

/// What a worker shares with the rest of the daemon.
#[derive(Debug)]
pub(crate) struct Shared {
    snapshot: ArcSwap<Snapshot>,
    counters: Arc<Counters>,
    wake: EventFd,
    stopping: AtomicBool,
    /// Who wants to know the stations; looked at where there is a bridge.
    asker: Mutex<Option<oneshot::Sender<Stations>>>,
    asked: AtomicBool,
}

impl Shared {
    /// Who wants to know the stations.
    pub(crate) fn take_asker(&self) -> Option<oneshot::Sender<Stations>> {
        let asked = self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Acquire);
        if asked { self.asker.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None }
    }
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    thread: JoinHandle<io::Result<()>>,
}

impl Worker {
    /// Starts the thread. `requests` gets next hops that frames wait for, and learned addresses; `stopped` is called when the thread ends.
    ///
    /// # Errors
    /// When the thread or its wake-up descriptor cannot be made.
    pub fn start(
        sockets: Sockets,
        access: Access,
        requests: mpsc::Sender<Request>,
        stopped: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::default(),
            counters: Arc::new(Counters::new()),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stopping: AtomicBool::new(false),
            asker: Mutex::default(),
            asked: AtomicBool::new(false),
        });
        let Access { ports, bridge, claims } = access;
        let mut engine = Engine {
            shared: Arc::clone(&shared),
            sockets,
            access: ports,
            _claims: claims,
            pipeline: Pipeline::new(Arc::clone(&shared.counters)),
            batch: Batch::new(ports::packet::BATCH),
            out: Vec::new(),
            requests,
            generation: 0,
            scheduling: Scheduling::fair(),
        };
        bridge.into_iter().for_each(|bridge| engine.pipeline.set_bridge(bridge));
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let result = engine.run();
            stopped();
            result
        })?;
        Ok(Self { shared, thread })
    }

    /// What the worker counts.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// The stations that the worker's own bridge has learned, as soon as it is asked; none without such a bridge.
    pub fn stations(&self) -> oneshot::Receiver<Stations> {
        let (asker, answer) = oneshot::channel();
        *self.shared.asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(asker);
        self.shared.asked.store(true, Ordering::Release);
        self.wake();
        answer
    }

    /// Lets the worker forward by this snapshot from its next batch on.
    pub fn publish(&self, snapshot: Arc<Snapshot>) {
        self.shared.snapshot.store(snapshot);
        // An idle worker sleeps on; one with frames on hold may be able to send them now.
        if self.shared.counters.held.get() > 0 {
            self.wake();
        }
    }

    /// Has the worker forward what it still gets until nothing comes any more, and waits for its end.
    ///
    /// # Errors
    /// What ended the worker, if it was not this.
    pub fn stop(self) -> io::Result<()> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.wake();
        self.thread.join().map_err(|_| io::Error::other("the worker panicked"))?
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the worker is awake.
        let _ = self.shared.wake.write(1);
    }
}

/// The thread's own state.
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sockets: Sockets,
    /// Without a kernel bridge.
    pub(crate) access: Vec<AccessPort>,
    _claims: Vec<UdpSocket>,
    pub(crate) pipeline: Pipeline,
    pub(crate) batch: Batch,
    pub(crate) out: Vec<Transmit>,
    requests: mpsc::Sender<Request>,
    /// Of the snapshot that was forwarded by last.
    generation: u64,
    scheduling: Scheduling,
}

impl Engine {
    fn run(&mut self) -> io::Result<()> {
        if self.sockets.options.realtime {
            match Scheduling::prompt() {
                Ok(scheduling) => self.scheduling = scheduling,
                Err(error) => tracing::info!(
                    "the worker is scheduled like any thread, so frames may wait some milliseconds on a busy machine: {error} \
                     (CAP_SYS_NICE would help)"
                ),
            }
        }
        let mut quiet_since = None;
        loop {
            let now = Instant::now();
            let moved = self.turn(now)?;
            if moved {
                quiet_since = None;
                self.scheduling.work(now);
                continue;
            }
            self.scheduling.rest(now);
            self.count_overruns();
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            if stopping && quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
                self.pipeline.stop();
                return Ok(());
            }
            let timeout = match (stopping, self.pipeline.holds()) {
                (true, _) => Some(QUIET),
                (false, true) => Some(HOLD_INTERVAL),
                (false, false) => None,
            };
            self.sleep(timeout)?;
        }
    }

    /// One batch each way. Returns whether there was anything.
    fn turn(&mut self, now: Instant) -> io::Result<bool> {
        let snapshot = self.shared.snapshot.load();
        if self.generation != snapshot.generation() || self.pipeline.holds() {
            self.generation = snapshot.generation();
            self.pipeline.release(&snapshot, now, &mut self.out);
            flush(&mut self.sockets.uplinks, &self.batch, &mut self.out, &self.pipeline);
        }
        let stalled = [Waiting::Underlay, Waiting::Bridge].map(|splice| self.sockets.patience.look(splice));
        if stalled != [None, None] {
            self.catch_up(stalled)?;
            return Ok(true);
        }
        let counters = &self.shared.counters;

        let unreadable = self.sockets.underlay.receive(&mut self.batch)?;
        let from_underlay = self.batch.len();
        if unreadable > 0 {
            counters.underlay_received.add(unreadable);
            counters.drop_frames(DropReason::ReceiveUnreadable, 0, unreadable);
        }
        self.pipeline.decapsulate(&self.batch, &snapshot, now, &mut self.out);
        if self.access.is_empty() {
            flush(&mut self.sockets.bridge, &self.batch, &mut self.out, &self.pipeline);
        } else {
            self.deliver();
        }
        for learned in self.pipeline.learned() {
            // What finds no room is reported again soon.
            if self.requests.try_send(Request::Learn(learned)).is_err() {
                self.shared.counters.learn_limited.add(1);
            }
        }

        let unreadable_too = self.sockets.bridge.receive(&mut self.batch)?;
        let from_bridge = self.batch.len();
        self.count_unreadable(unreadable_too);
        self.pipeline.encapsulate(&self.batch, &snapshot, now, &mut self.out);
        flush(&mut self.sockets.uplinks, &self.batch, &mut self.out, &self.pipeline);
        let from_ports = !self.access.is_empty() && self.turn_ports(&snapshot, now)?;
        for (ifindex, address) in self.pipeline.resolve_requests() {
            // When control is that far behind, the next request will do.
            let _ = self.requests.try_send(Request::Resolve(Adjacency { ifindex, address }));
        }
        Ok(from_ports || from_underlay + from_bridge > 0 || unreadable + unreadable_too > 0)
    }

    /// Frames from hosts that the kernel could not hand over.
    pub(crate) fn count_unreadable(&self, frames: u64) {
        if frames > 0 {
            self.shared.counters.bridge_received.add(frames);
            self.shared.counters.drop_frames(DropReason::ReceiveUnreadable, 0, frames);
        }
    }

    /// The worker was away for so long that the kernel has taken over: what still waits is older than what the kernel has forwarded
    /// meanwhile, and goes no further.
    fn catch_up(&mut self, [underlay, bridge]: [Option<Duration>; 2]) -> io::Result<()> {
        let counters = &self.shared.counters;
        let mut dropped = 0;
        for (waited, splice, socket, received) in [
            (underlay, Waiting::Underlay, &mut self.sockets.underlay, &counters.underlay_received),
            (bridge, Waiting::Bridge, &mut self.sockets.bridge, &counters.bridge_received),
        ] {
            if waited.is_none() {
                continue;
            }
            loop {
                let frames = socket.receive(&mut self.batch)? + self.batch.len() as u64;
                if frames == 0 {
                    break;
                }
                received.add(frames);
                dropped += frames;
            }
            self.sockets.patience.forgive(splice);
        }
        counters.drop_frames(DropReason::WaitedTooLong, 0, dropped);
        counters.stalls.add(1);
        let waited = underlay.max(bridge).unwrap_or_default();
        // When control is that far behind, the count has to do.
        let _ = self.requests.try_send(Request::Stalled { waited, dropped });
        tracing::warn!(
            ?waited,
            dropped,
            "the worker was not run for longer than frames may wait: the kernel forwarded meanwhile (limit {:?}); what had \
             waited was dropped",
            self.sockets.patience.limit()
        );
        Ok(())
    }

    /// Frames that the kernel could not queue, looked up before each sleep: a worker without work has lost none.
    fn count_overruns(&self) {
        let counters = &self.shared.counters;
        let splices = [
            (self.sockets.underlay.overruns(), &counters.underlay_received),
            (self.sockets.bridge.overruns(), &counters.bridge_received),
        ];
        let ports = self.access.iter().map(|port| (port.overruns(), &counters.bridge_received));
        for (lost, received) in splices.into_iter().chain(ports) {
            if let Ok(lost) = lost
                && lost > 0
            {
                received.add(lost);
                counters.drop_frames(DropReason::ReceiveOverrun, 0, lost);
            }
        }
    }

    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout =
            timeout.map_or(Ok(PollTimeout::NONE), PollTimeout::try_from).unwrap_or(PollTimeout::ZERO);
        let mut descriptors = vec![
            PollFd::new(self.sockets.underlay.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sockets.bridge.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.shared.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sockets.patience.as_fd(), PollFlags::POLLIN),
        ];
        let ports = self.access.iter().flat_map(AccessPort::descriptors);
        descriptors.extend(ports.map(|port| PollFd::new(port, PollFlags::POLLIN)));
        match poll(&mut descriptors, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Nobody woke us, or we are awake now.
        let _ = self.shared.wake.read();
        Ok(())
    }
}

/// Sends what the pipeline has made, and accounts for it.
fn flush(socket: &mut PacketSocket, batch: &Batch, out: &mut Vec<Transmit>, pipeline: &Pipeline) {
    socket.transmit(batch, out, |frame, outcome| pipeline.account(frame, outcome));
    out.clear();
}
