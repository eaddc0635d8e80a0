//! A host that asks for segments of one byte takes the worker away from nobody.

use pipeline::{Batch, Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame};
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;
use vtepd_tests::frames::{Ipv4, Pair, ipv4, tagged};
use vtepd_tests::lab::{ETH, ifindex, run};
use vtepd_tests::{Lab, Vtepd, sockets, wait_for};

const TCP: u8 = 6;
const TPID: u16 = 0x8100;
const FRAMES: usize = 5;
const BYTES: usize = 1400;

/// A tagged TCP super-frame, which programs leave to the worker, of [`BYTES`] segments.
fn super_frame(pair: Pair) -> TxFrame {
    let header =
        [0x13, 0x88, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let segment = [&header[..], &vec![7; BYTES]].concat();
    let frame = tagged(&ipv4(pair, TCP, &segment, Ipv4::default()), TPID, 5);
    let checksum = Checksum::Partial { start: 38, offset: 16 };
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1, ecn: false });
    let payload = Payload::Owned(frame.into());
    TxFrame::new(Destination::Bridge, 0, payload, Offload { checksum, gso })
}

#[root_test]
fn a_super_frame_of_very_many_segments_stays_with_the_kernel() {
    let lab = Lab::new("segments");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    // Both hosts are learned.
    sockets::ping(&lab.host, lab.far.ip(), 5, 56, &[]);
    let by_kernel = || {
        let shown = run(&lab.leaf, "ip -s -j link show dev vx10");
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let sent = &shown[0]["stats64"]["tx"];
        ["packets", "errors", "dropped"]
            .map(|name| sent[name].as_u64().unwrap())
            .iter()
            .sum::<u64>()
    };
    let before = by_kernel();
    let index = ifindex(&lab.host.ns, ETH);
    let open = || PacketSocket::open(index, RingSize::LITTLE);
    let mut socket = lab.host.ns.enter(open).unwrap().unwrap();
    for _ in 0..FRAMES {
        let mut out = TxBatch::of([super_frame(Pair::of(&lab.host, &lab.far))]);
        socket.transmit(&Batch::none(), &mut out, 0..1);
        out.outcome().unwrap();
    }
    wait_for("the kernel to have them", || by_kernel() >= before + FRAMES as u64);
    let copies = vtepd.wait_until_idle().get("vtepd_copied_frames_total");
    assert!(copies < 1000, "{copies} segments of {FRAMES} frames");
}
