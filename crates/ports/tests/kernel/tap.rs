//! Frames from a TAP that stop the receive ring of a packet socket on it.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use fabric::netns::Namespace;
use netlink::Requests;
use ports::tap::Tap;
use ports::{PacketSocket, Port as _, RingSize, TapSettings};
use root_test::root_test;

/// `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`): flags, GSO type, length of the
/// headers, GSO size, and where the checksum starts and is.
fn header(gso_type: u8, gso_size: u16) -> [u8; 10] {
    let [a, b] = gso_size.to_ne_bytes();
    [0, gso_type, 0, 0, a, b, 0, 0, 0, 0]
}

/// `VIRTIO_NET_HDR_GSO_UDP`: UDP that has to be fragmented.
const GSO_UDP: u8 = 3;

/// A frame that the kernel accepts from a TAP but cannot describe to a packet socket.
fn indescribable() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 0, 8, 0];
    frame.extend([0x45, 0, 0x0b, 0xb8, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    frame.resize(14 + 3000, 0);
    [&header(GSO_UDP, 1000)[..], &frame].concat()
}

#[root_test]
fn a_ring_that_is_stuck_is_made_anew() {
    let leaf = Namespace::create(format!("vtp-stuck-{}", std::process::id())).unwrap();
    let receive = || {
        let name = "tap0".to_owned();
        let settings = TapSettings {
            name: name.clone(),
            owner: None,
            persistent: false,
            queues: 1,
            mtu: 1500,
        };
        let tap = Tap::open(&settings).unwrap();
        let ifindex = Requests::open().unwrap().link(&name).unwrap().unwrap().ifindex;
        let mut socket = PacketSocket::open(ifindex, RingSize::LITTLE).unwrap();
        let queue = tap.descriptors().next().unwrap();
        let mut file = File::from(queue.try_clone_to_owned().unwrap());
        file.write_all(&indescribable()).unwrap();
        let plain = [&header(0, 0)[..], &[0x42; 60]].concat();
        file.write_all(&plain).unwrap();
        assert!(socket.receive().is_empty(), "the ring does not get stuck, so nothing is tested");
        assert_eq!(socket.overruns().unwrap(), 2);
        file.write_all(&plain).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if let Some(frame) = socket.receive().frames().next() {
                return frame.data.to_vec();
            }
        }
        Vec::new()
    };
    assert_eq!(leaf.enter(receive).unwrap(), [0x42; 60]);
}
