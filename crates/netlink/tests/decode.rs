//! Decodes handwritten messages.

#![cfg(test)]

mod bytes;

use bytes::{
    all_of_vxlan, attribute, ip, link_body, message, number, one, route_body, vxlan_message,
};
use netlink::{
    Address, Bridge, BridgePort, FdbEntry, Link, LinkKind, Mdb, Message, Neighbour, NextHop,
    NextHopKind, Operation, Qdisc, Route, RouteNextHop, RouteTarget, Vxlan,
};
use wire::MacAddr;

fn vxlan(data: &[Vec<u8>]) -> Vxlan {
    match one(&vxlan_message(data)) {
        Message::Link(Operation::New, Link { kind: LinkKind::Vxlan(vxlan), .. }) => *vxlan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_vxlan_attribute() {
    let expected = Vxlan {
        id: 10010,
        local: Some(ip("10.0.0.11")),
        remote: Some(ip("239.1.1.1")),
        link: Some(2),
        destination_port: 4789,
        source_ports: (49152, 65535),
        ttl: 64,
        ttl_inherit: true,
        tos: 1,
        df: 2,
        label: 0x10203,
        learning: true,
        ageing: 300,
        limit: 1000,
        udp_checksum: true,
        udp6_zero_checksum_tx: true,
        udp6_zero_checksum_rx: true,
        external: true,
        vni_filter: true,
        options: vec![
            "nolocalbypass",
            "label_policy",
            "mcroute",
            "proxy",
            "rsc",
            "l2miss",
            "l3miss",
            "remcsumtx",
            "remcsumrx",
            "gbp",
            "gpe",
        ],
        unknown: vec![35, 9999],
    };
    assert_eq!(vxlan(&all_of_vxlan()), expected);
}

#[test]
fn an_ordinary_vxlan_has_no_options() {
    let reserved = [0xf7, 0xff, 0xff, 0xff, 0, 0, 0, 0xff];
    let mut ordinary: Vec<_> =
        [11, 12, 13, 14, 21, 22, 25, 28, 30, 34].map(|kind| attribute(kind, &[0])).into();
    ordinary.extend([number(1, 7), attribute(31, &[1]), number(32, 0), attribute(33, &reserved)]);
    ordinary.extend([attribute(2, &[0; 4]), attribute(17, &[0; 16]), number(3, 0)]);
    assert_eq!(vxlan(&ordinary), Vxlan { id: 7, ..Vxlan::default() });
}

#[test]
fn reserved_bits_count_only_where_no_extension_explains_them() {
    assert_eq!(vxlan(&[attribute(33, &[0xff; 8])]).options, ["reserved_bits"]);
    assert_eq!(vxlan(&[attribute(33, &[0xff; 8]), attribute(23, &[])]).options, ["gbp"]);
}

#[test]
fn vxlan_over_ipv6() {
    let local = "2001:db8::11".parse::<std::net::Ipv6Addr>().unwrap();
    let remote = "2001:db8::12".parse::<std::net::Ipv6Addr>().unwrap();
    let vxlan = vxlan(&[attribute(17, &local.octets()), attribute(16, &remote.octets())]);
    assert_eq!((vxlan.local, vxlan.remote), (Some(local.into()), Some(remote.into())));
}

#[test]
fn a_bridge_port() {
    let options = [
        attribute(1, &[3]),
        attribute(8, &[1]),
        attribute(9, &[1]),
        attribute(27, &[1]),
        attribute(30, &[1]),
        attribute(32, &[1]),
        attribute(33, &[1]),
        number(34, 9),
        attribute(39, &[1]),
        attribute(4, &[1]),
        attribute(77, &[1]),
    ]
    .concat();
    let port = BridgePort {
        state: 3,
        hairpin: true,
        learning: true,
        unicast_flood: true,
        multicast_flood: true,
        broadcast_flood: true,
        neighbour_suppression: true,
        isolated: true,
        locked: true,
        backup: true,
    };
    let attributes = |family: u8| {
        let info = [attribute(5, &options), attribute(4, b"bridge\0"), attribute(1, b"veth\0")];
        let way = if family == 7 {
            attribute(12 | 0x8000, &options)
        } else {
            attribute(18, &info.concat())
        };
        [
            attribute(3, b"hp1\0"),
            attribute(1, &[2, 0, 0, 0, 1, 1]),
            number(10, 4),
            number(4, 9500),
            way,
        ]
    };
    for family in [0, 7] {
        let bytes = message(16, 0, &link_body(family, 6, 0x1_1043), &attributes(family));
        let expected = Link {
            ifindex: 6,
            name: "hp1".into(),
            hardware_type: 1,
            flags: 0x1_1043,
            mtu: 9500,
            mac: Some(MacAddr([2, 0, 0, 0, 1, 1])),
            master: Some(4),
            kind: if family == 0 { LinkKind::Veth } else { LinkKind::Plain },
            bridge_port_only: family == 7,
            bridge_port: Some(port),
            ..Link::default()
        };
        assert_eq!(one(&bytes), Message::Link(Operation::New, expected));
    }
}

#[test]
fn other_links() {
    let info = |kind: &[u8], data: &[u8]| {
        attribute(18, &[attribute(2, data), attribute(1, kind)].concat())
    };
    let kinds = [
        (
            info(b"bridge\0", &attribute(7, &[1])),
            LinkKind::Bridge(Bridge { vlan_filtering: true, ..Bridge::default() }),
        ),
        (
            info(b"bridge\0", &[attribute(7, &[0]), attribute(4, &300u32.to_ne_bytes())].concat()),
            LinkKind::Bridge(Bridge { ageing: 300, ..Bridge::default() }),
        ),
        (
            info(b"bridge\0", &attribute(37, &[1])),
            LinkKind::Bridge(Bridge { calls_netfilter: true, ..Bridge::default() }),
        ),
        (info(b"vrf\0", &number(1, 77)), LinkKind::Other("vrf".into())),
    ];
    for (info, kind) in kinds {
        let xdp = attribute(43, &attribute(2, &[2]));
        let attributes = [
            attribute(33, &[1]),
            attribute(16, &[6]),
            number(5, 3),
            attribute(6, b"fq\0"),
            xdp,
            info,
        ];
        let expected = Link {
            ifindex: 9,
            hardware_type: 1,
            carrier: true,
            operstate: 6,
            link: Some(3),
            xdp: true,
            qdisc: "fq".into(),
            kind,
            ..Link::default()
        };
        assert_eq!(
            one(&message(17, 0, &link_body(0, 9, 0), &attributes)),
            Message::Link(Operation::Delete, expected)
        );
    }
    // A link layer whose addresses are not Ethernet's.
    let infiniband = one(&message(16, 0, &link_body(0, 9, 0), &[attribute(1, &[1; 20])]));
    assert!(matches!(infiniband, Message::Link(_, Link { mac: None, .. })));
}

/// Counts entries of a multicast database. Messages that list only multicast router ports, or
/// nothing, have none.
#[test]
fn multicast_databases_are_counted() {
    let mdb = |kind: u16, attributes: &[Vec<u8>]| {
        one(&message(kind, 0, &[7, 0, 0, 0, 9, 0, 0, 0], attributes))
    };
    let entry = attribute(1, &attribute(1, &[0; 28]));
    let two = attribute(1 | 0x8000, &[entry.clone(), entry].concat());
    let expected = Mdb { ifindex: 9, entries: 2 };
    assert_eq!(mdb(84, std::slice::from_ref(&two)), Message::Mdb(Operation::New, expected));
    assert_eq!(mdb(85, &[two]), Message::Mdb(Operation::Delete, expected));
    let routers = attribute(2, &attribute(1, &[4, 0, 0, 0]));
    for without in [vec![], vec![attribute(1, &[])], vec![routers]] {
        assert_eq!(mdb(84, &without), Message::Other(84));
    }
}

#[test]
fn root_queueing_disciplines() {
    let body =
        |parent: u32| [[0; 4], 9u32.to_ne_bytes(), [0; 4], parent.to_ne_bytes(), [0; 4]].concat();
    let netem = [attribute(1, b"netem\0")];
    let expected = Qdisc { ifindex: 9, kind: "netem".into() };
    let root = |kind| one(&message(kind, 0, &body(u32::MAX), &netem));
    assert_eq!(root(36), Message::Qdisc(Operation::New, expected.clone()));
    assert_eq!(root(37), Message::Qdisc(Operation::Delete, expected));
    // A qdisc below a class, and clsact.
    for parent in [0x8001_0001, 0xffff_fff1] {
        assert_eq!(one(&message(36, 0, &body(parent), &netem)), Message::Other(36));
    }
}

#[test]
fn addresses() {
    let body = [2, 31, 0, 0, 3, 0, 0, 0];
    let peer = attribute(1, &[10, 1, 11, 0]);
    let local = attribute(2, &[10, 1, 11, 1]);
    let address = |text| Address { ifindex: 3, address: ip(text), prefix_length: 31 };
    let both = one(&message(20, 0, &body, &[peer.clone(), local]));
    assert_eq!(both, Message::Address(Operation::New, address("10.1.11.1")));
    let only_one = one(&message(21, 0, &body, &[peer]));
    assert_eq!(only_one, Message::Address(Operation::Delete, address("10.1.11.0")));
}

#[test]
fn an_fdb_entry_with_everything() {
    let body = [7, 0, 0, 0, 5, 0, 0, 0, 0x42, 0, 0x12, 0];
    let attributes = [
        attribute(2, &[2, 0, 0, 0, 2, 1]),
        attribute(1, &[10, 0, 0, 12]),
        attribute(5, &100u16.to_ne_bytes()),
        attribute(6, &[0x12, 0xb6]),
        number(7, 10011),
        number(8, 3),
        number(9, 4),
        number(11, 10010),
        number(13, 77),
        number(15, 2),
        attribute(3, &[0; 16]),
    ];
    let entry = FdbEntry {
        ifindex: 5,
        mac: MacAddr([2, 0, 0, 0, 2, 1]),
        destination: Some(ip("10.0.0.12")),
        master: Some(4),
        vlan: Some(100),
        port: Some(4790),
        vni: Some(10011),
        source_vni: Some(10010),
        via: Some(3),
        next_hop_id: Some(77),
        state: 0x42,
        flags: 0x212,
    };
    assert_eq!(one(&message(29, 0, &body, &attributes)), Message::Fdb(Operation::Delete, entry));
}

/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` are hints, not part of the type.
#[test]
fn flag_bits_of_attribute_types_are_masked() {
    let body = [2, 0, 0, 0, 5, 0, 0, 0, 0x02, 0, 0, 0];
    let plain = one(&message(28, 0, &body, &[attribute(1, &[10, 1, 11, 0])]));
    for bits in [0x4000, 0x8000, 0xc000] {
        assert_eq!(one(&message(28, 0, &body, &[attribute(1 | bits, &[10, 1, 11, 0])])), plain);
    }
}

#[test]
fn neighbours() {
    let body = [2, 0, 0, 0, 5, 0, 0, 0, 0x02, 0, 0x10, 0];
    let attributes = [attribute(1, &[10, 1, 11, 0]), attribute(2, &[2, 0, 0, 0, 2, 1])];
    let neighbour = Neighbour {
        ifindex: 5,
        address: ip("10.1.11.0"),
        mac: Some(MacAddr([2, 0, 0, 0, 2, 1])),
        state: 2,
        flags: 0x10,
    };
    let unresolved = Neighbour { mac: None, ..neighbour.clone() };
    assert_eq!(
        one(&message(28, 0, &body, &attributes)),
        Message::Neighbour(Operation::New, neighbour)
    );
    assert_eq!(
        one(&message(28, 0, &body, &attributes[..1])),
        Message::Neighbour(Operation::New, unresolved)
    );
}

fn expected_route(via: RouteTarget) -> Route {
    Route {
        table: 1000,
        destination: ip("10.0.0.12"),
        prefix_length: 32,
        priority: 20,
        tos: 0x10,
        source: None,
        route_type: 1,
        protocol: 186,
        replace: true,
        prepend: false,
        cloned: false,
        mtu: Some(1400),
        mtu_locked: false,
        hop_limit: None,
        via,
    }
}

#[test]
fn routes() {
    let common = || {
        vec![
            attribute(1, &[10, 0, 0, 12]),
            number(6, 20),
            number(15, 1000),
            attribute(8, &number(2, 1400)),
        ]
    };
    let with = |more: Vec<Vec<u8>>, flags| {
        let attributes = [common(), more].concat();
        match one(&message(24, 0x500, &route_body(2, 32, flags), &attributes)) {
            Message::Route(Operation::New, route) => route,
            other => panic!("{other:?}"),
        }
    };
    let hop = RouteNextHop {
        ifindex: 3,
        gateway: Some(ip("10.1.11.0")),
        weight: 1,
        flags: 0,
        vni: None,
        encapsulation: None,
    };
    let gateway = attribute(5, &[10, 1, 11, 0]);

    let single = with(vec![gateway.clone(), number(4, 3)], 0);
    assert_eq!(single, expected_route(RouteTarget::NextHops(vec![hop.clone()])));

    // RTA_VIA: family and address.
    let six = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap();
    let via = attribute(18, &[&10u16.to_ne_bytes()[..], &six.octets()].concat());
    let hop6 = RouteNextHop { gateway: Some(six.into()), ..hop.clone() };
    assert_eq!(
        with(vec![via.clone(), number(4, 3)], 0),
        expected_route(RouteTarget::NextHops(vec![hop6.clone()]))
    );

    // FRR's VNI, with type and content in either order. Other encapsulations have different
    // content.
    let kind = |kind: u16| attribute(21, &kind.to_ne_bytes());
    let vni = attribute(22, &number(0, 5000));
    for order in [vec![kind(100), vni.clone()], vec![vni.clone(), kind(100)]] {
        let overlay = with([vec![gateway.clone(), number(4, 3)], order].concat(), 4);
        let hop = RouteNextHop { vni: Some(5000), flags: 4, ..hop.clone() };
        assert_eq!(overlay, expected_route(RouteTarget::NextHops(vec![hop])));
    }
    let mpls = with(vec![gateway.clone(), number(4, 3), attribute(22, &[1, 2, 3]), kind(1)], 0);
    let labelled = RouteNextHop { encapsulation: Some(1), ..hop.clone() };
    assert_eq!(mpls, expected_route(RouteTarget::NextHops(vec![labelled])));

    // RTA_MULTIPATH: struct rtnexthop and attributes, twice.
    let entry = |flags: u8, weight: u8, ifindex: u32, attributes: &[u8]| {
        let length = u16::try_from(8 + attributes.len()).unwrap().to_ne_bytes();
        [&length[..], &[flags, weight], &ifindex.to_ne_bytes(), attributes].concat()
    };
    let multipath = attribute(9, &[entry(0, 0, 3, &gateway), entry(1, 255, 4, &via)].concat());
    let second = RouteNextHop { ifindex: 4, weight: 256, flags: 1, ..hop6 };
    let hops = vec![hop, second];
    assert_eq!(with(vec![multipath.clone()], 0), expected_route(RouteTarget::NextHops(hops)));

    // The object takes precedence over the hops that the kernel adds.
    assert_eq!(with(vec![multipath, number(30, 28)], 0), expected_route(RouteTarget::Object(28)));
    assert_eq!(with(vec![], 0), expected_route(RouteTarget::NextHops(vec![])));
    assert!(with(vec![], 0x200).cloned);
}

#[test]
fn default_routes_and_others() {
    let default = one(&message(24, 0, &route_body(10, 0, 0), &[number(4, 3)]));
    let Message::Route(_, route) = default else { panic!("{default:?}") };
    assert_eq!(
        (route.destination, route.prefix_length, route.table, route.replace),
        (ip("::"), 0, 254, false)
    );

    // A source prefix is told: such a route is chosen by the source address.
    let mut source_specific = route_body(10, 0, 0);
    source_specific[2] = 64;
    let Message::Route(_, route) = one(&message(24, 0, &source_specific, &[number(4, 3)])) else {
        panic!("not a route")
    };
    assert_eq!((route.destination, route.source), (ip("::"), Some((ip("::"), 64))));

    // MPLS routes are not decoded.
    assert_eq!(one(&message(25, 0, &route_body(28, 20, 0), &[number(1, 16)])), Message::Other(25));
    for kind in [0, 1, 2, 3, 18, 26, 30, 38, 106, 108, 0xffff] {
        assert_eq!(one(&message(kind, 0, &[], &[])), Message::Other(kind));
    }
}

#[test]
fn next_hops() {
    let body = [2, 0, 11, 0, 4, 0, 0, 0];
    let next_hop = |kind, attributes: &[Vec<u8>]| match one(&message(kind, 0, &body, attributes)) {
        Message::NextHop(_, next_hop) => next_hop,
        other => panic!("{other:?}"),
    };
    let gateway = attribute(6, &[10, 1, 11, 0]);
    let hop = RouteNextHop {
        ifindex: 3,
        gateway: Some(ip("10.1.11.0")),
        weight: 1,
        flags: 4,
        vni: None,
        encapsulation: None,
    };
    let single = next_hop(104, &[number(1, 22), gateway.clone(), number(5, 3)]);
    assert_eq!(single, NextHop { id: 22, kind: NextHopKind::Single(hop) });
    // Weights are one less on the wire. The second octet is their high part since Linux 6.12.
    let members = [22, 0, 0, 0, 0, 0, 0, 0, 27, 0, 0, 0, 255, 1, 0, 0];
    let group = next_hop(104, &[number(1, 26), attribute(2, &members)]);
    assert_eq!(group, NextHop { id: 26, kind: NextHopKind::Group(vec![(22, 1), (27, 512)]) });
    let blackhole = next_hop(104, &[number(1, 8), attribute(4, &[])]);
    assert_eq!(blackhole, NextHop { id: 8, kind: NextHopKind::Blackhole });
    let fdb = next_hop(104, &[number(1, 9), gateway, attribute(11, &[])]);
    assert_eq!(fdb, NextHop { id: 9, kind: NextHopKind::Other });
    // Groups of VTEPs are not next hops of a route either.
    let vteps = next_hop(104, &[number(1, 10), attribute(2, &members), attribute(11, &[])]);
    assert_eq!(vteps, NextHop { id: 10, kind: NextHopKind::Other });
    assert_eq!(next_hop(105, &[number(1, 9)]), NextHop { id: 9, kind: NextHopKind::Other });
}

#[test]
fn rules_of_ipv6_have_its_addresses() {
    let rule = one(&message(32, 0, &[10, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], &[number(6, 32_766)]));
    let [_, main] = netlink::Rule::ipv6_defaults();
    assert_eq!(rule, Message::Rule(netlink::Operation::New, main));
    // AF_MPLS
    let rule = one(&message(32, 0, &[28, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], &[number(6, 100)]));
    assert_eq!(rule, Message::Other(32));
}

#[test]
fn hop_limits_and_encapsulations() {
    let route = |attributes: &[Vec<u8>]| match one(&message(
        24,
        0,
        &bytes::route_body(2, 0, 0),
        attributes,
    )) {
        Message::Route(_, route) => route,
        other => panic!("{other:?}"),
    };
    let metrics = attribute(8, &[number(2, 1400), number(10, 9)].concat());
    let route_with = route(&[number(4, 3), metrics]);
    assert_eq!((route_with.mtu, route_with.hop_limit), (Some(1400), Some(9)));
    assert_eq!(route(&[number(4, 3), attribute(8, &number(10, 0))]).hop_limit, None);
    // NHA_OIF and NHA_ENCAP_TYPE (SRv6).
    let object = [number(1, 22), attribute(7, &5u16.to_ne_bytes()), number(5, 3)];
    let object = one(&message(104, 0, &[2, 0, 11, 0, 0, 0, 0, 0], &object));
    let Message::NextHop(_, netlink::NextHop { kind: netlink::NextHopKind::Single(hop), .. }) =
        object
    else {
        panic!("{object:?}")
    };
    assert_eq!(hop.encapsulation, Some(5));
    let link = one(&message(
        16,
        0,
        &link_body(0, 9, 0),
        &[number(5, 3), attribute(37, &0i32.to_ne_bytes())],
    ));
    let Message::Link(_, Link { link_namespace, kind: LinkKind::Plain, .. }) = link else {
        panic!("{link:?}")
    };
    assert_eq!(link_namespace, Some(0));
}
