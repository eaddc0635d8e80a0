//! Encapsulation: frames from the bridge, as they leave towards VTEPs.

use std::collections::BTreeSet;

use std::net::IpAddr;

use crate::common::{
    self, Leaf, OUTER, Owned, SLOT, VNI, Worker, bth, hop, open, roce, tcp, udp4, udp6,
};
use etherparse::PacketBuilder;
use path::{Policy, Settings};
use pipeline::{Destination, DropReason, Explanation, GsoKind, Offload, explain};
use proptest::prelude::*;
use tables::{DontFragment, Tos, Ttl, VniIndex};

#[test]
fn q1_one_queue_pair_one_outer_port() {
    for policy in [Policy::QpHash, Policy::QpBins] {
        let mut leaf = Leaf::one();
        leaf.settings.policy = policy;
        let (snapshot, mut worker) = (leaf.snapshot(), Worker::new());
        let mut ports = BTreeSet::new();
        let mut next = 0u32;
        for batch in 0..20u32 {
            let frames: Vec<_> = (0..64)
                .map(|i| {
                    let sequence = batch * 64 + i;
                    let mut frame =
                        udp4(0, 49_152 + (sequence % 100) as u16, 4791, &bth(0x17, sequence, 64));
                    frame[42] = sequence as u8; // Any opcode.
                    Owned::tagged(frame)
                })
                .collect();
            for (sent, transmit) in worker.encapsulate(&frames, &snapshot).iter().zip(&worker.out) {
                let opened = open(sent);
                let sequence = u32::from_be_bytes(opened.inner[50..54].try_into().unwrap());
                assert_eq!(sequence, next, "in order");
                next += 1;
                ports.insert((opened.udp.source_port, format!("{:?}", transmit.to)));
            }
        }
        assert_eq!((next, ports.len()), (1_280, 1), "{policy}: {ports:?}");
    }
}

#[test]
fn q1_queue_pairs_within_one_super_frame_have_ports_of_their_own() {
    let packets: Vec<_> = [0x11, 0x12, 0x13].iter().map(|&qp| bth(qp, 1, 20)).collect();
    let size = packets[0].len() as u16;
    let frame = udp4(0, 49_152, 4791, &packets.concat());
    let whole = Owned::tagged(frame).gso(GsoKind::Udp, size);
    let single: Vec<_> =
        packets.iter().map(|packet| Owned::tagged(udp4(0, 49_152, 4791, packet))).collect();
    let (snapshot, mut worker) = (Leaf::one().snapshot(), Worker::new());
    let ports = |frames: Vec<Vec<u8>>| -> Vec<_> {
        frames.iter().map(|f| open(f).udp.source_port).collect()
    };
    let cut = ports(worker.encapsulate(&[whole], &snapshot));
    assert_eq!(cut, ports(worker.encapsulate(&single, &snapshot)));
    assert_eq!(cut.iter().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn v2_encap_fields() {
    let mpls = {
        let mut frame = [&common::HOST[..], &common::SOURCE, &[0x88, 0x47]].concat();
        frame.extend([0x00, 0x06, 0x41, 0x40, 1, 2, 3, 4]);
        frame
    };
    let inner = [roce(1, 2), udp6(0, b"hello"), mpls, tcp(false, 0, &[1; 700])];
    for (policy, checksum, port) in [
        (Policy::QpHash, false, 4789),
        (Policy::FiveTuple, true, 1111),
        (Policy::QpBins, true, 4789),
    ] {
        let mut leaf = Leaf::one();
        leaf.settings.policy = policy;
        leaf.tunnel.udp_checksum = checksum;
        leaf.tunnel.destination_port = port;
        let snapshot = leaf.snapshot();
        let mut worker = Worker::new();
        let frames: Vec<_> = inner.iter().cloned().map(Owned::tagged).collect();
        let sent = worker.encapsulate(&frames, &snapshot);
        assert_eq!(sent.len(), inner.len());
        for ((sent, transmit), inner) in sent.iter().zip(&worker.out).zip(&inner) {
            let opened = open(sent);
            assert_eq!(opened.ip.source, [10, 0, 0, 1]);
            assert_eq!(opened.ip.destination, [10, 0, 0, 2]);
            assert_eq!((opened.ip.time_to_live, opened.ip.dont_fragment), (64, false));
            assert_eq!(opened.udp.destination_port, port);
            let Destination::Uplink { ifindex, path, .. } = transmit.to else {
                panic!("{:?}", transmit.to)
            };
            assert_eq!(u32::from(path), ifindex);
            let hop = hop(ifindex);
            assert_eq!(sent[..12], [hop.destination_mac.unwrap().0, hop.source_mac.0].concat());
            let [_, v0, v1, v2] = VNI.to_be_bytes();
            assert_eq!(opened.vxlan, [8, 0, 0, 0, v0, v1, v2, 0]);
            assert_eq!(&opened.inner, inner);
            let mut finished = sent.clone();
            if checksum {
                assert_eq!(
                    transmit.offload.checksum,
                    pipeline::Checksum::Partial { start: 34, offset: 6 }
                );
                wire::checksum::complete(&mut finished, 34, 6).unwrap();
                let value = u16::from_be_bytes([finished[40], finished[41]]);
                assert_eq!(value, common::transport_checksum(&finished, 34));
            } else {
                assert_eq!(transmit.offload, Offload::default());
                assert_eq!(opened.udp.checksum, 0);
            }
        }
        worker.assert_balance(inner.len());
    }
}

#[test]
fn v2_ten_flows_use_at_least_nine_source_ports() {
    for policy in [Policy::FiveTuple, Policy::QpHash] {
        for kind in ["queue pairs", "UDP", "IPv6", "TCP", "MPLS"] {
            let frames: Vec<_> = (0..10u8)
                .map(|flow| {
                    Owned::tagged(match kind {
                        "queue pairs" if policy == Policy::QpHash => roce(100 + u32::from(flow), 0),
                        "queue pairs" | "UDP" => udp4(0, 5_000 + u16::from(flow), 4791, &[0; 4]),
                        "IPv6" => {
                            let mut frame = udp6(0, b"x");
                            frame[37] = flow;
                            frame
                        }
                        "TCP" => {
                            let mut frame = tcp(false, 0, &[]);
                            frame[35] = flow;
                            frame
                        }
                        _ => {
                            let mut frame =
                                [&common::HOST[..], &common::SOURCE, &[0x88, 0x47]].concat();
                            frame[11] = flow;
                            frame
                        }
                    })
                })
                .collect();
            let sent = Worker::new().encapsulate(&frames, &Leaf::one().snapshot());
            let ports: BTreeSet<_> = sent.iter().map(|frame| open(frame).udp.source_port).collect();
            assert!(ports.len() >= 9, "{policy} {kind}: {ports:?}");
        }
    }
}

#[test]
fn v4_one_copy_per_vtep() {
    for remotes in 0..5u8 {
        let mut leaf = Leaf::one();
        leaf.fdb.clear();
        leaf.vteps = (0..remotes).map(|last| ([10, 0, 0, 2 + last].into(), vec![hop(3)])).collect();
        leaf.flood = (0..u32::from(remotes)).collect();
        let (snapshot, mut worker) = (leaf.snapshot(), Worker::new());
        let inner = tcp(false, 0, &(0..=255).collect::<Vec<_>>());
        let sent = worker.encapsulate(&[Owned::tagged(inner.clone())], &snapshot);
        let to: Vec<_> = sent.iter().map(|frame| open(frame).ip.destination[3]).collect();
        assert_eq!(to, (2..2 + remotes).collect::<Vec<_>>());
        assert!(sent.iter().all(|frame| frame[OUTER..] == inner));
        worker.assert_balance(usize::from(remotes));
        assert_eq!(worker.dropped(DropReason::NoRemote), u64::from(remotes == 0));
        assert_eq!(
            worker.pipeline.counters().vni(SLOT).unwrap().flooded.get(),
            u64::from(remotes > 0)
        );
    }
}

#[test]
fn v4_each_segment_of_a_super_frame_goes_to_each_vtep() {
    let mut leaf = Leaf::one();
    leaf.fdb.clear();
    let payload: Vec<_> = (0..3_500u32).map(|i| (i * 7) as u8).collect();
    let frame = Owned::tagged(tcp(false, 0, &payload)).gso(GsoKind::TcpV4, 1_000);
    let mut worker = Worker::new();
    let sent = worker.encapsulate(&[frame], &leaf.snapshot());
    worker.assert_balance(8);
    for last in [2, 3] {
        let got: Vec<u8> = sent
            .iter()
            .map(|frame| open(frame))
            .filter(|opened| opened.ip.destination[3] == last)
            .flat_map(|opened| opened.inner[66..].to_vec())
            .collect();
        assert_eq!(got, payload);
    }
}

/// As L2, with an unreachable VTEP in the flood list. The other VTEPs get their copies.
#[test]
fn l2_a_vtep_without_route_neither_doubles_nor_stops_the_others() {
    let mut leaf = Leaf::one();
    leaf.vteps = (2..5).map(|last| ([10, 0, 0, last].into(), vec![hop(3)])).collect();
    leaf.vteps[1].1.clear();
    leaf.flood = vec![0, 1, 2, 9];
    leaf.fdb.clear();
    let mut worker = Worker::new();
    let sent = worker.encapsulate(&[Owned::tagged(roce(1, 1))], &leaf.snapshot());
    let to: Vec<_> = sent.iter().map(|frame| open(frame).ip.destination[3]).collect();
    assert_eq!((to, worker.dropped(DropReason::NoRoute)), (vec![2, 4], 2));
    worker.assert_balance(2);
}

#[test]
fn l3_known_unicast_goes_to_one_place() {
    let mut leaf = Leaf::one();
    leaf.fdb.push(([2, 0, 0, 0, 0, 0x33], 1));
    let frames: Vec<_> = [0x22, 0x33, 0x44]
        .map(|last| {
            let mut frame = roce(1, 1);
            frame[5] = last;
            Owned::tagged(frame)
        })
        .to_vec();
    let sent = Worker::new().encapsulate(&frames, &leaf.snapshot());
    let to: Vec<_> =
        sent.iter().map(|frame| (frame[OUTER + 5], open(frame).ip.destination[3])).collect();
    assert_eq!(to, [(0x22, 2), (0x33, 3), (0x44, 2), (0x44, 3)]);
}

/// The outer ToS for an inner frame.
fn tos(leaf: &Leaf, inner: Vec<u8>) -> u8 {
    Worker::new().encapsulate(&[Owned::tagged(inner)], &leaf.snapshot())[0][15]
}

#[test]
fn l5_tos() {
    let mut leaf = Leaf::one();
    assert_eq!(tos(&leaf, udp4(0x14, 1, 2, b"x")), 0x14);
    assert_eq!(tos(&leaf, udp6(0x14, b"x")), 0x14);
    let arp = [&[0xff; 6][..], &common::SOURCE, &[8, 6], &[0; 28]].concat();
    assert_eq!(tos(&leaf, arp.clone()), 0);
    leaf.tunnel.tos = Tos::Fixed(0x33);
    assert_eq!(tos(&leaf, udp4(0x14, 1, 2, b"x")), 0x30, "the ECN bits are the inner packet's");
    assert_eq!(tos(&leaf, arp), 0x30);
}

#[test]
fn l6_ecn_encap() {
    for ipv6 in [false, true] {
        for (inner, outer) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
            for (fixed, dscp) in [(Tos::Inherit, 0xb8), (Tos::Fixed(0x20), 0x20)] {
                let mut leaf = Leaf::one();
                leaf.tunnel.tos = fixed;
                let frame =
                    if ipv6 { udp6(0xb8 | inner, b"x") } else { udp4(0xb8 | inner, 1, 2, b"x") };
                assert_eq!(tos(&leaf, frame), dscp | outer, "inner {inner}");
            }
        }
    }
}

#[test]
fn l4_ttl_and_df_follow_the_netdev() {
    let with_ttl = |ttl, ipv6| {
        let mut frame = if ipv6 { udp6(0, b"x") } else { udp4(0, 1, 2, b"x") };
        frame[if ipv6 { 21 } else { 22 }] = ttl;
        frame
    };
    let outer = |leaf: &Leaf, inner| {
        open(&Worker::new().encapsulate(&[Owned::tagged(inner)], &leaf.snapshot())[0]).ip
    };
    let mut leaf = Leaf::one();
    leaf.tunnel.ttl = Ttl::Fixed(9);
    assert_eq!(outer(&leaf, with_ttl(77, false)).time_to_live, 9);
    leaf.tunnel.ttl = Ttl::Inherit { default: 64 };
    assert_eq!(outer(&leaf, with_ttl(77, false)).time_to_live, 77);
    assert_eq!(outer(&leaf, with_ttl(78, true)).time_to_live, 78);
    assert_eq!(outer(&leaf, with_ttl(0, false)).time_to_live, 64);
    for (df, expected) in [
        (DontFragment::Unset, [false, false, false]),
        (DontFragment::Set, [true, true, true]),
        (DontFragment::Inherit, [false, true, true]),
    ] {
        leaf.tunnel.df = df;
        let mut fragile = udp4(0, 1, 2, b"x");
        fragile[20] |= 0x40;
        let got = [udp4(0, 1, 2, b"x"), fragile, udp6(0, b"x")]
            .map(|inner| outer(&leaf, inner).dont_fragment);
        assert_eq!(got, expected, "{df:?}");
    }
}

#[test]
fn the_underlays_mtu_is_kept() {
    let mut leaf = Leaf::one();
    for hop in &mut leaf.vteps[0].1 {
        hop.mtu = 1_550;
    }
    let (snapshot, mut worker) = (leaf.snapshot(), Worker::new());
    // 14 + 20 + 8 + 1,472 inner, 36 outer: 1,550.
    assert_eq!(
        worker.encapsulate(&[Owned::tagged(udp4(0, 1, 2, &[0; 1_472]))], &snapshot).len(),
        1
    );
    assert_eq!(
        worker.encapsulate(&[Owned::tagged(udp4(0, 1, 2, &[0; 1_473]))], &snapshot).len(),
        0
    );
    assert_eq!(worker.dropped(DropReason::TooBig), 1);
}

#[test]
fn frames_without_a_slot_of_ours_are_dropped() {
    let (snapshot, mut worker) = (Leaf::one().snapshot(), Worker::new());
    let mut other = Owned::tagged(roce(1, 1));
    other.vlan.as_mut().unwrap().tci = SLOT + 1;
    let mut customer = Owned::tagged(roce(1, 1));
    customer.vlan.as_mut().unwrap().tpid = 0x8100;
    assert!(worker.encapsulate(&[other, customer, Owned::plain(roce(1, 1))], &snapshot).is_empty());
    assert_eq!(worker.dropped(DropReason::UnknownSlot), 3);
    // Priority bits are not part of the slot.
    let mut prioritised = Owned::tagged(roce(1, 1));
    prioritised.vlan.as_mut().unwrap().tci |= 0xe000;
    assert_eq!(worker.encapsulate(&[prioritised], &snapshot).len(), 1);
}

fn any_inner() -> impl Strategy<Value = Owned> {
    let frame = prop_oneof![
        (0..40u32, any::<u32>()).prop_map(|(qp, sequence)| roce(qp, sequence)),
        (any::<u8>(), any::<u16>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(tos, from, to, payload)| udp4(tos, from, to, &payload)),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(class, payload)| udp6(class, &payload)),
        (any::<bool>(), any::<u8>()).prop_map(|(ipv6, flags)| tcp(ipv6, flags, &[3; 333])),
        prop::collection::vec(any::<u8>(), 0..80),
        any::<u16>().prop_map(|id| {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(common::SOURCE, [0xff; 6])
                .single_vlan(etherparse::VlanId::try_new(id & 0xfff).unwrap())
                .ipv4([10, 1, 0, 1], [10, 1, 0, 2], 3)
                .udp(1, 4791)
                .write(&mut frame, &bth(5, 6, 7))
                .unwrap();
            frame
        }),
    ];
    (frame, any::<u8>(), 0..100u16).prop_map(|(frame, choice, size)| {
        let owned = Owned::tagged(frame);
        match choice {
            0..50 => owned.gso(GsoKind::Udp, size),
            50..70 => owned.gso(GsoKind::TcpV4, size),
            70..90 => owned.gso(GsoKind::TcpV6, size),
            90..120 => owned.partial(34, 6),
            _ => owned,
        }
    })
}

proptest! {
    #[test]
    fn q9_explain_says_what_is_sent(
        frames in prop::collection::vec(any_inner(), 1..20),
        policy in prop::sample::select(Policy::ALL.to_vec()),
        seed: u64,
        tos in prop_oneof![Just(Tos::Inherit), any::<u8>().prop_map(Tos::Fixed)],
        ttl in prop_oneof![Just(Ttl::Inherit { default: 64 }), (1..=255u8).prop_map(Ttl::Fixed)],
        df in prop::sample::select(vec![DontFragment::Set, DontFragment::Unset, DontFragment::Inherit]),
        (mtu, hops, unresolved) in (100..400u32, 0..4u32, any::<bool>()),
    ) {
        let mut leaf = Leaf::one();
        leaf.settings = Settings { policy, seed, ..leaf.settings };
        (leaf.tunnel.tos, leaf.tunnel.ttl, leaf.tunnel.df) = (tos, ttl, df);
        leaf.vteps[1].1 = (10..10 + hops).map(hop).collect();
        if let Some(hop) = leaf.vteps[1].1.first_mut() {
            hop.mtu = mtu;
        }
        if unresolved && let Some(hop) = leaf.vteps[1].1.last_mut() {
            hop.destination_mac = None;
        }
        let (snapshot, mut worker) = (leaf.snapshot(), Worker::new());
        for frame in frames {
            let counters = worker.pipeline.counters();
            let before: Vec<_> = DropReason::ALL.iter().map(|&reason| counters.dropped(reason)).collect();
            let held = counters.held.get();
            let mut sent = worker.encapsulate(std::slice::from_ref(&frame), &snapshot).into_iter();
            let mut destinations = worker.out.iter();
            let counters = worker.pipeline.counters();
            let mut drops: Vec<_> =
                DropReason::ALL.iter().zip(before).map(|(&reason, before)| counters.dropped(reason) - before).collect();
            let mut waiting = counters.held.get() - held;

            let explanation = explain(&frame.frame(), VniIndex::new(SLOT).unwrap(), &snapshot, std::time::Instant::now(), &path::Pins::default());
            match explanation {
                Explanation::Dropped(reason) => drops[reason as usize] -= 1,
                Explanation::Forwarded(forwarded) => {
                    prop_assert_eq!(forwarded.vni.get(), VNI);
                    for copy in forwarded.copies {
                        let route = match copy.route {
                            Ok(route) => route,
                            Err(reason) => {
                                drops[reason as usize] -= 1;
                                continue;
                            }
                        };
                        prop_assert_eq!(route.source_port, copy.entropy.decision.source_port);
                        let Some(destination_mac) = route.destination_mac else {
                            waiting -= 1;
                            continue;
                        };
                        let (bytes, transmit) = (sent.next().unwrap(), destinations.next().unwrap());
                        let (IpAddr::V4(local), IpAddr::V4(remote)) = (route.local, route.remote)
                        else { panic!("{route:?}") };
                        let mut expected = etherparse::Ipv4Header::new(
                            route.length - 20,
                            route.ttl,
                            etherparse::IpNumber::UDP,
                            local.octets(),
                            remote.octets(),
                        ).unwrap();
                        expected.dscp = etherparse::IpDscp::try_new(route.tos >> 2).unwrap();
                        expected.ecn = etherparse::IpEcn::try_new(route.tos & 3).unwrap();
                        expected.dont_fragment = route.dont_fragment;
                        expected.identification = u16::from_be_bytes([bytes[18], bytes[19]]);
                        expected.header_checksum = expected.calc_header_checksum();
                        let udp = etherparse::UdpHeader {
                            source_port: route.source_port,
                            destination_port: route.destination_port,
                            length: route.length - 20,
                            checksum: 0,
                        };
                        let [_, v0, v1, v2] = forwarded.vni.get().to_be_bytes();
                        let outer = [
                            &destination_mac.0[..], &route.source_mac.0, &[8, 0],
                            &expected.to_bytes(), &udp.to_bytes(), &[8, 0, 0, 0, v0, v1, v2, 0],
                        ].concat();
                        prop_assert_eq!(&bytes[..OUTER], &outer);
                        prop_assert_eq!(bytes.len(), usize::from(route.length) + 14);
                        let Destination::Uplink { ifindex, .. } = transmit.to else { panic!() };
                        prop_assert_eq!(ifindex, route.uplink);
                    }
                }
            }
            prop_assert!(sent.next().is_none());
            prop_assert_eq!((drops.iter().sum::<u64>(), waiting), (0, 0));
        }
    }
}

#[test]
fn q9_an_explanation() {
    let snapshot = Leaf::one().snapshot();
    let frame = Owned::tagged(roce(0x17, 1));
    let explained = |frame: &Owned| {
        let index = VniIndex::new(SLOT).unwrap();
        let now = std::time::Instant::now();
        explain(&frame.frame(), index, &snapshot, now, &path::Pins::default())
    };
    let Explanation::Forwarded(forwarded) = explained(&frame) else { panic!("it is dropped") };
    let port = open(&Worker::new().encapsulate(&[frame], &snapshot)[0]).udp.source_port;
    let to = (forwarded.vni.to_string(), &*forwarded.netdev, forwarded.destination.to_string());
    assert_eq!(to, ("10010".to_owned(), "vx10010", "02:00:00:00:00:22".to_owned()));
    assert!(!forwarded.flooded);
    let [copy] = &forwarded.copies[..] else { panic!("{:?}", forwarded.copies) };
    assert_eq!(copy.remote.unwrap().to_string(), "10.0.0.2");
    let entropy = copy.entropy;
    assert_eq!(
        (entropy.policy.to_string(), entropy.key.to_string(), entropy.reason.to_string()),
        (
            "qp-hash".to_owned(),
            "queue pair 0x17, 10.1.0.1 to 10.1.0.2".to_owned(),
            "RoCE BTH found".to_owned()
        )
    );
    assert_eq!((entropy.decision.source_port, &*entropy.range.to_string()), (port, "49152-65535"));
    assert_eq!(copy.route.as_ref().unwrap().choices, 2);
    let short = Owned::tagged(vec![0; 13]);
    assert_eq!(explained(&short), Explanation::Dropped(DropReason::Truncated));
    let sentence = DropReason::Truncated.sentence();
    assert_eq!(sentence.trim(), "The frame is shorter than its headers say.");
}
