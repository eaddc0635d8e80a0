//! The choice among next hops: which flows move when one is lost or returns, and which is not
//! chosen.

#![cfg(test)]

mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Adjacency, Settings, State, Update};
use netlink::{Dump, Message, NextHop as Object, NextHopKind, RouteNextHop, RouteTarget};
use tables::{NextHop, Rebalance};
use world::*;

const VTEP: &str = "10.0.0.12";
const UP3: u32 = 4;
const INCOMPLETE: u16 = 0x01;
const REACHABLE: u16 = 0x02;
const FAILED: u16 = 0x20;

/// A leaf with three uplinks, each with its own gateway, towards [`VTEP`] and the VTEPs in `vteps`.
fn three_uplinks(settings: Settings, vteps: &[&str]) -> State {
    let mut state = state_with(settings);
    apply(&mut state, leaf());
    let hops = [via(UP1, "10.1.0.1"), via(UP2, "10.2.0.1"), via(UP3, "10.3.0.1")];
    apply(&mut state, [link(ethernet(UP3, "up3")), add_route("10.0.0.0/24", &hops)]);
    for (ifindex, gateway, last) in
        [(UP1, "10.1.0.1", 1), (UP2, "10.2.0.1", 2), (UP3, "10.3.0.1", 3)]
    {
        apply(&mut state, [neighbour(ifindex, gateway, mac(0xe0 + last))]);
    }
    for (vtep, number) in std::iter::once(&VTEP).chain(vteps).zip(1..) {
        apply(&mut state, [remote(New, mac(number), vtep)]);
    }
    state
}

/// The uplink of each of 999 flows.
fn dealt(update: &Update) -> Vec<u32> {
    let hop =
        |n| paths(update, VTEP).choose(u64::MAX / 999 * n).map_or(0, |hop: &NextHop| hop.ifindex);
    (0..999).map(hop).collect()
}

fn moved(before: &[u32], after: &[u32]) -> Vec<(u32, u32)> {
    before.iter().copied().zip(after.iter().copied()).filter(|(from, to)| from != to).collect()
}

fn carrier(state: &mut State, present: bool) -> Vec<u32> {
    let up1 = ethernet(UP1, "up1");
    apply(state, [link(if present { up1 } else { no_carrier(up1) })]);
    dealt(&state.build())
}

fn gateway(state: u16, mac: Option<wire::MacAddr>) -> Message {
    Message::Neighbour(New, neighbour_of(UP2, "10.2.0.1", mac, state))
}

#[test]
fn losing_a_link_moves_only_its_flows_and_its_return_brings_them_back() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let before = dealt(&state.build());
    let lost = carrier(&mut state, false);
    let moved_then = moved(&before, &lost);
    assert_eq!(moved_then.len(), before.iter().filter(|ifindex| **ifindex == UP1).count());
    assert!(moved_then.iter().all(|(from, to)| *from == UP1 && [UP2, UP3].contains(to)));
    assert_eq!(carrier(&mut state, true), before);
}

/// A route by an object to one VTEP, and one to all.
fn by_object(route_type: u8, kind: NextHopKind) -> State {
    let mut state = three_uplinks(Settings::default(), &[]);
    let via = RouteTarget::Object(7);
    let one = netlink::Route { via, route_type, ..route("10.0.0.12/32", &[]) };
    apply(&mut state, [object(7, kind), Message::Route(New, one)]);
    state
}

/// The kernel removes such routes without a notification.
#[test]
fn a_next_hop_object_that_is_deleted_takes_its_routes_along() {
    const BLACKHOLE: u8 = 6;
    for (route_type, kind) in
        [(BLACKHOLE, NextHopKind::Blackhole), (1, NextHopKind::Single(via(UP2, "10.2.0.1")))]
    {
        let mut state = by_object(route_type, kind.clone());
        let before = dealt(&state.build());
        let all = |update: &Update| dealt(update).contains(&UP1) && dealt(update).contains(&UP3);
        assert!(!before.contains(&UP1), "{kind:?}");
        let gone = Object { id: 7, kind: NextHopKind::Other };
        apply(&mut state, [Message::NextHop(Delete, gone)]);
        assert!(all(&state.build()), "{kind:?}");
        // Another object gets the number.
        apply(&mut state, [object(7, NextHopKind::Single(via(UP2, "10.2.0.1")))]);
        assert!(all(&state.build()), "{kind:?}");
    }
    // With `nexthop_compat_mode` 0, routes are not told anew of an object that is replaced.
    let mut state = by_object(BLACKHOLE, NextHopKind::Blackhole);
    assert!(dealt(&state.build()).iter().all(|ifindex| *ifindex == 0));
    apply(&mut state, [object(7, NextHopKind::Single(via(UP2, "10.2.0.1")))]);
    assert!(dealt(&state.build()).iter().all(|ifindex| *ifindex == UP2));
}

/// The kernel tells hosts of the route's MTU, and loses what fits.
#[test]
fn a_route_whose_links_lack_carrier_still_limits_frames() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let limit = |state: &mut State| state.build().plan.vnis[&Netdev(VXLAN)].frame_limit;
    assert_eq!(limit(&mut state), 1500 - 36);
    let one = netlink::Route {
        replace: true,
        mtu: Some(1400),
        ..route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])
    };
    apply(&mut state, [Message::Route(New, one)]);
    assert_eq!(limit(&mut state), 1400 - 36);
    assert!(carrier(&mut state, false).iter().all(|ifindex| *ifindex == 0));
    assert_eq!(limit(&mut state), 1400 - 36);
}

#[test]
fn without_rebalancing_a_link_that_returns_gets_nothing_until_another_is_lost() {
    let mut state =
        three_uplinks(Settings { rebalance: Rebalance::Off, ..Settings::default() }, &[]);
    let before = dealt(&state.build());
    let lost = carrier(&mut state, false);
    assert_eq!(carrier(&mut state, true), lost);
    apply(&mut state, [link(no_carrier(ethernet(UP2, "up2")))]);
    let next = dealt(&state.build());
    assert!(moved(&lost, &next).iter().all(|(from, to)| (*from, *to) == (UP2, UP1)));
    apply(&mut state, [link(ethernet(UP2, "up2"))]);
    state.build();
    state.reload(Settings::default(), control::Namespace::default());
    assert_eq!(dealt(&state.build()), before, "turned on while it runs");
}

#[test]
fn a_route_that_loses_and_regains_a_next_hop_is_as_resilient_as_a_link() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let before = dealt(&state.build());
    let replace = |hops: &[RouteNextHop]| {
        Message::Route(New, netlink::Route { replace: true, ..route("10.0.0.0/24", hops) })
    };
    apply(&mut state, [replace(&[via(UP2, "10.2.0.1"), via(UP3, "10.3.0.1")])]);
    let less = dealt(&state.build());
    assert!(moved(&before, &less).iter().all(|(from, _)| *from == UP1));
    apply(
        &mut state,
        [replace(&[via(UP3, "10.3.0.1"), via(UP2, "10.2.0.1"), via(UP1, "10.1.0.1")])],
    );
    assert_eq!(dealt(&state.build()), before, "whatever order they are named in");
}

#[test]
fn equal_leaves_choose_equally_from_the_start() {
    let mut one = three_uplinks(Settings::default(), &[]);
    let mut other = state_with(Settings::default());
    let mut said: Vec<Message> = leaf();
    said.push(link(ethernet(UP3, "up3")));
    let hops = [via(UP3, "10.3.0.1"), via(UP1, "10.1.0.1"), via(UP2, "10.2.0.1")];
    said.extend([remote(New, mac(1), VTEP), add_route("10.0.0.0/24", &hops)]);
    apply(&mut other, said);
    assert_eq!(dealt(&one.build()), dealt(&other.build()));
}

#[test]
fn a_gateway_that_does_not_answer_is_not_used_while_others_do() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let before = dealt(&state.build());
    apply(&mut state, [gateway(FAILED, None)]);
    assert!(state.is_dirty());
    let failed = dealt(&state.build());
    assert!(!failed.contains(&UP2));
    assert!(moved(&before, &failed).iter().all(|(from, _)| *from == UP2));
    // It is asked for again, but frames do not wait for the answer.
    let up2 = Adjacency { ifindex: UP2, address: ip("10.2.0.1") };
    assert_eq!(state.resolve_due(Instant::now() + Duration::from_secs(60)), [up2]);
    apply(&mut state, [gateway(INCOMPLETE, None)]);
    assert!(!state.is_dirty(), "asked is not answered");
    let others = [neighbour(UP1, "10.1.0.1", mac(0xe1)), neighbour(UP3, "10.3.0.1", mac(0xe3))];
    state.resync(Dump::Neighbours, others.into_iter().chain([gateway(INCOMPLETE, None)]).collect());
    assert_eq!(dealt(&state.build()), failed, "nor by a dump");
    apply(&mut state, [gateway(REACHABLE, Some(mac(0xe2)))]);
    assert_eq!(dealt(&state.build()), before);
}

#[test]
fn gateways_that_all_fail_are_all_used() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let before = dealt(&state.build());
    for (ifindex, address) in [(UP1, "10.1.0.1"), (UP2, "10.2.0.1"), (UP3, "10.3.0.1")] {
        apply(&mut state, [Message::Neighbour(New, neighbour_of(ifindex, address, None, FAILED))]);
        state.build();
    }
    assert_eq!(dealt(&state.build()), before, "whoever answers first, gets what was its own");
}

#[test]
fn a_gateway_that_changes_its_mac_address_keeps_its_flows() {
    let mut state = three_uplinks(Settings::default(), &[]);
    let before = dealt(&state.build());
    apply(&mut state, [gateway(REACHABLE, Some(mac(0xf2)))]);
    let update = state.build();
    let hop = paths(&update, VTEP).next_hops().iter().find(|hop| hop.ifindex == UP2).unwrap();
    assert_eq!(hop.destination_mac, Some(mac(0xf2)));
    assert_eq!(dealt(&update), before);
}

/// BGP unnumbered over two uplinks: the kernel's next hops have the neighbours' link-local
/// addresses.
fn unnumbered() -> State {
    let mut state = state_after(leaf().into_iter().chain([remote(New, mac(1), VTEP)]));
    for (ifindex, last) in [(UP1, 1), (UP2, 2)] {
        apply(&mut state, [neighbour(ifindex, &format!("fe80::{last}"), mac(0xe0 + last))]);
        // zebra writes this neighbour into the kernel, whether its routes use it or not.
        apply(&mut state, [neighbour(ifindex, "169.254.0.1", mac(0xe0 + last))]);
    }
    apply(&mut state, [kernel_route(&[(UP1, "fe80::1"), (UP2, "fe80::2")])]);
    state
}

fn kernel_route(hops: &[(u32, &str)]) -> Message {
    let hops: Vec<RouteNextHop> =
        hops.iter().map(|(ifindex, gateway)| via(*ifindex, gateway)).collect();
    Message::Route(New, netlink::Route { replace: true, ..route("10.0.0.0/24", &hops) })
}

/// zebra's FPM messages have 169.254.0.1 on each uplink.
fn zebra_says(state: &mut State, uplinks: &[u32]) {
    let hops: Vec<RouteNextHop> =
        uplinks.iter().map(|ifindex| via(*ifindex, "169.254.0.1")).collect();
    let now = Instant::now();
    state.apply_fpm(vec![add_route("10.0.0.0/24", &hops)], now);
    // Its replay is over.
    state.tick(now + Duration::from_secs(5));
}

/// Gateways and path numbers, which are labels of metrics.
fn labels(update: &Update) -> Vec<(u32, std::net::IpAddr, u16)> {
    paths(update, VTEP).next_hops().iter().map(|hop| (hop.ifindex, hop.gateway, hop.path)).collect()
}

#[test]
fn a_flap_of_an_unnumbered_uplink_moves_its_flows_only_and_brings_them_back_with_fpm_too() {
    for flapping in [UP1, UP2] {
        let other = UP1 + UP2 - flapping;
        let mut state = unnumbered();
        let first = state.build();
        let (before, named) = (dealt(&first), labels(&first));
        state.fpm_connected();
        zebra_says(&mut state, &[UP2, UP1]);
        let connected = state.build();
        assert_eq!(state.fpm_state(), control::SourceState::Live);
        assert_eq!(dealt(&connected), before, "zebra connects");
        assert_eq!(labels(&connected), named, "metric labels stay");
        let up = |ifindex| ethernet(ifindex, if ifindex == UP1 { "up1" } else { "up2" });
        apply(&mut state, [link(no_carrier(up(flapping)))]);
        assert!(moved(&before, &dealt(&state.build())).iter().all(|(from, _)| *from == flapping));
        apply(
            &mut state,
            [kernel_route(&[(other, if other == UP1 { "fe80::1" } else { "fe80::2" })])],
        );
        zebra_says(&mut state, &[other]);
        assert!(dealt(&state.build()).iter().all(|ifindex| *ifindex == other));
        apply(&mut state, [link(up(flapping))]);
        // FRR 8.4.4 does not give it to the kernel any more.
        zebra_says(&mut state, &[flapping, other]);
        let back = state.build();
        assert_eq!(
            (dealt(&back), labels(&back)),
            (before.clone(), named.clone()),
            "{flapping} is back"
        );
        apply(&mut state, [kernel_route(&[(UP2, "fe80::2"), (UP1, "fe80::1")])]);
        state.fpm_disconnected(Instant::now());
        let alone = state.build();
        assert_eq!((dealt(&alone), labels(&alone)), (before, named), "zebra is gone");
    }
}

#[test]
fn where_the_kernel_names_what_zebra_names_it_is_shown() {
    let mut state = unnumbered();
    let before = dealt(&state.build());
    apply(&mut state, [kernel_route(&[(UP1, "169.254.0.1"), (UP2, "169.254.0.1")])]);
    // A next-hop object that no route uses.
    apply(&mut state, [object(7, netlink::NextHopKind::Single(via(UP1, "fe80::1")))]);
    state.fpm_connected();
    zebra_says(&mut state, &[UP1, UP2]);
    let update = state.build();
    assert!(labels(&update).iter().all(|(_, gateway, _)| *gateway == ip("169.254.0.1")));
    assert_eq!(dealt(&update), before, "another name of the same next hops");
}

#[test]
fn a_neighbour_with_another_link_local_address_gets_the_same_flows() {
    let mut state = unnumbered();
    let before = dealt(&state.build());
    apply(&mut state, [kernel_route(&[(UP1, "fe80::1"), (UP2, "fe80::99")])]);
    assert_eq!(dealt(&state.build()), before);
}

#[test]
fn an_ipv6_gateway_of_ipv4_routes_is_asked_for_fails_and_returns() {
    // RFC 8950: BGP unnumbered. Every router may have fe80::1 on its link.
    let mut state = state_after(leaf().into_iter().chain([remote(New, mac(1), VTEP)]));
    apply(&mut state, [add_route("10.0.0.0/24", &[via(UP1, "fe80::1"), via(UP2, "fe80::1")])]);
    state.build();
    let at = |ifindex| Adjacency { ifindex, address: ip("fe80::1") };
    assert_eq!(state.resolve_due(Instant::now()), [at(UP1), at(UP2)]);
    apply(&mut state, [neighbour(UP1, "fe80::1", mac(0xe1)), neighbour(UP2, "fe80::1", mac(0xe2))]);
    let macs = |state: &mut State| -> Vec<_> {
        paths(&state.build(), VTEP).next_hops().iter().map(|hop| hop.destination_mac).collect()
    };
    assert_eq!(macs(&mut state), [Some(mac(0xe1)), Some(mac(0xe2))]);
    apply(&mut state, [Message::Neighbour(New, neighbour_of(UP1, "fe80::1", None, FAILED))]);
    assert_eq!(macs(&mut state), [Some(mac(0xe2))]);
    apply(&mut state, [neighbour(UP1, "fe80::1", mac(0xe9))]);
    assert_eq!(macs(&mut state), [Some(mac(0xe9)), Some(mac(0xe2))]);
}

#[test]
fn an_on_link_next_hop_fails_for_its_own_vtep_alone() {
    let mut state = state_after(leaf());
    apply(&mut state, [remote(New, mac(1), VTEP), remote(New, mac(2), "10.0.0.13")]);
    apply(&mut state, [add_route("10.0.0.0/24", &[via(UP1, ""), via(UP2, "")])]);
    let each = |state: &mut State| {
        let update = state.build();
        [VTEP, "10.0.0.13"].map(|vtep| interfaces(&update, vtep))
    };
    assert_eq!(each(&mut state), [[UP1, UP2], [UP1, UP2]]);
    apply(&mut state, [Message::Neighbour(New, neighbour_of(UP1, VTEP, None, FAILED))]);
    assert_eq!(each(&mut state), [vec![UP2], vec![UP1, UP2]]);
}

#[test]
fn vteps_that_are_reached_alike_share_their_paths() {
    let mut state = three_uplinks(Settings::default(), &["10.0.0.13", "10.0.0.14"]);
    let shared = |update: &Update| {
        let all: Vec<_> = update.snapshot.vteps().map(|vtep| &vtep.paths).collect();
        all.windows(2).all(|two| Arc::ptr_eq(two[0], two[1]))
    };
    assert!(shared(&state.build()));
    carrier(&mut state, false);
    assert!(shared(&state.build()));
    carrier(&mut state, true);
    // A new VTEP shares the next hops of the others again.
    apply(&mut state, [remote(New, mac(9), "10.0.0.19")]);
    assert!(shared(&state.build()));
}
