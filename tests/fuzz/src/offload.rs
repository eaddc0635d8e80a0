//! The programs of the `offload` datapath against the pipeline, by the comparison of their tests.

use std::sync::{LazyLock, Mutex};

use test_frames::{IPV4, Ipv4, UDP, ethernet, ipv4, udp, udp_over_ipv4, vxlan};

#[allow(dead_code, reason = "the tests of the crate use the rest")]
#[path = "../../../crates/bpf/tests/kernel/offload/both.rs"]
mod both;
#[allow(dead_code, reason = "the tests of the crate use the rest")]
#[path = "../../../crates/bpf/tests/kernel/offload/leaf.rs"]
mod leaf;

use both::{Both, is_refused};
use leaf::{VTEPS, tables};

/// Programs and pipeline for each setting of the VNI.
static ALL: LazyLock<Vec<Mutex<Both>>> = LazyLock::new(|| {
    let one = |table| {
        let mut both = Both::new();
        both.set(table);
        Mutex::new(both)
    };
    tables().into_iter().map(one).collect()
});

/// The first byte chooses the settings, and the second one the VTEP and the direction.
pub fn offload(data: &[u8]) {
    let Some((&[table, how], data)) = data.split_first_chunk() else { return };
    let table = usize::from(table) % ALL.len();
    let mut both = ALL[table].lock().unwrap();
    let vtep = usize::from(how >> 1) % VTEPS.len();
    if how & 1 == 0 {
        let mut frame = data.to_vec();
        if !is_refused(&frame) {
            both.encapsulate(&mut frame, vtep);
        }
        return;
    }
    let Some((&outer, data)) = data.split_first() else { return };
    let packet = packet(&both, vtep, outer, data);
    if !is_refused(&packet) {
        both.decapsulate(&packet);
    }
}

/// A packet for the leaf. With bits 0 and 1, `data` is the whole packet, but for its destination.
/// Else it is the inner frame; bit 0 adds a checksum, and the upper bits are the type of service.
fn packet(both: &Both, vtep: usize, outer: u8, data: &[u8]) -> Vec<u8> {
    let table = both.snapshot.vni(leaf::SLOT).unwrap();
    let tunnel = &table.tunnel;
    if outer & 3 == 3 {
        let mut packet = data.to_vec();
        if let Some(to) = packet.get_mut(..6) {
            to.fill(0);
        }
        return packet;
    }
    let vteps = (VTEPS[vtep].octets(), leaf::local_of(table).octets());
    let payload = vxlan(tunnel.vni.get(), 0, data);
    let ports = (0xc000, tunnel.destination_port);
    let datagram =
        if outer & 1 == 1 { udp_over_ipv4(vteps, ports, &payload) } else { udp(ports, &payload) };
    let fields = Ipv4 { tos: outer, ..Ipv4::default() };
    ethernet([2; 6], [0; 6], IPV4, &ipv4(vteps, UDP, &datagram, fields))
}
