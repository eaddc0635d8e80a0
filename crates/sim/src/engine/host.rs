//! Hosts: flows that start, send, receive and end.

use spray::Sprayer;

use super::{Engine, start::FLOW};
use crate::calendar::What;
use crate::packet::{Kind, Packet, flag};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::time::Picos;
use crate::vtep::{Data, Fate};

/// A packet between two hosts, as VTEPs see it.
const fn data((source, target): (u32, u32), packet: &Packet) -> Data {
    let (flow, number, size) = (packet.flow(), packet.number, packet.size);
    Data { source, target, flow, number, size }
}

impl Engine<'_> {
    /// A flow starts.
    pub(super) fn start(&mut self, flow: u32) {
        let Some(own) = self.scenario.flows.get(flow as usize) else { return };
        let mut random = Self::stream(self.seed, FLOW, flow);
        let sprayer = self.sprayer(own.ordered, (own.source, own.target), &mut random);
        let network = self.scenario.transport.network;
        let running = &mut self.flows[flow];
        running.start = Some(self.now);
        running.sprayer = sprayer;
        if self.endpoints.is_some() {
            running.random = Some(random);
            self.connect(flow);
            return;
        }
        running.sender = Some(Box::new(Sender::new(flow, own.bytes, network, random)));
        running.receiver = Some(Box::default());
        self.advance(2 * own.source);
        self.offer(flow);
    }

    /// The state of a scheme for a new flow.
    fn sprayer(&mut self, ordered: bool, ends: (u32, u32), random: &mut spray::Random) -> u32 {
        let spraying = self.scenario.spraying;
        let scheme = if ordered { spray::Scheme::Ecmp } else { spraying.scheme };
        if let Some(&kept) = self.pairs.get(&ends).filter(|_| scheme.outlives_flows()) {
            return kept;
        }
        let network = self.scenario.transport.network;
        let times = (network.round_trip / 1000, network.packet_time() / 1000);
        let state = Some(match scheme {
            spray::Scheme::Ecmp if spraying.placed => {
                let turn = self.placed.entry(ends).or_default();
                let path = *turn;
                *turn = (path + 1) % spraying.tiers.paths();
                Sprayer::Fixed(spray::Entropy(path))
            }
            _ => Sprayer::new(scheme, spraying.tiers, times, random),
        });
        let number = self.sprayers.add(state);
        if scheme.outlives_flows() {
            self.pairs.insert(ends, number);
        }
        number
    }

    /// Lists a flow at its host if it can send, and wakes the host.
    fn offer(&mut self, flow: u32) {
        let running = &mut self.flows[flow];
        let Some(sender) = &mut running.sender else { return };
        let host = running.source;
        if !sender.listed && sender.can_send() {
            sender.listed = true;
            self.hosts[host].turns.push_back(flow);
        }
        self.wake(2 * host);
    }

    /// The next data packet of a host whose line is free at `at`.
    pub(super) fn pull(&mut self, host: u32, at: Picos) -> Option<u32> {
        if self.endpoints.is_some() {
            return self.pull_frame(host, at);
        }
        loop {
            let flow = self.hosts[host].turns.pop_front()?;
            let running = &mut self.flows[flow];
            let Some(sender) = &mut running.sender else { continue };
            sender.listed = false;
            let Some(sprayer) = &mut self.sprayers[running.sprayer] else { continue };
            if !sender.can_send() {
                continue;
            }
            let Some(mut packet) = sender.send(at, sprayer) else { continue };
            let own = self.scenario.flows.get(flow as usize).filter(|own| !own.ordered);
            if let (Some(vteps), Some(own)) = (&mut self.vteps, own)
                && packet.is_data()
            {
                packet.entropy = vteps.send(at, data((own.source, own.target), &packet));
                sender.takes_path(&packet);
            }
            if sender.can_send() {
                sender.listed = true;
                self.hosts[host].turns.push_back(flow);
            }
            if !sender.timed {
                sender.timed = true;
                // `at` may be before now, by the delay of the host's link.
                let timeout = self.now.max(at + self.scenario.transport.timeout);
                self.calendar.push(timeout, What::Timer(flow));
            }
            self.ports[2 * host].count_in(&packet);
            return Some(self.packets.add(packet));
        }
    }

    /// A packet has arrived at its host.
    pub(super) fn deliver(&mut self, id: u32) {
        let packet = *self.packets.release(id);
        if self.endpoints.is_some() {
            self.receive_frame(&packet);
            return;
        }
        match packet.kind() {
            Kind::Ack | Kind::Nack => self.answered(&packet),
            _ => self.receive(&packet),
        }
    }

    fn receive(&mut self, packet: &Packet) {
        self.show_vtep(packet);
        let running = &mut self.flows[packet.flow()];
        let host = running.target;
        let every = self.scenario.transport.acknowledge;
        let answer = running
            .receiver
            .as_deref_mut()
            .and_then(|own: &mut Receiver| own.receive(packet, every));
        if let Some(answer) = answer {
            let id = self.packets.add(answer);
            self.enqueue(id, 2 * host);
        }
    }

    /// A packet has reached the VTEP of its target, if there is one.
    fn show_vtep(&mut self, packet: &Packet) {
        let Some(vteps) = &mut self.vteps else { return };
        let own = self.scenario.flows.get(packet.flow() as usize).filter(|own| !own.ordered);
        let fate = match (packet.kind(), packet.has(flag::MARKED)) {
            (Kind::Data, false) => Fate::Good,
            (Kind::Data, true) => Fate::Marked,
            (Kind::Trimmed, _) => Fate::Trimmed,
            _ => return,
        };
        if let Some(own) = own {
            let packet_of = data((own.source, own.target), packet);
            vteps.receive(self.now, packet_of, packet.entropy, fate);
        }
    }

    fn answered(&mut self, answer: &Packet) {
        let flow = answer.flow();
        // The host's line goes on with what it knew before.
        self.advance(2 * self.flows[flow].source);
        let running = &mut self.flows[flow];
        let Some(sender) = &mut running.sender else { return };
        let Some(sprayer) = &mut self.sprayers[running.sprayer] else { return };
        match answer.kind() {
            Kind::Nack => sender.on_nack(self.now, answer, sprayer),
            _ => sender.on_ack(self.now, answer, sprayer, self.scenario.spraying.feedback),
        }
        if sender.is_done() {
            self.end(flow);
        } else {
            self.offer(flow);
        }
    }

    /// A flow ends, and those that wait for it start.
    pub(super) fn end(&mut self, flow: u32) {
        let running = &mut self.flows[flow];
        running.end = Some(self.now);
        running.receiver = None;
        if let Some(sender) = running.sender.take() {
            self.counts.add(&sender.counts);
        }
        let Some(own) = self.scenario.flows.get(flow as usize) else { return };
        if own.ordered || !self.scenario.spraying.scheme.outlives_flows() {
            self.sprayers.release(running.sprayer);
        }
        self.unfinished -= 1;
        let waiting = own.fires.and_then(|trigger| self.triggers.remove(&trigger));
        for flow in waiting.into_iter().flatten() {
            self.calendar.push(self.now, What::Start(flow));
        }
    }

    /// The oldest packet of a flow may have waited too long.
    pub(super) fn timer(&mut self, flow: u32) {
        let host = self.flows[flow].source;
        self.advance(2 * host);
        let running = &mut self.flows[flow];
        let Some(sender) = &mut running.sender else { return };
        let Some(sprayer) = &mut self.sprayers[running.sprayer] else { return };
        sender.timed = false;
        let timeout = self.scenario.transport.timeout;
        let Some((at, _)) = sender.oldest() else { return };
        let mut alone = None;
        if at + timeout <= self.now {
            alone = sender.on_timeout(self.now, sprayer, self.scenario.spraying.feedback);
        }
        // Before anything is sent: the timer is for the oldest packet, not for a new one.
        self.set_timer(flow);
        self.offer(flow);
        self.probe(flow, alone);
    }

    /// Asks the receiver what it has, if a lost packet of this length must wait for the window.
    fn probe(&mut self, flow: u32, size: Option<u16>) {
        let running = &mut self.flows[flow];
        let (Some(size), Some(sender)) = (size, &mut running.sender) else { return };
        let Some(sprayer) = &mut self.sprayers[running.sprayer] else { return };
        let round_trip = self.scenario.transport.network.round_trip;
        let host = running.source;
        if let Some(probe) = sender.probe_if_full(self.now, size, round_trip, sprayer) {
            let id = self.packets.add(probe);
            self.enqueue(id, 2 * host);
        }
    }

    /// Sets the timer for the oldest packet, unless it is set.
    fn set_timer(&mut self, flow: u32) {
        let Some(sender) = &mut self.flows[flow].sender else { return };
        if sender.timed {
            return;
        }
        if let Some((at, _)) = sender.oldest() {
            sender.timed = true;
            let timeout = self.scenario.transport.timeout;
            self.calendar.push(self.now.max(at + timeout), What::Timer(flow));
        }
    }
}
