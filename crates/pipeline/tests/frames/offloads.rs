//! Checksums and segmentation that senders left to their device, done by the pipeline.

use crate::common::{
    self, HOST, Leaf, OUTER, Owned, SOURCE, Worker, bth, open, roce, tcp, udp4, udp6, untagged,
};
use etherparse::PacketBuilder;
use pipeline::{DropReason, Gso, GsoKind};
use proptest::prelude::*;
use tables::Snapshot;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

fn inner_frames(frame: Owned) -> Vec<Vec<u8>> {
    let mut worker = Worker::new();
    let sent = worker.encapsulate(&[frame], &Leaf::one().snapshot());
    worker.assert_balance(sent.len());
    sent.iter().map(|frame| open(frame).inner).collect()
}

/// The expected segments of a TCP super-frame, computed independently of the code under test.
fn expected_tcp(whole: &[u8], l3: usize, l4: usize, size: usize, ecn: bool) -> Vec<Vec<u8>> {
    let header = l4 + usize::from(whole[l4 + 12] >> 4) * 4;
    let ipv6 = whole[l3] >> 4 == 6;
    let payload = &whole[header..];
    let count = payload.len().div_ceil(size).max(1);
    (0..count)
        .map(|i| {
            let piece = &payload[i * size..payload.len().min((i + 1) * size)];
            let mut frame = [&whole[..header], piece].concat();
            let length = (frame.len() - l3) as u16;
            if ipv6 {
                frame[l3 + 4..l3 + 6].copy_from_slice(&(length - 40).to_be_bytes());
            } else {
                frame[l3 + 2..l3 + 4].copy_from_slice(&length.to_be_bytes());
                let id = u16::from_be_bytes([whole[l3 + 4], whole[l3 + 5]]).wrapping_add(i as u16);
                frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
                let ip = etherparse::Ipv4Header::from_slice(&frame[l3..]).unwrap().0;
                frame[l3 + 10..l3 + 12].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
            }
            let sequence = u32::from_be_bytes(whole[l4 + 4..l4 + 8].try_into().unwrap());
            frame[l4 + 4..l4 + 8]
                .copy_from_slice(&sequence.wrapping_add((i * size) as u32).to_be_bytes());
            if i + 1 < count {
                frame[l4 + 13] &= !(FIN | PSH);
            }
            if i > 0 && ecn {
                frame[l4 + 13] &= !CWR;
            }
            common::checksum_tcp(&mut frame, l4);
            frame
        })
        .collect()
}

#[test]
fn q16_gso_and_partial_checksums_of_tcp() {
    for (ipv6, kind, l4) in [(false, GsoKind::TcpV4, 34), (true, GsoKind::TcpV6, 54)] {
        for flags in [0, FIN, PSH, FIN | PSH | CWR | ECE, URG, SYN | CWR] {
            for length in [0, 1, 999, 1_000, 1_001, 2_999, 20_000] {
                for (ecn, left) in [(false, false), (true, true), (false, true)] {
                    let payload: Vec<_> = (0..length as u32).map(|i| (i * 13) as u8).collect();
                    let whole = tcp(ipv6, flags, &payload);
                    let expected = expected_tcp(&whole, 14, l4, 1_000, ecn);
                    let mut frame = Owned::tagged(whole);
                    if left {
                        common::leave_to_card(&mut frame.data, l4, 16);
                        frame = frame.partial(l4, 16);
                    }
                    frame.offload.gso = Some(Gso { kind, size: 1_000, ecn });
                    assert_eq!(inner_frames(frame), expected, "{kind:?} {flags:#x} {length}");
                }
            }
        }
    }
}

#[test]
fn q16_gso_behind_tags_and_options() {
    for tags in 0..4 {
        let plain = tcp(false, PSH, &[0x5a; 2_500]);
        let mut whole = plain[..12].to_vec();
        for tag in 0..tags {
            whole.extend([0x81, 0, 0, 10 + tag]);
        }
        whole.extend(&plain[12..14]);
        // Four bytes of IPv4 options: a router alert.
        whole.push(0x46);
        whole.extend(&plain[15..34]);
        whole.extend([0x94, 4, 0, 0]);
        whole.extend(&plain[34..]);
        let l3 = 14 + 4 * usize::from(tags);
        let l4 = l3 + 24;
        let length = (whole.len() - l3) as u16;
        whole[l3 + 2..l3 + 4].copy_from_slice(&length.to_be_bytes());
        let cut = inner_frames(Owned::tagged(whole.clone()).gso(GsoKind::TcpV4, 1_000));
        assert_eq!(cut.len(), 3);
        let mut payload: Vec<u8> = Vec::new();
        for (frame, i) in cut.iter().zip(0u32..) {
            let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
            let Some(etherparse::NetSlice::Ipv4(ip)) = packet.net else { panic!() };
            assert_eq!(
                ip.header().header_checksum(),
                ip.header().to_header().calc_header_checksum()
            );
            assert_eq!(usize::from(ip.header().total_len()), frame.len() - l3);
            let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else { panic!() };
            assert_eq!(
                tcp.checksum(),
                tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap()
            );
            assert_eq!(tcp.sequence_number(), 0xffff_f000u32.wrapping_add(1_000 * i));
            assert_eq!(tcp.psh(), i == 2);
            assert_eq!(frame[..l3], whole[..l3]);
            assert_eq!(frame[l4 - 4..l4], [0x94, 4, 0, 0]);
            payload.extend(tcp.payload());
        }
        assert_eq!(payload, vec![0x5a; 2_500]);
    }
}

#[test]
fn q16_gso_behind_ipv6_extension_headers() {
    let plain = tcp(true, 0, &[0x5a; 2_500]);
    // Destination options, then a routing header. The sender's sum covers its final destination.
    let extensions = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &[6, 2, 4, 0, 0, 0, 0, 0], &[3; 16]].concat();
    let mut whole = [&plain[..54], &extensions, &plain[54..]].concat();
    whole[20] = 60;
    let length = (whole.len() - 54) as u16;
    whole[18..20].copy_from_slice(&length.to_be_bytes());
    let l4 = 54 + extensions.len();
    let sum = |frame: &[u8], destination: [u8; 16]| {
        let header = etherparse::TcpHeader::from_slice(&frame[l4..]).unwrap().0;
        let payload = &frame[l4 + header.header_len()..];
        header.calc_checksum_ipv6_raw([1; 16], destination, payload).unwrap()
    };
    // The partial checksum is the pseudo header of the final destination.
    let mut left = whole.clone();
    let mut pseudo = (left.len() - l4) as u32 + 6 + 8 * 0x0101 + 8 * 0x0303;
    while pseudo > 0xffff {
        pseudo = (pseudo & 0xffff) + (pseudo >> 16);
    }
    left[l4 + 16..l4 + 18].copy_from_slice(&(pseudo as u16).to_be_bytes());
    for (frame, destination) in [
        (Owned::tagged(left).partial(l4, 16).gso(GsoKind::TcpV6, 1_000), [3; 16]),
        (Owned::tagged(whole).gso(GsoKind::TcpV6, 1_000), [2; 16]),
    ] {
        let cut = inner_frames(frame);
        assert_eq!(cut.len(), 3);
        for frame in &cut {
            let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
            assert!(matches!(packet.transport, Some(etherparse::TransportSlice::Tcp(_))));
            assert_eq!(u16::from_be_bytes([frame[18], frame[19]]) as usize, frame.len() - 54);
            assert_eq!(
                u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]),
                sum(frame, destination)
            );
        }
    }
}

#[test]
fn q16_gso_of_udp() {
    for ipv6 in [false, true] {
        let l4 = if ipv6 { 54 } else { 34 };
        for (length, size) in
            [(3_000, 1_000), (3_001, 1_000), (2_999, 1_001), (5, 1_000), (0, 9), (40_000, 1_472)]
        {
            let payload: Vec<_> = (0..length as u32).map(|i| (i * 29) as u8).collect();
            let build =
                |payload: &[u8]| if ipv6 { udp6(1, payload) } else { udp4(1, 7, 8, payload) };
            let mut whole = build(&payload);
            common::leave_to_card(&mut whole, l4, 6);
            let frame = Owned::tagged(whole).partial(l4, 6).gso(GsoKind::Udp, size);
            let mut expected: Vec<_> = payload.chunks(usize::from(size)).map(build).collect();
            if payload.is_empty() {
                expected.push(build(&[]));
            }
            for (frame, i) in expected.iter_mut().zip(0..) {
                if !ipv6 {
                    frame[18..20].copy_from_slice(&(0x1234u16 + i).to_be_bytes());
                    let ip = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
                    frame[24..26].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
                }
            }
            assert_eq!(inner_frames(frame), expected, "{length} by {size}");
        }
    }
}

#[test]
fn q16_a_udp_checksum_of_zero_is_sent_as_ones() {
    // The last word of the payload makes the sum zero.
    let mut frame = udp4(0, 1, 2, &[0; 4]);
    let value = common::transport_checksum(&frame, 34);
    frame[44..46].copy_from_slice(&value.to_be_bytes());
    common::leave_to_card(&mut frame, 34, 6);
    assert_eq!(inner_frames(Owned::tagged(frame.clone()).partial(34, 6))[0][40..42], [0xff, 0xff]);
    frame.extend([0; 12]);
    let udp_length = (frame.len() - 34) as u16;
    frame[38..40].copy_from_slice(&udp_length.to_be_bytes());
    frame[16..18].copy_from_slice(&(udp_length + 20).to_be_bytes());
    common::leave_to_card(&mut frame, 34, 6);
    let cut = inner_frames(Owned::tagged(frame).partial(34, 6).gso(GsoKind::Udp, 4));
    assert_eq!((cut.len(), &cut[0][40..42]), (4, &[0xff, 0xff][..]));
}

/// Hosts with a VXLAN of their own (containers) leave the segmentation of the innermost TCP to the
/// device.
#[test]
fn q16_gso_inside_the_hosts_own_tunnel() {
    for (ipv6, tunnel_checksum) in [(false, false), (true, false), (false, true)] {
        let (kind, inner_l4) = if ipv6 { (GsoKind::TcpV6, 54) } else { (GsoKind::TcpV4, 34) };
        let innermost = tcp(ipv6, PSH | FIN, &[0x77; 3_333]);
        let expected = expected_tcp(&innermost, 14, inner_l4, 1_000, false);
        let tunnel = |frame: &[u8], id: u16| {
            let mut all = udp4(0, 55_555, 8_472, &[&[8, 0, 0, 0, 0, 0, 5, 0][..], frame].concat());
            all[18..20].copy_from_slice(&(0x1234 + id).to_be_bytes());
            let ip = etherparse::Ipv4Header::from_slice(&all[14..]).unwrap().0;
            all[24..26].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
            if !tunnel_checksum {
                all[40..42].fill(0);
            }
            all
        };
        let mut left = innermost;
        common::leave_to_card(&mut left, inner_l4, 16);
        let frame = Owned::tagged(tunnel(&left, 0)).partial(50 + inner_l4, 16).gso(kind, 1_000);
        let wanted: Vec<_> =
            expected.iter().zip(0..).map(|(frame, id)| tunnel(frame, id)).collect();
        assert_eq!(inner_frames(frame), wanted);
    }
}

#[test]
fn q16_partial_checksums() {
    let (sctp, finished) = common::sctp();
    assert_eq!(inner_frames(Owned::tagged(sctp).partial(34, 8)), [finished]);
    for ipv6 in [false, true] {
        for length in [0, 1, 2, 3, 77, 1_400] {
            let whole = tcp(ipv6, 0, &vec![0x3c; length]);
            let l4 = if ipv6 { 54 } else { 34 };
            let mut left = whole.clone();
            common::leave_to_card(&mut left, l4, 16);
            assert_ne!(left, whole);
            assert_eq!(inner_frames(Owned::tagged(left).partial(l4, 16)), [whole]);
        }
    }
    // The same for each VTEP of the flood list.
    let mut leaf = Leaf::one();
    leaf.fdb.clear();
    let whole = tcp(false, 0, &[1; 50]);
    let mut left = whole.clone();
    common::leave_to_card(&mut left, 34, 16);
    let sent = Worker::new().encapsulate(&[Owned::tagged(left).partial(34, 16)], &leaf.snapshot());
    assert_eq!(
        sent.iter().map(|frame| frame[OUTER..].to_vec()).collect::<Vec<_>>(),
        [whole.clone(), whole]
    );
}

#[test]
fn offloads_that_contradict_the_frame_are_dropped() {
    let whole = || Owned::tagged(tcp(false, 0, &[1; 500]));
    let length = whole().data.len();
    let mut fragment = whole().gso(GsoKind::TcpV4, 100);
    fragment.data[20] |= 0x20;
    let mut cut_short = whole().gso(GsoKind::TcpV4, 100);
    cut_short.data.truncate(60);
    let mut short_header = whole().gso(GsoKind::TcpV4, 100);
    short_header.data[46] = 0x40;
    let bad = [
        whole().partial(length, 0),
        whole().partial(length - 1, 0),
        whole().partial(length - 17, 16),
        whole().partial(34, u16::MAX),
        whole().partial(usize::from(u16::MAX), u16::MAX),
        whole().gso(GsoKind::TcpV4, 0),
        whole().gso(GsoKind::TcpV6, 100),
        whole().gso(GsoKind::Udp, 100),
        whole().partial(34, 6).gso(GsoKind::TcpV4, 100),
        whole().partial(35, 16).gso(GsoKind::TcpV4, 100),
        whole().partial(14, 16).gso(GsoKind::TcpV4, 100),
        Owned::tagged(udp4(0, 1, 2, &[0; 500])).partial(400, 16).gso(GsoKind::TcpV4, 100),
        Owned::tagged(vec![0; 100]).gso(GsoKind::TcpV4, 100),
        fragment,
        cut_short,
        short_header,
    ];
    let mut worker = Worker::new();
    for (frame, n) in bad.into_iter().zip(1..) {
        let offload = frame.offload;
        assert!(worker.encapsulate(&[frame], &Leaf::one().snapshot()).is_empty(), "{offload:?}");
        assert_eq!(worker.dropped(DropReason::BadOffload), n, "{offload:?}");
    }
    // The checksum offset is so large that the headers cannot be rewritten.
    worker.encapsulate(&[whole().partial(300, 16)], &Leaf::one().snapshot());
    assert_eq!(worker.dropped(DropReason::TooBig), 1);
    worker.assert_balance(0);
}

/// A host with a packet socket may ask for segments of one byte. A worker would be busy with one
/// such frame for as long as with 65,535 frames of others.
#[test]
fn a_super_frame_of_very_many_segments_is_refused() {
    let most = Gso::MOST_SEGMENTS;
    let whole = |segments: usize| {
        Owned::tagged(tcp(false, 0, &vec![1; segments * 10]))
            .partial(34, 16)
            .gso(GsoKind::TcpV4, 10)
    };
    let mut worker = Worker::new();
    assert_eq!(worker.encapsulate(&[whole(most)], &Leaf::one().snapshot()).len(), most);
    assert!(worker.encapsulate(&[whole(most + 1)], &Leaf::one().snapshot()).is_empty());
    assert_eq!(worker.dropped(DropReason::BadOffload), 1);
    worker.assert_balance(most);
}

/// A super-frame longer than its IP header can express. Some segments fit and one does not; all are
/// accounted for.
#[test]
fn segmentation_that_fails_midway_is_accounted_for() {
    let mut frame = udp4(0, 1, 2, &[7; 1_000]);
    frame.resize(65_535 + 14, 7);
    let frame = Owned::tagged(frame).gso(GsoKind::Udp, 65_520);
    let mut leaf = Leaf::one();
    leaf.fdb.clear();
    for hops in &mut leaf.vteps {
        hops.1.iter_mut().for_each(|hop| hop.mtu = 1_500);
    }
    let mut worker = Worker::new();
    let sent = worker.encapsulate(&[frame], &leaf.snapshot());
    worker.assert_balance(sent.len());
    let dropped = worker.pipeline.counters().dropped_in_all();
    assert_eq!((sent.len() as u64 + dropped, sent.len()), (2, 0));
}

/// Sends frames through the pipelines of leaf 1 and leaf 2.
fn through(frames: &[Owned], there: &Snapshot, here: &Snapshot) -> Vec<Vec<u8>> {
    let (mut one, mut two) = (Worker::new(), Worker::new());
    let sent: Vec<_> = one.encapsulate(frames, here).into_iter().map(Owned::plain).collect();
    sent.chunks(64)
        .flat_map(|sent| two.decapsulate(sent, there))
        .map(|frame| untagged(&frame))
        .collect()
}

#[test]
fn q11_inner_bytes_identical_roce_in_super_frames_too() {
    let (here, there) = (Leaf::one().snapshot(), Leaf::two().snapshot());
    let packets: Vec<_> = (0..20).map(|sequence| roce(0x11 + sequence % 3, sequence)).collect();
    let frames: Vec<_> = packets.iter().cloned().map(Owned::tagged).collect();
    let got = through(&frames, &there, &here);
    assert_eq!(got, packets);
    assert!(got.iter().all(|frame| wire::icrc::is_right(&frame[14..]) == Ok(true)));

    // The same packets as one UDP_SEGMENT super-frame. The ICRC of each covers the header that it
    // gets after the split.
    let mut datagrams = Vec::new();
    for (packet, i) in packets.iter().zip(0..) {
        let mut packet = packet.clone();
        packet[18..20].copy_from_slice(&(0x1234u16 + i).to_be_bytes());
        wire::icrc::fill(&mut packet[14..]).unwrap();
        datagrams.extend(&packet[42..]);
    }
    let size = packets[0].len() as u16 - 42;
    let whole = Owned::tagged(udp4(0, 49_152, 4791, &datagrams)).gso(GsoKind::Udp, size);
    let got = through(&[whole], &there, &here);
    assert_eq!(got.len(), packets.len());
    assert_eq!(got.iter().flat_map(|frame| frame[42..].to_vec()).collect::<Vec<_>>(), datagrams);
    assert!(got.iter().all(|frame| wire::icrc::is_right(&frame[14..]) == Ok(true)));
}

proptest! {
    #[test]
    fn q11_inner_bytes_identical(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 20..200), 1..10),
        queue_pairs in prop::collection::vec((any::<u16>(), any::<u32>()), 1..10),
        udp_checksum: bool,
    ) {
        let mut leaf = Leaf::one();
        leaf.tunnel.udp_checksum = udp_checksum;
        leaf.flood = vec![0];
        let roce = queue_pairs.into_iter().map(|(qp, sequence)| roce(qp.into(), sequence & 0xff_ffff));
        let station = |mut frame: Vec<u8>| {
            frame[6] = frame[6] & 0xfe | 2;
            frame
        };
        let all: Vec<_> = frames.into_iter().map(station).chain(roce).collect();
        let owned: Vec<_> = all.iter().cloned().map(Owned::tagged).collect();
        let (mut one, mut two) = (Worker::new(), Worker::new());
        one.encapsulate(&owned, &leaf.snapshot());
        let sent: Vec<_> = one.out.iter().map(|transmit| {
            let mut data = transmit.to_vec(&one.batch);
            if udp_checksum {
                wire::checksum::complete(&mut data, 34, 6).unwrap();
            }
            Owned::plain(data)
        }).collect();
        let got: Vec<_> = two.decapsulate(&sent, &Leaf::two().snapshot()).iter().map(|f| untagged(f)).collect();
        prop_assert_eq!(got, all);
    }

    #[test]
    fn q11_super_frames_lose_nothing(
        payload in prop::collection::vec(any::<u8>(), 0..5_000),
        size in 64..2_000u16,
        is_tcp: bool,
        ipv6: bool,
        flags: u8,
        tags in 0..3usize,
    ) {
        let mut ethernet = if is_tcp {
            tcp(ipv6, flags, &payload)
        } else if ipv6 {
            udp6(0, &payload)
        } else {
            udp4(0, 7, 4791, &payload)
        };
        for _ in 0..tags {
            ethernet.splice(12..12, [0x81, 0, 0, 9]);
        }
        let kind = match (is_tcp, ipv6) {
            (true, false) => GsoKind::TcpV4,
            (true, true) => GsoKind::TcpV6,
            (false, _) => GsoKind::Udp,
        };
        let frame = Owned::tagged(ethernet).gso(kind, size);
        let got = through(&[frame], &Leaf::two().snapshot(), &Leaf::one().snapshot());
        let mut joined = Vec::new();
        for frame in &got {
            let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
            let piece = match packet.transport.unwrap() {
                etherparse::TransportSlice::Tcp(tcp) => tcp.payload().to_vec(),
                etherparse::TransportSlice::Udp(udp) => udp.payload().to_vec(),
                _ => panic!(),
            };
            let l3 = 14 + 4 * tags;
            let l4 = l3 + if ipv6 { 40 } else { 20 };
            let at = l4 + if is_tcp { 16 } else { 6 };
            let value = u16::from_be_bytes([frame[at], frame[at + 1]]);
            prop_assert_eq!(value, common::transport_checksum(frame, l4));
            if !ipv6 {
                let ip = etherparse::Ipv4Header::from_slice(&frame[l3..]).unwrap().0;
                prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            }
            prop_assert!(piece.len() <= usize::from(size));
            joined.extend(piece);
        }
        prop_assert_eq!(joined, payload);
    }
}

#[test]
fn builders_of_this_test_are_right() {
    // The oracle accepts an unmodified frame.
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(SOURCE, HOST)
        .ipv6([1; 16], [2; 16], 64)
        .udp(1, 2)
        .write(&mut frame, &bth(1, 2, 3))
        .unwrap();
    let value = u16::from_be_bytes([frame[60], frame[61]]);
    assert_eq!(value, common::transport_checksum(&frame, 54));
    let before = frame.clone();
    common::leave_to_card(&mut frame, 54, 6);
    wire::checksum::complete(&mut frame, 54, 6).unwrap();
    assert_eq!(frame, before);
}
