//! Which vxlan netdevs are taken over, with which configuration, and the reasons for the others.

#![cfg(test)]

mod world;

use std::collections::{BTreeMap, BTreeSet};

use control::{
    KernelOnlyReason, Namespace, Settings, State, UnsupportedEntry, UnusableRoute, VniSettings,
};
use netlink::{Dump, FdbEntry, Link, LinkKind, Mdb, Message, NextHop, NextHopKind, Qdisc, Vxlan};
use path::{Bins, Policy, SourcePortRange};
use tables::{DontFragment, Tos, Ttl, VniIndex};
use wire::MacAddr;
use world::*;

/// Why a leaf with these attributes of its only vxlan netdev leaves it to the kernel.
fn left_for(attributes: Vxlan) -> Option<KernelOnlyReason> {
    why_left(&state_after(leaf_with(attributes)).build(), VXLAN)
}

/// The same for a leaf whose vxlan netdev or bridge has this link.
fn left_with(changed: Link) -> Option<KernelOnlyReason> {
    why_left(&state_after(leaf().into_iter().chain([link(changed)])).build(), VXLAN)
}

fn left_by(settings: Settings) -> Option<KernelOnlyReason> {
    let mut state = state_with(settings);
    apply(&mut state, leaf());
    why_left(&state.build(), VXLAN)
}

/// Why a leaf with one more FDB entry leaves its VNI to the kernel. Without the entry the VNI must
/// be taken over again.
fn left_by_entry(entry: &FdbEntry) -> Option<KernelOnlyReason> {
    let mut state = state_after(leaf());
    apply(&mut state, [Message::Fdb(New, entry.clone())]);
    let reason = why_left(&state.build(), VXLAN);
    apply(&mut state, [Message::Fdb(Delete, entry.clone())]);
    assert_eq!(why_left(&state.build(), VXLAN), None, "it is taken again once the entry is gone");
    reason
}

fn base() -> Vxlan {
    vxlan_of(VNI)
}

#[test]
fn a_plain_netdev_is_taken_and_its_attributes_are_followed() {
    let mut state = state_after(leaf());
    let update = state.build();
    let plan = &update.plan.vnis[&Netdev(VXLAN)];
    assert_eq!((plan.vni, plan.name.as_str(), plan.local), (vni(VNI), "vx10010", LOCAL));
    assert_eq!((plan.destination_port, plan.frame_limit), (4789, 65_535));
    let tunnel = &table(&update).unwrap().tunnel;
    assert_eq!((tunnel.ttl, tunnel.tos), (Ttl::Fixed(64), Tos::Fixed(0)), "the kernel's defaults");
    assert_eq!((tunnel.df, tunnel.udp_checksum), (DontFragment::Unset, true));

    let changed = Vxlan {
        ttl: 7,
        tos: 0x14,
        df: 1,
        udp_checksum: false,
        source_ports: (5000, 6000),
        ..base()
    };
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, changed))]);
    let update = state.build();
    assert_eq!(update.plan.vnis[&Netdev(VXLAN)].index, plan.index, "still the same VNI");
    let tunnel = &table(&update).unwrap().tunnel;
    assert_eq!((tunnel.ttl, tunnel.tos), (Ttl::Fixed(7), Tos::Fixed(0x14)));
    assert_eq!((tunnel.df, tunnel.udp_checksum), (DontFragment::Set, false));

    let inheriting = Vxlan { ttl_inherit: true, tos: 1, df: 2, ..base() };
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, inheriting))]);
    let update = state.build();
    let tunnel = &table(&update).unwrap().tunnel;
    assert_eq!((tunnel.ttl, tunnel.tos), (Ttl::Inherit { default: 64 }, Tos::Inherit));
    assert_eq!(tunnel.df, DontFragment::Inherit);
}

#[test]
fn the_namespaces_defaults_and_the_netdevs_ports_are_those_of_five_tuple() {
    let five_tuple = VniSettings { policy: Policy::FiveTuple, ..VniSettings::default() };
    let settings = Settings { default: five_tuple, ..Settings::default() };
    let local_ports = SourcePortRange::try_from((40_000, 50_000)).unwrap();
    let defaults = control::Defaults { ttl: 99, local_ports, ..control::Defaults::default() };
    let mut state = State::new(settings, Namespace { defaults, ..Namespace::default() });
    apply(&mut state, leaf());
    let update = state.build();
    assert_eq!(table(&update).unwrap().tunnel.ttl, Ttl::Fixed(99));
    assert_eq!(table(&update).unwrap().entropy.range(), local_ports);
    let attributes = Vxlan { source_ports: (5000, 6000), ..base() };
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, attributes))]);
    assert_eq!(
        table(&state.build()).unwrap().entropy.range(),
        SourcePortRange::try_from((5000, 6000)).unwrap()
    );
}

#[test]
fn settings_of_one_vni_override_the_default_and_reload_live() {
    let mut state = state_after(leaf());
    assert_eq!(table(&state.build()).unwrap().entropy.policy(), Policy::QpHash);
    let own = VniSettings {
        policy: Policy::QpBins,
        ttl: Some(3),
        strict_vtep: true,
        ..VniSettings::default()
    };
    let settings = Settings { vnis: BTreeMap::from([(vni(VNI), own)]), ..Settings::default() };
    state.reload(settings, Namespace::default());
    assert!(state.is_dirty());
    let update = state.build();
    let table = table(&update).unwrap();
    assert_eq!((table.entropy.policy(), table.tunnel.ttl), (Policy::QpBins, Ttl::Fixed(3)));
    assert!(table.strict_vtep);
    let excluding = Settings { exclude: BTreeSet::from([vni(VNI)]), ..Settings::default() };
    state.reload(excluding, Namespace::default());
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::Excluded));
}

#[test]
fn the_configuration_decides_first() {
    let only =
        |number| Settings { include: Some(BTreeSet::from([vni(number)])), ..Settings::default() };
    assert_eq!(left_by(only(VNI)), None);
    assert_eq!(left_by(only(VNI + 1)), Some(KernelOnlyReason::NotIncluded));
    let excluding =
        |number| Settings { exclude: BTreeSet::from([vni(number)]), ..Settings::default() };
    assert_eq!(left_by(excluding(VNI + 1)), None);
    assert_eq!(left_by(excluding(VNI)), Some(KernelOnlyReason::Excluded));
    let impossible = VniSettings {
        policy: Policy::QpBins,
        bins: Bins::try_from(11).unwrap(),
        source_ports: SourcePortRange::try_from((50_000, 50_009)).unwrap(),
        ..VniSettings::default()
    };
    let reason = left_by(Settings { default: impossible, ..Settings::default() });
    assert!(matches!(reason, Some(KernelOnlyReason::Settings(_))), "{reason:?}");
}

#[test]
fn attributes_that_are_not_honoured_are_named() {
    let group = ip("239.1.1.1");
    let (link_local, mapped) = (ip("fe80::1"), ip("::ffff:10.0.0.1"));
    for (attributes, reason) in [
        (Vxlan { external: true, id: 0, ..base() }, KernelOnlyReason::External),
        (Vxlan { external: true, vni_filter: true, ..base() }, KernelOnlyReason::External),
        (Vxlan { vni_filter: true, ..base() }, KernelOnlyReason::VniFilter),
        (Vxlan { id: 0, ..base() }, KernelOnlyReason::VniZero),
        (Vxlan { remote: Some(group), ..base() }, KernelOnlyReason::MulticastGroup { group }),
        (
            Vxlan { remote: Some(link_local), ..base() },
            KernelOnlyReason::Ipv6Underlay { address: link_local },
        ),
        (
            Vxlan { local: Some(mapped), ..base() },
            KernelOnlyReason::Ipv6Underlay { address: mapped },
        ),
        (Vxlan { local: None, ..base() }, KernelOnlyReason::NoLocalAddress),
        (Vxlan { local: Some(ip("0.0.0.0")), ..base() }, KernelOnlyReason::NoLocalAddress),
        (
            Vxlan { link: Some(UP1), ..base() },
            KernelOnlyReason::LowerDevice { device: "up1".into() },
        ),
        (
            Vxlan { options: vec!["gbp", "proxy"], ..base() },
            KernelOnlyReason::Options(vec!["gbp", "proxy"]),
        ),
        (Vxlan { df: 9, ..base() }, KernelOnlyReason::UnknownDf(9)),
    ] {
        assert_eq!(left_for(attributes.clone()), Some(reason), "{attributes:?}");
    }
    assert_eq!(left_for(Vxlan { remote: Some(ip("10.0.0.12")), link: Some(0), ..base() }), None);
}

#[test]
fn the_netdevs_place_is_named() {
    let netdev = || vxlan(VXLAN, BRIDGE, base());
    assert_eq!(left_with(down(netdev())), Some(KernelOnlyReason::Down));
    assert_eq!(left_with(no_carrier(netdev())), Some(KernelOnlyReason::Down));
    assert_eq!(left_with(Link { master: None, ..netdev() }), Some(KernelOnlyReason::NotInBridge));
    assert_eq!(
        left_with(Link { master: Some(UP1), ..netdev() }),
        Some(KernelOnlyReason::NotInBridge)
    );
    let attributes = netlink::Bridge { vlan_filtering: true, ..netlink::Bridge::default() };
    let aware = Link { kind: LinkKind::Bridge(attributes), ..bridge(BRIDGE, "br10010") };
    assert_eq!(
        left_with(aware),
        Some(KernelOnlyReason::VlanAwareBridge { bridge: "br10010".into() })
    );
}

#[test]
fn entries_that_only_the_kernel_can_follow_are_named() {
    let entry = || remote_of(VXLAN, mac(1), "10.0.0.12");
    let group = MacAddr([0x01, 0, 0x5e, 1, 1, 1]);
    for (entry, oddity) in [
        (FdbEntry { port: Some(4790), ..entry() }, UnsupportedEntry::Port(4790)),
        (FdbEntry { vni: Some(7), ..entry() }, UnsupportedEntry::Vni(7)),
        (FdbEntry { via: Some(UP1), ..entry() }, UnsupportedEntry::Via(UP1)),
        (
            FdbEntry { next_hop_id: Some(5), destination: None, ..entry() },
            UnsupportedEntry::NextHop(5),
        ),
        (FdbEntry { destination: Some(ip("0.0.0.0")), ..entry() }, UnsupportedEntry::NoDestination),
        (
            FdbEntry { destination: Some(ip("fe80::1")), ..entry() },
            UnsupportedEntry::Ipv6("fe80::1".parse().unwrap()),
        ),
        (
            FdbEntry { destination: Some(ip("ff0e::1")), ..entry() },
            UnsupportedEntry::MulticastGroup(ip("ff0e::1")),
        ),
        (
            FdbEntry { destination: Some(ip("239.1.1.1")), ..entry() },
            UnsupportedEntry::MulticastGroup(ip("239.1.1.1")),
        ),
        (
            FdbEntry { destination: Some(ip("255.255.255.255")), ..entry() },
            UnsupportedEntry::MulticastGroup(ip("255.255.255.255")),
        ),
        (FdbEntry { mac: group, ..entry() }, UnsupportedEntry::Group),
        (FdbEntry { mac: MacAddr::ZERO, vni: Some(7), ..entry() }, UnsupportedEntry::Vni(7)),
    ] {
        let mac = entry.mac;
        assert_eq!(
            left_by_entry(&entry),
            Some(KernelOnlyReason::FdbEntry { mac, oddity }),
            "{entry:?}"
        );
    }
    assert_eq!(left_by_entry(&entry()), None);
}

/// The kernel tells them apart by all of these.
#[test]
fn flood_entries_with_one_destination_are_several() {
    let flood = || FdbEntry { mac: MacAddr::ZERO, ..remote_of(VXLAN, mac(1), "10.0.0.12") };
    let all = [
        FdbEntry { port: Some(4790), ..flood() },
        FdbEntry { port: Some(4791), ..flood() },
        FdbEntry { vni: Some(7), ..flood() },
        FdbEntry { via: Some(UP1), ..flood() },
    ];
    let mut state = state_after(leaf());
    apply(&mut state, all.iter().cloned().map(|entry| Message::Fdb(New, entry)));
    for entry in all {
        assert!(why_left(&state.build(), VXLAN).is_some(), "{entry:?}");
        apply(&mut state, [Message::Fdb(Delete, entry)]);
    }
    assert_eq!(why_left(&state.build(), VXLAN), None);
}

/// The kernel removes them without a notification.
#[test]
fn entries_are_read_again_when_their_next_hop_object_is_deleted() {
    let mut state = state_after(leaf());
    let entry = remote_of(VXLAN, mac(1), "10.0.0.12");
    let entry = FdbEntry { next_hop_id: Some(5), destination: None, ..entry };
    apply(&mut state, [Message::Fdb(New, entry)]);
    let wants = |state: &mut State, id| {
        state.build();
        state.take_wanted_dumps();
        let gone = NextHop { id, kind: NextHopKind::Other };
        apply(state, [Message::NextHop(Delete, gone)]);
        state.take_wanted_dumps().contains(&Dump::Fdb)
    };
    assert!(!wants(&mut state, 6) && wants(&mut state, 5));
}

/// A macvlan interface makes its bridge promiscuous, of which the kernel says nothing.
#[test]
fn a_bridge_is_read_again_when_an_interface_on_it_changes() {
    let mut state = state_after(leaf());
    let wants = |state: &mut State, lower| {
        state.build();
        state.take_wanted_dumps();
        let upper = Link { link: Some(lower), ..ethernet(77 + lower, "mv0") };
        apply(state, [link(upper)]);
        state.take_wanted_dumps().contains(&Dump::Links)
    };
    assert!(!wants(&mut state, UP1) && wants(&mut state, BRIDGE));
    assert!(!wants(&mut state, BRIDGE), "nothing has changed");
    apply(&mut state, [Message::Link(Delete, ethernet(77 + BRIDGE, "mv0"))]);
    assert!(state.take_wanted_dumps().contains(&Dump::Links), "it may listen no more");
    // The index of the bridge is another interface in another namespace.
    let elsewhere = Link { link: Some(BRIDGE), link_namespace: Some(0), ..ethernet(78, "veth0") };
    apply(&mut state, [link(elsewhere)]);
    assert!(!state.take_wanted_dumps().contains(&Dump::Links));
}

#[test]
fn an_odd_entry_that_becomes_plain_is_followed_again() {
    let mut state = state_after(leaf());
    let odd = FdbEntry { port: Some(4790), ..remote_of(VXLAN, mac(1), "10.0.0.12") };
    apply(&mut state, [Message::Fdb(New, odd)]);
    assert!(why_left(&state.build(), VXLAN).is_some());
    apply(&mut state, [remote(New, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn two_netdevs_that_receive_the_same_frames_are_both_left() {
    let twin = 21;
    let mut state = state_after(leaf().into_iter().chain([
        link(bridge(20, "br2")),
        link(Link { name: "twin".into(), ..vxlan(twin, 20, base()) }),
    ]));
    let update = state.build();
    assert_eq!(
        why_left(&update, VXLAN),
        Some(KernelOnlyReason::Duplicate { other: "twin".into() })
    );
    assert_eq!(
        why_left(&update, twin),
        Some(KernelOnlyReason::Duplicate { other: "vx10010".into() })
    );
    let elsewhere = Vxlan { destination_port: 8472, ..base() };
    apply(&mut state, [link(Link { name: "twin".into(), ..vxlan(twin, 20, elsewhere) })]);
    let update = state.build();
    assert_eq!((why_left(&update, VXLAN), why_left(&update, twin)), (None, None));
    apply(&mut state, [link(Link { name: "twin".into(), ..vxlan(twin, 20, base()) })]);
    assert!(why_left(&state.build(), VXLAN).is_some());
    apply(&mut state, [Message::Link(Delete, vxlan(twin, 20, base()))]);
    let update = state.build();
    assert_eq!(why_left(&update, VXLAN), None);
    assert_eq!(update.left.len(), 0, "what is gone is not left");
}

#[test]
fn an_underlay_that_only_the_kernel_can_use_is_named() {
    let wireguard = Link {
        hardware_type: 65534,
        mac: None,
        kind: LinkKind::Other("wireguard".into()),
        ..ethernet(40, "wg0")
    };
    let tagged =
        Link { kind: LinkKind::Other("vlan".into()), link: Some(BRIDGE), ..ethernet(41, "svi") };
    let on_uplink =
        Link { kind: LinkKind::Other("vlan".into()), link: Some(UP1), ..ethernet(42, "up1.7") };
    let tunnel = |text: &str| UnusableRoute::Tunnel { device: text.into() };
    let cases = [
        (UP1, None),
        (
            BRIDGE,
            Some(UnusableRoute::Bridge { device: "br10010".into(), bridge: "br10010".into() }),
        ),
        (HOST, Some(UnusableRoute::BridgePort { device: "hp1".into(), bridge: "br10010".into() })),
        (43, Some(tunnel("vx43"))),
        (40, Some(UnusableRoute::NotEthernet { device: "wg0".into() })),
        (41, Some(UnusableRoute::Bridge { device: "svi".into(), bridge: "br10010".into() })),
        (42, None),
        (44, Some(UnusableRoute::NoArp { device: "mute".into() })),
    ];
    for (ifindex, obstacle) in cases {
        let mut state = state_after(leaf());
        let tunnel = Link { master: None, ..vxlan(43, 0, vxlan_of(43)) };
        let mute = Link { flags: 0x1_0043 | 0x80, ..ethernet(44, "mute") };
        let all = [wireguard.clone(), tagged.clone(), on_uplink.clone(), tunnel, mute];
        apply(&mut state, all.map(link));
        apply(
            &mut state,
            [
                add_route("10.0.0.12/32", &[via(ifindex, "10.9.0.1")]),
                remote(New, mac(1), "10.0.0.12"),
            ],
        );
        let vtep = ip("10.0.0.12");
        let reason = obstacle.map(|obstacle| KernelOnlyReason::Underlay { vtep, obstacle });
        let left = reason.is_some();
        let update = state.build();
        assert_eq!(why_left(&update, VXLAN), reason, "through interface {ifindex}");
        let uplinks: Vec<u32> = update.plan.uplinks.iter().map(|uplink| uplink.ifindex).collect();
        assert_eq!(uplinks, if left { vec![] } else { vec![ifindex] });
        assert_eq!(update.snapshot.knows_vtep(vtep), !left, "the VTEPs of VNIs left are not ours");

        apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
        assert_eq!(
            why_left(&state.build(), VXLAN),
            None,
            "only the VNI that needs this VTEP is left"
        );
        apply(&mut state, [flood(New, "10.0.0.12")]);
        assert_eq!(
            why_left(&state.build(), VXLAN).is_some(),
            left,
            "a flood entry needs it as well"
        );
    }
}

#[test]
fn a_vtep_that_is_an_own_address_or_routed_strangely_is_named() {
    let obstacle = |vtep: &str, message: Message| {
        let mut state = state_after(leaf().into_iter().chain([message, remote(New, mac(1), vtep)]));
        match why_left(&state.build(), VXLAN) {
            Some(KernelOnlyReason::Underlay { obstacle, .. }) => Some(obstacle),
            None => None,
            other => panic!("left for another reason: {other:?}"),
        }
    };
    let nothing = || Message::Other(0);
    assert_eq!(obstacle("10.0.0.11", nothing()), Some(UnusableRoute::OwnAddress));
    let typed = |table, route_type| {
        Message::Route(
            New,
            netlink::Route { table, route_type, ..route("10.0.0.12/32", &[via(UP1, "")]) },
        )
    };
    assert_eq!(obstacle("10.0.0.12", typed(255, 2)), Some(UnusableRoute::OwnAddress));
    assert_eq!(obstacle("10.0.0.12", typed(255, 3)), Some(UnusableRoute::RouteType(3)));
    assert_eq!(obstacle("10.0.0.12", typed(254, 6)), None, "a blackhole drops here and there");
    assert_eq!(obstacle("10.0.0.12", nothing()), None, "and so does a VTEP without a route");
}

#[test]
fn slots_run_out_and_become_free() {
    let mut state = state_after([]);
    let vnis = u32::from(VniIndex::MAX) + 2;
    apply(&mut state, [local_address(New), link(bridge(1, "br"))]);
    apply(&mut state, (1..=vnis).map(|vni| link(vxlan(10 + vni, 1, vxlan_of(vni)))));
    let update = state.build();
    assert_eq!(update.plan.vnis.len(), usize::from(VniIndex::MAX));
    let left: Vec<u32> = update.left.iter().map(|left| left.vni).collect();
    assert_eq!(left, [vnis - 1, vnis]);
    assert!(update.left.iter().all(|left| left.reason == KernelOnlyReason::SlotsExhausted));
    apply(&mut state, [link(down(vxlan(10 + 5, 1, vxlan_of(5))))]);
    let update = state.build();
    assert_eq!(why_left(&update, 10 + 5), Some(KernelOnlyReason::Down));
    assert_eq!(why_left(&update, 10 + vnis - 1), None);
    assert_eq!(why_left(&update, 10 + vnis), Some(KernelOnlyReason::SlotsExhausted));
    assert_eq!(update.snapshot.vnis().count(), usize::from(VniIndex::MAX));
}

#[test]
fn a_slot_is_kept_while_its_vni_is_taken() {
    let mut state = state_after(leaf());
    let slot = state.build().plan.vnis[&Netdev(VXLAN)].index;
    apply(&mut state, [link(bridge(20, "br2")), link(vxlan(5, 20, vxlan_of(5)))]);
    let update = state.build();
    assert_eq!(update.plan.vnis[&Netdev(VXLAN)].index, slot);
    assert_ne!(update.plan.vnis[&Netdev(5)].index, slot);
    apply(&mut state, [Message::Link(Delete, vxlan(5, 20, vxlan_of(5)))]);
    let update = state.build();
    assert_eq!(update.plan.vnis.keys().collect::<Vec<_>>(), [&Netdev(VXLAN)]);
    assert_eq!(update.snapshot.vnis().count(), 1);
}

#[test]
fn every_reason_reads_as_a_sentence() {
    let obstacle = UnusableRoute::Bridge { device: "svi".into(), bridge: "br0".into() };
    let left = control::LeftToKernel {
        source: Netdev(VXLAN),
        name: "vx10010".into(),
        vni: VNI,
        reason: KernelOnlyReason::Underlay { vtep: ip("10.0.0.12"), obstacle },
    };
    assert_eq!(
        left.to_string(),
        "vx10010 (VNI 10010) stays with kernel VXLAN: its remote VTEP 10.0.0.12 is routed through svi, which lies on bridge br0"
    );
}

#[test]
fn a_vni_that_no_netdev_has_is_missed_until_one_comes() {
    let named = |vnis: &[u32]| Settings {
        include: Some(vnis.iter().copied().map(vni).collect()),
        ..Settings::default()
    };
    let mut state = state_with(named(&[VNI, 10099]));
    assert_eq!(
        *state.build().missing,
        BTreeSet::from([vni(VNI), vni(10099)]),
        "nothing is there at all"
    );
    apply(&mut state, leaf());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10099)]));
    apply(&mut state, [link(vxlan(77, BRIDGE, vxlan_of(10099)))]);
    let update = state.build();
    assert!(update.missing.is_empty() && update.plan.vnis.contains_key(&Netdev(77)), "{update:?}");
    // A netdev that carries many VNIs may carry those that have settings of their own.
    let own = BTreeMap::from([(vni(10096), VniSettings::default())]);
    state.reload(Settings { vnis: own, ..Settings::default() }, Namespace::default());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10096)]));
    let many = vxlan(78, BRIDGE, Vxlan { external: true, id: 0, ..vxlan_of(VNI) });
    apply(&mut state, [link(many.clone())]);
    assert!(state.build().missing.is_empty());
    apply(&mut state, [Message::Link(Delete, many)]);
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10096)]));
    state.reload(named(&[VNI, 10098]), Namespace::default());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10098)]));
    state.reload(named(&[VNI, 10097]), Namespace::default());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10097)]), "nothing else changed");
    apply(&mut state, [Message::Link(Delete, vxlan(VXLAN, BRIDGE, base()))]);
    assert_eq!(*state.build().missing, BTreeSet::from([vni(VNI), vni(10097)]));

    // VNIs with settings of their own are expected as well, except excluded ones.
    let vnis = [10095, 10096].map(|number| (vni(number), VniSettings::default()));
    let own = Settings { vnis: vnis.into(), exclude: [vni(10095)].into(), ..Settings::default() };
    state.reload(own.clone(), Namespace::default());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10096)]));
    state.reload(Settings { include: Some([vni(10094)].into()), ..own }, Namespace::default());
    assert_eq!(*state.build().missing, BTreeSet::from([vni(10094)]));
}

/// Redirected frames do not pass the root queueing discipline of the netdev.
#[test]
fn a_netdev_whose_queueing_discipline_delays_or_drops_frames_is_left_until_it_goes() {
    let qdisc = |kind: &str| Qdisc { ifindex: VXLAN, kind: kind.into() };
    let left = |kind: &str| Some(KernelOnlyReason::NetdevQdisc { kind: kind.into() });
    for kind in ["tbf", "netem", "htb", "cake", "fq", "hfsc"] {
        let before = Link { qdisc: kind.into(), ..vxlan(VXLAN, BRIDGE, base()) };
        assert_eq!(left_with(before), left(kind), "there before the start");
        let mut state = state_after(leaf());
        apply(&mut state, [Message::Qdisc(New, qdisc(kind))]);
        assert_eq!(why_left(&state.build(), VXLAN), left(kind), "added later");
        apply(&mut state, [Message::Qdisc(Delete, qdisc(kind))]);
        assert_eq!(why_left(&state.build(), VXLAN), None, "{kind} is gone");
    }
    for kind in ["noqueue", "pfifo_fast", "fq_codel"] {
        assert_eq!(
            left_with(Link { qdisc: kind.into(), ..vxlan(VXLAN, BRIDGE, base()) }),
            None,
            "{kind}"
        );
    }
    // The queueing discipline of another interface does not matter.
    let mut state = state_after(leaf());
    apply(&mut state, [Message::Qdisc(New, Qdisc { ifindex: UP1, kind: "tbf".into() })]);
    assert_eq!(why_left(&state.build(), VXLAN), None);
}

/// After a deletion, only a dump shows how many entries are left.
#[test]
fn a_netdev_with_multicast_entries_is_left_until_the_last_one_goes() {
    let mdb = |operation, ifindex| Message::Mdb(operation, Mdb { ifindex, entries: 1 });
    let mut state = State::new(Settings::default(), Namespace::default());
    // The dump of links comes first, but a notification may precede it.
    apply(&mut state, [mdb(New, VXLAN)]);
    apply(&mut state, leaf());
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::VxlanMdb));
    state.take_wanted_dumps();
    apply(&mut state, [mdb(Delete, VXLAN)]);
    assert_eq!(state.take_wanted_dumps(), [Dump::Mdb]);
    state.resync(Dump::Mdb, vec![mdb(New, VXLAN)]);
    assert_eq!(
        why_left(&state.build(), VXLAN),
        Some(KernelOnlyReason::VxlanMdb),
        "there is another one"
    );
    assert_eq!(state.resync(Dump::Mdb, vec![]).swept, 1);
    assert_eq!(why_left(&state.build(), VXLAN), None);
    // Multicast entries of a bridge do not matter.
    apply(&mut state, [mdb(New, BRIDGE), mdb(Delete, BRIDGE)]);
    assert_eq!(why_left(&state.build(), VXLAN), None);
    assert!(!state.take_wanted_dumps().contains(&Dump::Mdb));
    // Another netdev may get the index.
    apply(&mut state, [mdb(New, VXLAN)]);
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::VxlanMdb));
    apply(&mut state, [Message::Link(Delete, vxlan(VXLAN, BRIDGE, base()))]);
    state.build();
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, base()))]);
    assert_eq!(why_left(&state.build(), VXLAN), None);
}
