//! Events of the running kernel: none is missing, or an overrun is reported. Needs root.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use crate::leaf::{Namespace, leaf, until};
use netlink::{
    Dump, Event, FdbEntry, Kernel, Message, NotificationKind, Notifications, Operation, Qdisc,
    RouteTarget,
};
use root_test::root_test;
use socket2::{Domain, Protocol, Socket, Type};
use wire::checksum::checksum;
use wire::icmp::Icmp;
use wire::{Ipv4, Ipv6, MacAddr};

/// An FDB entry without its state, which may age.
fn row(entry: &FdbEntry) -> FdbEntry {
    FdbEntry { state: 0, ..entry.clone() }
}

#[root_test]
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
        // For objects that do not change on their own, events must equal the dump.
        for what in [Dump::NextHops, Dump::Fdb] {
            for dumped in kernel.dump(what).await.unwrap() {
                // The dump has the multicast addresses that each netdev listens to, but their
                // changes are not events.
                if matches!(&dumped, Message::Fdb(_, entry) if entry.mac.is_group()) {
                    continue;
                }
                let known = |message: &Message| match (message, &dumped) {
                    (Message::Fdb(_, a), Message::Fdb(_, b)) => row(a) == row(b),
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

        // Then everything is deleted again.
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

#[root_test]
fn root_queueing_disciplines_come_and_go() {
    let namespace = Namespace::new("qdisc");
    namespace.ip("link add up1 type veth peer name other");
    let tc = |line: &str| {
        let line = format!("-n {} {line}", namespace.0);
        assert!(
            std::process::Command::new("tc").args(line.split(' ')).status().unwrap().success(),
            "tc {line}"
        );
    };
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        // clsact is not a queueing discipline of the interface.
        tc("qdisc add dev up1 clsact");
        tc("qdisc add dev up1 root pfifo limit 100");
        tc("qdisc del dev up1 root");
        let mut seen = Vec::new();
        until(&mut kernel, &mut seen, |m| matches!(m, Message::Qdisc(Operation::Delete, _))).await;
        seen.retain(|message| matches!(message, Message::Qdisc(..)));
        let pfifo = Qdisc {
            ifindex: nix::net::if_::if_nametoindex("up1").unwrap(),
            kind: "pfifo".to_owned(),
        };
        let expected =
            [Operation::New, Operation::Delete].map(|op| Message::Qdisc(op, pfifo.clone()));
        assert_eq!(seen, expected);
        tc("qdisc add dev up1 root pfifo");
        let links = kernel.dump(Dump::Links).await.unwrap();
        let qdiscs = links.iter().filter_map(|message| match message {
            Message::Link(_, link) if link.name == "up1" => Some(link.qdisc.as_str()),
            _ => None,
        });
        assert_eq!(qdiscs.collect::<Vec<_>>(), ["pfifo"]);
    });
}

/// A router's report that a UDP packet is too long is an event; other ICMP messages are none.
#[root_test]
fn reports_of_path_mtus_are_events() {
    let namespace = Namespace::new("toolong");
    namespace.ip("addr add 10.0.0.11/32 dev lo");
    namespace.ip("addr add fd00::11/128 dev lo nodad");
    let [to, destination]: [Ipv4Addr; 2] = [[10, 0, 0, 11].into(), [10, 0, 0, 12].into()];
    let quoted = |protocol: u8| {
        let mut header = Ipv4::zeroed();
        header.set_version(4).set_ihl(5).set_total_length(1500).set_protocol(protocol);
        header.set_source(to).set_destination(destination);
        [header.as_bytes().as_slice(), &[0; 8]].concat()
    };
    let error = |code: u8, mtu: u16, protocol: u8| {
        let mut header = *Icmp::zeroed().set_kind(Icmp::UNREACHABLE).set_code(code);
        header.set_sequence_or_mtu(mtu);
        let sum = checksum(&[header.as_bytes().as_slice(), &quoted(protocol)].concat());
        [header.set_checksum(sum).as_bytes().as_slice(), &quoted(protocol)].concat()
    };
    let mut header = Ipv6::zeroed();
    header.set_version(6).set_next_header(17).set_destination("fd00::12".parse().unwrap());
    let too_big_v6 = [[2, 0, 0, 0, 0, 0, 5, 120].as_slice(), header.as_bytes(), &[0; 8]].concat();
    let none = [
        vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0],
        error(Icmp::PORT, 0, 17),
        error(Icmp::FRAGMENTATION_NEEDED, 1400, 6),
    ];
    namespace.block_on(async {
        let mut kernel = Kernel::open().unwrap();
        let ipv4 = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        let ipv6 = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
        let send_v4 = |message: &[u8]| ipv4.send_to(message, &SocketAddr::from((to, 0)).into());
        for message in &none {
            send_v4(message).unwrap();
        }
        send_v4(&error(Icmp::FRAGMENTATION_NEEDED, 1400, 17)).unwrap();
        let reported = async |kernel: &mut Kernel| {
            loop {
                if let Event::TooLong(destinations) = kernel.next().await.unwrap() {
                    return destinations;
                }
            }
        };
        assert_eq!(reported(&mut kernel).await, BTreeSet::from([IpAddr::from(destination)]));
        let to: SocketAddr = "[fd00::11]:0".parse().unwrap();
        ipv6.send_to(&[vec![1, 4, 0, 0], too_big_v6[4..].to_vec()].concat(), &to.into()).unwrap();
        ipv6.send_to(&too_big_v6, &to.into()).unwrap();
        assert_eq!(reported(&mut kernel).await, BTreeSet::from(["fd00::12".parse().unwrap()]));
    });
}

/// Tests that changes are silent, as the module's documentation describes. If a kernel reports
/// them, this test fails, and the additional dumps can be removed.
#[root_test]
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

/// With more events than fit, the overrun is reported, queued events are discarded, a dump is
/// complete, and later events arrive.
#[root_test]
fn q18_overrun_is_reported_and_a_dump_has_it_all() {
    let namespace = Namespace::new("overrun");
    namespace.ip("link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789");
    let batch = std::env::temp_dir().join(format!("{}.batch", namespace.0));
    let add = |high: u8| {
        let line = |low: u8| {
            format!("fdb append 02:00:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.12 self\n")
        };
        (0..=255).map(line).collect::<String>()
    };
    namespace.block_on(async {
        let mut kernel = Kernel::with_receive_buffer(4096).unwrap();
        // A delete at the head of the queue, whose add is among the lost events. Applied after the
        // dump, it would be wrong.
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

        // No event from before the dump is left, and later events arrive.
        namespace.bridge("fdb append 02:00:00:00:ff:ff dev vx10 dst 10.0.0.12 self");
        let Event::Messages(messages) = kernel.next().await.unwrap() else { panic!() };
        let [Message::Fdb(Operation::New, entry)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(entry.mac, MacAddr([2, 0, 0, 0, 0xff, 0xff]));

        // A second overrun is reported as well.
        std::fs::write(&batch, add(1)).unwrap();
        namespace.bridge(&format!("-batch {}", batch.display()));
        assert_eq!(kernel.next().await.unwrap(), Event::Overrun);
        complete(&kernel.dump(Dump::Fdb).await.unwrap(), 513);
    });
    std::fs::remove_file(&batch).unwrap();
}

/// A dump of more than one datagram, and `next` cancelled, as `select!` does.
#[root_test]
fn large_dumps_and_dropped_futures_lose_nothing() {
    let namespace = Namespace::new("large");
    namespace.ip("link add name vx10 type vxlan id 10010 local 10.0.0.11 dstport 4789");
    let lines: String = (0..5000u32)
        .map(|n| {
            format!(
                "fdb append 02:00:00:{:02x}:{:02x}:01 dev vx10 dst 10.0.0.12 self\n",
                n >> 8,
                n & 255
            )
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

/// One kind of object has changed, and nothing else. Lost notifications are a change, too.
#[root_test]
fn notifications_tell_which_kind_of_object_has_changed() {
    let namespace = Namespace::new("notify");
    leaf(&namespace);
    let open = |kind| namespace.inside(|| Notifications::open(kind).unwrap());
    let databases = open(NotificationKind::Neighbours);
    let routes = open(NotificationKind::Ipv4Routes);
    let changed = || (databases.changed().unwrap(), routes.changed().unwrap());
    assert_eq!(changed(), (false, false));

    namespace.ip("route add 192.0.2.7 dev lo");
    assert_eq!(changed(), (false, true));
    let flood = "00:00:00:00:00:00 dev vx10 self permanent";
    namespace.bridge(&format!("fdb append {flood} dst 192.0.2.9"));
    assert_eq!(changed(), (true, false));
    assert_eq!(changed(), (false, false));

    // More than the socket's buffer holds.
    let mut batch = String::new();
    for number in 0..4000 {
        let _ = writeln!(batch, "route add 10.9.{}.{} dev lo", number / 250, number % 250);
    }
    let file = std::env::temp_dir().join(format!("{}.routes", namespace.0));
    std::fs::write(&file, batch).unwrap();
    namespace.ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(changed(), (false, true));
    namespace.ip("route del 192.0.2.7");
    assert_eq!(changed(), (false, true));
}
