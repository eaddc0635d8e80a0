//! The cost of a publication depends on what changed, not on the size of the tables.

#![cfg(test)]

mod world;

use std::time::{Duration, Instant};

use netlink::{Dump, Message};
use wire::MacAddr;
use world::*;

fn numbered(n: u32) -> MacAddr {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddr([2, 1, a, b, c, d])
}

/// The median time of `count` publications, each after one event.
fn median(
    state: &mut control::State,
    count: u32,
    mut event: impl FnMut(u32) -> Message,
) -> Duration {
    let mut times: Vec<Duration> = (0..count)
        .map(|n| {
            apply(state, [event(n)]);
            let start = Instant::now();
            let update = state.build();
            let time = start.elapsed();
            drop(update);
            time
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn one_change_among_100000_macs() {
    let vteps = ["10.0.0.12", "10.0.0.13", "10.0.0.14"];
    let mut state = state_after(leaf().into_iter().chain(underlay()));
    let vtep = |n: u32| vteps[n as usize % vteps.len()];
    apply(&mut state, (0..100_000).map(|n| remote(New, numbered(n), vtep(n))));
    assert_eq!(table(&state.build()).unwrap().fdb.len(), 100_000);
    let time = median(&mut state, 101, |n| remote(New, numbered(n), vtep(n + 1)));
    println!("one of 100,000 MACs moves: {time:?} a publication");
    // The target is 1 ms in a release build; the bound leaves room for a debug build on a busy
    // machine.
    assert!(time < Duration::from_millis(20), "{time:?}");
}

#[test]
fn one_change_among_4000_vnis() {
    let mut state = state_after(underlay());
    apply(&mut state, [local_address(New), link(ethernet(UP1, "up1")), link(ethernet(UP2, "up2"))]);
    let vxlan_of = |n: u32| 100_000 + n;
    let mut fdb = Vec::new();
    for n in 1..=4000 {
        apply(
            &mut state,
            [
                link(bridge(10_000 + n, "br")),
                link(vxlan(vxlan_of(n), 10_000 + n, world::vxlan_of(n))),
            ],
        );
        for vtep in 101..=125u8 {
            let vtep = format!("10.0.0.{vtep}");
            fdb.push(Message::Fdb(New, remote_of(vxlan_of(n), numbered(n), &vtep)));
            fdb.push(Message::Fdb(New, remote_of(vxlan_of(n), MacAddr::ZERO, &vtep)));
        }
    }
    let start = Instant::now();
    state.resync(Dump::Fdb, fdb);
    let update = state.build();
    println!("4,000 VNIs with 25 VTEPs each at once: {:?}", start.elapsed());
    assert_eq!(update.plan.vnis.len(), 4000);
    let time = median(&mut state, 101, |n| {
        Message::Fdb(New, remote_of(vxlan_of(1 + n), numbered(9_999_999), "10.0.0.103"))
    });
    println!("a MAC appears in one of 4,000 VNIs: {time:?} a publication");
    assert!(time < Duration::from_millis(20), "{time:?}");
}
