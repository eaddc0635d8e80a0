//! TCP segments for a host are grouped. The groups, when split, yield the original segments in
//! order.
#![cfg(test)]

mod common;

use std::collections::BTreeMap;

use frame::Queue;
use pipeline::gso::Segmenter;
use pipeline::{
    Batch, Destination, Frame, Grouper, Grouping, GsoKind, Offload, Payload, TxBatch, TxFrame,
};
use proptest::prelude::*;

const PORT: u32 = 8;

/// A TCP segment of a stream.
fn segment(ipv6: bool, stream: u16, sequence: u32, id: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = common::tcp(ipv6, flags, payload);
    let l4 = if ipv6 { 54 } else { 34 };
    frame[l4..l4 + 2].copy_from_slice(&(40_000 + stream).to_be_bytes());
    frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
    frame[l4 + 13] = flags;
    if !ipv6 {
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20] = 0;
        frame[24..26].fill(0);
        let sum = wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    common::checksum_tcp(&mut frame, l4);
    frame
}

/// The frames handed to the kernel, each as the indices of its members and the segments that result
/// from splitting it.
fn together(frames: &[Vec<u8>]) -> Vec<(Vec<usize>, Vec<Vec<u8>>)> {
    let mut batch = Batch::new(frames.len());
    let mut out = TxBatch::new();
    for (data, index) in frames.iter().zip(0..) {
        assert!(batch.push(Frame { data, vlan: None, offload: Offload::default() }));
        let body = Payload::Received { frame: index, range: 0..data.len() as u32 };
        out.push(TxFrame::new(Destination::Host(PORT), 1, body, Offload::default()));
    }
    let lengths: usize = out.iter().map(TxFrame::len).sum();
    Grouper::default().finish(&batch, &mut out, &[Queue::Hosts], Grouping::ALL);
    assert_eq!(lengths, out.iter().map(TxFrame::len).sum::<usize>(), "what is accounted for stays");
    let mut handed = Vec::new();
    for group in &out.groups().list {
        let offload = group.offload;
        let members: Vec<usize> = out.groups().members(group).collect();
        let mut whole = out[members[0]].to_vec(&batch);
        let (head, body) = group.skipped();
        for &behind in &members[1..] {
            whole.extend_from_slice(out[behind].head().get(head..).unwrap_or_default());
            whole.extend_from_slice(&out[behind].body(&batch)[body..]);
        }
        assert_eq!(out.to_vec(group, &batch), whole, "what a port sends");
        let cut = match offload.gso {
            None => vec![whole],
            Some(gso) => {
                assert!(!group.is_super_frame() && gso.kind != GsoKind::Udp && members.len() > 1);
                let dissection = wire::dissect(&whole).unwrap();
                let segmenter = Segmenter::new(&whole, &dissection, gso, offload.checksum).unwrap();
                (0..segmenter.count()).map(|index| segmenter.frame(index).unwrap()).collect()
            }
        };
        handed.push((members, cut));
    }
    handed
}

fn members(frames: &[Vec<u8>]) -> Vec<Vec<usize>> {
    together(frames).into_iter().map(|(members, _)| members).collect()
}

#[test]
fn segments_of_a_stream_leave_together_until_it_pauses() {
    for ipv6 in [false, true] {
        let of = |number: u32, flags, length: usize| {
            segment(
                ipv6,
                1,
                0xffff_ff00_u32.wrapping_add(number * 100),
                number as u16,
                flags,
                &vec![7; length],
            )
        };
        let data = |number| of(number, 0x10, 100);
        let stream = [data(0), data(1), data(2), of(3, 0x18, 50), of(4, 0x10, 100)];
        assert_eq!(members(&stream), [vec![0, 1, 2, 3], vec![4]], "pushed, and shorter");
        assert_eq!(members(&[data(0), data(2), data(1)]).len(), 3, "not in order");
        assert_eq!(members(&[data(0), data(1), data(1)]), [vec![0, 1], vec![2]], "again");
        assert_eq!(members(&[data(0), of(1, 0x10, 101)]).len(), 2, "longer");
        // A segment with other flags is sent alone, and no later segment overtakes it.
        for flags in [0x11, 0x12, 0x14, 0x30, 0x50, 0x90, 0] {
            let frames = [data(0), of(1, flags, 100), data(2)];
            assert_eq!(members(&frames).len(), 3, "flags {flags:x}");
        }
        assert_eq!(members(&[data(0), of(1, 0x10, 0), data(1)]).len(), 3, "an acknowledgment");
        let mut damaged = data(1);
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(
            members(&[data(0), damaged, data(2)]).len(),
            3,
            "whose checksum the host is to see"
        );
        let mut padded = data(1);
        padded.push(0);
        assert_eq!(members(&[data(0), padded]).len(), 2, "bytes behind the packet");
        // A UDP frame does not interrupt a stream. A frame with extension headers or options does,
        // because it may hide TCP.
        assert_eq!(members(&[data(0), common::roce(1, 1), data(1)]), [vec![0, 2], vec![1]]);
        let mut hidden = common::udp6(0, b"of what?");
        hidden[20] = 0;
        assert_eq!(members(&[data(0), hidden, data(1)]).len(), 3);
        let many: Vec<_> = (0..70).map(data).collect();
        assert_eq!(members(&many).iter().map(Vec::len).collect::<Vec<_>>(), [64, 6]);
    }
}

#[test]
fn headers_that_differ_are_kept_apart() {
    for at in [0, 6, 15, 22, 26, 30, 36, 42, 46, 48, 52, 56, 60] {
        let one = segment(false, 1, 1000, 5, 0x10, &[1; 100]);
        let mut other = segment(false, 1, 1100, 6, 0x10, &[2; 100]);
        assert_eq!(members(&[one.clone(), other.clone()]), [vec![0, 1]]);
        other[at] ^= 1;
        other[24..26].fill(0);
        let sum = wire::checksum::checksum(&other[14..34]);
        other[24..26].copy_from_slice(&sum.to_be_bytes());
        common::checksum_tcp(&mut other, 34);
        assert_eq!(members(&[one, other]).len(), 2, "byte {at}");
    }
    let of = |sequence, id| segment(false, 1, sequence, id, 0x10, &[1; 100]);
    assert_eq!(
        members(&[of(0, 5), of(100, 7)]).len(),
        2,
        "the identification says that another was between them"
    );
}

proptest! {
    /// Interleaved streams with gaps, PSH, FIN and damaged segments.
    #[test]
    fn what_is_cut_again_is_what_went_in(
        steps in prop::collection::vec((0u16..3, 0u8..30, any::<bool>(), 1usize..5), 1..120),
        ipv6 in any::<bool>(),
    ) {
        let mut next: BTreeMap<u16, (u32, u16)> = BTreeMap::new();
        let mut frames = Vec::new();
        for (stream, kind, full, length) in steps {
            let (sequence, id) = next.entry(stream).or_insert((0xffff_f000, 0xfff0));
            let length = if full { 500 } else { length * 100 };
            let flags = match kind { 0 => 0x11, 1..=3 => 0x18, 4 => 0x12, 5 => 0x90, _ => 0x10 };
            if kind == 6 {
                *sequence = sequence.wrapping_add(7);
            }
            let payload: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(kind)).collect();
            let mut frame = segment(ipv6, stream, *sequence, *id, flags, &payload);
            if kind == 7 {
                *frame.last_mut().unwrap() ^= 1;
            }
            (*sequence, *id) = (sequence.wrapping_add(length as u32), id.wrapping_add(1));
            frames.push(frame);
        }
        let handed = together(&frames);
        let mut seen = vec![false; frames.len()];
        let mut last: BTreeMap<u8, usize> = BTreeMap::new();
        for (members, cut) in handed {
            prop_assert_eq!(members.len(), cut.len());
            for (index, bytes) in members.into_iter().zip(cut) {
                prop_assert!(!std::mem::replace(&mut seen[index], true));
                prop_assert_eq!(&bytes, &frames[index]);
                let stream = bytes[if ipv6 { 55 } else { 35 }];
                prop_assert!(last.insert(stream, index).is_none_or(|before| before < index), "overtaken");
            }
        }
        prop_assert!(seen.into_iter().all(|seen| seen));
    }
}
