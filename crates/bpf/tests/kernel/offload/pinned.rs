//! Queue pairs that `qp-pin` has placed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bpf::PinnedFlow;
use path::record::Record;
use path::{
    Answer, Before, CounterId, Entropy, Flow, PathId, Pin, Pinning, Pins, Policy, Remote, Settings,
    Usage, Version,
};
use root_test::root_test;
use tables::VniTable;
use test_frames::{
    IPV4, IPV6, Ipv4, Ipv6, ROCE, UDP, bth, ethernet, ipv4, ipv6, udp, udp_over_ipv6,
};

use super::both::{Both, Outcome};
use super::leaf::{VTEPS, VTEPS_IPV6, tables, tables_ipv6};
use crate::random::Random;

/// The VTEP with several next hops, whose identities these are.
const VTEP: usize = 1;
const HOPS: [u64; 4] = [4, 5, 6, 7];
const QUEUE_PAIRS: u32 = 64;
/// Queue pairs 0 and 1 are for management, and are not placed.
const FIRST: u32 = 2;

/// Places queue pairs by their key. Each placement has a version of its own.
#[derive(Debug)]
struct Placed(BTreeMap<String, Pin>, Usage, Version<Policy>);

impl Pinning for Placed {
    fn pin(&self, flow: &Flow, _: &Remote<'_>, _: PathId, _: Before) -> Answer {
        self.0.get(&flow.key.to_string()).map_or(Answer::Hashed, |pin| Answer::Pinned(*pin))
    }

    fn version(&self) -> Version<Policy> {
        self.2
    }

    fn usage(&self) -> &Usage {
        &self.1
    }
}

/// Where frames of a queue pair are counted.
fn counter(queue_pair: u32) -> CounterId {
    CounterId::new(queue_pair + 1).unwrap()
}

/// A frame of a queue pair; of each second one over IPv6.
fn frame(queue_pair: u32, sequence: u32) -> Vec<u8> {
    frame_of(queue_pair, &bth(4, FIRST + queue_pair, sequence, &[0; 20]), 0)
}

fn frame_of(queue_pair: u32, transport: &[u8], tos: u8) -> Vec<u8> {
    let (ethertype, packet) = if queue_pair.is_multiple_of(2) {
        let datagram = udp((0xc000, ROCE), transport);
        let fields = Ipv4 { tos, ..Ipv4::default() };
        (IPV4, ipv4(([10, 1, 0, 1], [10, 1, 0, 2]), UDP, &datagram, fields))
    } else {
        let ends = ([0xfd; 16], [0xfe; 16]);
        let datagram = udp_over_ipv6(ends, (0xc000, ROCE), transport);
        (IPV6, ipv6(ends, UDP, &datagram, Ipv6 { traffic_class: tos, ..Ipv6::default() }))
    };
    ethernet([0; 6], [2, 0, 0, 0, 0, 9], ethertype, &packet)
}

/// A VNI over IPv4, and two over IPv6: without and with an outer UDP checksum.
fn underlays(entropy: Entropy) -> [VniTable; 3] {
    let (ipv4, mut ipv6) = (tables().remove(0), tables_ipv6());
    let tables = [ipv4, ipv6.remove(0), ipv6.remove(0)];
    tables.map(|table| VniTable { entropy, ..table })
}

/// A remote VTEP of this VNI.
const fn vtep(table: &VniTable, number: usize) -> IpAddr {
    match table.tunnel.local {
        IpAddr::V4(_) => IpAddr::V4(VTEPS[number]),
        IpAddr::V6(_) => IpAddr::V6(VTEPS_IPV6[number]),
    }
}

/// Each queue pair that `is_placed` gets a random path.
fn place(
    random: &mut Random,
    (table, entropy): (&VniTable, Entropy),
    is_placed: impl Fn(u32) -> bool,
) -> Vec<PinnedFlow> {
    let flow = |queue_pair: u32| {
        let dissection = wire::dissect(&frame(queue_pair, 0)).unwrap();
        PinnedFlow {
            vni: table.tunnel.vni,
            vtep: vtep(table, VTEP),
            key: entropy.explain(&dissection).key,
            path: PathId {
                hop: random.one_of(&HOPS),
                source_port: 49_152 + random.below(16_384) as u16,
            },
            counter: counter(queue_pair),
        }
    };
    (0..QUEUE_PAIRS).filter(|queue_pair| is_placed(*queue_pair)).map(flow).collect()
}

fn pins(flows: &[PinnedFlow]) -> Pins {
    Pins::new(Some(placed(flows)))
}

/// The same, with records of the worker's own.
fn placed(flows: &[PinnedFlow]) -> Arc<Placed> {
    let pin =
        |flow: &PinnedFlow| Pin { path: flow.path, counter: flow.counter, changes: Version::NONE };
    let placed = flows.iter().map(|flow| (flow.key.to_string(), pin(flow))).collect();
    let version = Version::unique();
    let usage = Usage::new(QUEUE_PAIRS, Instant::now());
    usage.record_in(Arc::new(Vec::from_iter((0..=QUEUE_PAIRS).map(|_| Record::default()))));
    Arc::new(Placed(placed, usage, version))
}

/// Sends a frame of each queue pair. The ones that are placed are offloaded and have their ports.
fn assert_sent(both: &mut Both, flows: &[PinnedFlow], sequence: u32) {
    for queue_pair in 0..QUEUE_PAIRS {
        let (outcome, sent) = both.encapsulate(&mut frame(queue_pair, sequence), VTEP);
        let Some(flow) = flows.iter().find(|flow| flow.counter == counter(queue_pair)) else {
            assert_eq!(outcome, Outcome::Worker, "queue pair {queue_pair} is not placed");
            continue;
        };
        assert_eq!(outcome, Outcome::Offloaded, "{flow:?}");
        let port = if flow.vtep.is_ipv4() { 34 } else { 54 };
        assert_eq!(sent[port..port + 2], flow.path.source_port.to_be_bytes(), "{flow:?}");
        assert_eq!(sent[5], flow.path.hop as u8, "the MAC address of the next hop: {flow:?}");
    }
}

#[root_test]
fn queue_pairs_are_sent_where_they_were_placed() {
    let (mut both, mut random) = (Both::new(), Random(7));
    let settings = Settings { policy: Policy::QpPin, seed: 7, ..Settings::default() };
    let entropy = Entropy::new(settings).unwrap();
    for table in underlays(entropy) {
        sent_where_placed(&mut both, &mut random, &table);
    }
}

fn sent_where_placed(both: &mut Both, random: &mut Random, table: &VniTable) {
    let entropy = table.entropy;
    both.set(table.clone());
    assert_sent(both, &[], 0);
    for round in 1..5 {
        let flows = place(random, (table, entropy), |queue_pair| queue_pair % 5 != round);
        both.pin(&flows, &flows, pins(&flows));
        let before: Vec<_> = flows.iter().map(|flow| both.usage(flow.counter)).collect();
        assert_sent(both, &flows, round);
        assert_sent(both, &flows, round);
        for (flow, (bytes, frames, last)) in flows.iter().zip(before) {
            let length = frame(flow.counter.get() - 1, 0).len() as u64;
            let (more_bytes, more_frames, later) = both.usage(flow.counter);
            assert_eq!((more_bytes - bytes, more_frames - frames), (2 * length, 2), "{flow:?}");
            assert!(later > last, "{flow:?}");
        }
    }
    // Another table of the VTEP's next hops: the placement has to be told again.
    both.set(table.clone());
    assert_sent(both, &[], 5);
    let flows = place(random, (table, entropy), |_| true);
    both.pin(&flows, &flows, pins(&flows));
    assert_sent(both, &flows, 6);
    both.pin(&[], &[], pins(&[]));
    assert_sent(both, &[], 7);
}

#[root_test]
fn a_path_that_the_vtep_does_not_have_is_the_workers() {
    let (mut both, mut random) = (Both::new(), Random(8));
    let settings = Settings { policy: Policy::QpPin, seed: 1, ..Settings::default() };
    let entropy = Entropy::new(settings).unwrap();
    let table = VniTable { entropy, ..tables().remove(0) };
    both.set(table.clone());
    let flows = place(&mut random, (&table, entropy), |_| true);
    let first = flows[0];
    let wrong = [
        PinnedFlow { path: PathId { hop: 99, ..first.path }, ..first },
        PinnedFlow { path: PathId { source_port: 1024, ..first.path }, ..first },
        PinnedFlow { vtep: IpAddr::V4(VTEPS[0]), ..first },
        PinnedFlow { vni: 5.try_into().unwrap(), ..first },
        PinnedFlow { counter: counter(super::both::PINNED), ..first },
    ];
    for flow in wrong {
        both.pin(&[flow], &[], pins(&[]));
        assert_sent(&mut both, &[], 1);
    }
    both.pin(&[first], &[first], pins(&[first]));
    assert_sent(&mut both, &[first], 2);
}

/// A frame of any opcode, whose number is a few away from the last one.
fn random_frame(random: &mut Random, queue_pair: u32, sequence: &mut u32) -> Vec<u8> {
    const STEPS: [u32; 8] = [1, 1, 1, 2, 9, 0, 0xff_fffe, 1 << 23];
    const OPCODES: [u8; 8] = [0x04, 0x0a, 0x0c, 0x0d, 0x11, 0x13, 0x17, 0x81];
    *sequence = (*sequence + random.one_of(&STEPS)) & 0xff_ffff;
    let opcode =
        if random.below(4) == 0 { random.below(256) as u8 } else { random.one_of(&OPCODES) };
    let syndrome = [random.below(256) as u8, 0, 0, 0];
    let payload = if random.below(8) == 0 { &[][..] } else { &syndrome };
    let transport = bth(opcode, FIRST + queue_pair, *sequence, payload);
    frame_of(queue_pair, &transport, random.below(256) as u8)
}

#[root_test]
fn records_are_those_of_the_worker() {
    let mut random = Random(9);
    let settings = Settings { policy: Policy::QpPin, seed: 7, ..Settings::default() };
    for table in underlays(Entropy::new(settings).unwrap()) {
        recorded_as_by_the_worker(&mut Both::new(), &mut random, &table);
    }
}

fn recorded_as_by_the_worker(both: &mut Both, random: &mut Random, table: &VniTable) {
    both.set(table.clone());
    let flows = place(random, (table, table.entropy), |queue_pair| queue_pair < 8);
    let placed = placed(&flows);
    both.pin(&flows, &flows, Pins::new(Some(placed.clone())));
    let programs = Usage::new(QUEUE_PAIRS, Instant::now());
    programs.record_in(both.usage.clone());
    let mut sequences = [0xff_ff00; 8];
    for _ in 0..4000 {
        let queue_pair = random.below(8) as u32;
        let mut frame = random_frame(random, queue_pair, &mut sequences[queue_pair as usize]);
        let (outcome, _) = both.encapsulate(&mut frame, VTEP);
        assert_eq!(outcome, Outcome::Offloaded, "{frame:02x?}");
        let counter = counter(queue_pair);
        assert_eq!(programs.recorded(counter), placed.1.recorded(counter), "{frame:02x?}");
    }
    for flow in &flows {
        let (counts, frames) = programs.recorded(flow.counter);
        assert_eq!(both.usage(flow.counter).1, u64::from(frames));
        let counted = [counts.gaps, counts.repeats, counts.naks, counts.cnps, counts.marks];
        assert!(counted.iter().all(|number| *number > 0), "{counted:?}");
    }
}
