//! Every frame is accounted for, and frames that wait for a next hop leave in order.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, HOST, Leaf, OUTER, Owned, SLOT, Worker, hop, open, roce, tcp, udp4};
use pipeline::counters::{PEERS, Traffic};
use pipeline::unresolved::{LONGEST_WAIT, PER_NEXT_HOP, REQUEST_INTERVAL};
use pipeline::{Checksum, Destination, DropReason, Gso, GsoKind, Offload, VlanTag, VtepId};
use proptest::prelude::*;
use tables::{DontFragment, Snapshot, SnapshotBuilder, Vtep, VtepIndex};

fn offload() -> impl Strategy<Value = Offload> {
    let place = |max: u16| prop_oneof![4 => 0..max, 1 => any::<u16>()];
    let checksum = prop_oneof![
        Just(Checksum::AsIs),
        Just(Checksum::Valid),
        Just(Checksum::Partial { start: 34, offset: 6 }),
        Just(Checksum::Partial { start: 34, offset: 16 }),
        Just(Checksum::Partial { start: 84, offset: 16 }),
        (place(200), place(40)).prop_map(|(start, offset)| Checksum::Partial { start, offset }),
    ];
    let kind = prop::sample::select(vec![GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp]);
    let gso =
        prop::option::of((kind, place(300), any::<bool>()).prop_map(|(kind, size, ecn)| Gso {
            kind,
            size,
            ecn,
        }));
    (checksum, gso).prop_map(|(checksum, gso)| Offload { checksum, gso })
}

/// Frames of all kinds: complete, truncated, padded and with modified bits.
fn frame() -> impl Strategy<Value = Owned> {
    let vxlan = |inner: Vec<u8>| {
        let mut worker = Worker::new();
        worker.encapsulate(&[Owned::tagged(inner)], &Leaf::two().snapshot()).remove(0)
    };
    let good = prop_oneof![
        (0..4u32).prop_map(|qp| roce(qp, 1)),
        (any::<bool>(), any::<u8>(), 0..2_000usize).prop_map(|(v6, flags, n)| tcp(
            v6,
            flags,
            &vec![1; n]
        )),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|payload| udp4(3, 1, 4791, &payload)),
        prop::collection::vec(any::<u8>(), 0..200),
        Just(common::sctp().0),
    ];
    let good = prop_oneof![2 => good, 1 => (0..3u32).prop_map(move |qp| vxlan(roce(qp, 1)))];
    let change = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let length = prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    let tag = prop_oneof![
        6 => Just(Some(VlanTag { tpid: 0x88a8, tci: SLOT })),
        2 => Just(None),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(tpid, tci)| Some(VlanTag { tpid, tci })),
    ];
    let to = prop::sample::select(vec![HOST, [0xff; 6], [2, 0, 0, 0, 0, 9]]);
    (good, change, length, tag, offload(), to).prop_map(
        |(mut data, change, length, vlan, offload, to)| {
            if data.len() > 6 && vlan.is_some() {
                data[..6].copy_from_slice(&to);
            }
            for (at, value) in change {
                if !data.is_empty() {
                    let at = at.index(data.len());
                    data[at] = value;
                }
            }
            if let Some(length) = length {
                data.truncate(length.index(data.len() + 1));
            }
            Owned { data, vlan, offload }
        },
    )
}

fn leaf() -> impl Strategy<Value = Leaf> {
    let hops = prop::collection::vec(
        (3..6u32, any::<bool>(), prop_oneof![Just(9_500u32), 60..2_000u32]),
        0..3,
    );
    let vteps = prop::collection::vec(hops, 1..4);
    let flood = prop::collection::vec(0..5u32, 0..4);
    (vteps, flood, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(vteps, flood, known, strict, udp_checksum)| {
            let mut leaf = Leaf::one();
            leaf.vteps = vteps
                .into_iter()
                .zip(2..)
                .map(|(hops, last)| {
                    let hops = hops.into_iter().map(|(ifindex, resolved, mtu)| {
                        let mut hop = hop(ifindex);
                        hop.mtu = mtu;
                        hop.destination_mac = hop.destination_mac.filter(|_| resolved);
                        hop
                    });
                    ([10, 0, 0, last].into(), hops.collect())
                })
                .collect();
            leaf.flood = flood;
            leaf.strict = strict;
            leaf.tunnel.udp_checksum = udp_checksum;
            leaf.tunnel.df = DontFragment::Inherit;
            if !known {
                leaf.fdb.clear();
            }
            leaf
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn q12_every_frame_is_accounted_for(
        rounds in prop::collection::vec((leaf(), prop::collection::vec(frame(), 0..20), 0..3_000u64, any::<u64>()), 1..6),
    ) {
        let mut worker = Worker::new();
        let mut now = Instant::now();
        let mut received = 0;
        for (leaf, frames, milliseconds, outcomes) in rounds {
            now += Duration::from_millis(milliseconds);
            let snapshot = leaf.snapshot();
            let account = |worker: &Worker| {
                for (transmit, i) in worker.out.iter().zip(0..) {
                    let outcome = match outcomes.rotate_right(i) & 7 {
                        0 => Err(DropReason::TransmitBusy),
                        1 => Err(DropReason::LinkDown),
                        _ => Ok(()),
                    };
                    assert!(!transmit.head().is_empty() && transmit.segments > 0);
                    assert_eq!(transmit.to_vec(&worker.batch).len(), transmit.len(), "no byte is missing");
                    worker.pipeline.account_frame(transmit, outcome);
                }
                worker.assert_balance(0);
            };
            worker.out.clear();
            worker.pipeline.release(&snapshot, now, &mut worker.out);
            account(&worker);
            worker.encapsulate_at(&frames, &snapshot, now);
            account(&worker);
            worker.decapsulate(&frames, &snapshot);
            account(&worker);
            received += 2 * frames.len() as u64;
            let counters = worker.pipeline.counters();
            prop_assert_eq!(counters.bridge_received.get() + counters.underlay_received.get(), received);
            prop_assert_eq!(worker.pipeline.holds(), counters.held.get() > 0);
        }
        worker.pipeline.stop();
        worker.assert_balance(0);
        prop_assert_eq!(worker.pipeline.counters().held.get(), 0);
    }

    #[test]
    fn random_bytes_never_panic(frames in prop::collection::vec(
        (prop::collection::vec(any::<u8>(), 0..300), offload()), 1..20,
    )) {
        let snapshot = Leaf::one().snapshot();
        let mut worker = Worker::new();
        let frames: Vec<_> = frames.into_iter().map(|(data, offload)| Owned { offload, ..Owned::tagged(data) }).collect();
        worker.encapsulate(&frames, &snapshot);
        for frame in &frames {
            let _ = pipeline::explain(&frame.frame(), tables::VniIndex::new(SLOT).unwrap(), &snapshot, Instant::now(), &path::Pins::default());
        }
        let frames: Vec<_> = frames.into_iter().map(|frame| Owned { vlan: None, ..frame }).collect();
        worker.decapsulate(&frames, &snapshot);
    }
}

/// A leaf whose only next hop is unresolved.
fn unresolved() -> Leaf {
    let mut leaf = Leaf::one();
    leaf.vteps[0].1 = vec![hop(3)];
    leaf.vteps[0].1[0].destination_mac = None;
    leaf
}

fn numbered(sequence: u32) -> Owned {
    Owned::tagged(roce(1, sequence))
}

fn sequences(sent: &[Vec<u8>]) -> Vec<u32> {
    sent.iter()
        .map(|frame| u32::from_be_bytes(frame[OUTER + 50..OUTER + 54].try_into().unwrap()))
        .collect()
}

#[test]
fn frames_wait_for_their_next_hop_and_leave_in_order() {
    let (mut worker, now) = (Worker::new(), Instant::now());
    let first: Vec<_> = (0..3).map(numbered).collect();
    assert!(worker.encapsulate_at(&first, &unresolved().snapshot(), now).is_empty());
    worker.assert_balance(0);
    assert!(worker.pipeline.holds());
    let adjacency = (3, hop(3).gateway);
    assert_eq!(worker.pipeline.resolve_requests().collect::<Vec<_>>(), [adjacency]);

    // The batch is reused while frames wait. The next hop is still unresolved.
    worker.encapsulate_at(&[numbered(3)], &unresolved().snapshot(), now + REQUEST_INTERVAL / 2);
    assert_eq!(worker.pipeline.resolve_requests().count(), 0);
    worker.pipeline.release(&unresolved().snapshot(), now + REQUEST_INTERVAL, &mut worker.out);
    assert_eq!((worker.out.len(), worker.pipeline.counters().held.get()), (0, 4));
    assert_eq!(worker.pipeline.resolve_requests().collect::<Vec<_>>(), [adjacency], "asked again");

    let mut leaf = unresolved();
    leaf.vteps[0].1 = vec![hop(3)];
    worker.batch.clear();
    worker.pipeline.release(&leaf.snapshot(), now + LONGEST_WAIT / 2, &mut worker.out);
    let sent = worker.bytes();
    assert_eq!(sequences(&sent), [0, 1, 2, 3]);
    for (sent, transmit) in sent.iter().zip(&worker.out) {
        assert_eq!(sent[..12], [hop(3).destination_mac.unwrap().0, hop(3).source_mac.0].concat());
        assert_eq!(
            transmit.to,
            Destination::Uplink { ifindex: 3, path: 3, by_default: false, impaired: false }
        );
        open(sent);
    }
    assert!(!worker.pipeline.holds());
    worker.assert_balance(4);
}

#[test]
fn frames_that_waited_follow_a_route_that_moved() {
    let (mut worker, now) = (Worker::new(), Instant::now());
    worker.encapsulate_at(&[numbered(0)], &unresolved().snapshot(), now);
    let _ = worker.pipeline.resolve_requests().count();
    // The other next hop is unresolved as well. It is requested, and later frames wait behind the
    // earlier ones.
    let mut moved = unresolved();
    moved.vteps[0].1[0] = hop(4);
    moved.vteps[0].1[0].destination_mac = None;
    worker.pipeline.release(&moved.snapshot(), now, &mut worker.out);
    assert_eq!(worker.pipeline.resolve_requests().collect::<Vec<_>>(), [(4, hop(4).gateway)]);
    worker.encapsulate_at(&[numbered(1)], &moved.snapshot(), now);
    // The route changes back. One frame has waited for each next hop.
    let mut back = unresolved();
    back.vteps[0].1[0] = hop(3);
    worker.batch.clear();
    worker.pipeline.release(&back.snapshot(), now, &mut worker.out);
    assert_eq!(sequences(&worker.bytes()), [0, 1]);
    assert!(worker.out.iter().all(|transmit| transmit.to
        == Destination::Uplink { ifindex: 3, path: 3, by_default: false, impaired: false }));
    worker.assert_balance(2);
}

#[test]
fn a_frame_that_waits_does_not_hold_up_others() {
    let (mut worker, now) = (Worker::new(), Instant::now());
    let mut leaf = unresolved();
    let other = [2, 0, 0, 0, 0, 0x33];
    leaf.fdb.push((other, 1));
    leaf.vteps[1].1 = vec![hop(4)];
    leaf.vteps[1].1[0].destination_mac = None;
    let frames: Vec<_> = (0..6)
        .map(|sequence| {
            let mut frame = numbered(sequence);
            if sequence % 2 == 1 {
                frame.data[..6].copy_from_slice(&other);
            }
            frame
        })
        .collect();
    worker.encapsulate_at(&frames, &leaf.snapshot(), now);
    worker.batch.clear();
    leaf.vteps[1].1 = vec![hop(4)];
    worker.pipeline.release(&leaf.snapshot(), now, &mut worker.out);
    assert_eq!(sequences(&worker.bytes()), [1, 3, 5]);
    worker.out.clear();
    leaf.vteps[0].1 = vec![hop(3)];
    worker.pipeline.release(&leaf.snapshot(), now, &mut worker.out);
    assert_eq!(sequences(&worker.bytes()), [0, 2, 4]);
}

#[test]
fn frames_that_waited_too_long_are_given_up() {
    let (mut worker, now) = (Worker::new(), Instant::now());
    let snapshot = unresolved().snapshot();
    worker.encapsulate_at(&[numbered(0)], &snapshot, now);
    worker.encapsulate_at(&[numbered(1)], &snapshot, now + Duration::from_millis(1));
    worker.pipeline.release(
        &snapshot,
        now + LONGEST_WAIT - Duration::from_millis(1),
        &mut worker.out,
    );
    assert_eq!(worker.pipeline.counters().held.get(), 2);
    worker.pipeline.release(&snapshot, now + LONGEST_WAIT, &mut worker.out);
    assert_eq!(worker.dropped(DropReason::NextHopUnresolved), 1);
    assert_eq!(worker.pipeline.counters().held.get(), 1);
    let mut gone = unresolved();
    gone.vteps[0].1.clear();
    worker.pipeline.release(&gone.snapshot(), now + LONGEST_WAIT * 2, &mut worker.out);
    assert_eq!(worker.dropped(DropReason::NoRoute), 1);
    assert!(!worker.pipeline.holds() && worker.out.is_empty());
    worker.assert_balance(0);
}

#[test]
fn held_frames_do_not_leave_for_another_vtep_or_by_a_link_too_small() {
    for (address, mtu, reason) in [(99, 9_500, DropReason::NoRoute), (2, 100, DropReason::TooBig)] {
        let (mut worker, now) = (Worker::new(), Instant::now());
        worker.encapsulate_at(&[numbered(0)], &unresolved().snapshot(), now);
        let mut leaf = unresolved();
        leaf.vteps[0] = ([10, 0, 0, address].into(), vec![hop(3)]);
        leaf.vteps[0].1[0].mtu = mtu;
        worker.pipeline.release(&leaf.snapshot(), now, &mut worker.out);
        assert_eq!((worker.out.len(), worker.dropped(reason)), (0, 1));
        worker.assert_balance(0);
    }
}

#[test]
fn no_more_than_so_many_frames_wait_for_one_next_hop() {
    let (mut worker, now) = (Worker::new(), Instant::now());
    let snapshot = unresolved().snapshot();
    for batch in 0..3 {
        let frames: Vec<_> = (0..64).map(|i| numbered(batch * 64 + i)).collect();
        worker.encapsulate_at(&frames, &snapshot, now);
        worker.assert_balance(0);
    }
    assert_eq!(worker.pipeline.counters().held.get(), PER_NEXT_HOP as u64);
    assert_eq!(worker.dropped(DropReason::HoldQueueFull), 3 * 64 - PER_NEXT_HOP as u64);
    assert_eq!(worker.pipeline.resolve_requests().count(), 1);
    // The queue is still full after a release that sends nothing.
    worker.pipeline.release(&snapshot, now, &mut worker.out);
    worker.encapsulate_at(&[numbered(0)], &snapshot, now);
    assert_eq!(worker.pipeline.counters().held.get(), PER_NEXT_HOP as u64);
    worker.pipeline.stop();
    assert_eq!(worker.dropped(DropReason::Shutdown), PER_NEXT_HOP as u64);
    assert!(!worker.pipeline.holds());
    worker.assert_balance(0);
}

#[test]
fn traffic_is_counted_where_it_belongs() {
    let mut leaf = Leaf::one();
    leaf.vteps[0].1 = vec![hop(3)];
    let mut worker = Worker::new();
    let frame = numbered(0);
    worker.encapsulate(&[frame.clone(), frame.clone()], &leaf.snapshot());
    worker.pipeline.account_frame(&worker.out[0], Ok(()));
    worker.pipeline.account_frame(&worker.out[1], Err(DropReason::TransmitBusy));
    let counters = worker.pipeline.counters();
    let (inner, outer) = (frame.data.len() as u64, (frame.data.len() + OUTER) as u64);
    let path = counters.path(3).unwrap();
    assert_eq!((path.frames.get(), path.bytes.get()), (1, outer));
    let vni = counters.vni(SLOT).unwrap();
    assert_eq!((vni.encapsulated.frames.get(), vni.encapsulated.bytes.get()), (1, inner));
    assert_eq!(
        (vni.dropped.get(), counters.dropped(DropReason::TransmitBusy), counters.sent.get()),
        (1, 1, 1)
    );
}

/// Frames that leave by a default route are counted, for the VTEP and in total.
#[test]
fn frames_by_a_default_route_are_counted() {
    let mut leaf = Leaf::one();
    let mut worker = Worker::new();
    for by_default in [true, false] {
        leaf.vteps[0].1.iter_mut().for_each(|hop| hop.by_default = by_default);
        worker
            .encapsulate(&[Owned::tagged(roce(1, 1)), Owned::tagged(roce(1, 2))], &leaf.snapshot());
        worker.out.iter().for_each(|sent| worker.pipeline.account_frame(sent, Ok(())));
        let counters = worker.pipeline.counters();
        let peer = counters.peer(VtepId { index: 0, assignment: 1 }).unwrap();
        assert_eq!((counters.by_default.get(), peer.by_default.get()), (2, 2));
    }
    assert_eq!(
        worker
            .pipeline
            .counters()
            .peer(VtepId { index: 0, assignment: 1 })
            .unwrap()
            .sent
            .frames
            .get(),
        4
    );
}

/// The next snapshot, in which the first index is that of another VTEP.
fn another_vtep(before: &Snapshot, address: IpAddr) -> Snapshot {
    let mut builder = SnapshotBuilder::after(before);
    let paths = Arc::clone(&before.vtep(VtepIndex(0)).unwrap().paths);
    builder.vtep(VtepIndex(0), Vtep { address, paths });
    builder.build()
}

/// Frames to and from a VTEP are counted for it, in inner frames and bytes. A VTEP that gets a
/// reused index starts at zero.
#[test]
fn each_peer_has_its_counters() {
    let (one, two) = (Leaf::one().snapshot(), Leaf::two().snapshot());
    let mut flooded = roce(1, 1);
    flooded[..6].fill(0xff);
    let bytes = flooded.len() as u64;
    let mut worker = Worker::new();
    let account = |worker: &Worker| {
        worker.out.iter().for_each(|sent| worker.pipeline.account_frame(sent, Ok(())))
    };
    let counted = |worker: &Worker, index, assignment| {
        let peer = worker.pipeline.counters().peer(VtepId { index, assignment })?;
        let of = |traffic: &Traffic| (traffic.frames.get(), traffic.bytes.get());
        Some((of(&peer.sent), of(&peer.received)))
    };
    let sent =
        worker.encapsulate(&[Owned::tagged(flooded.clone()), Owned::tagged(roce(1, 2))], &one);
    account(&worker);
    assert_eq!(counted(&worker, 0, 1), Some(((2, 2 * bytes), (0, 0))));
    assert_eq!(counted(&worker, 1, 2), Some(((1, bytes), (0, 0))));
    assert_eq!(counted(&worker, 1, 1), None, "it is another's");
    assert_eq!(counted(&worker, PEERS as u32, 1), None);

    // The remote end.
    let mut worker = Worker::new();
    let frames: Vec<Owned> = sent.into_iter().map(Owned::plain).collect();
    worker.decapsulate(&frames[..1], &two);
    account(&worker);
    worker.encapsulate(&[Owned::tagged(flooded)], &two);
    account(&worker);
    assert_eq!(counted(&worker, 0, 1), Some(((1, bytes), (1, bytes))));
    // A frame from a VTEP that is in no table is not counted for any VTEP.
    let stranger = another_vtep(&two, [10, 0, 0, 9].into());
    worker.decapsulate(&frames[..1], &stranger);
    account(&worker);
    assert_eq!(counted(&worker, 0, 1), Some(((1, bytes), (1, bytes))));
    // The index is reused for that VTEP.
    worker.encapsulate(&[Owned::tagged(roce(1, 1))], &stranger);
    account(&worker);
    assert_eq!(counted(&worker, 0, 3), Some(((1, bytes), (0, 0))));
    assert_eq!(counted(&worker, 0, 1), None);
}
