//! Which two queue pairs are the two directions of one connection.
//!
//! Frames name only the queue pair of their receiver. Two sources tell which belongs to the other
//! direction:
//!
//! - The communication manager: a request and the reply to it name the queue pairs of both hosts.
//!   Each leaf reads what its own hosts send, and tells the other.
//! - The inner UDP source port. rdma-core and mlx5 derive it from both numbers, alike in both
//!   directions. If several connections of two hosts share a port, each must fit exactly one queue
//!   pair of the other direction. Otherwise none of them is paired.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use wire::QueuePair;
use wire::roce::source_port;

use crate::cm::Event;
use crate::message::connection::{FlowReport, Handshake, Hosts, MOST_HANDSHAKES};
use crate::placer::Target;
use crate::way::Way;

/// The most queue pairs of others that are remembered, and the most of one VTEP.
const MOST_TOLD: usize = 65_536;
const MOST_TOLD_OF_ONE: usize = 16_384;
/// How long a queue pair of another VTEP is remembered that is not reported again.
const TOLD_AGE: Duration = Duration::from_secs(90);
/// The most exchanges of the communication manager that are remembered.
const MOST_EXCHANGES: usize = 65_536;
/// The most connections with one port that are compared with each other.
const MOST_ALIKE: usize = 16;
/// How often a handshake is reported. Answers may be lost.
const COPIES: u8 = 3;
/// The most handshakes that wait to be reported to a VTEP, and the most of one VNI.
const MOST_WAITING: usize = 4096;
const MOST_OF_VNI: usize = 1024;

/// What hosts behind this leaf send to hosts behind another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Channel {
    /// The other leaf.
    pub target: Target,
    /// The VNI as a number.
    pub vni: u32,
    /// Inner source and destination.
    pub hosts: Hosts,
}

/// What another VTEP told about a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Inner UDP source port.
    pub port: u16,
    /// Its rate in 1000 bytes a second; 0 while it is not measured.
    pub kilobytes: u32,
    /// Its path, if that is known.
    pub way: Option<Way>,
    heard: Duration,
}

/// The queue pairs with one inner source port, in both directions.
#[derive(Debug, Default)]
struct Alike {
    own: BTreeSet<QueuePair>,
    told: BTreeSet<QueuePair>,
}

/// A request and its reply. For each, the sender's queue pair and its number for the exchange.
#[derive(Debug, Clone, Copy, Default)]
struct Exchange {
    own: Option<(QueuePair, u32)>,
    told: Option<(QueuePair, u32)>,
}

/// An exchange: whether our host asked, and the number of the request.
type ExchangeId = (Channel, bool, u32);

/// Handshakes that wait to be reported.
#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<(Handshake, u8)>,
    /// How many there are of each VNI.
    of_vni: HashMap<u32, usize>,
}

impl Waiting {
    /// Above the limits, a handshake is not reported.
    fn push(&mut self, handshake: Handshake) {
        let of_vni = self.of_vni.entry(handshake.vni).or_default();
        if self.queue.len() < MOST_WAITING && *of_vni < MOST_OF_VNI {
            *of_vni += 1;
            self.queue.push_back((handshake, COPIES));
        }
    }

    /// The next ones. Those that are to be reported again come behind the others.
    fn take(&mut self) -> Vec<Handshake> {
        let mut told = Vec::new();
        for _ in 0..MOST_HANDSHAKES.min(self.queue.len()) {
            let Some((handshake, copies)) = self.queue.pop_front() else { break };
            told.push(handshake);
            if copies > 1 {
                self.queue.push_back((handshake, copies - 1));
            } else if let Some(of_vni) = self.of_vni.get_mut(&handshake.vni) {
                *of_vni = of_vni.saturating_sub(1);
            }
        }
        told
    }
}

/// Finds the other direction of queue pairs.
#[derive(Debug, Default)]
pub struct Pairing {
    alike: HashMap<(Channel, u16), Alike>,
    told: HashMap<(Channel, QueuePair), Told>,
    /// How many there are of each VTEP.
    told_of: HashMap<Target, usize>,
    /// These, from the one that was looked at longest ago, and when it had been reported.
    ages: VecDeque<(Duration, (Channel, QueuePair))>,
    exchanges: HashMap<ExchangeId, Exchange>,
    /// By our host's number for it.
    by_own: HashMap<(Channel, u32), ExchangeId>,
    /// The exchanges from the oldest on.
    order: VecDeque<ExchangeId>,
    /// By own queue pairs, those of the other direction.
    connections: HashMap<(Channel, QueuePair), QueuePair>,
    /// Handshakes to be reported to each VTEP, and how often.
    waiting: BTreeMap<Target, Waiting>,
}

impl Pairing {
    /// A queue pair is sent from this inner source port.
    pub fn add(&mut self, channel: Channel, queue_pair: QueuePair, port: u16) {
        self.alike.entry((channel, port)).or_default().own.insert(queue_pair);
    }

    /// A queue pair is not sent from this port any more.
    pub fn remove(&mut self, channel: Channel, queue_pair: QueuePair, port: u16) {
        self.change_alike((channel, port), |alike| _ = alike.own.remove(&queue_pair));
    }

    fn change_alike(&mut self, key: (Channel, u16), change: impl FnOnce(&mut Alike)) {
        let Some(alike) = self.alike.get_mut(&key) else { return };
        change(alike);
        if alike.own.is_empty() && alike.told.is_empty() {
            self.alike.remove(&key);
        }
    }

    /// Takes what another VTEP reports about a queue pair. Above the limit it is ignored.
    pub fn tell(&mut self, target: Target, report: &FlowReport, now: Duration) {
        let (source, destination) = report.hosts;
        let channel = Channel { target, vni: report.vni, hosts: (destination, source) };
        let key = (channel, report.queue_pair);
        let of_one = self.told_of.entry(target).or_default();
        if !self.told.contains_key(&key) {
            if self.told.len() >= MOST_TOLD || *of_one >= MOST_TOLD_OF_ONE {
                return;
            }
            *of_one += 1;
        }
        let FlowReport { port, kilobytes, .. } = *report;
        let told = Told { port, kilobytes, way: report.way.clone(), heard: now };
        match self.told.insert(key, told) {
            None => self.ages.push_back((now, key)),
            Some(before) if before.port != port => {
                let remove = |alike: &mut Alike| _ = alike.told.remove(&report.queue_pair);
                self.change_alike((channel, before.port), remove);
            }
            Some(_) => {}
        }
        self.alike.entry((channel, port)).or_default().told.insert(report.queue_pair);
    }

    /// Forgets queue pairs of others that were not reported again. Looks at `most`, and returns
    /// whether there are more to look at.
    pub fn expire(&mut self, now: Duration, most: usize) -> bool {
        for _ in 0..most {
            let is_due = |(at, _): &&(Duration, _)| now.saturating_sub(*at) >= TOLD_AGE;
            let Some((_, key)) = self.ages.front().filter(is_due).copied() else { return false };
            self.ages.pop_front();
            let Some(told) = self.told.get(&key) else { continue };
            let (port, heard) = (told.port, told.heard);
            if now.saturating_sub(heard) < TOLD_AGE {
                self.ages.push_back((heard, key));
                continue;
            }
            let (channel, of) = key;
            self.told.remove(&key);
            if let Some(of_one) = self.told_of.get_mut(&channel.target) {
                *of_one = of_one.saturating_sub(1);
            }
            self.change_alike((channel, port), |alike| _ = alike.told.remove(&of));
        }
        true
    }

    /// Takes a message that a host of this leaf sent to end or to begin a connection. Returns the
    /// queue pair of the channel that has ended.
    pub fn observe(&mut self, channel: Channel, event: Event) -> Option<QueuePair> {
        let Channel { vni, hosts, .. } = channel;
        let (id, of, queue_pair) = match event {
            Event::Request { id, queue_pair } => (id, None, queue_pair),
            Event::Reply { id, of, queue_pair } => (id, Some(of), queue_pair),
            Event::Disconnect { queue_pair } => {
                self.connections.remove(&(channel, queue_pair));
                return Some(queue_pair);
            }
            Event::Disconnected { id } => return self.disconnected(channel, id),
        };
        let request = (channel, of.is_none(), of.unwrap_or(id));
        self.by_own.insert((channel, id), request);
        self.exchange(request, |exchange| exchange.own = Some((queue_pair, id)));
        let waiting = self.waiting.entry(channel.target).or_default();
        waiting.push(Handshake { vni, hosts, queue_pair, id, of });
        None
    }

    /// The queue pair of the channel whose end a host confirms.
    fn disconnected(&mut self, channel: Channel, id: u32) -> Option<QueuePair> {
        let exchange = self.exchanges.get(self.by_own.get(&(channel, id))?)?;
        let (queue_pair, _) = exchange.told?;
        self.connections.remove(&(channel, queue_pair));
        Some(queue_pair)
    }

    /// Takes a handshake that another VTEP reports.
    pub fn handshake(&mut self, target: Target, handshake: &Handshake) {
        let Handshake { vni, hosts: (source, destination), queue_pair, id, of } = *handshake;
        let channel = Channel { target, vni, hosts: (destination, source) };
        let request = (channel, of.is_some(), of.unwrap_or(id));
        self.exchange(request, |exchange| exchange.told = Some((queue_pair, id)));
    }

    fn forget(&mut self, id: &ExchangeId) {
        let Some(Exchange { own, told }) = self.exchanges.remove(id) else { return };
        if let Some((told, _)) = told {
            self.connections.remove(&(id.0, told));
        }
        let Some((_, own)) = own else { return };
        // A later exchange may have the number.
        if self.by_own.get(&(id.0, own)) == Some(id) {
            self.by_own.remove(&(id.0, own));
        }
    }

    /// Adds to an exchange. The connection is known when both hosts have told their queue pair.
    fn exchange(&mut self, id: ExchangeId, add: impl FnOnce(&mut Exchange)) {
        if !self.exchanges.contains_key(&id) {
            if self.exchanges.len() >= MOST_EXCHANGES
                && let Some(oldest) = self.order.pop_front()
            {
                self.forget(&oldest);
            }
            self.order.push_back(id);
        }
        let exchange = self.exchanges.entry(id).or_default();
        let before = exchange.told;
        add(exchange);
        let Exchange { own: Some(own), told: Some(told) } = *exchange else { return };
        if let Some(before) = before.filter(|before| before.0 != told.0) {
            self.connections.remove(&(id.0, before.0));
        }
        self.connections.insert((id.0, told.0), own.0);
    }

    /// The handshakes to report to a VTEP next.
    pub fn to_tell(&mut self, target: Target) -> Vec<Handshake> {
        self.waiting.get_mut(&target).map_or(Vec::new(), Waiting::take)
    }

    /// The queue pair of the other direction, and what is told about it. `port` is the inner source
    /// port of this one.
    #[must_use]
    pub fn partner(
        &self,
        channel: Channel,
        queue_pair: QueuePair,
        port: u16,
    ) -> Option<(QueuePair, Option<&Told>)> {
        let known = self.connections.get(&(channel, queue_pair)).copied();
        let partner = known.or_else(|| self.by_port(channel, queue_pair, port))?;
        Some((partner, self.told.get(&(channel, partner))))
    }

    fn by_port(&self, channel: Channel, queue_pair: QueuePair, port: u16) -> Option<QueuePair> {
        let Alike { own, told } = self.alike.get(&(channel, port))?;
        if own.len() != told.len() || own.len() > MOST_ALIKE {
            return None;
        }
        let fits = |a: QueuePair, b: QueuePair| source_port(a, b) == port;
        let only = |of: &BTreeSet<QueuePair>, with: QueuePair| {
            let mut fitting = of.iter().filter(|other| fits(**other, with));
            let first = fitting.next().copied();
            first.filter(|_| fitting.next().is_none())
        };
        let all = own.iter().all(|of| only(told, *of).is_some())
            && told.iter().all(|of| only(own, *of).is_some());
        only(told, queue_pair).filter(|_| all)
    }

    /// The number of queue pairs of others that are remembered.
    #[must_use]
    pub fn told(&self) -> usize {
        self.told.len()
    }

    /// The number of exchanges of the communication manager that are remembered.
    #[must_use]
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Whether nothing is known that could pair a queue pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.told.is_empty() && self.connections.is_empty()
    }
}
