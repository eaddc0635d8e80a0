//! A simulated fabric between two leaves that run a prober and a responder.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use pathmap::message::Message;
use pathmap::packet::{self, Headers};
use pathmap::prober::{Known, Settings};
use pathmap::{Key, Pair, Prober, Random, Responder};
use wire::MacAddr;

pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Probes that the other leaf answers in a second.
pub const RATE: u32 = 4000;
const STEP: Duration = Duration::from_millis(1);

/// A route through the fabric: what routers record, and the arrival uplink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub uplink: u64,
    pub spine: u32,
    pub addresses: Vec<Ipv4Addr>,
}

/// Each of `uplinks` leads to a router, each of which has a link to each of `spines` routers, each
/// of which has one link to the other leaf.
pub struct Fabric {
    pub spines: u32,
    pub loss: f64,
    /// Uplink and spine between which all packets are lost.
    pub dead: BTreeSet<(u64, u32)>,
    /// A route that leads by another spine: uplink and spine, and the other spine.
    pub detour: Option<((u64, u32), u32)>,
    /// The most answers in a millisecond; more of them wait. `None`: all arrive after one.
    pub served: Option<usize>,
    /// The longest time that an answer has waited.
    pub longest: Duration,
    /// Whether the other leaf answers.
    pub answers: bool,
    /// Whether routers record their addresses.
    pub records: bool,
    pub random: Random,
    pub now: Duration,
    pub prober: Prober,
    pub responder: Responder,
    seed: u64,
    key: Key,
    /// Answers on their way, with the time of their arrival.
    answering: Vec<(Duration, Vec<u8>)>,
    /// The last answer that was delivered, for replays.
    pub last_answer: Vec<u8>,
    pub sent: u64,
}

pub fn key() -> Key {
    Key::new(b"0123456789abcdef").unwrap()
}

impl Fabric {
    pub fn new(uplinks: u64, spines: u32, seed: u64, settings: Settings) -> Self {
        let secret = Key::new(b"secret-of-process").unwrap();
        let mut prober = Prober::new(settings, secret, 7, Random::new(seed));
        prober.set_hops(Duration::ZERO, &(0..uplinks).collect::<Vec<_>>());
        Self {
            spines,
            loss: 0.0,
            dead: BTreeSet::new(),
            detour: None,
            served: None,
            longest: Duration::ZERO,
            answers: true,
            records: true,
            random: Random::new(seed + 1000),
            now: Duration::ZERO,
            prober,
            responder: Responder::new(key(), RATE),
            seed,
            key: key(),
            answering: Vec::new(),
            last_answer: Vec::new(),
            sent: 0,
        }
    }

    /// Where a pair leads.
    pub fn route(&self, pair: Pair) -> Route {
        let words = [pair.hop, u64::from(pair.port)];
        let mut spine =
            path::choose(path::hash::hash(self.seed, words), self.spines as usize) as u32;
        if let Some((from, to)) = self.detour
            && from == (pair.hop, spine)
        {
            spine = to;
        }
        let middle = Ipv4Addr::from_bits(0x0a01_0000 + pair.hop as u32 * 256 + spine);
        let last = Ipv4Addr::from_bits(0x0a02_0000 + spine);
        Route { uplink: pair.hop, spine, addresses: vec![middle, last] }
    }

    /// Whether what is known of the pair is true.
    pub fn is_right(&self, pair: Pair, known: &Known) -> bool {
        let route = self.route(pair);
        known.arrival == route.spine
            && known.routers == 2
            && known.recorded.as_ref().is_none_or(|recorded| **recorded == *route.addresses)
    }

    fn is_lost(&mut self) -> bool {
        self.random.below(10_000) < (self.loss * 10_000.0) as usize
    }

    /// Has the other leaf take a packet that arrived, and returns its answer.
    pub fn deliver(&mut self, packet: &[u8], arrival: u32) -> Option<Vec<u8>> {
        let received = packet::parse(packet).unwrap();
        let Message::Probe(probe) = self.responder.open(self.now, &received)? else { return None };
        let answer = self.responder.answer(self.now, probe, &received, arrival)?;
        let mut message = Message::Answer(answer).bytes();
        self.key.seal((IpAddr::V4(B), IpAddr::V4(A)), &mut message);
        Some(packet::build(&headers((B, A), 49_152, 62, false), &message))
    }

    /// Has the prober take an answer. Returns whether it was accepted.
    pub fn take(&mut self, packet: &[u8]) -> bool {
        let received = packet::parse(packet).unwrap();
        let bytes = self.key.open((IpAddr::V4(received.ends.0), IpAddr::V4(A)), received.message);
        match bytes.map(Message::parse) {
            Some(Ok(Message::Answer(answer))) => self.prober.answer(self.now, &answer),
            _ => false,
        }
    }

    /// Lets this time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            let now = self.now;
            let mut left = self.served.unwrap_or(usize::MAX);
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.answering).into_iter().partition(|(at, _)| {
                    let arrives = *at <= now && left > 0;
                    left -= usize::from(arrives);
                    arrives
                });
            self.answering = later;
            for (at, packet) in due {
                self.longest = self.longest.max(now - at);
                assert!(self.take(&packet) || self.loss > 0.0 || !self.dead.is_empty());
                self.last_answer = packet;
            }
            let mut out = Vec::new();
            if self.prober.next().is_some_and(|at| at <= now) {
                self.prober.tick(now, &mut out);
            }
            for transmit in out {
                self.sent += 1;
                let mut message = Message::Probe(transmit.probe).bytes();
                self.key.seal((IpAddr::V4(A), IpAddr::V4(B)), &mut message);
                let probe = transmit.probe;
                let headers = headers((A, B), probe.port, probe.ttl, probe.records);
                let route = self.route(transmit.pair);
                let dead = self.dead.contains(&(route.uplink, route.spine));
                if dead || !self.answers || self.is_lost() {
                    continue;
                }
                let packet = self.forwarded(packet::build(&headers, &message), &route);
                let answer = self.deliver(&packet, route.spine);
                if let Some(answer) = answer.filter(|_| !self.is_lost()) {
                    self.answering.push((now + STEP, answer));
                }
            }
        }
    }

    /// The packet as the routers on the way leave it.
    fn forwarded(&self, mut packet: Vec<u8>, route: &Route) -> Vec<u8> {
        let header = usize::from(packet[14] & 15) * 4;
        packet[14 + 8] -= 2;
        if header > 20 && self.records {
            for address in &route.addresses {
                let at = 14 + 20 + usize::from(packet[14 + 22]) - 1;
                packet[at..at + 4].copy_from_slice(&address.octets());
                packet[14 + 22] += 4;
            }
        }
        packet[24..26].fill(0);
        let sum = wire::checksum::Sum::new().bytes(&packet[14..14 + header]).checksum();
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
        packet
    }
}

pub fn headers(ends: (Ipv4Addr, Ipv4Addr), port: u16, ttl: u8, records: bool) -> Headers {
    let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
    Headers { macs, ends, ports: (port, 4789), ttl, records }
}
