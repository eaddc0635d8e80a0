//! Decapsulation: frames from the underlay, as they reach the bridge.

use crate::common::{
    self, Leaf, OUTER, Owned, SLOT, UDP_AT, VNI, Worker, bth, roce, tcp, udp4, udp6, untagged,
};
use pipeline::explain_received::Fate;
use pipeline::{Checksum, Destination, DropReason, Gso, GsoKind, Offload, explain_received};
use test_frames::{Ipv4, tunnelled};

const VXLAN_AT: usize = 42;

/// A VXLAN packet from leaf 1 to leaf 2.
fn outer(tos: u8, inner: &[u8]) -> Vec<u8> {
    let fields = Ipv4 { tos, ..Ipv4::default() };
    tunnelled(([1; 6], [2; 6]), ([10, 0, 0, 1], [10, 0, 0, 2]), 50_000, VNI, inner, fields)
}

fn set_header_checksum(frame: &mut [u8]) {
    let ip = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
    frame[24..26].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
}

/// The result of one frame: the frame for the bridge, or the drop reason. The explanation must
/// agree.
fn fate(frame: Owned) -> Result<Vec<u8>, DropReason> {
    let snapshot = Leaf::two().snapshot();
    let mut worker = Worker::new();
    let sent = worker.decapsulate(std::slice::from_ref(&frame), &snapshot);
    worker.assert_balance(sent.len());
    let fate = match sent.as_slice() {
        [one] => {
            assert_eq!(worker.out[0].to, Destination::Bridge);
            assert_eq!(worker.out[0].vni, SLOT);
            Ok(untagged(one))
        }
        [] => Err(*DropReason::ALL.iter().find(|&&reason| worker.dropped(reason) == 1).unwrap()),
        more => panic!("{} frames", more.len()),
    };
    // A capture does not include offloads, so the explanation is only compared without them.
    if frame.offload == Offload::default() && frame.vlan.is_none() && !frame.data.is_empty() {
        let explained = explain_received(&frame.frame(), &snapshot, &[], std::time::Instant::now());
        match explained.fate {
            Fate::Bridge(_) => assert!(fate.is_ok(), "{explained:?}"),
            Fate::Host { .. } => panic!("{explained:?}"),
            Fate::Kernel(reason) | Fate::Dropped(reason) => {
                assert_eq!(fate.as_ref().err(), Some(&reason), "{explained:?}");
            }
        }
    }
    fate
}

#[test]
fn v1_decap_exact_inner_frame_and_i_flag() {
    let inner =
        [roce(1, 2), udp6(0xb9, b"hello"), tcp(false, 0, &[1; 99]), vec![6; 20], vec![0xfe; 61]];
    for inner in inner {
        assert_eq!(fate(Owned::plain(outer(0, &inner))), Ok(inner.clone()));
        let mut without_flag = outer(0, &inner);
        without_flag[VXLAN_AT] = 0;
        assert_eq!(fate(Owned::plain(without_flag)), Err(DropReason::NotVxlan));
    }
}

/// The kernel would drop these frames at the near end of the punt pair without counting them.
#[test]
fn inner_frames_that_the_punt_cannot_carry_are_counted() {
    for length in 0..20 {
        let fate = fate(Owned::plain(outer(0, &vec![7; length])));
        assert_eq!(fate, Err(DropReason::InnerTruncated), "{length}");
    }
}

#[test]
fn v1_ethernet_padding_behind_the_datagram_is_no_part_of_the_inner_frame() {
    for inner in [vec![6; 20], vec![8; 21]] {
        let mut frame = outer(0, &inner);
        frame.extend([0xaa; 30]);
        assert_eq!(fate(Owned::plain(frame.clone())), Ok(inner.clone()));
        // Bytes between the end of the UDP datagram and the end of the IP packet are dropped as
        // well.
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        set_header_checksum(&mut frame);
        assert_eq!(fate(Owned::plain(frame)), Ok(inner));
    }
}

#[test]
fn l12_reserved_bits() {
    let mut bits = 0;
    for bit in 0..64 {
        // The I flag and the VNI are not reserved bits.
        if bit == 4 || (32..56).contains(&bit) {
            continue;
        }
        bits += 1;
        let mut frame = outer(0, &roce(1, 1));
        frame[VXLAN_AT + bit / 8] ^= 0x80 >> (bit % 8);
        assert_eq!(fate(Owned::plain(frame)), Err(DropReason::NotVxlan), "bit {bit}");
    }
    assert_eq!(bits, 39);
}

#[test]
fn only_whole_packets_for_us_are_accepted() {
    let good = outer(0, &roce(1, 1));
    let change = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        set_header_checksum(&mut frame);
        fate(Owned::plain(frame)).unwrap_err()
    };
    assert_eq!(change(13, 6), DropReason::NotVxlan); // ARP.
    assert_eq!(change(20, 0x20), DropReason::NotVxlan); // More fragments.
    assert_eq!(change(21, 1), DropReason::NotVxlan); // A later fragment.
    assert_eq!(change(23, 6), DropReason::NotVxlan); // TCP.
    assert_eq!(change(33, 3), DropReason::UnknownVni); // Another address.
    assert_eq!(change(37, 1), DropReason::UnknownVni); // Another port.
    assert_eq!(change(48, 1), DropReason::UnknownVni); // Another VNI.
    assert_eq!(change(16, 0xff), DropReason::Truncated); // An IP length beyond the frame.
    assert_eq!(change(38, 0xff), DropReason::Truncated); // A UDP length beyond the packet.
    let mut broken = good.clone();
    broken[24] ^= 1;
    assert_eq!(fate(Owned::plain(broken)), Err(DropReason::OuterHeaderChecksum));
    for length in 0..good.len() {
        let reason = fate(Owned::plain(good[..length].to_vec())).unwrap_err();
        let expected =
            if length == 0 { DropReason::ReceiveUnreadable } else { DropReason::Truncated };
        assert_eq!(reason, expected, "{length} bytes");
    }
    for length in 0..14 {
        assert_eq!(fate(Owned::plain(outer(0, &good[..length]))), Err(DropReason::InnerTruncated));
    }
    let vni_0 = [&good[..46], &[0, 0, 0, 0], &good[50..]].concat();
    assert_eq!(fate(Owned::plain(vni_0)), Err(DropReason::UnknownVni));
    let tagged = Owned { vlan: Owned::tagged(vec![]).vlan, ..Owned::plain(good) };
    assert_eq!(fate(tagged), Err(DropReason::NotVxlan));
}

#[test]
fn the_outer_udp_checksum_is_checked_where_it_is_there() {
    let inner = roce(1, 1);
    let mut frame = outer(0, &inner);
    let value = common::transport_checksum(&frame, UDP_AT);
    frame[40..42].copy_from_slice(&value.to_be_bytes());
    assert_eq!(fate(Owned::plain(frame.clone())), Ok(inner));
    frame[70] ^= 1;
    assert_eq!(fate(Owned::plain(frame.clone())), Err(DropReason::OuterUdpChecksum));
    // The kernel has verified the checksum, or it is not complete yet.
    let mut checked = Owned::plain(frame.clone());
    checked.offload.checksum = Checksum::Valid;
    assert!(fate(checked).is_ok());
    assert!(fate(Owned::plain(frame).partial(UDP_AT, 6)).is_ok());
}

/// A frame captured on veth, whose sender left the checksum to the device.
#[test]
fn a_checksum_that_was_never_completed_is_told_from_a_wrong_one() {
    let snapshot = Leaf::two().snapshot();
    let explained = |frame: &[u8]| {
        explain_received(
            &Owned::plain(frame.to_vec()).frame(),
            &snapshot,
            &[],
            std::time::Instant::now(),
        )
        .fate
    };
    let mut frame = outer(0, &roce(1, 1));
    let length = u16::try_from(frame.len() - UDP_AT).unwrap();
    let pseudo = [&frame[26..34], &[0, 17], &length.to_be_bytes()].concat();
    let unfinished = !wire::checksum::checksum(&pseudo);
    frame[40..42].copy_from_slice(&unfinished.to_be_bytes());
    assert!(matches!(explained(&frame), Fate::Bridge(_)), "{:?}", explained(&frame));
    frame[40..42].copy_from_slice(&unfinished.wrapping_add(1).to_be_bytes());
    assert_eq!(explained(&frame), Fate::Dropped(DropReason::OuterUdpChecksum));
}

#[test]
fn unknown_vteps_are_counted_and_strictness_drops_them() {
    let mut frame = outer(0, &roce(1, 1));
    frame[29] = 99;
    set_header_checksum(&mut frame);
    for strict in [false, true] {
        let mut leaf = Leaf::two();
        leaf.strict = strict;
        let mut worker = Worker::new();
        let frames = [Owned::plain(frame.clone()), Owned::plain(outer(0, &roce(1, 1)))];
        let sent = worker.decapsulate(&frames, &leaf.snapshot());
        assert_eq!(sent.len(), if strict { 1 } else { 2 });
        assert_eq!(worker.pipeline.counters().vni(SLOT).unwrap().unknown_vtep.get(), 1);
        assert_eq!(worker.dropped(DropReason::UnknownVtep), u64::from(strict));
    }
}

/// RFC 6040 figure 4: the resulting inner code point, by inner and outer code point.
const FIGURE_4: [[Option<u8>; 4]; 4] = [
    [Some(0), Some(0), Some(0), None],
    [Some(1), Some(1), Some(1), Some(3)],
    [Some(2), Some(1), Some(2), Some(3)],
    [Some(3), Some(3), Some(3), Some(3)],
];

#[test]
fn l7_ecn_decap() {
    for (row, inner) in FIGURE_4.iter().zip(0u8..) {
        for (expected, from) in row.iter().zip(0u8..) {
            let plain = udp4(0xb8 | inner, 1, 2, b"x");
            let mut behind_tag = plain[..12].to_vec();
            behind_tag.extend([0x81, 0, 0, 5]);
            behind_tag.extend(&plain[12..]);
            // The kernel does not look behind a tag here.
            let got = fate(Owned::plain(outer(0x28 | from, &behind_tag)));
            assert_eq!(got, Ok(behind_tag), "inner {inner} outer {from} behind a tag");
            let got = fate(Owned::plain(outer(0x28 | from, &plain)));
            if let Some(codepoint) = expected {
                let wanted = udp4(0xb8 | codepoint, 1, 2, b"x");
                assert_eq!(got, Ok(wanted), "inner {inner} outer {from}");
            } else {
                assert_eq!(got, Err(DropReason::EcnNotCapable));
            }
            let frame = udp6(0xb8 | inner, b"x");
            let wanted = expected.map(|codepoint| udp6(0xb8 | codepoint, b"x"));
            assert_eq!(
                fate(Owned::plain(outer(from, &frame))).ok(),
                wanted,
                "inner {inner} outer {from}"
            );
        }
    }
    // A frame that is not IP has no code point.
    assert_eq!(fate(Owned::plain(outer(3, &[0x54; 60]))), Ok(vec![0x54; 60]));
}

#[test]
fn l8_not_ect_inside_ce_is_dropped_and_counted() {
    let mut worker = Worker::new();
    let frames = [udp4(0, 1, 2, b"x"), udp6(0, b"x"), udp4(1, 1, 2, b"x")];
    let frames = frames.map(|inner| Owned::plain(outer(3, &inner)));
    assert_eq!(worker.decapsulate(&frames, &Leaf::two().snapshot()).len(), 1);
    assert_eq!(worker.dropped(DropReason::EcnNotCapable), 2);
    assert_eq!(worker.pipeline.counters().vni(SLOT).unwrap().dropped.get(), 2);
}

#[test]
fn kernel_super_frames_go_on_whole() {
    for (ipv6, kind, l4) in [(false, GsoKind::TcpV4, 34), (true, GsoKind::TcpV6, 54)] {
        let inner = tcp(ipv6, 0, &[9; 5_000]);
        let frame = Owned::plain(outer(2, &inner)).partial(OUTER + l4, 16).gso(kind, 1_448);
        let mut worker = Worker::new();
        let sent = worker.decapsulate(&[frame], &Leaf::two().snapshot());
        assert_eq!(untagged(&sent[0]), inner);
        let transmit = &worker.out[0];
        let checksum = Checksum::Partial { start: l4 as u16 + 4, offset: 16 };
        let gso = Some(Gso { kind, size: 1_448, ecn: false });
        assert_eq!(transmit.offload, Offload { checksum, gso });
        assert_eq!((sent.len(), transmit.segments), (1, 4));
        worker.pipeline.account_frame(transmit, Ok(()));
        let traffic = &worker.pipeline.counters().vni(SLOT).unwrap().decapsulated;
        assert_eq!((traffic.frames.get(), traffic.bytes.get()), (4, inner.len() as u64));
        worker.assert_balance(0);
    }
    // A host's UDP_SEGMENT super-frame, as kernel VXLAN sends it. Its GSO type is that of vtepd's
    // super-frames, but its checksum offset is in the inner frame.
    let inner = udp4(0, 1, 2, &[9; 3_000]);
    let frame = Owned::plain(outer(0, &inner)).partial(84, 6).gso(GsoKind::Udp, 1_000);
    let mut worker = Worker::new();
    let sent = worker.decapsulate(&[frame], &Leaf::two().snapshot());
    assert_eq!((untagged(&sent[0]), worker.out[0].segments), (inner, 3));
    assert_eq!(worker.out[0].offload.checksum, Checksum::Partial { start: 38, offset: 6 });
}

#[test]
fn a_super_frames_ecn_is_set_once() {
    let inner = tcp(false, 0, &[9; 5_000]);
    let mut capable = inner.clone();
    capable[15] |= 2;
    set_header_checksum(&mut capable);
    let frame = Owned::plain(outer(3, &capable)).partial(84, 16).gso(GsoKind::TcpV4, 1_448);
    let sent = Worker::new().decapsulate(&[frame], &Leaf::two().snapshot());
    capable[15] |= 3;
    set_header_checksum(&mut capable);
    assert_eq!(untagged(&sent[0]), capable);
}

#[test]
fn our_own_super_frames_are_cut_into_their_packets() {
    // Equal lengths except for the last, so that the packets can be coalesced.
    let packets: Vec<_> = [100, 100, 100, 37]
        .iter()
        .zip(0..)
        .map(|(&length, sequence)| udp4(0, 49_152, 4791, &bth(0x11, sequence, length)))
        .collect();
    let vxlan = |inner: &Vec<u8>| [&[8, 0, 0, 0, 0, 0x27, 0x1a, 0][..], inner].concat();
    let all: Vec<u8> = packets.iter().flat_map(vxlan).collect();
    let size = 8 + packets[0].len() as u16;
    let frame = Owned::plain(outer(0, &all[8..])).partial(UDP_AT, 6).gso(GsoKind::Udp, size);
    let mut worker = Worker::new();
    let sent = worker.decapsulate(std::slice::from_ref(&frame), &Leaf::two().snapshot());
    assert_eq!(sent.iter().map(|frame| untagged(frame)).collect::<Vec<_>>(), packets);
    assert!(worker.out.iter().all(|transmit| transmit.offload == Offload::default()));
    worker.assert_balance(4);
    // One piece is broken, and the others are forwarded. A rest that is too short for a header is
    // counted too.
    let mut broken = frame;
    broken.data[VXLAN_AT + usize::from(size)] = 0;
    broken.data.truncate(VXLAN_AT + 3 * usize::from(size) + 5);
    let total = (broken.data.len() - 14) as u16;
    broken.data[16..18].copy_from_slice(&total.to_be_bytes());
    broken.data[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    set_header_checksum(&mut broken.data);
    let sent = worker.decapsulate(&[broken], &Leaf::two().snapshot());
    assert_eq!(sent.len(), 2);
    assert_eq!(
        (worker.dropped(DropReason::NotVxlan), worker.dropped(DropReason::Truncated)),
        (1, 1)
    );
}

#[test]
fn partial_checksums_of_inner_frames_are_passed_on() {
    let mut inner = tcp(false, 0, &[5; 333]);
    common::leave_to_card(&mut inner, 34, 16);
    let mut worker = Worker::new();
    let sent = worker
        .decapsulate(&[Owned::plain(outer(0, &inner)).partial(84, 16)], &Leaf::two().snapshot());
    assert_eq!(untagged(&sent[0]), inner);
    assert_eq!(worker.out[0].offload.checksum, Checksum::Partial { start: 38, offset: 16 });
}

#[test]
fn sctp_checksums_are_completed_here() {
    let (mut inner, finished) = common::sctp();
    inner[15] = 1;
    set_header_checksum(&mut inner);
    for (from, codepoint) in [(0, 1), (3, 3)] {
        let mut worker = Worker::new();
        let frame = Owned::plain(outer(from, &inner)).partial(84, 8);
        let sent = worker.decapsulate(&[frame], &Leaf::two().snapshot());
        let mut wanted = finished.clone();
        wanted[15] = codepoint;
        set_header_checksum(&mut wanted);
        assert_eq!(untagged(&sent[0]), wanted);
        assert_eq!(worker.out[0].offload, Offload::default());
    }
}

#[test]
fn offloads_that_contradict_the_frame_are_dropped() {
    let inner = tcp(false, 0, &[9; 500]);
    let frame = || Owned::plain(outer(0, &inner));
    let length = inner.len();
    for bad in [
        frame().gso(GsoKind::TcpV4, 100),
        frame().partial(UDP_AT, 6).gso(GsoKind::TcpV4, 100),
        frame().partial(UDP_AT, 6).gso(GsoKind::Udp, 8),
        frame().partial(UDP_AT, 6).gso(GsoKind::Udp, 0),
        frame().partial(UDP_AT, 16),
        frame().partial(0, 6),
        frame().partial(OUTER, 6),
        frame().partial(OUTER + 13, 6),
        frame().partial(OUTER + length - 1, 0),
        frame().partial(OUTER + length - 17, 16),
        frame().partial(OUTER + 34, u16::MAX),
        frame().partial(usize::from(u16::MAX), u16::MAX),
    ] {
        assert_eq!(fate(bad.clone()), Err(DropReason::BadOffload), "{:?}", bad.offload);
    }
    // A super-frame without payload counts as one frame.
    let mut worker = Worker::new();
    let frame = Owned::plain(outer(0, &tcp(false, 0, &[]))).partial(84, 16).gso(GsoKind::TcpV4, 0);
    worker.decapsulate(&[frame], &Leaf::two().snapshot());
    assert_eq!(worker.out[0].segments, 1);
}
