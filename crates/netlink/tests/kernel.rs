//! Dumps, events and requests against the running kernel, with iproute2 as the second opinion. Needs root.

#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // Helpers of tests, which may.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use netlink::{
    Dump, Error, Event, FdbEntry, Kernel, Link, LinkChange, LinkKind, Message, NextHopKind, Operation,
    Requests, RouteNextHop, RouteTarget, Veth, VethEnd,
};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use wire::MacAddr;

/// A network namespace that goes with the test.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        assert!(
            nix::unistd::Uid::effective().is_root(),
            "this test makes network namespaces: run it as root, for example with `sudo -E cargo test -p netlink`"
        );
        let namespace = Self(format!("vtn-{}-{name}", std::process::id()));
        run("ip", &["netns", "add", &namespace.0]);
        namespace.ip("link set lo up");
        namespace
    }

    fn handle(&self) -> File {
        File::open(format!("/run/netns/{}", self.0)).unwrap()
    }

    fn ip(&self, arguments: &str) -> String {
        run("ip", &[&["-n", &self.0][..], &words(arguments)].concat())
    }

    fn bridge(&self, arguments: &str) -> String {
        run("bridge", &[&["-n", &self.0][..], &words(arguments)].concat())
    }

    fn json(&self, arguments: &str) -> Vec<Value> {
        serde_json::from_str(&self.ip(&format!("-N -j -d {arguments}"))).unwrap()
    }

    /// Runs `work` on a thread inside.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(self.handle(), CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs asynchronous `work` in a runtime of its own inside.
    fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        self.inside(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await.unwrap() })
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn words(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// A leaf as FRR would have it: two uplinks, a VNI with a bridge, a VLAN-aware bridge, routes of every kind.
fn leaf(namespace: &Namespace) {
    // Addresses that are being checked and routers that are being looked for would change things between two looks.
    let quiet = "net.ipv6.conf.default.addr_gen_mode=1";
    run("ip", &["netns", "exec", &namespace.0, "sysctl", "-qw", quiet]);
    for index in 1..=2 {
        namespace.ip(&format!("link add name up{index} type veth peer name spine{index}"));
        namespace.ip(&format!("link set spine{index} up"));
        namespace.ip(&format!("link set up{index} mtu 9100 up"));
        namespace.ip(&format!("addr add 10.1.{index}.1/31 dev up{index}"));
    }
    namespace.ip("addr add 10.0.0.11/32 dev lo");
    namespace.ip("link add name br10 type bridge");
    namespace.ip("link add name br20 type bridge");
    let options = "srcport 50000 60000 df set ttl 9 tos 4 ageing 77 udpcsum nolearning";
    namespace.ip(&format!("link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789 {options}"));
    namespace.ip(
        "link add name vx20 type vxlan id 10020 group 239.1.1.1 dev up1 dstport 4790 proxy rsc l2miss gbp",
    );
    namespace.ip("link add name vx30 type vxlan id 10030 local 2001:db8::1 remote 2001:db8::2 dstport 4791");
    namespace.ip("link add name vx40 type vxlan external dstport 4792");
    namespace.ip("link set vx10 master br10 up");
    namespace.ip("link set br10 address 02:00:00:00:00:0a up");
    namespace.bridge("link set dev vx10 learning off isolated on neigh_suppress on");
    namespace.bridge("fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.12");
    namespace.bridge("fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.13");
    namespace.bridge("fdb add 02:00:00:00:02:01 dev vx10 dst 10.0.0.12 self extern_learn");
    namespace.bridge("fdb replace 02:00:00:00:02:01 dev vx10 master extern_learn dynamic");
    namespace.bridge("fdb add 02:00:00:00:02:02 dev vx10 dst 10.0.0.13 port 4790 vni 99 via up2 self static");
    namespace.bridge("fdb add 02:00:00:00:02:03 dev vx10 master static sticky");
    namespace.ip("neigh add 10.1.1.0 lladdr 02:00:00:00:01:00 dev up1 nud noarp extern_learn");
    namespace.ip("neigh add fe80::1 lladdr 02:00:00:00:01:00 dev up1 nud permanent");
    namespace.ip("nexthop add id 5 via 10.1.1.0 dev up1");
    namespace.ip("nexthop add id 6 via 10.1.2.0 dev up2 onlink");
    namespace.ip("nexthop add id 7 group 5,4/6,200");
    namespace.ip("nexthop add id 8 blackhole");
    namespace.ip("nexthop add id 9 via 10.0.0.9 fdb");
    namespace
        .ip("route add 10.0.0.12/32 metric 20 proto 186 nexthop via 10.1.1.0 weight 3 nexthop via 10.1.2.0");
    namespace.ip("route add 10.0.0.13/32 nhid 7");
    namespace.ip("route add 10.9.0.0/16 via inet6 fe80::1 dev up1 metric 7 mtu 1400");
    namespace.ip("route add 10.10.0.0/16 tos 0x10 via 10.9.9.9 dev br10 onlink");
    namespace.ip("route add blackhole 10.8.0.0/16 table 1000");
    namespace.ip("route add default via 10.1.1.0");
    namespace.ip("-6 route add 2001:db8::/64 nexthop via fe80::1 dev up1 nexthop via fe80::2 dev up2");
}

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
        assert_eq!(their.get("master").map(text), link.master.map(|index| names[&index].as_str()), "{name}");
        let flags: Vec<&str> = their["flags"].as_array().unwrap().iter().map(text).collect();
        assert_eq!(flags.contains(&"UP"), link.flags & 1 != 0, "{name}");
        assert_eq!(flags.contains(&"LOWER_UP"), link.flags & 0x1_0000 != 0, "{name}");
        assert_eq!(flags.contains(&"UP") && flags.contains(&"LOWER_UP"), link.is_operational(), "{name}");
        assert_eq!(their["operstate"] == "UP", link.operstate == 6, "{name}");
        assert!(!link.bridge_port_only && !link.xdp, "{name}");
        let info = &their["linkinfo"];
        match &link.kind {
            LinkKind::Plain => assert!(info.get("info_kind").is_none(), "{name}"),
            LinkKind::Veth => assert_eq!(info["info_kind"], "veth", "{name}"),
            LinkKind::Bridge { vlan_filtering } => {
                assert_eq!(info["info_kind"], "bridge", "{name}");
                assert_eq!(info["info_data"]["vlan_filtering"], u8::from(*vlan_filtering), "{name}");
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
                assert_eq!(data.get("learning") != Some(&Value::Bool(false)), vxlan.learning, "{name}");
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

/// (ifindex, MAC, VTEP, bridge, VLAN, self, sticky, extern_learn): what `bridge fdb` shows too.
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
            RouteTarget::NextHops(hops) => (None, hops.iter().map(|hop| hop_row(names, hop)).collect()),
        };
        ours.push((route.table, prefix, route.priority, route.route_type, route.protocol, object, hops));
    }
    let mut theirs: Vec<RouteRow> = Vec::new();
    for their in namespace.json("route show table all").iter() {
        let integer = |key: &str| their.get(key).map_or(0, |value| text(value).parse::<u32>().unwrap());
        let object = their.get("nhid").map(|id| u32::try_from(id.as_u64().unwrap()).unwrap());
        let hop = |hop: &Value| {
            let gateway = hop.get("gateway").or(hop.get("via").map(|via| &via["host"])).map(address);
            let weight =
                hop.get("weight").map_or(1, |weight| u16::try_from(weight.as_u64().unwrap()).unwrap());
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
            their.get("metric").map_or(0, |metric| u32::try_from(metric.as_u64().unwrap()).unwrap()),
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
                let member = |(id, weight): &(u32, u16)| serde_json::json!({ "id": id, "weight": weight });
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
        Message::Address(Operation::New, a) => (u64::from(a.ifindex), a.address, u64::from(a.prefix_length)),
        other => panic!("{other:?}"),
    });
    let mut ours: Vec<_> = ours.collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

fn compare_neighbours(namespace: &Namespace, names: &BTreeMap<u32, String>, messages: &[Message]) {
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
    let theirs = namespace.json("neigh show nud all");
    let mut theirs: Vec<_> = theirs
        .iter()
        .map(|their| {
            let mac = their.get("lladdr").map(|mac| text(mac).to_owned());
            (text(&their["dev"]).to_owned(), address(&their["dst"]), mac, their.get("extern_learn").is_some())
        })
        .collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

#[test]
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
            port.isolated && port.neighbour_suppression && !port.learning && !port.locked && port.state == 3
        );
        compare_addresses(&namespace, &kernel.dump(Dump::Addresses).await.unwrap());
        compare_next_hops(&namespace, &names, &kernel.dump(Dump::NextHops).await.unwrap());
        compare_routes(&namespace, &names, &kernel.dump(Dump::Routes).await.unwrap());
        compare_neighbours(&namespace, &names, &kernel.dump(Dump::Neighbours).await.unwrap());
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
        let same = |message: &&Message| matches!(message, Message::Fdb(_, entry) if entry.mac == full.mac);
        let found: Vec<_> = fdb.iter().filter(same).collect();
        assert_eq!(found, [&Message::Fdb(Operation::New, full.clone())]);
    });
}

/// Events until one fits.
async fn until(kernel: &mut Kernel, seen: &mut Vec<Message>, fits: impl Fn(&Message) -> bool) {
    while !seen.iter().any(&fits) {
        match kernel.next().await.unwrap() {
            Event::Messages(messages) => seen.extend(messages),
            Event::Overrun => panic!("overrun after {seen:?}"),
        }
    }
}

#[test]
fn every_change_is_an_event_equal_to_what_a_dump_says() {
    let namespace = Namespace::new("watch");
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        leaf(&namespace);
        namespace.ip("link add name end type bridge");
        let mut seen = Vec::new();
        until(&mut kernel, &mut seen, |message| {
            matches!(message, Message::Link(Operation::New, link) if link.name == "end")
        })
        .await;
        // What does not change on its own: the events contain what dumps say, word for word.
        for what in [Dump::NextHops, Dump::Fdb] {
            for dumped in kernel.dump(what).await.unwrap() {
                // Each netdev's list of multicast addresses is in the dump, but changes to it are no events.
                if matches!(&dumped, Message::Fdb(_, entry) if entry.mac.is_group()) {
                    continue;
                }
                let known = |message: &Message| match (message, &dumped) {
                    (Message::Fdb(_, a), Message::Fdb(_, b)) => fdb_row(a) == fdb_row(b),
                    (a, b) => a == b,
                };
                assert!(seen.iter().any(known), "{dumped:?} was no event");
            }
        }
        for dumped in kernel.dump(Dump::Routes).await.unwrap() {
            let Message::Route(_, route) = &dumped else { panic!() };
            if matches!(route.protocol, 3 | 186) {
                let known = |message: &Message| match message {
                    Message::Route(Operation::New, seen) => {
                        (seen.table, seen.destination, seen.priority, &seen.via)
                            == (route.table, route.destination, route.priority, &route.via)
                    }
                    _ => false,
                };
                assert!(seen.iter().any(known), "{dumped:?} was no event");
            }
        }
        let link = |name: &str| seen.iter().any(|m| matches!(m, Message::Link(_, link) if link.name == name));
        assert!(["up1", "up2", "br10", "br20", "vx10", "vx40"].into_iter().all(link));

        // And everything goes again.
        let mut gone = Vec::new();
        namespace.bridge("fdb del 02:00:00:00:02:01 dev vx10 dst 10.0.0.12 self");
        namespace.ip("route del 10.0.0.13/32");
        namespace.ip("nexthop del id 7");
        namespace.ip("addr del 10.1.2.1/31 dev up2");
        namespace.ip("neigh del 10.1.1.0 dev up1");
        namespace.ip("link del vx30");
        until(&mut kernel, &mut gone, |m| matches!(m, Message::Link(Operation::Delete, l) if l.name == "vx30")).await;
        let is = |text: &str| -> IpAddr { text.parse().unwrap() };
        let expected: [&dyn Fn(&Message) -> bool; 5] = [
            &|m| matches!(m, Message::Fdb(Operation::Delete, e) if e.mac == MacAddr([2, 0, 0, 0, 2, 1]) && e.flags & 2 != 0),
            &|m| matches!(m, Message::Route(Operation::Delete, r) if r.destination == is("10.0.0.13")),
            &|m| matches!(m, Message::NextHop(Operation::Delete, n) if n.id == 7),
            &|m| matches!(m, Message::Address(Operation::Delete, a) if a.address == is("10.1.2.1")),
            &|m| matches!(m, Message::Neighbour(Operation::Delete, n) if n.address == is("10.1.1.0")),
        ];
        for (index, expected) in expected.iter().enumerate() {
            assert!(gone.iter().any(expected), "delete {index} is missing: {gone:?}");
        }
    });
}

/// What the module says of silent changes: if a kernel comes to report them, this fails and the re-reading may go.
#[test]
fn a_link_that_goes_down_takes_ipv4_routes_and_next_hops_along_in_silence() {
    let namespace = Namespace::new("silent");
    leaf(&namespace);
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        namespace.ip("link set up1 down");
        namespace.ip("link add name end type bridge");
        let mut seen = Vec::new();
        until(&mut kernel, &mut seen, |m| matches!(m, Message::Link(Operation::New, l) if l.name == "end")).await;
        let silent = |message: &Message| match message {
            Message::Route(_, route) => route.destination.is_ipv6(),
            Message::NextHop(..) => false,
            _ => true,
        };
        assert!(seen.iter().all(silent), "{seen:?}");
        let next_hops = kernel.dump(Dump::NextHops).await.unwrap();
        let ids: Vec<u32> = next_hops
            .iter()
            .map(|message| match message {
                Message::NextHop(_, next_hop) => next_hop.id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [6, 7, 8, 9]);
        let routes = kernel.dump(Dump::Routes).await.unwrap();
        let default = |m: &Message| matches!(m, Message::Route(_, r) if r.prefix_length == 0 && r.destination.is_ipv4());
        assert!(!routes.iter().any(default));
        // A multipath route stays, with its hop marked dead.
        let hops = routes.iter().find_map(|message| match message {
            Message::Route(_, route) if route.destination == IpAddr::from([10, 0, 0, 12]) => Some(route.via.clone()),
            _ => None,
        });
        let Some(RouteTarget::NextHops(hops)) = hops else { panic!("{hops:?}") };
        assert_eq!(hops.iter().map(|hop| hop.flags & 1).collect::<Vec<_>>(), [1, 0]);
    });
}

/// More events than fit: the overrun is reported, what was queued before it is gone, the dump has everything, and
/// events go on from there.
#[test]
fn q18_overrun_is_reported_and_a_dump_has_it_all() {
    let namespace = Namespace::new("overrun");
    namespace.ip("link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789");
    let batch = std::env::temp_dir().join(format!("{}.batch", namespace.0));
    let add = |high: u8| {
        let line =
            |low: u8| format!("fdb append 02:00:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.12 self\n");
        (0..=255).map(line).collect::<String>()
    };
    namespace.block_on(async {
        let mut kernel = Kernel::with_receive_buffer(4096).unwrap();
        // A delete in front of the queue, whose add will be among the lost: applied after the dump it would be wrong.
        std::fs::write(&batch, add(0)).unwrap();
        namespace.bridge("fdb append 02:00:00:00:00:07 dev vx10 dst 10.0.0.12 self");
        namespace.bridge("fdb del 02:00:00:00:00:07 dev vx10 dst 10.0.0.12 self");
        namespace.bridge(&format!("-batch {}", batch.display()));
        assert_eq!(kernel.next().await.unwrap(), Event::Overrun);
        let complete = |fdb: &[Message], count: usize| {
            let mut macs: Vec<MacAddr> = fdb
                .iter()
                .filter_map(|message| match message {
                    Message::Fdb(Operation::New, entry) if !entry.mac.is_group() => Some(entry.mac),
                    _ => None,
                })
                .collect();
            macs.sort();
            macs.dedup();
            assert_eq!(macs.len(), count);
        };
        complete(&kernel.dump(Dump::Fdb).await.unwrap(), 256);

        // Nothing is left over from before the dump, and watching goes on.
        namespace.bridge("fdb append 02:00:00:00:ff:ff dev vx10 dst 10.0.0.12 self");
        let Event::Messages(messages) = kernel.next().await.unwrap() else { panic!() };
        let [Message::Fdb(Operation::New, entry)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(entry.mac, MacAddr([2, 0, 0, 0, 0xff, 0xff]));

        // And again: an overrun is no state that sticks.
        std::fs::write(&batch, add(1)).unwrap();
        namespace.bridge(&format!("-batch {}", batch.display()));
        assert_eq!(kernel.next().await.unwrap(), Event::Overrun);
        complete(&kernel.dump(Dump::Fdb).await.unwrap(), 513);
    });
    std::fs::remove_file(&batch).unwrap();
}

/// A dump of more than one datagram, and `next` dropped half-way as `select!` does.
#[test]
fn large_dumps_and_dropped_futures_lose_nothing() {
    let namespace = Namespace::new("large");
    namespace.ip("link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789");
    let lines: String = (0..5000u32)
        .map(|n| {
            format!("fdb append 02:00:00:{:02x}:{:02x}:01 dev vx10 dst 10.0.0.12 self\n", n >> 8, n & 255)
        })
        .collect();
    let batch = std::env::temp_dir().join(format!("{}.batch", namespace.0));
    std::fs::write(&batch, lines).unwrap();
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        let mut bridge = Command::new("bridge")
            .args(["-n", &namespace.0, "-batch"])
            .arg(&batch)
            .spawn()
            .unwrap();
        let mut events = 0;
        while events < 5000 {
            tokio::select! {
                biased;
                () = tokio::task::yield_now() => {}
                event = kernel.next() => {
                    let Event::Messages(messages) = event.unwrap() else { panic!() };
                    events += messages.iter().filter(|m| matches!(m, Message::Fdb(Operation::New, _))).count();
                }
            }
        }
        assert!(bridge.wait().unwrap().success());
        let fdb = kernel.dump(Dump::Fdb).await.unwrap();
        assert_eq!((events, fdb.len()), (5000, 5000));
    });
    std::fs::remove_file(&batch).unwrap();
}

#[test]
fn a_splice_into_another_namespace() {
    let leaf = Namespace::new("near");
    let hidden = Namespace::new("far");
    let (near_handle, mac) = (leaf.handle(), MacAddr([2, 0, 0, 0, 9, 9]));
    // As a splice is made: from inside the namespace that holds the far end.
    hidden.inside(|| {
        let mut requests = Requests::open().unwrap();
        let near = VethEnd { name: "splice0", namespace: Some(near_handle.as_fd()), mac: Some(mac) };
        let far = VethEnd { name: "far0", namespace: None, mac: None };
        let veth = Veth { near, far, mtu: 65535, transmit_queue_length: 7 };
        requests.create_veth(&veth).unwrap();
        let link = requests.link("far0").unwrap().unwrap();
        assert_eq!((link.kind, link.mtu, link.flags & 1), (LinkKind::Veth, 65535, 0));
        let change =
            LinkChange { up: Some(true), arp: Some(false), ipv6_address_generation: Some(1), mtu: None };
        requests.set_link(link.ifindex, &change).unwrap();

        // A second one of that name is refused, in the kernel's words where it has any.
        let error = requests.create_veth(&veth).unwrap_err();
        assert_eq!(error.refusal(), Some(nix::libc::EEXIST));
        assert!(error.to_string().contains("create the veth pair splice0 and far0"), "{error}");
    });
    leaf.inside(|| {
        let mut requests = Requests::open().unwrap();
        let link = requests.link("splice0").unwrap().unwrap();
        assert_eq!(link.mac, Some(mac));
        let change = LinkChange { up: Some(true), ..LinkChange::default() };
        requests.set_link(link.ifindex, &change).unwrap();
        assert!(requests.link("splice0").unwrap().unwrap().is_operational());
        requests.set_link(link.ifindex, &LinkChange { mtu: Some(9000), ..LinkChange::default() }).unwrap();
        requests.set_link(link.ifindex, &LinkChange { arp: Some(false), ..LinkChange::default() }).unwrap();
    });
    let near = &leaf.json("link show dev splice0")[0];
    let far = &hidden.json("link show dev far0")[0];
    assert_eq!((&near["mtu"], &near["txqlen"], &near["num_tx_queues"]), (&9000.into(), &7.into(), &1.into()));
    assert_eq!((&far["mtu"], &far["txqlen"], &far["num_rx_queues"]), (&65535.into(), &7.into(), &1.into()));
    assert_eq!(far["inet6_addr_gen_mode"], "none");
    for end in [near, far] {
        let flags = end["flags"].as_array().unwrap();
        assert!(
            flags.iter().any(|flag| flag == "NOARP") && flags.iter().any(|flag| flag == "UP"),
            "{flags:?}"
        );
    }
    // No IPv6 address came up on the far end.
    assert_eq!(hidden.json("addr show dev far0")[0]["addr_info"], Value::Array(vec![]));
    leaf.inside(|| {
        let mut requests = Requests::open().unwrap();
        let ifindex = requests.link("splice0").unwrap().unwrap().ifindex;
        requests.delete_link(ifindex).unwrap();
        assert_eq!(requests.link("splice0").unwrap(), None);
        assert_eq!(requests.delete_link(ifindex).unwrap_err().refusal(), Some(nix::libc::ENODEV));
    });
    assert!(hidden.inside(|| Requests::open().unwrap().link("far0").unwrap()).is_none());
}

#[test]
fn refusals_carry_the_kernels_words() {
    let namespace = Namespace::new("words");
    namespace.ip("link add name up1 type veth peer name spine1");
    namespace.inside(|| {
        let mut requests = Requests::open().unwrap();
        let ifindex = requests.link("up1").unwrap().unwrap().ifindex;
        let error =
            requests.set_link(ifindex, &LinkChange { mtu: Some(10), ..LinkChange::default() }).unwrap_err();
        let Error::Refused { operation, source, explanation } = &error else { panic!("{error}") };
        assert_eq!(operation, &format!("change link {ifindex}"));
        assert_eq!(source.raw_os_error(), Some(nix::libc::EINVAL));
        assert_eq!(explanation, "mtu less than device minimum");
        assert!(error.to_string().ends_with(": mtu less than device minimum"), "{error}");
        // The socket is none the worse for it.
        assert_eq!(requests.dump(Dump::Links).unwrap().len(), 3);
    });
}

/// The kernel asks for a neighbour when told to, again after it has failed, and the answer is an event.
#[test]
fn resolving_a_neighbour() {
    let namespace = Namespace::new("resolve");
    let spine = Namespace::new("spine");
    namespace.ip(&format!("link add name up1 type veth peer name leaf1 netns {}", spine.0));
    for (end, name, address) in [(&namespace, "up1", 1), (&spine, "leaf1", 0)] {
        end.ip(&format!("link set {name} up"));
        end.ip(&format!("addr add 10.1.1.{address}/31 dev {name}"));
        end.ip(&format!("addr add 2001:db8::{address}/127 dev {name} nodad"));
    }
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        for address in ["10.1.1.0", "2001:db8::"] {
            let address: IpAddr = address.parse().unwrap();
            let ifindex = kernel.request(|requests| requests.link("up1")).await.unwrap().unwrap().ifindex;
            let mut seen = Vec::new();
            kernel.request(move |requests| requests.resolve(ifindex, address)).await.unwrap();
            until(&mut kernel, &mut seen, |message| match message {
                Message::Neighbour(Operation::New, n) => {
                    n.address == address && n.is_valid() && n.mac.is_some()
                }
                _ => false,
            })
            .await;
        }
        let ifindex = kernel.request(|requests| requests.link("lo")).await.unwrap().unwrap().ifindex + 1000;
        let address: IpAddr = "10.1.1.0".parse().unwrap();
        let error = kernel.request(move |requests| requests.resolve(ifindex, address)).await.unwrap_err();
        assert_eq!(error.refusal(), Some(nix::libc::ENODEV));
    });
}
