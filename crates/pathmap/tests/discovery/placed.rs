//! Queue pairs on the paths that a prober finds, with a peer that lies and routers that remember.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use path::{CounterId, PathId, Version};
use pathmap::load::Link;
use pathmap::message::LinkLoad;
use pathmap::message::connection::{FlowReport, MOST_FLOWS};
use pathmap::placer::{FlowId, Found, Options, Reading, Target};
use pathmap::prober::Settings;
use pathmap::{Placer, Prober, Random, Report, Way, balance};
use wire::QueuePair;
use wire::roce::source_port;

use crate::fabric::{A, B, Fabric, Route};
use crate::ms;

const TARGET: Target = Target { local: A, address: B, port: 4789, by_kernel: false };
const HOSTS: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));

/// A leaf with queue pairs, as the probing thread of vtepd drives it.
struct Placed {
    fabric: Fabric,
    placer: Placer,
    flows: u32,
    readings: HashMap<CounterId, Reading>,
    version: Version<Prober>,
}

fn queue_pair(number: u32) -> QueuePair {
    QueuePair::try_from(number).unwrap()
}

/// The queue pair of the other direction.
fn other(number: u32) -> QueuePair {
    queue_pair(0x10_000 + number * 37)
}

fn id(number: u32) -> FlowId {
    let (source, destination) = HOSTS;
    let key = path::Key::QueuePair { source, destination, queue_pair: queue_pair(number) };
    FlowId { vni: 10, key, target: TARGET }
}

fn port(number: u32) -> u16 {
    source_port(queue_pair(number), other(number))
}

impl Placed {
    fn new(spines: u32, flows: u32, seed: u64, interval: u64) -> Self {
        let settings = Settings { interval: ms(interval), ..Settings::default() };
        let options = Options { settle: ms(2 * interval + 20), ..Options::default() };
        Self {
            fabric: Fabric::new(4, spines, seed, settings),
            placer: Placer::new(options, Random::new(seed)),
            flows,
            readings: HashMap::new(),
            version: Version::NONE,
        }
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.step();
        }
    }

    fn step(&mut self) {
        self.fabric.run(ms(1));
        let now = self.fabric.now;
        for report in std::mem::take(&mut self.fabric.reports) {
            self.placer.report(TARGET, &report, now);
        }
        if self.fabric.prober.is_ready() && self.fabric.prober.version() != self.version {
            self.version = self.fabric.prober.version();
            self.update();
        }
        if now.as_millis().is_multiple_of(10) {
            self.tick();
        }
        let used = self.placer.used(TARGET);
        self.fabric.prober.set_used(now, used);
        self.fabric.prober.set_eager(now, self.placer.wants_reports(now));
    }

    fn update(&mut self) {
        let found = |(path, known): (PathId, &pathmap::prober::Known)| {
            let recorded = known.recorded.clone();
            let routers = recorded.iter().flat_map(|addresses| addresses.iter().copied());
            let links = std::iter::once(Link::Uplink(path.hop)).chain(routers.map(Link::Router));
            let (uplink, arrival) = (path.hop as u32, known.arrival);
            let way = Way { uplink, arrival, routers: known.routers, recorded: recorded.clone() };
            Found { path, links: links.collect(), way, delay: known.delay }
        };
        let found: Vec<Found> = self.fabric.prober.placeable().map(found).collect();
        let lost: BTreeSet<PathId> = self.fabric.prober.lost().collect();
        let weights = (0..4).map(|hop| (hop, 1)).collect();
        self.placer.update(TARGET, &weights, &found, &lost);
    }

    /// Every queue pair sends and has a pause.
    fn tick(&mut self) {
        let now = self.fabric.now;
        if self.fabric.prober.is_ready() {
            for number in 1..=self.flows {
                let hashed = PathId { hop: 0, source_port: 1 };
                let last = Some(now.saturating_sub(ms(8)));
                let read = |_: CounterId| Reading { last, ..Reading::default() };
                let placed = self.placer.place(id(number), port(number), hashed, read, now);
                let reading = self.readings.entry(placed.unwrap().counter).or_default();
                reading.bytes += 10_000;
                reading.frames += 1;
                reading.last = last;
            }
        }
        let readings = &self.readings;
        self.placer.tick(|counter| readings.get(&counter).copied().unwrap_or_default(), now);
    }

    /// The number of queue pairs on each path of uplink and spine.
    fn spread(&self) -> BTreeMap<(u64, u32), usize> {
        let mut spread = BTreeMap::new();
        for number in 1..=self.flows {
            let path = self.placer.peek(&id(number)).unwrap().path;
            let Route { uplink, spine, .. } = self.fabric.route(path);
            *spread.entry((uplink, spine)).or_default() += 1;
        }
        spread
    }

    fn is_at_floor(&self) -> bool {
        let loads: Vec<f64> = self.spread().values().map(|number| *number as f64).collect();
        let links = 4 * self.fabric.spines as usize;
        loads.len() == links && balance::mmr(&loads) <= balance::floor(self.flows as usize, links)
    }

    /// What a peer reports that wants queue pairs on the path by this uplink and spine: the other
    /// direction of each leads and takes this path, its links are empty and all others full.
    fn lie(&mut self, (uplink, spine): (u64, u32), random: &mut Random) {
        let flow = |number: u32| {
            let recorded: Option<_> =
                Some([Ipv4Addr::from_bits(0x0a02_0000 + spine), middle(uplink, spine)].into());
            let way = Way { uplink: spine, arrival: uplink as u32, routers: 2, recorded };
            FlowReport {
                vni: 10,
                hosts: (HOSTS.1, HOSTS.0),
                queue_pair: other(number),
                port: port(number),
                kilobytes: u32::MAX,
                way: Some(way),
            }
        };
        let load = |link| LinkLoad { link, kilobytes: u32::MAX };
        let all = (0..4).flat_map(|hop| (0..4).map(move |spine| (hop, spine)));
        let others = all.filter(|at| *at != (uplink, spine));
        let real = others.map(|(hop, spine)| load(middle(hop, spine)));
        let invented = (0..40).map(|_| random.next() as u32 | 0x8000_0000);
        let loads = real.chain(invented.map(|link| load(Ipv4Addr::from_bits(link)))).collect();
        let first = random.index(self.flows as usize) as u32;
        let numbers = (0..MOST_FLOWS as u32).map(|n| (first + n) % self.flows + 1);
        let gain = if random.index(2) == 0 { 0 } else { u32::MAX };
        let (flows, handshakes) = (numbers.map(flow).collect(), Vec::new());
        self.fabric.report = Report { gain, loads, flows, handshakes };
    }
}

fn middle(hop: u64, spine: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a01_0000 + hop as u32 * 256 + spine)
}

/// Whatever a peer reports of loads, claims and connections, queue pairs leave a dead path as soon as
/// without it, and do not come back.
#[test]
fn a_peer_that_lies_moves_nothing_to_a_dead_path() {
    let dead = (1, 1);
    for (seed, lies) in [(1, false), (1, true), (2, true), (3, true)] {
        let mut placed = Placed::new(4, 16, seed, 10);
        let mut random = Random::new(seed);
        placed.run(1000);
        for _ in 0..3000 {
            if lies {
                placed.lie(dead, &mut random);
            }
            placed.step();
        }
        let on_dead = |placed: &Placed| placed.spread().get(&dead).copied().unwrap_or(0);
        assert!(on_dead(&placed) >= if lies { 10 } else { 1 }, "{:?}", placed.spread());
        placed.fabric.dead.insert(dead);
        let mut gone_after = None;
        for after in 1..2000 {
            if lies {
                placed.lie(dead, &mut random);
            }
            placed.step();
            match gone_after {
                None if on_dead(&placed) == 0 => gone_after = Some(after),
                None => {}
                Some(_) => assert_eq!(on_dead(&placed), 0, "seed {seed}, after {after} ms"),
            }
        }
        assert!(gone_after.is_some_and(|after| after <= 40), "seed {seed}: {gone_after:?}");
        assert!(placed.placer.reported() <= 4096, "{}", placed.placer.reported());
    }
}

/// A path that was dead answers plain probes before it is known what its routers record. It takes part
/// in the balance with all its links, so no queue pair moves to it and back.
#[test]
fn queue_pairs_move_once_to_a_path_that_returns() {
    for seed in 0..20 {
        let mut placed = Placed::new(1, 32, seed, 10);
        placed.run(3000);
        assert!(placed.is_at_floor(), "seed {seed}: {:?}", placed.spread());
        placed.fabric.dead.insert((1, 0));
        placed.run(3000);
        assert!(!placed.spread().contains_key(&(1, 0)), "seed {seed}: {:?}", placed.spread());
        let moves = |placed: &Placed| -> Vec<u32> {
            (1..=placed.flows)
                .map(|number| placed.placer.flow(&id(number)).unwrap().moves)
                .collect()
        };
        let before = moves(&placed);
        placed.fabric.dead.clear();
        placed.run(6000);
        assert!(placed.is_at_floor(), "seed {seed}: {:?}", placed.spread());
        let moved: Vec<u32> =
            moves(&placed).iter().zip(before).map(|(now, was)| now - was).collect();
        assert!(moved.iter().all(|moves| *moves <= 1), "seed {seed}: {moved:?}");
        assert_eq!(moved.iter().sum::<u32>(), placed.flows / 4, "seed {seed}: {moved:?}");
    }
}

/// A router takes a link out of a resilient next-hop group, and uses it again later. Ports that were
/// probed meanwhile stay on other links, so that only fresh ones lead over it.
#[test]
fn fresh_ports_lead_over_a_link_that_returns_to_a_resilient_group() {
    for seed in 0..5 {
        let mut placed = Placed::new(2, 32, seed, 50);
        placed.run(4000);
        assert!(placed.is_at_floor(), "seed {seed}: {:?}", placed.spread());
        placed.fabric.down.insert((2, 1));
        placed.run(30_000);
        assert!(!placed.spread().contains_key(&(2, 1)), "seed {seed}: {:?}", placed.spread());
        let old: BTreeSet<PathId> = placed.fabric.prober.paths().collect();
        placed.fabric.down.clear();
        placed.run(4000);
        assert!(placed.is_at_floor(), "seed {seed}: {:?}", placed.spread());
        for number in 1..=placed.flows {
            let path = placed.placer.peek(&id(number)).unwrap().path;
            let Route { uplink, spine, .. } = placed.fabric.route(path);
            assert!((uplink, spine) != (2, 1) || !old.contains(&path), "an old port");
        }
    }
}
