//! The receive ring of a packet socket. Needs root.

use std::time::{Duration, Instant};

use fabric::netns::{Namespace, veth};
use fabric::process::wait_until;
use frame::{Batch, Destination, Offload, Payload, TxBatch, TxFrame};
use ports::{PacketSocket, Port as _, RingSize};
use root_test::root_test;

/// The two ends of a link.
pub(crate) fn ends(tag: &str) -> [Namespace; 2] {
    let name = |end: &str| format!("vtp-{tag}-{end}-{}", std::process::id());
    let [near, far] = ["near", "far"].map(|end| Namespace::create(name(end)).unwrap());
    veth((&near, "eth0"), (&far, "eth0"), 9000).unwrap();
    // A link drops frames until the kernel has seen its carrier, up to a second later (`linkwatch`).
    for end in [&near, &far] {
        let is_up = || end.run(&["ip", "-br", "link", "show", "eth0"]).unwrap().contains(" UP ");
        assert!(wait_until(Duration::from_secs(20), is_up), "no carrier");
    }
    [near, far]
}

pub(crate) fn open(namespace: &Namespace, room: RingSize) -> PacketSocket {
    let index = || nix::net::if_::if_nametoindex("eth0").unwrap();
    namespace.enter(|| PacketSocket::open(index(), room).unwrap()).unwrap()
}

pub(crate) fn send(sender: &mut PacketSocket, frame: &[u8]) {
    let transmit =
        TxFrame::new(Destination::Bridge, 0, Payload::Owned(frame.into()), Offload::default());
    let mut out = TxBatch::of([transmit]);
    sender.transmit(&Batch::none(), &mut out, 0..1);
    out.outcome().unwrap();
}

/// The destination address of the test's frames.
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Frames that fit a slot and longer ones, in any order of lengths, arrive whole and in order. The
/// ring of one block wraps around several times.
#[root_test]
fn frames_of_all_lengths_arrive_whole_and_in_order() {
    let [near, far] = ends("ring");
    let mut sender = open(&near, RingSize::LITTLE);
    let mut socket = open(&far, RingSize { frames: 37, longest: 1568 });
    let frame = |number: u32| {
        // 1,568 bytes is the longest frame that fits a slot; the lengths around it are tested, too.
        let length = [60, 1567, 1568, 1569, 9014, 4000][number as usize % 6];
        let mut frame =
            [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5][..], &number.to_be_bytes()].concat();
        frame.resize(length, number as u8);
        frame
    };
    let mut expected = 0;
    for first in (0..600).step_by(10) {
        for number in first..first + 10 {
            send(&mut sender, &frame(number));
        }
        let start = Instant::now();
        while expected < first + 10 && start.elapsed() < Duration::from_secs(2) {
            for seen in socket.receive().frames().filter(|seen| seen.data.starts_with(&OURS)) {
                assert!(
                    seen.data == frame(expected),
                    "frame {expected}: {:02x?}",
                    &seen.data[..18]
                );
                expected += 1;
            }
        }
    }
    assert_eq!(expected, 600);
    assert_eq!(socket.overruns().unwrap(), 0);
}

/// Frames that are too long for a slot and do not fit the socket's queue are counted, like frames
/// without a slot. All others arrive, and the ring continues to work.
#[root_test]
fn long_frames_without_room_are_counted() {
    const SENT: u64 = 120;
    let [near, far] = ends("full");
    let mut sender = open(&near, RingSize::LITTLE);
    // The queue has room for about 70 KB. A frame of 9,000 bytes accounts for more than that
    // length.
    let mut socket = open(&far, RingSize { frames: 16, longest: 1568 });
    let long = [&OURS[..], &[2, 0, 0, 0, 0, 8, 0x88, 0xb5], &[7; 9000]].concat();
    let arrived = |socket: &mut PacketSocket| {
        let ours = |frame: &&frame::Frame<'_>| {
            assert!(!frame.data.is_empty(), "nothing that could not be read");
            frame.data.starts_with(&OURS)
        };
        let (mut seen, mut rest) = (0, Instant::now());
        while rest.elapsed() < Duration::from_millis(200) {
            let got = socket.receive().frames().filter(ours).count();
            seen += got as u64;
            if got > 0 {
                rest = Instant::now();
            }
        }
        seen
    };
    // There are enough slots for all of these frames.
    (0..SENT / 4).for_each(|_| send(&mut sender, &long));
    let seen = arrived(&mut socket);
    let lost = socket.overruns().unwrap();
    assert!(seen > 0 && lost > 0, "{seen} arrived, {lost} did not");
    assert_eq!(seen + lost, SENT / 4);
    // There are slots for only a few of these frames.
    (0..SENT).for_each(|_| send(&mut sender, &long));
    let seen = arrived(&mut socket);
    assert_eq!(seen + socket.overruns().unwrap(), SENT);
    send(&mut sender, &long);
    assert_eq!((arrived(&mut socket), socket.overruns().unwrap()), (1, 0));
}
