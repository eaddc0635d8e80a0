//! Packets that kernel VXLAN refuses and counts as receive errors of the netdev: with vtepd, the
//! same counters say the same.

use root_test::root_test;
use serde_json::Value;
use test_frames::Ipv6;
use vtepd_tests::frames::{self, Ipv4, Pair, Tunnelled, inject};
use vtepd_tests::lab::{LEAF, PEER, VNI, mac_of, run};
use vtepd_tests::{Lab, Vtepd, wait_for};
use wire::MacAddr;

use crate::ipv6_underlay::over_ipv6;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The receive errors of the leaf's vxlan netdev.
pub(crate) fn errors(lab: &Lab) -> [u64; 4] {
    let said: Value =
        serde_json::from_str(&run(&lab.leaf, &format!("ip -s -s -j link show vx{VNI}"))).unwrap();
    let received = &said[0]["stats64"]["rx"];
    ["errors", "length_errors", "frame_errors", "dropped"]
        .map(|counter| received[counter].as_u64().unwrap_or_else(|| panic!("{received}")))
}

/// Outer type of service and inner frame of packets that a kernel may refuse.
fn packets(lab: &Lab) -> Vec<(&'static str, u8, Vec<u8>)> {
    let pair = Pair::of(&lab.far, &lab.host);
    let ecn = |code: u8| {
        let datagram = frames::datagram(pair, (1, 2), b"ecn");
        frames::ipv4(pair, 17, &datagram, Ipv4 { tos: code, ..Ipv4::default() })
    };
    let ecn_v6 = |class: u8| {
        let fields = Ipv6 { traffic_class: class, ..Ipv6::default() };
        frames::ethernet(pair, IPV6, &test_frames::ipv6(([1; 16], [2; 16]), 59, &[0; 8], fields))
    };
    let from = |mac: MacAddr| {
        let pair = Pair { from: (mac, pair.from.1), ..pair };
        frames::udp(pair, (1, 2), b"source")
    };
    vec![
        ("CE around Not-ECT", 3, ecn(0)),
        ("CE around Not-ECT, over IPv6", 3, ecn_v6(0)),
        ("CE around ECT(0)", 3, ecn(2)),
        ("ECT(1) around Not-ECT", 1, ecn(0)),
        ("CE around ARP", 3, frames::ethernet(pair, 0x0806, &[0; 28])),
        ("half of an IPv4 header", 0, frames::ethernet(pair, IPV4, &[0x45; 10])),
        ("half of an IPv6 header", 0, frames::ethernet(pair, IPV6, &[0x60; 30])),
        ("CE around half of an IPv6 header", 3, frames::ethernet(pair, IPV6, &[0x60; 30])),
        ("half of an Ethernet header", 0, vec![2; 7]),
        ("the netdev's own source address", 0, from(mac_of(&lab.leaf, "vx10"))),
        ("a multicast source address", 0, from(MacAddr([3; 6]))),
        ("a zero source address", 0, from(MacAddr::ZERO)),
    ]
}

/// Sends each packet from an uplink, and compares the counters with vtepd in each datapath with
/// those without.
fn counted_alike(lab: &Lab, frame: impl Fn(u8, &[u8]) -> Vec<u8>) {
    let packets: Vec<_> =
        packets(lab).into_iter().map(|(name, tos, inner)| (name, frame(tos, &inner))).collect();
    let count = |frame: &[u8], expected: Option<[u64; 4]>| {
        let before = errors(lab);
        inject(&lab.routers[0], "leaf", &vec![frame.to_vec(); 3]);
        let counted = || {
            let mut now = errors(lab);
            now.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
            now
        };
        match expected {
            Some(expected) => wait_for("the same errors", || counted() == expected),
            None => vtepd_tests::quiet(),
        }
        counted()
    };
    let kernel: Vec<[u64; 4]> = packets.iter().map(|(_, frame)| count(frame, None)).collect();
    for ((name, _), errors) in packets.iter().zip(&kernel) {
        println!("{name}: errors, length, frame, dropped {errors:?}");
    }
    assert_eq!(kernel[0][0], 3, "kernel VXLAN counts what it refuses");
    for datapath in ["offload", "userspace"] {
        let _vtepd = Vtepd::start(&lab.leaf, &["--datapath", datapath]);
        for ((name, frame), expected) in packets.iter().zip(&kernel) {
            println!("{datapath}, {name}");
            assert_eq!(count(frame, Some(*expected)), *expected, "{datapath}, {name}");
        }
    }
}

#[root_test]
fn refused_packets_are_errors_of_the_netdev() {
    let lab = Lab::new("refused");
    let to = mac_of(&lab.leaf, "up1");
    counted_alike(&lab, |tos, inner| {
        let outer =
            Tunnelled { to, source: PEER, destination: LEAF, port: 4789, vni: VNI, tos, flip: 0 };
        outer.frame(inner)
    });
}

#[root_test]
fn refused_packets_over_ipv6_are_errors_of_the_netdev() {
    let lab = over_ipv6("refused6", "");
    let to = mac_of(&lab.leaf, "up1");
    let address = |last: u8| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, last);
        address
    };
    counted_alike(&lab, |class, inner| {
        let addresses = (address(2), address(1));
        let ports = (50_000, 4789);
        let payload = test_frames::vxlan(VNI, 0, inner);
        let datagram = test_frames::udp_over_ipv6(addresses, ports, &payload);
        let fields = Ipv6 { traffic_class: class, ..Ipv6::default() };
        let packet = test_frames::ipv6(addresses, 17, &datagram, fields);
        test_frames::ethernet([2, 0xee, 0, 0, 0, 1], to.0, IPV6, &packet)
    });
}
