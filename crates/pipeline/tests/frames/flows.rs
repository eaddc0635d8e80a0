//! The caches of known flows and senders do not change any result.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::{self, HOST, Leaf, Owned, Worker, bth, hop, tcp, udp4, udp6};
use path::{Policy, Settings};
use pipeline::explain_received::Fate;
use pipeline::{Destination, DropReason, Gso, GsoKind, TxFrame, explain_received};
use proptest::prelude::*;
use tables::{DontFragment, Learning, NextHop, Tos, Ttl};
use wire::MacAddr;

/// An address that is in no table.
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// Variants of leaf 1 that send the same frame differently, or drop it.
fn leaves() -> Vec<Leaf> {
    let one = Leaf::one();
    let change = |change: &dyn Fn(&mut Leaf)| {
        let mut leaf = one.clone();
        change(&mut leaf);
        leaf
    };
    let hops = |change: &dyn Fn(&mut NextHop)| {
        let mut leaf = one.clone();
        leaf.vteps.iter_mut().flat_map(|(_, hops)| hops).for_each(change);
        leaf
    };
    vec![
        one.clone(),
        change(&|leaf| leaf.settings = Settings { policy: Policy::FiveTuple, ..leaf.settings }),
        change(&|leaf| {
            leaf.settings = Settings { policy: Policy::QpBins, seed: 9, ..leaf.settings }
        }),
        change(&|leaf| leaf.tunnel.udp_checksum = true),
        change(&|leaf| {
            leaf.tunnel.ttl = Ttl::Inherit { default: 33 };
            leaf.tunnel.df = DontFragment::Inherit;
        }),
        change(&|leaf| leaf.tunnel.tos = Tos::Fixed(0xb8)),
        change(&|leaf| leaf.tunnel.local = IpAddr::from([10, 0, 0, 99])),
        change(&|leaf| leaf.vteps[0].1 = vec![hop(4)]),
        change(&|leaf| leaf.vteps[0].1 = Vec::new()),
        change(&|leaf| leaf.fdb = vec![(HOST, 1)]),
        change(&|leaf| leaf.fdb = vec![(STRANGER, 0)]),
        change(&|leaf| leaf.flood = vec![0]),
        hops(&|hop| hop.mtu = 250),
        hops(&|hop| hop.destination_mac = None),
        hops(&|hop| hop.destination_mac = Some(MacAddr([2, 3, 3, 3, 3, 3]))),
        hops(&|hop| hop.by_default = true),
        hops(&|hop| hop.impaired = true),
    ]
}

/// A frame of one of a few flows, mostly complete RoCE, with possible defects.
fn frame() -> impl Strategy<Value = Owned> {
    let roce = (0u32..3, any::<u8>(), 0usize..300, 0u8..8, prop::bool::weighted(0.9));
    let rest = (0u8..40, 0usize..58, any::<u8>());
    (roce, rest).prop_map(|((queue_pair, sequence, payload, tos, known), (kind, at, byte))| {
        let datagram = bth(queue_pair * 0x51_4131, u32::from(sequence), payload);
        let mut data = udp4(tos & 3, 49_152 + u16::from(tos >> 2), 4791, &datagram);
        if !known {
            data[..6].copy_from_slice(&STRANGER);
        }
        let at = at % data.len();
        match kind {
            0 => data[at] = byte,
            1 => data[at] ^= 1 << (byte & 7),
            2 => data.truncate(at),
            3 => data.extend(vec![0; at]),
            4 => data[20] = 0x40,
            5 => data[20] = 0x20,
            6 => data[22] = byte,
            // A VLAN tag or IPv4 options shift the headers.
            7 => drop(data.splice(12..12, [0x81, 0, 0, 5])),
            8 => {
                data[14] = 0x46;
                data.splice(34..34, [1; 4]);
            }
            9 | 16..=18 => return Owned::tagged(udp6(tos, &datagram)),
            10 => return Owned::tagged(tcp(false, 0, &[1; 50])),
            11 => return Owned::tagged(data).partial(34, 6),
            12 => return Owned::tagged(data).gso(GsoKind::Udp, 100),
            13 => return Owned::plain(data),
            14 => data[39] = at as u8,
            15 => {
                let mut frame = Owned::tagged(data);
                frame.vlan.as_mut().unwrap().tci = u16::from(byte) << 4 | common::SLOT;
                return frame;
            }
            _ => {}
        }
        Owned::tagged(data)
    })
}

/// All properties of a frame except its bytes.
fn rest(sent: &TxFrame) -> impl PartialEq + std::fmt::Debug + use<> {
    (sent.to, sent.vni, sent.vtep, sent.offload, sent.segments, sent.head().len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A pipeline with a cache behaves like one that gets a new snapshot for each step, across
    /// repeated changes of the tables.
    #[test]
    fn with_memory_as_without(
        steps in prop::collection::vec((0..leaves().len(), prop::collection::vec(frame(), 1..16)), 1..12)
    ) {
        let leaves = leaves();
        let snapshots: Vec<_> = leaves.iter().map(Leaf::snapshot).collect();
        let (mut with, mut without) = (Worker::new(), Worker::new());
        let now = Instant::now();
        let mut generation = 1;
        let mut another = |leaf: usize| {
            generation += 1;
            Leaf { generation, ..leaves[leaf].clone() }.snapshot()
        };
        for (leaf, frames) in steps {
            with.out.clear();
            without.out.clear();
            with.pipeline.release(&snapshots[leaf], now, &mut with.out);
            without.pipeline.release(&another(leaf), now, &mut without.out);
            prop_assert_eq!(with.bytes(), without.bytes());
            let mut rests = Vec::new();
            let mut expected = Vec::new();
            for frame in &frames {
                expected.extend(without.encapsulate_at(std::slice::from_ref(frame), &another(leaf), now));
                rests.extend(without.out.iter().map(rest));
            }
            prop_assert_eq!(with.encapsulate_at(&frames, &snapshots[leaf], now), expected);
            prop_assert_eq!(with.out.iter().map(rest).collect::<Vec<_>>(), rests);
        }
        let (with, without) = (with.pipeline.counters(), without.pipeline.counters());
        let count = |counters: &pipeline::Counters| {
            let drops: Vec<_> = DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).collect();
            let flooded = counters.vni(common::SLOT).unwrap().flooded.get();
            (drops, flooded, counters.copies.get(), counters.held.get(), counters.bridge_received.get())
        };
        prop_assert_eq!(count(with), count(without));
    }
}

/// Variants of the remote leaf.
fn peers() -> Vec<Leaf> {
    let two = Leaf::two();
    let change = |change: &dyn Fn(&mut Leaf)| {
        let mut leaf = two.clone();
        change(&mut leaf);
        leaf
    };
    let learning = || Learning { ifindex: 11, ageing: None, fixed: Default::default() };
    vec![
        two.clone(),
        change(&|leaf| leaf.vteps.swap(0, 1)),
        change(&|leaf| leaf.vteps[0].0 = IpAddr::from([10, 0, 0, 77])),
        change(&|leaf| {
            leaf.vteps[0].0 = IpAddr::from([10, 0, 0, 77]);
            leaf.strict = true;
        }),
        change(&|leaf| leaf.learning = Some(learning())),
        change(&|leaf| leaf.hosts = vec![(common::HOST, 8)]),
        change(&|leaf| leaf.hosts = vec![(common::HOST, 9)]),
        change(&|leaf| leaf.tunnel.local = IpAddr::from([10, 0, 0, 9])),
        change(&|leaf| leaf.tunnel.destination_port = 4790),
        change(&|leaf| leaf.tunnel.vni = wire::Vni::try_from(common::VNI + 1).unwrap()),
    ]
}

/// A frame from the underlay, with possible anomalies.
fn received() -> impl Strategy<Value = Owned> {
    let frame = (frame(), 0u8..40, 0usize..110, any::<u8>());
    frame.prop_filter_map("sent", |(inner, kind, at, byte)| {
        let sent = Worker::new().encapsulate(&[inner], &Leaf::one().snapshot());
        let mut data = sent.into_iter().next()?;
        match kind {
            0..=5 => data[15] = byte,
            6 => data[26..30].copy_from_slice(&[10, 0, 0, byte & 3]),
            16..=21 => data[26..30].copy_from_slice(&[10, 0, byte, at as u8]),
            22..=27 => data[47..49].copy_from_slice(&[byte, at as u8]),
            28 => data[37] ^= 3,
            7 => data[30..34].copy_from_slice(&[10, 0, 0, 8 | byte & 3]),
            8 => *data.get_mut(at)? ^= 1 << (byte & 7),
            9 => data[42 + at % 8] ^= byte,
            10 => {
                data[56..62].copy_from_slice(if byte & 1 == 0 { &common::NETDEV } else { &[0; 6] })
            }
            11 => data[56] |= 1,
            12 => data.truncate(50 + at),
            13 => drop(data.splice(62..62, [0x81, 0, 0, 5])),
            // Two packets of one flow in one super-frame. The second begins like the first.
            14 => {
                let size = data.len() - 42;
                data.extend_from_within(42..);
                fit(&mut data);
                let mut frame = Owned::plain(data).partial(34, 6);
                frame.offload.gso = Some(Gso { kind: GsoKind::Udp, size: size as u16, ecn: false });
                return Some(frame);
            }
            _ => {}
        }
        if kind != 8 {
            fit(&mut data);
        }
        Some(Owned::plain(data))
    })
}

/// Corrects lengths and IPv4 checksum of an outer header.
fn fit(data: &mut [u8]) {
    let length = data.len() as u16;
    data[16..18].copy_from_slice(&(length - 14).to_be_bytes());
    data[38..40].copy_from_slice(&(length - 34).to_be_bytes());
    data[24..26].fill(0);
    let sum = wire::checksum::checksum(&data[14..34]);
    data[24..26].copy_from_slice(&sum.to_be_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The same for received frames.
    #[test]
    fn received_with_memory_as_without(
        steps in prop::collection::vec(
            (0..peers().len(), prop::collection::vec(received(), 1..12), 0u64..10), 1..12)
    ) {
        let peers = peers();
        let snapshots: Vec<_> = peers.iter().map(Leaf::snapshot).collect();
        let (mut with, mut without) = (Worker::new(), Worker::new());
        with.pipeline.open_ports(&[common::open_port(8)]);
        without.pipeline.open_ports(&[common::open_port(8)]);
        let mut now = Instant::now();
        let mut generation = 1;
        for (leaf, frames, pause) in steps {
            now += Duration::from_millis(pause);
            let (mut rests, mut expected) = (Vec::new(), Vec::new());
            for frame in &frames {
                generation += 1;
                let another = Leaf { generation, ..peers[leaf].clone() }.snapshot();
                expected.extend(without.decapsulate_at(std::slice::from_ref(frame), &another, now));
                rests.extend(without.out.iter().map(rest));
            }
            prop_assert_eq!(with.decapsulate_at(&frames, &snapshots[leaf], now), expected);
            prop_assert_eq!(with.out.iter().map(rest).collect::<Vec<_>>(), rests);
        }
        let (with, without) = (with.pipeline.counters(), without.pipeline.counters());
        let count = |counters: &pipeline::Counters| {
            let drops: Vec<_> = DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).collect();
            let unknown = counters.vni(common::SLOT).unwrap().unknown_vtep.get();
            (drops, unknown, counters.copies.get(), counters.underlay_received.get())
        };
        prop_assert_eq!(count(with), count(without));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is explained of a received frame is what a worker does with it.
    #[test]
    fn an_explanation_is_what_is_done(leaf in 0..peers().len(), frame in received()) {
        let (snapshot, now) = (peers()[leaf].snapshot(), Instant::now());
        let ports = [common::open_port(8)];
        let mut worker = Worker::new();
        worker.pipeline.open_ports(&ports);
        worker.decapsulate_at(std::slice::from_ref(&frame), &snapshot, now);
        let sent: Vec<_> = worker.out.iter().map(|sent| sent.to).collect();
        let dropped = |reason: &&DropReason| worker.dropped(**reason) > 0;
        let dropped = DropReason::ALL.iter().find(dropped).copied();
        let explained = explain_received(&frame.frame(), &snapshot, &ports, now).fate;
        match explained {
            // The steering program would not have passed it to the worker.
            Fate::Kernel(_) => prop_assert!(sent.is_empty() && dropped.is_some()),
            Fate::Dropped(reason) => prop_assert_eq!((sent, dropped), (vec![], Some(reason))),
            // The metadata of a capture does not tell that a checksum is not complete.
            Fate::Bridge(_) | Fate::Host { .. }
                if dropped == Some(DropReason::OuterUdpChecksum) => {}
            Fate::Bridge(_) => prop_assert_eq!(sent.first(), Some(&Destination::Bridge)),
            Fate::Host { port, .. } => {
                prop_assert_eq!(sent.first(), Some(&Destination::Host(port)));
            }
        }
    }
}

/// Unknown senders. Some of them have the same cache entry as the known one.
#[test]
fn strangers_are_not_taken_for_a_vtep_that_is_remembered() {
    let known = Worker::new()
        .encapsulate(&[Owned::tagged(common::roce(1, 1))], &Leaf::one().snapshot())
        .remove(0);
    let (snapshot, mut worker) = (Leaf::two().snapshot(), Worker::new());
    for number in 0u32..2_000 {
        let mut stranger = known.clone();
        stranger[26..30].copy_from_slice(&(0x0a63_0000 + number).to_be_bytes());
        fit(&mut stranger);
        worker.decapsulate(&[Owned::plain(known.clone()), Owned::plain(stranger)], &snapshot);
        assert_eq!(
            worker.out.iter().map(|sent| sent.vtep.is_some()).collect::<Vec<_>>(),
            [true, false]
        );
    }
    assert_eq!(worker.pipeline.counters().vni(common::SLOT).unwrap().unknown_vtep.get(), 2_000);
}

/// More flows than the cache can hold, sent in turn repeatedly.
#[test]
fn flows_that_find_no_room_are_decided_about_again() {
    let leaf = Leaf::one();
    let (snapshot, mut worker) = (leaf.snapshot(), Worker::new());
    let mut first: Vec<u16> = Vec::new();
    for round in 0..2 {
        let mut ports = Vec::new();
        for start in (0..20_000).step_by(50) {
            let frames: Vec<_> = (start..start + 50)
                .map(|n| Owned::tagged(udp4(0, 49_152, 4791, &bth(n, round, 10))))
                .collect();
            let sent = worker.encapsulate(&frames, &snapshot);
            ports.extend(sent.iter().map(|sent| u16::from_be_bytes([sent[34], sent[35]])));
        }
        if round == 0 {
            first = ports;
        } else {
            assert_eq!(first, ports);
        }
    }
    let counters = worker.pipeline.counters();
    let [hits, misses, evictions] =
        [&counters.flow_cache.hits, &counters.flow_cache.misses, &counters.flow_cache.evictions]
            .map(pipeline::counters::Counter::get);
    assert_eq!(hits + misses, 40_000);
    assert!(evictions > 0 && evictions < misses, "{evictions} of {misses}");
    assert!(worker.pipeline.flows(Instant::now()).len() <= 4096);
}

#[test]
fn remembered_flows_are_counted_and_listed() {
    let leaf = Leaf::one();
    let (snapshot, mut worker, start) = (leaf.snapshot(), Worker::new(), Instant::now());
    let frames = |pairs: &[u32]| -> Vec<Owned> {
        pairs.iter().map(|pair| Owned::tagged(common::roce(*pair, 1))).collect()
    };
    let counts = |worker: &Worker| {
        let cache = &worker.pipeline.counters().flow_cache;
        [&cache.hits, &cache.misses, &cache.evictions].map(pipeline::counters::Counter::get)
    };
    let sent = worker.encapsulate_at(&frames(&[0x1234, 7]), &snapshot, start);
    assert_eq!(counts(&worker), [0, 2, 0]);
    worker.encapsulate_at(&[Owned::tagged(tcp(false, 0, &[1; 9]))], &snapshot, start);
    assert_eq!(counts(&worker), [0, 2, 0], "only RoCE");
    worker.encapsulate_at(&frames(&[7, 0x1234, 7]), &snapshot, start);
    assert_eq!(counts(&worker), [3, 2, 0]);

    let later = start + Duration::from_secs(3);
    let mut flows = worker.pipeline.flows(later);
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.queue_pair.get()));
    for (flow, sent) in flows.iter().zip(&sent) {
        let outer = common::open(sent);
        assert_eq!(flow.path.unwrap().1, outer.udp.source_port);
        assert_eq!(flow.vtep.octets(), outer.ip.destination);
        assert_eq!((flow.slot, flow.destination_mac.0), (common::SLOT, HOST));
        let hosts = (flow.source.octets(), flow.destination.octets());
        assert_eq!(hosts, common::HOSTS_4);
        assert_eq!((flow.age, flow.is_current), (Duration::from_secs(3), true));
    }
    let pairs: Vec<u32> = flows.iter().map(|flow| flow.queue_pair.get()).collect();
    assert_eq!(pairs, [0x1234, 7]);

    // A new snapshot: a flow is current again once it was confirmed.
    worker.encapsulate_at(&frames(&[7]), &leaf.snapshot(), later);
    let current = |worker: &Worker| -> Vec<u32> {
        let flows = worker.pipeline.flows(later).into_iter().filter(|flow| flow.is_current);
        flows.map(|flow| flow.queue_pair.get()).collect()
    };
    assert_eq!(current(&worker), [7]);
}

/// After the paths have changed, a flow takes the place of its own old entry.
#[test]
fn a_flow_is_remembered_once() {
    let (snapshots, mut worker) = ([Leaf::one().snapshot(), Leaf::two().snapshot()], Worker::new());
    for round in 0..6 {
        for number in 0..4000_u32 {
            // Another order in each round, so that entries of a set are used in another order.
            let pair = (number * 1999 * (round + 1) + 7 * round) % 4001;
            let frame = Owned::tagged(common::roce(pair, 1));
            worker.encapsulate(&[frame], &snapshots[round as usize % 2]);
        }
        let flows = worker.pipeline.flows(Instant::now());
        let pairs: std::collections::BTreeSet<u32> =
            flows.iter().map(|flow| flow.queue_pair.get()).collect();
        assert_eq!(pairs.len(), flows.len(), "round {round}: flows are there twice");
    }
}
