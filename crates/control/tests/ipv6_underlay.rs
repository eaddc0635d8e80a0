//! VNIs with an IPv6 underlay: which are taken over, with which settings.
#![cfg(test)]

mod world;

use std::collections::BTreeMap;

use control::{
    Filters, FlowLabelSource, Ipv6Interface, KernelOnlyReason, Namespace, Settings, State,
    UnusableRoute, VniSettings,
};
use netlink::{Address, Dump, Message, Operation, Rule, Vxlan};
use tables::{FlowLabel, Ttl, Tunnel};
use world::*;

const LOCAL6: &str = "2001:db8::11";
const REMOTE6: &str = "2001:db8::12";

/// A leaf whose netdev has an IPv6 address, with one VTEP behind both uplinks.
fn leaf(attributes: Vxlan) -> State {
    let local = Some(ip(LOCAL6));
    let mut state =
        state_after(leaf_with(Vxlan { local, udp6_zero_checksum_rx: true, ..attributes }));
    apply(&mut state, underlay());
    apply(
        &mut state,
        [
            Message::Address(
                New,
                Address { ifindex: UP1, address: ip(LOCAL6), prefix_length: 128 },
            ),
            add_route("2001:db8::12/128", &[via(UP1, "fe80::1"), via(UP2, "fe80::2")]),
            remote(New, mac(1), REMOTE6),
            flood(New, REMOTE6),
        ],
    );
    let rules = Rule::defaults().into_iter().chain(Rule::ipv6_defaults());
    let rules = rules.map(|rule| Message::Rule(Operation::New, rule)).collect();
    state.resync(Dump::Rules, rules);
    state
}

fn interfaces(limits: [u8; 2]) -> BTreeMap<u32, Ipv6Interface> {
    let of = |hop_limit| Ipv6Interface { hop_limit, mtu: 1500 };
    [UP1, UP2].into_iter().zip(limits.map(of)).collect()
}

fn tunnel(state: &mut State) -> Tunnel {
    let update = state.build();
    let table = update.snapshot.vnis().next().expect("a VNI that is taken over");
    table.tunnel.clone()
}

#[test]
fn a_vni_is_taken_over_once_the_settings_of_its_uplinks_are_known() {
    let mut state = leaf(Vxlan { label: 0x12345, ..vxlan_of(VNI) });
    let reason = why_left(&state.build(), VXLAN);
    assert!(
        matches!(
            reason,
            Some(KernelOnlyReason::Underlay { obstacle: UnusableRoute::Ipv6Settings { .. }, .. })
        ),
        "{reason:?}"
    );
    assert_eq!(state.ipv6_uplinks().into_keys().collect::<Vec<_>>(), [UP1, UP2]);
    state.set_ipv6_interfaces(interfaces([77, 77]));
    assert_eq!(why_left(&state.build(), VXLAN), None);
    let told = tunnel(&mut state);
    assert_eq!((told.local, told.flow_label), (ip(LOCAL6), FlowLabel::Fixed(0x12345)));
    assert_eq!(
        (told.ttl, told.udp_checksum, told.accepts_no_checksum),
        (Ttl::Fixed(77), true, true)
    );
    // The overhead of IPv6 counts against the MTU.
    let update = state.build();
    let taken = update.plan.vnis.values().next().unwrap();
    assert_eq!(taken.frame_limit, 1500 - 56);
    let vtep = update.snapshot.vteps().next().unwrap();
    assert_eq!((vtep.address, vtep.paths.next_hops().len()), (ip(REMOTE6), 2));
}

/// A label of the netdev stays. With label 0, the setting decides.
#[test]
fn the_flow_label_is_the_netdevs_or_the_source_port() {
    use FlowLabelSource::{Netdev, SourcePort};
    for (source, label, expected) in [
        (SourcePort, 0, FlowLabel::SourcePort),
        (SourcePort, 0x12345, FlowLabel::Fixed(0x12345)),
        (Netdev, 0, FlowLabel::Fixed(0)),
        (Netdev, 0x12345, FlowLabel::Fixed(0x12345)),
    ] {
        let mut state = leaf(Vxlan { label, ..vxlan_of(VNI) });
        let default = VniSettings { flow_label: source, ..VniSettings::default() };
        state.reload(Settings { default, ..Settings::default() }, Namespace::default());
        state.set_ipv6_interfaces(interfaces([64, 64]));
        assert_eq!(tunnel(&mut state).flow_label, expected, "{source:?} {label:#x}");
    }
}

#[test]
fn different_hop_limits_matter_only_without_a_ttl() {
    for (ttl, left) in [(0, true), (9, false)] {
        let mut state = leaf(Vxlan { ttl, ..vxlan_of(VNI) });
        state.set_ipv6_interfaces(interfaces([64, 32]));
        assert_eq!(why_left(&state.build(), VXLAN).is_some(), left, "{ttl}");
    }
}

#[test]
fn what_cannot_be_followed_leaves_the_vni_with_the_kernel() {
    type Change<'a> = (&'a str, &'a dyn Fn(&mut State));
    let changes: [Change<'_>; 3] = [
        ("packet filters", &|state| {
            state.set_filters(Filters { ipv6: true, ..Filters::default() });
        }),
        ("a routing rule", &|state| {
            let rule = Rule { priority: 5, table: 7, ..Rule::ipv6_defaults()[1].clone() };
            let rules = Rule::defaults().into_iter().chain(Rule::ipv6_defaults()).chain([rule]);
            let rules = rules.map(|rule| Message::Rule(Operation::New, rule)).collect();
            state.resync(Dump::Rules, rules);
        }),
        ("a VTEP with an IPv4 address", &|state| {
            apply(state, [remote(New, mac(2), "10.0.0.12")]);
        }),
    ];
    for (what, change) in changes {
        let mut state = leaf(vxlan_of(VNI));
        state.set_ipv6_interfaces(interfaces([64, 64]));
        assert_eq!(why_left(&state.build(), VXLAN), None);
        change(&mut state);
        assert!(why_left(&state.build(), VXLAN).is_some(), "{what}");
    }
}
