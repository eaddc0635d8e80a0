//! Compares dumps of the running kernel with the output of iproute2. Needs root.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::leaf::{Namespace, leaf};
use netlink::{
    Dump, FdbEntry, Kernel, Link, LinkKind, Message, NextHopKind, Operation, RouteNextHop,
    RouteTarget,
};
use root_test::root_test;
use serde_json::Value;

fn links(messages: &[Message]) -> Vec<&Link> {
    messages
        .iter()
        .map(|message| match message {
            Message::Link(Operation::New, link) => link,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn address(value: &Value) -> IpAddr {
    text(value).parse().unwrap()
}

/// Names of interfaces, by their index.
fn names(links: &[&Link]) -> BTreeMap<u32, String> {
    links.iter().map(|link| (link.ifindex, link.name.clone())).collect()
}

fn compare_links(namespace: &Namespace, links: &[&Link]) {
    let names = names(links);
    let theirs = namespace.json("link show");
    assert_eq!(links.len(), theirs.len());
    for their in &theirs {
        let link = links.iter().find(|link| their["ifindex"] == link.ifindex).unwrap();
        let name = &link.name;
        assert_eq!(their["ifname"], link.name);
        assert_eq!(their["mtu"], link.mtu, "{name}");
        if link.hardware_type == 1 {
            assert_eq!(their["address"], link.mac.unwrap().to_string(), "{name}");
        }
        assert_eq!(
            their.get("master").map(text),
            link.master.map(|index| names[&index].as_str()),
            "{name}"
        );
        let flags: Vec<&str> = their["flags"].as_array().unwrap().iter().map(text).collect();
        assert_eq!(flags.contains(&"UP"), link.flags & 1 != 0, "{name}");
        assert_eq!(flags.contains(&"LOWER_UP"), link.flags & 0x1_0000 != 0, "{name}");
        assert_eq!(
            flags.contains(&"UP") && flags.contains(&"LOWER_UP"),
            link.is_operational(),
            "{name}"
        );
        assert_eq!(their["operstate"] == "UP", link.operstate == 6, "{name}");
        assert!(!link.bridge_port_only && !link.xdp, "{name}");
        let info = &their["linkinfo"];
        match &link.kind {
            LinkKind::Plain => assert!(info.get("info_kind").is_none(), "{name}"),
            LinkKind::Veth => assert_eq!(info["info_kind"], "veth", "{name}"),
            LinkKind::Bridge(netlink::Bridge { vlan_filtering, .. }) => {
                assert_eq!(info["info_kind"], "bridge", "{name}");
                assert_eq!(
                    info["info_data"]["vlan_filtering"],
                    u8::from(*vlan_filtering),
                    "{name}"
                );
            }
            LinkKind::Vxlan(vxlan) => {
                let data = &info["info_data"];
                let on = |key: &str| data.get(key) == Some(&Value::Bool(true));
                assert_eq!(
                    data.get("id").map_or(0, |id| id.as_u64().unwrap()),
                    u64::from(vxlan.id),
                    "{name}"
                );
                let local = data.get("local").or(data.get("local6")).map(address);
                let remote = ["group", "remote", "group6", "remote6"]
                    .iter()
                    .find_map(|key| data.get(key))
                    .map(address);
                assert_eq!((local, remote), (vxlan.local, vxlan.remote), "{name}");
                assert_eq!(
                    data.get("link").map(text),
                    vxlan.link.map(|index| names[&index].as_str()),
                    "{name}"
                );
                assert_eq!(data["port"], vxlan.destination_port, "{name}");
                assert_eq!(data["port_range"]["low"], vxlan.source_ports.0, "{name}");
                assert_eq!(data["port_range"]["high"], vxlan.source_ports.1, "{name}");
                assert_eq!(
                    data.get("ttl").map_or(0, |ttl| ttl.as_u64().unwrap()),
                    u64::from(vxlan.ttl),
                    "{name}"
                );
                assert_eq!(
                    data.get("ageing").map_or(300, |age| age.as_u64().unwrap()),
                    u64::from(vxlan.ageing)
                );
                assert_eq!(
                    data.get("limit").map_or(0, |limit| limit.as_u64().unwrap()),
                    u64::from(vxlan.limit)
                );
                assert_eq!(
                    data.get("learning") != Some(&Value::Bool(false)),
                    vxlan.learning,
                    "{name}"
                );
                assert_eq!(data.get("df").is_some_and(|df| df == "set"), vxlan.df == 1, "{name}");
                assert_eq!(on("udp_csum"), vxlan.udp_checksum, "{name}");
                assert_eq!(on("external"), vxlan.external, "{name}");
                let options: Vec<&str> = ["proxy", "rsc", "l2miss", "l3miss", "gbp"]
                    .into_iter()
                    .filter(|option| on(option))
                    .collect();
                assert_eq!(options, vxlan.options, "{name}");
            }
            LinkKind::Other(kind) => panic!("{name} is a {kind}"),
        }
    }
}

/// (ifindex, MAC, VTEP, bridge, VLAN, self, sticky, extern_learn), which `bridge fdb` also shows.
type FdbRow = (u32, String, Option<IpAddr>, Option<u32>, Option<u64>, bool, bool, bool);

fn fdb_row(entry: &FdbEntry) -> FdbRow {
    let flag = |bit: u32| entry.flags & bit != 0;
    let vlan = entry.vlan.map(u64::from);
    (
        entry.ifindex,
        entry.mac.to_string(),
        entry.destination,
        entry.master,
        vlan,
        flag(0x02),
        flag(0x40),
        flag(0x10),
    )
}

fn compare_fdb(namespace: &Namespace, names: &BTreeMap<u32, String>, messages: &[Message]) {
    let mut ours: Vec<FdbRow> = messages
        .iter()
        .map(|message| match message {
            Message::Fdb(Operation::New, entry) => fdb_row(entry),
            other => panic!("{other:?}"),
        })
        .collect();
    let index = |name: &Value| *names.iter().find(|(_, known)| *name == known.as_str()).unwrap().0;
    let theirs: Vec<Value> = serde_json::from_str(&namespace.bridge("-j -d fdb show")).unwrap();
    let mut theirs: Vec<FdbRow> = theirs
        .iter()
        .map(|their| {
            let flags: Vec<&str> = their["flags"].as_array().unwrap().iter().map(text).collect();
            let has = |flag| flags.contains(&flag);
            (
                index(&their["ifname"]),
                text(&their["mac"]).to_owned(),
                their.get("dst").map(address),
                their.get("master").map(index),
                their.get("vlan").map(|vlan| vlan.as_u64().unwrap()),
                has("self"),
                has("sticky"),
                has("extern_learn"),
            )
        })
        .collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

/// (table, prefix, metric, type, protocol, object, hops as (gateway, device, weight)).
type RouteRow = (u32, String, u32, u8, u8, Option<u32>, Vec<(Option<IpAddr>, String, u16)>);

fn hop_row(names: &BTreeMap<u32, String>, hop: &RouteNextHop) -> (Option<IpAddr>, String, u16) {
    (hop.gateway, names[&hop.ifindex].clone(), hop.weight)
}

fn compare_routes(namespace: &Namespace, names: &BTreeMap<u32, String>, messages: &[Message]) {
    let mut ours: Vec<RouteRow> = Vec::new();
    for message in messages {
        let Message::Route(Operation::New, route) = message else { panic!("{message:?}") };
        let full = if route.destination.is_ipv4() { 32 } else { 128 };
        let prefix = match (route.prefix_length, route.destination) {
            (0, _) => "default".into(),
            (length, destination) if length == full => destination.to_string(),
            (length, destination) => format!("{destination}/{length}"),
        };
        let (object, hops) = match &route.via {
            RouteTarget::Object(id) => (Some(*id), vec![]),
            RouteTarget::NextHops(hops) => {
                (None, hops.iter().map(|hop| hop_row(names, hop)).collect())
            }
        };
        ours.push((
            route.table,
            prefix,
            route.priority,
            route.route_type,
            route.protocol,
            object,
            hops,
        ));
    }
    let mut theirs: Vec<RouteRow> = Vec::new();
    for their in namespace.json("route show table all").iter() {
        let integer =
            |key: &str| their.get(key).map_or(0, |value| text(value).parse::<u32>().unwrap());
        let object = their.get("nhid").map(|id| u32::try_from(id.as_u64().unwrap()).unwrap());
        let hop = |hop: &Value| {
            let gateway =
                hop.get("gateway").or(hop.get("via").map(|via| &via["host"])).map(address);
            let weight = hop
                .get("weight")
                .map_or(1, |weight| u16::try_from(weight.as_u64().unwrap()).unwrap());
            (gateway, text(&hop["dev"]).to_owned(), weight)
        };
        let hops = match (object, their.get("nexthops"), their.get("dev")) {
            (None, Some(Value::Array(hops)), _) => hops.iter().map(hop).collect(),
            (None, None, Some(_)) => vec![hop(their)],
            _ => vec![],
        };
        theirs.push((
            integer("table"),
            text(&their["dst"]).to_owned(),
            their
                .get("metric")
                .map_or(0, |metric| u32::try_from(metric.as_u64().unwrap()).unwrap()),
            u8::try_from(integer("type")).unwrap(),
            u8::try_from(integer("protocol")).unwrap(),
            object,
            hops,
        ));
    }
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

fn compare_next_hops(namespace: &Namespace, names: &BTreeMap<u32, String>, messages: &[Message]) {
    let theirs = namespace.json("nexthop show");
    assert_eq!(messages.len(), theirs.len());
    for (message, their) in messages.iter().zip(&theirs) {
        let Message::NextHop(Operation::New, next_hop) = message else { panic!("{message:?}") };
        assert_eq!(their["id"], next_hop.id);
        match &next_hop.kind {
            NextHopKind::Single(hop) => {
                assert_eq!(their.get("gateway").map(address), hop.gateway);
                assert_eq!(their["dev"], names[&hop.ifindex].as_str());
                assert_eq!(
                    their["flags"].as_array().unwrap().iter().any(|flag| flag == "onlink"),
                    hop.flags & 4 != 0
                );
            }
            NextHopKind::Group(members) => {
                let member =
                    |(id, weight): &(u32, u16)| serde_json::json!({ "id": id, "weight": weight });
                assert_eq!(their["group"], members.iter().map(member).collect::<Value>());
            }
            NextHopKind::Blackhole => assert!(their.get("blackhole").is_some()),
            NextHopKind::Other => assert!(their.get("fdb").is_some()),
        }
    }
}

fn compare_addresses(namespace: &Namespace, messages: &[Message]) {
    let mut theirs = Vec::new();
    for link in namespace.json("addr show") {
        for info in link["addr_info"].as_array().unwrap() {
            theirs.push((
                link["ifindex"].as_u64().unwrap(),
                address(&info["local"]),
                info["prefixlen"].as_u64().unwrap(),
            ));
        }
    }
    let ours = messages.iter().map(|message| match message {
        Message::Address(Operation::New, a) => {
            (u64::from(a.ifindex), a.address, u64::from(a.prefix_length))
        }
        other => panic!("{other:?}"),
    });
    let mut ours: Vec<_> = ours.collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

/// The output of iproute2 and a dump. Both are repeated until the output before and after the dump
/// is the same, because the leaf's own stack may change neighbours meanwhile.
async fn dump_neighbours(namespace: &Namespace, kernel: &Kernel) -> (Vec<Value>, Vec<Message>) {
    loop {
        let before = namespace.json("neigh show nud all");
        let dumped = kernel.dump(Dump::Neighbours).await.unwrap();
        if namespace.json("neigh show nud all") == before {
            return (before, dumped);
        }
    }
}

fn compare_neighbours(theirs: &[Value], names: &BTreeMap<u32, String>, messages: &[Message]) {
    let ours = messages.iter().map(|message| match message {
        Message::Neighbour(Operation::New, neighbour) => (
            names[&neighbour.ifindex].clone(),
            neighbour.address,
            neighbour.mac.map(|mac| mac.to_string()),
            neighbour.flags & 0x10 != 0,
        ),
        other => panic!("{other:?}"),
    });
    let mut ours: Vec<_> = ours.collect();
    let mut theirs: Vec<_> = theirs
        .iter()
        .map(|their| {
            let mac = their.get("lladdr").map(|mac| text(mac).to_owned());
            (
                text(&their["dev"]).to_owned(),
                address(&their["dst"]),
                mac,
                their.get("extern_learn").is_some(),
            )
        })
        .collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

#[root_test]
fn dumps_agree_with_iproute2() {
    let namespace = Namespace::new("dump");
    leaf(&namespace);
    namespace.block_on(async {
        let kernel = Kernel::open().unwrap();
        let dumped = kernel.dump(Dump::Links).await.unwrap();
        let links = links(&dumped);
        compare_links(&namespace, &links);
        let names = names(&links);
        let port = links.iter().find(|link| link.name == "vx10").unwrap().bridge_port.unwrap();
        assert!(
            port.isolated
                && port.neighbour_suppression
                && !port.learning
                && !port.locked
                && port.state == 3
        );
        compare_addresses(&namespace, &kernel.dump(Dump::Addresses).await.unwrap());
        compare_next_hops(&namespace, &names, &kernel.dump(Dump::NextHops).await.unwrap());
        compare_routes(&namespace, &names, &kernel.dump(Dump::Routes).await.unwrap());
        let (theirs, ours) = dump_neighbours(&namespace, &kernel).await;
        compare_neighbours(&theirs, &names, &ours);
        let fdb = kernel.dump(Dump::Fdb).await.unwrap();
        compare_fdb(&namespace, &names, &fdb);
        let full = FdbEntry {
            ifindex: *names.iter().find(|(_, name)| *name == "vx10").unwrap().0,
            mac: "02:00:00:00:02:02".parse().unwrap(),
            destination: Some("10.0.0.13".parse().unwrap()),
            port: Some(4790),
            vni: Some(99),
            via: Some(*names.iter().find(|(_, name)| *name == "up2").unwrap().0),
            state: 0x42,
            flags: 0x02,
            ..FdbEntry::default()
        };
        let same =
            |message: &&Message| matches!(message, Message::Fdb(_, entry) if entry.mac == full.mac);
        let found: Vec<_> = fdb.iter().filter(same).collect();
        assert_eq!(found, [&Message::Fdb(Operation::New, full.clone())]);
    });
}
