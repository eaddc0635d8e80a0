//! A leaf as messages of its kernel and its zebra.
#![allow(dead_code, reason = "each test uses some of it")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use control::{KernelOnlyReason, Namespace, Settings, State, Update};
use netlink::{
    BridgePort, FdbEntry, Link, LinkKind, Message, Neighbour, NextHop, NextHopKind, Operation,
    Route, RouteNextHop, RouteTarget, Vxlan,
};
use tables::{Paths, VniSource, VniTable};
use wire::{MacAddr, Vni};

pub(crate) const UP1: u32 = 2;
pub(crate) const UP2: u32 = 3;
pub(crate) const BRIDGE: u32 = 10;
pub(crate) const VXLAN: u32 = 11;
pub(crate) const HOST: u32 = 12;
pub(crate) const VNI: u32 = 10010;
pub(crate) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));

pub(crate) use Operation::{Delete, New};
pub(crate) use VniSource::Netdev;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

pub(crate) fn vni(number: u32) -> Vni {
    Vni::try_from(number).unwrap()
}

/// An Ethernet interface that is up, with carrier.
pub(crate) fn ethernet(ifindex: u32, name: &str) -> Link {
    Link {
        ifindex,
        name: name.into(),
        hardware_type: 1,
        flags: 0x1_0043,
        mtu: 1500,
        mac: Some(MacAddr([0xaa, 0, 0, 0, 0, ifindex.to_be_bytes()[3]])),
        carrier: true,
        operstate: 6,
        kind: LinkKind::Veth,
        ..Link::default()
    }
}

pub(crate) fn down(link: Link) -> Link {
    Link { flags: link.flags & !0x1_0041, carrier: false, ..link }
}

pub(crate) fn no_carrier(link: Link) -> Link {
    Link { flags: link.flags & !0x1_0000, carrier: false, ..link }
}

pub(crate) fn bridge(ifindex: u32, name: &str) -> Link {
    Link {
        kind: LinkKind::Bridge(netlink::Bridge { ageing: 30_000, ..netlink::Bridge::default() }),
        ..ethernet(ifindex, name)
    }
}

pub(crate) fn port(link: Link, bridge: u32) -> Link {
    Link { master: Some(bridge), ..link }
}

/// Options of a bridge port that only forwards.
pub(crate) const FORWARDING: BridgePort = BridgePort {
    state: 3,
    hairpin: false,
    learning: true,
    unicast_flood: true,
    multicast_flood: true,
    broadcast_flood: true,
    neighbour_suppression: false,
    isolated: false,
    locked: false,
    backup: false,
};

/// The leaf's host port, with these options of its bridge.
pub(crate) fn host_port_with(options: BridgePort) -> Link {
    Link { bridge_port: Some(options), ..port(ethernet(HOST, "hp1"), BRIDGE) }
}

pub(crate) fn vxlan_of(vni: u32) -> Vxlan {
    Vxlan {
        id: vni,
        local: Some(LOCAL),
        destination_port: 4789,
        udp_checksum: true,
        ..Vxlan::default()
    }
}

pub(crate) fn vxlan(ifindex: u32, bridge: u32, attributes: Vxlan) -> Link {
    let name = format!("vx{}", attributes.id);
    Link {
        kind: LinkKind::Vxlan(Box::new(attributes)),
        master: Some(bridge),
        ..ethernet(ifindex, &name)
    }
}

pub(crate) fn link(link: Link) -> Message {
    Message::Link(New, link)
}

/// A next hop over an interface, through a gateway unless it is empty.
pub(crate) fn via(ifindex: u32, gateway: &str) -> RouteNextHop {
    let gateway = (!gateway.is_empty()).then(|| ip(gateway));
    RouteNextHop { ifindex, gateway, weight: 1, flags: 0, vni: None, encapsulation: None }
}

pub(crate) fn route(prefix: &str, hops: &[RouteNextHop]) -> Route {
    let (destination, length) = prefix.split_once('/').unwrap();
    let via = RouteTarget::NextHops(hops.to_vec());
    Route { priority: 20, ..Route::new(ip(destination), length.parse().unwrap(), via) }
}

pub(crate) fn add_route(prefix: &str, hops: &[RouteNextHop]) -> Message {
    Message::Route(New, route(prefix, hops))
}

pub(crate) fn del_route(prefix: &str, hops: &[RouteNextHop]) -> Message {
    Message::Route(Delete, route(prefix, hops))
}

pub(crate) fn object(id: u32, kind: NextHopKind) -> Message {
    Message::NextHop(New, NextHop { id, kind })
}

pub(crate) fn neighbour_of(
    ifindex: u32,
    address: &str,
    mac: Option<MacAddr>,
    state: u16,
) -> Neighbour {
    Neighbour { ifindex, address: ip(address), mac, state, flags: 0 }
}

/// A reachable neighbour.
pub(crate) fn neighbour(ifindex: u32, address: &str, mac: MacAddr) -> Message {
    Message::Neighbour(New, neighbour_of(ifindex, address, Some(mac), 0x02))
}

/// An entry of the vxlan netdev's own FDB.
pub(crate) fn remote_of(ifindex: u32, mac: MacAddr, vtep: &str) -> FdbEntry {
    FdbEntry {
        ifindex,
        mac,
        destination: Some(ip(vtep)),
        state: 0x40,
        flags: 0x12,
        ..FdbEntry::default()
    }
}

pub(crate) fn remote(operation: Operation, mac: MacAddr, vtep: &str) -> Message {
    Message::Fdb(operation, remote_of(VXLAN, mac, vtep))
}

pub(crate) fn flood(operation: Operation, vtep: &str) -> Message {
    let entry = FdbEntry { state: 0x80, flags: 0x02, ..remote_of(VXLAN, MacAddr::ZERO, vtep) };
    Message::Fdb(operation, entry)
}

/// An entry of the bridge's FDB.
pub(crate) fn bridged_of(port: u32, mac: MacAddr) -> FdbEntry {
    FdbEntry { ifindex: port, mac, master: Some(BRIDGE), state: 0x02, ..FdbEntry::default() }
}

pub(crate) fn bridged(operation: Operation, port: u32, mac: MacAddr) -> Message {
    Message::Fdb(operation, bridged_of(port, mac))
}

/// A MAC address as zebra 10.3 sends it.
pub(crate) fn zebra_mac(operation: Operation, mac: MacAddr, vtep: &str) -> Message {
    let entry = FdbEntry {
        master: Some(BRIDGE),
        source_vni: Some(VNI),
        flags: 0x16,
        ..remote_of(VXLAN, mac, vtep)
    };
    Message::Fdb(operation, entry)
}

/// The leaf gains or loses the source address of its tunnels.
pub(crate) fn local_address(operation: Operation) -> Message {
    Message::Address(operation, netlink::Address { ifindex: 1, address: LOCAL, prefix_length: 32 })
}

/// A leaf with two uplinks, one VNI in a bridge and a host port, but no VTEP yet.
pub(crate) fn leaf_with(attributes: Vxlan) -> Vec<Message> {
    vec![
        link(Link {
            hardware_type: 772,
            kind: LinkKind::Plain,
            mac: Some(MacAddr::ZERO),
            ..ethernet(1, "lo")
        }),
        link(ethernet(UP1, "up1")),
        link(ethernet(UP2, "up2")),
        link(bridge(BRIDGE, "br10010")),
        link(vxlan(VXLAN, BRIDGE, attributes)),
        link(port(ethernet(HOST, "hp1"), BRIDGE)),
        local_address(New),
    ]
}

pub(crate) fn leaf() -> Vec<Message> {
    leaf_with(vxlan_of(VNI))
}

/// Two uplinks towards 10.0.0.0/24, both gateways known.
pub(crate) fn underlay() -> Vec<Message> {
    vec![
        add_route("10.0.0.0/24", &[via(UP1, "10.1.0.1"), via(UP2, "10.2.0.1")]),
        neighbour(UP1, "10.1.0.1", mac(0xe1)),
        neighbour(UP2, "10.2.0.1", mac(0xe2)),
    ]
}

pub(crate) fn state_with(settings: Settings) -> State {
    State::new(settings, Namespace::default())
}

/// A state that received these messages from the kernel.
pub(crate) fn state_after(messages: impl IntoIterator<Item = Message>) -> State {
    let mut state = state_with(Settings::default());
    apply(&mut state, messages);
    state
}

pub(crate) fn apply(state: &mut State, messages: impl IntoIterator<Item = Message>) {
    messages.into_iter().for_each(|message| state.apply_kernel(message));
}

pub(crate) fn zebra(state: &mut State, messages: impl IntoIterator<Item = Message>) {
    state.apply_fpm(messages.into_iter().collect(), Instant::now());
}

/// The table of the leaf's only VNI, if it is taken over.
pub(crate) fn table(update: &Update) -> Option<&VniTable> {
    update.snapshot.terminate(LOCAL, 4789, vni(VNI)).map(AsRef::as_ref)
}

/// The VTEP behind which a MAC address is.
pub(crate) fn behind(update: &Update, mac: MacAddr) -> Option<IpAddr> {
    let index = table(update).expect("the VNI is taken").fdb.get(&mac)?;
    Some(
        update.snapshot.vtep(*index).expect("a VTEP that the FDB names is in the snapshot").address,
    )
}

pub(crate) fn flood_list(update: &Update) -> Vec<IpAddr> {
    let table = table(update).expect("the VNI is taken");
    let address = |index| update.snapshot.vtep(index).expect("a VTEP of the flood list").address;
    table.flood.iter().copied().map(address).collect()
}

/// The next hops towards a VTEP that is in the snapshot.
pub(crate) fn paths<'a>(update: &'a Update, vtep: &str) -> &'a Paths {
    let vtep = ip(vtep);
    &update.snapshot.vteps().find(|known| known.address == vtep).expect("a known VTEP").paths
}

/// The interfaces of the next hops towards a VTEP.
pub(crate) fn interfaces(update: &Update, vtep: &str) -> Vec<u32> {
    paths(update, vtep).next_hops().iter().map(|hop| hop.ifindex).collect()
}

/// Why a netdev stays with the kernel; `None` if it is taken over.
pub(crate) fn why_left(update: &Update, ifindex: u32) -> Option<KernelOnlyReason> {
    let left = update
        .left
        .iter()
        .find(|left| left.source == Netdev(ifindex))
        .map(|left| left.reason.clone());
    assert_ne!(
        left.is_some(),
        update.plan.vnis.contains_key(&Netdev(ifindex)),
        "taken or left, never both or neither"
    );
    left
}
