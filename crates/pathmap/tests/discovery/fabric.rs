//! A simulated fabric between two leaves that run a prober and a responder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use path::PathId;
use pathmap::message::Message;
use pathmap::packet::{self, Headers};
use pathmap::prober::{Ids, Known, Settings};
use pathmap::{Key, Prober, Random, Report, Responder};
use wire::MacAddr;

/// Both leaves over IPv4, and over IPv6.
pub(crate) const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
/// Probes that the other leaf answers in a second.
pub(crate) const RATE: u32 = 4000;
const STEP: Duration = Duration::from_millis(1);

/// A route through the fabric: what routers record, and the arrival uplink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub uplink: u64,
    pub spine: u32,
    pub addresses: Vec<Ipv4Addr>,
}

/// Each of `uplinks` leads to a router, each of which has a link to each of `spines` routers, each
/// of which has one link to the other leaf.
pub(crate) struct Fabric {
    pub spines: u32,
    pub loss: f64,
    /// Uplink and spine between which all packets are lost.
    pub dead: BTreeSet<(u64, u32)>,
    /// A route that leads by another spine: uplink and spine, and the other spine.
    pub detour: Option<((u64, u32), u32)>,
    /// Links that a router does not use: uplink and spine. Paths that were sent meanwhile stay on the
    /// link that they have got, as in a resilient next-hop group.
    pub down: BTreeSet<(u64, u32)>,
    stuck: BTreeMap<PathId, u32>,
    /// The most answers in a millisecond; more of them wait. `None`: all arrive after one.
    pub served: Option<usize>,
    /// The longest time that an answer has waited.
    pub longest: Duration,
    /// Whether the other leaf answers.
    pub answers: bool,
    /// Whether routers record their addresses.
    pub records: bool,
    /// The prober's leaf and the other one.
    pub ends: (IpAddr, IpAddr),
    pub random: Random,
    pub now: Duration,
    pub prober: Prober,
    /// Opens what arrives at this leaf.
    pub opener: Responder,
    /// The other leaf.
    pub responder: Responder,
    /// A packet that arrives at both leaves so many times in each millisecond.
    pub flood: Option<(Vec<u8>, usize)>,
    seed: u64,
    key: Key,
    /// Answers on their way, with the time of their arrival.
    answering: Vec<(Duration, Vec<u8>)>,
    /// The last answer that was delivered, for replays.
    pub last_answer: Vec<u8>,
    /// What the other leaf reports, and what was accepted in the last [`Self::run`].
    pub report: Report,
    pub reports: Vec<Report>,
    /// How long an answer is on its way.
    pub delay: Duration,
    /// The tokens of the probes in the last [`Self::run`].
    pub tokens: BTreeSet<u32>,
    /// The last probes that arrived at the other leaf.
    pub probes: VecDeque<Vec<u8>>,
    pub sent: u64,
}

pub(crate) fn key() -> Key {
    Key::new(b"0123456789abcdef").unwrap()
}

pub(crate) fn responder() -> Responder {
    Responder::new(key(), Key::new(b"the-other-secret").unwrap(), RATE)
}

impl Fabric {
    pub(crate) fn new(uplinks: u64, spines: u32, seed: u64, settings: Settings) -> Self {
        let secret = Key::new(b"secret-of-process").unwrap();
        let mut prober = Prober::new(settings, secret, Ids::new((7, 0)), Random::new(seed));
        prober.set_hops(Duration::ZERO, &(0..uplinks).collect::<Vec<_>>());
        Self {
            spines,
            loss: 0.0,
            dead: BTreeSet::new(),
            detour: None,
            down: BTreeSet::new(),
            stuck: BTreeMap::new(),
            served: None,
            longest: Duration::ZERO,
            answers: true,
            records: true,
            ends: (A, B),
            random: Random::new(seed + 1000),
            now: Duration::ZERO,
            prober,
            opener: responder(),
            responder: responder(),
            flood: None,
            seed,
            key: key(),
            answering: Vec::new(),
            last_answer: Vec::new(),
            report: Report::default(),
            reports: Vec::new(),
            delay: STEP,
            tokens: BTreeSet::new(),
            probes: VecDeque::new(),
            sent: 0,
        }
    }

    /// The same over IPv6.
    pub(crate) fn over_ipv6(uplinks: u64, spines: u32, seed: u64, settings: Settings) -> Self {
        let settings = Settings { records: false, ..settings };
        Self { ends: (A6, B6), ..Self::new(uplinks, spines, seed, settings) }
    }

    /// Where a path leads.
    pub(crate) fn route(&self, path: PathId) -> Route {
        let words = [path.hop, u64::from(path.source_port)];
        let mut spine =
            path::choose(path::hash::hash(self.seed, words), self.spines as usize) as u32;
        if let Some((from, to)) = self.detour
            && from == (path.hop, spine)
        {
            spine = to;
        }
        spine = self.stuck.get(&path).copied().unwrap_or(spine);
        let middle = Ipv4Addr::from_bits(0x0a01_0000 + path.hop as u32 * 256 + spine);
        let last = Ipv4Addr::from_bits(0x0a02_0000 + spine);
        Route { uplink: path.hop, spine, addresses: vec![middle, last] }
    }

    /// Whether what is known of the path is true.
    pub(crate) fn is_right(&self, path: PathId, known: &Known) -> bool {
        let route = self.route(path);
        known.arrival == route.spine
            && known.routers == 2
            && known.recorded.as_ref().is_none_or(|recorded| **recorded == *route.addresses)
    }

    /// Gives a path another link if a router does not use its own.
    fn stick(&mut self, path: PathId) {
        let route = self.route(path);
        if self.down.contains(&(route.uplink, route.spine)) {
            self.stuck.insert(path, (route.spine + 1) % self.spines);
        }
    }

    fn is_lost(&mut self) -> bool {
        self.random.index(10_000) < (self.loss * 10_000.0) as usize
    }

    /// Has the other leaf take a packet that arrived, and returns its answer.
    pub(crate) fn deliver(&mut self, packet: &[u8], arrival: u32) -> Option<Vec<u8>> {
        let received = packet::parse(packet).unwrap();
        let Message::Probe(probe) = self.responder.open(&received)? else { return None };
        let mut answer = self.responder.answer(self.now, probe, &received, arrival)?;
        answer.report.clone_from(&self.report);
        let mut message = Message::Answer(answer).bytes();
        let ends = (self.ends.1, self.ends.0);
        self.key.seal(ends, &mut message);
        Some(packet::build(&headers(ends, 49_152, 62, false), &message))
    }

    /// Has the prober take an answer. Returns whether it was accepted.
    pub(crate) fn take(&mut self, packet: &[u8]) -> bool {
        let received = packet::parse(packet).unwrap();
        match self.opener.open(&received) {
            Some(Message::Answer(answer)) => {
                let accepted = self.prober.answer(self.now, &answer);
                self.reports.extend(accepted.then_some(answer.report));
                accepted
            }
            _ => false,
        }
    }

    fn take_flood(&mut self) {
        let Some((packet, times)) = &self.flood else { return };
        let received = packet::parse(packet).unwrap();
        for _ in 0..*times {
            assert_eq!(self.opener.open(&received), None);
            assert_eq!(self.responder.open(&received), None);
        }
    }

    /// Lets this time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.reports.clear();
        self.tokens.clear();
        while self.now < end {
            self.now += STEP;
            let now = self.now;
            self.take_flood();
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
                self.tokens.insert(transmit.probe.token);
                let mut message = Message::Probe(transmit.probe).bytes();
                self.key.seal(self.ends, &mut message);
                let probe = transmit.probe;
                let headers = headers(self.ends, probe.port, probe.ttl, probe.records);
                self.stick(transmit.path);
                let route = self.route(transmit.path);
                let dead = self.dead.contains(&(route.uplink, route.spine));
                if dead || !self.answers || self.is_lost() {
                    continue;
                }
                let packet = self.forwarded(packet::build(&headers, &message), &route);
                let answer = self.deliver(&packet, route.spine);
                if self.probes.len() >= 1000 {
                    self.probes.pop_front();
                }
                self.probes.push_back(packet);
                if let Some(answer) = answer.filter(|_| !self.is_lost()) {
                    self.answering.push((now + self.delay, answer));
                }
            }
        }
    }

    /// The packet as the routers on the way leave it.
    fn forwarded(&self, mut packet: Vec<u8>, route: &Route) -> Vec<u8> {
        if self.ends.0.is_ipv6() {
            packet[14 + 7] -= 2;
            return packet;
        }
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

pub(crate) fn headers(ends: (IpAddr, IpAddr), port: u16, ttl: u8, records: bool) -> Headers {
    let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
    Headers { macs, ends, ports: (port, 4789), label: 0, ttl, records }
}
