//! Frames that are sent together. No frame is lost, duplicated or overtaken, and splitting the
//! groups yields the original frames.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::common::{Leaf, Owned, Worker, roce};
use frame::{GsoGroup, SHARED_HEADERS};
use pipeline::{
    Batch, Checksum, Cursor, Destination, Grouper, GsoKind, Identifications, Offload, Payload,
    TxBatch, TxFrame,
};
use proptest::prelude::*;
use test_frames::{Ipv4, tunnelled};
use wire::checksum::{Sum, checksum};

/// An encapsulated frame of a flow. Its inner frame has `length` bytes of value `mark`.
fn frame((uplink, port, ttl): (u32, u16, u8), length: usize, mark: u8, partial: bool) -> TxFrame {
    let fields = Ipv4 { ttl, identification: u16::from_be_bytes([7, mark]), ..Ipv4::default() };
    let macs = ([2, 0, 0, 0, 0, 8], [2, 0, 0, 0, 0, 9]);
    let vteps = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let mut head = tunnelled(macs, vteps, port, mark.into(), &vec![mark; length], fields);
    head.truncate(50);
    let mut offload = Offload::default();
    if partial {
        offload.checksum = Checksum::Partial { start: 34, offset: 6 };
    }
    let to = Destination::Uplink {
        ifindex: uplink,
        path: uplink as u16,
        by_default: false,
        impaired: false,
    };
    let mut transmit = TxFrame::new(to, 1, Payload::Owned(vec![mark; length].into()), offload);
    assert!(transmit.extend_head(&head));
    transmit
}

/// The frames as a finished batch.
fn finished(frames: &[TxFrame]) -> TxBatch {
    let mut out = TxBatch::new();
    frames.iter().for_each(|frame| out.push(frame.clone()));
    Grouper::default().group(&mut out, &Identifications::default());
    out
}

/// The bytes that are handed to the kernel for a group.
fn joined(out: &TxBatch, group: &GsoGroup) -> (Vec<u8>, Offload) {
    let batch = Batch::new(1);
    let mut whole = Vec::new();
    for (place, frame) in out.members(group).enumerate() {
        let bytes = frame.to_vec(&batch);
        whole.extend_from_slice(&bytes[if place == 0 { 0 } else { SHARED_HEADERS }..]);
    }
    assert_eq!(out.to_vec(group, &batch), whole, "what a port sends");
    (whole, group.offload)
}

/// Splits a super-frame like `__udp_gso_segment()` and `inet_gso_segment()`. Lengths and checksums
/// are not updated, because the comparison ignores them.
fn cut(whole: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let (head, payload) = whole.split_at(SHARED_HEADERS);
    let size = offload.gso.map_or(payload.len(), |gso| usize::from(gso.size));
    payload.chunks(size).map(|payload| [head, payload].concat()).collect()
}

/// Clears what differs between the frames of a super-frame: lengths, checksums and the
/// identification.
fn without_lengths(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for at in [16..20, 24..26, 38..42] {
        frame[at].fill(0);
    }
    frame
}

fn assembled(frames: &[TxFrame]) -> Vec<Vec<usize>> {
    let out = finished(frames);
    out.groups().list.iter().map(|group| out.groups().members(group).collect()).collect()
}

#[test]
fn frames_of_a_flow_and_size_leave_together_and_a_smaller_one_is_the_last() {
    let flow = |port| (3, port, 64);
    let of = |port, length| frame(flow(port), length, 0, true);
    let frames =
        [of(1, 100), of(2, 100), of(1, 100), of(1, 60), of(1, 100), of(2, 100), of(1, 120)];
    assert_eq!(assembled(&frames), [vec![0, 2, 3], vec![1, 5], vec![4], vec![6]]);
    let other = [of(1, 100), frame((4, 1, 64), 100, 0, true), frame((3, 1, 63), 100, 0, true)];
    assert_eq!(assembled(&other).len(), 3, "another uplink, another TTL");
    let many: Vec<_> = (0..130).map(|_| of(1, 100)).collect();
    assert_eq!(assembled(&many).iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 2]);
    let large: Vec<_> = (0..10).map(|_| of(1, 9000)).collect();
    assert_eq!(assembled(&large).iter().map(Vec::len).collect::<Vec<_>>(), [7, 3], "65,000 bytes");
}

/// The kernel gives each segment a UDP checksum. Kernel VXLAN sends none if the netdev has
/// `noudpcsum`.
#[test]
fn frames_without_a_checksum_leave_one_by_one() {
    let frames: Vec<_> = (0..5).map(|mark| frame((3, 9, 64), 200, mark, false)).collect();
    assert_eq!(assembled(&frames).len(), 5);
}

/// Any number of interleaved flows share the hash table without closing each other's groups.
#[test]
fn each_of_many_flows_that_take_turns_leaves_in_one() {
    const FLOWS: usize = 200;
    let port = |flow: usize| 49_152 + (flow * 0x9e37 % 16_384) as u16;
    let frames: Vec<_> = (0..1000).map(|n| frame((3, port(n % FLOWS), 64), 100, 0, true)).collect();
    let of = |flow| (flow..1000).step_by(FLOWS).collect::<Vec<_>>();
    assert_eq!(assembled(&frames), (0..FLOWS).map(of).collect::<Vec<_>>());
}

#[test]
fn the_first_headers_describe_the_group() {
    let frames: Vec<_> = (0..5).map(|mark| frame((3, 9, 64), 200, mark, true)).collect();
    let out = finished(&frames);
    let (whole, offload) = joined(&out, &out.groups().list[0]);
    let gso = offload.gso.unwrap();
    assert_eq!((gso.kind, gso.size, whole.len()), (GsoKind::Udp, 208, 42 + 5 * 208));
    assert_eq!(offload.checksum, Checksum::Partial { start: 34, offset: 6 });
    let word = |at: usize| u16::from_be_bytes([whole[at], whole[at + 1]]);
    assert_eq!((word(16), word(38)), (20 + 8 + 5 * 208, 8 + 5 * 208));
    assert_eq!(checksum(&whole[14..34]), 0, "the IPv4 header's sum");
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(word(40), Sum::new().pseudo_ipv4(source, destination, 17, word(38)).fold());
}

/// Two workers send frames of known and of new flows, alone and in super-frames. The kernel counts on
/// in those.
#[test]
fn packets_of_all_workers_have_different_identifications() {
    let (all, now) = (Identifications::default(), Instant::now());
    let mut leaf = Leaf::one();
    leaf.tunnel.udp_checksum = true;
    let snapshot = leaf.snapshot();
    let mut workers = [false, true].map(|grouping| {
        let mut worker = Worker::new();
        worker.pipeline.set_identifications(all.clone());
        worker.pipeline.set_grouping(grouping);
        worker
    });
    let (mut seen, mut sent, mut super_frames) = (BTreeSet::new(), 0, 0);
    for round in 0..50 {
        for worker in &mut workers {
            let frames: Vec<_> =
                (0..30).map(|n| Owned::tagged(roce(round / 10 * 7 + n % 7, n))).collect();
            worker.fill(&frames);
            let Worker { pipeline, batch, out } = worker;
            assert!(
                pipeline.encapsulate_part(batch, Cursor::default(), &snapshot, now, out).is_none()
            );
            for group in &out.groups().list {
                let whole = out.to_vec(group, batch);
                let first = u16::from_be_bytes([whole[18], whole[19]]);
                seen.extend((0..group.frames).map(|n| u32::from(first) + n));
                sent += group.frames as usize;
                super_frames += usize::from(group.is_super_frame());
            }
        }
    }
    assert_eq!((seen.len(), sent, super_frames > 100), (3000, 3000, true), "{super_frames}");
    assert!(seen.iter().all(|identification| (0x8000..=0xffff).contains(identification)));
}

proptest! {
    #[test]
    fn what_is_cut_is_what_went_in(
        frames in prop::collection::vec((3u32..5, 1u16..4, 60usize..64, any::<bool>()), 0..200),
    ) {
        let frames: Vec<_> = frames
            .into_iter()
            .zip(0u8..)
            .map(|((uplink, port, length, partial), mark)| frame((uplink, port, 64), length, mark, partial))
            .collect();
        let batch = Batch::new(1);
        let flow = |frame: &[u8]| (frame[34..36].to_vec(), frame.len());
        let before: Vec<_> = frames.iter().map(|frame| (frame.to, frame.to_vec(&batch))).collect();
        let out = finished(&frames);
        let mut after = Vec::new();
        for group in &out.groups().list {
            let to = frames[group.first as usize].to;
            let (whole, offload) = joined(&out, group);
            after.extend(cut(&whole, offload).into_iter().map(|frame| (to, frame)));
        }
        prop_assert_eq!(after.len(), before.len());
        // Each flow, with frames of all sizes, yields the same frames in the same order.
        for port in 1u16..4 {
            for uplink in 3u32..5 {
                let of = |frames: &[(Destination, Vec<u8>)]| -> Vec<Vec<u8>> {
                    let mine = |(to, frame): &&(Destination, Vec<u8>)| {
                        matches!(to, Destination::Uplink { ifindex, .. } if *ifindex == uplink)
                            && flow(frame).0 == port.to_be_bytes()
                    };
                    frames.iter().filter(mine).map(|(_, frame)| without_lengths(frame)).collect()
                };
                prop_assert_eq!(of(&after), of(&before));
            }
        }
    }
}
