//! Several workers: each flow goes to one worker, and the flows are distributed over all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bpf::{Hook, PuntSide};
use fabric::netns::Namespace;
use frame::{Batch, Destination, Offload, Payload, TxBatch, TxFrame};
use ports::{PacketSocket, Port as _};
use root_test::root_test;
use test_frames::{Ipv4, Ipv6, tagged};
use worker::PuntPairs;

use super::{
    LONG_STALL, Leaf, NEVER, RingSize, SOON, add, ifindex, leaf, plan, receive, remove, steer_for,
    vxlan_packet,
};

const WORKERS: usize = 3;
/// Identifies frames of this test; the host's IP stack may send others.
const MARK: [u8; 4] = [0xfe, 0xed, 0xfa, 0xce];

/// An IPv4 packet between these hosts.
fn ipv4(host: u8, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let fields = Ipv4 { identification: 1, ..Ipv4::default() }.fragment(fragment);
    test_frames::ipv4(([9, 0, 0, host], [9, 0, 1, 1]), protocol, payload, fields)
}

/// An IPv6 packet between these hosts.
fn ipv6(host: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let address = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last & 1, last];
    test_frames::ipv6((address(host), address(1)), next, payload, Ipv6::default())
}

/// A UDP datagram.
fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    test_frames::udp((source, destination), &[payload, &MARK].concat())
}

/// A base transport header to a queue pair.
fn bth(opcode: u8, queue_pair: u16, sequence: u8) -> Vec<u8> {
    test_frames::bth(opcode, queue_pair.into(), sequence.into(), &[])
}

/// A broadcast frame, which the bridge sends to the overlay.
fn frame(ethertype: u16, tags: &[u16], packet: &[u8]) -> Vec<u8> {
    let frame = test_frames::ethernet([2, 0, 0, 0, 9, 9], [0xff; 6], ethertype, packet);
    let mut frame = tags.iter().rev().fold(frame, |frame, tag| tagged(&frame, 0x8100, *tag));
    frame.resize(frame.len().max(64), 0);
    frame
}

/// A sending socket, opened once because the kernel takes long to close one.
struct Sender(PacketSocket);

impl Sender {
    fn on(namespace: &Namespace, interface: &str) -> Self {
        let index = ifindex(namespace, interface);
        Self(namespace.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap())
    }

    fn send(&mut self, frame: &[u8]) {
        let transmit =
            TxFrame::new(Destination::Bridge, 0, Payload::Owned(frame.into()), Offload::default());
        let mut out = TxBatch::of([transmit]);
        self.0.transmit(&Batch::none(), &mut out, 0..1);
        out.outcome().unwrap();
    }
}

/// The number of the worker that receives this frame. Exactly one must receive it.
fn worker(sockets: &mut [PacketSocket], sender: &mut Sender, frame: &[u8]) -> usize {
    sender.send(frame);
    let mut got = BTreeSet::new();
    let start = Instant::now();
    while got.is_empty() && start.elapsed() < SOON {
        for (number, socket) in sockets.iter_mut().enumerate() {
            if socket.receive().frames().any(|frame| marked(frame.data)) {
                got.insert(number);
            }
        }
    }
    assert_eq!(got.len(), 1, "{got:?}");
    got.pop_first().unwrap()
}

/// A host's frame, encapsulated, from the underlay.
fn from(source_port: u16, inner: &[u8]) -> Vec<u8> {
    vxlan_packet(source_port, 5, inner)
}

fn marked(frame: &[u8]) -> bool {
    frame.windows(MARK.len()).any(|window| window == MARK)
}

#[root_test]
fn every_flow_has_one_worker_and_flows_are_dealt_over_all() {
    let Leaf { leaf, spine, host } = leaf("workers");
    let (mut steering, mut punts, private) =
        steer_for::<WORKERS>(&leaf, Hook::Tcx, &plan(&leaf), LONG_STALL);
    let take = |socket: &mut dyn FnMut(&mut PuntPairs) -> Option<PacketSocket>,
                punts: &mut [PuntPairs]| {
        punts.iter_mut().map(|punts| socket(punts).unwrap()).collect::<Vec<_>>()
    };
    let mut bridges = take(&mut |punts| punts.bridge.take_socket(), &mut punts);
    let mut underlays = take(&mut |punts| punts.underlay.take_socket(), &mut punts);
    leaf.enter(|| steering.engage().unwrap()).unwrap();
    let (mut eth0, mut spine) = (Sender::on(&host, "eth0"), Sender::on(&spine, "leaf"));
    let mut of = |frame: &[u8]| worker(&mut bridges, &mut eth0, frame);

    // A queue pair stays on one worker, whatever opcode, sequence number and inner source port.
    let mut share = BTreeMap::<usize, usize>::new();
    for queue_pair in 0..48 {
        let roce = |opcode, sequence, port| {
            frame(
                0x0800,
                &[],
                &ipv4(1, 17, 0, &udp(port, 4791, &bth(opcode, queue_pair, sequence))),
            )
        };
        let first = of(&roce(0, 0, 49_152));
        for (opcode, sequence, port) in [(0x0a, 1, 49_152), (0x11, 200, 1000 + queue_pair)] {
            assert_eq!(of(&roce(opcode, sequence, port)), first, "queue pair {queue_pair}");
        }
        *share.entry(first).or_default() += 1;
    }
    // A third each: with random workers, one of them would have fewer than 6 of 48 once in a
    // thousand runs.
    assert!(
        share.len() == WORKERS && share.values().all(|queue_pairs| *queue_pairs >= 6),
        "{share:?}"
    );

    // Frames with a tag use the same worker as without. IPv6 works as well.
    let roce = udp(49_152, 4791, &bth(0, 7, 0));
    let tagged = of(&frame(0x0800, &[5, 7], &ipv4(1, 17, 0, &roce)));
    assert_eq!(tagged, of(&frame(0x0800, &[], &ipv4(1, 17, 0, &roce))));
    let by = |queue_pair| frame(0x86dd, &[], &ipv6(1, 17, &udp(1, 4791, &bth(0, queue_pair, 0))));
    assert_eq!(
        (0..24).map(|queue_pair| of(&by(queue_pair))).collect::<BTreeSet<_>>().len(),
        WORKERS
    );

    // Fragments of a datagram share a worker, although only the first has ports. Flows with
    // different ports are distributed. Frames that are not IP have a worker, too.
    let first = of(&frame(0x0800, &[], &ipv4(9, 17, 0x2000, &roce)));
    assert_eq!(of(&frame(0x0800, &[], &ipv4(9, 17, 0x0003, &MARK))), first);
    assert_eq!(of(&frame(0x0800, &[], &ipv4(9, 47, 0, &MARK))), first, "without ports");
    let port = |port| frame(0x0800, &[], &ipv4(1, 17, 0, &udp(port, 53, &[])));
    assert_eq!((0..24).map(|number| of(&port(number))).collect::<BTreeSet<_>>().len(), WORKERS);
    let other = frame(0x88b5, &[], &MARK);
    assert_eq!(of(&other), of(&other));

    // Packets from the underlay use the same hash of the inner frame. The outer source port does
    // not matter, because it may change.
    let mut outer = |frame: &[u8], port| worker(&mut underlays, &mut spine, &from(port, frame));
    let mut got = BTreeSet::new();
    for queue_pair in 0..24 {
        let inner = |sequence| {
            frame(0x0800, &[], &ipv4(1, 17, 0, &udp(49_152, 4791, &bth(0, queue_pair, sequence))))
        };
        let first = outer(&inner(0), 49_152);
        assert_eq!(first, of(&inner(1)), "as where it comes from a host");
        assert_eq!(outer(&inner(1), 50_000 + queue_pair), first, "queue pair {queue_pair}");
        got.insert(first);
    }
    assert_eq!(got.len(), WORKERS);

    // A VNI that is assigned to one worker uses only that worker, whatever the port.
    let plan = plan(&leaf);
    leaf.enter(|| remove(&mut steering, &tables::SteeringPlan::default())).unwrap();
    steering.serve(plan.vnis.first_key_value().unwrap().1.vni, 2);
    leaf.enter(|| add(&mut steering, &plan)).unwrap();
    for number in 0..24 {
        spine.send(&from(49_152, &port(number)));
    }
    assert_eq!(receive(&mut underlays[2], SOON, |frame| marked(frame.data)), 24, "all of them");
    for other in [0, 1] {
        assert_eq!(receive(&mut underlays[other], NEVER, |frame| marked(frame.data)), 0);
    }
    leaf.enter(|| drop((steering, punts))).unwrap();
    drop(private);
}

/// When one worker hangs, the kernel forwards its flows, and the programs wake it. The flows of the
/// other worker continue.
#[root_test]
fn one_worker_that_hangs_is_given_up_alone() {
    const LIMIT: Duration = Duration::from_millis(200);
    let Leaf { leaf, spine, host: _host } = leaf("onehangs");
    let (mut steering, mut punts, private) = steer_for::<2>(&leaf, Hook::Tcx, &plan(&leaf), LIMIT);
    let mut underlays: Vec<_> =
        punts.iter_mut().map(|punts| punts.underlay.take_socket().unwrap()).collect();
    let (watchdogs, mut calls) = steering.take_watch().unwrap();
    leaf.enter(|| steering.engage().unwrap()).unwrap();
    let mut spine = Sender::on(&spine, "leaf");
    let mut of = BTreeMap::new();
    for port in 0..16 {
        let frame = from(49_152, &frame(0x0800, &[], &ipv4(1, 17, 0, &udp(port, 53, &[]))));
        of.insert(worker(&mut underlays, &mut spine, &frame), frame);
    }
    let (hung, well) = (&of[&1], &of[&0]);
    for watchdog in &watchdogs {
        assert_eq!(watchdog.look(PuntSide::Underlay), None);
    }
    spine.send(hung);
    spine.send(well);
    for _ in 0..8 {
        std::thread::sleep(LIMIT / 4);
        assert_eq!(watchdogs[0].look(PuntSide::Underlay), None);
    }
    // Frames that the host's IP stack sent may wait in a bridge punt pair.
    for watchdog in &watchdogs {
        watchdog.forgive(PuntSide::Bridge);
    }
    calls.by_ref().for_each(drop);
    spine.send(hung);
    spine.send(well);
    assert_eq!(receive(&mut underlays[0], SOON, |frame| marked(frame.data)), 2);
    assert_eq!(
        receive(&mut underlays[1], NEVER, |frame| marked(frame.data)),
        1,
        "what came before"
    );
    assert_eq!(steering.counts().unwrap().uplink_stalled, 1);
    assert!(calls.by_ref().any(|worker| worker == bpf::Call::Worker(1)));
    assert!(watchdogs[1].look(PuntSide::Underlay).is_some());
    watchdogs[1].forgive(PuntSide::Underlay);
    assert_eq!(worker(&mut underlays, &mut spine, hung), 1);
    leaf.enter(|| drop((steering, punts))).unwrap();
    drop(private);
}
