//! A virtual machine moves from leaf to leaf with its MAC address, IP address and connections.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use fabric::Namespace;
use fabric::arp::announce;
use fabric::netns;
use fabric::process::wait_until;
use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use wire::MacAddr;

use super::fixture::{ScaleAcross, TIMEOUT, Vtepd, frr};
use super::hosts::{Host, Transfer, host};
use super::stream::Stream;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 99);
const RATE: u32 = 1000;

fn on(fabric: &ScaleAcross, leaf: &str, rest: &str) {
    fabric.run(leaf, &format!("ip link set vm1 {rest}"));
}

/// Adds the machine's port to the bridge. zebra 10.3 reads ports and addresses in different
/// threads, and ignores an address on a port that it does not know yet. So zebra must know the port
/// before any frame arrives on it.
fn plug_in(fabric: &ScaleAcross, leaf: &str) {
    on(fabric, leaf, "down");
    on(fabric, leaf, "master br10010");
    let known = || {
        let shown = fabric.node(leaf).run(&["vtysh", "-c", "show interface vm1"]);
        shown.is_ok_and(|text| text.contains("Slave Type Bridge"))
    };
    assert!(wait_until(TIMEOUT, known), "zebra on {leaf} does not know the machine's port");
    on(fabric, leaf, "up");
}

/// Creates a virtual machine behind leaf4, on a port of its own.
fn virtual_machine(fabric: &ScaleAcross) -> Host {
    let name = format!("{}-vm", fabric.fabric.name());
    // The namespace of a run that was killed.
    let _ = netns::delete(&name);
    let namespace = Namespace::create(name).unwrap();
    netns::veth((&namespace, "eth1"), (&fabric.namespace("leaf4"), "vm1"), 9000).unwrap();
    for command in
        ["ip link set eth1 address 02:00:00:00:00:99", "ip addr add 192.168.10.99/24 dev eth1"]
    {
        namespace.run(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    plug_in(fabric, "leaf4");
    Host { namespace, address: ADDRESS }
}

/// S2 and Q15 with FRR: remote becomes local and local becomes remote on leaf1 and leaf4. leaf2
/// sees one VTEP replace the other. Streams from leaf1's and leaf2's hosts follow, and a TCP
/// connection survives.
#[root_test(needs = frr)]
fn s2_q15_mac_mobility_remote_to_local_and_back() {
    let fabric = ScaleAcross::up("evpn-move");
    let machine = virtual_machine(&fabric);
    machine.namespace.enter(|| announce("eth1")).unwrap().unwrap();
    let [one, two, four] = ["leaf1", "leaf2", "leaf4"].map(|leaf| fabric.vtepd(leaf));
    let known = |remote: [(&Vtepd, u64); 3]| {
        for (vtepd, macs) in remote {
            vtepd.wait_for_peers(10010, macs, 5);
        }
    };
    known([(&one, 6), (&two, 6), (&four, 5)]);
    let senders = ["host1", "host2"].map(|name| host(&fabric, name));
    let start = || {
        senders
            .each_ref()
            .map(|sender| Stream::start(&sender.namespace, (&machine.namespace, ADDRESS), RATE))
    };
    let connection = Transfer::start(&senders[1], &machine);
    connection.goes_on();

    for (from, to, remote) in [
        ("leaf4", "leaf1", [(&one, 5), (&two, 6), (&four, 6)]),
        ("leaf1", "leaf4", [(&one, 6), (&two, 6), (&four, 5)]),
    ] {
        let streams = start();
        let decapsulated = decapsulated(&two);
        // A node does not see the machine's namespaces by name.
        let to_leaf = fabric.namespace(to);
        let words = ["ip", "link", "set", "vm1", "netns", to_leaf.name()];
        fabric.namespace(from).run(&words).unwrap();
        plug_in(&fabric, to);
        machine.namespace.enter(|| announce("eth1")).unwrap().unwrap();
        let moved = Instant::now();
        for stream in &streams {
            // Frames in flight have arrived long before this many more have.
            stream.goes_on(u64::from(RATE) / 5);
        }
        let followed = moved.elapsed().saturating_sub(Duration::from_millis(200));
        println!("s2_q15_mac_mobility: the traffic follows from {from} to {to} after {followed:?}");
        known(remote);
        for stream in streams {
            let (sent, report) = stream.finish();
            println!("s2_q15_mac_mobility: {sent} frames sent meanwhile, {} lost", report.lost());
        }
        connection.goes_on();
        assert!(
            self::decapsulated(&two) > decapsulated,
            "the machine's TCP acknowledgements pass leaf2's vtepd"
        );

        // After the move no frame is lost, and none goes to the old leaf.
        let before =
            four.metrics().sum("vtepd_vni_frames_total{vni=\"10010\",direction=\"decapsulated\"");
        let streams = start();
        streams.iter().for_each(|stream| stream.goes_on(500));
        for stream in streams {
            stream.finish_whole(&format!("s2_q15_mac_mobility, settled on {to}"));
        }
        let after =
            four.metrics().sum("vtepd_vni_frames_total{vni=\"10010\",direction=\"decapsulated\"");
        let towards_four = after - before;
        if to == "leaf4" {
            assert!(towards_four >= 1000, "{towards_four} frames reached leaf4");
        } else {
            assert!(towards_four < 100, "{towards_four} frames still went to leaf4");
        }
    }
    connection.finish();
    for vtepd in [&one, &two, &four] {
        let metrics = vtepd.metrics();
        // Except frames for the machine after its link had been removed.
        let gone = metrics.sum("vtepd_dropped_frames_total{reason=\"link_down\"");
        assert_eq!(metrics.dropped(), gone, "{}", metrics.0);
    }
}

fn decapsulated(vtepd: &Vtepd) -> u64 {
    vtepd.metrics().sum("vtepd_vni_frames_total{vni=\"10010\",direction=\"decapsulated\"")
}

/// A sticky address of FRR: leaf4 has it on a port as `sticky static` and announces that in its
/// type-2 route. leaf1 and leaf2 accept it from no other source. Frames of their hosts do not move
/// it, and the stream to it loses nothing.
#[root_test(needs = frr)]
fn a_sticky_mac_of_frr_is_moved_by_nobody() {
    let fabric = ScaleAcross::up("evpn-sticky");
    let machine = virtual_machine(&fabric);
    let mac = MacAddr([2, 0, 0, 0, 0, 0x99]);
    fabric.run("leaf4", &format!("bridge fdb replace {mac} dev vm1 master sticky static"));
    machine.namespace.enter(|| announce("eth1")).unwrap().unwrap();
    let leaves = ["leaf1", "leaf2"].map(|leaf| (leaf, fabric.vtepd(leaf)));
    let entry = |leaf: &str| {
        let shown = fabric.run(leaf, "bridge fdb show dev vx10010");
        shown
            .lines()
            .filter(|line| line.starts_with(&mac.to_string()))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let home = |vtepd: &Vtepd| vtepd.ask(&["fdb", "--mac", &mac.to_string()])[0]["vtep"].clone();
    for (leaf, vtepd) in &leaves {
        let known = || entry(leaf).contains("self sticky static") && home(vtepd).is_string();
        assert!(wait_until(TIMEOUT, known), "{leaf}: {}", entry(leaf));
    }
    let (before, homes) =
        (["leaf1", "leaf2"].map(entry), leaves.each_ref().map(|(_, vtepd)| home(vtepd)));
    assert_eq!(homes[0], homes[1]);
    let sender = host(&fabric, "host1");
    let stream = Stream::start(&sender.namespace, (&machine.namespace, ADDRESS), RATE);
    stream.goes_on(u64::from(RATE) / 2);
    // Hosts of both leaves send from this address, to broadcast.
    let claim = Pair { from: (mac, ADDRESS), to: (MacAddr::BROADCAST, ADDRESS) };
    let claim = vec![frames::ethernet(claim, 0x88b5, &[9; 50])];
    for _ in 0..20 {
        for name in ["host1", "host2"] {
            inject(&host(&fabric, name).namespace, "eth1", &claim);
        }
        stream.goes_on(10);
    }
    stream.goes_on(u64::from(RATE) / 2);
    stream.finish_whole("a_sticky_mac_of_frr");
    assert_eq!(
        (["leaf1", "leaf2"].map(entry), leaves.each_ref().map(|(_, vtepd)| home(vtepd))),
        (before, homes)
    );
    for (_, vtepd) in &leaves {
        assert_eq!(vtepd.metrics().find("vtepd_mac_moves_total{moves=\"followed\"}"), Some(0));
        assert_eq!(vtepd.metrics().dropped(), 0, "{}", vtepd.metrics().0);
    }
}
