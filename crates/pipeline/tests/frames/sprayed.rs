//! Sprayed packets, from one leaf to another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{LEAF_1, LEAF_2, Leaf, Owned, Worker, hop, udp4, untagged};
use path::{Agreed, Arrivals, PathId, Pins, Policy, Pool, SprayOptions, Spraying};
use pipeline::DropReason;
use spray::order::Tiers;
use tables::Snapshot;
use wire::roce::opcode;

fn worker(spraying: &Arc<Spraying>) -> Worker {
    let mut worker = Worker::new();
    worker.pipeline.set_pins(Pins::only_spraying(Arc::clone(spraying), Instant::now()));
    worker
}

fn sprayed(mut leaf: Leaf) -> Snapshot {
    leaf.settings.policy = Policy::Spray;
    leaf.snapshot()
}

/// A packet of a queue pair, with its number in its payload.
fn packet(opcode: u8, psn: u32) -> Vec<u8> {
    let [_, high, middle, low] = psn.to_be_bytes();
    let mut bytes = vec![opcode, 0, 0xff, 0xff, 0, 0, 0, 17, 0, high, middle, low];
    bytes.extend([low; 68]);
    udp4(0, 0xc000, 4791, &bytes)
}

fn write(psn: u32) -> Vec<u8> {
    packet(opcode::RC_WRITE_MIDDLE, psn)
}

/// The last bytes of the numbers of packets.
fn numbers(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|frame| *frame.last().unwrap()).collect()
}

/// A leaf that sprays over four paths, and one that receives.
struct Leaves {
    near: Worker,
    far: Worker,
    here: Snapshot,
    there: Snapshot,
    spraying: [Arc<Spraying>; 2],
    pool: Arc<Pool>,
    arrivals: Arc<Arrivals>,
    start: Instant,
}

/// The pool of four paths from this port on, over two uplinks.
fn pool_from(first: u16) -> Arc<Pool> {
    let path = |n: u16| PathId { hop: hop(3 + u32::from(n % 2)).identity, source_port: first + n };
    let tiers = Tiers::new(&[2, 2]).unwrap();
    Arc::new(Pool::new((0..4).map(path).collect(), tiers, 1_000_000).unwrap())
}

/// Most milliseconds that a packet waits.
const TIMER: u64 = 8;

impl Leaves {
    fn new(options: SprayOptions) -> Self {
        let spraying = [(); 2].map(|()| Arc::new(Spraying::new(options, 3)));
        let (here, there) = (sprayed(Leaf::one()), sprayed(Leaf::two()));
        let ends = |from: IpAddr, to: IpAddr| (from, to, 4789);
        let arrivals = Arc::new(Arrivals::new(TIMER * 1_000_000));
        let counted = Arc::clone(&arrivals);
        spraying[1].set_arrivals([(ends(LEAF_2.into(), LEAF_1.into()), counted)].into());
        let [near, far] = spraying.each_ref().map(worker);
        let (pool, start) = (pool_from(50_000), Instant::now());
        let leaves = Self { near, far, here, there, spraying, pool, arrivals, start };
        leaves.agree(&leaves.pool);
        leaves
    }

    /// Has the near leaf spray over a pool.
    fn agree(&self, pool: &Arc<Pool>) {
        let vnis = self.here.vnis().map(|table| table.tunnel.vni).collect();
        let agreed = Agreed { pool: Arc::clone(pool), vnis };
        let ends: (IpAddr, IpAddr, u16) = (LEAF_1.into(), LEAF_2.into(), 4789);
        self.spraying[0].set_pools([(ends, agreed)].into());
    }

    /// The same, after a first packet, whose number is −1.
    fn begun(options: SprayOptions) -> Self {
        let mut leaves = Self::new(options);
        let sent = leaves.send(&[write(0xff_ffff)]);
        assert_eq!(leaves.receive(0, &[&sent[0]]).len(), 0, "others may be before it");
        assert_eq!(leaves.expire(TIMER / 2 - 1).len(), 0);
        assert_eq!(numbers(&leaves.expire(TIMER / 2)), [0xff]);
        leaves.start += Duration::from_millis(TIMER);
        leaves
    }

    /// Encapsulates frames.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let frames: Vec<Owned> = frames.iter().map(|frame| Owned::tagged(frame.clone())).collect();
        self.near.encapsulate(&frames, &self.here)
    }

    /// Decapsulates packets so many milliseconds after the start. Returns what the host gets.
    fn receive(&mut self, at: u64, packets: &[&Vec<u8>]) -> Vec<Vec<u8>> {
        let packets: Vec<Owned> =
            packets.iter().map(|packet| Owned::plain((*packet).clone())).collect();
        let now = self.start + Duration::from_millis(at);
        let frames = self.far.decapsulate_at(&packets, &self.there, now);
        self.delivered(&frames)
    }

    fn delivered(&self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.far.assert_balance(frames.len());
        for transmit in &self.far.out {
            self.far.pipeline.account_frame(transmit, Ok(()));
        }
        self.far.assert_balance(0);
        frames.iter().map(|frame| untagged(frame)).collect()
    }

    /// What the host gets when the time of frames is over.
    fn expire(&mut self, at: u64) -> Vec<Vec<u8>> {
        let now = self.start + Duration::from_millis(at);
        self.far.fill(&[]);
        self.far.pipeline.expire(&self.there, now, &mut self.far.out);
        let frames = self.far.bytes();
        self.delivered(&frames)
    }
}

fn port(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[34], packet[35]])
}

#[test]
fn packets_take_all_paths_in_turns_and_hosts_get_them_in_order() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let frames: Vec<_> = (0..8).map(write).collect();
    let sent = leaves.send(&frames);
    let ports: BTreeSet<u16> = sent[3..7].iter().map(|packet| port(packet)).collect();
    assert_eq!(ports, (50_000..50_004).collect(), "the order's second round");
    assert_eq!(leaves.pool.sent().sum::<u64>(), 9);
    let order = [0, 3, 1, 2, 7, 6, 5, 4];
    let got = leaves.receive(0, &order.map(|number: usize| &sent[number]));
    assert_eq!(got, frames, "each byte, too");
    let arrived = |port| leaves.arrivals.read().find(|of| of.port == port).unwrap().received;
    let arrived: Vec<u64> = (50_000..50_004).map(|port| arrived(port).into()).collect();
    assert_eq!(arrived, leaves.pool.sent().collect::<Vec<_>>());
    let counters = leaves.far.pipeline.counters();
    assert_eq!((counters.resequenced.waited.get(), counters.held.get()), (5, 0));
}

/// The worker remembers the flow, and asks for the path of each packet.
#[test]
fn a_known_flow_takes_all_paths_of_the_pool_that_is_current() {
    let mut leaves = Leaves::new(SprayOptions::default());
    let frames: Vec<_> = (0..8).map(write).collect();
    for first in [50_000, 51_000] {
        let pool = pool_from(first);
        leaves.agree(&pool);
        leaves.send(&frames[..1]);
        let hits = leaves.near.pipeline.counters().flow_cache.hits.get();
        let sent = leaves.send(&frames);
        assert_eq!(leaves.near.pipeline.counters().flow_cache.hits.get(), hits + 8);
        for (packet, frame) in sent.iter().zip(&frames) {
            let uplink = hop(3 + u32::from(port(packet) % 2));
            let macs = [uplink.destination_mac.unwrap().0, uplink.source_mac.0].concat();
            assert_eq!((&packet[..12], &packet[50..]), (&macs[..], &frame[..]));
        }
        let ports: BTreeSet<u16> = sent.iter().map(|packet| port(packet)).collect();
        assert_eq!(ports, (first..first + 4).collect());
        assert_eq!(pool.sent().sum::<u64>(), 9);
    }
    // What is not sprayed is another flow.
    let acknowledgement = packet(opcode::RC_ACKNOWLEDGE, 9);
    let sent = leaves.send(&vec![acknowledgement; 3]);
    let ports: BTreeSet<u16> = sent.iter().map(|packet| port(packet)).collect();
    assert_eq!(ports.len(), 1);
    // Nobody agrees any more.
    leaves.spraying[0].set_pools(BTreeMap::new());
    let ports: BTreeSet<u16> = leaves.send(&frames).iter().map(|packet| port(packet)).collect();
    assert_eq!(ports.len(), 1);
}

/// At a million packets a second over four paths, one path gets 12 in 50 µs.
#[test]
fn packets_of_a_high_rate_take_a_path_in_bundles_and_each_is_counted() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let frames: Vec<Owned> = (0..64).map(|psn| Owned::tagged(write(psn))).collect();
    let mut sent = Vec::new();
    for batch in 1..=40 {
        let now = leaves.start + Duration::from_micros(64 * batch);
        sent = leaves.near.encapsulate_at(&frames, &leaves.here, now);
        assert_eq!(leaves.pool.sent().sum::<u64>(), 1 + 64 * batch, "by the end of the batch");
    }
    let ports: Vec<u16> = sent.iter().map(|packet| port(packet)).collect();
    let bundles: Vec<usize> = ports.chunk_by(|one, next| one == next).map(<[u16]>::len).collect();
    assert_eq!(bundles.iter().sum::<usize>(), 64);
    assert!(bundles.iter().all(|packets| [4, 12, 24].contains(packets)), "{bundles:?}");
    assert!(ports.iter().collect::<BTreeSet<_>>().len() > 2, "{ports:?}");
    let uplinks = sent.iter().zip(&ports).all(|(packet, port)| {
        let uplink = hop(3 + u32::from(port % 2));
        packet[..6] == uplink.destination_mac.unwrap().0
    });
    assert!(uplinks, "each bundle leaves by its next hop");
    // They come in two batches. All are counted by the end of each.
    let (first, second): (Vec<_>, Vec<_>) =
        (sent[..40].iter().collect(), sent[40..].iter().collect());
    assert_eq!(leaves.receive(0, &first).len(), 40);
    let received = |leaves: &Leaves| leaves.arrivals.read().map(|a| a.received).sum::<u16>();
    assert_eq!(
        (received(&leaves), leaves.arrivals.bytes()),
        (41, 41 * frames[0].data.len() as u64)
    );
    assert_eq!(leaves.receive(0, &second).len(), 24);
    let count = |of: u16| ports.iter().filter(|port| **port == of).count() as u16;
    let first = leaves.arrivals.read().map(|arrived| arrived.received - count(arrived.port));
    assert_eq!((received(&leaves), first.sum::<u16>()), (65, 1));
}

#[test]
fn each_queue_pair_has_its_place_in_the_order() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let of = |queue_pair: u8, psn: u32| {
        let mut frame = write(psn);
        frame[49] = queue_pair;
        frame
    };
    let frames: Vec<_> = (0..20).flat_map(|psn| [1, 2, 3].map(|number| of(number, psn))).collect();
    let sent = leaves.send(&frames);
    let first: Vec<_> = sent[..30].iter().collect();
    assert_eq!(leaves.receive(0, &first).len(), 0, "others may be before each");
    assert_eq!(leaves.expire(TIMER / 2).len(), 30);
    let rest: Vec<_> = sent[30..].iter().collect();
    assert_eq!(leaves.receive(TIMER, &rest), frames[30..]);
    // A gap of one holds none of the others.
    let more: Vec<_> = [21, 22].into_iter().flat_map(|psn| [1, 2, 3].map(|n| of(n, psn))).collect();
    let gap = leaves.send(&[vec![of(1, 20), of(3, 20)], more.clone()].concat());
    let got = leaves.receive(TIMER, &gap.iter().collect::<Vec<_>>());
    assert_eq!(got.iter().filter(|frame| frame[49] == 2).count(), 0);
    assert_eq!(got.len(), 6);
}

#[test]
fn a_packet_that_is_lost_holds_others_for_the_timer() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let sent = leaves.send(&(0..4).map(write).collect::<Vec<_>>());
    assert_eq!(numbers(&leaves.receive(0, &[&sent[0], &sent[2], &sent[3]])), [0]);
    assert!(leaves.far.pipeline.holds());
    assert_eq!(leaves.far.pipeline.counters().held.get(), 2);
    assert_eq!(leaves.far.pipeline.deadline(), Some(Duration::from_millis(TIMER)));
    assert_eq!(numbers(&leaves.expire(TIMER - 1)), [0; 0]);
    assert_eq!(numbers(&leaves.expire(TIMER)), [2, 3]);
    assert!(!leaves.far.pipeline.holds() && leaves.far.pipeline.deadline().is_none());
    assert_eq!(leaves.far.pipeline.counters().resequenced.by_timer.get(), 1);
    // The host asks for it, and gets all from there on in order.
    assert_eq!(numbers(&leaves.receive(20, &[&sent[2], &sent[1], &sent[3]])), [1, 2, 3]);
    // It asks again, because it has lost all of them. The first one comes last.
    assert_eq!(numbers(&leaves.receive(30, &[&sent[2], &sent[3], &sent[1]])), [0; 0]);
    assert_eq!(numbers(&leaves.expire(30 + TIMER / 2)), [1, 2, 3]);
}

#[test]
fn what_waits_already_is_dropped_and_what_waits_at_the_end_too() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let sent = leaves.send(&(0..4).map(write).collect::<Vec<_>>());
    assert_eq!(numbers(&leaves.receive(0, &[&sent[0], &sent[2], &sent[2], &sent[3]])), [0]);
    assert_eq!(leaves.far.dropped(DropReason::WaitsAlready), 1);
    leaves.far.pipeline.stop();
    assert_eq!(leaves.far.dropped(DropReason::Shutdown), 2);
    leaves.far.assert_balance(0);

    // Nobody knows which of the first packets of a queue pair comes first.
    let mut leaves = Leaves::new(SprayOptions::default());
    let sent = leaves.send(&[5, 7].map(write));
    assert!(leaves.receive(0, &[&sent[0], &sent[1]]).is_empty());
    leaves.far.pipeline.stop();
    assert_eq!(leaves.far.dropped(DropReason::Shutdown), 2);
    leaves.far.assert_balance(0);

    // Packets are sent again, with gaps, and the order may go on behind them.
    let mut leaves = Leaves::begun(SprayOptions::default());
    let sent = leaves.send(&(0..13).map(write).collect::<Vec<_>>());
    assert_eq!(leaves.receive(0, &sent[..10].iter().collect::<Vec<_>>()).len(), 10);
    assert!(leaves.receive(30, &[&sent[2]]).is_empty());
    assert_eq!(numbers(&leaves.expire(30 + TIMER / 2)), [2]);
    assert!(leaves.receive(36, &[&sent[5], &sent[12]]).is_empty());
    leaves.far.pipeline.stop();
    assert_eq!(leaves.far.dropped(DropReason::Shutdown), 2);
    leaves.far.assert_balance(0);
    assert!(!leaves.far.pipeline.holds());
}

/// Sets bits of the ECN field of the first IPv4 header.
fn set_ecn(frame: &mut [u8], bits: u8) {
    frame[15] |= bits;
    let sum = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0.calc_header_checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// A packet that routers can mark.
fn capable(psn: u32) -> Vec<u8> {
    let mut frame = write(psn);
    set_ecn(&mut frame, 2);
    frame
}

/// What a router does.
fn mark(packet: &mut [u8]) {
    set_ecn(packet, 3);
}

#[test]
fn marks_are_counted_by_path_and_reach_the_host_with_what_waited() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let mut sent = leaves.send(&(0..3).map(capable).collect::<Vec<_>>());
    // A router marks the last one, which then waits.
    mark(&mut sent[2]);
    assert!(leaves.receive(0, &[&sent[2]]).is_empty());
    let got = leaves.receive(1, &[&sent[0], &sent[1]]);
    assert_eq!(got.iter().map(|frame| frame[15] & 3).collect::<Vec<_>>(), [2, 2, 3]);
    let marked = leaves.arrivals.read().filter(|arrived| arrived.marked > 0);
    let marked: Vec<(u16, u16)> = marked.map(|arrived| (arrived.port, arrived.marked)).collect();
    assert_eq!(marked, [(port(&sent[2]), 1)]);
}

#[test]
fn a_mark_of_few_paths_can_be_left_to_the_scheme() {
    for (hides_marks, is_congested, expected) in
        [(false, false, 3), (true, false, 2), (true, true, 3)]
    {
        let mut leaves = Leaves::begun(SprayOptions { hides_marks, ..SprayOptions::default() });
        leaves.arrivals.set_congested(is_congested);
        let mut sent = leaves.send(&[capable(0), capable(1)]);
        mark(&mut sent[0]);
        mark(&mut sent[1]);
        let late = leaves.receive(0, &[&sent[1]]);
        let got = [late, leaves.receive(0, &[&sent[0]])].concat();
        assert_eq!(got.iter().map(|frame| frame[15] & 3).collect::<Vec<_>>(), [expected; 2]);
        assert_eq!(leaves.arrivals.read().map(|arrived| arrived.marked).sum::<u16>(), 2);
    }
}

#[test]
fn what_is_not_sprayed_has_one_path_and_reads_leave_the_order_open() {
    let mut leaves = Leaves::begun(SprayOptions::default());
    let read = packet(opcode::RC_READ_REQUEST, 1);
    let acknowledgements = vec![packet(opcode::RC_ACKNOWLEDGE, 9); 4];
    let ports: BTreeSet<u16> = leaves
        .send(&[acknowledgements, vec![read.clone(); 4]].concat())
        .iter()
        .map(|p| port(p))
        .collect();
    assert_eq!(ports.len(), 1);
    assert_eq!(leaves.pool.sent().sum::<u64>(), 1);
    // The read uses 4 numbers. The packet behind it does not wait.
    let sent = leaves.send(&[write(0), read, write(5), write(6)]);
    let order = [&sent[0], &sent[1], &sent[2], &sent[3]];
    assert_eq!(numbers(&leaves.receive(0, &order)), [0, 1, 5, 6]);
    assert_eq!(leaves.far.pipeline.counters().resequenced.waited.get(), 1);
}

#[test]
fn without_an_order_hosts_get_packets_as_they_arrive() {
    let options = SprayOptions { restores_order: false, ..SprayOptions::default() };
    let mut leaves = Leaves::new(options);
    let sent = leaves.send(&(0..3).map(write).collect::<Vec<_>>());
    assert_eq!(numbers(&leaves.receive(0, &[&sent[2], &sent[0], &sent[1]])), [2, 0, 1]);
    assert_eq!(leaves.arrivals.read().map(|a| a.received).sum::<u16>(), 3);
}

/// A VTEP that has not agreed cannot have frames held back.
#[test]
fn packets_of_others_are_delivered_as_they_come() {
    let mut leaves = Leaves::new(SprayOptions::default());
    let sent = leaves.send(&(0..3).map(write).collect::<Vec<_>>());
    let spraying = Arc::new(Spraying::new(SprayOptions::default(), 4));
    leaves.far = worker(&spraying);
    assert_eq!(numbers(&leaves.receive(0, &[&sent[2], &sent[0], &sent[1]])), [2, 0, 1]);
    assert!(!leaves.far.pipeline.holds());
}
