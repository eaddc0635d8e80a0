//! The fence behind frames to the bridge.

use std::time::Instant;

use bpf::Hook;
use frame::{Batch, Destination, Offload, Payload, Queue, TxBatch, TxFrame};
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;

use super::{Leaf, NEVER, PATIENT, SOON, ifindex, leaf, plan, receive, steer};

const FRAMES: usize = 64;

fn to_bridge(bytes: Vec<u8>) -> TxFrame {
    TxFrame::new(Destination::Bridge, 0, Payload::Owned(bytes.into()), Offload::default())
}

/// A broadcast frame with the tag of the VNI's slot.
fn tagged(mark: u8) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 9, 8, 0x88, 0xa8, 0, 9, 0x88, 0xb5]].concat();
    frame.extend([mark; 46]);
    frame
}

/// A fence passes behind all frames that were sent before it. Nobody else sees it.
fn a_fence_passes_behind_the_frames_before_it(hook: Hook) {
    let Leaf { leaf, host, spine: _spine } = leaf(&format!("fence{hook}"));
    let (mut steering, mut punts, _private) = steer(&leaf, hook, &plan(&leaf), PATIENT);
    leaf.enter(|| steering.engage().unwrap()).unwrap();
    let (watchdog, mut bridge) =
        (steering.take_watch().unwrap().0.remove(0), punts.bridge.take_socket().unwrap());
    let index = ifindex(&host, "eth0");
    let mut eth0 = host.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    assert_eq!(watchdog.passed_fence(), 0);
    let unknown = steering.counts().unwrap().punt_unknown_slot;
    for number in [1, 2, 7, u64::from(u32::MAX) + 1] {
        let mark = number as u8;
        let mut frames: Vec<TxFrame> = (0..FRAMES).map(|_| to_bridge(tagged(mark))).collect();
        frames.push(to_bridge(watchdog.fence(number)));
        let mut out = TxBatch::of(frames);
        bridge.transmit_queue(&Batch::none(), &mut out, Queue::Bridge);
        out.outcome().unwrap();
        let start = Instant::now();
        while watchdog.passed_fence() != number {
            assert!(start.elapsed() < SOON, "{number}: {} has passed", watchdog.passed_fence());
            std::thread::yield_now();
        }
        let arrived = eth0.receive().frames().filter(|frame| frame.data.ends_with(&[mark; 46]));
        assert_eq!(arrived.count(), FRAMES, "{number}: they arrived before it");
    }
    assert_eq!(receive(&mut eth0, NEVER, |_| true), 0, "the host does not get the fence");
    assert_eq!(steering.counts().unwrap().punt_unknown_slot, unknown);
}

#[root_test]
fn a_fence_passes_behind_the_frames_before_it_with_tcx_links() {
    a_fence_passes_behind_the_frames_before_it(Hook::Tcx);
}

#[root_test]
fn a_fence_passes_behind_the_frames_before_it_with_clsact_filters() {
    a_fence_passes_behind_the_frames_before_it(Hook::Clsact);
}
