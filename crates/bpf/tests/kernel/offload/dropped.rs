//! The programs tell which frames they drop, with the headers that hosts sent.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bpf::{DropCause, ProgramDrop, ProgramDrops, Sender};
use root_test::root_test;
use test_frames::{
    IPV4, IPV6, Ipv4, Ipv6, UDP, ethernet, ipv4, ipv6, udp, udp_over_ipv4, udp_over_ipv6, vxlan,
};

use super::both::Both;
use super::leaf::{HOST, LOCAL_IPV6, SLOT, VTEPS, VTEPS_IPV6, local_of, tables, tables_ipv6};

/// Bytes that are told.
const HEADERS: usize = 128;
/// Frames that are told in a second.
const A_SECOND: usize = 128;

/// A host's frame with ECN mark ECT(0) and so many bytes of payload.
fn frame(payload: usize) -> Vec<u8> {
    let datagram = udp((7, 8), &vec![0xab; payload]);
    let fields = Ipv4 { tos: 2, ..Ipv4::default() };
    let packet = ipv4(([10, 9, 0, 1], [10, 9, 0, 2]), UDP, &datagram, fields);
    ethernet([2, 0, 0, 0, 0, 0x77], HOST, IPV4, &packet)
}

/// What is told of a frame with these bytes.
fn assert_told(told: &ProgramDrop, sender: Sender, frame: &[u8]) {
    let ProgramDrop { cause, slot, length, .. } = *told;
    assert_eq!((cause, slot, length), (DropCause::Failed, SLOT, frame.len()));
    assert_eq!(told.sender, sender);
    assert_eq!(told.headers, frame[..frame.len().min(HEADERS)]);
}

#[root_test]
fn frames_whose_headers_cannot_be_changed_are_told() {
    let mut both = Both::new();
    let mut drops = ProgramDrops::take(&mut both.ebpf).unwrap();
    both.set(tables().remove(0));
    for payload in [0, 60, 200] {
        let frame = frame(payload);
        both.fail("test_failing", &frame);
        let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        assert_told(&drops.next().unwrap(), Sender::Host, &tagged);

        let table = tables().remove(0);
        let vteps = (VTEPS[0].octets(), local_of(&table).octets());
        let vxlan = vxlan(table.tunnel.vni.get(), 0, &frame);
        let datagram = udp_over_ipv4(vteps, (0xc001, table.tunnel.destination_port), &vxlan);
        let congested = Ipv4 { tos: 3, ..Ipv4::default() };
        let packet = ethernet([2; 6], [0; 6], IPV4, &ipv4(vteps, UDP, &datagram, congested));
        both.fail("test_failing_uplink", &packet);
        assert_told(&drops.next().unwrap(), Sender::Uplink, &frame);
    }
    assert_eq!((drops.next(), drops.untold().get()), (None, 0));
}

#[root_test]
fn frames_in_packets_over_ipv6_are_told() {
    let mut both = Both::new();
    let mut drops = ProgramDrops::take(&mut both.ebpf).unwrap();
    let table = tables_ipv6().remove(0);
    both.set(table.clone());
    let vteps = (VTEPS_IPV6[0].octets(), LOCAL_IPV6.octets());
    for payload in [30, 200] {
        let frame = frame(payload);
        let vxlan = vxlan(table.tunnel.vni.get(), 0, &frame);
        let datagram = udp_over_ipv6(vteps, (0xc001, table.tunnel.destination_port), &vxlan);
        let congested = Ipv6 { traffic_class: 3, ..Ipv6::default() };
        let packet = ethernet([2; 6], [0; 6], IPV6, &ipv6(vteps, UDP, &datagram, congested));
        both.fail("test_failing_uplink", &packet);
        assert_told(&drops.next().unwrap(), Sender::Uplink, &frame);
    }
}

/// However many frames are dropped, each one is told or counted, and only some are told.
#[root_test]
fn a_flood_of_dropped_frames_is_limited_and_counted() {
    const FLOOD: usize = 1000;
    let mut both = Both::new();
    let mut drops = ProgramDrops::take(&mut both.ebpf).unwrap();
    both.set(tables().remove(0));
    let (frame, start) = (frame(60), Instant::now());
    (0..FLOOD).for_each(|_| both.fail("test_failing", &frame));
    let seconds = start.elapsed().as_secs() as usize + 1;
    let told = drops.by_ref().count();
    assert!((A_SECOND..=A_SECOND * (seconds + 1)).contains(&told), "{told} in {seconds} s");
    assert_eq!(told as u64 + drops.untold().get(), FLOOD as u64);
    // In the next second there are more.
    sleep(Duration::from_nanos(1 << 30));
    both.fail("test_failing", &frame);
    assert_eq!(drops.count(), 1);
}
