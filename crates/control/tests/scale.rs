//! The cost of a publication depends on what changed, not on the size of the tables: with many times
//! as many entries it takes little longer. How long is measured in `benches/src/state`.

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

/// The shortest time of `count` publications, each after one event: other programs do not add to it.
fn shortest(
    state: &mut control::State,
    count: u32,
    mut event: impl FnMut(u32) -> Message,
) -> Duration {
    let times = (0..count).map(|n| {
        apply(state, [event(n)]);
        let start = Instant::now();
        let update = state.build();
        let time = start.elapsed();
        drop(update);
        time
    });
    times.min().unwrap()
}

/// The shortest time of a publication when one of so many MAC addresses moves.
fn a_mac_moves(macs: u32) -> Duration {
    let vteps = ["10.0.0.12", "10.0.0.13", "10.0.0.14"];
    let mut state = state_after(leaf().into_iter().chain(underlay()));
    let vtep = |n: u32| vteps[n as usize % vteps.len()];
    apply(&mut state, (0..macs).map(|n| remote(New, numbered(n), vtep(n))));
    assert_eq!(table(&state.build()).unwrap().fdb.len(), macs as usize);
    let time = shortest(&mut state, 101, |n| remote(New, numbered(n), vtep(n + 1)));
    println!("one of {macs} MACs moves: {time:?} a publication");
    time
}

#[test]
fn one_change_among_100000_macs() {
    let [few, many] = [200, 100_000].map(a_mac_moves);
    // 500 times as many.
    assert!(many < 50 * few, "{many:?} and {few:?}");
}

#[test]
fn one_change_among_4000_vnis() {
    let [few, many] = [20, 4000].map(a_mac_appears);
    // 200 times as many.
    assert!(many < 40 * few, "{many:?} and {few:?}");
}

/// The shortest time of a publication when a MAC address appears in one of so many VNIs.
fn a_mac_appears(vnis: u32) -> Duration {
    let mut state = state_after(underlay());
    apply(&mut state, [local_address(New), link(ethernet(UP1, "up1")), link(ethernet(UP2, "up2"))]);
    let vxlan_of = |n: u32| 100_000 + n;
    let mut fdb = Vec::new();
    for n in 1..=vnis {
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
    println!("{vnis} VNIs with 25 VTEPs each at once: {:?}", start.elapsed());
    assert_eq!(update.plan.vnis.len(), vnis as usize);
    let time = shortest(&mut state, 101, |n| {
        let mac = numbered(9_999_999 + n / vnis);
        Message::Fdb(New, remote_of(vxlan_of(1 + n % vnis), mac, "10.0.0.103"))
    });
    println!("a MAC appears in one of {vnis} VNIs: {time:?} a publication");
    time
}
