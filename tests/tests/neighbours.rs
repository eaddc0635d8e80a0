//! What the leaf's bridge and its SVIs do stays as it was: ARP and ND suppression, and routing between VNIs.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{ETH, VNI, ip, run, sysctl};
use vtepd_tests::{Capture, Host, Lab, Vtepd, sockets};

/// An ARP request to all, or a neighbour solicitation to many (RFC 4861 section 4.3). A check of a known neighbour is unicast, and
/// forwarded, suppressed or not (`br_handle_frame_finish()`).
fn asks(frame: &[u8]) -> bool {
    let arp = frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 1]);
    let solicitation =
        frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58) && frame.get(54) == Some(&135);
    frame[0] & 1 == 1 && (arp || solicitation)
}

/// With `neigh_suppress` on the vxlan port the bridge answers for hosts that the SVI's neighbours know; the others are asked
/// through the overlay, as with kernel VXLAN.
#[test]
fn the_bridge_answers_arp_and_nd_for_whom_it_knows() {
    if !can_run("the_bridge_answers_arp_and_nd_for_whom_it_knows") {
        return;
    }
    let lab = Lab::new("nd");
    let six = |host: &Host| format!("fd00::{}", host.number);
    for host in [&lab.host, &lab.far, &lab.farther] {
        sysctl(&host.ns, &format!("ipv6/conf/{ETH}/disable_ipv6"), "0");
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
    // Whoever is asked for has the answer to the other direction.
    for host in [&lab.far, &lab.farther] {
        ip(
            &host.ns,
            &format!("neigh replace {} lladdr {} dev {ETH} nud permanent", six(&lab.host), lab.host.mac()),
        );
    }
    let flooded = |vtepd: &Vtepd| vtepd.metrics().sum("vtepd_vni_flooded_frames_total");
    let attempt = |vtepd: Option<&Vtepd>| {
        for (host, suppressed) in [(&lab.far, true), (&lab.farther, false)] {
            for address in [host.ip().to_string(), six(host)] {
                let before = vtepd.map(flooded);
                let asked = Capture::start(&host.ns, ETH, asks);
                let _ = lab.host.ns.output(&["ip", "neigh", "del", &address, "dev", ETH]);
                let said = lab.host.ns.output(&["ping", "-n", "-c", "1", "-w", "10", &address]).unwrap();
                assert!(said.status.success(), "{address}: {}", String::from_utf8_lossy(&said.stdout));
                let mac = run(&lab.host.ns, &format!("ip neigh show {address} dev {ETH}"));
                assert!(mac.contains(&host.mac().to_string()), "{address}: {mac}");
                let asked = asked.stop();
                assert_eq!(asked.is_empty(), suppressed, "requests that {address} has seen: {asked:02x?}");
                if let (Some(vtepd), Some(before)) = (vtepd, before) {
                    // IPv6 floods a thing or two of its own.
                    assert!(suppressed || flooded(vtepd) > before, "{address}: {}", vtepd.metrics().0);
                }
            }
        }
    };
    attempt(None);
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    attempt(Some(&vtepd));
}

/// From a subnet in one VNI to a subnet in another, routed by the leaf; and to the leaf itself.
#[test]
fn the_leaf_routes_between_vnis_through_its_svis() {
    const OTHER: u32 = 20;
    if !can_run("the_leaf_routes_between_vnis_through_its_svis") {
        return;
    }
    let lab = Lab::new("svi");
    lab.overlay(OTHER, "nolearning", "nolearning", "");
    sysctl(&lab.leaf, "ipv4/ip_forward", "1");
    ip(&lab.leaf, "addr add 192.168.10.254/24 dev br10\naddr add 192.168.20.254/24 dev br20");
    // One side is in VNI 10 alone, the other in VNI 20 alone.
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
    // What stays on the leaf is no business of the overlay it came from.
    assert_eq!(metrics.vni_frames(VNI, "decapsulated"), 0, "{}", metrics.0);
}
