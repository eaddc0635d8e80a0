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
use std::time::{Duration, Instant};

use fpm::Server;
use netlink::{Dump, FdbWrite, Kernel};
use tables::Learned;
use tokio::sync::{mpsc, oneshot, watch};

use crate::change::Change;
use crate::events::{self, Event, Journal};
use crate::hosts::Host;
use crate::publish::update::Update;
use crate::settings::{Filters, Namespace, Settings};
use crate::sources::SourceState;
use crate::sources::fpm_session::FpmHazard;
use crate::state::State;
use crate::stores::neighbours::Adjacency;
use crate::stores::packet_filters::PacketFilters;

pub mod listener;
mod log;
pub(crate) mod polled;
pub mod status;

use listener::FpmListener;
use polled::Polled;
use status::{Status, Warning};

/// The shortest time between two publications.
const PACE: Duration = Duration::from_millis(2);
/// The longest delay of an event after a publication that took long.
const LONGEST_PACE: Duration = Duration::from_millis(20);
/// Number of batches of events that are applied before a publication that is due, even if more are
/// queued.
const DRAIN: usize = 256;
/// Dumps that only verify take at most one part in this many of the time.
const DUMP_SHARE: u32 = 8;
/// When a failed dump is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Number of moved addresses that are read from the kernel before the next events. Each read takes
/// some microseconds.
const MOVED_AT_ONCE: usize = 256;
/// How long the kernel has to resolve the next hops before anything is taken over. For a dead one
/// it needs 3 s to give up.
const FIRST_RESOLUTION: Duration = Duration::from_millis(500);
/// How long zebra has to connect before a warning. (It retries every 3 s.)
const FPM_PATIENCE: Duration = Duration::from_secs(10);

/// The interval of attempts to listen on FPM's address while another process uses it.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// The shortest interval between two checks for a hazard. A check reads all neighbours.
const HAZARD_INTERVAL: Duration = Duration::from_secs(1);

/// Why the control task ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel's notifications cannot be received any more.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
}

/// A request to the control task.
#[derive(Debug)]
pub enum Request {
    /// Use these settings from now on.
    Reload(Box<Settings>),
    /// Which packet filters see bridged frames has changed.
    Filters(Filters),
    /// The rules of packet filters have changed.
    PacketFilters(PacketFilters),
    /// A worker received a frame from this MAC address.
    Learn(Learned),
    /// A worker needs this neighbour's MAC address.
    Resolve(Adjacency),
    /// A worker hung for so long that the kernel took over.
    Stalled {
        /// How long the frames had waited.
        waited: Duration,
        /// How many of them were dropped.
        dropped: u64,
    },
    /// Apply this change. The answer is sent when it is in force or has failed.
    Change(Change, oneshot::Sender<Result<(), path::SettingsError>>),
    /// Ask for the bridge port behind which the VNI in this slot has an address.
    Port(tables::Slot, wire::MacAddr, oneshot::Sender<Option<String>>),
    /// Ask for the known hosts.
    Hosts(oneshot::Sender<Vec<Host>>),
    /// End the task.
    Shutdown,
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
/// `publish` is called in this task, once for each publication, the first time after all initial
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
    publish: impl FnMut(&Update),
) -> Result<(), RunError> {
    let now = Instant::now();
    let mut task = Task {
        state,
        kernel,
        published: Update::default(),
        expects_fpm_until: listener.address.map(|_| now + FPM_PATIENCE),
        listener,
        fpm: None,
        status,
        journal,
        publish,
        learned: Vec::new(),
        told: [SourceState::Disconnected; 2],
        answers: Vec::new(),
        failed: Vec::new(),
        dump_at: now,
        publish_at: now,
        untold: Polled::new(now),
        hazard: None,
        hazard_at: now,
        look_again: false,
        held_back: None,
        not_bound: None,
        bind_at: None,
        too_many: false,
        warned: Vec::new(),
    };
    // Nothing is published before all tables were read once.
    task.resync_all().await?;
    task.resolve_all().await?;
    task.untold.ask(&mut task.state, &task.kernel, Instant::now()).await;
    task.hold_fpm_back();
    if task.held_back.is_none() {
        task.listen_for_fpm();
    }
    task.publish_what_follows(Instant::now());
    loop {
        let wake = task.wake_at();
        tokio::select! {
            event = task.kernel.next() => task.hear_kernel(event?).await,
            event = next(&mut task.fpm) => task.hear_fpm(event),
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
                event = task.kernel.next() => task.hear_kernel(event?).await,
                event = next(&mut task.fpm) => task.hear_fpm(event),
                request = requests.recv() => if task.serve(request).await.is_break() {
                    return Ok(());
                },
                () = not_before(task.publish_at) => break,
            }
        }
        task.write_learned().await;
        let now = Instant::now();
        task.tick(now);
        task.untold.ask(&mut task.state, &task.kernel, now).await;
        task.publish_what_follows(now);
        task.ask_neighbours(now).await;
        // After the publication, so that verification does not delay an event.
        task.verify_moved().await;
        task.verify(now).await;
    }
}

struct Task<P> {
    state: State,
    kernel: Kernel,
    listener: FpmListener,
    fpm: Option<Server>,
    status: watch::Sender<Status>,
    journal: Journal,
    publish: P,
    published: Update,
    /// The states of kernel and FPM that the journal has.
    told: [SourceState; 2],
    /// Requesters that wait for a change to be in force.
    answers: Vec<oneshot::Sender<Result<(), path::SettingsError>>>,
    expects_fpm_until: Option<Instant>,
    /// Entries to write into the kernel's FDB.
    learned: Vec<FdbWrite>,
    /// Dumps that failed, with the errors.
    failed: Vec<(Dump, String)>,
    /// When the next dump that only verifies may be made.
    dump_at: Instant,
    /// When the next publication may be made.
    publish_at: Instant,
    untold: Polled,
    /// The result of the last check for a hazard. The field below has the time of the next one.
    hazard: Option<FpmHazard>,
    hazard_at: Instant,
    /// Something has changed since the last check.
    look_again: bool,
    /// Why the FPM server does not listen.
    held_back: Option<FpmHazard>,
    not_bound: Option<String>,
    /// When to try to listen again.
    bind_at: Option<Instant>,
    /// zebra has sent too many entries.
    too_many: bool,
    /// Warnings that were logged.
    warned: Vec<Warning>,
}

impl<P: FnMut(&Update)> Task<P> {
    /// Writes changed source states into the journal.
    fn tell_sources(&mut self) {
        let states = [self.state.kernel_state(), self.state.fpm_state()];
        for ((name, state), told) in ["kernel", "fpm"].into_iter().zip(states).zip(&mut self.told) {
            if *told != state {
                *told = state;
                self.journal.write(Event::Source { name, state });
            }
        }
    }

    /// Does what is due by time.
    fn tick(&mut self, now: Instant) {
        if self.bind_at.is_some_and(|at| now >= at) {
            self.listen_for_fpm();
        }
        let Some(sweep) = self.state.tick(now) else { return };
        self.status.send_modify(|status| status.swept.fpm += sweep.entries as u64);
        let event = Event::FpmSwept(sweep);
        // A first or complete replay removes nothing, so there is nothing to report.
        if sweep.entries > 0 || !sweep.returned {
            tracing::info!("{event}");
            self.journal.write(event);
        }
    }

    async fn hear_kernel(&mut self, event: netlink::Event) {
        match event {
            netlink::Event::Messages(messages) => {
                messages.into_iter().for_each(|message| self.state.apply_kernel(message));
            }
            netlink::Event::Overrun => {
                tracing::warn!(
                    "the kernel's events came faster than they were read: everything is dumped again"
                );
                self.state.set_kernel_state(SourceState::Stale { since: Instant::now() });
                self.tell_sources();
                self.status.send_modify(|status| status.overruns += 1);
                // A failed dump leaves its table as it was and is repeated later.
                let _ = self.resync_all().await;
            }
        }
    }

    fn hear_fpm(&mut self, event: fpm::Event) {
        match event {
            fpm::Event::Connected { .. } => self.state.fpm_connected(),
            fpm::Event::Refused { peer, uid } => {
                let text = listener::refused(peer, uid);
                tracing::warn!("{text}");
                self.journal.write(Event::Warning(text));
            }
            fpm::Event::Transaction(transaction) => {
                self.expects_fpm_until = None;
                self.state.apply_fpm(transaction.messages, Instant::now());
                if self.state.fpm_entries() > self.listener.most_entries {
                    self.state.forget_fpm(Instant::now());
                    (self.fpm, self.bind_at, self.too_many) = (None, None, true);
                }
            }
            fpm::Event::Disconnected { .. } => {
                self.state.fpm_disconnected(Instant::now());
                // Before zebra retries: the kernel completes a connection to a listening socket
                // even without `accept`.
                self.hold_fpm_back();
            }
        }
        self.tell_sources();
    }

    /// Serves a request. `Break` ends the task.
    async fn serve(&mut self, request: Option<Request>) -> ControlFlow<()> {
        match request {
            Some(Request::Reload(settings)) => {
                self.state.reload(*settings, Namespace::read());
                self.journal.write(Event::Reloaded);
            }
            Some(Request::Filters(filters)) => self.state.set_filters(filters),
            Some(Request::PacketFilters(filters)) => self.state.set_packet_filters(filters),
            Some(Request::Change(change, answer)) => match self.state.change(&change) {
                Ok(()) => self.answers.push(answer),
                // The requester may be gone.
                Err(error) => drop(answer.send(Err(error))),
            },
            Some(Request::Port(slot, mac, answer)) => {
                drop(answer.send(self.state.port_of(slot, mac)))
            }
            Some(Request::Hosts(answer)) => drop(answer.send(self.state.hosts().collect())),
            Some(Request::Learn(learned)) => self.learn(learned),
            Some(Request::Resolve(adjacency)) => self.resolve(adjacency).await,
            Some(Request::Stalled { waited, dropped }) => {
                self.journal.write(Event::Stalled { waited, dropped })
            }
            Some(Request::Shutdown) | None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Makes all dumps and returns the first error.
    async fn resync_all(&mut self) -> Result<(), netlink::Error> {
        self.state.set_kernel_state(SourceState::Syncing);
        self.tell_sources();
        self.failed.clear();
        let mut result = Ok(());
        for what in Dump::ALL {
            result = result.and(self.dump(what).await);
        }
        // What one dump has put in doubt, a later one has answered: links are dumped first.
        self.state.take_wanted_dumps();
        self.synced(&Dump::ALL);
        result
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
                event = self.kernel.next() => self.hear_kernel(event?).await,
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
            self.publish_what_follows(Instant::now());
        }
    }

    /// Makes the dumps that are in doubt, and those that failed before.
    async fn verify(&mut self, now: Instant) {
        if now < self.dump_at {
            return;
        }
        let mut wanted = self.state.take_wanted_dumps();
        wanted.extend(std::mem::take(&mut self.failed).into_iter().map(|(what, _)| what));
        if wanted.is_empty() {
            return;
        }
        for what in Dump::ALL {
            if wanted.contains(&what) {
                // A failed dump is recorded in `failed`.
                let _ = self.dump(what).await;
            }
        }
        self.dump_at = Instant::now() + now.elapsed() * DUMP_SHARE;
        if !self.failed.is_empty() {
            self.dump_at = self.dump_at.max(now + RETRY);
        }
        self.synced(&wanted);
        self.publish_what_follows(Instant::now());
    }

    /// Sets the kernel's state after these dumps: live, unless one has failed.
    fn synced(&mut self, dumps: &[Dump]) {
        let state = match (self.state.kernel_state(), self.failed.is_empty()) {
            (_, true) => SourceState::Live,
            (stale @ SourceState::Stale { .. }, false) => stale,
            (_, false) => SourceState::Stale { since: Instant::now() },
        };
        self.state.set_kernel_state(state);
        let status = self.status.borrow();
        let read = Dump::ALL.into_iter().filter(|what| dumps.contains(what));
        let read =
            read.filter_map(|what| Some((name(what), *status.dumps.get(name(what))?))).collect();
        drop(status);
        self.journal.write(Event::Resynced(read));
        self.tell_sources();
    }

    async fn dump(&mut self, what: Dump) -> Result<(), netlink::Error> {
        let dump = match self.kernel.dump(what).await {
            Ok(dump) => dump,
            Err(error) => {
                self.failed.push((what, error.to_string()));
                return Err(error);
            }
        };
        let resync = self.state.resync(what, dump);
        tracing::debug!(what = name(what), dumped = resync.dumped, swept = resync.swept, "dumped");
        self.status.send_modify(|status| {
            status.dumps.insert(name(what), resync);
            status.swept.kernel += resync.swept as u64;
        });
        Ok(())
    }

    fn publish_what_follows(&mut self, now: Instant) {
        self.state.build_if_dirty();
        if self.state.published().snapshot.generation() != self.published.snapshot.generation() {
            let places = self.state.take_places();
            let update = Update { places, ..self.state.published().clone() };
            log::log(&self.published, &update);
            (self.publish)(&update);
            let before = std::mem::replace(&mut self.published, update);
            let macs = self.state.take_mac_changes(now);
            events::diff::between(&before, &self.published, &macs, |event| {
                self.journal.write(event)
            });
            self.publish_at = now + (2 * now.elapsed()).clamp(PACE, LONGEST_PACE);
        }
        for flap in self.state.take_flaps() {
            if let Some(event) = events::diff::flapping(&self.published, &flap) {
                tracing::warn!("{event}");
                self.journal.write(event);
            }
        }
        self.report(now);
        // The requester may be gone.
        self.answers.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
    }

    fn report(&mut self, now: Instant) {
        let mut warnings = Vec::new();
        if self.fpm.is_some() && self.expects_fpm_until.is_some_and(|until| now >= until) {
            warnings.push(Warning::NoFpm);
        }
        if let SourceState::Stale { since } = self.state.fpm_state() {
            warnings.push(Warning::FpmGone { since });
        }
        warnings.extend(self.state.fpm_forgotten().map(|since| Warning::FpmForgotten { since }));
        if now >= self.hazard_at {
            self.hazard = self.state.fpm_hazard();
            self.hold_fpm_back();
            self.hazard_at = now + HAZARD_INTERVAL;
            self.look_again = false;
        } else {
            self.look_again = true;
        }
        warnings.extend(self.hazard.map(Warning::FpmHazard));
        warnings.extend(self.held_back.map(Warning::FpmHeldBack));
        warnings.extend(self.not_bound.clone().map(Warning::FpmNotBound));
        warnings.extend(self.too_many.then_some(Warning::FpmTooMany(self.listener.most_entries)));
        warnings.extend(
            self.failed.iter().map(|(what, error)| Warning::DumpFailed {
                what: name(*what),
                error: error.clone(),
            }),
        );
        for warning in warnings.iter().filter(|warning| !self.warned.contains(warning)) {
            tracing::warn!("{warning}");
            self.journal.write(Event::Warning(warning.to_string()));
        }
        self.tell_sources();
        self.warned.clone_from(&warnings);
        let published = self.state.published();
        self.status.send_modify(|status| {
            status.kernel = self.state.kernel_state();
            status.fpm = match self.listener.address {
                Some(_) => self.state.fpm_state(),
                None => SourceState::Off,
            };
            status.learning = self.state.learn_counts();
            status.moves = self.state.move_counts();
            status.fpm_swept = self.state.fpm_swept();
            status.fpm_refused += self.fpm.as_mut().map_or(0, Server::take_refused);
            status.generation = published.snapshot.generation();
            status.plan.clone_from(&published.plan);
            status.left.clone_from(&published.left);
            status.missing.clone_from(&published.missing);
            status.by_default.clone_from(&published.by_default);
            status.ports.clone_from(&published.ports);
            status.warnings = warnings;
            status.turns += 1;
        });
    }

    /// Stops the FPM server while a connection could crash zebra, and starts it again afterwards.
    /// An existing connection is kept.
    fn hold_fpm_back(&mut self) {
        let connected = matches!(self.state.fpm_state(), SourceState::Syncing | SourceState::Live);
        if self.listener.address.is_none() || self.listener.accept_hazard || connected {
            return;
        }
        let before = self.held_back;
        self.held_back = self.state.router_mac();
        if self.held_back.is_some() {
            (self.fpm, self.bind_at, self.not_bound) = (None, None, None);
        } else if before.is_some() {
            self.listen_for_fpm();
        }
    }

    /// Starts the FPM server. If another process has the address, this is retried. Meanwhile
    /// rtnetlink has the same facts.
    fn listen_for_fpm(&mut self) {
        let Some(address) = self.listener.address.filter(|_| !self.too_many) else { return };
        let bound = Server::bind(address, self.listener.users.clone());
        self.not_bound = bound.as_ref().err().map(ToString::to_string);
        self.bind_at = self.not_bound.is_some().then(|| Instant::now() + BIND_AGAIN);
        self.fpm = bound.ok();
    }

    async fn ask_neighbours(&mut self, now: Instant) {
        for adjacency in self.state.resolve_due(now) {
            self.ask(adjacency).await;
        }
    }

    fn learn(&mut self, learned: Learned) {
        self.learned.extend(self.state.learn(&learned));
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
            Err(error) => tracing::warn!(%error, "what was learned could not be written"),
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
            tracing::debug!(%error, "it does not");
        }
    }

    /// The next time at which there is something to do without an event.
    fn wake_at(&self) -> Option<Instant> {
        let pending = !self.failed.is_empty() || self.state.wants_dumps();
        let dump = pending.then_some(self.dump_at);
        let fpm = self.expects_fpm_until.filter(|_| !self.warned.contains(&Warning::NoFpm));
        let look = self.look_again.then_some(self.hazard_at);
        let moved = self.state.has_moved().then_some(self.publish_at);
        let untold = Some(self.untold.at());
        [self.state.wake_at(), dump, fpm, look, moved, untold, self.bind_at]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The next event from zebra. Pending forever without a server.
async fn next(fpm: &mut Option<Server>) -> fpm::Event {
    match fpm {
        Some(server) => server.next().await,
        None => future::pending().await,
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

const fn name(what: Dump) -> &'static str {
    match what {
        Dump::Links => "links",
        Dump::Addresses => "addresses",
        Dump::NextHops => "next hops",
        Dump::Routes => "routes",
        Dump::Neighbours => "neighbours",
        Dump::Fdb => "FDB entries",
        Dump::Rules => "routing rules",
        Dump::IpsecPolicies => "IPsec policies",
        Dump::Mdb => "multicast databases",
        Dump::ReversePathFilters => "reverse path filters",
    }
}
