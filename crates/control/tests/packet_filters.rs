//! Packet filters and reverse path filters: what stays with the kernel because of them, and for how
//! long.

#![cfg(test)]

mod world;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use control::State;
use netlink::{
    BaseChain, Dump, Effect, Field, Link, Message, NamePattern, PacketRule, ReversePathFilter,
    Rule, RuleChain, RuleHook, RuleSet, Test,
};
use world::*;

/// The leaf with a remote VTEP and the default rules of policy routing.
fn leaf_and_vtep() -> State {
    let mut state =
        state_after(leaf().into_iter().chain(underlay()).chain([remote(New, mac(1), "10.0.0.12")]));
    let rules = Rule::defaults().map(|rule| Message::Rule(New, rule));
    state.resync(Dump::Rules, rules.into());
    state
}

fn left(state: &mut State) -> Option<String> {
    why_left(&state.build(), VXLAN).map(|reason| {
        assert_eq!(reason.slug(), "packet-filter");
        reason.to_string()
    })
}

fn chain(hook: RuleHook, tests: Vec<Test>) -> RuleChain {
    RuleChain {
        family: "inet",
        table: "t".to_owned(),
        name: "c".to_owned(),
        base: Some(BaseChain { hook, devices: Vec::new(), drops: false }),
        rules: vec![PacketRule { handle: 7, tests, effect: Effect::Other }],
    }
}

fn filters(chains: impl IntoIterator<Item = RuleChain>) -> RuleSet {
    RuleSet::new(chains.into_iter().collect(), None)
}

fn to(address: &str) -> Test {
    let bits = address.parse::<Ipv4Addr>().unwrap().to_bits();
    Test::Field { field: Field::Destination, mask: u32::MAX, low: bits, high: bits, negated: false }
}

fn at(name: &str) -> Test {
    let pattern = NamePattern { text: name.to_owned(), prefix: false };
    Test::Interface { received: true, pattern, negated: false }
}

#[test]
fn rules_that_cannot_be_read_leave_every_vni_with_the_kernel() {
    let mut state = leaf_and_vtep();
    assert_eq!(left(&mut state), None);
    let unread = "the rules of nftables cannot be read (no reason)";
    state.set_packet_filters(RuleSet::new(Vec::new(), Some(unread.to_owned())));
    assert_eq!(left(&mut state).as_deref(), Some(unread));
    state.set_packet_filters(RuleSet::default());
    assert_eq!(left(&mut state), None);
}

#[test]
fn a_rule_for_a_vtep_counts_while_that_is_a_remote_one() {
    let mut state = leaf_and_vtep();
    state.set_packet_filters(filters([chain(RuleHook::Output, vec![to("10.0.0.13")])]));
    assert_eq!(left(&mut state), None);
    apply(&mut state, [remote(New, mac(2), "10.0.0.13")]);
    let reason = left(&mut state).unwrap();
    assert_eq!(
        reason,
        "the rule with handle 7 of chain 'inet t c (output)' may match its VXLAN packets"
    );
    apply(&mut state, [remote(Delete, mac(2), "10.0.0.13")]);
    assert_eq!(left(&mut state), None);
    // Without a remote VTEP nothing is sent, whatever VTEPs another VNI has.
    apply(&mut state, [link(bridge(20, "br2")), link(vxlan(21, 20, vxlan_of(VNI + 1)))]);
    apply(&mut state, [Message::Fdb(New, remote_of(21, mac(3), "10.0.0.12"))]);
    state.set_packet_filters(filters([chain(RuleHook::Output, vec![])]));
    assert!(left(&mut state).is_some());
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
    assert_eq!(left(&mut state), None);
}

#[test]
fn a_rule_for_an_interface_counts_while_that_is_an_uplink() {
    let mut state = leaf_and_vtep();
    for name in ["up1", "up2"] {
        state.set_packet_filters(filters([chain(RuleHook::Input, vec![at(name)])]));
        assert!(left(&mut state).is_some(), "{name}");
    }
    state.set_packet_filters(filters([chain(RuleHook::Input, vec![at("eth0")])]));
    assert_eq!(left(&mut state), None);
    apply(&mut state, [link(Link { name: "eth0".to_owned(), ..ethernet(UP1, "up1") })]);
    assert!(left(&mut state).is_some(), "the uplink has a new name");
    apply(&mut state, [link(ethernet(UP1, "up1"))]);
    assert_eq!(left(&mut state), None);
}

/// Chains that jump to one another often are followed once each.
#[test]
fn many_jumps_take_no_time() {
    let rule = |effect| PacketRule { handle: 1, tests: vec![Test::Unknown], effect };
    let name = |depth: usize| format!("c{depth}");
    let jumps = |depth: usize| RuleChain {
        name: name(depth),
        base: (depth == 0).then(|| BaseChain {
            hook: RuleHook::Input,
            devices: Vec::new(),
            drops: false,
        }),
        rules: vec![rule(Effect::Jump(name(depth + 1))); 100],
        ..chain(RuleHook::Input, Vec::new())
    };
    let last = RuleChain { rules: vec![rule(Effect::Accept)], ..jumps(15) };
    let mut state = leaf_and_vtep();
    // There are 100^15 paths.
    state.set_packet_filters(filters((0..15).map(jumps).chain([last])));
    assert_eq!(left(&mut state), None);
}

fn filter(ifindex: i32, value: i32) -> Message {
    Message::ReversePathFilter(New, ReversePathFilter { ifindex, value })
}

fn checked(state: &mut State) -> Vec<(u32, BTreeSet<Ipv4Addr>)> {
    state.build().plan.checked_sources.clone().into_iter().collect()
}

#[test]
fn packets_are_taken_from_vteps_whose_route_uses_the_uplink() {
    let mut state = leaf_and_vtep();
    assert_eq!(checked(&mut state), []);
    let vtep = BTreeSet::from([Ipv4Addr::new(10, 0, 0, 12)]);
    apply(&mut state, [filter(UP2 as i32, 1)]);
    assert_eq!(checked(&mut state), [(UP2, vtep.clone())]);
    apply(&mut state, [filter(-1, 2), filter(UP2 as i32, 0)]);
    assert_eq!(checked(&mut state), [(UP1, vtep.clone()), (UP2, vtep.clone())]);
    // The route to it loses the second uplink.
    let first = [via(UP1, "10.1.1.1")];
    apply(
        &mut state,
        [add_route("10.0.0.13/32", &[via(UP2, "10.1.2.1")]), remote(New, mac(2), "10.0.0.13")],
    );
    apply(&mut state, [add_route("10.0.0.12/32", &first)]);
    let other = BTreeSet::from([Ipv4Addr::new(10, 0, 0, 13)]);
    assert_eq!(checked(&mut state), [(UP1, vtep.clone()), (UP2, other)]);
    // A dump without the values.
    state.resync(Dump::ReversePathFilters, vec![filter(-1, 0), filter(UP1 as i32, 0)]);
    assert_eq!(checked(&mut state), []);
    // Other rules may change the reverse route.
    apply(&mut state, [filter(UP1 as i32, 1)]);
    assert_eq!(checked(&mut state), [(UP1, vtep)]);
    let other = Rule { priority: 5, input: Some("eth9".to_owned()), ..Rule::defaults()[1].clone() };
    let rules = Rule::defaults().into_iter().chain([other]);
    state.resync(Dump::Rules, rules.map(|rule| Message::Rule(New, rule)).collect());
    assert_eq!(checked(&mut state), [(UP1, BTreeSet::new())]);
}
