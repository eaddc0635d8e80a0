//! The mark by which the kernel looks up a route for each frame that it encapsulates. It is set only
//! where no rule, packet filter or policy may look at it.

#![cfg(test)]

mod world;

use std::collections::{BTreeMap, BTreeSet};

use control::{Change, Datapath, Namespace, Settings, StandaloneVni, State, VniSettings};
use netlink::{
    BaseChain, Dump, Effect, Link, LinkKind, Message, PacketRule, Rule, RuleChain, RuleHook,
    RuleSet, Test, Vxlan,
};
use path::Policy;
use world::*;

/// A leaf with a remote VTEP behind two next hops, whose kernel has reported rules and IPsec
/// policies.
fn leaf_and_vtep_of(attributes: Vxlan) -> State {
    let vtep = [remote(New, mac(1), "10.0.0.12")];
    let mut state = state_after(leaf_with(attributes).into_iter().chain(underlay()).chain(vtep));
    set_rules(&mut state, &Rule::defaults());
    state.resync(Dump::IpsecPolicies, Vec::new());
    state
}

fn set_rules(state: &mut State, rules: &[Rule]) {
    state.resync(Dump::Rules, rules.iter().cloned().map(|rule| Message::Rule(New, rule)).collect());
}

fn slug(state: &mut State) -> Option<&'static str> {
    why_left(&state.build(), VXLAN).map(|reason| reason.slug())
}

fn marks(state: &mut State) -> bool {
    state.build().plan.choices[&VXLAN].route_per_frame
}

/// No mark is set if rules or policies may match on it.
#[test]
fn frames_get_no_mark_where_it_may_be_read() {
    let with = |options: &[&'static str]| {
        leaf_and_vtep_of(Vxlan { options: options.to_vec(), ..vxlan_of(VNI) })
    };
    let mut state = with(&["proxy"]);
    assert_eq!(slug(&mut state), Some("options"));
    assert!(marks(&mut state), "there are two next hops");
    let rule = Rule { priority: 100, table: 100, others: vec!["fwmark"], ..Rule::default() };
    let [first, rest @ ..] = Rule::defaults();
    set_rules(&mut state, &[vec![first, rule], rest.to_vec()].concat());
    assert_eq!(slug(&mut state), Some("options"), "of several reasons one is told");
    assert!(!marks(&mut state));
    assert!(!marks(&mut with(&["gbp"])), "the mark is the group policy");
}

/// Leaves on which a VNI with two next hops stays with the kernel for each kind of reason.
fn leaves_with_marks() -> Vec<(&'static str, State)> {
    let (base, of) = (vxlan_of(VNI), leaf_and_vtep_of);
    let changed = |messages: Vec<Message>| {
        let mut state = of(vxlan_of(VNI));
        apply(&mut state, messages);
        state
    };
    let netdev = || vxlan(VXLAN, BRIDGE, vxlan_of(VNI));
    let mut chosen = of(base.clone());
    let kernel = VniSettings { datapath: Datapath::Kernel, ..VniSettings::default() };
    chosen.reload(Settings { default: kernel, ..Settings::default() }, Namespace::default());
    let aware = netlink::Bridge { vlan_filtering: true, ..netlink::Bridge::default() };
    let aware = Link { kind: LinkKind::Bridge(aware), ..bridge(BRIDGE, "br10010") };
    let mut entry = remote_of(VXLAN, mac(7), "10.0.0.12");
    entry.port = Some(4790);
    let twin = vxlan(77, 78, vxlan_of(VNI));
    vec![
        ("kernel-datapath", chosen),
        ("options", of(Vxlan { options: vec!["proxy"], ..base.clone() })),
        ("external", of(Vxlan { external: true, id: 0, ..base.clone() })),
        ("vni-filter", of(Vxlan { vni_filter: true, ..base.clone() })),
        ("vni-zero", of(Vxlan { id: 0, ..base.clone() })),
        ("no-local-address", of(Vxlan { local: None, ..base.clone() })),
        ("multicast-group", of(Vxlan { remote: Some(ip("239.1.1.1")), ..base.clone() })),
        ("lower-device", of(Vxlan { link: Some(UP1), ..base.clone() })),
        ("unknown-option", of(Vxlan { unknown: vec![99], ..base })),
        ("not-in-bridge", changed(vec![link(Link { master: None, ..netdev() })])),
        ("vlan-aware-bridge", changed(vec![link(aware)])),
        ("netdev-qdisc", changed(vec![link(Link { qdisc: "tbf".into(), ..netdev() })])),
        ("fdb-entry", changed(vec![Message::Fdb(New, entry)])),
        ("local-address-missing", changed(vec![local_address(Delete)])),
        ("duplicate", changed(vec![link(bridge(78, "br78")), link(twin)])),
    ]
}

/// Of a netdev with many VNIs, the kernel chooses the ports of those that the user left to it, and of
/// all if vtepd has VNIs of its own.
#[test]
fn a_netdev_with_many_vnis_gets_ports_for_those_that_are_wanted() {
    let policies_after = |settings: Settings, change: Option<Change>| {
        let mut state = leaf_and_vtep_of(Vxlan { external: true, id: 0, ..vxlan_of(VNI) });
        state.reload(settings, Namespace::default());
        state.build();
        change.into_iter().for_each(|change| state.change(&change).unwrap());
        let update = state.build();
        let choice = update.plan.choices.get(&VXLAN)?;
        let of = |number| choice.vnis.get(&vni(number)).unwrap_or(&choice.entropy).policy();
        Some([10, 20, 30].map(of))
    };
    let policies = |settings| policies_after(settings, None);
    let one = |number| BTreeSet::from([vni(number)]);
    let own = BTreeMap::from([10, 20].map(|number| {
        (vni(number), VniSettings { policy: Policy::QpBins, ..VniSettings::default() })
    }));
    let settings = Settings { vnis: own, ..Settings::default() };
    let [bins, hash, kernel] = [Policy::QpBins, Policy::QpHash, Policy::FiveTuple];
    assert_eq!(policies(settings.clone()), Some([bins, bins, hash]));
    let detached = policies_after(settings.clone(), Some(Change::Detach(vni(30))));
    assert_eq!(detached, Some([bins, bins, kernel]));
    let excluded = Settings { exclude: one(20), ..settings.clone() };
    assert_eq!(policies(excluded), Some([bins, kernel, hash]));
    let included = Settings { include: Some(one(10)), ..settings.clone() };
    assert_eq!(policies(included), Some([bins, kernel, kernel]));
    let standalone = vec![StandaloneVni {
        vni: vni(40),
        local: ip("10.0.0.1"),
        destination_port: 4789,
        remotes: BTreeSet::new(),
        macs: BTreeMap::new(),
    }];
    let mut state = state_with(Settings { standalone, ..settings });
    apply(&mut state, leaf_with(Vxlan { external: true, id: 0, ..vxlan_of(VNI) }));
    assert!(state.build().plan.choices.is_empty());
}

/// No mark is set if a packet filter may match on it, whatever the reason is why the kernel forwards.
#[test]
fn frames_get_no_mark_that_a_packet_filter_may_read() {
    let filters = |hook, tests, effect| {
        let base = Some(BaseChain { hook, devices: Vec::new(), drops: false });
        let rules = vec![PacketRule { handle: 1, tests, effect }];
        let (table, name) = ("t".to_owned(), "c".to_owned());
        RuleSet::new(vec![RuleChain { family: "ip", table, name, base, rules }], None)
    };
    // `meta mark != 0 drop`, and the two rules of kube-proxy's chain KUBE-POSTROUTING.
    let read = [
        filters(RuleHook::Output, vec![Test::Unknown], Effect::Other),
        filters(RuleHook::Postrouting, vec![Test::Unknown], Effect::Return),
        filters(RuleHook::Postrouting, vec![], Effect::Other),
        RuleSet::new(Vec::new(), Some("the rules cannot be read".to_owned())),
    ];
    let unread = filters(RuleHook::Input, vec![], Effect::Accept);
    for (reason, mut state) in leaves_with_marks() {
        assert_eq!(slug(&mut state), Some(reason));
        assert!(marks(&mut state), "{reason}: there are two next hops");
        for filters in &read {
            state.set_packet_filters(filters.clone());
            assert_eq!(slug(&mut state), Some(reason), "of several reasons one is told");
            assert!(!marks(&mut state), "{reason}: {filters:?}");
        }
        state.set_packet_filters(unread.clone());
        assert!(marks(&mut state), "{reason}: nothing reads it");
    }
}
