//! Frames that the worker gets although others of their flow are offloaded, and identifications that
//! several CPUs use.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use root_test::root_test;
use tables::VniTable;
use test_frames::{IPV4, Ipv4, ROCE, TCP, UDP, bth, ethernet, ipv4, udp};

use super::SOURCE;
use super::both::Worker::{Busy, Idle};
use super::both::{Both, Outcome};
use super::leaf::{remote, tables, tables_ipv6};

/// A frame of a host to the one behind the first VTEP.
fn frame(host: u8, protocol: u8, transport: &[u8]) -> Vec<u8> {
    let packet = ipv4(([10, 1, 0, host], [10, 1, 0, 99]), protocol, transport, Ipv4::default());
    ethernet(SOURCE, remote(0), IPV4, &packet)
}

/// RoCE from this source port to a queue pair.
fn roce(port: u16, queue_pair: u32) -> Vec<u8> {
    frame(1, UDP, &udp((port, ROCE), &bth(4, queue_pair, 0, &[0; 200])))
}

/// A TCP segment from this source port.
fn tcp(port: u16) -> Vec<u8> {
    let header = [&port.to_be_bytes()[..], &[0x1f, 0x90], &[0; 8], &[0x50, 0x10, 1, 0, 0, 0, 0, 0]];
    frame(2, TCP, &[&header.concat()[..], &[0; 200]].concat())
}

/// The flow of a super-frame that the worker gets follows it. Others do not.
fn others_stay_offloaded(table: VniTable, super_frame: &[u8], own: &[Vec<u8>], others: &[Vec<u8>]) {
    let mut both = Both::new();
    both.set(table);
    let outcome = |both: &mut Both, frame: &[u8]| both.encapsulate_segments(frame, 0, 0).0;
    // The first frames set the flows free from the worker.
    for frame in own.iter().chain(others) {
        assert_eq!(outcome(&mut both, frame), Outcome::Offloaded);
    }
    for _ in 0..3 {
        both.worker_is(Busy);
        let left = both.encapsulate_segments(super_frame, 0, 100);
        assert_eq!(left, (Outcome::Worker, super_frame.to_vec()));
        for _ in 0..2 {
            for frame in own {
                assert_eq!(outcome(&mut both, frame), Outcome::Worker, "not past the super-frame");
            }
            for frame in others {
                assert_eq!(outcome(&mut both, frame), Outcome::Offloaded, "another flow");
            }
        }
        both.worker_is(Idle);
        for frame in own.iter().chain(others) {
            assert_eq!(outcome(&mut both, frame), Outcome::Offloaded);
        }
    }
}

#[root_test]
fn a_super_frame_of_roce_keeps_its_own_queue_pairs_behind_it() {
    let others = [roce(0xc001, 7), roce(0xc002, 8), tcp(1), tcp(2)];
    let own = [roce(0xc000, 7), roce(0xc000, 8)];
    others_stay_offloaded(tables().remove(0), &roce(0xc000, 7), &own, &others);
}

#[root_test]
fn a_super_frame_that_needs_a_checksum_over_ipv6_keeps_its_own_connection_behind_it() {
    let table = tables_ipv6().into_iter().find(|table| table.tunnel.udp_checksum).unwrap();
    others_stay_offloaded(table, &tcp(1), &[tcp(1)], &[roce(0xc000, 7), tcp(2), tcp(3)]);
}

/// A worker may be unable to read other super-frames: TCP in a tunnel of the host looks like UDP.
#[root_test]
fn a_super_frame_of_udp_that_needs_a_checksum_over_ipv6_is_left_to_the_kernel() {
    let table = tables_ipv6().into_iter().find(|table| table.tunnel.udp_checksum).unwrap();
    let mut both = Both::new();
    both.set(table);
    let whole = frame(1, UDP, &udp((0xc000, 8472), &[0; 400]));
    let mut outcome = |frame: &[u8], size| both.encapsulate_segments(frame, 0, size);
    for frame in [&whole, &tcp(1)] {
        assert_eq!(outcome(frame, 0).0, Outcome::Offloaded);
    }
    assert_eq!(outcome(&whole, 100), (Outcome::Kernel, whole.clone()));
    assert_eq!(outcome(&tcp(1), 0).0, Outcome::Offloaded, "another flow");
    assert_eq!(outcome(&whole, 0).0, Outcome::Offloaded);
}

/// The identification of a packet over IPv4.
fn identification(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[18], packet[19]])
}

/// Frames of several CPUs to one VTEP have different identifications until all are used. Workers
/// have the upper half.
#[root_test]
fn identifications_differ_on_all_cpus() {
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| runs_on(*cpu)).take(2).collect();
    if cpus.len() < 2 {
        root_test::ignore("needs two CPUs");
    }
    let mut both = Both::new();
    both.set(tables().remove(0));
    let (mut seen, mut all) = (BTreeSet::new(), 0);
    for round in 0..2_000 {
        // One CPU sends more than the other.
        for cpu in [cpus[0], cpus[round as usize % 2]] {
            assert!(runs_on(cpu));
            let (outcome, packet) = both.encapsulate_segments(&roce(0xc000, round), 0, 0);
            assert_eq!(outcome, Outcome::Offloaded);
            seen.insert(identification(&packet));
            all += 1;
        }
    }
    assert_eq!(seen.len(), all);
    assert!(seen.iter().all(|identification| *identification < 0x8000));
}

/// Whether this thread can run on a CPU. It then does.
fn runs_on(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}
