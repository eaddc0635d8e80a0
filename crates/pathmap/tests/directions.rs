//! Both directions of connections in a simulated fabric: which queue pairs belong together, and
//! whether their paths use the same links.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use path::{CounterId, Key, PathId};
use pathmap::cm::Event;
use pathmap::load::Link;
use pathmap::message::connection::{FlowReport, Handshake};
use pathmap::pairing::{Channel, Pairing};
use pathmap::placer::{FlowId, Found, Moves, Options, Reading, Target};
use pathmap::{Common, Placer, Random, Way};
use proptest::prelude::*;
use wire::QueuePair;
use wire::roce::source_port;

const TICK: Duration = Duration::from_millis(50);
const UPLINKS: u32 = 4;
const A: Target = Target {
    local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    port: 4789,
    by_kernel: false,
};
const B: Target = Target { local: A.address, address: A.local, port: 4789, by_kernel: false };
const HOSTS: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));

fn queue_pair(number: u32) -> QueuePair {
    QueuePair::try_from(number & QueuePair::MAX).unwrap()
}

/// A leaf, and the rate of each of its queue pairs with its inner source port.
struct Leaf {
    target: Target,
    hosts: (IpAddr, IpAddr),
    placer: Placer,
    flows: BTreeMap<QueuePair, (u64, u16)>,
    readings: HashMap<CounterId, Reading>,
}

impl Leaf {
    fn id(&self, queue_pair: QueuePair) -> FlowId {
        let (source, destination) = self.hosts;
        FlowId {
            vni: 10,
            key: Key::QueuePair { source, destination, queue_pair },
            target: self.target,
        }
    }

    fn send(&mut self, of: QueuePair, rate: u64, port: u16, now: Duration) {
        self.flows.insert(of, (rate, port));
        let (id, hashed) = (self.id(of), PathId { hop: 0, source_port: 1 });
        let last = Some(now.saturating_sub(Duration::from_millis(5)));
        let read = |_: CounterId| Reading { last, ..Reading::default() };
        self.placer.place(id, port, hashed, read, now).unwrap();
    }

    /// Every queue pair sends and has a pause.
    fn tick(&mut self, now: Duration) {
        for (of, (rate, _)) in &self.flows {
            let counter = self.placer.peek(&self.id(*of)).unwrap().counter;
            let reading = self.readings.entry(counter).or_default();
            reading.bytes += rate * TICK.as_millis() as u64;
            reading.frames += 1;
            reading.last = Some(now.saturating_sub(Duration::from_millis(5)));
        }
        let readings = &self.readings;
        self.placer.tick(|counter| readings.get(&counter).copied().unwrap_or_default(), now);
        for (of, (rate, port)) in self.flows.clone() {
            self.send(of, rate, port, now);
        }
    }

    fn path(&self, of: QueuePair) -> PathId {
        self.placer.peek(&self.id(of)).unwrap().path
    }

    fn same_links(&self, of: QueuePair) -> Option<bool> {
        let (_, flow) = self.placer.flows().find(|(id, _)| **id == self.id(of)).unwrap();
        flow.partner.and_then(|partner| partner.same_links)
    }

    fn moves(&self) -> u32 {
        self.placer.flows().map(|(_, flow)| flow.moves).sum()
    }
}

/// Two leaves with connections over a mesh: each uplink leads to a router, each of which has a link
/// to each router of the other side.
struct Fabric {
    a: Leaf,
    b: Leaf,
    now: Duration,
    /// Queue pair of the host behind `a`, and of that behind `b`.
    connections: Vec<(QueuePair, QueuePair)>,
    lose: usize,
    random: Random,
}

/// The way by the link between two routers. `side` is 0 from `a` to `b`.
fn way(side: u32, here: u32, there: u32) -> Way {
    let (a, b) = if side == 0 { (here, there) } else { (there, here) };
    let middle = Ipv4Addr::from_bits(0x0a02_0000 + (a * UPLINKS + b) * 2 + side);
    let last = Ipv4Addr::from_bits(0x0a01_0000 + side * 256 + there * 2);
    let (uplink, arrival) = (side * 10 + here, (1 - side) * 10 + there);
    Way { uplink, arrival, routers: 2, recorded: Some([middle, last].into()) }
}

/// The paths of one side. Ports mean something else on each side.
fn paths(side: u32) -> Vec<Found> {
    let path = |here: u32, there: u32| {
        let way = way(side, here, there);
        let routers = way.recorded.iter().flat_map(|recorded| recorded.iter());
        let links =
            std::iter::once(Link::Uplink(here.into())).chain(routers.copied().map(Link::Router));
        let port = 50_000 + (here * UPLINKS + there) * (side * 2 + 1);
        let path = PathId { hop: here.into(), source_port: port as u16 };
        Found { path, links: links.collect(), way, delay: Duration::from_millis(1) }
    };
    (0..UPLINKS).flat_map(|here| (0..UPLINKS).map(move |there| path(here, there))).collect()
}

impl Fabric {
    fn new(seed: u64, options: Options) -> Self {
        let leaf = |target, hosts, seed| Leaf {
            target,
            hosts,
            placer: Placer::new(options, Random::new(seed)),
            flows: BTreeMap::new(),
            readings: HashMap::new(),
        };
        let (source, destination) = HOSTS;
        let mut fabric = Self {
            a: leaf(A, HOSTS, seed),
            b: leaf(B, (destination, source), seed + 1000),
            now: Duration::from_secs(1),
            connections: Vec::new(),
            lose: usize::MAX,
            random: Random::new(seed + 2000),
        };
        fabric.know(&[]);
        fabric
    }

    /// Both leaves know all paths but those by the dead links between routers.
    fn know(&mut self, dead: &[(u32, u32)]) {
        for (side, leaf) in [(0, &mut self.a), (1, &mut self.b)] {
            let is_dead = |path: &Found| {
                let dead = dead.iter().map(|(a, b)| if side == 0 { (a, b) } else { (b, a) });
                dead.into_iter().any(|(here, there)| path.way == way(side, *here, *there))
            };
            let (lost, found): (Vec<Found>, Vec<Found>) =
                paths(side).into_iter().partition(is_dead);
            let lost: BTreeSet<PathId> = lost.into_iter().map(|path| path.path).collect();
            let weights = (0..UPLINKS).map(|hop| (hop.into(), 1)).collect();
            leaf.placer.update(leaf.target, &weights, &found, &lost);
        }
    }

    /// Begins a connection. `rates` are those of the host behind `a` and of that behind `b`.
    fn connect(&mut self, port: Option<u16>, rates: (u64, u64)) {
        let mut draw = || queue_pair(2 + (self.random.next() >> 40) as u32);
        let (of_a, of_b) = (draw(), draw());
        let port = port.unwrap_or_else(|| source_port(of_a, of_b));
        self.connections.push((of_a, of_b));
        self.a.send(of_b, rates.0, port, self.now);
        self.b.send(of_a, rates.1, port, self.now);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            let now = self.now;
            self.a.tick(now);
            self.b.tick(now);
            // Several probes are answered in each interval.
            for part in 0..8 {
                let report = self.b.placer.to_report(B, part, now);
                if self.random.index(self.lose) > 0 {
                    self.a.placer.report(A, &report, now);
                }
                let report = self.a.placer.to_report(A, part, now);
                if self.random.index(self.lose) > 0 {
                    self.b.placer.report(B, &report, now);
                }
            }
        }
    }

    /// The connections whose directions use the same links, by the fabric's own word.
    fn on_same_links(&self) -> usize {
        let of = |leaf: &Leaf, side, of| {
            let path = leaf.path(of);
            paths(side).into_iter().find(|found| found.path == path).unwrap().way
        };
        let same = |(of_a, of_b): &&(QueuePair, QueuePair)| {
            of(&self.a, 0, *of_b).common(&of(&self.b, 1, *of_a), false) == Common::Links
        };
        self.connections.iter().filter(same).count()
    }

    /// Maximum over mean of each tier, divided by its integer floor.
    fn above_floor(&self) -> Vec<f64> {
        let tiers = [(&self.a, A), (&self.b, B)].map(|(leaf, target)| leaf.placer.balance(target));
        tiers.iter().flatten().map(|tier| tier.mmr / tier.floor).collect()
    }
}

#[test]
fn both_directions_are_on_the_same_links_and_as_even_as_one() {
    for seed in 0..10 {
        // Data from `a`, data from `b`, and data in both directions.
        for rates in [(3000, 100), (100, 3000), (1000, 1000)] {
            let mut fabric = Fabric::new(seed, Options::default());
            (0..64).for_each(|_| fabric.connect(None, rates));
            fabric.run(Duration::from_secs(3));
            let before = fabric.a.moves() + fabric.b.moves();
            fabric.run(Duration::from_secs(5));
            assert_eq!(fabric.on_same_links(), 64, "seed {seed}, {rates:?}");
            assert!(fabric.connections.iter().all(|(of_a, of_b)| {
                fabric.a.same_links(*of_b) == Some(true) && fabric.b.same_links(*of_a) == Some(true)
            }));
            assert!(fabric.above_floor().iter().all(|above| *above == 1.0), "{rates:?}");
            assert_eq!(fabric.a.moves() + fabric.b.moves(), before, "nothing moves any more");
        }
    }
}

/// Half of the connections have their data in one direction, and half in the other.
#[test]
fn data_leads_in_each_direction() {
    for seed in 0..10 {
        let mut fabric = Fabric::new(seed, Options::default());
        (0..64).for_each(|n| fabric.connect(None, [(3000, 100), (100, 3000)][n % 2]));
        fabric.run(Duration::from_secs(8));
        assert_eq!(fabric.on_same_links(), 64, "seed {seed}");
        let leads = |leaf: &Leaf| {
            let partners = leaf.placer.flows().filter_map(|(_, flow)| flow.partner);
            partners.filter(|partner| partner.leads).count()
        };
        assert_eq!((leads(&fabric.a), leads(&fabric.b)), (32, 32));
        let before = fabric.a.moves() + fabric.b.moves();
        fabric.run(Duration::from_secs(5));
        assert_eq!(fabric.a.moves() + fabric.b.moves(), before, "nothing moves any more");
        let data = |leaf: &Leaf, target| {
            let mut loads = BTreeMap::<Link, f64>::new();
            for (of, _) in leaf.flows.iter().filter(|(_, (rate, _))| *rate > 1000) {
                for link in leaf.placer.links(target, leaf.path(*of)) {
                    *loads.entry(link).or_default() += 1.0;
                }
            }
            loads.into_values().fold(0.0, f64::max)
        };
        assert_eq!((data(&fabric.a, A), data(&fabric.b, B)), (8.0, 8.0), "seed {seed}");
    }
}

#[test]
fn the_other_direction_follows_when_a_path_dies_and_when_it_returns() {
    let mut fabric = Fabric::new(7, Options::default());
    (0..64).for_each(|_| fabric.connect(None, (3000, 100)));
    fabric.run(Duration::from_secs(3));
    for dead in [&[(1, 2), (0, 3)][..], &[]] {
        fabric.know(dead);
        fabric.run(Duration::from_secs(4));
        assert_eq!(fabric.on_same_links(), 64);
    }
    assert!(fabric.above_floor().iter().all(|above| *above == 1.0));
}

#[test]
fn lost_answers_delay_the_other_direction_and_forbidden_moves_keep_it() {
    let mut fabric = Fabric::new(3, Options::default());
    fabric.lose = 4;
    (0..64).for_each(|_| fabric.connect(None, (3000, 100)));
    fabric.run(Duration::from_secs(12));
    assert_eq!(fabric.on_same_links(), 64);

    let mut fabric = Fabric::new(3, Options { moves: Moves::Never, ..Options::default() });
    (0..64).for_each(|_| fabric.connect(None, (3000, 100)));
    fabric.run(Duration::from_secs(3));
    assert_eq!(fabric.a.moves() + fabric.b.moves(), 0);
    assert!(fabric.on_same_links() < 64);
    let known = |(of_a, of_b): &(QueuePair, QueuePair)| {
        (fabric.a.same_links(*of_b), fabric.b.same_links(*of_a))
    };
    let said = fabric.connections.iter().filter(|of| known(of) == (Some(true), Some(true))).count();
    assert_eq!(said, fabric.on_same_links(), "what is shown is true");
}

/// With one inner source port for all queue pairs, only the communication manager tells them apart.
#[test]
fn one_port_for_all_is_paired_by_the_communication_manager_only() {
    let mut fabric = Fabric::new(5, Options::default());
    (0..64).for_each(|_| fabric.connect(Some(0xc000), (3000, 100)));
    fabric.run(Duration::from_secs(3));
    assert!(fabric.a.placer.flows().all(|(_, flow)| flow.partner.is_none()));
    let now = fabric.now;
    for (id, (of_a, of_b)) in (100..).zip(fabric.connections.clone()) {
        let request = Event::Request { id, queue_pair: of_a };
        fabric.a.placer.observe((A, 10), fabric.a.hosts, request, now);
        let reply = Event::Reply { id: id + 1000, of: id, queue_pair: of_b };
        fabric.b.placer.observe((B, 10), fabric.b.hosts, reply, now);
    }
    fabric.run(Duration::from_secs(4));
    assert_eq!(fabric.on_same_links(), 64);
    // The end of a connection: one host asks, and the other confirms.
    let (of_a, of_b) = fabric.connections[9];
    let (asks, confirms) =
        (Event::Disconnect { queue_pair: of_b }, Event::Disconnected { id: 1109 });
    fabric.a.placer.observe((A, 10), fabric.a.hosts, asks, fabric.now);
    fabric.b.placer.observe((B, 10), fabric.b.hosts, confirms, fabric.now);
    assert!(fabric.a.placer.peek(&fabric.a.id(of_b)).is_none());
    assert!(fabric.b.placer.peek(&fabric.b.id(of_a)).is_none());
    assert_eq!((fabric.a.placer.flows().count(), fabric.b.placer.flows().count()), (63, 63));
}

/// What a leaf knows about its own queue pairs and those that another one reports.
fn pairing(own: &[(QueuePair, u16)], told: &[(QueuePair, u16)]) -> (Channel, Pairing) {
    let channel = Channel { target: A, vni: 10, hosts: HOSTS };
    let mut pairing = Pairing::default();
    own.iter().for_each(|(of, port)| pairing.add(channel, *of, *port));
    for (of, port) in told {
        let hosts = (HOSTS.1, HOSTS.0);
        let report =
            FlowReport { vni: 10, hosts, queue_pair: *of, port: *port, kilobytes: 0, way: None };
        pairing.tell(A, &report, Duration::ZERO);
    }
    (channel, pairing)
}

proptest! {
    /// A queue pair is never paired with a wrong one, whatever ports connections share. If both
    /// directions of all connections are known, all with a port of their own are paired.
    #[test]
    fn ports_pair_what_belongs_together_or_nothing(
        numbers in prop::collection::hash_map(2..0x1000_u32, 2..0x1000_u32, 1..40),
        one_port in any::<bool>(),
        silent in prop::collection::vec(any::<bool>(), 40),
    ) {
        let mut taken = BTreeSet::new();
        let connections: Vec<(QueuePair, QueuePair, u16)> = numbers
            .into_iter()
            .filter(|(_, b)| taken.insert(*b))
            .map(|(a, b)| (queue_pair(a), queue_pair(b)))
            .map(|(a, b)| (a, b, if one_port { 0xc000 } else { source_port(a, b) }))
            .collect();
        let own: Vec<_> = connections.iter().map(|(_, b, port)| (*b, *port)).collect();
        let told: Vec<_> = connections.iter().map(|(a, _, port)| (*a, *port)).collect();
        let (channel, all) = pairing(&own, &told);
        for (a, b, port) in &connections {
            let partner = all.partner(channel, *b, *port).map(|(partner, _)| partner);
            prop_assert!(partner.is_none_or(|partner| partner == *a));
            let alone = own.iter().filter(|(_, of)| of == port).count() == 1;
            prop_assert!(partner.is_some() || !alone || one_port);
        }
        // Some directions are not reported yet.
        let told: Vec<_> = told.into_iter().zip(&silent).filter(|(_, silent)| !**silent).map(|(told, _)| told).collect();
        let (channel, some) = pairing(&own, &told);
        for (a, b, port) in &connections {
            let partner = some.partner(channel, *b, *port).map(|(partner, _)| partner);
            prop_assert!(partner.is_none_or(|partner| partner == *a));
        }
    }
}

#[test]
fn what_others_report_is_bounded_and_expires() {
    let (channel, mut pairing) = pairing(&[], &[]);
    let report = |number: u32| FlowReport {
        vni: 10,
        hosts: (HOSTS.1, HOSTS.0),
        queue_pair: queue_pair(number),
        port: source_port(queue_pair(number), queue_pair(7)),
        kilobytes: 1,
        way: None,
    };
    (0..70_000).for_each(|n| pairing.tell(A, &report(n), Duration::ZERO));
    assert_eq!(pairing.told(), 16_384, "others have room, too");
    for last in 3..10 {
        let other = Target { address: IpAddr::from([10, 0, 0, last]), ..A };
        (0..70_000).for_each(|n| pairing.tell(other, &report(n), Duration::ZERO));
    }
    assert_eq!(pairing.told(), 65_536);
    while pairing.expire(Duration::from_secs(100), 64) {}
    assert!(pairing.is_empty());
    for id in 0..70_000 {
        let request = Event::Request { id, queue_pair: queue_pair(id) };
        assert_eq!(pairing.observe(channel, request), None);
    }
    assert_eq!(pairing.exchanges(), 65_536);
    // Handshakes of another VNI are reported before all of this one are.
    let other = Channel { vni: 11, ..channel };
    let request = Event::Request { id: 1, queue_pair: queue_pair(9) };
    assert_eq!(pairing.observe(other, request), None);
    let mut told = Vec::new();
    while !told.iter().any(|handshake: &Handshake| handshake.vni == 11) {
        let some = pairing.to_tell(A);
        assert!(!some.is_empty(), "{} told", told.len());
        told.extend(some);
    }
    assert!(told.len() <= 1028, "{}", told.len());
}

/// The host has ended a connection. It is found by the host's number of the exchange, also if other
/// connections of these hosts had that number before.
#[test]
fn the_end_of_a_connection_is_found_by_its_number() {
    let (channel, mut pairing) = pairing(&[], &[]);
    for (id, of) in [(1, 20), (2, 21)] {
        let handshake = Handshake {
            vni: 10,
            hosts: (HOSTS.1, HOSTS.0),
            queue_pair: queue_pair(of),
            id: id + 100,
            of: Some(id),
        };
        let request = Event::Request { id, queue_pair: queue_pair(of + 100) };
        assert_eq!(pairing.observe(channel, request), None);
        pairing.handshake(A, &handshake);
    }
    for (id, ended) in [(2, Some(21)), (1, Some(20)), (3, None)] {
        let ended = ended.map(queue_pair);
        assert_eq!(pairing.observe(channel, Event::Disconnected { id }), ended);
    }
}
