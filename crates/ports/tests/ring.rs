//! The ring that frames are received into. Needs root.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::time::{Duration, Instant};

use lab::netns::{Namespace, veth};
use pipeline::{Batch, Body, Destination, Offload, Transmit};
use ports::{PacketSocket, Room};

/// Frames that the slots are for, and longer ones, tagged and not, arrive whole and in order: around a ring of one block, several times.
#[test]
fn frames_of_all_lengths_arrive_whole_and_in_order() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED frames_of_all_lengths_arrive_whole_and_in_order: network namespaces need root");
        return;
    }
    let name = |end: &str| format!("vtp-ring-{end}-{}", std::process::id());
    let [near, far] = ["near", "far"].map(|end| Namespace::create(name(end)).unwrap());
    veth((&near, "eth0"), (&far, "eth0"), 9000).unwrap();
    let open = |namespace: &Namespace, room| {
        let index = || nix::net::if_::if_nametoindex("eth0").unwrap();
        namespace.enter(|| PacketSocket::open(index(), room).unwrap()).unwrap()
    };
    let mut sender = open(&near, Room::LITTLE);
    let mut socket = open(&far, Room { frames: 37, longest: 1568 });
    let frame = |number: u32| {
        // 1,568 bytes are the longest that a slot is for, and its neighbours.
        let length = [60, 1567, 1568, 1569, 9014, 4000][number as usize % 6];
        let mut frame =
            [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5][..], &number.to_be_bytes()].concat();
        frame.resize(length, number as u8);
        frame
    };
    let mut expected = 0;
    for first in (0..600).step_by(10) {
        for number in first..first + 10 {
            let body = Body::Owned(frame(number).into());
            let transmit = Transmit::new(Destination::Bridge, 0, body, Offload::default());
            sender.transmit(&Batch::none(), &mut [transmit], |_, outcome| outcome.unwrap());
        }
        let start = Instant::now();
        while expected < first + 10 && start.elapsed() < Duration::from_secs(2) {
            for seen in socket.receive().frames().filter(|seen| seen.data.starts_with(&[2, 0, 0, 0, 0, 9])) {
                assert!(seen.data == frame(expected), "frame {expected}: {:02x?}", &seen.data[..18]);
                expected += 1;
            }
        }
    }
    assert_eq!(expected, 600);
    assert_eq!(socket.overruns().unwrap(), 0);
}
