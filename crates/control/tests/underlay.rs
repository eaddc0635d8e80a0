//! The route to a VTEP: routes of two sources, next-hop objects, link state, neighbours.

#![cfg(test)]

mod world;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use control::{Adjacency, State};
use netlink::{Dump, Link, Message, NextHopKind, Route, RouteNextHop, RouteTarget};
use world::*;

const VTEP: &str = "10.0.0.12";

/// A leaf with one remote MAC address behind [`VTEP`], after these messages.
fn towards_vtep(messages: impl IntoIterator<Item = Message>) -> State {
    state_after(leaf().into_iter().chain([remote(New, mac(1), VTEP)]).chain(messages))
}

fn reached_by(state: &mut State) -> Vec<u32> {
    interfaces(&state.build(), VTEP)
}

fn uplinks(state: &mut State) -> Vec<u32> {
    state.build().plan.uplinks.iter().map(|uplink| uplink.ifindex).collect()
}

/// zebra is connected and its replay has ended.
fn zebra_live(state: &mut State, messages: impl IntoIterator<Item = Message>) {
    let now = Instant::now();
    state.fpm_connected();
    state.apply_fpm(messages.into_iter().collect(), now);
    state.tick(now + Duration::from_secs(5));
}

#[test]
fn a_next_hop_is_complete() {
    let mut state = towards_vtep(underlay());
    let update = state.build();
    let hops = paths(&update, VTEP).next_hops();
    assert_eq!(hops.len(), 2);
    let hop = &hops[0];
    assert_eq!((hop.ifindex, hop.gateway, hop.weight, hop.mtu), (UP1, ip("10.1.0.1"), 1, 1500));
    assert_eq!(Some(hop.source_mac), ethernet(UP1, "").mac);
    assert_eq!(hop.destination_mac, Some(mac(0xe1)));
    assert_ne!(hop.path, hops[1].path);
    assert_eq!(uplinks(&mut state), [UP1, UP2]);
}

#[test]
fn an_uplink_that_somebody_impairs_is_known() {
    let mut state = towards_vtep(underlay());
    let impaired = |state: &mut State| -> Vec<bool> {
        paths(&state.build(), VTEP).next_hops().iter().map(|hop| hop.impaired).collect()
    };
    assert_eq!(impaired(&mut state), [false, false]);
    let qdisc = |kind: &str| netlink::Qdisc { ifindex: UP2, kind: kind.to_owned() };
    for (message, expected) in [
        (Message::Qdisc(New, qdisc("netem")), true),
        (Message::Qdisc(Delete, qdisc("netem")), false),
        (Message::Qdisc(New, qdisc("tbf")), true),
        (Message::Qdisc(New, qdisc("fq_codel")), false),
        (Message::Link(New, Link { qdisc: "netem".to_owned(), ..ethernet(UP2, "up2") }), true),
    ] {
        apply(&mut state, [message.clone()]);
        assert_eq!(impaired(&mut state), [false, expected], "{message:?}");
    }
}

#[test]
fn without_a_route_the_vni_stays_taken_and_the_vtep_has_no_path() {
    let mut state = towards_vtep([]);
    let update = state.build();
    assert_eq!(why_left(&update, VXLAN), None);
    assert!(paths(&update, VTEP).next_hops().is_empty());
    assert!(update.plan.uplinks.is_empty());
}

#[test]
fn the_longest_prefix_wins_then_the_lowest_metric_then_table_main() {
    let mut state = towards_vtep([add_route("0.0.0.0/0", &[via(1, "")])]);
    assert!(why_left(&state.build(), VXLAN).is_some(), "lo is no Ethernet interface");
    apply(&mut state, [add_route("10.0.0.0/8", &[via(UP1, "10.1.0.1")])]);
    assert_eq!(reached_by(&mut state), [UP1]);
    let better = Route { priority: 10, ..route("10.0.0.0/8", &[via(UP2, "10.2.0.1")]) };
    apply(&mut state, [Message::Route(New, better)]);
    assert_eq!(reached_by(&mut state), [UP2]);
    apply(&mut state, [add_route("10.0.0.12/32", &[via(UP1, "10.1.0.1")])]);
    assert_eq!(reached_by(&mut state), [UP1]);
    let default = Route { table: 253, ..route("10.0.0.12/32", &[via(UP2, "10.2.0.1")]) };
    apply(&mut state, [Message::Route(New, default)]);
    assert_eq!(reached_by(&mut state), [UP1]);
    for prefix in ["10.0.0.12/32", "10.0.0.0/8", "0.0.0.0/0"] {
        apply(&mut state, [del_route(prefix, &[])]);
    }
    let worse = Route { priority: 10, ..route("10.0.0.0/8", &[]) };
    apply(&mut state, [Message::Route(Delete, worse)]);
    assert_eq!(reached_by(&mut state), [UP2], "table default comes last");
    let throw = Route { route_type: 9, ..route("10.0.0.0/8", &[]) };
    apply(
        &mut state,
        [Message::Route(New, throw), add_route("0.0.0.0/0", &[via(UP1, "10.1.0.1")])],
    );
    assert_eq!(reached_by(&mut state), [UP2], "throw leads on to it past shorter prefixes");
}

#[test]
fn a_blackhole_is_no_path_and_hides_shorter_prefixes() {
    for route_type in [6, 7, 8] {
        let blackhole = Route { route_type, ..route("10.0.0.0/24", &[]) };
        let mut state = towards_vtep([
            add_route("10.0.0.0/8", &[via(UP1, "10.1.0.1")]),
            Message::Route(New, blackhole),
        ]);
        assert!(reached_by(&mut state).is_empty());
    }
}

#[test]
fn a_dead_next_hop_is_pruned_whatever_the_routes_say() {
    let mut state = towards_vtep(underlay());
    assert_eq!(reached_by(&mut state), [UP1, UP2]);
    // zebra 10.3 with next-hop groups sends nothing when carrier is lost.
    apply(&mut state, [link(no_carrier(ethernet(UP1, "up1")))]);
    assert_eq!(reached_by(&mut state), [UP2]);
    assert_eq!(
        uplinks(&mut state),
        [UP1, UP2],
        "steering an interface without carrier is harmless"
    );
    apply(&mut state, [link(ethernet(UP1, "up1"))]);
    assert_eq!(reached_by(&mut state), [UP1, UP2], "the kernel revives it without an event");
    for flag in [1, 16] {
        let flagged = RouteNextHop { flags: flag, ..via(UP2, "10.2.0.1") };
        let changed =
            Route { replace: true, ..route("10.0.0.0/24", &[via(UP1, "10.1.0.1"), flagged]) };
        apply(&mut state, [Message::Route(New, changed)]);
        assert_eq!(reached_by(&mut state), [UP1]);
    }
}

#[test]
fn an_interface_that_goes_down_loses_its_routes_until_the_kernel_tells_them_again() {
    let mut state = towards_vtep(underlay());
    apply(&mut state, [add_route("10.0.0.12/32", &[via(UP1, "10.1.0.1")])]);
    state.build();
    state.take_wanted_dumps();
    apply(&mut state, [link(down(ethernet(UP1, "up1")))]);
    // The kernel flushed the host route without a notification and uses the shorter prefix.
    assert_eq!(reached_by(&mut state), [UP2]);
    let doubtful = state.take_wanted_dumps();
    for dump in [Dump::Routes, Dump::NextHops, Dump::Neighbours] {
        assert!(doubtful.contains(&dump), "{dump:?}");
    }
    apply(&mut state, [link(ethernet(UP1, "up1"))]);
    assert_eq!(reached_by(&mut state), [UP2], "what was flushed does not come back by itself");
    assert!(state.take_wanted_dumps().contains(&Dump::Routes), "the kernel may have revived hops");
    state.resync(
        Dump::Routes,
        vec![add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1"), via(UP2, "10.2.0.1")])],
    );
    assert_eq!(reached_by(&mut state), [UP1, UP2]);
    apply(&mut state, [Message::Link(Delete, ethernet(UP1, "up1"))]);
    assert_eq!(reached_by(&mut state), [UP2]);
    assert_eq!(uplinks(&mut state), [UP2]);
}

/// Each interface with IPv6 has a route to fe80::/64, with the same metric.
#[test]
fn a_dump_of_routes_asks_for_no_other() {
    let mut state = towards_vtep(underlay());
    let of = |ifindex| add_route("fe80::/64", &[via(ifindex, "fe80::1")]);
    state.take_wanted_dumps();
    apply(&mut state, [of(UP1), of(UP2)]);
    assert_eq!(state.take_wanted_dumps(), [Dump::Routes]);
    state.resync(Dump::Routes, vec![of(UP1), of(UP2)]);
    assert!(!state.wants_dumps());
}

#[test]
fn a_leaf_that_lost_its_fabric_does_not_leave_by_its_management_network() {
    let management = add_route("0.0.0.0/0", &[via(UP2, "192.0.2.1")]);
    let mut state = towards_vtep([management, add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    assert_eq!(reached_by(&mut state), [UP1]);
    apply(&mut state, [link(no_carrier(ethernet(UP1, "up1")))]);
    assert!(reached_by(&mut state).is_empty());
}

/// The default route is followed like any other. Its next hops are marked, also if it leads to a
/// gateway only.
#[test]
fn what_only_a_default_route_leads_to_is_known() {
    let by_default = |state: &mut State| {
        let update = state.build();
        let hops = paths(&update, VTEP).next_hops().iter();
        let hops = hops.map(|hop| (hop.ifindex, hop.by_default)).collect::<Vec<_>>();
        (hops, update.by_default.iter().copied().collect::<Vec<_>>())
    };
    let mut state = towards_vtep([add_route("0.0.0.0/0", &[via(UP2, "192.0.2.1")])]);
    assert_eq!(by_default(&mut state), (vec![(UP2, true)], vec![ip(VTEP)]));
    assert_eq!(uplinks(&mut state), [UP2], "what comes from there is taken, too");
    // A route of its own, even a short one, and its end.
    let own = [via(UP1, "10.1.0.1")];
    apply(&mut state, [add_route("0.0.0.0/1", &own)]);
    assert_eq!(by_default(&mut state), (vec![(UP1, false)], vec![]));
    apply(&mut state, [del_route("0.0.0.0/1", &own)]);
    assert_eq!(by_default(&mut state), (vec![(UP2, true)], vec![ip(VTEP)]));
    // A recursive gateway that only the default route leads to.
    let recursive = [via(0, "10.9.0.1"), via(UP1, "10.1.0.1")];
    apply(&mut state, [add_route("10.0.0.0/24", &recursive)]);
    assert_eq!(by_default(&mut state), (vec![(UP1, false), (UP2, true)], vec![ip(VTEP)]));
    apply(&mut state, [del_route("10.0.0.0/24", &recursive)]);
    // The interface is down: the kernel flushes the route to the VTEP and uses the default route.
    apply(&mut state, [add_route("10.0.0.0/24", &own)]);
    assert_eq!(by_default(&mut state), (vec![(UP1, false)], vec![]));
    apply(&mut state, [link(down(ethernet(UP1, "up1")))]);
    assert_eq!(by_default(&mut state), (vec![(UP2, true)], vec![ip(VTEP)]));
    // No entry refers to the VTEP any more.
    apply(&mut state, [remote(Delete, mac(1), VTEP), flood(Delete, VTEP)]);
    assert!(state.build().by_default.is_empty());
}

#[test]
fn zebras_version_of_a_prefix_is_preferred_while_it_is_live() {
    let mut state = towards_vtep([add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    let now = Instant::now();
    state.fpm_connected();
    state.apply_fpm(vec![add_route("10.0.0.0/24", &[via(UP2, "10.2.0.1")])], now);
    assert_eq!(reached_by(&mut state), [UP1], "its replay has not ended");
    state.tick(now + Duration::from_secs(5));
    assert_eq!(reached_by(&mut state), [UP2]);
    apply(&mut state, [link(no_carrier(ethernet(UP2, "up2")))]);
    assert_eq!(reached_by(&mut state), [UP1], "all of zebra's are dead");
    apply(&mut state, [link(ethernet(UP2, "up2"))]);
    assert_eq!(reached_by(&mut state), [UP2]);
    state.fpm_disconnected(now);
    assert_eq!(reached_by(&mut state), [UP1]);
    apply(&mut state, [del_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    assert!(reached_by(&mut state).is_empty(), "zebra tells only what the kernel has");
}

#[test]
fn zebras_routes_alone_are_enough_and_one_frame_is_one_change() {
    let mut state = towards_vtep([]);
    zebra_live(&mut state, [add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    assert_eq!(reached_by(&mut state), [UP1]);
    // FRR 8.4.4 updates by a deletion and an addition in one frame.
    let update = [del_route("10.0.0.0/24", &[]), add_route("10.0.0.0/24", &[via(UP2, "10.2.0.1")])];
    zebra(&mut state, update);
    assert_eq!(reached_by(&mut state), [UP2]);
}

#[test]
fn routes_that_a_replay_does_not_confirm_are_swept() {
    let mut state = towards_vtep([]);
    let objects = |id| object(id, NextHopKind::Single(via(UP1, "10.1.0.1")));
    zebra_live(&mut state, [objects(7), add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    state.fpm_disconnected(Instant::now());
    zebra_live(&mut state, [add_route("10.0.0.0/16", &[via(UP2, "10.2.0.1")])]);
    assert_eq!(reached_by(&mut state), [UP2]);
    assert_eq!(state.fpm_swept(), 2);
}

#[test]
fn a_stranger_that_says_nothing_sweeps_nothing() {
    let mut state = towards_vtep([]);
    let now = Instant::now();
    zebra_live(&mut state, [add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    state.fpm_disconnected(now);
    state.fpm_connected();
    state.tick(now + Duration::from_secs(119));
    assert_eq!(reached_by(&mut state), [UP1]);
}

#[test]
fn next_hop_objects_and_groups_are_resolved_and_pruned() {
    let by_object = |id| {
        Message::Route(
            New,
            Route { via: RouteTarget::Object(id), replace: true, ..route("10.0.0.0/24", &[]) },
        )
    };
    let mut state = towards_vtep([
        object(22, NextHopKind::Single(via(UP1, "10.1.0.1"))),
        object(27, NextHopKind::Single(via(UP2, "10.2.0.1"))),
        object(26, NextHopKind::Group(vec![(22, 1), (27, 3)])),
        by_object(26),
    ]);
    let update = state.build();
    let weights: Vec<_> =
        paths(&update, VTEP).next_hops().iter().map(|hop| (hop.ifindex, hop.weight)).collect();
    assert_eq!(weights, [(UP1, 1), (UP2, 3)]);
    apply(&mut state, [link(no_carrier(ethernet(UP1, "up1")))]);
    assert_eq!(reached_by(&mut state), [UP2]);
    apply(&mut state, [by_object(22)]);
    assert!(reached_by(&mut state).is_empty());
    apply(&mut state, [object(22, NextHopKind::Single(via(UP2, "10.2.0.9")))]);
    assert_eq!(reached_by(&mut state), [UP2], "the object changed, the route did not");
    apply(
        &mut state,
        [Message::NextHop(Delete, netlink::NextHop { id: 22, kind: NextHopKind::Other })],
    );
    assert!(reached_by(&mut state).is_empty());
    apply(
        &mut state,
        [
            object(30, NextHopKind::Blackhole),
            by_object(30),
            add_route("10.0.0.0/8", &[via(UP2, "10.2.0.1")]),
        ],
    );
    assert!(reached_by(&mut state).is_empty());
}

#[test]
fn a_gateway_without_an_interface_is_looked_up_in_turn() {
    let mut state = towards_vtep([
        add_route("10.0.0.12/32", &[via(0, "10.9.0.1")]),
        add_route("10.9.0.0/24", &[via(UP1, ""), via(UP2, "10.2.0.1")]),
    ]);
    let update = state.build();
    let gateways: Vec<IpAddr> =
        paths(&update, VTEP).next_hops().iter().map(|hop| hop.gateway).collect();
    assert_eq!(
        gateways,
        [ip("10.9.0.1"), ip("10.2.0.1")],
        "on-link through the one, through a gateway by the other"
    );
    // A loop of recursive routes resolves to no next hop.
    apply(
        &mut state,
        [Message::Route(
            New,
            Route { replace: true, ..route("10.9.0.0/24", &[via(0, "10.0.0.12")]) },
        )],
    );
    assert!(reached_by(&mut state).is_empty());
}

#[test]
fn an_ipv6_gateway_is_resolved_among_ipv6_neighbours() {
    let mut state = towards_vtep([
        add_route("10.0.0.0/24", &[via(UP1, "fe80::1")]),
        neighbour(UP1, "fe80::1", mac(0xe1)),
        neighbour(UP2, "fe80::1", mac(0xe2)),
    ]);
    let update = state.build();
    let hop = &paths(&update, VTEP).next_hops()[0];
    assert_eq!((hop.gateway, hop.destination_mac), (ip("fe80::1"), Some(mac(0xe1))));
}

#[test]
fn weights_keep_their_proportions() {
    let hop = |ifindex, gateway: &str, weight| RouteNextHop { weight, ..via(ifindex, gateway) };
    let mut state = towards_vtep([add_route(
        "10.0.0.0/24",
        &[hop(UP1, "10.1.0.1", 256), hop(UP2, "10.2.0.1", 64)],
    )]);
    let weights = |state: &mut State| -> Vec<u16> {
        paths(&state.build(), VTEP).next_hops().iter().map(|hop| hop.weight).collect()
    };
    assert_eq!(weights(&mut state), [4, 1]);
    let again = [hop(UP1, "10.1.0.1", 1), hop(UP1, "10.1.0.1", 1), hop(UP2, "10.2.0.1", 1)];
    apply(
        &mut state,
        [Message::Route(New, Route { replace: true, ..route("10.0.0.0/24", &again) })],
    );
    assert_eq!(weights(&mut state), [2, 1], "one adjacency named twice");
    let nested = [
        object(1, NextHopKind::Single(via(UP1, "10.1.0.1"))),
        object(2, NextHopKind::Single(via(UP2, "10.2.0.1"))),
        object(3, NextHopKind::Group(vec![(1, 255), (2, 256)])),
        object(4, NextHopKind::Group(vec![(3, 255), (1, 1)])),
        Message::Route(
            New,
            Route { replace: true, via: RouteTarget::Object(4), ..route("10.0.0.0/24", &[]) },
        ),
    ];
    apply(&mut state, nested);
    assert_eq!(weights(&mut state), [255, 256], "65026 to 65280");
    // Only FPM can have such a group.
    let itself = std::iter::repeat_n((5, 1), 8000).chain([(1, 1)]).collect();
    let by = |id| {
        let via = RouteTarget::Object(id);
        Message::Route(New, Route { replace: true, via, ..route("10.0.0.0/24", &[]) })
    };
    apply(&mut state, [object(5, NextHopKind::Group(itself)), by(5)]);
    assert!(weights(&mut state).len() <= 1);
    // The kernel drops what a group with a blackhole gets, and does not look for another route.
    let blackhole = [
        object(6, NextHopKind::Blackhole),
        object(7, NextHopKind::Group(vec![(6, 1)])),
        by(7),
        add_route("0.0.0.0/0", &[hop(UP1, "10.1.0.1", 1)]),
    ];
    apply(&mut state, blackhole);
    assert!(weights(&mut state).is_empty());
}

#[test]
fn the_frame_limit_is_that_of_the_narrowest_way() {
    let mut state = towards_vtep(underlay());
    let limit = |state: &mut State| state.build().plan.vnis[&Netdev(VXLAN)].frame_limit;
    assert_eq!(limit(&mut state), 1500 - 36);
    apply(&mut state, [link(Link { mtu: 9000, ..ethernet(UP1, "up1") })]);
    assert_eq!(limit(&mut state), 1500 - 36);
    apply(&mut state, [link(Link { mtu: 9000, ..ethernet(UP2, "up2") })]);
    assert_eq!(limit(&mut state), 9000 - 36);
    let limited = Route { mtu: Some(1400), ..route("10.0.0.13/32", &[via(UP1, "10.1.0.1")]) };
    apply(&mut state, [Message::Route(New, limited)]);
    assert_eq!(limit(&mut state), 9000 - 36, "a route that no VTEP of this VNI needs");
    apply(&mut state, [flood(New, "10.0.0.13")]);
    let update = state.build();
    assert_eq!(update.plan.vnis[&Netdev(VXLAN)].frame_limit, 1400 - 36);
    assert_eq!(paths(&update, "10.0.0.13").next_hops()[0].mtu, 1400);
}

#[test]
fn a_neighbour_is_used_while_it_is_valid_and_asked_for_when_it_is_not() {
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let adjacency = Adjacency { ifindex: UP1, address: ip("10.1.0.1") };
    let mut state = towards_vtep([add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1")])]);
    let resolved = |state: &mut State| paths(&state.build(), VTEP).next_hops()[0].destination_mac;
    assert_eq!(resolved(&mut state), None);
    assert_eq!(state.resolve_due(at(0)), [adjacency]);
    assert_eq!(state.resolve_due(at(999)), []);
    assert!(!state.resolve(adjacency, at(999)), "the worker's wish is the same question");
    assert_eq!(state.wake_at(), Some(at(1000)));
    assert_eq!(state.resolve_due(at(1000)), [adjacency]);

    let is = |mac, state| Message::Neighbour(New, neighbour_of(UP1, "10.1.0.1", mac, state));
    apply(&mut state, [is(None, 0x01)]);
    assert!(!state.is_dirty(), "incomplete is as unknown as before");
    apply(&mut state, [is(Some(mac(0xe1)), 0x02)]);
    assert_eq!(resolved(&mut state), Some(mac(0xe1)));
    assert_eq!(state.resolve_due(at(60_000)), []);
    assert_eq!(state.wake_at(), None);
    // A stale entry is still valid, but the kernel does not check it for frames that it does not
    // send.
    apply(&mut state, [is(Some(mac(0xe1)), 0x04)]);
    assert!(!state.is_dirty());
    assert_eq!(state.resolve_due(at(61_000)), [adjacency]);
    assert_eq!(state.resolve_due(at(70_999)), []);
    assert_eq!(state.wake_at(), Some(at(71_000)));
    apply(&mut state, [is(Some(mac(0xe1)), 0x20)]);
    assert_eq!(resolved(&mut state), None, "failed");
    apply(&mut state, [is(Some(mac(0xe3)), 0x80)]);
    assert_eq!(resolved(&mut state), Some(mac(0xe3)));
    apply(&mut state, [Message::Neighbour(Delete, neighbour_of(UP1, "10.1.0.1", None, 0))]);
    assert_eq!(resolved(&mut state), None);
}

#[test]
fn neighbours_that_no_path_uses_do_not_disturb() {
    let mut state = towards_vtep(underlay());
    state.build();
    apply(&mut state, [neighbour(UP1, "10.1.0.77", mac(7)), neighbour(BRIDGE, "10.1.0.1", mac(8))]);
    assert!(!state.is_dirty());
    assert!(
        !state.resolve(Adjacency { ifindex: UP1, address: ip("10.1.0.1") }, Instant::now()),
        "known already"
    );
}

#[test]
fn an_uplink_keeps_its_path_number_when_it_comes_back() {
    let mut state = towards_vtep(underlay());
    let number = |state: &mut State, ifindex| {
        let update = state.build();
        let hops = paths(&update, VTEP).next_hops().iter();
        hops.filter(|hop| hop.ifindex == ifindex).map(|hop| hop.path).next()
    };
    let (first, second) = (number(&mut state, UP1), number(&mut state, UP2));
    assert_ne!(first, second);
    apply(&mut state, [link(no_carrier(ethernet(UP1, "up1")))]);
    assert_eq!((number(&mut state, UP1), number(&mut state, UP2)), (None, second));
    apply(&mut state, [link(ethernet(UP1, "up1"))]);
    assert_eq!((number(&mut state, UP1), number(&mut state, UP2)), (first, second));
}

#[test]
fn an_uplinks_new_mac_address_and_name_are_followed() {
    let mut state = towards_vtep(underlay());
    state.build();
    apply(
        &mut state,
        [link(Link { mac: Some(mac(9)), name: "renamed".into(), ..ethernet(UP1, "") })],
    );
    let update = state.build();
    assert_eq!(paths(&update, VTEP).next_hops()[0].source_mac, mac(9));
    assert_eq!(update.plan.uplinks.iter().next().unwrap().name, "renamed");
}

#[test]
fn an_old_zebra_with_a_router_mac_is_a_hazard() {
    let router_mac = mac(0x77);
    let old = |operation, mac| match zebra_mac(operation, mac, VTEP) {
        Message::Fdb(operation, entry) => {
            Message::Fdb(operation, netlink::FdbEntry { source_vni: None, ..entry })
        }
        other => other,
    };
    let svi_neighbour = |state, flags| {
        Message::Neighbour(
            New,
            netlink::Neighbour { flags, ..neighbour_of(BRIDGE, VTEP, Some(router_mac), state) },
        )
    };
    let mut state = towards_vtep([remote(New, router_mac, VTEP)]);
    state.fpm_connected();
    zebra(&mut state, [zebra_mac(New, mac(1), VTEP)]);
    apply(&mut state, [svi_neighbour(0x40, 0x10)]);
    assert_eq!(state.fpm_hazard(), None, "9.0 or later");
    zebra(&mut state, [old(New, mac(1))]);
    let hazard = state.fpm_hazard().expect("an old zebra that knows a router MAC");
    assert_eq!((hazard.router_mac, hazard.vtep), (router_mac, ip(VTEP)));
    apply(&mut state, [svi_neighbour(0x02, 0)]);
    assert_eq!(state.fpm_hazard(), None, "an ordinary neighbour");
    apply(&mut state, [svi_neighbour(0x40, 0x10), remote(Delete, router_mac, VTEP)]);
    assert_eq!(state.fpm_hazard(), None, "no VTEP has this MAC");
    apply(&mut state, [remote(New, router_mac, VTEP)]);
    assert!(state.fpm_hazard().is_some());
    state.fpm_disconnected(Instant::now());
    state.fpm_connected();
    assert_eq!(state.fpm_hazard(), None, "another zebra, perhaps");
}
