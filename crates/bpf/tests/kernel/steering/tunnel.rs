//! TCP super-frames inside a tunnel. AF_PACKET cannot describe them, so a program at the uplink's
//! egress completes them.

use std::sync::Arc;

use frame::{Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame};
use pipeline::{Counters, Pipeline};
use root_test::root_test;
use test_frames::{IPV6, Ipv6, TCP};
use wire::checksum::{Sum, checksum};

use super::*;

const SEGMENT: u16 = 1000;
const PAYLOAD: usize = 10_500;
const OUTER: usize = 50;

/// A TCP super-frame of a local sender, and the offset of its TCP header.
fn super_frame(ipv6: bool) -> (Vec<u8>, usize) {
    let mut tcp =
        vec![0xc0, 0, 0x1f, 0x90, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    tcp.extend((0..PAYLOAD).map(|i| (i * 13) as u8));
    let (ethertype, mut packet) = if ipv6 {
        let addresses = ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]);
        (IPV6, test_frames::ipv6(addresses, TCP, &tcp, Ipv6::default()))
    } else {
        let fields = Ipv4 { identification: 0x1234, dont_fragment: true, ..Ipv4::default() };
        (IPV4, ipv4(([10, 9, 0, 1], [10, 9, 0, 2]), TCP, &tcp, fields))
    };
    // A partial checksum is the sum of the pseudo header.
    let (addresses, l4) = if ipv6 { (8, 40) } else { (12, 20) };
    let pseudo = Sum::new().bytes(&packet[addresses..l4]).word(6).word(tcp.len() as u16).fold();
    packet[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
    (ethernet([2, 0, 0, 0, 9, 2], [2, 0, 0, 0, 9, 1], ethertype, &packet), 14 + l4)
}

/// The outer headers that the pipeline writes for an inner frame of this many bytes.
fn outer(inner: usize) -> Vec<u8> {
    vxlan_packet(0xc000, 5, &vec![0; inner])[..OUTER].to_vec()
}

/// Sends the super-frame over the uplink as the pipeline does.
fn send_whole(leaf: &Namespace, sender: &mut PacketSocket, ipv6: bool) {
    let (inner, l4) = super_frame(ipv6);
    let kind = if ipv6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    let offload = Offload {
        checksum: Checksum::Partial { start: (OUTER + l4) as u16, offset: 16 },
        gso: Some(Gso { kind, size: SEGMENT, ecn: false }),
    };
    let up1 = ifindex(leaf, "up1");
    let to = Destination::Uplink { ifindex: up1, path: 0, by_default: false, impaired: false };
    let mut headers = outer(inner.len());
    headers[12..14].copy_from_slice(&inner[12..14]);
    let mut transmit = TxFrame::new(to, 9, Payload::Owned(inner.into()), offload);
    assert!(transmit.extend_head(&headers));
    transmit.segments = 11;
    let mut out = TxBatch::of([transmit]);
    sender.transmit(&Batch::none(), &mut out, 0..1);
    out.outcome().unwrap();
    let pipeline = Pipeline::new(Arc::new(Counters::new()));
    pipeline.account(&out);
    let counters = pipeline.counters();
    assert_eq!((counters.super_frames.get(), counters.in_super_frames.get()), (1, 11));
}

/// The bytes and offloads of the tunnel's frames that arrive.
fn arrivals(spine: &mut PacketSocket, count: usize) -> Vec<(Vec<u8>, Offload)> {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while seen.len() < count && start.elapsed() < SOON {
        let batch = spine.receive();
        let tunnel = batch.frames().filter(|frame| frame.data.get(36..38) == Some(&[0x12, 0xb5]));
        seen.extend(tunnel.map(|frame| (frame.data.to_vec(), frame.offload)));
    }
    seen
}

#[root_test]
fn tcp_super_frames_leave_whole_and_are_cut_inside_the_tunnel() {
    if !Features::probe().unwrap().tcx {
        root_test::ignore("no tcx links");
    }
    let Leaf { leaf, spine, host: _host } = leaf("tunnel");
    let plan = plan(&leaf);
    let (steering, _punts, _private) = steer(&leaf, Hook::Tcx, &plan, PATIENT);
    assert_eq!(steering.tunnel_uplinks(), [ifindex(&leaf, "up1")]);
    let index = ifindex(&spine, "leaf");
    let mut far = spine
        .enter(|| PacketSocket::open(index, RingSize { frames: 900, ..RingSize::LITTLE }).unwrap())
        .unwrap();
    let mut sender = leaf.enter(|| PacketSocket::open_sender().unwrap()).unwrap();

    for ipv6 in [false, true] {
        let (inner, l4) = super_frame(ipv6);
        send_whole(&leaf, &mut sender, ipv6);
        let seen = arrivals(&mut far, 1);
        let [(bytes, offload)] = seen.as_slice() else { panic!("{} frames", seen.len()) };
        assert!(*bytes == [outer(inner.len()), inner.clone()].concat(), "{:02x?}", &bytes[..120]);
        let checksum = Checksum::Partial { start: (OUTER + l4) as u16, offset: 16 };
        let kind = if ipv6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Some(Gso { kind, size: SEGMENT, ecn: false });
        assert_eq!(*offload, Offload { checksum, gso });
    }

    // On a link without offloads, the kernel splits the super-frame before it transmits, with
    // correct headers of each segment.
    leaf.run(&["ethtool", "-K", "up1", "tso", "off", "gso", "off", "tx", "off", "sg", "off"])
        .unwrap();
    for ipv6 in [false, true] {
        let (inner, l4) = super_frame(ipv6);
        let dissection = wire::dissect(&inner).unwrap();
        let kind = if ipv6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Gso { kind, size: SEGMENT, ecn: false };
        let partial = Checksum::Partial { start: l4 as u16, offset: 16 };
        let segmenter = pipeline::gso::Segmenter::new(&inner, &dissection, gso, partial).unwrap();
        send_whole(&leaf, &mut sender, ipv6);
        let seen = arrivals(&mut far, segmenter.count());
        assert_eq!(seen.len(), 11);
        for ((bytes, offload), index) in seen.iter().zip(0..) {
            let segment = segmenter.frame(index).unwrap();
            assert!(bytes[OUTER..] == segment, "segment {index}: {:02x?}", &bytes[..120]);
            assert_eq!(offload.gso, None);
            let mut headers = outer(segment.len());
            let id = (1 + index as u16).to_be_bytes();
            headers[18..20].copy_from_slice(&id);
            headers[24..26].copy_from_slice(&[0, 0]);
            let sum = checksum(&headers[14..34]).to_be_bytes();
            headers[24..26].copy_from_slice(&sum);
            assert_eq!(bytes[..OUTER], headers, "segment {index}");
        }
    }
    let counts = steering.counts().unwrap();
    assert_eq!((counts.uplink_tunnelled, counts.uplink_untunnelled), (4, 0));

    // A frame without the mark is not changed.
    let before = counts.uplink_tunnelled;
    send(&leaf, "up1", &vxlan_frame(5, 8));
    assert_eq!(arrivals(&mut far, 1)[0].0, vxlan_frame(5, 8));
    assert_eq!(steering.counts().unwrap().uplink_tunnelled, before);
}
