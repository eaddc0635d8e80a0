//! Probes one remote VTEP: which paths lead where, and which are dead.
//!
//! At the start, [`Settings::ports`] ports are probed on every next hop, plainly and, over IPv4,
//! with Record Route, in rounds. If these may have missed a route, more ports are probed. Then paths
//! in use are probed every [`Settings::interval`], the others rarely, and at once if one on the same
//! route leads elsewhere. What is not in use waits while answers come late ([`window`]).
//!
//! A path is dead after [`MISSING`] probes without an answer, or up to [`MOST_MISSING`] if living
//! paths lose probes. A missing answer counts only if a probe of another path from the same time was
//! answered. If none was, the remote VTEP itself is silent, and nothing is known about paths.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use path::{PathId, Version};
use spray::Random;

use crate::key::Key;
use crate::limit::Limit;
use crate::message::Probe;
use crate::next_multiple;

mod answers;
mod explore;
mod routes;
mod silence;
mod state;
mod types;
mod window;

pub use types::{Change, Ids, Known, Settings, TTL, Transmit};

use routes::Routes;
use state::{Outstanding, State};
use window::Window;

/// Probes without an answer after which a path is dead.
pub const MISSING: u8 = 3;
/// Rounds in which a new path is probed.
const ROUNDS: u8 = 8;
/// How long an answer may take while no delay is known.
const FIRST_TIMEOUT: Duration = Duration::from_millis(90);
/// The time of a path that waits for room in the window: it is not due at any time.
const HELD: Duration = Duration::MAX;
/// The shortest time that an answer may take.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(5);
/// How often is looked whether more ports are needed.
const REVIEW: Duration = Duration::from_millis(100);
/// How often paths are probed that no queue pair uses, on average.
const REFRESH: Duration = Duration::from_secs(15);
/// How often one path is probed without any path in use: answers tell the load of links that leaves
/// share.
const UNUSED: Duration = Duration::from_secs(1);
/// After this time without an answer, the VTEP is silent.
const SILENT: Duration = Duration::from_secs(1);
/// After this time without an answer, the VTEP may have started again, and knows no token that it has
/// told. It is longer than the longest interval.
const FORGOTTEN: Duration = Duration::from_secs(3);
/// How often dead paths and fresh ports are probed.
const EXPLORE: Duration = Duration::from_millis(500);
/// Fresh ports on each next hop with each exploration.
const FRESH: usize = 4;
/// How many given-up probes are remembered for late answers.
const LATE: usize = 4096;
/// How many answered probes are remembered.
const RECENT_ANSWERS: usize = 64;
/// How likely it may be that a living path is called dead, for each probe.
const ERROR: f64 = 1e-5;
/// Most probes without an answer after which a path is dead, however many are lost.
const MOST_MISSING: u8 = 12;
/// How many other paths are probed at once when one is not answered.
const CONTROLS: usize = 4;
/// How often known paths in use are probed with Record Route, too: every n-th time.
const RECORD_EVERY: u32 = 12;

/// Probes one remote VTEP.
#[derive(Debug)]
pub struct Prober {
    settings: Settings,
    /// Makes nonces.
    key: Key,
    ids: Ids,
    /// That of the last answer. Before it, that of [`Self::with_opening_token`].
    token: u32,
    opening_token: u32,
    hops: Vec<u64>,
    ports: Vec<u16>,
    paths: BTreeMap<PathId, State>,
    /// When each path is probed next.
    due: BTreeSet<(Duration, PathId)>,
    /// Paths that are due and wait for room in the window, in their order.
    held: VecDeque<PathId>,
    window: Window,
    /// Probes without an answer so far, by their ids and therefore in the order of sending.
    outstanding: BTreeMap<u32, Outstanding>,
    used: BTreeSet<PathId>,
    /// Whether reports are wanted at the interval, even if nothing else needs its probes.
    eager: bool,
    limit: Limit,
    /// When within the interval paths in use are probed.
    phase: Duration,
    random: Random,
    began: Option<Duration>,
    /// Probes that were given up, for answers that arrive late.
    late: BTreeMap<u32, Outstanding>,
    /// The sending times of the probes that were answered last.
    recent_answers: VecDeque<(Duration, PathId)>,
    /// The share of probes that are lost although their path is alive.
    loss: f64,
    slowest: Duration,
    /// When the last answer arrived.
    heard: Duration,
    /// When paths were probed because one on their route had moved.
    followed: Duration,
    explored: Duration,
    /// The routes that are known and those that are gone, and the version of which they are.
    routes: Routes,
    reviewed: Duration,
    ready: bool,
    version: Version<Self>,
    changes: Vec<Change>,
    /// Probes sent, answers accepted, answers that fit no probe.
    pub counts: [u64; 3],
}

impl Prober {
    /// A prober that knows nothing. `secret` is a key of this process alone.
    #[must_use]
    pub fn new(settings: Settings, secret: Key, ids: Ids, random: Random) -> Self {
        Self {
            limit: Limit::new(settings.rate, settings.rate),
            settings,
            key: secret,
            ids,
            token: 0,
            opening_token: 0,
            hops: Vec::new(),
            ports: Vec::new(),
            paths: BTreeMap::new(),
            due: BTreeSet::new(),
            held: VecDeque::new(),
            window: Window::new(),
            outstanding: BTreeMap::new(),
            used: BTreeSet::new(),
            eager: false,
            phase: Duration::ZERO,
            random,
            began: None,
            late: BTreeMap::new(),
            recent_answers: VecDeque::new(),
            loss: 0.0,
            slowest: Duration::ZERO,
            heard: Duration::ZERO,
            followed: Duration::ZERO,
            explored: Duration::ZERO,
            routes: Routes::default(),
            reviewed: Duration::ZERO,
            ready: false,
            version: Version::NONE,
            changes: Vec::new(),
            counts: [0; 3],
        }
    }

    /// Sets when within [`Settings::interval`] paths in use are probed. Probers with one phase wake the
    /// process together.
    #[must_use]
    pub fn with_phase(self, phase: Duration) -> Self {
        Self { phase, ..self }
    }

    /// Sets the token of probes until an answer tells one ([`Key::opening_token`]).
    #[must_use]
    pub fn with_opening_token(self, token: u32) -> Self {
        Self { token, opening_token: token, ..self }
    }

    /// Sets the next hops to the remote VTEP, by their identities. Paths of others are forgotten.
    pub fn set_hops(&mut self, now: Duration, hops: &[u64]) {
        if self.hops == hops {
            return;
        }
        let gone: Vec<PathId> =
            self.paths.keys().filter(|path| !hops.contains(&path.hop)).copied().collect();
        gone.into_iter().for_each(|path| self.forget(path));
        let new: Vec<u64> = hops.iter().filter(|hop| !self.hops.contains(hop)).copied().collect();
        hops.clone_into(&mut self.hops);
        self.routes.retain(hops);
        self.version = self.version.next();
        self.began.get_or_insert(now);
        if self.ports.is_empty() {
            self.add_ports(now, usize::from(self.settings.ports));
            return;
        }
        for hop in new {
            for port in self.ports.clone() {
                self.add(PathId { hop, source_port: port }, now);
            }
        }
    }

    /// Sets the paths that queue pairs use. They are probed every [`Settings::interval`].
    pub fn set_used(&mut self, now: Duration, used: BTreeSet<PathId>) {
        if self.used == used {
            return;
        }
        for path in &used {
            if self.paths.contains_key(path) {
                self.schedule(*path, now, true);
            } else if self.hops.contains(&path.hop) {
                self.add(*path, now);
            }
        }
        self.used = used;
    }

    /// Sets whether reports of the VTEP are wanted as often as while paths are in use. One path is
    /// then probed every [`Settings::interval`].
    pub fn set_eager(&mut self, now: Duration, eager: bool) {
        let was_eager = std::mem::replace(&mut self.eager, eager);
        if let Some(path) = self.reporter().filter(|_| eager && !was_eager) {
            self.schedule(path, now, true);
        }
    }

    /// The path whose answers bring reports if no path is in use.
    fn reporter(&self) -> Option<PathId> {
        let is_unused = self.used.is_empty();
        is_unused.then(|| self.known().next()).flatten().map(|(path, _)| path)
    }

    /// How often a path in use is probed, or the first one without any in use.
    fn interval(&self, path: PathId) -> Duration {
        let is_wanted = !self.used.is_empty() || self.eager && self.reporter() == Some(path);
        if is_wanted { self.settings.interval } else { UNUSED }
    }

    /// Adds this many random ports on every next hop.
    fn add_ports(&mut self, now: Duration, number: usize) {
        let range = self.settings.range;
        let wanted = (self.ports.len() + number).min(usize::from(range.ports()));
        while self.ports.len() < wanted {
            let port = range.min() + self.random.index(usize::from(range.ports())) as u16;
            if !self.ports.contains(&port) {
                self.ports.push(port);
                for hop in self.hops.clone() {
                    self.add(PathId { hop, source_port: port }, now);
                }
            }
        }
    }

    fn add(&mut self, path: PathId, now: Duration) {
        if let Entry::Vacant(new) = self.paths.entry(path) {
            new.insert(State::new(now, self.settings.records));
            self.due.insert((now, path));
        }
    }

    fn forget(&mut self, path: PathId) {
        if let Some(state) = self.paths.remove(&path) {
            self.due.remove(&(state.due, path));
            if state.held {
                self.held.retain(|held| *held != path);
            }
        }
    }

    /// Probes a path at `at`. With `earlier`, only if that is before it is due.
    fn schedule(&mut self, path: PathId, at: Duration, earlier: bool) {
        let Some(state) = self.paths.get_mut(&path) else { return };
        if earlier && state.due <= at {
            return;
        }
        self.due.remove(&(state.due, path));
        state.due = at;
        self.due.insert((at, path));
    }

    /// How long an answer may take.
    fn timeout(&self) -> Duration {
        if self.slowest.is_zero() {
            return FIRST_TIMEOUT;
        }
        (self.slowest * 2).max(SHORTEST_TIMEOUT).max(self.settings.interval / 2)
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let due = self.due.first().map(|(at, _)| *at);
        let missing = self.outstanding.values().next().map(|sent| sent.at + self.timeout());
        let review = (!self.ready && !self.paths.is_empty()).then(|| self.reviewed + REVIEW);
        let held = self.has_room_for_held().then_some(Duration::ZERO);
        [due, missing, review, held].into_iter().flatten().min()
    }

    /// Appends the probes that are to be sent now.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<Transmit>) {
        let timeout = self.timeout();
        while let Some(entry) = self.outstanding.first_entry() {
            if entry.get().at + timeout > now {
                break;
            }
            let (id, missed) = entry.remove_entry();
            if missed.explores {
                self.window.missed(now, timeout);
            }
            self.late.insert(id, missed);
            if self.late.len() > LATE {
                self.late.pop_first();
            }
            self.missed(missed, now);
        }
        self.mark_missing_dead(now);
        if now.saturating_sub(self.reviewed) >= REVIEW {
            self.reviewed = now;
            self.review(now);
        }
        while let Some((at, path)) = self.due.first().copied()
            && at <= now
        {
            // What is above the limit is sent as soon as that allows.
            if !self.send(path, now, out) {
                return;
            }
        }
        while self.has_room_for_held()
            && let Some(path) = self.held.pop_front()
        {
            let Some(state) = self.paths.get_mut(&path) else { continue };
            state.held = false;
            // It may have been sent, because it came into use.
            if state.due == HELD && !self.send(path, now, out) {
                if let Some(state) = self.paths.get_mut(&path) {
                    state.held = true;
                }
                self.held.push_front(path);
                return;
            }
        }
    }

    /// Whether paths that were held may be probed: the window has room, and the VTEP answers.
    fn has_room_for_held(&self) -> bool {
        !self.held.is_empty() && self.window.has_room() && self.knows_any()
    }

    /// Whether a path is probed as one in use: the first one without any in use.
    fn is_watched(&self, path: PathId) -> bool {
        self.used.contains(&path)
            || self.used.is_empty() && self.known().next().is_some_and(|(first, _)| first == path)
    }

    /// Sends the probes of a path that are due, or has them wait for room in the window. `false` if
    /// they are above the limit.
    fn send(&mut self, path: PathId, now: Duration, out: &mut Vec<Transmit>) -> bool {
        let (is_used, interval) = (self.is_watched(path), self.interval(path));
        let knows_any = self.knows_any();
        let is_scout = !knows_any && self.is_scout(path);
        let is_forgotten = now.saturating_sub(self.heard) >= FORGOTTEN;
        let token = if is_forgotten { self.opening_token } else { self.token };
        let Some(state) = self.paths.get_mut(&path) else {
            self.due.pop_first();
            return true;
        };
        // Until a VTEP answers for the first time, scouts stand for the paths in use.
        let explores = !is_scout && (!is_used || self.heard.is_zero());
        if explores && !(knows_any && self.window.has_room()) {
            self.due.remove(&(state.due, path));
            state.due = HELD;
            if !std::mem::replace(&mut state.held, true) {
                self.held.push_back(path);
            }
            return true;
        }
        if !self.limit.take_many(now, state.probes_next(is_used, interval)) {
            return false;
        }
        let had_tried = state.has_tried_record();
        let (kinds, next) = state.next_probes(is_used, interval);
        // It can be used without a record from now on.
        if state.has_tried_record() && !had_tried {
            self.version = self.version.next();
        }
        for records in kinds.into_iter().flatten() {
            let (epoch, id) = self.ids.next();
            let nonce = self.key.number([epoch, id, u32::from(path.source_port)]);
            let probe = Probe {
                epoch,
                id,
                nonce,
                uplink: 0,
                port: path.source_port,
                ttl: TTL,
                records,
                urgent: state.suspect,
                token,
            };
            let sent = Outstanding { path, nonce, token, at: now, records, explores };
            self.outstanding.insert(id, sent);
            self.window.sent(u32::from(explores));
            self.counts[0] += 1;
            out.push(Transmit { path, probe });
        }
        let is_suspect = state.suspect;
        let next = match next {
            // Paths that were found together are not to be probed together.
            REFRESH => now + self.random.around(REFRESH),
            _ if is_suspect && self.is_silent(now) => now + interval,
            // Paths in use are probed together: each wake-up costs as much as a few probes.
            next if is_used && next == interval => {
                next_multiple(now.saturating_sub(self.phase), interval) + self.phase
            }
            next => now + next,
        };
        self.schedule(path, next, false);
        if is_suspect && is_used {
            self.control(path, now);
        }
        true
    }

    /// The head of a report that leaves by this path.
    pub fn head(&mut self, now: Duration, path: PathId) -> Probe {
        let is_forgotten = now.saturating_sub(self.heard) >= FORGOTTEN;
        let token = if is_forgotten { self.opening_token } else { self.token };
        let ((epoch, id), port) = (self.ids.next(), path.source_port);
        let nonce = self.key.number([epoch, id, port.into()]);
        Probe { epoch, id, nonce, port, ttl: TTL, token, ..Probe::default() }
    }

    /// Whether the paths were probed at the start, so that the routes are worth a decision.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// A number that changes with what is known.
    #[must_use]
    pub const fn version(&self) -> Version<Self> {
        self.version
    }

    /// The paths in use.
    #[must_use]
    pub const fn used(&self) -> &BTreeSet<PathId> {
        &self.used
    }

    /// The paths whose routes are known.
    pub fn known(&self) -> impl Iterator<Item = (PathId, &Known)> {
        self.paths.iter().filter_map(|(path, state)| Some((*path, state.known.as_ref()?)))
    }

    /// The paths on which queue pairs can be placed: those whose routes are known. As long as it is not
    /// known what the routers record, a path seems to have other links than those that it shares, so
    /// only paths in use are among these then.
    pub fn placeable(&self) -> impl Iterator<Item = (PathId, &Known)> {
        let can = |path, state: &State| state.has_tried_record() || self.used.contains(path);
        let states = self.paths.iter().filter(move |(path, state)| can(path, state));
        states.filter_map(|(path, state)| Some((*path, state.known.as_ref()?)))
    }

    /// Whether any route is known.
    fn knows_any(&self) -> bool {
        self.known().next().is_some()
    }

    /// The paths that are dead.
    pub fn lost(&self) -> impl Iterator<Item = PathId> {
        self.paths.iter().filter(|(_, state)| state.lost).map(|(path, _)| *path)
    }

    /// The paths that are probed.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = PathId> {
        self.paths.keys().copied()
    }

    /// What happened since the last call.
    pub fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}
