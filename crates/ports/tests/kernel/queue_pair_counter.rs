//! Counting the packets of a queue pair. Needs root.

use std::net::Ipv4Addr;
use std::time::Duration;

use fabric::netns::Namespace;
use fabric::process::wait_until;
use ports::{PacketSocket, QueuePairCounter, QueuePairFilter, RingSize, Way};
use root_test::root_test;
use wire::QueuePair;

use crate::ring::{ends, open, send};

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A frame of 60 bytes to the queue pair.
fn frame(source: Ipv4Addr, queue_pair: u8) -> Vec<u8> {
    let mut frame =
        [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45][..], &[0; 8], &[17]].concat();
    frame.extend([0; 2]);
    frame.extend(source.octets());
    frame.extend(DESTINATION.octets());
    frame.extend([&[0xc0, 0], &4791u16.to_be_bytes()[..], &[0; 4]].concat());
    frame.extend([4, 0, 0xff, 0xff, 0, 0, 0, queue_pair]);
    frame.resize(60, 0);
    frame
}

fn counter(namespace: &Namespace, queue_pair: u32, way: Way) -> QueuePairCounter {
    let queue_pair = QueuePair::try_from(queue_pair).unwrap();
    let filter = QueuePairFilter { source: SOURCE, destination: DESTINATION, queue_pair };
    let index = || nix::net::if_::if_nametoindex("eth0").unwrap();
    namespace.enter(|| QueuePairCounter::open(index(), &filter, way).unwrap()).unwrap()
}

/// Far more than a socket has room for, which nobody reads.
#[root_test]
fn every_packet_of_a_queue_pair_is_counted_and_no_other() {
    let [near, far] = ends("count");
    let mut sender: PacketSocket = open(&near, RingSize::LITTLE);
    let mut own = counter(&near, 0x11, Way::Received);
    let mut sent = counter(&near, 0x11, Way::Sent);
    let mut last = counter(&far, 0x12, Way::Received);
    let mut counter = counter(&far, 0x11, Way::Received);
    for _ in 0..5000 {
        send(&mut sender, &frame(SOURCE, 0x11));
        send(&mut sender, &frame(SOURCE, 0x13));
        send(&mut sender, &frame(DESTINATION, 0x11));
    }
    send(&mut sender, &frame(SOURCE, 0x12));
    let arrived = || last.count().unwrap() == 1;
    assert!(wait_until(Duration::from_secs(20), arrived), "the last frame");
    assert_eq!(counter.count().unwrap(), 5000);
    assert_eq!(counter.count().unwrap(), 0, "each is counted once");
    assert_eq!(sent.count().unwrap(), 5000, "the sender's interface has sent as many");
    assert_eq!(own.count().unwrap(), 0, "what an interface sends is not counted");
}
