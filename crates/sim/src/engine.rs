//! The simulation: one event for each packet and link.
//!
//! A port begins to send a packet when its line is free, and then knows when the packet arrives at
//! the other end. So the only event of a packet on a link is its arrival. What happened at a port
//! before is done when something is about to happen there: [`Engine::advance`]. A link's delay is
//! never negative, so that is always in time, and the queue at each departure is exact.

mod endpoints;
mod host;
mod start;

use std::collections::BTreeMap;

use spray::{Random, Sprayer};

use crate::calendar::{Calendar, What};
use crate::outcome::Outcome;
use crate::packet::Packets;
use crate::port::{NONE, Port};
use crate::receiver::Receiver;
use crate::routes::Routes;
use crate::scenario::{Damage, Scenario};
use crate::sender::{Counts, Sender};
use crate::table::Table;
use crate::time::Picos;
use crate::vtep::Vteps;

/// Events between two looks at whether a run goes on: some tenths of a second.
const WATCHED: u64 = 1 << 20;

/// A flow while it runs.
#[derive(Debug, Default)]
struct Running {
    source: u32,
    target: u32,
    /// The number of its scheme's state.
    sprayer: u32,
    start: Option<Picos>,
    end: Option<Picos>,
    sender: Option<Box<Sender>>,
    receiver: Option<Box<Receiver>>,
    /// Random numbers, if the hosts are endpoints of `roce`.
    random: Option<Random>,
}

/// A host.
#[derive(Debug, Default)]
struct Host {
    /// The flows that can send, in turn.
    turns: std::collections::VecDeque<u32>,
}

/// A run under way.
struct Engine<'a> {
    scenario: &'a Scenario,
    seed: u64,
    now: Picos,
    calendar: Calendar,
    packets: Packets,
    ports: Table<Port>,
    routes: Routes,
    hosts: Table<Host>,
    flows: Table<Running>,
    sprayers: Table<Option<Sprayer>>,
    /// States of schemes that outlive flows, by the two hosts.
    pairs: BTreeMap<(u32, u32), u32>,
    /// The flows so far between two hosts whose flows take the paths in turns.
    placed: BTreeMap<(u32, u32), u16>,
    /// The flows that wait for each trigger.
    triggers: BTreeMap<u32, Vec<u32>>,
    counts: Counts,
    /// The hosts, if they are endpoints of `roce`.
    endpoints: Option<Box<endpoints::Endpoints>>,
    unfinished: u32,
    outcome: Outcome,
    /// What chooses the paths of sprayed packets instead of a scheme of the simulator.
    vteps: Option<&'a mut dyn Vteps>,
}

/// Runs a scenario. The same seed gives the same outcome.
///
/// A run ends when all flows have finished, or at the scenario's end. Flows that did not finish are
/// in [`Outcome::unfinished`], each with what it waits for.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64) -> Outcome {
    run_watched(scenario, seed, None, &|| true).unwrap_or_default()
}

/// The same with real VTEPs. They choose the paths of sprayed packets, and not the scheme of the
/// scenario.
#[must_use]
pub fn run_with(scenario: &Scenario, seed: u64, vteps: &mut dyn Vteps) -> Outcome {
    run_watched(scenario, seed, Some(vteps), &|| true).unwrap_or_default()
}

/// Runs as [`run`] does, or as [`run_with`]. `watch` is called every million events and for each
/// fault, which may change all routes, and says whether the run goes on. `None` if it does not.
pub fn run_watched<'a>(
    scenario: &'a Scenario,
    seed: u64,
    vteps: Option<&'a mut dyn Vteps>,
    watch: &dyn Fn() -> bool,
) -> Option<Outcome> {
    let mut engine = Engine { vteps, ..Engine::new(scenario, seed) };
    while engine.unfinished > 0
        && let Some(event) = engine.calendar.pop()
        && event.at <= engine.scenario.end
    {
        if engine.outcome.events.is_multiple_of(WATCHED) && !watch() {
            return None;
        }
        engine.now = event.at;
        engine.outcome.events += 1;
        match event.what {
            What::Arrive(packet) => engine.arrive(packet),
            What::Start(flow) => engine.start(flow),
            What::Timer(host) if engine.endpoints.is_some() => engine.wake_host(host),
            What::Timer(flow) => engine.timer(flow),
            What::Fault(_) if !watch() => return None,
            What::Fault(fault) => engine.fault(fault),
        }
    }
    Some(engine.finish())
}

impl Engine<'_> {
    /// A packet has passed its port's link.
    fn arrive(&mut self, id: u32) {
        let port = self.packets[id].port;
        self.advance(port);
        let port = &mut self.ports[port];
        if port.silent {
            port.counters.lost += 1;
            self.lose(id);
        } else if port.to_host {
            self.deliver(id);
        } else {
            let switch = port.to;
            self.forward(id, switch);
        }
    }

    /// Puts a packet into the queue of a switch's next port.
    fn forward(&mut self, id: u32, switch: u32) {
        let packet = &self.packets[id];
        let flow = &self.flows[packet.flow()];
        let host = if packet.is_answer() { flow.source } else { flow.target };
        let port = self.routes.port(switch, host, packet.flow(), packet.entropy);
        let Some(port) = port else {
            self.outcome.lost += 1;
            self.lose(id);
            return;
        };
        self.enqueue(id, port);
    }

    fn enqueue(&mut self, id: u32, port: u32) {
        self.advance(port);
        self.packets[id].port = port;
        if let Some(lost) = self.ports[port].enqueue(id, &mut self.packets) {
            self.lose(lost);
        }
        self.wake(port);
    }

    /// Forgets a packet.
    fn lose(&mut self, id: u32) {
        let packet = *self.packets.release(id);
        if let Some(endpoints) = &mut self.endpoints {
            endpoints.remove(&packet);
        }
    }

    /// Does what happened at a port until now: packets left, and others followed.
    #[inline]
    fn advance(&mut self, port: u32) {
        loop {
            let own = &mut self.ports[port];
            if own.sending == NONE || own.free_at > self.now {
                return;
            }
            own.complete(&mut self.packets);
            let at = own.free_at;
            self.send_next(port, at);
        }
    }

    /// Begins to send, if the line is free.
    #[inline]
    fn wake(&mut self, port: u32) {
        if self.ports[port].sending == NONE {
            self.send_next(port, self.now);
        }
    }

    /// Begins to send the next packet, if there is one.
    #[inline]
    fn send_next(&mut self, port: u32, at: Picos) {
        let mut next = self.ports[port].next();
        // The ports with the first even numbers are those of hosts.
        let of_host = port.is_multiple_of(2) && port / 2 < self.hosts.len();
        if next.is_none() && of_host {
            next = self.pull(port / 2, at);
        }
        let Some(id) = next else { return };
        let packet = &mut self.packets[id];
        packet.port = port;
        let arrival = self.ports[port].send(id, packet.size, at);
        self.calendar.push(arrival, What::Arrive(id));
        // An endpoint has timers, so it is asked as soon as its line is free.
        if of_host && self.endpoints.is_some() {
            let free_at = self.ports[port].free_at.max(self.now);
            self.calendar.push(free_at, What::Timer(port / 2));
        }
    }

    /// A fault begins or ends: two numbers each.
    fn fault(&mut self, number: u32) {
        let Some(fault) = self.scenario.faults.get(number as usize / 2) else { return };
        self.advance(fault.port);
        // Others may last at this port.
        let now = self.now;
        let lasting = self.scenario.faults.iter().filter(|other| {
            other.port == fault.port && other.at <= now && other.until.is_none_or(|end| now < end)
        });
        let (mut share, mut silent) = (1.0_f64, false);
        for other in lasting {
            match other.damage {
                Damage::Slow(own) => share = share.min(own),
                Damage::Silent | Damage::Dead => silent = true,
            }
        }
        let healthy = self.scenario.topology.links.get(fault.port as usize / 2);
        let port = &mut self.ports[fault.port];
        match fault.damage {
            Damage::Slow(_) => {
                port.rate = healthy.map_or(port.rate, |link| link.rate.times(share));
                if !Self::is_host_port(fault.port, self.scenario.topology.hosts) {
                    port.limits = self.scenario.limits.times(share);
                }
            }
            Damage::Silent => port.silent = silent,
            Damage::Dead => {
                port.silent = silent;
                self.routes = self.find_routes();
            }
        }
    }

    const fn is_host_port(port: u32, hosts: u32) -> bool {
        port.is_multiple_of(2) && port / 2 < hosts
    }

    /// The salt of a switch, or the seed of a port's or a flow's random numbers.
    fn stream(seed: u64, kind: u64, number: u32) -> Random {
        Random::stream(seed, kind << 32 | u64::from(number))
    }
}
