//! ARP and ND suppression of the leaf's bridge and routing between VNIs over its SVIs work as
//! without vtepd.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use root_test::root_test;
use vtepd_tests::frames::inject;
use vtepd_tests::lab::{ETH, VNI, ip, run, sysctl};
use vtepd_tests::{Capture, Host, Lab, Vtepd, quiet, sockets};
use wire::checksum::Sum;
use wire::{Arp, Ethernet, Ipv6, MacAddr, number};

/// Whether a frame is a broadcast ARP request or a multicast neighbour solicitation (RFC 4861
/// section 4.3). Requests to a known neighbour are unicast, and the bridge forwards them with or
/// without suppression (`br_handle_frame_finish()`).
fn asks(frame: &[u8]) -> bool {
    let arp = frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 1]);
    let solicitation = frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&58)
        && frame.get(54) == Some(&135);
    frame[0] & 1 == 1 && (arp || solicitation)
}

/// Turns IPv6 on without duplicate address detection.
fn ipv6(host: &Host) {
    for (name, value) in
        [("dad_transmits", "0"), ("router_solicitations", "0"), ("disable_ipv6", "0")]
    {
        sysctl(&host.ns, &format!("ipv6/conf/{ETH}/{name}"), value);
    }
}

/// With `neigh_suppress` on the vxlan port the bridge answers for hosts in the SVI's neighbour
/// table. Requests for other hosts pass the overlay, as with kernel VXLAN.
#[root_test]
fn l21_the_bridge_answers_arp_and_nd_for_whom_it_knows() {
    let lab = Lab::new("nd");
    let six = |host: &Host| format!("fd00::{}", host.number);
    for host in [&lab.host, &lab.far, &lab.farther] {
        ipv6(host);
        ip(&host.ns, &format!("addr add {}/64 dev {ETH} nodad", six(host)));
    }
    sysctl(&lab.leaf, "ipv6/conf/br10/disable_ipv6", "0");
    ip(
        &lab.leaf,
        &format!(
            "link set vx10 type bridge_slave neigh_suppress on\n\
             neigh replace {} lladdr {mac} dev br10 nud permanent\n\
             neigh replace {} lladdr {mac} dev br10 nud permanent",
            lab.far.ip(),
            six(&lab.far),
            mac = lab.far.mac()
        ),
    );
    // The answering hosts need no requests of their own.
    for host in [&lab.far, &lab.farther] {
        ip(
            &host.ns,
            &format!(
                "neigh replace {} lladdr {} dev {ETH} nud permanent",
                six(&lab.host),
                lab.host.mac()
            ),
        );
    }
    let flooded = |vtepd: &Vtepd| vtepd.metrics().sum("vtepd_vni_flooded_frames_total");
    let attempt = |vtepd: Option<&Vtepd>| {
        for (host, suppressed) in [(&lab.far, true), (&lab.farther, false)] {
            for address in [host.ip().to_string(), six(host)] {
                let before = vtepd.map(flooded);
                let asked = Capture::start(&host.ns, ETH, asks);
                let _ = lab.host.ns.output(&["ip", "neigh", "del", &address, "dev", ETH]);
                let said =
                    lab.host.ns.output(&["ping", "-n", "-c", "1", "-w", "10", &address]).unwrap();
                assert!(
                    said.status.success(),
                    "{address}: {}",
                    String::from_utf8_lossy(&said.stdout)
                );
                let mac = run(&lab.host.ns, &format!("ip neigh show {address} dev {ETH}"));
                assert!(mac.contains(&host.mac().to_string()), "{address}: {mac}");
                let asked = asked.stop();
                assert_eq!(
                    asked.is_empty(),
                    suppressed,
                    "requests that {address} has seen: {asked:02x?}"
                );
                if let (Some(vtepd), Some(before)) = (vtepd, before) {
                    // IPv6 also floods some packets of its own.
                    assert!(
                        suppressed || flooded(vtepd) > before,
                        "{address}: {}",
                        vtepd.metrics().0
                    );
                }
            }
        }
    };
    attempt(None);
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    attempt(Some(&vtepd));
}

/// From a subnet in one VNI to a subnet in another, routed by the leaf, and to the leaf itself.
#[root_test]
fn the_leaf_routes_between_vnis_through_its_svis() {
    const OTHER: u32 = 20;
    let lab = Lab::new("svi");
    lab.overlay(OTHER, "nolearning", "nolearning", "");
    sysctl(&lab.leaf, "ipv4/ip_forward", "1");
    ip(&lab.leaf, "addr add 192.168.10.254/24 dev br10\naddr add 192.168.20.254/24 dev br20");
    // One host is only in VNI 10, the other only in VNI 20.
    ip(&lab.host.ns, "addr flush dev eth20\nroute add 192.168.20.0/24 via 192.168.10.254");
    ip(&lab.far.ns, "addr flush dev eth10\nroute add 192.168.10.0/24 via 192.168.20.254");
    let attempt = || {
        let to = lab.far.ip_in(OTHER);
        sockets::ping(&lab.host, to, 3, 1000, &[]);
        sockets::tcp_between((&lab.host, lab.host.ip()), (&lab.far, to), 200_000);
        sockets::ping(&lab.far, [192, 168, 20, 254].into(), 3, 1000, &[]);
        sockets::ping(&lab.host, [192, 168, 10, 254].into(), 3, 1000, &[]);
    };
    attempt();
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    attempt();
    let metrics = vtepd.metrics();
    for way in ["encapsulated", "decapsulated"] {
        assert!(metrics.vni_frames(OTHER, way) > 20, "{}", metrics.0);
    }
    // Frames that the leaf routes do not enter the overlay that they came from.
    assert_eq!(metrics.vni_frames(VNI, "decapsulated"), 0, "{}", metrics.0);
}

/// The form of the host's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Arp,
    UnicastArp,
    Solicitation,
    UnicastSolicitation,
}

use Question::{Arp as ArpRequest, Solicitation, UnicastArp, UnicastSolicitation};

/// A request of `from` for the addresses of `whom`.
fn question(kind: Question, from: &Host, whom: &Host) -> Vec<u8> {
    let everybody = match kind {
        ArpRequest => MacAddr::BROADCAST,
        // The solicited-node address (RFC 4291 section 2.7.1), as a multicast MAC address (RFC 2464
        // section 7).
        Solicitation => MacAddr([0x33, 0x33, 0xff, 0, 0, whom.number]),
        UnicastArp | UnicastSolicitation => whom.mac(),
    };
    let address = |host: &Host| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.number.into());
    if matches!(kind, ArpRequest | UnicastArp) {
        let mut arp = Arp::new(Arp::REQUEST);
        arp.set_sender_mac(from.mac()).set_sender(from.ip()).set_target(whom.ip());
        let ethernet = Ethernet::new(everybody, from.mac(), number::ETHERTYPE_ARP);
        return [&ethernet.as_bytes()[..], arp.as_bytes(), &[0; 18]].concat();
    }
    let target = match kind {
        Solicitation => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, whom.number.into()),
        _ => address(whom),
    };
    // A solicitation, and its option with the MAC address of the sender (RFC 4861 section 4.3).
    let mut message =
        [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address(whom).octets(), &[1, 1], &from.mac().0].concat();
    let length = message.len();
    let sum = Sum::new().pseudo_ipv6(address(from), target, number::PROTOCOL_ICMPV6, length as u32);
    let checksum = sum.bytes(&message).checksum().to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    let mut ip = Ipv6::new(address(from), target, number::PROTOCOL_ICMPV6, length).unwrap();
    ip.set_hop_limit(255);
    let ethernet = Ethernet::new(everybody, from.mac(), number::ETHERTYPE_IPV6);
    [&ethernet.as_bytes()[..], ip.as_bytes(), &message].concat()
}

/// Whether a frame is an ARP request or a neighbour solicitation.
fn is_question(frame: &[u8]) -> bool {
    let arp = frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 1]);
    arp || frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&58)
        && frame.get(54) == Some(&135)
}

fn is_answer(frame: &[u8]) -> bool {
    let arp = frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 2]);
    arp || frame.get(12..14) == Some(&[0x86, 0xdd])
        && frame.get(20) == Some(&58)
        && frame.get(54) == Some(&136)
}

/// Each kind of request, with the bridge knowing the target's FDB entry, its neighbour entry, both
/// or neither. The number of requests and answers is the same with vtepd as without. The bridge
/// answers only if it has both entries.
#[root_test]
fn l21_the_bridge_answers_only_where_fdb_and_neighbour_are_both_known() {
    let lab = Lab::new("l21");
    let six = |host: &Host| format!("fd00::{}", host.number);
    for host in [&lab.host, &lab.far] {
        ipv6(host);
        ip(&host.ns, &format!("addr add {}/64 dev {ETH} nodad", six(host)));
    }
    ip(
        &lab.far.ns,
        &format!(
            "neigh replace {} lladdr {} dev {ETH} nud permanent",
            six(&lab.host),
            lab.host.mac()
        ),
    );
    sysctl(&lab.leaf, "ipv6/conf/br10/disable_ipv6", "0");
    ip(&lab.leaf, "link set vx10 type bridge_slave neigh_suppress on");
    let mac = lab.far.mac();
    let outcomes = || {
        let mut outcomes = BTreeMap::new();
        for (fdb, neighbour) in [(true, true), (true, false), (false, true), (false, false)] {
            let place = if fdb { "replace" } else { "del" };
            // The command fails if there is no entry to delete.
            let _ = lab.leaf.output(&[
                "bridge",
                "fdb",
                place,
                &mac.to_string(),
                "dev",
                "vx10",
                "master",
                "extern_learn",
            ]);
            for address in [lab.far.ip().to_string(), six(&lab.far)] {
                let entry = format!("{address} lladdr {mac} dev br10 nud permanent");
                let words: Vec<&str> = entry.split(' ').collect();
                let change = if neighbour { "replace" } else { "del" };
                let _ = lab.leaf.output(&[&["ip", "neigh", change], &words[..]].concat());
            }
            for kind in [ArpRequest, UnicastArp, Solicitation, UnicastSolicitation] {
                let (asked, answered) = (
                    Capture::start(&lab.far.ns, ETH, is_question),
                    Capture::start(&lab.host.ns, ETH, is_answer),
                );
                inject(&lab.host.ns, ETH, &[question(kind, &lab.host, &lab.far)]);
                answered.wait(1);
                quiet();
                outcomes
                    .insert((kind, fdb, neighbour), (asked.stop().len(), answered.stop().len()));
            }
        }
        outcomes
    };
    let without = outcomes();
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let with = outcomes();
    assert_eq!(with, without);
    for ((kind, fdb, neighbour), (asked, answered)) in with {
        let by_bridge = fdb && neighbour && matches!(kind, ArpRequest | Solicitation);
        println!(
            "l21: {kind:?}, FDB {fdb}, neighbour {neighbour}: {asked} asked, {answered} answered"
        );
        if by_bridge || !fdb || !neighbour {
            assert_eq!(
                (asked, answered),
                (usize::from(!by_bridge), 1),
                "{kind:?} {fdb} {neighbour}"
            );
        }
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}
