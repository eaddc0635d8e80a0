//! What the kernel would apply to VXLAN packets and vtepd does not. While it is there, the VNI
//! stays with the kernel.

#![cfg(test)]

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use control::{KernelOnlyReason, Path, Settings, State, VniSettings};
use netlink::{
    Dump, IpsecDirection, IpsecPolicy, Link, LinkKind, Message, NextHopKind, Route, RouteNextHop,
    Rule, Vxlan,
};
use world::*;

/// A leaf with a remote VTEP, whose kernel has reported rules and IPsec policies.
fn leaf_and_vtep() -> State {
    leaf_and_vtep_of(vxlan_of(VNI))
}

fn leaf_and_vtep_of(attributes: Vxlan) -> State {
    let mut state =
        state_after(leaf_with(attributes).into_iter().chain(underlay()).chain([remote(
            New,
            mac(1),
            "10.0.0.12",
        )]));
    set_rules(&mut state, &Rule::defaults());
    set_ipsec(&mut state, &[]);
    state
}

fn slug(state: &mut State) -> Option<&'static str> {
    why_left(&state.build(), VXLAN).map(|reason| reason.slug())
}

fn set_rules(state: &mut State, rules: &[Rule]) {
    state.resync(Dump::Rules, rules.iter().cloned().map(|rule| Message::Rule(New, rule)).collect());
}

fn set_ipsec(state: &mut State, policies: &[IpsecPolicy]) {
    state.resync(Dump::IpsecPolicies, policies.iter().cloned().map(Message::IpsecPolicy).collect());
}

/// The default rules with one more.
fn with_rule(rule: &Rule) -> Vec<Rule> {
    let [first, rest @ ..] = Rule::defaults();
    [vec![first, rule.clone()], rest.to_vec()].concat()
}

fn rule() -> Rule {
    Rule { priority: 100, table: 100, ..Rule::default() }
}

#[test]
fn a_rule_that_may_match_hands_the_vni_over_until_it_is_gone() {
    let mut state = leaf_and_vtep();
    assert_eq!(slug(&mut state), None);
    let to_vtep = Rule { to: (ip("10.0.0.12"), 32), ..rule() };
    // The notification causes a dump of the rules.
    state.take_wanted_dumps();
    apply(&mut state, [Message::Rule(New, to_vtep.clone())]);
    assert_eq!(state.take_wanted_dumps(), [Dump::Rules]);
    set_rules(&mut state, &with_rule(&to_vtep));
    let reason = why_left(&state.build(), VXLAN).unwrap();
    assert_eq!(reason.slug(), "policy-routing");
    let text = reason.to_string();
    assert!(text.contains("'100: from all to 10.0.0.12 lookup 100'"), "{text}");
    set_rules(&mut state, &Rule::defaults());
    assert_eq!(slug(&mut state), None);
}

#[test]
fn rules_that_cannot_match_are_no_reason() {
    let mut state = leaf_and_vtep();
    let harmless = [
        Rule { to: (ip("10.9.0.0"), 16), ..rule() },
        Rule { from: (ip("10.0.0.12"), 32), ..rule() },
        Rule { input: Some("up1".into()), ..rule() },
        Rule { output: Some("up1".into()), ..rule() },
        Rule { protocol: Some(6), ..rule() },
        Rule { destination_ports: Some((4790, 65535)), ..rule() },
        Rule { l3mdev: true, priority: 1000, ..Rule::default() },
    ];
    for rule in harmless {
        set_rules(&mut state, &with_rule(&rule));
        assert_eq!(slug(&mut state), None, "{rule:?}");
    }
    let all = || (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let matching = [
        rule(),
        Rule { from: (LOCAL, 32), ..rule() },
        Rule { input: Some("lo".into()), ..rule() },
        Rule { protocol: Some(17), destination_ports: Some((4000, 5000)), ..rule() },
        Rule { others: vec!["fwmark"], ..rule() },
        Rule { inverted: true, to: (ip("10.9.0.0"), 16), ..rule() },
        Rule { action: 8, from: all(), to: (ip("10.0.0.0"), 8), ..rule() },
    ];
    for rule in matching {
        set_rules(&mut state, &with_rule(&rule));
        assert_eq!(slug(&mut state), Some("policy-routing"), "{rule:?}");
    }
    // A VTEP that is added later may match a rule.
    set_rules(&mut state, &with_rule(&Rule { to: (ip("10.0.0.13"), 32), ..rule() }));
    assert_eq!(slug(&mut state), None);
    apply(&mut state, [remote(New, mac(2), "10.0.0.13")]);
    assert_eq!(slug(&mut state), Some("policy-routing"));
    apply(&mut state, [remote(Delete, mac(2), "10.0.0.13")]);
    assert_eq!(slug(&mut state), None);
}

#[test]
fn a_default_rule_that_is_missing_or_moved_is_a_reason() {
    let mut state = leaf_and_vtep();
    let [local, main, default] = Rule::defaults();
    let later = Rule { priority: 200, ..local.clone() };
    for rules in [
        vec![],
        vec![local.clone(), default.clone()],
        vec![main.clone(), default.clone()],
        vec![rule(), later, main.clone(), default.clone()],
    ] {
        set_rules(&mut state, &rules);
        assert_eq!(slug(&mut state), Some("policy-routing"), "{rules:?}");
    }
    set_rules(&mut state, &[local, main, default]);
    assert_eq!(slug(&mut state), None);
}

/// The rules of a VRF set-up (`Documentation/networking/vrf.rst`): that for VRFs is first.
fn vrf_rules() -> Vec<Rule> {
    let [local, main, default] = Rule::defaults();
    let of_vrfs = Rule { l3mdev: true, priority: 1000, ..Rule::default() };
    vec![of_vrfs, Rule { priority: 32_765, ..local }, main, default]
}

#[test]
fn rules_of_vrfs_before_table_local_are_followed() {
    let mut state = leaf_and_vtep();
    set_rules(&mut state, &vrf_rules());
    assert_eq!(slug(&mut state), None);
    // While the order is changed, table local is looked up twice.
    set_rules(&mut state, &[vec![Rule::defaults()[0].clone()], vrf_rules()].concat());
    assert_eq!(slug(&mut state), None);
    // Before table local, a rule also sees received packets.
    let harmless = [
        Rule { to: (ip("10.9.0.0"), 16), ..rule() },
        Rule { output: Some("up1".into()), ..rule() },
        Rule { protocol: Some(6), ..rule() },
    ];
    let matching = [
        rule(),
        Rule { to: (LOCAL, 32), ..rule() },
        Rule { from: (ip("10.0.0.12"), 32), ..rule() },
        Rule { input: Some("up1".into()), ..rule() },
        Rule { l3mdev: true, inverted: true, ..Rule::default() },
        Rule { action: 6, to: (LOCAL, 32), ..rule() },
    ];
    let rules = harmless.map(|rule| (rule, None)).into_iter();
    for (rule, expected) in rules.chain(matching.map(|rule| (rule, Some("policy-routing")))) {
        set_rules(&mut state, &[vec![rule.clone()], vrf_rules()].concat());
        assert_eq!(slug(&mut state), expected, "{rule:?}");
    }
    // The same rules in another order.
    let [of_vrfs, local, main, default] = vrf_rules().try_into().unwrap();
    for rules in [
        vec![of_vrfs.clone(), main.clone(), local.clone(), default.clone()],
        vec![of_vrfs.clone(), local.clone(), default.clone(), main.clone()],
        vec![of_vrfs.clone(), local, main],
        vec![of_vrfs],
    ] {
        set_rules(&mut state, &rules);
        assert_eq!(slug(&mut state), Some("policy-routing"), "{rules:?}");
    }
}

/// What an uplink in a VRF receives is looked up in the VRF's table.
#[test]
fn rules_of_vrfs_match_what_an_uplink_in_a_vrf_receives() {
    const VRF: u32 = 40;
    let mut state = leaf_and_vtep();
    set_rules(&mut state, &vrf_rules());
    let vrf = Link { kind: LinkKind::Other("vrf".into()), ..ethernet(VRF, "tenant") };
    apply(&mut state, [link(vrf)]);
    assert_eq!(slug(&mut state), None);
    apply(&mut state, underlay());
    apply(&mut state, [link(Link { master: Some(VRF), ..ethernet(UP1, "up1") })]);
    assert_eq!(slug(&mut state), Some("policy-routing"));
    set_rules(&mut state, &Rule::defaults());
    assert_eq!(slug(&mut state), None);
}

fn outgoing() -> IpsecPolicy {
    IpsecPolicy {
        direction: IpsecDirection::Out,
        source: (LOCAL, 32),
        destination: (ip("10.0.0.12"), 32),
        protocol: 17,
        destination_port: (4789, 0xffff),
        block: false,
        transforms: true,
    }
}

#[test]
fn an_ipsec_policy_that_may_match_hands_the_vni_over_until_it_is_gone() {
    let mut state = leaf_and_vtep();
    assert_eq!(slug(&mut state), None);
    state.take_wanted_dumps();
    apply(&mut state, [Message::IpsecChanged]);
    assert_eq!(state.take_wanted_dumps(), [Dump::IpsecPolicies]);
    let any = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let incoming = IpsecPolicy {
        direction: IpsecDirection::In,
        source: (ip("10.0.0.12"), 32),
        destination: (LOCAL, 32),
        ..outgoing()
    };
    for policy in [
        outgoing(),
        incoming.clone(),
        // Any sender may send to this VTEP.
        IpsecPolicy { source: (ip("192.0.2.1"), 32), ..incoming.clone() },
        IpsecPolicy {
            source: any,
            destination: any,
            protocol: 0,
            destination_port: (0, 0),
            ..outgoing()
        },
        IpsecPolicy { block: true, transforms: false, ..outgoing() },
    ] {
        set_ipsec(&mut state, std::slice::from_ref(&policy));
        assert_eq!(slug(&mut state), Some("ipsec-policy"), "{policy:?}");
    }
    for policy in [
        IpsecPolicy { destination_port: (500, 0xffff), ..outgoing() },
        IpsecPolicy { protocol: 1, ..outgoing() },
        IpsecPolicy { destination: (ip("10.0.0.13"), 32), ..outgoing() },
        IpsecPolicy { source: (ip("10.0.0.99"), 32), ..outgoing() },
        IpsecPolicy { transforms: false, ..outgoing() },
        IpsecPolicy { destination: (ip("10.0.0.99"), 32), ..incoming.clone() },
    ] {
        set_ipsec(&mut state, std::slice::from_ref(&policy));
        assert_eq!(slug(&mut state), None, "{policy:?}");
    }
    let block = vec![Message::IpsecDefault { block: true }];
    state.resync(Dump::IpsecPolicies, block);
    assert_eq!(slug(&mut state), Some("ipsec-policy"));
    set_ipsec(&mut state, &[]);
    assert_eq!(slug(&mut state), None);
}

#[test]
fn with_strict_vtep_only_the_vteps_policies_count() {
    let strict = VniSettings { strict_vtep: true, ..VniSettings::default() };
    let mut state = state_with(Settings { default: strict, ..Settings::default() });
    apply(
        &mut state,
        leaf().into_iter().chain(underlay()).chain([remote(New, mac(1), "10.0.0.12")]),
    );
    let incoming = |from: &str| IpsecPolicy {
        direction: IpsecDirection::In,
        source: (ip(from), 32),
        destination: (LOCAL, 32),
        ..outgoing()
    };
    set_ipsec(&mut state, &[incoming("192.0.2.1")]);
    assert_eq!(slug(&mut state), None);
    set_ipsec(&mut state, &[incoming("10.0.0.12")]);
    assert_eq!(slug(&mut state), Some("ipsec-policy"));
}

#[test]
fn a_local_address_that_goes_hands_the_vni_over_until_it_is_back() {
    let mut state = leaf_and_vtep();
    assert_eq!(slug(&mut state), None);
    apply(&mut state, [local_address(Delete)]);
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::LocalAddressMissing(LOCAL)));
    // A route of type 'local' is as good.
    let local = Route {
        table: 255,
        route_type: 2,
        ..route("10.0.0.11/32", &[RouteNextHop { gateway: None, ..via(1, "") }])
    };
    apply(&mut state, [Message::Route(New, local.clone())]);
    assert_eq!(slug(&mut state), None);
    apply(&mut state, [Message::Route(Delete, local)]);
    assert_eq!(slug(&mut state), Some("local-address-missing"));
    apply(&mut state, [local_address(New)]);
    assert_eq!(slug(&mut state), None);
    // The address of an interface that is down is not usable.
    let loopback = |flags| {
        link(Link { hardware_type: 772, kind: LinkKind::Plain, flags, ..ethernet(1, "lo") })
    };
    apply(&mut state, [loopback(0x8)]);
    assert_eq!(slug(&mut state), Some("local-address-missing"));
    apply(&mut state, [loopback(0x1_0049)]);
    assert_eq!(slug(&mut state), None);
    // The address was never there.
    let missing = |message: &Message| !matches!(message, Message::Address(..));
    let mut state = state_after(leaf().into_iter().filter(missing));
    assert_eq!(slug(&mut state), Some("local-address-missing"));
}

#[test]
fn a_netdev_whose_underlay_is_elsewhere_is_left() {
    let mut state = leaf_and_vtep();
    let netdev = |link_namespace| Link { link_namespace, ..vxlan(VXLAN, BRIDGE, vxlan_of(VNI)) };
    assert_eq!(slug(&mut state), None);
    apply(&mut state, [link(netdev(Some(0)))]);
    assert_eq!(slug(&mut state), Some("foreign-namespace"));
    apply(&mut state, [link(netdev(None))]);
    assert_eq!(slug(&mut state), None);
}

#[test]
fn the_index_of_a_lower_device_in_another_namespace_means_nothing_here() {
    for (link_namespace, left) in [(None, Some("route-through-bridge")), (Some(3), None)] {
        let mut state = leaf_and_vtep();
        let upper = Link {
            kind: LinkKind::Other("macvlan".into()),
            link: Some(BRIDGE),
            link_namespace,
            ..ethernet(40, "mv0")
        };
        apply(&mut state, [link(upper), add_route("10.0.0.12/32", &[via(40, "10.9.0.1")])]);
        assert_eq!(slug(&mut state), left, "{link_namespace:?}");
    }
}

#[test]
fn an_option_that_nobody_knows_is_a_reason() {
    let mut state = leaf_and_vtep_of(Vxlan { unknown: vec![35], ..vxlan_of(VNI) });
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::UnknownOption(35)));
}

#[test]
fn next_hops_with_an_encapsulation_are_the_kernels() {
    let mut state = leaf_and_vtep();
    let labelled = RouteNextHop { encapsulation: Some(1), ..via(UP1, "10.1.0.1") };
    let host_route = |hop: &RouteNextHop| add_route("10.0.0.12/32", std::slice::from_ref(hop));
    apply(&mut state, [host_route(&labelled)]);
    let reason = why_left(&state.build(), VXLAN).unwrap();
    assert_eq!(reason.slug(), "route-encapsulation");
    assert!(
        reason.to_string().ends_with("is routed through up1 with mpls encapsulation"),
        "{reason}"
    );
    apply(&mut state, [del_route("10.0.0.12/32", &[labelled])]);
    assert_eq!(slug(&mut state), None);
    // With a next-hop object, and beside a plain next hop.
    let seg6 = RouteNextHop { encapsulation: Some(5), ..via(UP2, "") };
    let object_route = Message::Route(
        New,
        Route { via: netlink::RouteTarget::Object(9), ..route("10.0.0.12/32", &[]) },
    );
    apply(
        &mut state,
        [
            object(7, NextHopKind::Single(seg6)),
            object(8, NextHopKind::Single(via(UP1, "10.1.0.1"))),
            object(9, NextHopKind::Group(vec![(7, 1), (8, 1)])),
            object_route,
        ],
    );
    assert_eq!(slug(&mut state), Some("route-encapsulation"));
    apply(&mut state, [object(9, NextHopKind::Group(vec![(8, 1)]))]);
    assert_eq!(slug(&mut state), None);
}

#[test]
fn routes_by_tos_matter_to_tunnels_with_a_tos() {
    let by_tos = |operation| {
        Message::Route(
            operation,
            Route { tos: 0x10, ..route("10.0.0.0/16", &[via(UP2, "10.2.0.1")]) },
        )
    };
    // TOS 2 and 3 are ECN bits.
    for (tos, left) in [(0, None), (2, None), (0x10, Some("tos-route")), (1, Some("tos-route"))] {
        let mut state = leaf_and_vtep_of(Vxlan { tos, ..vxlan_of(VNI) });
        assert_eq!(slug(&mut state), None, "{tos}");
        apply(&mut state, [by_tos(New)]);
        assert_eq!(slug(&mut state), left, "{tos}");
        apply(&mut state, [by_tos(Delete)]);
        assert_eq!(slug(&mut state), None, "{tos}");
    }
}

#[test]
fn a_routes_hop_limit_matters_to_tunnels_without_a_ttl() {
    let limited = |hop_limit| {
        let hops = [via(UP1, "10.1.0.1")];
        Message::Route(New, Route { hop_limit, replace: true, ..route("10.0.0.12/32", &hops) })
    };
    for (attributes, left) in [
        (vxlan_of(VNI), Some("route-hoplimit")),
        (Vxlan { ttl: 9, ..vxlan_of(VNI) }, None),
        // Concerns frames that are not IP.
        (Vxlan { ttl_inherit: true, ..vxlan_of(VNI) }, Some("route-hoplimit")),
    ] {
        let mut state = leaf_and_vtep_of(attributes);
        apply(&mut state, [limited(None)]);
        assert_eq!(slug(&mut state), None);
        apply(&mut state, [limited(Some(7))]);
        assert_eq!(slug(&mut state), left);
        // The default TTL.
        apply(&mut state, [limited(Some(64))]);
        assert_eq!(slug(&mut state), None);
    }
}

/// The kernel sends packets over such a route without DF (`iptunnel_xmit()`,
/// `net/ipv4/ip_tunnel_core.c`).
#[test]
fn a_locked_mtu_matters_to_tunnels_with_df() {
    let locked = |mtu_locked| {
        let hops = [via(UP1, "10.1.0.1")];
        let mtu = Some(1400);
        Message::Route(
            New,
            Route { mtu, mtu_locked, replace: true, ..route("10.0.0.12/32", &hops) },
        )
    };
    for (df, left) in [(0, None), (1, Some("route-mtu-locked")), (2, Some("route-mtu-locked"))] {
        let mut state = leaf_and_vtep_of(Vxlan { df, ..vxlan_of(VNI) });
        apply(&mut state, [locked(false)]);
        assert_eq!(slug(&mut state), None, "{df}");
        apply(&mut state, [locked(true)]);
        assert_eq!(slug(&mut state), left, "{df}");
        apply(&mut state, [locked(false)]);
        assert_eq!(slug(&mut state), None, "{df}");
    }
}

/// A publication that has nothing to do with sources says so, because workers forget what they know of
/// flows otherwise.
#[test]
fn broadcast_addresses_are_martians_once_there_were_other_rules() {
    let mut state = leaf_and_vtep();
    // Two are in one subnet, and one is behind its broadcast address in their order.
    for (ifindex, own) in [(UP1, "10.88.0.1"), (UP2, "10.88.0.2"), (UP2, "10.99.0.1")] {
        let own = netlink::Address { ifindex, address: ip(own), prefix_length: 24 };
        apply(&mut state, [Message::Address(New, own)]);
    }
    let is_martian =
        |state: &mut State| state.build().snapshot.is_martian_source(ip("10.88.0.255"));
    set_rules(&mut state, &Rule::defaults());
    assert!(!is_martian(&mut state));
    for rules in [with_rule(&rule()), Rule::defaults().to_vec()] {
        set_rules(&mut state, &rules);
        assert!(is_martian(&mut state));
    }
    let before = state.build().snapshot.reception_version();
    apply(&mut state, [remote(New, mac(77), "10.0.0.12")]);
    let update = state.build();
    assert_eq!(behind(&update, mac(77)), Some(ip("10.0.0.12")));
    assert_eq!(update.snapshot.reception_version(), before);
}

#[test]
fn defaults_are_followed() {
    let mut state = leaf_and_vtep();
    assert_eq!(table(&state.build()).unwrap().tunnel.ttl, tables::Ttl::Fixed(64));
    let defaults = control::Defaults { ttl: 99, ..control::Defaults::default() };
    state.set_defaults(defaults);
    assert_eq!(table(&state.build()).unwrap().tunnel.ttl, tables::Ttl::Fixed(99));
    let is_martian = |state: &mut State| state.build().snapshot.is_martian_source(LOCAL);
    assert!(is_martian(&mut state));
    state.set_defaults(control::Defaults { accept_local: true, ..defaults });
    assert!(!is_martian(&mut state));
    state.set_defaults(defaults);
    assert!(is_martian(&mut state));
}

#[test]
fn a_path_mtu_limits_frames_until_it_is_gone() {
    // For every value of DF: without it the kernel fragments, with it the host gets an ICMP error.
    (0..3).for_each(path_mtu_limits_frames);
}

fn path_mtu_limits_frames(df: u8) {
    let mut state = leaf_and_vtep_of(Vxlan { df, ..vxlan_of(VNI) });
    let limit = |state: &mut State| state.build().plan.vnis[&Netdev(VXLAN)].frame_limit;
    assert_eq!(limit(&mut state), 1500 - 36);
    let path = |ifindex| Path { vtep: ip("10.0.0.12"), local: LOCAL, ifindex };
    let all = BTreeSet::from([path(UP1), path(UP2)]);
    assert_eq!(state.paths(None), all);
    assert_eq!(state.paths(Some(&BTreeSet::from([ip("10.0.0.12")]))), all);
    assert!(state.paths(Some(&BTreeSet::from([ip("10.0.0.99")]))).is_empty(), "no VTEP");
    state.set_path_mtus(&BTreeMap::from([(ip("10.0.0.12"), 1400), (ip("10.0.0.99"), 600)]));
    assert_eq!(limit(&mut state), 1400 - 36);
    state.set_path_mtus(&BTreeMap::from([(ip("10.0.0.12"), 9000)]));
    assert_eq!(limit(&mut state), 1500 - 36, "the interface's own still counts");
    state.set_path_mtus(&BTreeMap::new());
    assert_eq!(limit(&mut state), 1500 - 36);
}

#[test]
fn zebras_unknown_netdev_is_found_by_vni_and_bridge() {
    let second = 20;
    let told_by_zebra = |master| {
        let Message::Fdb(_, entry) = zebra_mac(New, mac(1), "10.0.0.12") else { panic!() };
        Message::Fdb(New, netlink::FdbEntry { ifindex: 999, master, ..entry })
    };
    // One netdev has the VNI.
    let mut state = leaf_and_vtep();
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
    state.fpm_connected();
    zebra(&mut state, [told_by_zebra(None)]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    // Two netdevs have it, with different UDP ports: the bridge decides. Without a bridge, neither
    // is chosen.
    let other = Vxlan { destination_port: 4790, ..vxlan_of(VNI) };
    for (master, found) in [(Some(BRIDGE), true), (Some(second), false), (None, false)] {
        let mut state = leaf_and_vtep();
        apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
        apply(&mut state, [link(bridge(second, "br2")), link(vxlan(21, second, other.clone()))]);
        state.fpm_connected();
        zebra(&mut state, [told_by_zebra(master)]);
        assert_eq!(behind(&state.build(), mac(1)).is_some(), found, "{master:?}");
    }
}
