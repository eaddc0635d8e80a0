//! Whether somebody filters packets, as the kernel's nftables tells it. Needs root.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which may"
)]

mod leaf;

use leaf::Namespace;
use netlink::{PacketFilters, packet_filters};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], body].concat()
}

/// Adds a table in one batch, as `nft add table` does.
fn add_table(family: u8) {
    let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    let nftables = [0, 0, 0, 10];
    let table = [family, 0, 0, 0, 6, 0, 1, 0, b't', 0, 0, 0];
    let batch = [message(0x10, 1, &nftables), message(0xa00, 0x405, &table), message(0x11, 1, &nftables)];
    socket.send_to(&batch.concat(), &SocketAddr::new(0, 0), 0).unwrap();
    let mut answer = Vec::with_capacity(4096);
    socket.recv_from(&mut answer, 0).unwrap();
    assert_eq!((&answer[4..6], &answer[16..20]), (&[2, 0][..], &[0; 4][..]), "family {family}");
}

#[test]
fn tables_are_told_by_what_they_are_for() {
    let none = PacketFilters::default();
    for (family, found) in [
        (1, PacketFilters { packets: true, ..none }),
        (2, PacketFilters { packets: true, ..none }),
        (3, none),
        (5, PacketFilters { frames: true, ..none }),
        (7, PacketFilters { frames: true, ..none }),
        (10, PacketFilters { packets: true, ..none }),
    ] {
        let namespace = Namespace::new(&format!("nft{family}"));
        namespace.inside(|| {
            assert_eq!(packet_filters().unwrap(), none);
            add_table(family);
            assert_eq!(packet_filters().unwrap(), found, "family {family}");
        });
    }
}
