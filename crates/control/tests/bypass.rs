//! Which host ports have the bridge bypass, which addresses it is used for, and the order of
//! changes.

#![cfg(test)]

mod world;

use std::time::Duration;

use control::{Filters, Namespace, NoBypass, Settings, State, Update};
use netlink::{Bridge, BridgePort, Dump, FdbEntry, Link, LinkKind, Message, Qdisc};
use tables::{MacLocation, MacLocationChange, VniIndex, VtepIndex};
use wire::MacAddr;
use world::*;

fn host_port() -> Link {
    host_port_with(FORWARDING)
}

fn netdev() -> Link {
    Link { bridge_port: Some(FORWARDING), ..vxlan(VXLAN, BRIDGE, vxlan_of(VNI)) }
}

fn settings() -> Settings {
    Settings { bypass: true, ..Settings::default() }
}

fn off() -> Settings {
    Settings { bypass: false, ..Settings::default() }
}

/// A leaf whose host port has the bypass, with host 1 on that port and host 2 behind a VTEP.
fn leaf_with_hosts() -> State {
    let mut state = state_with(settings());
    apply(&mut state, leaf());
    apply(&mut state, [link(host_port()), link(netdev())]);
    apply(&mut state, underlay());
    apply(
        &mut state,
        [bridged(New, HOST, mac(1)), bridged(New, VXLAN, mac(2)), remote(New, mac(2), "10.0.0.12")],
    );
    state
}

fn here(last: u8) -> MacLocation {
    MacLocation::Port { port: HOST, index: ANY_VNI, mac: mac(last) }
}

fn there(update: &Update, last: u8) -> MacLocation {
    let index = update.plan.vnis[&Netdev(VXLAN)].index;
    MacLocation::Remote { index, vtep: ANY_VTEP, mac: mac(last) }
}

/// Instead of what tests do not look at.
const ANY_VNI: VniIndex = VniIndex::new(1).unwrap();
const ANY_VTEP: VtepIndex = VtepIndex(0);

/// The locations that appeared (true) or were left (false) since the last call, without the VNI of a
/// port and without the VTEP.
fn changes(state: &mut State) -> Vec<(MacLocation, bool)> {
    state.build_if_dirty();
    state
        .take_mac_locations()
        .iter()
        .map(|MacLocationChange { location, there }| {
            let location = match *location {
                MacLocation::Port { port, mac, .. } => {
                    MacLocation::Port { port, index: ANY_VNI, mac }
                }
                MacLocation::Remote { index, mac, .. } => {
                    MacLocation::Remote { index, vtep: ANY_VTEP, mac }
                }
            };
            (location, *there)
        })
        .collect()
}

fn reason(state: &mut State) -> Option<NoBypass> {
    let update = state.build();
    let port =
        update.ports.iter().find(|port| port.ifindex == HOST).expect("a port of a VNI taken over");
    let planned = update.plan.ports.get(&HOST);
    assert_eq!(port.reason.is_none(), planned.is_some_and(|port| port.sends));
    assert!(planned.is_none_or(|port| port.sends || !port.delivers));
    port.reason
}

/// The reason after these messages. It must go when the port and the netdev are as before.
fn without_for(messages: impl IntoIterator<Item = Message>) -> Option<NoBypass> {
    let mut state = leaf_with_hosts();
    assert_eq!(reason(&mut state), None);
    assert_eq!(state.take_mac_locations().len(), 2);
    apply(&mut state, messages);
    let without = reason(&mut state);
    if without.is_some() {
        let update = state.published().clone();
        let left = [(here(1), false), (there(&update, 2), false)];
        assert_eq!(changes(&mut state), left, "nothing is known without a port to use it");
    }
    apply(&mut state, [link(host_port()), link(netdev()), link(bridge(BRIDGE, "br10010"))]);
    assert_eq!(reason(&mut state), None);
    without
}

fn option(change: impl Fn(&mut BridgePort)) -> Message {
    let mut option = FORWARDING;
    change(&mut option);
    link(Link { bridge_port: Some(option), ..host_port() })
}

fn attribute(change: impl Fn(&mut Bridge)) -> Message {
    let mut attributes = Bridge { ageing: 30_000, ..Bridge::default() };
    change(&mut attributes);
    link(Link { kind: LinkKind::Bridge(attributes), ..bridge(BRIDGE, "br10010") })
}

#[test]
fn a_port_has_the_bypass_unless_only_the_bridge_can_do_what_it_asks_for() {
    use NoBypass::*;
    assert_eq!(without_for([]), None);
    assert_eq!(without_for([option(|port| port.isolated = true)]), Some(Isolated));
    assert_eq!(without_for([option(|port| port.locked = true)]), Some(Locked));
    for state in [0, 1, 2, 4] {
        assert_eq!(without_for([option(|port| port.state = state)]), Some(NotForwarding(state)));
    }
    assert_eq!(without_for([option(|port| port.neighbour_suppression = true)]), None);
    assert_eq!(without_for([option(|port| port.learning = false)]), None);
    assert_eq!(without_for([link(down(host_port()))]), Some(Down));
    let vlan = LinkKind::Other("vlan".to_owned());
    assert_eq!(without_for([link(Link { kind: vlan, ..host_port() })]), Some(VlanInterface));
    let blocked = Link { bridge_port: Some(BridgePort { state: 4, ..FORWARDING }), ..netdev() };
    assert_eq!(without_for([link(blocked)]), Some(NetdevNotForwarding(4)));
    // The bridge checks the source address of frames from a locked port. It uses the backup port if
    // a port has no carrier.
    let locked = Link { bridge_port: Some(BridgePort { locked: true, ..FORWARDING }), ..netdev() };
    assert_eq!(without_for([link(locked)]), Some(NetdevLocked));
    assert_eq!(without_for([option(|port| port.backup = true)]), Some(BackupPort));
    // None of these options concerns known unicast: flooded frames, ARP and neighbour discovery
    // pass the bridge.
    for harmless in [
        |port: &mut BridgePort| port.hairpin = true,
        |port: &mut BridgePort| port.unicast_flood = false,
        |port: &mut BridgePort| port.multicast_flood = false,
        |port: &mut BridgePort| port.broadcast_flood = false,
        |port: &mut BridgePort| port.neighbour_suppression = true,
        |port: &mut BridgePort| port.isolated = true,
    ] {
        let mut option = FORWARDING;
        harmless(&mut option);
        assert_eq!(without_for([link(Link { bridge_port: Some(option), ..netdev() })]), None);
    }
    assert_eq!(without_for([attribute(|bridge| bridge.ageing = 0)]), Some(NoAgeing));
    assert_eq!(without_for([attribute(|bridge| bridge.promiscuous = true)]), Some(Promiscuous));
    assert_eq!(
        without_for([attribute(|bridge| bridge.calls_netfilter = true)]),
        None,
        "there are no tables"
    );
    // A port whose options are unknown counts as not forwarding.
    assert_eq!(without_for([link(port(ethernet(HOST, "hp1"), BRIDGE))]), Some(NotForwarding(0)));
}

/// A host from behind a VTEP may move to any port of the bridge, also to one that does not forward
/// yet or has no bypass.
#[test]
fn ports_without_the_bypass_listen_beside_those_that_have_it() {
    let mut state = leaf_with_hosts();
    let other = || port(ethernet(13, "hp2"), BRIDGE);
    let with = |change: fn(&mut BridgePort)| {
        let mut option = FORWARDING;
        change(&mut option);
        Link { bridge_port: Some(option), ..other() }
    };
    let sends = |update: &Update| update.plan.ports.get(&13).map(|port| port.sends);
    let vlan = LinkKind::Other("vlan".to_owned());
    for silent in [
        down(other()),
        other(),
        with(|port| port.state = 1),
        with(|port| port.isolated = true),
        with(|port| port.locked = true),
        Link { kind: vlan, ..with(|_| {}) },
    ] {
        apply(&mut state, [link(silent), link(quiet_netdev()), bridged(New, 13, mac(3))]);
        assert_eq!(sends(&state.build()), Some(false));
        assert_eq!(served(&mut state), [(mac(1), HOST)]);
        assert!(
            !changes(&mut state)
                .contains(&(MacLocation::Port { port: 13, index: ANY_VNI, mac: mac(3) }, true))
        );
        // It has the bypass as soon as the obstacle is gone.
        apply(&mut state, [link(with(|_| {}))]);
        assert_eq!(sends(&state.build()), Some(true));
        assert_eq!(served(&mut state), [(mac(1), HOST), (mac(3), 13)]);
        assert!(
            changes(&mut state)
                .contains(&(MacLocation::Port { port: 13, index: ANY_VNI, mac: mac(3) }, true))
        );
    }
    // If no port has the bypass, no port needs a program.
    state.set_filters(Filters { bridge: true, ..Filters::default() });
    assert!(state.build().plan.ports.is_empty());
}

#[test]
fn a_bridge_with_two_vxlan_netdevs_has_no_bypass() {
    let mut state = leaf_with_hosts();
    assert_eq!(reason(&mut state), None);
    apply(&mut state, [link(vxlan(20, BRIDGE, vxlan_of(20_020)))]);
    assert_eq!(reason(&mut state), Some(NoBypass::SeveralNetdevs));
    apply(&mut state, [Message::Link(Delete, vxlan(20, BRIDGE, vxlan_of(20_020)))]);
    assert_eq!(reason(&mut state), None);
}

#[test]
fn packet_filters_see_what_they_would() {
    let with = |filters: Filters, calls_netfilter: bool| {
        let mut state = State::new(settings(), Namespace { filters, ..Namespace::default() });
        apply(&mut state, leaf());
        apply(&mut state, [link(host_port()), link(netdev())]);
        apply(&mut state, [attribute(|bridge| bridge.calls_netfilter = calls_netfilter)]);
        reason(&mut state)
    };
    let none = Filters::default();
    assert_eq!(with(Filters { call_ip: true, ..none }, true), None, "nobody to see it");
    assert_eq!(with(Filters { ip: true, ..none }, false), None, "the bridge does not show it");
    assert_eq!(with(Filters { ip: true, ..none }, true), Some(NoBypass::PacketFilter));
    assert_eq!(
        with(Filters { ip: true, call_ip: true, ..none }, false),
        Some(NoBypass::PacketFilter)
    );
    assert_eq!(with(Filters { bridge: true, ..none }, false), Some(NoBypass::FrameFilter));
    assert_eq!(with(Filters { ebtables: true, ..none }, false), Some(NoBypass::Ebtables));
}

#[test]
fn packet_filters_that_come_later_take_it_away_and_give_it_back_when_they_go() {
    let mut state = leaf_with_hosts();
    let update = state.build();
    assert_eq!(changes(&mut state), [(here(1), true), (there(&update, 2), true)]);
    let rules = Filters { bridge: true, ..Filters::default() };
    state.set_filters(rules);
    assert_eq!(reason(&mut state), Some(NoBypass::FrameFilter));
    assert_eq!(changes(&mut state), [(here(1), false), (there(&update, 2), false)]);
    state.set_filters(rules);
    assert!(!state.is_dirty(), "nothing new");
    state.set_filters(Filters::default());
    assert_eq!(reason(&mut state), None);
    assert_eq!(changes(&mut state), [(here(1), true), (there(&update, 2), true)]);
}

#[test]
fn switched_off_and_on_again_while_it_runs() {
    let mut state = leaf_with_hosts();
    state.reload(off(), Namespace::default());
    assert_eq!(reason(&mut state), Some(NoBypass::Off));
    assert_eq!(changes(&mut state), []);
    apply(&mut state, [bridged(New, HOST, mac(3))]);
    assert!(!state.is_dirty(), "nobody asks for local addresses");
    let blocked = BridgePort { state: 4, ..FORWARDING };
    let said = Link {
        ifindex: HOST,
        bridge_port_only: true,
        bridge_port: Some(blocked),
        ..Link::default()
    };
    apply(&mut state, [link(said.clone())]);
    state.reload(settings(), Namespace::default());
    assert_eq!(
        reason(&mut state),
        Some(NoBypass::NotForwarding(4)),
        "it was said while it was off"
    );
    apply(&mut state, [link(Link { bridge_port: Some(FORWARDING), ..said })]);
    state.reload(settings(), Namespace::default());
    let update = state.build();
    assert_eq!(changes(&mut state), [(here(1), true), (here(3), true), (there(&update, 2), true)]);
    state.reload(off(), Namespace::default());
    assert_eq!(
        changes(&mut state),
        [(here(1), false), (here(3), false), (there(&update, 2), false)]
    );
    assert!(state.published().plan.ports.is_empty());
}

#[test]
fn the_frame_limit_and_the_refreshment_follow_netdev_and_bridge() {
    let mut state = leaf_with_hosts();
    let port = state.build().plan.ports[&HOST].clone();
    // The underlay's 1500 bytes without 36 bytes of headers.
    assert_eq!((port.frame_limit, port.refresh), (1464, Duration::from_secs(1)));
    apply(
        &mut state,
        [link(Link { mtu: 1400, ..netdev() }), attribute(|bridge| bridge.ageing = 300)],
    );
    let port = state.build().plan.ports[&HOST].clone();
    assert_eq!((port.frame_limit, port.refresh), (1414, Duration::from_millis(750)));
}

#[test]
fn an_address_is_where_the_bridge_and_the_vni_agree_that_it_is() {
    let mut state = leaf_with_hosts();
    let update = state.build();
    let there = |last| there(&update, last);
    assert_eq!(changes(&mut state), [(here(1), true), (there(2), true)]);
    // An address of the port itself, and one that is not authorised on a locked port.
    let own = FdbEntry { state: 0x80, ..bridged_of(HOST, mac(3)) };
    let locked = FdbEntry { flags: 0x200, ..bridged_of(HOST, mac(4)) };
    apply(&mut state, [Message::Fdb(New, own), Message::Fdb(New, locked)]);
    assert_eq!(changes(&mut state), []);
    // Only the netdev knows it, only the bridge, and then both.
    apply(&mut state, [remote(New, mac(5), "10.0.0.12"), bridged(New, VXLAN, mac(6))]);
    assert_eq!(changes(&mut state), []);
    apply(&mut state, [bridged(New, VXLAN, mac(5)), remote(New, mac(6), "10.0.0.12")]);
    assert_eq!(changes(&mut state), [(there(5), true), (there(6), true)]);
    // It moves to another VTEP, which is another location.
    let vtep_of = |state: &State, last| {
        state.published().snapshot.find_vtep(behind(state.published(), mac(last)).unwrap())
    };
    let old = vtep_of(&state, 5).unwrap();
    apply(&mut state, [remote(New, mac(5), "10.0.0.13")]);
    state.build_if_dirty();
    let new = vtep_of(&state, 5).unwrap();
    let moved: Vec<_> = state.take_mac_locations().iter().copied().collect();
    let MacLocation::Remote { index, mac: five, .. } = there(5) else { unreachable!() };
    let at = |vtep, there| MacLocationChange {
        location: MacLocation::Remote { index, vtep, mac: five },
        there,
    };
    assert!(moved.contains(&at(old, false)) && moved.contains(&at(new, true)), "{moved:?}");
    assert_eq!(moved.len(), 2);
    // It moves to a local port: it leaves one location and appears at another.
    apply(&mut state, [bridged(New, HOST, mac(5))]);
    assert_eq!(changes(&mut state), [(here(5), true), (there(5), false)]);
    assert_eq!(behind(state.published(), mac(5)), None);
    // It moves on to a port without the bypass.
    apply(&mut state, [link(port(ethernet(13, "hp2"), BRIDGE)), bridged(New, 13, mac(5))]);
    assert_eq!(changes(&mut state), [(here(5), false)]);
    // FRR reports late that a local host is behind a VTEP. Until the bridge has it on a port again,
    // it is behind no local port.
    apply(&mut state, [bridged(New, VXLAN, mac(1)), remote(New, mac(1), "10.0.0.12")]);
    assert_eq!(changes(&mut state), [(here(1), false), (there(1), true)]);
    apply(&mut state, [bridged(New, HOST, mac(1))]);
    assert_eq!(changes(&mut state), [(here(1), true), (there(1), false)]);
    apply(&mut state, [bridged(Delete, HOST, mac(1)), remote(Delete, mac(1), "10.0.0.12")]);
    assert_eq!(changes(&mut state), [(here(1), false)]);
    apply(&mut state, [remote(Delete, mac(2), "10.0.0.12")]);
    assert_eq!(changes(&mut state), [(there(2), false)]);
    // It appeared and left between two calls: only the removal is reported, which does no harm.
    apply(&mut state, [bridged(New, HOST, mac(7))]);
    state.build();
    apply(&mut state, [bridged(Delete, HOST, mac(7))]);
    assert_eq!(changes(&mut state), [(here(7), false)]);
}

#[test]
fn all_goes_with_the_port_the_netdev_or_the_bridge() {
    for gone in [host_port(), netdev(), bridge(BRIDGE, "br10010")] {
        let mut state = leaf_with_hosts();
        let update = state.build();
        let remote = there(&update, 2);
        assert_eq!(changes(&mut state), [(here(1), true), (remote, true)]);
        let index = gone.ifindex;
        apply(&mut state, [Message::Link(Delete, gone)]);
        let left = changes(&mut state);
        assert!(left.contains(&(here(1), false)), "without {index}: {left:?}");
        assert!(left.contains(&(remote, false)), "without {index}: {left:?}");
        assert!(state.published().plan.ports.is_empty());
        assert!(state.published().ports.is_empty());
    }
}

/// The kernel sends a port's options alone as well, in messages of the bridge.
#[test]
fn what_a_bridge_says_of_a_port_is_heard() {
    let mut state = leaf_with_hosts();
    assert_eq!(reason(&mut state), None);
    let blocked = BridgePort { state: 4, ..FORWARDING };
    let said = Link {
        ifindex: HOST,
        bridge_port_only: true,
        bridge_port: Some(blocked),
        ..Link::default()
    };
    apply(&mut state, [link(said.clone())]);
    assert!(state.is_dirty());
    assert_eq!(reason(&mut state), Some(NoBypass::NotForwarding(4)));
    let forwarding = Link { bridge_port: Some(FORWARDING), ..said };
    apply(&mut state, [link(forwarding.clone())]);
    assert_eq!(reason(&mut state), None);
    apply(&mut state, [link(forwarding)]);
    assert!(!state.is_dirty(), "nothing new");
}

/// The hosts whose frames workers may send to a port without the bridge.
fn served(state: &mut State) -> Vec<(MacAddr, u32)> {
    state.build_if_dirty();
    let mut hosts: Vec<_> = state
        .published()
        .snapshot
        .vnis()
        .flat_map(|table| table.hosts.iter().collect::<Vec<_>>())
        .collect();
    hosts.sort();
    hosts
}

/// The netdev of a bridge that does not learn from it.
fn quiet_netdev() -> Link {
    Link { bridge_port: Some(BridgePort { learning: false, ..FORWARDING }), ..netdev() }
}

#[test]
fn workers_know_the_ports_of_hosts_where_the_bridge_does_not_learn_from_the_netdev() {
    let mut state = leaf_with_hosts();
    assert_eq!(served(&mut state), [], "the bridge would forget who is behind the netdev");
    apply(&mut state, [link(quiet_netdev())]);
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    assert!(state.published().plan.ports[&HOST].delivers);
    // Other changes of the VNI do not affect them.
    apply(
        &mut state,
        [remote(New, mac(9), "10.0.0.13"), link(Link { mtu: 1400, ..quiet_netdev() })],
    );
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    assert!(behind(state.published(), mac(9)).is_some());
    apply(&mut state, [bridged(New, HOST, mac(3)), bridged(New, HOST, mac(2))]);
    assert_eq!(served(&mut state), [(mac(1), HOST), (mac(2), HOST), (mac(3), HOST)]);
    // One moves to another port, one to a VTEP.
    let other = Link { bridge_port: Some(FORWARDING), ..port(ethernet(13, "hp2"), BRIDGE) };
    apply(&mut state, [link(other.clone()), bridged(New, 13, mac(3))]);
    apply(&mut state, [bridged(New, VXLAN, mac(2)), remote(New, mac(2), "10.0.0.12")]);
    assert_eq!(served(&mut state), [(mac(1), HOST), (mac(3), 13)]);
    // A port without the bypass, and one that is deleted.
    apply(&mut state, [option(|port| port.isolated = true)]);
    assert_eq!(served(&mut state), [(mac(3), 13)]);
    apply(&mut state, [Message::Link(Delete, other)]);
    assert_eq!(served(&mut state), []);
    apply(&mut state, [link(host_port())]);
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    // An impairing queueing discipline has to see single frames, so they do not leave as one
    // super-frame.
    let qdisc = |kind: &str| Qdisc { ifindex: HOST, kind: kind.to_owned() };
    apply(&mut state, [Message::Qdisc(New, qdisc("netem"))]);
    assert_eq!(served(&mut state), []);
    apply(&mut state, [Message::Qdisc(New, qdisc("noqueue"))]);
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    apply(&mut state, [link(netdev())]);
    assert_eq!(served(&mut state), []);
}

#[test]
fn hosts_go_with_the_bypass_and_come_back_with_the_netdev() {
    let mut state = leaf_with_hosts();
    apply(&mut state, [link(quiet_netdev())]);
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    state.reload(off(), Namespace::default());
    assert_eq!(served(&mut state), []);
    state.reload(settings(), Namespace::default());
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    state.set_filters(Filters { bridge: true, ..Filters::default() });
    assert_eq!(served(&mut state), []);
    state.set_filters(Filters::default());
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    apply(&mut state, [Message::Link(Delete, quiet_netdev())]);
    assert_eq!(served(&mut state), []);
    apply(&mut state, [link(quiet_netdev())]);
    assert_eq!(served(&mut state), [(mac(1), HOST)]);
    // Into a bridge that does not have the host.
    apply(
        &mut state,
        [link(bridge(77, "br77")), link(Link { master: Some(77), ..quiet_netdev() })],
    );
    assert_eq!(served(&mut state), []);
}

/// If two moves of an address coincide, notifications may be in any order. The kernel's entry is
/// read and used.
#[test]
fn a_move_is_asked_about_because_the_last_event_may_be_wrong() {
    let mut state = leaf_with_hosts();
    let update = state.build();
    changes(&mut state);
    assert!(!state.has_moved(), "nobody has moved");
    // The bridge has it here, but the notification of zebra's earlier move comes last.
    apply(&mut state, [bridged(New, HOST, mac(2)), bridged(New, VXLAN, mac(2))]);
    assert_eq!(changes(&mut state), [], "there for all that was heard");
    assert_eq!(state.take_moved(9), [(BRIDGE, mac(2))]);
    assert!(!state.has_moved());
    state.bridge_has(BRIDGE, mac(2), Some(&bridged_of(HOST, mac(2))));
    assert_eq!(changes(&mut state), [(here(2), true), (there(&update, 2), false)]);
    assert!(!state.has_moved(), "an answer is no event");
    state.bridge_has(BRIDGE, mac(2), Some(&bridged_of(HOST, mac(2))));
    assert!(!state.is_dirty(), "nothing new");

    // A frame moves an entry while it is being deleted: the deletion is for its previous port, and
    // no entry is left.
    apply(&mut state, [bridged(New, VXLAN, mac(1)), bridged(Delete, HOST, mac(1))]);
    assert_eq!(state.take_moved(9), [(BRIDGE, mac(1))]);
    state.bridge_has(BRIDGE, mac(1), None);
    assert_eq!(changes(&mut state), [(here(1), false)]);

    // No more than asked for, and none of a bridge that is gone.
    apply(&mut state, [1, 2, 3].map(|last| bridged(New, 13, mac(last))));
    apply(&mut state, [1, 2, 3].map(|last| bridged(New, 14, mac(last))));
    assert_eq!(state.take_moved(2).len(), 2);
    assert_eq!(state.take_moved(9).len(), 1);
    let other = |port| FdbEntry { master: Some(20), ..bridged_of(port, mac(9)) };
    apply(&mut state, [21, 22].map(|port| Message::Fdb(New, other(port))));
    assert_eq!(state.take_moved(9), [(20, mac(9))]);
    state.build();
    state.bridge_has(20, mac(9), Some(&other(21)));
    assert!(!state.is_dirty());
}

/// Hosts can forge any number of addresses. Frames for addresses that are not followed pass the
/// bridge.
#[test]
fn a_bridge_has_a_limit_of_addresses_that_are_followed() {
    const MOST: usize = 131_072;
    let made_up = |number: usize| {
        let [.., a, b, c] = number.to_be_bytes();
        MacAddr([6, 0, 0, a, b, c])
    };
    let mut state = leaf_with_hosts();
    state.take_wanted_dumps();
    apply(&mut state, (0..MOST + 10).map(|number| bridged(New, HOST, made_up(number))));
    assert_eq!(changes(&mut state).len(), MOST);
    // Addresses behind a VTEP do not count.
    apply(&mut state, [bridged(New, VXLAN, mac(3)), remote(New, mac(3), "10.0.0.12")]);
    let update = state.build();
    assert_eq!(changes(&mut state), [(there(&update, 3), true)]);
    // Moves of followed addresses do not count either.
    apply(&mut state, [bridged(New, VXLAN, made_up(0)), remote(New, made_up(0), "10.0.0.12")]);
    assert_eq!(changes(&mut state).len(), 2);
    assert!(!state.take_wanted_dumps().contains(&Dump::Fdb));
    apply(&mut state, (1..MOST / 2 + 10).map(|number| bridged(Delete, HOST, made_up(number))));
    assert!(state.take_wanted_dumps().contains(&Dump::Fdb), "there is room for the others now");
}
