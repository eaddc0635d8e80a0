//! No allocation per frame.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // Helpers of tests, which may.

mod common;

use std::time::{Duration, Instant};

use common::{Leaf, Owned, SOURCE, Worker, bth, roce, tcp, udp4, udp6};
use frames::counting::{Counting, allocations};
use pipeline::learn::REFRESHES;
use pipeline::{Batch, GsoKind};
use tables::Learning;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn q19_no_allocation_per_frame() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1]))), 1, "the counter counts");

    let mut leaf = Leaf::one();
    leaf.tunnel.udp_checksum = true;
    let (here, there) = (leaf.snapshot(), Leaf::two().snapshot());
    let mut flooded = roce(1, 1);
    flooded[..6].fill(0xff);
    let mut left = tcp(false, 0, &[1; 777]);
    common::leave_to_card(&mut left, 34, 16);
    let frames = [
        Owned::tagged(roce(1, 1)),
        Owned::tagged(flooded),
        Owned::tagged(udp6(2, b"x")),
        Owned::tagged(left).partial(34, 16),
        Owned::tagged(tcp(false, 0, &[1; 20_000])).gso(GsoKind::TcpV4, 1_448),
        Owned::tagged(udp4(0, 1, 4791, &bth(1, 1, 5_000))).gso(GsoKind::Udp, 1_000),
        Owned::tagged(common::sctp().0).partial(34, 8),
        Owned::tagged(vec![]),
        Owned::plain(vec![0; 60]),
    ];
    let mut one = Worker::new();
    let sent: Vec<_> = one.encapsulate(&frames, &here).into_iter().map(Owned::plain).collect();
    let mut incoming = Batch::new(sent.len());
    for frame in &sent {
        // As a port would hand over what the peer's card has summed.
        let mut frame = frame.frame();
        frame.offload.checksum = pipeline::Checksum::Valid;
        assert!(incoming.push(frame));
    }
    let mut two = Worker::new();
    let now = Instant::now();
    // The first round grows what is to be reused.
    for round in 0..4 {
        let made = allocations(|| {
            one.out.clear();
            one.pipeline.encapsulate(&one.batch, &here, now, &mut one.out);
            for transmit in &one.out {
                one.pipeline.account(transmit, Ok(()));
            }
            two.out.clear();
            two.pipeline.decapsulate(&incoming, &there, now, &mut two.out);
            for transmit in &two.out {
                two.pipeline.account(transmit, Ok(()));
            }
        });
        // One copy of the flooded frame is for leaf 3.
        assert!(one.out.len() > 20 && two.out.len() == one.out.len() - 1);
        if round > 0 {
            assert_eq!(made, 0, "round {round}");
        }
    }
}

/// Nor where addresses are learned: known ones are refreshed, one moves to and fro, new ones come with every frame.
#[test]
fn q19_no_allocation_per_frame_with_learning() {
    const AGEING: Duration = Duration::from_secs(4);
    let sender = Leaf::one().snapshot();
    let learning = Learning { ifindex: 11, ageing: Some(AGEING), fixed: Default::default() };
    let leaf = |source: u32| {
        let fdb = vec![(SOURCE, source)];
        Leaf { learning: Some(learning.clone()), fdb, ..Leaf::two() }.snapshot()
    };
    let (here, elsewhere) = (leaf(0), leaf(1));
    let stranger = |number: u32| {
        let mut frame = roce(number, 1);
        frame[6..12].copy_from_slice(&[2, 9, 0, 0, 0, number as u8]);
        Owned::tagged(frame)
    };
    let strangers: Vec<_> = (0..32).map(stranger).collect();
    let known: Vec<_> = (0..32).map(|number| Owned::tagged(roce(number, 1))).collect();
    let sent = Worker::new().encapsulate(&[known, strangers].concat(), &sender);
    let mut incoming = Batch::new(sent.len());
    let sent: Vec<_> = sent.into_iter().map(Owned::plain).collect();
    for frame in &sent {
        assert!(incoming.push(frame.frame()));
    }
    let mut worker = Worker::new();
    let (mut now, mut reports) = (Instant::now(), 0);
    for round in 0..40 {
        let snapshot = if round % 8 == 7 { &elsewhere } else { &here };
        let made = allocations(|| {
            worker.out.clear();
            worker.pipeline.decapsulate(&incoming, snapshot, now, &mut worker.out);
            reports += worker.pipeline.learned().filter(|learned| learned.mac.0 == SOURCE).count();
        });
        assert_eq!(worker.out.len(), 64);
        // The first round makes what is reused.
        assert!(round == 0 || made == 0, "{made} in round {round}");
        now += AGEING / REFRESHES;
    }
    assert!(reports >= 39, "{reports}: every round refreshes it, or says that it has moved");
}
