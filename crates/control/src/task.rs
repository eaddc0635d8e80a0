//! The control task: it owns the state, receives from the kernel, zebra and the workers, and
//! publishes.
//!
//! It subscribes to notifications before it dumps. It dumps again if notifications were lost, if
//! zebra connects, and if the kernel may have changed something without a notification. Events that
//! are already queued are applied before anything is built. A single event is published without
//! delay. Under load there is one publication for each [`PACE`], or fewer, so that publications
//! take at most half of the time.

use std::future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink::{Dump, FdbWrite, Kernel};
use tokio::sync::{mpsc, oneshot, watch};

use crate::events::{self, Event, Journal};
use crate::publish::diff::Diff;
use crate::publish::update::Update;
use crate::settings::Namespace;
use crate::sources::SourceState;
use crate::state::State;
use crate::stores::neighbours::Adjacency;

mod dumps;
mod fpm;
pub mod listener;
mod log;
mod polled;
mod report;
pub mod request;
pub mod status;

use dumps::Dumps;
use fpm::FpmServer;
use listener::FpmListener;
use polled::Polled;
use report::Reporter;
use request::Request;
use status::Status;

/// The shortest time between two publications.
const PACE: Duration = Duration::from_millis(2);
/// The longest delay of an event after a publication that took long.
const LONGEST_PACE: Duration = Duration::from_millis(20);
/// What is counted if the kernel cannot be asked to write an entry.
const EIO: i32 = 5;
/// Number of batches of events that are applied before a publication that is due, even if more are
/// queued.
const DRAIN: usize = 256;
/// Number of moved addresses that are read from the kernel before the next events. Each read takes
/// some microseconds.
const MOVED_AT_ONCE: usize = 256;
/// How long the kernel has to resolve the next hops before anything is taken over. For a dead one
/// it needs 3 s to give up.
const FIRST_RESOLUTION: Duration = Duration::from_millis(500);

/// Why the control task ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel's notifications cannot be received any more.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
}

/// Dumps everything once and builds a publication from it: which VNIs would be taken over, and why
/// the others would not.
///
/// # Errors
/// If the kernel cannot be read.
pub async fn survey(state: &mut State, kernel: &Kernel) -> Result<Update, netlink::Error> {
    for what in Dump::ALL {
        let dump = kernel.dump(what).await?;
        state.resync(what, dump);
    }
    Ok(state.build())
}

/// Runs until [`Request::Shutdown`], or until all senders of requests are dropped.
///
/// `publish` is called in this task with each publication and what differs from the one before, the
/// first time after all initial
/// dumps. The FPM server starts only then: the kernel's neighbours show whether zebra would survive
/// the connection. Events of a publication are in the `journal` after `publish` has returned.
///
/// # Errors
/// If the kernel cannot be read at the start, or its notifications cannot be received any more.
pub async fn run(
    state: State,
    kernel: Kernel,
    listener: FpmListener,
    mut requests: mpsc::Receiver<Request>,
    status: watch::Sender<Status>,
    journal: Journal,
    publish: impl FnMut(&Update, &Diff),
) -> Result<(), RunError> {
    let now = Instant::now();
    let mut task = Task {
        state,
        kernel,
        publish,
        published: Update::default(),
        publish_at: now,
        fpm: FpmServer::new(listener, now),
        dumps: Dumps::new(now),
        polled: Polled::new(now),
        reporter: Reporter::new(status, journal),
        answers: Vec::new(),
        learned: Vec::new(),
    };
    task.start().await?;
    loop {
        let wake = task.wake_at();
        tokio::select! {
            event = task.kernel.next() => task.apply_kernel(event?).await,
            event = task.fpm.next() => task.apply_fpm(event),
            request = requests.recv() => if task.serve(request).await.is_break() {
                return Ok(());
            },
            () = sleep_until(wake) => {}
        }
        for taken in 0usize.. {
            if taken >= DRAIN && Instant::now() >= task.publish_at {
                break;
            }
            tokio::select! {
                biased;
                // The kernel first: its notifications can be lost, while zebra waits.
                event = task.kernel.next() => task.apply_kernel(event?).await,
                event = task.fpm.next() => task.apply_fpm(event),
                request = requests.recv() => if task.serve(request).await.is_break() {
                    return Ok(());
                },
                () = not_before(task.publish_at) => break,
            }
        }
        task.write_learned().await;
        let now = Instant::now();
        task.tick(now);
        task.polled.ask(&mut task.state, &task.kernel, now).await;
        task.publish_changes(now);
        task.ask_neighbours(now).await;
        // After the publication, so that verification does not delay an event.
        task.verify_moved().await;
        task.verify(now).await;
    }
}

struct Task<P> {
    state: State,
    kernel: Kernel,
    publish: P,
    published: Update,
    /// When the next publication may be made.
    publish_at: Instant,
    fpm: FpmServer,
    dumps: Dumps,
    polled: Polled,
    reporter: Reporter,
    /// Requesters that wait for a change to be in force.
    answers: Vec<oneshot::Sender<Result<(), path::SettingsError>>>,
    /// Entries to write into the kernel's FDB.
    learned: Vec<FdbWrite>,
}

impl<P: FnMut(&Update, &Diff)> Task<P> {
    /// Reads all tables, makes the first publication and listens for zebra. Nothing is published
    /// before all tables were read once.
    async fn start(&mut self) -> Result<(), netlink::Error> {
        self.dump_all().await?;
        self.resolve_all().await?;
        self.polled.ask(&mut self.state, &self.kernel, Instant::now()).await;
        self.fpm.start(&self.state);
        self.publish_changes(Instant::now());
        Ok(())
    }

    async fn dump_all(&mut self) -> Result<(), netlink::Error> {
        self.dumps.make_all(&mut self.state, &self.kernel, &mut self.reporter).await
    }

    /// Does what is due by time.
    fn tick(&mut self, now: Instant) {
        self.fpm.tick(now);
        let Some(sweep) = self.state.tick(now) else { return };
        self.reporter.update_status(|status| status.swept.fpm += sweep.entries as u64);
        let event = Event::FpmSwept(sweep);
        // A first or complete replay removes nothing, so there is nothing to report.
        if sweep.entries > 0 || !sweep.returned {
            tracing::info!("{event}");
            self.reporter.write(event);
        }
    }

    async fn apply_kernel(&mut self, event: netlink::Event) {
        match event {
            netlink::Event::Messages(messages) => {
                messages.into_iter().for_each(|message| self.state.apply_kernel(message));
            }
            netlink::Event::TooLong(addresses) => {
                // Anybody can report any.
                let is_vtep = |address: &std::net::IpAddr| self.state.knows_vtep(*address);
                self.polled.report(addresses.into_iter().filter(is_vtep));
            }
            netlink::Event::Overrun => {
                tracing::warn!(
                    "the kernel's events came faster than they were read: everything is dumped again"
                );
                self.state.set_kernel_state(SourceState::Stale { since: Instant::now() });
                self.reporter.sources(&self.state);
                self.reporter.update_status(|status| status.overruns += 1);
                // A failed dump leaves its table as it was and is repeated later.
                let _ = self.dump_all().await;
            }
        }
    }

    fn apply_fpm(&mut self, event: ::fpm::Event) {
        self.fpm.apply(event, &mut self.state, &mut self.reporter);
    }

    /// Serves a request. `Break` ends the task.
    async fn serve(&mut self, request: Option<Request>) -> ControlFlow<()> {
        match request {
            Some(Request::Reload(settings)) => {
                self.state.reload(*settings, Namespace::read());
                self.reporter.write(Event::Reloaded);
            }
            Some(Request::Filters(filters)) => self.state.set_filters(filters),
            Some(Request::PacketFilters(filters)) => self.state.set_packet_filters(filters),
            Some(Request::Change(change, answer)) => match self.state.change(&change) {
                Ok(()) => self.answers.push(answer),
                // The requester may be gone.
                Err(error) => drop(answer.send(Err(error))),
            },
            Some(Request::Port(index, mac, answer)) => {
                drop(answer.send(self.state.port_of(index, mac)))
            }
            Some(Request::Hosts(answer)) => drop(answer.send(self.state.hosts().collect())),
            Some(Request::Learn(learned)) => self.learned.extend(self.state.learn(&learned)),
            Some(Request::Resolve(adjacency)) => self.resolve(adjacency).await,
            Some(Request::Stalled { waited, dropped }) => {
                self.reporter.write(Event::Stalled { waited, dropped })
            }
            Some(Request::Shutdown) | None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Has the kernel resolve all next hops, so that frames can leave when they are taken over.
    /// Kernel VXLAN may have used only one of several next hops, and the kernel may know only its
    /// MAC address.
    async fn resolve_all(&mut self) -> Result<(), netlink::Error> {
        let until = Instant::now() + FIRST_RESOLUTION;
        loop {
            self.state.build_if_dirty();
            self.ask_neighbours(Instant::now()).await;
            if self.state.next_hops_resolved() {
                return Ok(());
            }
            tokio::select! {
                event = self.kernel.next() => self.apply_kernel(event?).await,
                () = tokio::time::sleep_until(until.into()) => return Ok(()),
            }
        }
    }

    /// Reads bridge entries that have moved from the kernel.
    async fn verify_moved(&mut self) {
        let moved = self.state.take_moved(MOVED_AT_ONCE);
        if moved.is_empty() {
            return;
        }
        let asked = self.kernel.request(move |kernel| {
            Ok(moved
                .into_iter()
                .map(|(bridge, mac)| (bridge, mac, kernel.bridge_entry(bridge, mac)))
                .collect())
        });
        let answers: Vec<_> = match asked.await {
            Ok(answers) => answers,
            Err(error) => {
                return tracing::debug!(%error, "the kernel cannot be asked for FDB entries");
            }
        };
        for (bridge, mac, entry) in answers {
            match entry {
                Ok(entry) => self.state.bridge_has(bridge, mac, entry.as_ref()),
                // The bridge may be gone by now.
                Err(error) => tracing::debug!(bridge, %mac, %error, "an FDB entry cannot be read"),
            }
        }
        if self.state.is_dirty() {
            self.publish_changes(Instant::now());
        }
    }

    /// Makes the dumps that the state wants, and those that failed before.
    async fn verify(&mut self, now: Instant) {
        let Self { dumps, state, kernel, reporter, .. } = self;
        if dumps.make_wanted(state, kernel, reporter, now).await {
            self.publish_changes(Instant::now());
        }
    }

    fn publish_changes(&mut self, now: Instant) {
        self.state.build_if_dirty();
        if self.state.published().snapshot.version() != self.published.snapshot.version() {
            let mac_locations = self.state.take_mac_locations();
            let update = Update { mac_locations, ..self.state.published().clone() };
            let diff = Diff::between(&self.published, &update, Arc::clone(&update.mac_locations));
            log::log(&diff);
            (self.publish)(&update, &diff);
            let before = std::mem::replace(&mut self.published, update);
            let macs = self.state.take_mac_changes(now);
            let reporter = &self.reporter;
            events::diff::between(&before, &self.published, &diff, &macs, |event| {
                reporter.write(event)
            });
            self.publish_at = now + (2 * now.elapsed()).clamp(PACE, LONGEST_PACE);
        }
        for flap in self.state.take_flaps(now) {
            if let Some(event) = events::diff::flapping(&self.published, &flap) {
                tracing::warn!("{event}");
                self.reporter.write(event);
            }
        }
        self.report(now);
        // The requester may be gone.
        self.answers.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
    }

    fn report(&mut self, now: Instant) {
        let mut warnings = self.fpm.warnings(&self.state, now);
        warnings.extend(self.dumps.warnings());
        let (source, refused) = (self.fpm.source_state(&self.state), self.fpm.take_refused());
        self.reporter.report(&self.state, source, refused, warnings);
    }

    async fn ask_neighbours(&mut self, now: Instant) {
        for adjacency in self.state.resolve_due(now) {
            self.ask(adjacency).await;
        }
    }

    /// Writes learned addresses into the kernel's FDB. They are used for forwarding once the kernel
    /// has confirmed them by a notification.
    async fn write_learned(&mut self) {
        if self.learned.is_empty() {
            return;
        }
        let writes = std::mem::take(&mut self.learned);
        let asked = writes.clone();
        match self.kernel.request(move |kernel| kernel.write_fdb(&asked)).await {
            Ok(outcomes) => {
                for (write, outcome) in writes.iter().zip(outcomes) {
                    self.state.written(write, outcome);
                }
            }
            // The worker reports it again.
            Err(error) => {
                tracing::warn!(%error, "what was learned could not be written");
                writes.iter().for_each(|write| self.state.written(write, EIO));
            }
        }
    }

    async fn resolve(&mut self, adjacency: Adjacency) {
        if self.state.resolve(adjacency, Instant::now()) {
            self.ask(adjacency).await;
        }
    }

    async fn ask(&self, Adjacency { ifindex, address }: Adjacency) {
        tracing::debug!(ifindex, %address, "the kernel is asked to resolve a neighbour");
        if let Err(error) =
            self.kernel.request(move |kernel| kernel.resolve(ifindex, address)).await
        {
            tracing::debug!(%error, "the kernel cannot be asked to resolve a neighbour");
        }
    }

    /// The next time at which there is something to do without an event.
    fn wake_at(&self) -> Option<Instant> {
        let moved = self.state.has_moved().then_some(self.publish_at);
        let (dump, fpm) = (self.dumps.wake_at(&self.state), self.fpm.wake_at(&self.reporter));
        [self.state.wake_at(), dump, fpm, moved, Some(self.polled.at())].into_iter().flatten().min()
    }
}

/// Returns immediately if the time has passed. A timer would wait for its next tick.
async fn not_before(time: Instant) {
    if Instant::now() < time {
        tokio::time::sleep_until(time.into()).await;
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => future::pending().await,
    }
}
