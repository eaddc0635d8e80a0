//! Discarding UDP packets before the IP stack. Needs root.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use crate::leaf::Namespace;
use netlink::Discard;
use root_test::root_test;

/// Whether a packet to this address and port arrives. Loopback delivers before the call returns.
fn arrives(to: &str) -> bool {
    let socket = UdpSocket::bind(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket.send_to(b"packet", to).unwrap();
    match socket.recv(&mut [0; 16]) {
        Ok(length) => length == 6,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

#[root_test]
fn packets_to_one_address_and_port_are_discarded_for_a_time() {
    Namespace::new("discard").inside(|| {
        let to = "127.0.0.1".parse().unwrap();
        let discard = Discard::udp("lo", to, 4791).unwrap();
        assert!(!arrives("127.0.0.1:4791"));
        assert!(arrives("127.0.0.1:4790") && arrives("127.0.0.2:4791"));
        // Another owner cannot discard there, and takes nothing away by trying.
        assert!(Discard::udp("lo", to, 4792).is_err());
        assert!(!arrives("127.0.0.1:4791"));
        drop(discard);
        assert!(arrives("127.0.0.1:4791"));
        drop(Discard::udp("lo", to, 4791).unwrap());
    });
}
