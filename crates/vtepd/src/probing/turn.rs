//! A turn of the probing thread: phases in an order that counts.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use path::Version;
use pathmap::Placer;
use ports::probe_socket::Underlay;

use super::Thread;
use super::ticks::{RESTLESS, TICK, next_tick};
use crate::pinning::Messages;

/// How often what is known is published for the API, and delays are told to the placement.
const PUBLISH: Duration = Duration::from_millis(250);
/// How long the placement is worked on before probes are sent and answered again.
const AT_A_TIME: Duration = Duration::from_millis(2);

/// What a turn begins with.
struct Woken {
    /// The sockets that have packets.
    ready: [(Underlay, bool); 2],
    /// When the next tick is.
    next_tick: Duration,
}

impl Thread {
    /// Waits for packets or for the next probe, and handles both.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let woken = self.wait()?;
        let is_new = self.follow_snapshot();
        self.receive_all(&woken, is_new)?;
        self.send_probes();
        self.spray();
        let now = self.shared.now();
        let ticks = now >= woken.next_tick;
        self.follow_kernel(ticks, now);
        self.shared.take_messages();
        self.pin();
        self.decide(ticks, now);
        self.watch_used(ticks, now);
        if ticks {
            self.trace(now);
        }
        self.publish(now);
        Ok(())
    }

    /// Waits until a socket is ready, a probe is due, or it is time for a tick.
    fn wait(&mut self) -> io::Result<Woken> {
        let next_tick = self.next_tick();
        let now = self.shared.now();
        let next = [self.targets.next(), self.sprays.next(now), Some(next_tick)];
        let wait = next.into_iter().flatten().min().map(|at| at.saturating_sub(now));
        let has_more = self.tick.is_some() || self.pinned.1;
        let wait = if has_more { Some(Duration::ZERO) } else { wait };
        let until = wait.map(|wait| now + wait);
        loop {
            let now = self.shared.now();
            // A path that falls behind others is reported before the next turn.
            let wait = until.into_iter().chain(self.sprays.next_look(now)).min();
            let wait = wait.map(|at| at.saturating_sub(now));
            let sockets = self.sockets.fds().into_iter().chain(self.by_kernel.fd());
            self.scheduling.rest(Instant::now());
            let ready = self.poller.wait(sockets, wait)?;
            self.scheduling.work(Instant::now(), 0);
            let now = self.shared.now();
            if ready.is_empty() && until.is_some_and(|until| now < until) {
                self.report_all(now);
                continue;
            }
            let is_ready = |number| ready.iter().any(|ready| ready.number == number);
            let ready = [(Underlay::Ipv4, is_ready(0)), (Underlay::Ipv6, is_ready(1))];
            return Ok(Woken { ready, next_tick });
        }
    }

    /// Tells other VTEPs what arrived from them, as far as that is due.
    fn report_all(&mut self, now: Duration) {
        for (target, due, report) in self.sprays.due(now) {
            self.report_arrivals(now, target, due, report);
        }
    }

    /// Follows the published snapshot and plan. Returns whether the snapshot is a new one.
    fn follow_snapshot(&mut self) -> bool {
        let (snapshot, plan) = (self.handle.snapshot(), self.handle.plan());
        let is_new = snapshot.version() != self.snapshot.version();
        if is_new || !Arc::ptr_eq(&plan, &self.plan) {
            let uplinks = plan.uplinks.iter().map(|uplink| uplink.ifindex).collect();
            self.sockets.follow(&snapshot, &uplinks, |ends| self.key.opening_token(ends));
            self.plan = plan;
        }
        if is_new {
            self.targets.follow(&snapshot, &self.shared);
            self.sprays.follow(&snapshot, self.targets.all());
            self.snapshot = snapshot;
            self.changed = self.shared.now();
        }
        is_new
    }

    /// Receives from the sockets that are ready; from all after a new snapshot, because following it
    /// may have taken a while.
    fn receive_all(&mut self, woken: &Woken, is_new: bool) -> io::Result<()> {
        for (underlay, is_ready) in woken.ready {
            if is_ready || is_new {
                self.receive(underlay)?;
            }
        }
        Ok(())
    }

    /// Sends the probes that are due.
    fn send_probes(&mut self) {
        for (target, transmit) in self.targets.tick(self.shared.now()) {
            self.probe(target, transmit);
        }
    }

    /// Tells workers over which paths to spray, and other VTEPs what arrived from them.
    fn spray(&mut self) {
        if self.sprays.is_at_rest() {
            return;
        }
        let now = self.shared.now();
        self.targets.tell_sprays(&mut self.sprays);
        if self.sprays.publish(now) {
            self.watched = Version::NEVER;
            let agreed = self.sprays.agreed().collect();
            self.shared.change(|placer| placer.set_sprayed(agreed));
        }
        self.report_all(now);
    }

    /// Follows what kernel VXLAN sends, then tells the placement what probes have found. Moves that
    /// programs have made come first: others are decided from there.
    fn follow_kernel(&mut self, ticks: bool, now: Duration) {
        self.targets.ask_kernel(now);
        if ticks || self.targets.has_changes() {
            self.by_kernel.follow(&self.shared);
        }
        let hop = |target, port| self.targets.hop_by_kernel(target, port);
        self.by_kernel.take(&self.shared, &self.snapshot, hop);
        self.targets.apply_changes(&self.shared);
        self.by_kernel.follow_changes(&self.shared);
    }

    /// Measures queue pairs and decides moves.
    fn decide(&mut self, ticks: bool, now: Duration) {
        if ticks {
            self.ticked = now;
            self.tick.get_or_insert_with(|| self.shared.begin_tick());
        }
        self.go_on();
    }

    /// Has the paths probed that queue pairs use now.
    fn watch_used(&mut self, ticks: bool, now: Duration) {
        let revision = self.shared.read(Placer::revision);
        if revision != self.watched {
            self.changed = now;
        }
        if ticks || revision != self.watched {
            self.watched = revision;
            self.targets.watch_used(&self.shared, &self.sprays);
        }
    }

    /// Traces paths to VTEPs that answer no probes.
    fn trace(&mut self, now: Duration) {
        for (target, transmit) in self.targets.trace(now) {
            self.send_trace(target, transmit);
        }
    }

    /// Shows the API what is known, now and then.
    fn publish(&mut self, now: Duration) {
        if now.saturating_sub(self.published) >= PUBLISH {
            self.published = now;
            self.targets.tell_delays(&self.shared);
            self.targets.tell_spray_delays(&mut self.sprays);
            let probed = self.targets.probed(&self.sprays);
            let messages = Messages {
                probes: self.targets.messages(),
                responded: self.responder.counts,
                refused: self.sockets.refused(),
            };
            self.shared.set_probed(probed, messages);
        }
    }

    /// When to look at what nothing announces.
    fn next_tick(&self) -> Duration {
        let is_restless = self.ticked.saturating_sub(self.changed) < RESTLESS
            || self.targets.has_lookups_waiting()
            || self.shared.read(Placer::awaits_gaps);
        let calm = if is_restless { TICK } else { self.targets.interval() };
        next_tick(self.ticked, calm, self.targets.next_trace())
    }

    /// Goes on with the tick of the placement for a short time. Probes are not to wait for it.
    fn go_on(&mut self) {
        let end = self.shared.now() + AT_A_TIME;
        while let Some(tick) = &mut self.tick {
            if !self.shared.step(tick) {
                self.tick = None;
            } else if self.shared.now() >= end {
                return;
            }
        }
    }

    /// Tells the programs of the `offload` datapath what changed. What fails is tried again.
    fn pin(&mut self) {
        match self.handle.pin_offloaded(&self.shared, self.pinned.0) {
            Ok(Some(pinned)) => self.pinned = pinned,
            // It is tried with the next turn, which something else brings about.
            Ok(None) => self.pinned.1 = false,
            Err(error) => {
                self.pinned.1 = false;
                tracing::debug!("queue pairs stay with the worker: {error}");
            }
        }
    }
}
