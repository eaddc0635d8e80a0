//! Frames that are flooded to many VTEPs are sent in parts. This bounds the number of copies and
//! their memory.

use std::time::{Duration, Instant};

use crate::common::{self, LEAF_1, Leaf, Owned, VNI, Worker, hop, leaked, roce, tcp};
use pipeline::{
    AccessPortSettings, Batch, Bridge, BridgeLimits, Cursor, DropReason, GsoKind, PART, TxBatch,
};
use tables::Snapshot;
use wire::Vni;

const VTEPS: u32 = 497;

/// Leaf 1 with a very long flood list.
fn leaf() -> Leaf {
    let address = |number: u32| [10, 1, (number >> 8) as u8, number as u8].into();
    let mut leaf = Leaf::one();
    leaf.vteps = (0..VTEPS).map(|number| (address(number), vec![hop(3), hop(4)])).collect();
    leaf.flood = (0..VTEPS).collect();
    leaf
}

fn broadcast(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].fill(0xff);
    frame
}

fn batch(frames: &[Owned]) -> Batch<'static> {
    let mut batch = Batch::new(1024);
    assert!(frames.iter().all(|frame| batch.push(leaked(frame))));
    batch
}

/// Processes a batch part by part. Returns the sent frames and the number of parts.
fn in_parts(
    worker: &mut Worker,
    batch: &Batch<'_>,
    mut part: impl FnMut(&mut Worker, Cursor, &mut TxBatch) -> Option<Cursor>,
) -> (Vec<Vec<u8>>, usize) {
    let (mut sent, mut parts, mut out) = (Vec::new(), 0, TxBatch::new());
    let mut next = Some(Cursor::default());
    while let Some(from) = next {
        next = part(worker, from, &mut out);
        parts += 1;
        assert!(out.len() < PART + VTEPS as usize, "part {parts} has {} frames", out.len());
        assert!(next.is_none() || out.len() >= PART, "part {parts} has {} frames", out.len());
        for transmit in &out {
            worker.pipeline.account_frame(transmit, Ok(()));
            sent.push(transmit.to_vec(batch));
        }
        out.clear();
    }
    assert!(out.capacity() <= 2 * PART, "memory for {} frames is kept", out.capacity());
    worker.assert_balance(0);
    (sent, parts)
}

/// A full batch of broadcast frames. Frames of another flow among them keep their positions.
#[test]
fn a_burst_of_broadcast_frames_is_sent_in_bounded_parts() {
    let (snapshot, now) = (leaf().snapshot(), Instant::now());
    let frames: Vec<_> = (0..1024)
        .map(|number| {
            let frame = roce(number % 3, number);
            Owned::tagged(if number % 100 == 0 { frame } else { broadcast(frame) })
        })
        .collect();
    let (batch, mut worker) = (batch(&frames), Worker::new());
    let (sent, parts) = in_parts(&mut worker, &batch, |worker, from, out| {
        worker.pipeline.encapsulate_part(&batch, from, &snapshot, now, out)
    });
    assert_eq!(sent.len(), 11 + 1013 * VTEPS as usize);
    assert!(parts > 200, "{parts}");
    let counters = worker.pipeline.counters();
    assert_eq!(
        (counters.bridge_received.get(), counters.vni(common::SLOT).unwrap().flooded.get()),
        (1024, 1013)
    );
    let (mut whole, mut out) = (Worker::new(), TxBatch::new());
    whole.pipeline.encapsulate(&batch, &snapshot, now, &mut out);
    assert!(
        out.iter().map(|transmit| transmit.to_vec(&batch)).eq(sent),
        "the same frames in the same order"
    );
    out.clear();
    assert!(out.capacity() <= 2 * PART, "memory for {} frames is kept", out.capacity());
}

/// A super-frame of 45 segments, each with a copy for each VTEP.
#[test]
fn a_flooded_super_frame_is_sent_in_bounded_parts() {
    let (snapshot, now) = (leaf().snapshot(), Instant::now());
    let whole = Owned::tagged(broadcast(tcp(false, 0, &[1; 64_000]))).gso(GsoKind::TcpV4, 1_448);
    let (batch, mut worker) = (batch(&[whole.clone(), whole]), Worker::new());
    let (sent, parts) = in_parts(&mut worker, &batch, |worker, from, out| {
        worker.pipeline.encapsulate_part(&batch, from, &snapshot, now, out)
    });
    assert_eq!(sent.len(), 2 * 45 * VTEPS as usize);
    assert!(parts >= 18, "{parts}");
    assert_eq!(worker.pipeline.counters().vni(common::SLOT).unwrap().flooded.get(), 2);
    let mut out = TxBatch::new();
    Worker::new().pipeline.encapsulate(&batch, &snapshot, now, &mut out);
    assert!(
        out.iter().map(|transmit| transmit.to_vec(&batch)).eq(sent),
        "the same frames in the same order"
    );
}

/// The VNI is removed while a frame is half sent. The rest counts as one dropped frame.
#[test]
fn what_is_left_of_a_frame_is_counted() {
    let (snapshot, now) = (leaf().snapshot(), Instant::now());
    let whole = Owned::tagged(broadcast(tcp(false, 0, &[1; 64_000]))).gso(GsoKind::TcpV4, 1_448);
    let (batch, mut worker) = (batch(&[whole.clone(), whole]), Worker::new());
    let (mut snapshots, none) = (vec![snapshot], Snapshot::default());
    let (sent, parts) = in_parts(&mut worker, &batch, |worker, from, out| {
        let snapshot = snapshots.pop();
        worker.pipeline.encapsulate_part(&batch, from, snapshot.as_ref().unwrap_or(&none), now, out)
    });
    assert_eq!(
        (parts, worker.pipeline.counters().dropped(DropReason::UnknownSlot)),
        (2, 2),
        "{}",
        sent.len()
    );
}

/// Leaf 1 with twenty access ports.
fn switch() -> Worker {
    let settings = AccessPortSettings {
        vni: Vni::try_from(VNI).unwrap(),
        local: LEAF_1.into(),
        destination_port: 4789,
        stations: 50,
        ageing: Some(Duration::from_secs(10)),
    };
    let mut worker = Worker::new();
    worker
        .pipeline
        .set_bridge(Bridge::new(vec![settings; 20], BridgeLimits { total: 100, moves: 5 }));
    worker
}

/// Frames of an access port go to all other ports and all VTEPs, including the segments of
/// super-frames.
#[test]
fn a_burst_from_an_access_port_is_sent_in_bounded_parts() {
    let (snapshot, now) = (leaf().snapshot(), Instant::now());
    let plain = |number| Owned::plain(broadcast(roce(number % 3, number)));
    let mut frames: Vec<_> = (0..20).map(plain).collect();
    frames.push(Owned::plain(broadcast(tcp(false, 0, &[1; 64_000]))).gso(GsoKind::TcpV4, 1_448));
    let (batch, mut worker) = (batch(&frames), switch());
    let (sent, parts) = in_parts(&mut worker, &batch, |worker, from, out| {
        worker.pipeline.switch_part((&batch, from), 0, &snapshot, now, out)
    });
    assert_eq!(sent.len(), 21 * 19 + (20 + 45) * VTEPS as usize);
    assert!(parts >= 10, "{parts}");
    let mut out = TxBatch::new();
    switch().pipeline.switch(&batch, 0, &snapshot, now, &mut out);
    assert!(
        out.iter().map(|transmit| transmit.to_vec(&batch)).eq(sent),
        "the same frames in the same order"
    );
}

/// Frames of a VTEP go to all ports.
#[test]
fn a_burst_from_a_vtep_is_sent_in_bounded_parts() {
    let (here, now) = (leaf().snapshot(), Instant::now());
    let mut peer = Leaf::two();
    peer.tunnel.local = [10, 1, 0, 0].into();
    (peer.vteps[0].0, peer.flood) = (LEAF_1.into(), vec![0]);
    let tunnelled = Worker::new()
        .encapsulate(&[Owned::tagged(broadcast(roce(1, 1)))], &peer.snapshot())
        .remove(0);
    let frames = vec![Owned::plain(tunnelled); 500];
    let (batch, mut worker) = (batch(&frames), switch());
    let (sent, parts) = in_parts(&mut worker, &batch, |worker, from, out| {
        worker.pipeline.decapsulate_part(&batch, from, &here, now, out)
    });
    assert_eq!((sent.len(), parts), (500 * 20, 5));
}
