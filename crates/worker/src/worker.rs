//! The handle of a worker: a thread that runs frames to completion.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bpf::Watchdog;
use nix::sys::eventfd::{EfdFlags, EventFd};
use pipeline::{Adjacency, CachedFlow, Counters, Identifications, Location, Pins, Pipeline};
use ports::{AccessPort, PacketSocket};
use tables::{Learned, OpenPort, Snapshot};

use crate::access_ports::{Stations, WorkerPorts};
use crate::engine::Engine;
use crate::forwarder::{Forwarder, Ports};
use crate::punt::of_worker;

/// The sockets of a worker, its watchdog and its options.
#[derive(Debug)]
pub struct Sockets {
    /// The ports between which it forwards.
    pub ports: Ports<PacketSocket>,
    /// Shows the steering programs that this worker is alive.
    pub watchdog: Watchdog,
    /// The CPU on which the worker stays. `None` if the kernel does not tell which there are.
    pub cpu: Option<usize>,
    /// Whether encapsulated frames are sent in super-frames.
    pub is_grouping: bool,
    /// The configured options.
    pub options: WorkerOptions,
    /// What places the queue pairs of `qp-pin`.
    pub pins: Pins,
    /// The sequence of outer identifications of all workers.
    pub identifications: Identifications,
}

/// Options of the workers from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerOptions {
    /// How many workers there are.
    pub workers: usize,
    /// Whether workers may use real-time scheduling.
    pub realtime: bool,
    /// Whether super-frames may be used where the kernel supports them.
    pub gso: bool,
    /// Whether workers poll and never sleep. They then run as ordinary threads, because a polling
    /// real-time thread would leave no time to other threads of its core.
    pub busy_poll: bool,
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

/// A question about a worker's state. It is called on the worker's thread and must not block.
pub(crate) type Query = Box<dyn FnOnce(&mut Pipeline, Instant) + Send>;

/// What a worker shares with the rest of the daemon.
pub(crate) struct Shared {
    pub(crate) snapshot: ArcSwap<Snapshot>,
    /// As set last by [`Worker::open`].
    pub(crate) open_ports: ArcSwap<Vec<OpenPort>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) wake: EventFd,
    pub(crate) stopping: AtomicBool,
    queries: Mutex<Vec<Query>>,
    has_queries: AtomicBool,
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
    fn new() -> io::Result<Self> {
        Ok(Self {
            snapshot: ArcSwap::default(),
            open_ports: ArcSwap::default(),
            counters: Arc::new(Counters::new()),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stopping: AtomicBool::new(false),
            queries: Mutex::default(),
            has_queries: AtomicBool::new(false),
            new_ports: Mutex::default(),
            has_new_ports: AtomicBool::new(false),
        })
    }

    /// The access ports that were opened again since the last call.
    pub(crate) fn take_new_ports(&self) -> Vec<(u16, AccessPort)> {
        if !self.has_new_ports.load(Ordering::Relaxed)
            || !self.has_new_ports.swap(false, Ordering::Acquire)
        {
            return Vec::new();
        }
        std::mem::take(&mut *self.new_ports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The queries since the last call.
    pub(crate) fn take_queries(&self) -> Vec<Query> {
        if !self.has_queries.load(Ordering::Relaxed)
            || !self.has_queries.swap(false, Ordering::Acquire)
        {
            return Vec::new();
        }
        std::mem::take(&mut *self.queries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask(&self, query: Query) {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).push(query);
        self.has_queries.store(true, Ordering::Release);
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
        let shared = Arc::new(Shared::new()?);
        let WorkerPorts { ports: access, bridge, numbers, vnis: _ } = share;
        let Sockets { ports, watchdog, cpu, is_grouping, options, pins, identifications } = sockets;
        let mut pipeline = Pipeline::new(Arc::clone(&shared.counters));
        pipeline.set_grouping(is_grouping);
        pipeline.set_pins(pins);
        pipeline.set_identifications(identifications);
        bridge.into_iter().for_each(|bridge| pipeline.set_bridge(bridge));
        let forwarder = Forwarder::new(ports, access, pipeline);
        let mut engine = Engine::new(
            Arc::clone(&shared),
            forwarder,
            numbers.clone(),
            reports,
            (watchdog, options),
        );
        let thread =
            std::thread::Builder::new().name(of_worker("worker", number)).spawn(move || {
                let _on_drop = OnDrop(Some(stopped));
                engine.run(cpu)
            })?;
        Ok(Self { shared, numbers, thread })
    }

    /// The worker's counters.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Has `answer` called on the worker's thread with the stations that its own bridge has learned.
    /// It must not block.
    pub fn stations(&self, answer: impl FnOnce(Stations) + Send + 'static) {
        let numbers = self.numbers.clone();
        self.ask(move |pipeline, now| {
            let mut stations = pipeline.stations(now);
            for station in &mut stations {
                if let Location::Port(number) = &mut station.location {
                    *number = numbers.get(usize::from(*number)).copied().unwrap_or(*number);
                }
            }
            answer(stations);
        });
    }

    /// Has `answer` called on the worker's thread with the flows that it remembers. It must not
    /// block.
    pub fn flows(&self, answer: impl FnOnce(Vec<CachedFlow>) + Send + 'static) {
        self.ask(move |pipeline, now| answer(pipeline.flows(now)));
    }

    fn ask(&self, query: impl FnOnce(&mut Pipeline, Instant) + Send + 'static) {
        self.shared.ask(Box::new(query));
        self.waker().wake();
    }

    /// Passes an access port that was opened again to the worker. The worker ignores it if the
    /// number is not one of its own.
    pub fn replace_port(&self, number: u16, port: AccessPort) {
        self.shared.new_ports.lock().unwrap_or_else(PoisonError::into_inner).push((number, port));
        self.shared.has_new_ports.store(true, Ordering::Release);
        self.waker().wake();
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
            self.waker().wake();
        }
    }

    /// Replaces the host ports to which the worker may send frames past the bridge. The worker uses
    /// them from its next batch on.
    pub fn open(&self, ports: &[OpenPort]) {
        if **self.shared.open_ports.load() != *ports {
            self.shared.open_ports.store(Arc::new(ports.to_vec()));
        }
    }

    /// Makes the worker forward what still arrives until nothing more comes, and then end.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.waker().wake();
    }

    /// Waits until the thread ends.
    ///
    /// # Errors
    /// The error that ended the worker.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().map_err(|_| io::Error::other("the worker panicked"))?
    }

    /// Wakes the worker from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }
}

/// Wakes a worker from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// Wakes the worker, which then reads its sockets.
    pub fn wake(&self) {
        // This fails only if the counter is full, and then the worker is awake.
        let _ = self.0.wake.write(1);
    }
}

/// Calls the function when dropped, even if a panic ends the thread.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The daemon must end with its first worker, even if the worker panics.
    #[test]
    fn the_end_is_reported_after_a_panic_too() {
        let (ends, ended) = mpsc::channel();
        let others = ends.clone();
        let thread = std::thread::spawn(move || {
            let _on_drop = OnDrop(Some(move || {
                let _ = ends.send(());
            }));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
        assert_eq!(ended.try_recv(), Ok(()));
        drop(others);
    }

    #[test]
    fn every_query_is_answered_once() {
        let (answers, answered) = mpsc::channel();
        let shared = Shared::new().unwrap();
        assert!(shared.take_queries().is_empty());
        for request in 0..2 {
            let answers = answers.clone();
            shared.ask(Box::new(move |pipeline, now| {
                let known = (pipeline.stations(now).len(), pipeline.flows(now).len());
                answers.send((request, known)).unwrap();
            }));
        }
        let mut pipeline = Pipeline::new(Arc::clone(&shared.counters));
        for query in shared.take_queries() {
            query(&mut pipeline, Instant::now());
        }
        assert_eq!(answered.try_iter().collect::<Vec<_>>(), [(0, (0, 0)), (1, (0, 0))]);
        assert!(shared.take_queries().is_empty());
    }
}
