//! Bundles for the bridge punt pair. When split and unwrapped, they yield the original frames, in
//! order between two stations.
#![cfg(test)]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{HOST, Leaf, Owned, SLOT, Worker, carried, roce, tcp, udp4, udp6, untagged};
use frame::{Queue, WRAPPER};
use pipeline::bundle::{WAY_BRIDGE, WAY_PORT};
use pipeline::{Checksum, Destination, Grouper, Grouping, GsoKind, Offload};
use proptest::prelude::*;

const PORT: u32 = 8;

/// What the punt pair receives in one message: the number of frames, and each frame with its
/// destination.
type Message = (usize, Vec<(Destination, Vec<u8>)>);

fn worker(open: bool) -> Worker {
    let mut worker = Worker::new();
    worker.pipeline.set_grouping(Grouping::ALL);
    let ports = [common::open_port(PORT)];
    worker.pipeline.open_ports(if open { &ports } else { &[] });
    worker
}

fn leaf() -> Leaf {
    Leaf { hosts: vec![(HOST, PORT)], ..Leaf::two() }
}

/// Removes the wrapper like the steering program.
fn unwrapped(piece: &[u8]) -> (Destination, Vec<u8>) {
    assert_eq!(piece[..14], piece[WRAPPER..WRAPPER + 14], "the Ethernet header that stays");
    assert_eq!(piece[12..14], [8, 0], "all that the program can unwrap");
    let word = |at: usize| u32::from_be_bytes(piece[at..at + 4].try_into().unwrap());
    let to = match (word(26), word(30)) {
        (WAY_BRIDGE, slot) if slot == u32::from(SLOT) => Destination::Bridge,
        (WAY_PORT, port) => Destination::BundledHost(port),
        other => panic!("{other:?}"),
    };
    (to, [&piece[..14], &piece[WRAPPER + 14..]].concat())
}

/// The messages that the punt pair receives for the decapsulated frames.
fn messages(worker: &mut Worker) -> Vec<Message> {
    let out = &mut worker.out;
    Grouper::default().finish(&worker.batch, out, &[Queue::Bridge], Grouping::ALL);
    let mut messages = Vec::new();
    for group in &out.groups().list {
        let offload = group.offload;
        let members: Vec<usize> = out.groups().members(group).collect();
        let first = &out[group.first as usize];
        assert!(!group.is_super_frame());
        let Some(wrapper) = group.wrapper else {
            assert_eq!((members.len(), first.to), (1, Destination::Bridge));
            messages.push((1, vec![(Destination::Bridge, untagged(&first.to_vec(&worker.batch)))]));
            continue;
        };
        let wrapper = out.groups().wrappers[wrapper as usize];
        let payload: Vec<u8> = members
            .iter()
            .flat_map(|&member| out[member].untagged(&worker.batch).concat())
            .collect();
        assert_eq!(payload.len(), group.payload as usize);
        let whole = [&wrapper[..], &payload].concat();
        assert_eq!(out.to_vec(group, &worker.batch), whole, "what a port sends");
        let outer = wire::dissect(&whole).unwrap();
        assert_eq!(outer.transport.unwrap().offset, 34);
        let size = match offload.gso {
            None => {
                assert_eq!((members.len(), offload), (1, Offload::default()));
                payload.len()
            }
            Some(gso) => {
                assert_eq!(
                    (gso.kind, offload.checksum),
                    (GsoKind::Udp, Checksum::Partial { start: 34, offset: 6 })
                );
                usize::from(gso.size)
            }
        };
        let pieces: Vec<_> =
            payload.chunks(size).map(|piece| unwrapped(&[&wrapper[..], piece].concat())).collect();
        assert_eq!(pieces.len(), members.len());
        messages.push((members.len(), pieces));
    }
    messages
}

fn sizes(worker: &mut Worker) -> Vec<usize> {
    messages(worker).into_iter().map(|(frames, _)| frames).collect()
}

#[test]
fn frames_between_two_stations_leave_in_bundles_of_one_size() {
    for open in [true, false] {
        let received = |inner: &[Vec<u8>]| {
            let mut worker = worker(open);
            worker.decapsulate(&carried(inner, 0), &leaf().snapshot());
            sizes(&mut worker)
        };
        let of = |length: usize| udp4(0, 1, 2, &vec![7; length]);
        let many: Vec<_> = (0..100).map(|number| roce(number % 7, number)).collect();
        assert_eq!(received(&many), [64, 36], "whatever their queue pairs");
        assert_eq!(
            received(&[of(100), of(100), of(50), of(100)]),
            [3, 1],
            "a shorter one is the last"
        );
        assert_eq!(received(&[of(100), of(101), of(100)]), [1, 2], "a longer one begins anew");
        assert_eq!(received(&vec![of(4000); 33]), [16, 16, 1], "65,000 bytes");
        // Frames between other stations form a bundle of their own.
        let mut other = of(100);
        other[11] = 0x77;
        let turns = [of(100), other.clone(), of(100), other];
        assert_eq!(received(&turns), [2, 2]);
        // A frame that is not IPv4 is sent unchanged, and no frame overtakes it.
        assert_eq!(
            received(&[of(100), udp6(0, &[7; 80]), of(100)]),
            if open { vec![2] } else { vec![1, 1, 1] }
        );
    }
}

#[test]
fn tcp_for_a_host_is_another_sockets() {
    let mut worker = worker(true);
    worker.decapsulate(
        &carried(&[tcp(false, 0x10, b"x"), roce(1, 1), roce(1, 2)], 0),
        &leaf().snapshot(),
    );
    assert_eq!(worker.out[0].to, Destination::Host(PORT));
    assert_eq!(sizes(&mut worker), [2]);
}

/// A UDP packet with pending offloads cannot be in a bundle. Its flow goes straight to the port,
/// and no frame is overtaken when this begins or ends.
#[test]
fn a_flow_that_cannot_always_be_in_a_bundle_is_in_none() {
    let (mut worker, leaf, start) = (worker(true), leaf().snapshot(), Instant::now());
    let mut way = |partial: bool, milliseconds: u64| {
        let mut frame = carried(&[udp4(0, 1, 2, b"12345678")], 0).remove(0);
        if partial {
            frame = frame.partial(50 + 34, 6);
        }
        worker.decapsulate_at(&[frame], &leaf, start + Duration::from_millis(milliseconds));
        worker.out[0].to
    };
    let (bundled, straight) = (Destination::BundledHost(PORT), Destination::Host(PORT));
    assert_eq!((way(false, 0), way(false, 1)), (bundled, bundled));
    assert_eq!(way(true, 2), Destination::Bridge, "behind those in bundles");
    assert_eq!(way(false, 3), Destination::Bridge, "behind that");
    assert_eq!((way(true, 20), way(false, 21)), (straight, straight));
    assert_eq!(way(false, 900), straight);
    assert_eq!(way(false, 1100), bundled, "none for a second");
}

prop_compose! {
    fn inner()(
        kind in 0..8,
        source in 0..3u8,
        stranger in any::<bool>(),
        length in prop_oneof![Just(64usize), Just(200), 0..1500usize],
        number in any::<u32>(),
    ) -> Vec<u8> {
        let mut frame = match kind {
            0 => tcp(false, 0x10, &vec![3; length]),
            1 => udp6(0, &vec![4; length]),
            _ => udp4(2, 1, 2, &vec![5; length]),
        };
        if kind == 2 {
            frame[12..14].copy_from_slice(&[8, 6]);
        }
        if stranger {
            frame[5] = 0x55;
        }
        frame[11] = source;
        if kind > 2 && length > 8 {
            frame[42..46].copy_from_slice(&number.to_be_bytes());
        }
        frame
    }
}

proptest! {
    #[test]
    fn what_is_cut_and_unwrapped_is_what_was_received(
        inner in prop::collection::vec(inner(), 1..200),
        ecn in 0..4u8,
        partial in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        open in any::<bool>(),
    ) {
        let mut frames: Vec<Owned> = carried(&inner, ecn);
        for index in partial {
            let frame = &mut frames[index.index(inner.len())];
            if frame.data.len() > 100 && frame.data[73] == 17 {
                *frame = Owned::plain(frame.data.clone()).partial(50 + 34, 6);
            }
        }
        let mut worker = worker(open);
        worker.decapsulate(&frames, &leaf().snapshot());
        let stations = |frame: &[u8]| frame[..12].to_vec();
        let mut expected: BTreeMap<Vec<u8>, Vec<(Destination, Vec<u8>)>> = BTreeMap::new();
        for sent in worker.out.iter().filter(|sent| sent.to.queue() == Queue::Bridge) {
            let bytes = sent.to_vec(&worker.batch);
            let bytes = if sent.to == Destination::Bridge { untagged(&bytes) } else { bytes };
            expected.entry(stations(&bytes)).or_default().push((sent.to, bytes));
        }
        let mut got: BTreeMap<Vec<u8>, Vec<(Destination, Vec<u8>)>> = BTreeMap::new();
        for (to, bytes) in messages(&mut worker).into_iter().flat_map(|(_, pieces)| pieces) {
            got.entry(stations(&bytes)).or_default().push((to, bytes));
        }
        prop_assert_eq!(got, expected);
    }
}
