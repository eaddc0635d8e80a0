//! Missing kernel features are compensated: super-frames that the punt pair's socket could not read
//! whole arrive split. Needs root.

use std::time::{Duration, Instant};

use fabric::netns::Namespace;
use frame::{Batch, Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame};
use netlink::PrivateNamespace;
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;
use test_frames::{IPV4, Ipv4, ROCE, UDP, ethernet, ipv4, udp};
use worker::{Features, PuntPair};

const SEGMENT: usize = 100;
const SEGMENTS: usize = 3;

/// A UDP super-frame with a partial checksum.
fn super_frame() -> Vec<u8> {
    // The length in the UDP header is that of one segment.
    let mut datagram = udp((0xc000, ROCE), &[0; SEGMENT])[..8].to_vec();
    datagram.extend((0..SEGMENTS).flat_map(|segment| [segment as u8; SEGMENT]));
    let fields = Ipv4 { identification: 1, ..Ipv4::default() };
    let packet = ipv4(([10, 0, 0, 2], [10, 0, 0, 1]), UDP, &datagram, fields);
    ethernet([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 1], IPV4, &packet)
}

/// The lengths of the frames that the far end receives when the near end transmits a super-frame.
fn received(features: Features, tag: &str) -> Vec<usize> {
    let leaf = Namespace::create(format!("vtp-{tag}-{}", std::process::id())).unwrap();
    let receive = || {
        let private = PrivateNamespace::create().unwrap();
        let mut punt =
            PuntPair::create("vtepd-test", &private, features, RingSize::LONGEST).unwrap();
        punt.link().up(&private).unwrap();
        let mut far = punt.take_socket().unwrap();
        let mut near = PacketSocket::open(punt.link().near().0, RingSize::LITTLE).unwrap();
        let offload = Offload {
            checksum: Checksum::Partial { start: 34, offset: 6 },
            gso: Some(Gso { kind: GsoKind::Udp, size: SEGMENT as u16, ecn: false }),
        };
        let body = Payload::Owned(super_frame().into());
        let transmit = TxFrame::new(Destination::Bridge, 0, body, offload);
        let mut out = TxBatch::of([transmit]);
        near.transmit(&Batch::none(), &mut out, 0..1);
        out.outcome().unwrap();
        let (start, mut lengths) = (Instant::now(), Vec::new());
        while lengths.is_empty() && start.elapsed() < Duration::from_secs(2) {
            lengths.extend(far.receive().frames().map(|frame| frame.data.len()));
        }
        lengths
    };
    leaf.enter(receive).unwrap()
}

#[root_test]
fn udp_super_frames_come_whole_or_cut() {
    let features = Features::probe().unwrap();
    println!("{features:?}");
    assert_eq!(features.lacks().is_empty(), features == Features::ALL);
    if !features.udp_super_frames {
        // Such a kernel does not accept them from a packet socket either. `any_kernel.rs` tests
        // that case.
        return;
    }
    assert_eq!(received(features, "whole"), [42 + SEGMENTS * SEGMENT]);
    let lacking = Features { udp_super_frames: false, ..features };
    assert_eq!(received(lacking, "cut"), [42 + SEGMENT; SEGMENTS]);
}
