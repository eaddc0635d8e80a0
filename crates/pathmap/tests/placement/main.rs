//! Placement of queue pairs in simulated fabrics: integer floor, unequal flows, dead paths, and
//! leaves that share a tier.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use path::record::Counts;
use path::{CounterId, Key, PathId};
use pathmap::balance;
use pathmap::load::Link;
use pathmap::message::LinkLoad;
use pathmap::placer::{FlowId, Found, Moves, Options, Reading, Target};
use pathmap::{Placer, Random, Report, Way};
use wire::QueuePair;

mod by_kernel;
mod crowded;
mod even;
mod pauses;
mod shared;
mod sprayed;

const TICK: Duration = Duration::from_millis(50);

/// A leaf that sends queue pairs to one other leaf, each at a rate in 1000 bytes a second.
struct Leaf {
    target: Target,
    placer: Placer,
    rates: BTreeMap<u32, u64>,
    readings: HashMap<CounterId, Reading>,
    moved: u64,
    /// Makes what is measured differ from the rates by up to a twentieth.
    noise: Option<Random>,
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + number).into()
}

fn id(target: Target, number: u32) -> FlowId {
    let (source, destination) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
    let queue_pair = QueuePair::try_from(number).unwrap();
    FlowId { vni: 10, key: Key::QueuePair { source, destination, queue_pair }, target }
}

impl Leaf {
    fn new(number: u32, seed: u64, options: Options) -> Self {
        let target = Target {
            local: address(number),
            address: address(1000 + number),
            port: 4789,
            by_kernel: false,
        };
        Self {
            target,
            placer: Placer::new(options, Random::new(seed)),
            rates: BTreeMap::new(),
            readings: HashMap::new(),
            moved: 0,
            noise: None,
        }
    }

    fn know(&mut self, paths: &[Found], lost: &BTreeSet<PathId>) {
        let weights = paths.iter().map(|path| (path.path.hop, 1)).collect();
        self.placer.update(self.target, &weights, paths, lost);
    }

    /// Sends a frame of a queue pair, and returns its path.
    fn send(&mut self, number: u32, rate: u64, now: Duration) -> PathId {
        self.rates.insert(number, rate);
        let hashed = PathId { hop: 0, source_port: 1 };
        let last = Some(now.saturating_sub(Duration::from_millis(5)));
        let read = |_: CounterId| Reading { last, ..Reading::default() };
        self.placer.place(id(self.target, number), 0, hashed, read, now).unwrap().path
    }

    /// Lets a tick pass, in which every queue pair sends and has a pause.
    fn tick(&mut self, now: Duration) {
        for (number, rate) in self.rates.clone() {
            let counter = self.placer.peek(&id(self.target, number)).unwrap().counter;
            let reading = self.readings.entry(counter).or_default();
            let share = self.noise.as_mut().map_or(1000, |noise| 950 + noise.index(101) as u64);
            reading.bytes += rate * TICK.as_millis() as u64 * share / 1000;
            reading.frames += 1;
            reading.last = Some(now.saturating_sub(Duration::from_millis(5)));
        }
        let readings = &self.readings;
        self.placer.tick(|counter| readings.get(&counter).copied().unwrap_or_default(), now);
        let before = self.placer.counts.moved_balance;
        for (number, rate) in self.rates.clone() {
            self.send(number, rate, now);
        }
        self.moved += self.placer.counts.moved_balance - before;
    }

    /// The number of queue pairs that programs may forward.
    fn settled(&self, now: Duration) -> usize {
        let counters = self.placer.counters();
        counters.filter(|counter| self.placer.settled(*counter, |_| None, now).is_some()).count()
    }

    /// Adds the load that the queue pairs put on each link.
    fn add_loads(&self, loads: &mut BTreeMap<Link, f64>) {
        for (number, rate) in &self.rates {
            let path = self.placer.peek(&id(self.target, *number)).unwrap().path;
            for link in self.placer.links(self.target, path) {
                *loads.entry(link).or_default() += *rate as f64;
            }
        }
    }

    fn loads(&self) -> BTreeMap<Link, f64> {
        let mut loads = BTreeMap::new();
        self.add_loads(&mut loads);
        loads
    }
}

/// Paths by every uplink of a leaf to every arrival uplink of the other, with a link each between.
fn mesh(leaf: u32, uplinks: u32, arrivals: u32) -> Vec<Found> {
    let path = |up: u32, down: u32| Found {
        path: PathId { hop: u64::from(up), source_port: 50_000 + (up * arrivals + down) as u16 },
        links: vec![
            Link::Uplink(u64::from(up)),
            Link::Router(Ipv4Addr::from_bits(0x0b00_0000 + up * 64 + down)),
            Link::Router(Ipv4Addr::from_bits(0x0c00_0000 + leaf * 64 + down)),
        ],
        way: Way::default(),
        delay: Duration::from_millis(1),
    };
    (0..uplinks).flat_map(|up| (0..arrivals).map(move |down| path(up, down))).collect()
}

/// The loads of the links of each tier; links without load count.
fn tiers(paths: &[Found], loads: &BTreeMap<Link, f64>) -> Vec<Vec<f64>> {
    let tier = |tier: usize| {
        let links: BTreeSet<Link> = paths.iter().map(|path| path.links[tier]).collect();
        links.iter().map(|link| loads.get(link).copied().unwrap_or(0.0)).collect()
    };
    (0..paths[0].links.len()).map(tier).collect()
}

#[test]
fn a_dead_path_moves_only_its_queue_pairs_and_its_return_moves_each_once() {
    let paths = mesh(1, 4, 4);
    let mut leaf = Leaf::new(1, 3, Options::default());
    leaf.know(&paths, &BTreeSet::new());
    let mut now = Duration::from_secs(1);
    (1..=32).for_each(|n| _ = leaf.send(n, 1000, now));
    let before: BTreeMap<u32, PathId> = (1..=32).map(|n| (n, leaf.send(n, 1000, now))).collect();
    let dead = paths[5].path;
    let alive: Vec<Found> = paths.iter().filter(|path| path.path != dead).cloned().collect();
    let version = leaf.placer.version();
    leaf.know(&alive, &BTreeSet::from([dead]));
    assert_ne!(leaf.placer.version(), version, "workers must ask again");
    for n in 1..=32 {
        let path = leaf.send(n, 1000, now);
        assert!(path != dead && (path == before[&n] || before[&n] == dead), "{n}");
    }
    assert_eq!(leaf.placer.counts.moved_dead, 2);
    (0..20).for_each(|_| {
        now += TICK;
        leaf.tick(now);
    });
    leaf.know(&paths, &BTreeSet::new());
    let moves = |leaf: &Leaf| {
        leaf.placer.flows().map(|(id, flow)| (*id, flow.moves)).collect::<HashMap<_, _>>()
    };
    let before = moves(&leaf);
    (0..40).for_each(|_| {
        now += TICK;
        leaf.tick(now);
    });
    for loads in tiers(&paths, &leaf.loads()) {
        assert_eq!(balance::mmr(&loads), balance::floor(32, loads.len()), "{loads:?}");
    }
    assert!(moves(&leaf).iter().all(|(id, moves)| moves - before[id] <= 1));
}

/// A peer wants to move more than anybody, and tells other loads each time, but never moves. In
/// between it says that it wants nothing.
#[test]
fn a_peer_whose_claim_comes_and_goes_delays_moves_for_three_seconds() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    let start = Duration::from_secs(1);
    (1..=32).for_each(|n| assert_eq!(leaf.send(n, 1000, start).source_port, 1));
    let mut paths = mesh(1, 4, 4);
    paths.push(Found { path: PathId { hop: 0, source_port: 1 }, ..paths[0].clone() });
    leaf.know(&paths, &BTreeSet::new());
    let liar = Target { address: address(7), ..leaf.target };
    let Link::Router(link) = paths[9].links[1] else { panic!() };
    let mut moved = Vec::new();
    for tick in 0..200 {
        let now = start + TICK * tick;
        let loads = vec![LinkLoad { link, kilobytes: 500 * (tick % 2) }];
        for gain in [0, u32::MAX] {
            let report = Report { gain, loads: loads.clone(), ..Report::default() };
            leaf.placer.report(liar, &report, now);
        }
        let before = leaf.moved;
        leaf.tick(now);
        moved.extend((leaf.moved > before).then_some(TICK * tick));
    }
    let (first, last) = (moved[0], moved[moved.len() - 1]);
    assert!(first >= Duration::from_secs(2) && last < Duration::from_secs(5), "{moved:?}");
    let uplinks = &tiers(&paths, &leaf.loads())[0];
    assert_eq!(balance::mmr(uplinks), 1.0, "{uplinks:?}");
}

#[test]
fn a_full_table_leaves_the_rest_to_the_hash_and_idle_ones_make_room() {
    let options = Options { most: 10, idle: Duration::from_secs(5), ..Options::default() };
    let mut leaf = Leaf::new(1, 1, options);
    leaf.know(&mesh(1, 2, 2), &BTreeSet::new());
    let (now, hashed) = (Duration::from_secs(1), PathId { hop: 0, source_port: 1 });
    let place = |leaf: &mut Leaf, n: u32, now| {
        leaf.placer.place(id(leaf.target, n), 0, hashed, |_| Reading::default(), now)
    };
    let placed = (1..=15).filter(|n| place(&mut leaf, *n, now).is_some()).count();
    assert_eq!((placed, leaf.placer.counts.beyond), (10, [5, 0, 0, 0, 0]));
    assert!(leaf.placer.flows().all(|(_, flow)| (1..=10).contains(&flow.counter.get())));
    for tick in 0..60 {
        leaf.placer.tick(|_| Reading::default(), now + TICK * tick);
    }
    assert_eq!((leaf.placer.flows().count(), leaf.placer.counts.forgotten), (0, 10));
    let later = now + TICK * 60;
    assert!(place(&mut leaf, 15, later).is_some(), "{:?}", leaf.placer.counts.beyond);
}

#[test]
fn queue_pairs_that_were_hashed_move_after_a_gap_or_never() {
    for (moves, expected) in [(Moves::AfterPause, 32), (Moves::Never, 0)] {
        let mut leaf = Leaf::new(1, 1, Options { moves, ..Options::default() });
        let mut now = Duration::from_secs(1);
        (1..=32).for_each(|n| assert_eq!(leaf.send(n, 1000, now).source_port, 1));
        let mut paths = mesh(1, 4, 4);
        // The port of the hash was probed too.
        paths.push(Found { path: PathId { hop: 0, source_port: 1 }, ..paths[0].clone() });
        leaf.know(&paths, &BTreeSet::new());
        (0..60).for_each(|_| {
            now += TICK;
            leaf.tick(now);
        });
        let moved = leaf.placer.flows().filter(|(_, flow)| flow.path.source_port != 1).count();
        assert!(moved <= expected && moved >= expected.saturating_sub(2), "{moved}");
        if moves == Moves::AfterPause {
            for loads in tiers(&paths, &leaf.loads()) {
                assert_eq!(balance::mmr(&loads), balance::floor(32, loads.len()), "{loads:?}");
            }
        }
    }
}

/// An answer that waited for a processor makes the delay of its path look long. Other paths with the
/// same links show that it is not. Where links are unknown, paths may differ.
#[test]
fn a_late_answer_does_not_keep_queue_pairs_from_moving() {
    let late = Duration::from_millis(50);
    for (are_known, expected) in [(true, 24..=24), (false, 0..=0)] {
        let mut leaf = Leaf::new(1, 1, Options::default());
        let mut now = Duration::from_secs(1);
        (1..=32).for_each(|n| assert_eq!(leaf.send(n, 1000, now).source_port, 1));
        let mut paths = mesh(1, 2, 2);
        paths.push(Found {
            path: PathId { hop: 0, source_port: 1 },
            delay: late,
            ..paths[0].clone()
        });
        if !are_known {
            for path in &mut paths {
                path.links =
                    vec![path.links[0], Link::Arrival(address(1001), path.path.source_port.into())];
            }
        }
        leaf.know(&paths, &BTreeSet::new());
        (0..60).for_each(|_| {
            now += TICK;
            leaf.tick(now);
        });
        let moved = leaf.placer.flows().filter(|(_, flow)| flow.path.source_port != 1).count();
        assert!(expected.contains(&moved), "{moved}");
    }
}

/// The first answer has waited, and later ones have not. No route has changed.
#[test]
fn a_delay_that_becomes_shorter_lets_queue_pairs_move() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    let mut now = Duration::from_secs(1);
    (1..=32).for_each(|n| assert_eq!(leaf.send(n, 1000, now).source_port, 1));
    let mut paths = mesh(1, 2, 2);
    let late = Duration::from_millis(50);
    paths.push(Found { path: PathId { hop: 0, source_port: 1 }, delay: late, ..paths[0].clone() });
    for path in &mut paths {
        path.links =
            vec![path.links[0], Link::Arrival(address(1001), path.path.source_port.into())];
    }
    leaf.know(&paths, &BTreeSet::new());
    let mut moved = |leaf: &mut Leaf| {
        (0..60).for_each(|_| {
            now += TICK;
            leaf.tick(now);
        });
        leaf.placer.flows().filter(|(_, flow)| flow.path.source_port != 1).count()
    };
    assert_eq!(moved(&mut leaf), 0);
    let delays = paths.iter().map(|path| (path.path, paths[0].delay));
    leaf.placer.set_delays(leaf.target, delays);
    let moved = moved(&mut leaf);
    assert!(moved >= 16, "{moved}");
}

#[test]
fn a_queue_pair_without_a_gap_stays_where_it_is() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    let start = Duration::from_secs(1);
    let hashed = PathId { hop: 0, source_port: 1 };
    let busy = |n: u32, leaf: &mut Leaf, now: Duration| {
        let read = |_: CounterId| Reading { last: Some(now), ..Reading::default() };
        leaf.placer.place(id(leaf.target, n), 0, hashed, read, now).unwrap().path
    };
    (1..=8).for_each(|n| _ = busy(n, &mut leaf, start));
    let mut paths = mesh(1, 2, 2);
    paths.push(Found { path: hashed, ..paths[0].clone() });
    leaf.know(&paths, &BTreeSet::new());
    for tick in 0..60 {
        let now = start + TICK * tick;
        leaf.placer.tick(|_| Reading { last: Some(now), ..Reading::default() }, now);
        (1..=8).for_each(|n| assert_eq!(busy(n, &mut leaf, now), hashed));
    }
}

/// The counter has counts of a former owner, of which two frames were not recorded.
#[test]
fn figures_are_those_since_the_placement_and_say_whether_they_are_exact() {
    let mut leaf = Leaf::new(1, 1, Options::default());
    let (start, hashed) = (Duration::from_secs(1), PathId { hop: 0, source_port: 1 });
    let reading = |frames: u64, recorded: u64, gaps| Reading {
        frames,
        bytes: frames * 100,
        recorded: recorded as u32,
        counts: Counts { gaps, ..Counts::default() },
        ..Reading::default()
    };
    let before = 1 << 32;
    let read = |_: CounterId| reading(before + 1, before - 1, 7);
    leaf.placer.place(id(leaf.target, 1), 0, hashed, read, start).unwrap();
    // Frames that were recorded after the number of frames was read change nothing, and neither does
    // that the number of recorded frames is one of 32 bits. What was not exact once stays so.
    for (number, (frames, recorded, gaps, is_exact)) in
        (1..).zip([(6, 4, 8, true), (9, 8, 9, true), (20, 17, 9, false), (30, 28, 9, false)])
    {
        let now = start + Duration::from_secs(number);
        leaf.placer.tick(|_| reading(before + frames, before + recorded, gaps), now);
        let (_, flow) = leaf.placer.flows().next().unwrap();
        assert_eq!((flow.frames, flow.bytes), (frames - 1, (frames - 1) * 100));
        assert_eq!((flow.counts.gaps, flow.is_exact), (gaps - 7, is_exact), "{frames} frames");
    }
}
