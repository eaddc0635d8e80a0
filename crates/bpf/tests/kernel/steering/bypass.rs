//! Which frames of a host skip the bridge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bpf::{Hook, PuntSide, Steering, SteeringCounts, Watchdog, bypass_obstacle};
use fabric::netns::{Namespace, veth};
use frame::VlanTag;
use ports::PacketSocket;
use root_test::root_test;
use tables::{
    BypassPort, MacLocation, MacLocationChange, SteeringDiff, SteeringPlan, VniIndex, VtepIndex,
};
use test_frames::{Ipv4, Ipv6, ethernet, ipv4};
use wire::MacAddr;

use super::{
    LONG_STALL, Leaf, NEVER, SOON, add, ifindex, leaf, plan, receive, remove, send, silent, steer,
};

pub(super) const HOST: MacAddr = MacAddr([2, 0, 0, 0, 7, 1]);
pub(super) const FAR: MacAddr = MacAddr([2, 0, 0, 0, 7, 2]);
const FARTHER: MacAddr = MacAddr([2, 0, 0, 0, 7, 4]);
const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 7, 3]);
/// The bridge's own MAC address.
const SVI: MacAddr = MacAddr([2, 0, 0, 0, 7, 9]);

/// An Ethernet frame with an IPv6 or IPv4 packet of this protocol, whose payload begins with
/// `first`. Its headers are valid, because br_netfilter checks them.
fn frame(
    to: MacAddr,
    from: MacAddr,
    ethertype: u16,
    protocol: u8,
    first: u8,
    length: usize,
) -> Vec<u8> {
    let payload = |headers: usize| {
        let rest = vec![0xee; length.saturating_sub(headers + 1)];
        [&[first][..], &rest].concat()
    };
    let packet = match ethertype {
        0x0800 => {
            let fields = Ipv4 { identification: 1, ..Ipv4::default() };
            ipv4(([9, 0, 0, 1], [9, 0, 0, 2]), protocol, &payload(34), fields)
        }
        0x86dd => {
            let fields = Ipv6 { hop_limit: 255, ..Ipv6::default() };
            test_frames::ipv6(([0xfd; 16], [0xfd; 16]), protocol, &payload(54), fields)
        }
        _ => payload(14),
    };
    ethernet(from.0, to.0, ethertype, &packet)
}

fn udp(to: MacAddr, from: MacAddr) -> Vec<u8> {
    frame(to, from, 0x0800, 17, 1, 90)
}

/// The difference between plans that only has these addresses.
fn moved(locations: &[MacLocationChange]) -> SteeringDiff {
    SteeringDiff::only_mac_locations(locations.into())
}

fn known(location: MacLocation) -> MacLocationChange {
    MacLocationChange { location, there: true }
}

fn gone(location: MacLocation) -> MacLocationChange {
    MacLocationChange { location, there: false }
}

fn vni_index() -> VniIndex {
    VniIndex::new(9).unwrap()
}

pub(super) struct Port {
    pub(super) leaf: Leaf,
    pub(super) steering: Steering,
    watchdog: Watchdog,
    pub(super) bridge: PacketSocket,
    pub(super) plan: SteeringPlan,
    pub(super) index: u32,
    _punts: (worker::PuntPairs, netlink::PrivateNamespace),
}

impl Port {
    /// One port with the bypass. Its host and one remote host are known, and the bridge has just
    /// seen the host.
    pub(super) fn new(tag: &str, hook: Hook, stall_limit: Duration) -> Self {
        let leaf = leaf(tag);
        let index = ifindex(&leaf.leaf, "hp1");
        leaf.leaf.run(&["ip", "link", "set", "br5", "address", &SVI.to_string()]).unwrap();
        let mut plan = plan(&leaf.leaf);
        let (refresh, netdev) = (Duration::from_secs(60), ifindex(&leaf.leaf, "vx5"));
        let port = BypassPort {
            ifindex: index,
            name: "hp1".to_owned(),
            netdev,
            index: vni_index(),
            frame_limit: 1000,
            sends: true,
            delivers: true,
            mtu: 1500,
            refresh,
        };
        plan.ports.insert(index, port);
        let (mut steering, mut punts, private) = steer(&leaf.leaf, hook, &plan, stall_limit);
        let bridge = punts.bridge.take_socket().unwrap();
        let watchdog = steering.take_watch().unwrap().0.remove(0);
        let here = [
            MacLocation::Port { port: index, index: vni_index(), mac: HOST },
            MacLocation::Remote { index: vni_index(), vtep: VtepIndex(1), mac: FAR },
        ];
        steering.add(&moved(&here.map(known))).unwrap();
        leaf.leaf.enter(|| steering.engage().unwrap()).unwrap();
        let mut port =
            Self { leaf, steering, watchdog, bridge, plan, index, _punts: (punts, private) };
        port.goes_by_the_bridge(&udp(FAR, HOST), "the first one, for its sake");
        assert_eq!(port.counts().port_refreshed, 1);
        port
    }

    fn delivering(&self) -> Vec<u32> {
        self.steering.delivering_ports().iter().map(|port| port.ifindex).collect()
    }

    fn counts(&self) -> SteeringCounts {
        self.steering.counts().unwrap()
    }

    fn review(&mut self, interface: u32) {
        let ports = self.steering.bypass_ports_at(&BTreeSet::from([interface]));
        self.look(ports);
    }

    fn look(&mut self, ports: Vec<BypassPort>) {
        let look = |port: BypassPort| {
            let obstacle = bypass_obstacle(&port);
            (port, obstacle)
        };
        let steering = &mut self.steering;
        self.leaf
            .leaf
            .enter(|| steering.review(ports.into_iter().map(look).collect()).unwrap())
            .unwrap();
    }

    /// Sends the frame until it bypasses the bridge: hosts that could have come have not.
    fn bypasses_soon(&mut self, frame: &[u8], why: &str) {
        let start = Instant::now();
        let before = self.counts().port_bypassed;
        while self.counts().port_bypassed == before {
            assert!(start.elapsed() < Duration::from_secs(20), "{why}");
            send(&self.leaf.host, "eth0", frame);
            receive(&mut self.bridge, SOON, |_| true);
            let _ = self.watchdog.look(PuntSide::Bridge);
        }
        self.bypasses(frame, why);
    }

    fn bypasses(&mut self, frame: &[u8], why: &str) {
        let before = self.counts();
        send(&self.leaf.host, "eth0", frame);
        let tagged = |seen: &frame::Frame<'_>| {
            seen.data == frame && seen.vlan == Some(VlanTag { tpid: 0x88a8, tci: 9 })
        };
        assert_eq!(receive(&mut self.bridge, SOON, tagged), 1, "{why}");
        let _ = self.watchdog.look(PuntSide::Bridge);
        let after = self.counts();
        assert_eq!(after.port_bypassed - before.port_bypassed, 1, "{why}");
    }

    /// The bridge receives the frame. What the bridge does with it does not matter.
    fn goes_by_the_bridge(&mut self, frame: &[u8], why: &str) {
        let before = self.counts();
        send(&self.leaf.host, "eth0", frame);
        let same = |seen: &frame::Frame<'_>| seen.data == frame;
        receive(&mut self.bridge, NEVER, same);
        let _ = self.watchdog.look(PuntSide::Bridge);
        let after = self.counts();
        assert_eq!(after.port_bypassed, before.port_bypassed, "{why}");
        let passed = |counts: SteeringCounts| counts.port_passed + counts.port_refreshed;
        assert!(passed(after) > passed(before), "{why}: {after:?}");
    }
}

/// With br_netfilter the bridge drops or trims these packets.
#[root_test]
fn malformed_packets_go_by_the_bridge() {
    let mut port = Port::new("malformed", Hook::Tcx, LONG_STALL);
    let change = |at: usize, value: u8, sum: bool| {
        let mut frame = udp(FAR, HOST);
        frame[at] = value;
        if sum {
            frame[24..26].fill(0);
            let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
            frame[24..26].copy_from_slice(&sum);
        }
        frame
    };
    let six = |at: usize, value: u8| {
        let mut frame = frame(FAR, HOST, 0x86dd, 17, 1, 90);
        frame[at] = value;
        frame
    };
    port.bypasses(&change(15, 0x48, true), "another TOS, and a right checksum");
    for (frame, why) in [
        (change(14, 0x65, true), "IPv6 by its version"),
        (change(14, 0x44, true), "a header of 16 bytes"),
        (change(14, 0x46, true), "options"),
        (change(17, 100, true), "longer than the frame"),
        (change(17, 19, true), "shorter than its header"),
        (change(17, 70, true), "bytes behind the packet"),
        (change(22, 1, false), "a wrong checksum"),
        (udp(FAR, HOST)[..33].to_vec(), "a cut header"),
        (six(14, 0x40), "IPv4 by its version"),
        (six(19, 37), "IPv6, longer than the frame"),
        (six(19, 35), "IPv6, bytes behind the packet"),
    ] {
        port.goes_by_the_bridge(&frame, why);
        port.bypasses(&udp(FAR, HOST), "a right one");
    }
}

fn known_unicast_skips_the_bridge(hook: Hook) {
    let mut port = Port::new(&format!("sc{hook}"), hook, LONG_STALL);
    port.bypasses(&udp(FAR, HOST), "IPv4");
    port.bypasses(&frame(FAR, HOST, 0x86dd, 17, 1, 90), "UDP over IPv6");
    port.bypasses(&frame(FAR, HOST, 0x86dd, 6, 1, 90), "TCP over IPv6");
    port.bypasses(&frame(FAR, HOST, 0x86dd, 58, 128, 90), "an ICMPv6 echo");
    port.bypasses(&frame(FAR, HOST, 0x0800, 17, 1, 1000), "as long as fits");

    port.steering
        .add(&moved(&[known(MacLocation::Remote {
            index: vni_index(),
            vtep: VtepIndex(1),
            mac: FARTHER,
        })]))
        .unwrap();
    let broadcast = MacAddr([0xff; 6]);
    let group = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    for (frame, why) in [
        (frame(FAR, HOST, 0x0806, 0, 0, 60), "ARP"),
        (frame(FAR, HOST, 0x88b5, 0, 0, 60), "another EtherType"),
        (frame(FAR, HOST, 0x86dd, 58, 133, 90), "a router solicitation"),
        (frame(FAR, HOST, 0x86dd, 58, 135, 90), "a neighbour solicitation"),
        (frame(FAR, HOST, 0x86dd, 58, 137, 90), "a redirect"),
        (frame(FAR, HOST, 0x86dd, 0, 58, 90), "IPv6 behind hop-by-hop options"),
        (frame(FAR, HOST, 0x86dd, 44, 58, 90), "an IPv6 fragment"),
        (frame(FAR, HOST, 0x86dd, 58, 135, 54), "ICMPv6 without a type"),
        (udp(broadcast, HOST), "broadcast"),
        (udp(group, HOST), "multicast"),
        (udp(SVI, HOST), "for the SVI"),
        (udp(STRANGER, HOST), "an unknown destination"),
        (udp(HOST, HOST), "a destination on the port itself"),
        (udp(FAR, STRANGER), "a source that the bridge does not have here"),
        (udp(FAR, FARTHER), "a source that is behind a VTEP"),
        (frame(FAR, HOST, 0x0800, 17, 1, 1001), "too long for the underlay"),
        (
            [&udp(FAR, HOST)[..12], &[0x81, 0, 0, 7], &udp(FAR, HOST)[12..]].concat(),
            "a tagged frame",
        ),
    ] {
        port.goes_by_the_bridge(
            &frame[..if why.contains("without a type") { 54 } else { frame.len() }],
            why,
        );
    }

    // A frame from a remote host's address arrives here, so the host may have moved. If it has not,
    // that is forgotten after a second.
    port.goes_by_the_bridge(
        &frame(broadcast, FARTHER, 0x0806, 0, 0, 60),
        "a host that has come says so",
    );
    port.goes_by_the_bridge(&udp(FARTHER, HOST), "for the host that has come");
    port.bypasses_soon(&udp(FARTHER, HOST), "it has not come");

    // The bridge handles an address that left its location; at its new location it is known again.
    let remote = MacLocation::Remote { index: vni_index(), vtep: VtepIndex(1), mac: FAR };
    port.steering.remove(&moved(&[gone(remote)])).unwrap();
    port.goes_by_the_bridge(&udp(FAR, HOST), "the destination has become local");
    port.steering.add(&moved(&[known(remote)])).unwrap();
    port.bypasses(&udp(FAR, HOST), "the destination is remote again");
    let here = MacLocation::Port { port: port.index, index: vni_index(), mac: HOST };
    port.steering.remove(&moved(&[gone(here)])).unwrap();
    port.goes_by_the_bridge(&udp(FAR, HOST), "the host has moved to another port");
    port.steering.add(&moved(&[known(here)])).unwrap();

    // With this interval every frame has to pass the bridge.
    let mut often = port.plan.clone();
    often.ports.get_mut(&port.index).unwrap().refresh = Duration::ZERO;
    port.leaf.leaf.enter(|| add(&mut port.steering, &often)).unwrap();
    for _ in 0..3 {
        port.goes_by_the_bridge(&udp(FAR, HOST), "it is time that the bridge sees it");
    }
    assert!(port.counts().port_refreshed >= 4);

    // The port loses the bypass, and gets it again.
    let mut without = port.plan.clone();
    without.ports.clear();
    let plan = port.plan.clone();
    port.leaf.leaf.enter(|| remove(&mut port.steering, &without)).unwrap();
    let passed = port.counts();
    send(&port.leaf.host, "eth0", &udp(FAR, HOST));
    assert_eq!(
        receive(&mut port.bridge, SOON, |seen| seen.data == udp(FAR, HOST)),
        1,
        "by the bridge"
    );
    let counts = port.counts();
    assert_eq!(counts.port_passed, passed.port_passed, "no program looks at it");
    assert!(counts.vxlan_redirected > passed.vxlan_redirected);
    port.leaf.leaf.enter(|| add(&mut port.steering, &plan)).unwrap();
    port.bypasses(&udp(FAR, HOST), "with the bypass again");
    let state = port.steering.bypass().unwrap();
    // Earlier counts are not part of the port's new ones, but still part of the sum.
    let bypasses: BTreeMap<u32, u64> =
        state.ports.iter().map(|(port, counts)| (*port, counts.bypass)).collect();
    assert_eq!(bypasses, BTreeMap::from([(port.index, 1)]));
    assert!(port.counts().port_bypassed > 1);
    assert_eq!((state.addresses, state.waiting), (3, 0));

    // The kill switch also controls the bypass.
    port.leaf.leaf.enter(|| port.steering.release().unwrap()).unwrap();
    let before = port.counts();
    send(&port.leaf.host, "eth0", &udp(FAR, HOST));
    assert_eq!(
        receive(&mut port.bridge, NEVER, |seen| seen.data == udp(FAR, HOST)),
        0,
        "the kernel's"
    );
    assert_eq!(port.counts(), before);
}

#[root_test]
fn known_unicast_skips_the_bridge_with_tcx_links() {
    known_unicast_skips_the_bridge(Hook::Tcx);
}

#[root_test]
fn known_unicast_skips_the_bridge_with_clsact_filters() {
    known_unicast_skips_the_bridge(Hook::Clsact);
}

/// When a remote host moves to a port, frames for it are no longer sent to its VTEP. This also
/// holds if the port only watches for source addresses, or waits while another port's program is
/// attached.
#[root_test]
fn ports_that_only_listen_hear_who_comes() {
    let mut port = Port::new("sclisten", Hook::Tcx, LONG_STALL);
    let second = silent(format!("vtp-sclisten-second-{}", std::process::id()));
    veth((&port.leaf.leaf, "hp2"), (&second, "eth0"), 1500).unwrap();
    port.leaf.leaf.run(&["ip", "link", "set", "hp2", "master", "br5"]).unwrap();
    let index = ifindex(&port.leaf.leaf, "hp2");
    let here = MacLocation::Port { port: index, index: vni_index(), mac: STRANGER };
    port.steering
        .add(&moved(
            &[here, MacLocation::Remote { index: vni_index(), vtep: VtepIndex(1), mac: FARTHER }]
                .map(known),
        ))
        .unwrap();
    let apply = |port: &mut Port, sends: bool| {
        let first = &port.plan.ports[&port.index];
        let name = "hp2".to_owned();
        let other = BypassPort { ifindex: index, name, sends, delivers: sends, ..first.clone() };
        port.plan.ports.insert(index, other);
        let Port { leaf, steering, plan, .. } = port;
        let apply = || {
            remove(steering, plan);
            add(steering, plan);
        };
        leaf.leaf.enter(apply).unwrap();
        steering.bypass().unwrap().ports.into_keys().collect::<Vec<_>>()
    };
    let bridged = |port: &mut Port, from: &Namespace, frame: &[u8], why: &str| {
        let before = port.counts();
        send(from, "eth0", frame);
        receive(&mut port.bridge, NEVER, |_| true);
        let _ = port.watchdog.look(PuntSide::Bridge);
        let after = port.counts();
        assert_eq!(
            (after.port_bypassed, after.port_refreshed),
            (before.port_bypassed, before.port_refreshed),
            "{why}"
        );
        after.port_passed - before.port_passed
    };
    let hello = frame(MacAddr([0xff; 6]), FARTHER, 0x0806, 0, 0, 60);
    let tagged = [&hello[..12], &[0x81, 0, 0, 7], &hello[12..]].concat();
    let first = Namespace::open(port.leaf.host.name()).unwrap();

    // While the program is attached to the other port.
    assert_eq!(apply(&mut port, false), [port.index], "who only listens does not have it");
    assert!(port.steering.delivering_ports().is_empty());
    bridged(&mut port, &first, &udp(FAR, HOST), "until control has heard");
    bridged(&mut port, &first, &hello, "it has come to a port that waits");
    for _ in 0..2 {
        port.steering.add(&moved(&[])).unwrap();
    }
    assert_eq!(port.delivering(), [port.index]);
    port.bypasses(&udp(FAR, HOST), "goes on");
    port.goes_by_the_bridge(&udp(FARTHER, HOST), "it was heard meanwhile");

    for (hello, why) in [(&hello, "untagged"), (&tagged, "tagged")] {
        port.bypasses_soon(&udp(FARTHER, HOST), "it has not come");
        assert_eq!(
            bridged(&mut port, &second, hello, why),
            0,
            "{why}: what only listens counts nothing"
        );
        port.goes_by_the_bridge(&udp(FARTHER, HOST), why);
    }
    assert_eq!(bridged(&mut port, &second, &udp(FAR, STRANGER), "known, but it only listens"), 0);

    // The port has its program already, so getting the bypass does not pause other ports. It loses
    // the bypass in `remove_ports`, before a new snapshot.
    assert_eq!(apply(&mut port, true), [port.index, index]);
    assert_eq!(port.delivering(), [port.index, index]);
    port.bypasses(&udp(FAR, HOST), "nobody waits");
    let before = port.counts();
    for _ in 0..2 {
        send(&second, "eth0", &udp(FAR, STRANGER));
    }
    receive(&mut port.bridge, NEVER, |_| true);
    let _ = port.watchdog.look(PuntSide::Bridge);
    let after = port.counts();
    assert_eq!(
        (after.port_refreshed - before.port_refreshed, after.port_bypassed - before.port_bypassed),
        (1, 1)
    );
    let old = port.plan.clone();
    let mut new = old.clone();
    new.ports.get_mut(&index).unwrap().sends = false;
    port.leaf.leaf.enter(|| remove(&mut port.steering, &new)).unwrap();
    bridged(&mut port, &second, &udp(FAR, STRANGER), "it only listens again");
}

/// The bypass does not send to a worker that hangs either.
#[root_test]
fn a_hung_worker_is_given_up_by_the_bypass_too() {
    const LIMIT: Duration = Duration::from_millis(200);
    let mut port = Port::new("scwait", Hook::Tcx, LIMIT);
    port.watchdog.forgive(PuntSide::Bridge);
    for stalled in [0, 1] {
        send(&port.leaf.host, "eth0", &udp(FAR, HOST));
        receive(&mut port.bridge, NEVER, |seen| seen.data == udp(FAR, HOST));
        assert_eq!(port.counts().port_stalled, stalled);
        std::thread::sleep(2 * LIMIT);
    }
    port.watchdog.forgive(PuntSide::Bridge);
    port.bypasses(&udp(FAR, HOST), "looked after again");
}

/// Addresses that do not fit the map use the bridge. They take the bypass when others have left.
#[root_test]
fn addresses_without_room_go_by_the_bridge_until_there_is() {
    let mut port = Port::new("scfull", Hook::Tcx, LONG_STALL);
    let many = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        MacLocation::Remote {
            index: vni_index(),
            vtep: VtepIndex(1),
            mac: MacAddr([2, 1, 0, b, c, d]),
        }
    };
    let all: Vec<MacLocationChange> = (0..200_000).map(|n| known(many(n))).collect();
    port.steering.add(&moved(&all)).unwrap();
    let state = port.steering.bypass().unwrap();
    // The local host has a second entry.
    assert_eq!((state.addresses, state.capacity), (131_071, 131_072));
    assert_eq!((state.waiting, state.no_room), (200_002 - 131_071, 200_002 - 131_071));
    port.steering
        .add(&moved(&[known(MacLocation::Remote {
            index: vni_index(),
            vtep: VtepIndex(1),
            mac: STRANGER,
        })]))
        .unwrap();
    port.goes_by_the_bridge(&udp(STRANGER, HOST), "no room");
    port.bypasses(&udp(FAR, HOST), "who was first stays");
    assert_eq!(port.steering.bypass().unwrap().no_room, state.no_room + 1);
    let leave: Vec<MacLocationChange> = (0..200_000).map(|n| gone(many(n))).collect();
    port.steering.remove(&moved(&leave)).unwrap();
    port.steering.add(&moved(&[])).unwrap();
    port.bypasses(&udp(STRANGER, HOST), "room again");
    let after = port.steering.bypass().unwrap();
    assert_eq!((after.addresses, after.waiting, after.no_room), (3, 0, state.no_room + 1));
}

/// If another tool has a filter on the port's ingress or on the vxlan netdev's egress, all frames
/// pass the bridge. This includes filters that appear later, and ends when they are removed.
#[root_test]
fn a_port_with_a_filter_of_somebody_else_has_no_bypass() {
    for (location, found) in [
        ("hp1 ingress", "u32 is on clsact ingress of hp1"),
        ("vx5 egress", "u32 is on clsact egress of vx5"),
    ] {
        let mut port = Port::new("scforeign", Hook::Tcx, LONG_STALL);
        let (interface, way) = location.split_once(' ').unwrap();
        let theirs = ifindex(&port.leaf.leaf, interface);
        let has = |port: &Port| {
            let state = port.steering.bypass().unwrap();
            assert_eq!(
                state.ports.contains_key(&port.index),
                state.refused.is_empty(),
                "{state:?}"
            );
            state.refused.get(&port.index).cloned()
        };
        let tc = |port: &Port, line: &str| {
            let line = format!("tc {line}");
            port.leaf.leaf.run(&line.split(' ').collect::<Vec<_>>()).unwrap();
        };
        assert_eq!(has(&port), None);
        tc(&port, &format!("qdisc add dev {interface} clsact"));
        tc(
            &port,
            &format!("filter add dev {location} protocol all prio 1 u32 match u32 0 0 flowid 1:1"),
        );
        port.bypasses(&udp(FAR, HOST), "nobody has looked");
        port.review(theirs + 1000);
        assert_eq!(has(&port), None, "another interface");
        port.review(theirs);
        assert_eq!(has(&port).as_deref(), Some(found));
        send(&port.leaf.host, "eth0", &udp(FAR, HOST));
        assert_eq!(
            receive(&mut port.bridge, SOON, |seen| seen.data == udp(FAR, HOST)),
            1,
            "by the bridge"
        );
        let _ = port.watchdog.look(PuntSide::Bridge);
        port.review(theirs);
        assert_eq!(has(&port).as_deref(), Some(found), "it is still there");
        tc(&port, &format!("filter del dev {interface} {way}"));
        // The rotation finds that the filter has gone.
        let turn = port.steering.next_bypass_ports();
        port.look(turn);
        assert_eq!(has(&port), None);
        port.bypasses(&udp(FAR, HOST), "it has gone");
    }
}
