//! Paths to a VTEP that answers no probes, over a simulated fabric whose routers limit their errors as
//! Linux does.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use path::PathId;
use pathmap::packet::Headers;
use pathmap::trace::packet::{self, Expired};
use pathmap::trace::{Tracer, Transmit};
use pathmap::{Key, Random};
use wire::MacAddr;

const STEP: Duration = Duration::from_millis(1);
/// The time from a packet to the error about it.
const DELAY: Duration = Duration::from_millis(3);

fn secret() -> Key {
    Key::new(&[1; 16]).unwrap()
}

/// A router's limit: six errors at once, and then one a second (net/ipv4/icmp.c, net/ipv6/icmp.c).
#[derive(Default)]
struct Limit {
    tokens: f64,
    at: Duration,
}

impl Limit {
    fn take(&mut self, now: Duration) -> bool {
        self.tokens = (self.tokens + (now - self.at).as_secs_f64()).min(6.0);
        self.at = now;
        let allowed = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(allowed));
        allowed
    }
}

/// The routers between two VTEPs: of each tier, one is passed, by the port.
struct Fabric {
    tracer: Tracer,
    now: Duration,
    /// Number of routers of each tier behind the first, which is the next hop.
    tiers: Vec<usize>,
    /// Distances at which no router answers.
    silent: BTreeSet<u8>,
    is_limited: bool,
    limits: BTreeMap<IpAddr, Limit>,
    is_ipv6: bool,
    /// Changes which router a port passes.
    seed: u64,
    waiting: Vec<(Duration, Expired)>,
    sent: usize,
}

impl Fabric {
    fn new(tiers: &[usize]) -> Self {
        Self {
            tracer: Tracer::new(secret(), Random::new(1)),
            now: Duration::from_secs(100),
            tiers: tiers.to_vec(),
            silent: BTreeSet::new(),
            is_limited: true,
            limits: BTreeMap::new(),
            is_ipv6: false,
            seed: 1,
            waiting: Vec::new(),
            sent: 0,
        }
    }

    fn router(&self, path: PathId, ttl: u8) -> Option<IpAddr> {
        let tier = usize::from(ttl) - 1;
        let number = match tier.checked_sub(1) {
            None => path.hop as usize,
            Some(behind) => {
                let words = [path.hop, u64::from(path.source_port), tier as u64];
                path::choose(path::hash::hash(self.seed, words), *self.tiers.get(behind)?)
            }
        };
        Some(self.address(ttl, number as u8 + 1))
    }

    /// An address of the fabric's family.
    fn address(&self, a: u8, b: u8) -> IpAddr {
        if self.is_ipv6 {
            Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, a.into(), b.into()).into()
        } else {
            Ipv4Addr::new(10, 9, a, b).into()
        }
    }

    /// The error of a router about a packet, both as bytes.
    fn error(&self, router: IpAddr, sent: Transmit) -> Expired {
        let Transmit { path, ttl, id } = sent;
        let headers = Headers {
            macs: (MacAddr([2; 6]), MacAddr([4; 6])),
            ends: (self.address(0, 1), self.address(0, 2)),
            ports: (path.source_port, 4789),
            label: path.source_port.into(),
            ttl,
            records: false,
        };
        let error = packet::parse(&packet::error(router, &packet::build(&headers, id))).unwrap();
        assert_eq!((error.router, error.ends), (router, headers.ends));
        error
    }

    fn take(&mut self, sent: Transmit) {
        self.sent += 1;
        let Transmit { path, ttl, .. } = sent;
        let Some(router) = self.router(path, ttl) else { return };
        let is_allowed = !self.is_limited || self.limits.entry(router).or_default().take(self.now);
        if is_allowed && !self.silent.contains(&ttl) {
            self.waiting.push((self.now + DELAY, self.error(router, sent)));
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            if self.tracer.next().is_some_and(|at| at <= self.now)
                && let Some(sent) = self.tracer.tick(self.now)
            {
                self.take(sent);
            }
            let (due, later) = self.waiting.iter().partition(|(at, _)| *at <= self.now);
            self.waiting = later;
            let due: Vec<(Duration, Expired)> = due;
            for (_, error) in due {
                assert!(self.tracer.expired(self.now, &error));
            }
        }
    }

    /// The time until all paths were traced, in seconds.
    fn trace(&mut self) -> f64 {
        let began = self.now;
        while !self.tracer.is_ready() {
            self.run(Duration::from_millis(10));
            assert!((self.now - began).as_secs() < 600, "it does not end");
        }
        (self.now - began).as_secs_f64()
    }

    /// Checks that each known path is that of the fabric.
    fn check(&self) {
        for (path, known) in self.tracer.known() {
            let tiers = (1..=known.routers).filter(|ttl| !self.silent.contains(ttl));
            let expected: Vec<IpAddr> = tiers.map(|ttl| self.router(path, ttl).unwrap()).collect();
            assert_eq!(known.traced.as_deref(), Some(expected.as_slice()), "{path:?}");
            assert_eq!(known.recorded, None);
            assert_eq!(known.is_complete(), self.silent.is_empty());
            assert_eq!(known.delay, DELAY);
        }
    }
}

fn paths(hops: u64, ports: u16) -> BTreeSet<PathId> {
    let of = |hop| (0..ports).map(move |port| PathId { hop, source_port: 50_000 + port * 7 });
    (0..hops).flat_map(of).collect()
}

#[test]
fn every_pair_is_known_although_routers_limit_their_errors() {
    let fabrics = [(2, vec![2], false), (2, vec![2, 2], false), (4, vec![4, 4], false)];
    for (hops, tiers, is_ipv6) in fabrics.into_iter().chain([(2, vec![2, 2], true)]) {
        let mut fabric = Fabric::new(&tiers);
        fabric.is_ipv6 = is_ipv6;
        fabric.tracer.set_paths(paths(hops, 64));
        let seconds = fabric.trace();
        println!("{hops} next hops, tiers of {tiers:?}: {seconds:.0} s");
        assert!(seconds < 120.0, "{seconds} s");
        assert_eq!(fabric.tracer.known().count(), hops as usize * 64);
        assert!(
            fabric.tracer.known().all(|(_, known)| usize::from(known.routers) == tiers.len() + 1)
        );
        fabric.check();
        // Afterwards one router is asked every half second.
        let sent = fabric.sent;
        fabric.run(Duration::from_secs(20));
        assert!((30..=41).contains(&(fabric.sent - sent)), "{} packets", fabric.sent - sent);
    }
}

#[test]
fn without_limits_it_takes_seconds() {
    let mut fabric = Fabric::new(&[2]);
    fabric.is_limited = false;
    fabric.tracer.set_paths(paths(2, 64));
    let seconds = fabric.trace();
    assert!(seconds < 6.0, "{seconds} s");
    fabric.check();
}

#[test]
fn routers_that_do_not_answer_are_left_out() {
    let mut fabric = Fabric::new(&[2, 4, 2]);
    fabric.is_limited = false;
    fabric.silent = [2, 3].into();
    fabric.tracer.set_paths(paths(2, 32));
    fabric.trace();
    assert_eq!(fabric.tracer.known().count(), 64);
    assert!(fabric.tracer.known().all(|(_, known)| known.routers == 4));
    fabric.check();
}

#[test]
fn without_any_answer_nothing_is_known_until_there_is_one() {
    let mut fabric = Fabric::new(&[2]);
    fabric.is_limited = false;
    fabric.silent = (1..=16).collect();
    fabric.tracer.set_paths(paths(2, 64));
    let seconds = fabric.trace();
    assert!(seconds < 10.0 && fabric.tracer.known().next().is_none(), "{seconds} s");
    let sent = fabric.sent;
    fabric.run(Duration::from_secs(25));
    // Only a few paths of each next hop are tried.
    assert!(fabric.sent - sent <= 2 * 4 * 3 * 4, "{} packets", fabric.sent - sent);
    fabric.silent.clear();
    fabric.run(Duration::from_secs(45));
    assert_eq!(fabric.tracer.known().count(), 128);
    fabric.check();
}

#[test]
fn paths_that_change_are_found_and_all_are_traced_again() {
    let mut fabric = Fabric::new(&[4]);
    fabric.is_limited = false;
    fabric.tracer.set_paths(paths(2, 64));
    fabric.trace();
    fabric.run(Duration::from_secs(15));
    let version = fabric.tracer.version();
    fabric.run(Duration::from_secs(15));
    assert_eq!(fabric.tracer.version(), version, "nothing has changed");
    fabric.seed = 2;
    fabric.run(Duration::from_secs(20));
    assert!(fabric.tracer.version().number() > version.number());
    assert_eq!(fabric.tracer.known().count(), 128);
    fabric.check();
}

#[test]
fn pairs_come_and_go() {
    let mut fabric = Fabric::new(&[2]);
    fabric.is_limited = false;
    fabric.tracer.set_paths(paths(1, 8));
    fabric.trace();
    // Another port of the known next hop, and another next hop.
    let mut more = paths(2, 9);
    fabric.tracer.set_paths(more.clone());
    fabric.run(Duration::from_secs(8));
    assert_eq!(fabric.tracer.known().count(), 18);
    fabric.check();
    more.retain(|path| path.hop == 1);
    fabric.tracer.set_paths(more);
    assert!(
        fabric.tracer.known().count() == 9 && fabric.tracer.known().all(|(path, _)| path.hop == 1)
    );
    // While paths are traced, they go.
    fabric.tracer.set_paths(paths(3, 64));
    fabric.run(Duration::from_millis(100));
    fabric.tracer.set_paths(paths(2, 4));
    fabric.waiting.clear();
    fabric.run(Duration::from_secs(8));
    assert_eq!(fabric.tracer.known().count(), 8);
    fabric.check();
}

#[test]
fn errors_that_fit_no_packet_are_refused() {
    let mut tracer = Tracer::new(secret(), Random::new(3));
    tracer.set_paths(paths(1, 4));
    let now = Duration::from_secs(1);
    let sent = tracer.tick(now).unwrap();
    let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let right = Expired {
        router: [10, 9, 1, 1].into(),
        ends,
        ports: (sent.path.source_port, 4789),
        id: sent.id,
    };
    assert!(!tracer.expired(now, &Expired { id: sent.id.wrapping_add(1), ..right }));
    assert!(!tracer.expired(now, &Expired { ports: (sent.path.source_port + 1, 4789), ..right }));
    assert!(tracer.expired(now, &right));
    // Only the first one counts.
    assert!(!tracer.expired(now, &right));
    assert_eq!(tracer.counts, [1, 1]);
}

/// Who has guessed the numbers of a generator, or seen some, cannot tell the next identification.
#[test]
fn identifications_follow_from_the_secret() {
    let ids = |secret: &[u8]| {
        let mut tracer = Tracer::new(Key::new(secret).unwrap(), Random::new(3));
        tracer.set_paths(paths(1, 8));
        let ids = (1..5).map(|second| tracer.tick(Duration::from_secs(second)).unwrap().id);
        ids.collect::<Vec<_>>()
    };
    assert_ne!(ids(&[1; 16]), ids(&[2; 16]));
}
