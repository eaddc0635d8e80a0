//! The FPM server: when it listens, and what zebra sends.

use std::future;
use std::time::{Duration, Instant};

use fpm::Server;

use crate::events::Event;
use crate::sources::SourceState;
use crate::sources::fpm_session::FpmHazard;
use crate::state::State;
use crate::task::listener::{self, FpmListener};
use crate::task::report::Reporter;
use crate::task::status::Warning;

/// How long zebra has to connect before a warning. (It retries every 3 s.)
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The interval of attempts to listen on FPM's address while another process uses it.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// The shortest interval between two checks for a hazard. A check reads all neighbours.
const HAZARD_INTERVAL: Duration = Duration::from_secs(1);

/// The FPM server, or why there is none.
#[derive(Debug)]
pub(crate) struct FpmServer {
    listener: FpmListener,
    server: Option<Server>,
    /// When zebra should have connected.
    expected_by: Option<Instant>,
    /// The result of the last check for a hazard, and the time of the next one.
    hazard: Option<FpmHazard>,
    hazard_at: Instant,
    /// Something has changed since the last check.
    check_again: bool,
    /// Why the server does not listen.
    held_back: Option<FpmHazard>,
    not_bound: Option<String>,
    /// When to try to listen again.
    bind_at: Option<Instant>,
    /// zebra has sent too many entries.
    too_many: bool,
}

impl FpmServer {
    /// A server that does not listen yet.
    pub(crate) fn new(listener: FpmListener, now: Instant) -> Self {
        Self {
            expected_by: listener.address.map(|_| now + CONNECT_LIMIT),
            listener,
            server: None,
            hazard: None,
            hazard_at: now,
            check_again: false,
            held_back: None,
            not_bound: None,
            bind_at: None,
            too_many: false,
        }
    }

    /// Listens, unless a connection could crash zebra.
    pub(crate) fn start(&mut self, state: &State) {
        self.hold_back(state);
        if self.held_back.is_none() {
            self.listen();
        }
    }

    /// The next event from zebra. Pending forever without a server.
    pub(crate) async fn next(&mut self) -> fpm::Event {
        match &mut self.server {
            Some(server) => server.next().await,
            None => future::pending().await,
        }
    }

    /// Applies an event.
    pub(crate) fn apply(&mut self, event: fpm::Event, state: &mut State, reporter: &mut Reporter) {
        match event {
            fpm::Event::Connected { .. } => state.fpm_connected(),
            fpm::Event::Refused { peer, uid } => {
                let text = listener::refused(peer, uid);
                tracing::warn!("{text}");
                reporter.write(Event::Warning(text));
            }
            fpm::Event::Transaction(transaction) => {
                self.expected_by = None;
                state.apply_fpm(transaction.messages, Instant::now());
                if state.fpm_entries() > self.listener.most_entries {
                    state.forget_fpm(Instant::now());
                    (self.server, self.bind_at, self.too_many) = (None, None, true);
                }
            }
            fpm::Event::Disconnected { .. } => {
                state.fpm_disconnected(Instant::now());
                // Before zebra retries: the kernel completes a connection to a listening socket
                // even without `accept`.
                self.hold_back(state);
            }
        }
        reporter.sources(state);
    }

    /// Tries to listen again if it is time.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.bind_at.is_some_and(|at| now >= at) {
            self.listen();
        }
    }

    /// Checks for a hazard if it is time, and returns the current warnings.
    pub(crate) fn warnings(&mut self, state: &State, now: Instant) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.server.is_some() && self.expected_by.is_some_and(|by| now >= by) {
            warnings.push(Warning::NoFpm);
        }
        if let SourceState::Stale { since } = state.fpm_state() {
            warnings.push(Warning::FpmGone { since });
        }
        warnings.extend(state.fpm_forgotten().map(|since| Warning::FpmForgotten { since }));
        if now >= self.hazard_at {
            self.hazard = state.fpm_hazard();
            self.hold_back(state);
            self.hazard_at = now + HAZARD_INTERVAL;
            self.check_again = false;
        } else {
            self.check_again = true;
        }
        warnings.extend(self.hazard.map(Warning::FpmHazard));
        warnings.extend(self.held_back.map(Warning::FpmHeldBack));
        warnings.extend(self.not_bound.clone().map(Warning::FpmNotBound));
        warnings.extend(self.too_many.then_some(Warning::FpmTooMany(self.listener.most_entries)));
        warnings
    }

    /// Number of connections that were refused since the last call.
    pub(crate) fn take_refused(&mut self) -> u64 {
        self.server.as_mut().map_or(0, Server::take_refused)
    }

    /// The state of FPM as a source.
    pub(crate) fn source_state(&self, state: &State) -> SourceState {
        match self.listener.address {
            Some(_) => state.fpm_state(),
            None => SourceState::Off,
        }
    }

    /// When there is something to do without an event.
    pub(crate) fn wake_at(&self, reporter: &Reporter) -> Option<Instant> {
        let expected = self.expected_by.filter(|_| !reporter.has_warned(&Warning::NoFpm));
        let check = self.check_again.then_some(self.hazard_at);
        [expected, check, self.bind_at].into_iter().flatten().min()
    }

    /// Stops the FPM server while a connection could crash zebra, and starts it again afterwards.
    /// An existing connection is kept.
    fn hold_back(&mut self, state: &State) {
        let connected = matches!(state.fpm_state(), SourceState::Syncing | SourceState::Live);
        if self.listener.address.is_none() || self.listener.accept_hazard || connected {
            return;
        }
        let before = self.held_back;
        self.held_back = state.router_mac();
        if self.held_back.is_some() {
            (self.server, self.bind_at, self.not_bound) = (None, None, None);
        } else if before.is_some() {
            self.listen();
        }
    }

    /// Starts the FPM server. If another process has the address, this is retried. Meanwhile
    /// rtnetlink has the same facts.
    fn listen(&mut self) {
        let Some(address) = self.listener.address.filter(|_| !self.too_many) else { return };
        let bound = Server::bind(address, self.listener.users.clone());
        self.not_bound = bound.as_ref().err().map(ToString::to_string);
        self.bind_at = self.not_bound.is_some().then(|| Instant::now() + BIND_AGAIN);
        self.server = bound.ok();
    }
}
