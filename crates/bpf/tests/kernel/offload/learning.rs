//! VNIs whose netdev learns: the worker sees unknown and moved source addresses, and known ones now
//! and then.

use std::time::{Duration, Instant};

use root_test::root_test;
use tables::{Learning, VniTable};
use wire::MacAddr;

use super::both::{Both, Outcome};
use super::leaf::{NETDEV, tables};
use super::{SOURCE, inner_frames, packet_of};

/// Settings of a VNI that learns and has the source of [`inner_frames`] behind this VTEP.
fn table(vtep: u32, ageing: Option<Duration>) -> VniTable {
    let mut table = tables().remove(0);
    table.fdb.insert(MacAddr(SOURCE), tables::VtepIndex(vtep));
    let fixed = Default::default();
    VniTable { learning: Some(Learning { ifindex: NETDEV, ageing, fixed }), ..table }
}

/// A packet of the first VTEP with this inner source address.
fn packet(table: &VniTable, source: [u8; 6]) -> Vec<u8> {
    let [mut frame, ..] = inner_frames(0);
    frame[6..12].copy_from_slice(&source);
    packet_of(table, 0, &frame, true)
}

#[root_test]
fn known_sources_are_offloaded_and_others_are_not() {
    let mut both = Both::new();
    let table = table(0, None);
    both.set(table.clone());
    let known = packet(&table, SOURCE);
    let unknown = packet(&table, [2, 0, 0, 0, 0, 0x12]);
    assert_eq!(both.decapsulate(&known).0, Outcome::Worker, "the bridge does not have it yet");
    both.worker_is_idle();
    both.locate_remote(SOURCE, 0);
    assert_eq!(both.decapsulate(&known).0, Outcome::Worker, "the worker may have earlier frames");
    assert_eq!(both.decapsulate(&known).0, Outcome::Worker, "it has not sent the one before");
    both.worker_is_idle();
    assert_eq!(both.decapsulate(&known).0, Outcome::Offloaded);
    assert_eq!(both.decapsulate(&unknown).0, Outcome::Worker);
    assert_eq!(both.decapsulate(&known).0, Outcome::Offloaded, "another flow needs no order");
    // It has moved to the sender, and control does not know it yet.
    both.locate_remote(SOURCE, 1);
    for _ in 0..3 {
        assert_eq!(both.decapsulate(&known).0, Outcome::Worker);
        both.worker_is_idle();
    }
}

#[root_test]
fn the_worker_sees_known_sources_before_they_age_out() {
    let mut both = Both::new();
    let table = table(0, Some(Duration::from_millis(400)));
    both.set(table.clone());
    both.locate_remote(SOURCE, 0);
    let known = packet(&table, SOURCE);
    let began = Instant::now();
    let (mut reports, mut offloaded) = (0, 0);
    while reports < 4 {
        match both.decapsulate(&known).0 {
            Outcome::Offloaded => offloaded += 1,
            outcome => {
                assert_eq!(outcome, Outcome::Worker);
                both.worker_is_idle();
                reports += 1;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{reports} frames to the worker");
    }
    // The first frame, and one each eighth of the ageing time.
    assert!(began.elapsed() >= Duration::from_millis(3 * 400 / 8 - 20), "{:?}", began.elapsed());
    assert!(offloaded > 3, "{offloaded} frames offloaded");
}
