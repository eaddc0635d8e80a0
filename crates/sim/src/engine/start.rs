//! The beginning and the end of a run.

use std::collections::BTreeSet;

use super::endpoints::{Endpoints, Sums};
use super::{Engine, Host, Running};
use crate::calendar::{Calendar, What};
use crate::outcome::{FlowOutcome, MOST_WAITING, Outcome, PortOutcome, Waiting};
use crate::packet::Packets;
use crate::port::{Limits, Port};
use crate::routes::Routes;
use crate::scenario::{Damage, Scenario};
use crate::sender::Counts;
use crate::table::Table;
use crate::time::microseconds;
use crate::traffic::{Flow, Start};

/// Kinds of streams of random numbers. Other numbers give other draws: five seeds leave noise of 10 %
/// and more in the end of the last flow where few flows share a link by chance, and these are near
/// the mean of many (docs/design/spraying.md).
const PORT: u64 = 4;
const SALT: u64 = 5;
pub(super) const FLOW: u64 = 6;

/// The queue of a host's port, which its flows fill only when it can send.
const ENDLESS: Limits =
    Limits { bytes: u32::MAX / 4, mark_from: u32::MAX, mark_all: u32::MAX, trim: false };

impl<'a> Engine<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let topology = &scenario.topology;
        let ports = (0..topology.ports()).map(|number| {
            let link = topology.links.get(number as usize / 2);
            let (rate, delay) = link.map(|link| (link.rate, link.delay)).unwrap_or_default();
            let limits = match Self::is_host_port(number, topology.hosts) {
                true => ENDLESS,
                false => scenario.limits,
            };
            let to = topology.port(number).map(|(_, to)| to).unwrap_or_default();
            let random = Self::stream(seed, PORT, number);
            let to_host = to < topology.hosts;
            let mut port = Port::new(rate, delay, limits, random);
            (port.to, port.to_host) = (to, to_host);
            port
        });
        let flows = scenario.flows.iter().map(|flow| Running {
            source: flow.source,
            target: flow.target,
            ..Running::default()
        });
        let mut engine = Self {
            scenario,
            seed,
            now: 0,
            calendar: Calendar::new(topology.ports()),
            packets: Packets::default(),
            ports: ports.collect(),
            routes: Routes::default(),
            hosts: (0..topology.hosts).map(|_| Host::default()).collect(),
            flows: flows.collect(),
            sprayers: Table::default(),
            pairs: std::collections::BTreeMap::new(),
            placed: std::collections::BTreeMap::new(),
            triggers: std::collections::BTreeMap::new(),
            counts: Counts::default(),
            endpoints: None,
            unfinished: scenario.flows.len() as u32,
            outcome: Outcome::default(),
            vteps: None,
        };
        // Settings out of range are an error of the file: see `File::scenario`.
        engine.endpoints = scenario.roce.as_ref().and_then(|settings| {
            let hosts = Endpoints::new(settings, topology.hosts, scenario.flows.len());
            hosts.ok().map(Box::new)
        });
        engine.routes = engine.find_routes();
        engine.schedule();
        engine
    }

    /// The routes over all ports that are not dead now.
    pub(super) fn find_routes(&self) -> Routes {
        let now = self.now;
        let lasts = |until: Option<u64>| until.is_none_or(|until| now < until);
        let dead: BTreeSet<u32> = self
            .scenario
            .faults
            .iter()
            .filter(|fault| fault.damage == Damage::Dead && fault.at <= now && lasts(fault.until))
            .map(|fault| fault.port)
            .collect();
        let salt = |switch| Self::stream(self.seed, SALT, switch).next() as u32;
        let choice = self.scenario.spraying.choice;
        Routes::new(&self.scenario.topology, choice, salt, |port| !dead.contains(&port))
    }

    /// The events that are known at the start.
    fn schedule(&mut self) {
        for (number, fault) in (0..).step_by(2).zip(&self.scenario.faults) {
            self.calendar.push(fault.at, What::Fault(number));
            if let Some(until) = fault.until {
                self.calendar.push(until, What::Fault(number + 1));
            }
        }
        for (number, flow) in (0..).zip(&self.scenario.flows) {
            match flow.start {
                Start::At(time) => self.calendar.push(time, What::Start(number)),
                Start::On(trigger) => self.triggers.entry(trigger).or_default().push(number),
            }
        }
    }

    /// What a flow waits for that did not finish. Goes through all flows: for a few of them only.
    fn waiting(&mut self, number: u32, flow: &Flow) -> Waiting {
        let running = &mut self.flows[number];
        let ends = (flow.source, flow.target);
        let of_roce = self.endpoints.as_ref().filter(|_| running.start.is_some());
        let of_roce = of_roce.map(|endpoints| endpoints.waits_for(number, flow.source));
        let what = of_roce.unwrap_or_else(|| match (&mut running.sender, flow.start) {
            (Some(sender), _) => sender.waits_for(ends, self.now),
            (None, Start::On(trigger)) => {
                let mut all = self.scenario.flows.iter();
                let fires = all.find(|other| other.fires == Some(trigger));
                let by = fires.map(|other| format!(" of flow {}", other.id));
                format!("it waits for trigger {trigger}{}", by.unwrap_or_default())
            }
            (None, Start::At(time)) => format!("it starts at {} µs", microseconds(time)),
        });
        Waiting { id: flow.id, ends, what }
    }

    /// What the run gives.
    pub(super) fn finish(mut self) -> Outcome {
        let scenario = self.scenario;
        for (number, flow) in (0..).zip(&scenario.flows) {
            let running = &self.flows[number];
            let (start, end) = (running.start, running.end);
            if let Some(sender) = &running.sender {
                self.counts.add(&sender.counts);
            }
            if end.is_none() && self.outcome.unfinished.len() < MOST_WAITING {
                let waiting = self.waiting(number, flow);
                self.outcome.unfinished.push(waiting);
            }
            let (id, ordered, job) = (flow.id, flow.ordered, flow.job);
            self.outcome.flows.push(FlowOutcome { id, start, end, ordered, job });
        }
        let topology = &scenario.topology;
        let tier = |node: u32| match node.checked_sub(topology.hosts) {
            None => 0,
            Some(at) => topology.switches.get(at as usize).map_or(0, |switch| switch.tier + 1),
        };
        let pairs = scenario.flows.iter().map(|flow| (flow.source, flow.target));
        let on_way = self.routes.ways(topology, pairs);
        for (number, port) in (0..).zip(self.ports.iter()) {
            let (from, to) = topology.port(number).unwrap_or_default();
            self.outcome.lost += port.counters.lost;
            self.outcome.ports.push(PortOutcome {
                ends: (topology.name(from), topology.name(to)),
                tiers: (tier(from), tier(to)),
                on_way: on_way.contains(&number),
                counters: port.counters,
            });
        }
        if let Some(endpoints) = &self.endpoints {
            let Sums { counters, mismatches } = endpoints.sums();
            self.counts.packets -= counters.retransmitted_packets;
            self.counts.retransmitted = counters.retransmitted_packets;
            self.counts.nacks = counters.packet_seq_err;
            self.counts.timeouts = counters.local_ack_timeout_err;
            self.outcome.mismatches = mismatches;
        }
        let Counts { packets, retransmitted, probes, acks, nacks, timeouts } = self.counts;
        Outcome {
            packets,
            retransmitted,
            probes,
            acks,
            nacks,
            timeouts,
            most_packets: self.packets.len(),
            ..self.outcome
        }
    }
}
