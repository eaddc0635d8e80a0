//! An IPv6 underlay: the outer headers, super-frames, and decapsulation.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use crate::common::{Leaf, Owned, SLOT, VNI, Worker, roce, udp4};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pipeline::{
    Batch, Checksum, DropReason, Explanation, Grouper, Gso, GsoKind, Identifications, Offload,
    explain, explain_received,
};
use tables::{FlowLabel, Tos, VniIndex};

const LEAF_1: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const LEAF_2: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const OUTER_IPV6: usize = 70;

/// The leaves of `common` with IPv6 addresses.
fn leaf(local: Ipv6Addr, remote: Ipv6Addr) -> Leaf {
    let mut leaf = Leaf::one();
    leaf.tunnel.local = IpAddr::V6(local);
    leaf.tunnel.udp_checksum = true;
    leaf.vteps[0].0 = IpAddr::V6(remote);
    leaf.vteps[1].0 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3));
    leaf
}

fn one() -> Leaf {
    leaf(LEAF_1, LEAF_2)
}

fn two() -> Leaf {
    leaf(LEAF_2, LEAF_1)
}

/// Completes the outer checksum, as the sending device would.
fn finished(mut frame: Vec<u8>) -> Vec<u8> {
    wire::checksum::complete(&mut frame, 54, 6).unwrap();
    frame
}

#[test]
fn the_outer_headers_are_those_that_the_settings_name() {
    let mut leaf = one();
    leaf.tunnel.flow_label = FlowLabel::Fixed(0xabcde);
    leaf.tunnel.tos = Tos::Fixed(0x48);
    let mut worker = Worker::new();
    let inner = roce(5, 1);
    let sent = worker.encapsulate(&[Owned::tagged(inner.clone())], &leaf.snapshot());
    let [frame] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(
        worker.out[0].offload,
        Offload { checksum: Checksum::Partial { start: 54, offset: 6 }, gso: None }
    );
    let frame = finished(frame.clone());
    let packet = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(NetSlice::Ipv6(ip)) = &packet.net else { panic!("{packet:?}") };
    let header = ip.header();
    assert_eq!((header.source_addr(), header.destination_addr()), (LEAF_1, LEAF_2));
    assert_eq!((header.hop_limit(), header.flow_label().value()), (64, 0xabcde));
    // The DSCP of the netdev, and the ECN field of the inner packet.
    assert_eq!(header.traffic_class() & 0xfc, 0x48);
    assert_eq!(usize::from(header.payload_length()), frame.len() - 54);
    let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("{packet:?}") };
    assert_eq!(udp.destination_port(), 4789);
    let computed = udp
        .to_header()
        .calc_checksum_ipv6_raw(LEAF_1.octets(), LEAF_2.octets(), udp.payload())
        .unwrap();
    assert_eq!(udp.checksum(), computed);
    assert_eq!(udp.payload()[..4], [8, 0, 0, 0]);
    assert_eq!(udp.payload()[4..8], (VNI << 8).to_be_bytes());
    assert_eq!(frame[OUTER_IPV6..], inner);
    // The counters have inner bytes.
    worker.out.iter().for_each(|sent| worker.pipeline.account_frame(sent, Ok(())));
    let counted = &worker.pipeline.counters().vni(SLOT).unwrap().encapsulated;
    assert_eq!((counted.frames.get(), counted.bytes.get()), (1, inner.len() as u64));
}

/// RFC 6438 section 3: packets of one flow have one label.
#[test]
fn without_a_label_of_the_netdev_the_label_is_the_source_port() {
    let mut worker = Worker::new();
    let sent: Vec<_> = (0..64).map(|queue_pair| Owned::tagged(roce(queue_pair, 1))).collect();
    let sent = worker.encapsulate(&sent, &one().snapshot());
    let labels: std::collections::BTreeSet<u32> = sent
        .iter()
        .map(|frame| {
            let ip = wire::Ipv6Packet::parse(&frame[14..]).unwrap();
            let port = u16::from_be_bytes([frame[54], frame[55]]);
            assert_eq!(ip.header.flow_label(), u32::from(port));
            ip.header.flow_label()
        })
        .collect();
    assert!(labels.len() > 60, "{labels:?}");
}

#[test]
fn without_a_checksum_the_field_is_zero() {
    let mut leaf = one();
    leaf.tunnel.udp_checksum = false;
    let mut worker = Worker::new();
    let sent = worker.encapsulate(&[Owned::tagged(roce(5, 1))], &leaf.snapshot());
    assert_eq!((worker.out[0].offload, &sent[0][60..62]), (Offload::default(), &[0, 0][..]));
    let received = [Owned::plain(sent[0].clone())];
    let mut strict = Worker::new();
    assert_eq!(strict.decapsulate(&received, &two().snapshot()).len(), 0);
    assert_eq!(strict.pipeline.counters().dropped(DropReason::OuterUdpChecksum), 1);
    let mut leaf = two();
    leaf.tunnel.accepts_no_checksum = true;
    let mut worker = Worker::new();
    // The second packet is from a known sender.
    for _ in 0..2 {
        assert_eq!(worker.decapsulate(&received, &leaf.snapshot()).len(), 1);
    }
    // A known sender does not make a packet without a checksum acceptable.
    let snapshot = two().snapshot();
    let checked = [Owned::plain(finished(
        Worker::new().encapsulate(&[Owned::tagged(roce(5, 1))], &one().snapshot()).remove(0),
    ))];
    assert_eq!(strict.decapsulate(&checked, &snapshot).len(), 1);
    assert_eq!(strict.decapsulate(&checked, &snapshot).len(), 1);
    assert_eq!(strict.decapsulate(&received, &snapshot).len(), 0);
}

#[test]
fn frames_arrive_as_they_were_sent_and_wrong_checksums_are_dropped() {
    let frames: Vec<Vec<u8>> = (1..20)
        .map(|n| roce(n, n))
        .chain((1..20).map(|n| udp4(0, n as u16, 9, &[7; 90])))
        .collect();
    let tagged: Vec<Owned> = frames.iter().cloned().map(Owned::tagged).collect();
    let sent = Worker::new().encapsulate(&tagged, &one().snapshot());
    assert_eq!(sent.len(), frames.len());
    let (mut worker, snapshot) = (Worker::new(), two().snapshot());
    for (frame, sent) in frames.iter().zip(&sent) {
        let packet = finished(sent.clone());
        let [inner] = <[Vec<u8>; 1]>::try_from(
            worker.decapsulate(&[Owned::plain(packet.clone())], &snapshot),
        )
        .unwrap();
        // Without the tag for the bridge punt pair.
        assert_eq!([&inner[..12], &inner[16..]].concat(), *frame);
        let mut wrong = packet;
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(worker.decapsulate(&[Owned::plain(wrong)], &snapshot).len(), 0);
    }
    let counters = worker.pipeline.counters();
    assert_eq!(counters.dropped(DropReason::OuterUdpChecksum), frames.len() as u64);
}

#[test]
fn truncated_packets_and_extension_headers_are_refused() {
    let sent = Worker::new().encapsulate(&[Owned::tagged(roce(1, 1))], &one().snapshot());
    let packet = finished(sent[0].clone());
    let (mut worker, snapshot) = (Worker::new(), two().snapshot());
    for end in 1..packet.len() {
        assert_eq!(worker.decapsulate(&[Owned::plain(packet[..end].to_vec())], &snapshot).len(), 0);
    }
    let mut extended = packet;
    extended[20] = 60; // destination options
    assert_eq!(worker.decapsulate(&[Owned::plain(extended)], &snapshot).len(), 0);
    assert_eq!(worker.pipeline.counters().dropped(DropReason::NotVxlan), 1);
}

#[test]
fn a_super_frame_of_packets_is_split_and_one_inside_a_packet_is_not() {
    let snapshot = two().snapshot();
    let inner = vec![roce(1, 1), roce(1, 2)];
    let tagged: Vec<Owned> = inner.iter().cloned().map(Owned::tagged).collect();
    let sent = Worker::new().encapsulate(&tagged, &one().snapshot());
    let payload = sent[0].len() - 62;
    let mut whole = [&sent[0][..], &sent[1][62..]].concat();
    let length = (2 * payload + 8) as u16;
    whole[18..20].copy_from_slice(&length.to_be_bytes());
    whole[58..60].copy_from_slice(&length.to_be_bytes());
    let gso = Gso { kind: GsoKind::Udp, size: payload as u16, ecn: false };
    let offload = Offload { checksum: Checksum::Partial { start: 54, offset: 6 }, gso: Some(gso) };
    let received = Owned { offload, ..Owned::plain(whole) };
    let mut worker = Worker::new();
    let out = worker.decapsulate(&[received], &snapshot);
    let bare: Vec<Vec<u8>> =
        out.iter().map(|frame| [&frame[..12], &frame[16..]].concat()).collect();
    assert_eq!(bare, inner);
    // A checksum that lies behind the outer headers belongs to the inner frame.
    let udp = udp4(0, 5, 9, &[1; 100]);
    let sent = Worker::new().encapsulate(&[Owned::tagged(udp)], &one().snapshot());
    let checksum = Checksum::Partial { start: (OUTER_IPV6 + 34) as u16, offset: 6 };
    let received =
        Owned { offload: Offload { checksum, gso: None }, ..Owned::plain(sent[0].clone()) };
    worker.decapsulate(&[received], &snapshot);
    assert_eq!(worker.out[0].offload.checksum, Checksum::Partial { start: 34 + 4, offset: 6 });
}

/// Packets of one outer flow and size leave as a super-frame whose headers describe the whole.
#[test]
fn packets_of_a_flow_leave_together() {
    let frames: Vec<Owned> = (0..5).map(|n| Owned::tagged(roce(7, n))).collect();
    let mut worker = Worker::new();
    let other = Owned::tagged(roce(8, 1));
    let sent = worker.encapsulate(&[frames.clone(), vec![other]].concat(), &one().snapshot());
    let batch = Batch::none();
    let mut out = frame::TxBatch::new();
    for (frame, bytes) in worker.out.iter().zip(&sent) {
        let (head, body) = bytes.split_at(frame.head().len());
        let mut owned = frame.clone();
        assert_eq!(head, frame.head());
        owned.body = pipeline::Payload::Owned(body.into());
        out.push(owned);
    }
    Grouper::default().group(&mut out, &Identifications::default());
    let groups = &out.groups().list;
    assert_eq!(groups.iter().map(|group| group.frames).collect::<Vec<_>>(), [5, 1]);
    let payload = sent[0].len() - 62;
    let gso = Gso { kind: GsoKind::Udp, size: payload as u16, ecn: false };
    let checksum = Checksum::Partial { start: 54, offset: 6 };
    assert_eq!(groups[0].offload, Offload { checksum, gso: Some(gso) });
    let whole = out.to_vec(&groups[0], &batch);
    assert_eq!(whole.len(), 62 + 5 * payload);
    let length = (5 * payload + 8) as u16;
    assert_eq!(
        (&whole[18..20], &whole[58..60]),
        (&length.to_be_bytes()[..], &length.to_be_bytes()[..])
    );
    let pseudo = wire::checksum::Sum::new().pseudo_ipv6(LEAF_1, LEAF_2, 17, length.into()).fold();
    assert_eq!(whole[60..62], pseudo.to_be_bytes());
    // What the kernel makes of it is what was sent one by one.
    for (n, sent) in sent.iter().take(5).enumerate() {
        assert_eq!(whole[62 + n * payload..][..payload], sent[62..]);
    }
    // Counters see five frames, and inner bytes.
    assert!(groups[0].is_super_frame());
}

#[test]
fn explanations_show_ipv6() {
    let snapshot = one().snapshot();
    let frame = Owned::plain(roce(1, 1));
    let index = VniIndex::new(SLOT).unwrap();
    let explained =
        explain(&frame.frame(), index, &snapshot, Instant::now(), &path::Pins::default());
    let Explanation::Forwarded(forwarded) = &explained else { panic!("{explained:?}") };
    let route = forwarded.copies[0].route.as_ref().unwrap();
    assert_eq!((route.local, route.remote), (IpAddr::V6(LEAF_1), IpAddr::V6(LEAF_2)));
    assert_eq!(usize::from(route.length), frame.data.len() + OUTER_IPV6 - 14);
    assert_eq!(forwarded.copies[0].remote, Some(IpAddr::V6(LEAF_2)));
    let sent = Worker::new().encapsulate(&[Owned::tagged(frame.data)], &snapshot);
    let received = Owned::plain(finished(sent[0].clone()));
    let explained = explain_received(&received.frame(), &two().snapshot(), &[], Instant::now());
    let outer = explained.outer.unwrap();
    assert_eq!((outer.source, outer.destination), (IpAddr::V6(LEAF_1), IpAddr::V6(LEAF_2)));
    assert!(explained.known_vtep);
}

#[test]
fn families_do_not_mix() {
    let mut leaf = one();
    leaf.vteps[0].0 = IpAddr::from([10, 0, 0, 2]);
    let mut worker = Worker::new();
    assert_eq!(worker.encapsulate(&[Owned::tagged(roce(1, 1))], &leaf.snapshot()).len(), 0);
    assert_eq!(worker.pipeline.counters().dropped(DropReason::NoRoute), 1);
}
