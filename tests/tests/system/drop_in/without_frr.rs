//! Labs without FRR. They differ in how FDB entries are made, number of bridges, SVIs, tagged
//! hosts, MTUs and a management interface. The same test runs in each.

use std::net::Ipv4Addr;

use root_test::root_test;
use serde_json::json;
use vtepd_tests::experiments::{EXPERIMENT, is_experiment};
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, Host, VNI, ip, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets};

use super::management::{GATEWAY, Management};

const RATE: Rate = Rate { frames: 2000, queue_pairs: 8, payload: 64 };
/// A VLAN tag of the hosts, with a priority. The overlay carries it unchanged.
const TAG: u16 = 0x6064;

/// Checks that all pairs of hosts in these VNIs can ping each other with the largest packets that
/// fit, without fragments, and exchange TCP. A tagged frame from each host to each other arrives
/// once and unchanged.
fn all_reach_each_other(lab: &Lab, vnis: &[u32]) {
    let hosts = [&lab.host, &lab.next, &lab.far, &lab.farther];
    let size = lab.setup.overlay_mtu - 28;
    std::thread::scope(|scope| {
        for (place, from) in hosts.into_iter().enumerate() {
            for to in &hosts[place + 1..] {
                for &vni in vnis {
                    scope.spawn(move || ping(from, to.ip_in(vni), size));
                }
                scope.spawn(move || sockets::tcp_both_ways(from, to, 50_000));
            }
        }
    });
    // The tag counts towards the MTU.
    let largest = usize::try_from(lab.setup.overlay_mtu).unwrap() - 4;
    for to in hosts {
        let others: Vec<&Host> =
            hosts.into_iter().filter(|from| from.number != to.number).collect();
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let arrived = Capture::start(&to.ns, ETH, is_experiment);
        for from in others {
            let of = |length| {
                frames::ethernet(Pair::of(from, to), EXPERIMENT, &sockets::bytes(7, length))
            };
            let frames = [46, largest].map(|length| frames::tagged(&of(length), 0x8100, TAG));
            inject(&from.ns, ETH, &frames);
            sent.extend(frames);
        }
        arrived.wait(sent.len());
        quiet();
        let mut arrived: Vec<Vec<u8>> =
            arrived.stop().into_iter().map(|frame| frame.bytes).collect();
        arrived.sort();
        sent.sort();
        assert!(
            arrived == sent,
            "{} tagged frames of {} arrived, or others",
            arrived.len(),
            sent.len()
        );
    }
}

/// Two requests that must not be fragmented. The interval leaves time for the first answer on a
/// busy machine.
fn ping(from: &Host, to: Ipv4Addr, size: u32) {
    let said = sockets::try_ping(from, to, 2, size, &["-M", "do", "-i", "0.3", "-w", "10"]);
    assert!(said.contains("2 packets transmitted, 2 received, 0% packet loss"), "{said}");
}

/// Checks that vtepctl reports exactly these VNIs as taken over.
fn is_taken(vtepd: &Vtepd, vnis: &[u32]) {
    let status = vtepd.ask(&["status"]);
    let taken: Vec<_> =
        status["taken"].as_array().unwrap().iter().map(|row| row["vni"].clone()).collect();
    assert_eq!((json!(taken), &status["left"]), (json!(vnis), &json!([])), "{status}");
}

/// vtepd starts on the leaf, then on all leaves, and stops again, with a stream in each direction.
fn drop_in(lab: &Lab, vnis: &[u32]) {
    all_reach_each_other(lab, vnis);
    let streams = [
        Stream::start(&lab.host, &lab.far, RATE, 0xa1),
        Stream::start(&lab.farther, &lab.next, RATE, 0xa2),
    ];
    let pass = || streams.iter().for_each(|stream| stream.pass(100));
    pass();
    let leaf = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    is_taken(&leaf, vnis);
    pass();
    all_reach_each_other(lab, vnis);
    let others = [&lab.peer, &lab.peer2].map(|leaf| Vtepd::start(leaf, &["--no-fpm"]));
    others.iter().for_each(|vtepd| is_taken(vtepd, vnis));
    pass();
    all_reach_each_other(lab, vnis);
    let mut all: Vec<Vtepd> = others.into_iter().chain([leaf]).collect();
    for vtepd in &all {
        let metrics = vtepd.metrics();
        assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
        for way in ["encapsulated", "decapsulated"] {
            assert!(vnis.iter().all(|vni| metrics.vni_frames(*vni, way) >= 4), "{}", metrics.0);
        }
    }
    while let Some(vtepd) = all.pop() {
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{status}: {log}");
        pass();
    }
    streams.into_iter().for_each(Stream::finish_whole);
    all_reach_each_other(lab, vnis);
}

/// Static entries for every remote host, two bridges, an underlay MTU of 1500 bytes, and a
/// management interface.
#[root_test]
fn static_remotes_two_bridges_mtu_1500_and_a_management_interface() {
    let lab =
        Lab::with("static", Setup { underlay_mtu: 1500, overlay_mtu: 1450, ..Setup::default() });
    lab.overlay(20, "nolearning", "nolearning", "");
    let _management = Management::of(&lab, "static");
    let route = run(&lab.leaf, "ip -4 route show dev eth0");
    drop_in(&lab, &[VNI, 20]);
    // The interface is unchanged.
    assert_eq!(run(&lab.leaf, "ip -4 route show dev eth0"), route);
    assert!(!run(&lab.leaf, "tc qdisc show dev eth0").contains("clsact"));
    run(&lab.leaf, &format!("ping -n -c 1 -w 10 {GATEWAY}"));
}

/// The kernel's defaults: leaves learn from received frames, hosts use ARP, and only the flood list
/// is configured. Jumbo frames, and a leaf that is its hosts' gateway.
#[root_test]
fn learning_arp_svi_and_mtu_9500() {
    let setup = Setup { underlay_mtu: 9500, overlay_mtu: 9450, learning: true, ..Setup::default() };
    let lab = Lab::with("learn", setup);
    for host in [&lab.host, &lab.next, &lab.far, &lab.farther] {
        run(&host.ns, &format!("ip neigh flush dev {ETH} nud permanent"));
    }
    ip(&lab.leaf, "addr add 192.168.10.254/24 dev br10");
    let gateway = "192.168.10.254".parse().unwrap();
    sockets::ping(&lab.far, gateway, 2, 9000, &[]);
    drop_in(&lab, &[VNI]);
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    sockets::ping(&lab.far, gateway, 3, 9000, &["-M", "do"]);
    assert!(vtepd.metrics().vni_frames(VNI, "decapsulated") >= 3);
}
