//! Which frames take the bypass, and which pass through the bridge.

use std::collections::BTreeMap;

use root_test::root_test;
use serde_json::json;
use vtepd_tests::daemon::USERSPACE;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, ip, mac_of};
use vtepd_tests::{Capture, Lab, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

use super::{HOOKS, in_fdb, start, start_with, steering};

#[root_test]
fn known_unicast_skips_the_bridge_and_nothing_else_does() {
    for hook in HOOKS {
        let lab = Lab::new("sc");
        let vtepd = start_with(&lab, hook, &USERSPACE);
        sockets::ping(&lab.host, lab.far.ip(), 2, 56, &[]);
        let before = vtepd.wait_until_idle();
        sockets::ping(&lab.host, lab.far.ip(), 20, 1400, &[]);
        sockets::tcp_both_ways(&lab.host, &lab.farther, 3_000_000);
        let after = vtepd.wait_until_idle();
        let moved = |decision: &str| steering(&after, decision) - steering(&before, decision);
        assert!(moved("port_bypassed") > 20, "{}", after.0);
        // The bridge saw only the frames that refresh its entries.
        assert_eq!(moved("vxlan_redirected"), moved("port_refreshed"), "{}", after.0);
        assert_eq!(after.dropped_in_all(), 0, "{}", after.0);

        // From host to host on this leaf.
        sockets::ping(&lab.host, lab.next.ip(), 5, 1400, &[]);
        let local = vtepd.wait_until_idle();
        assert_eq!(steering(&local, "port_bypassed"), steering(&after, "port_bypassed"));
        assert!(steering(&local, "port_passed") >= steering(&after, "port_passed") + 10);

        // ARP to a known address and to the broadcast address.
        let pair = Pair::of(&lab.host, &lab.far);
        let seen = Capture::start(&lab.far.ns, ETH, |frame| frame.get(12..14) == Some(&[8, 6]));
        inject(&lab.host.ns, ETH, &[frames::ethernet(pair, 0x0806, &[0; 46])]);
        inject(
            &lab.host.ns,
            ETH,
            &[frames::ethernet(pair.to_mac(MacAddr::BROADCAST), 0x0806, &[0; 46])],
        );
        seen.wait(2);
        quiet();
        assert_eq!(seen.stop().len(), 2);
        let arp = vtepd.wait_until_idle();
        assert_eq!(steering(&arp, "port_bypassed"), steering(&local, "port_bypassed"));
    }
}

/// Frames without bypass reach the far hosts as with kernel VXLAN.
#[root_test]
fn all_but_known_unicast_goes_by_the_bridge_as_before() {
    let lab = Lab::new("scslow");
    // The leaf's own address in the subnet. Host and leaf know each other's MAC address.
    let (host, mac, own) = (lab.host.ip(), lab.host.mac(), mac_of(&lab.leaf, "br10"));
    ip(
        &lab.leaf,
        &format!(
            "addr add 192.168.10.254/24 dev br10\nneigh replace {host} lladdr {mac} dev br10 nud permanent"
        ),
    );
    ip(&lab.host.ns, &format!("neigh replace 192.168.10.254 lladdr {own} dev {ETH} nud permanent"));
    let pair = Pair::of(&lab.host, &lab.far);
    let to = |mac: [u8; 6]| pair.to_mac(MacAddr(mac));
    let frames = [
        ("multicast", frames::udp(to([1, 0, 0x5e, 0, 0, 9]), (1, 2), b"to many"), 1),
        ("broadcast", frames::udp(to([0xff; 6]), (1, 2), b"to all"), 1),
        ("unknown unicast", frames::udp(to([2, 0, 0, 0, 99, 99]), (1, 2), b"to whom?"), 1),
        ("an unknown protocol", frames::ethernet(pair, 0x88b5, &[0x51; 50]), 1),
        ("ARP", frames::ethernet(pair, 0x0806, &[0x52; 46]), 1),
        ("a tagged frame", frames::tagged(&frames::udp(pair, (1, 2), b"tagged"), 0x8100, 7), 1),
        // A bridge without STP forwards it.
        ("STP", frames::ethernet(to([1, 0x80, 0xc2, 0, 0, 0]), 38, &[0x42; 46]), 1),
        // A bridge does not forward it.
        ("LLDP", frames::ethernet(to([1, 0x80, 0xc2, 0, 0, 0x0e]), 0x88cc, &[0x53; 46]), 0),
    ];
    let (source, count) = (pair.from.0.0, frames.len());
    // The number of copies of each frame at each far host.
    let attempt = || {
        let arrived = |at: &vtepd_tests::Host| {
            Capture::start(&at.ns, ETH, move |frame| frame.get(6..12) == Some(&source[..]))
        };
        let captures = [&lab.far, &lab.farther].map(arrived);
        for (_, frame, _) in &frames {
            inject(&lab.host.ns, ETH, std::slice::from_ref(frame));
        }
        captures[0].wait(frames.iter().map(|(_, _, far)| far).sum());
        quiet();
        captures.map(|capture| {
            let mut seen = BTreeMap::<&str, usize>::new();
            for captured in capture.stop() {
                let name = frames.iter().find(|(_, frame, _)| {
                    // The kernel may remove tags from the frame's data.
                    frame[..12] == captured.bytes[..12]
                        && captured.bytes.ends_with(&frame[frame.len() - 6..])
                });
                *seen.entry(name.map_or("another", |(name, ..)| name)).or_default() += 1;
            }
            seen
        })
    };
    let by_kernel = attempt();
    for (name, _, far) in &frames {
        assert_eq!(by_kernel[0].get(name).copied().unwrap_or(0), *far, "{name}: {by_kernel:?}");
    }
    let vtepd = start(&lab, "tcx");
    let before = vtepd.wait_until_idle();
    assert_eq!(attempt(), by_kernel);
    let after = vtepd.wait_until_idle();
    let moved = |decision: &str| steering(&after, decision) - steering(&before, decision);
    assert_eq!((moved("port_bypassed"), moved("port_refreshed")), (0, 0), "{}", after.0);
    assert_eq!(moved("port_passed"), count as u64, "{}", after.0);
    // To the leaf itself.
    sockets::ping(&lab.host, [192, 168, 10, 254].into(), 5, 1000, &[]);
    let routed = vtepd.wait_until_idle();
    assert_eq!(steering(&routed, "port_bypassed"), steering(&after, "port_bypassed"));
    assert_eq!(routed.vni_frames(VNI, "encapsulated"), after.vni_frames(VNI, "encapsulated"));
}

/// The bridge learns a host from its first frame. Only later frames may take the bypass.
#[root_test]
fn the_first_frame_of_a_host_goes_by_the_bridge_which_learns_it() {
    let lab = Lab::new("scfirst");
    let vtepd = start(&lab, "tcx");
    let stranger = MacAddr([2, 0, 0, 0, 0, 0x77]);
    let pair = Pair { from: (stranger, lab.host.ip()), ..Pair::of(&lab.host, &lab.far) };
    let arrived =
        Capture::start(&lab.far.ns, ETH, move |frame| frame.get(6..12) == Some(&stranger.0[..]));
    let before = vtepd.wait_until_idle();
    let send = |text: &[u8]| inject(&lab.host.ns, ETH, &[frames::udp(pair, (1, 2), text)]);
    send(b"first");
    arrived.wait(1);
    let after =
        vtepd.wait_for("the address", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") == 5);
    assert!(in_fdb(&lab, "hp10", stranger));
    assert_eq!(steering(&after, "port_bypassed"), steering(&before, "port_bypassed"));
    assert_eq!(steering(&after, "port_passed"), steering(&before, "port_passed") + 1);
    // The program does not know when the bridge last saw the host, so the second frame refreshes
    // the entry.
    send(b"second");
    send(b"third");
    arrived.wait(3);
    let after = vtepd.wait_until_idle();
    assert_eq!(steering(&after, "port_bypassed"), steering(&before, "port_bypassed") + 1);
}

/// With `neigh_suppress` the bridge answers ARP for known hosts, although other frames of the
/// asking host bypass it.
#[root_test]
fn the_bridge_answers_arp_beside_the_bypass() {
    let lab = Lab::new("scarp");
    ip(
        &lab.leaf,
        &format!(
            "link set vx10 type bridge_slave neigh_suppress on\n\
             neigh replace {} lladdr {} dev br10 nud permanent",
            lab.far.ip(),
            lab.far.mac()
        ),
    );
    let vtepd = start(&lab, "tcx");
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    for (host, suppressed) in [(&lab.far, true), (&lab.farther, false)] {
        let asked = Capture::start(&host.ns, ETH, |frame| {
            frame.get(12..14) == Some(&[8, 6])
                && frame.get(20..22) == Some(&[0, 1])
                && frame[0] == 0xff
        });
        ip(&lab.host.ns, &format!("neigh del {} dev {ETH}", host.ip()));
        sockets::ping(&lab.host, host.ip(), 3, 56, &[]);
        assert_eq!(asked.stop().is_empty(), suppressed, "asked for {}", host.ip());
    }
    assert!(steering(&vtepd.wait_until_idle(), "port_bypassed") > 4);
}

/// `vtepctl port` and `status` agree with the metrics for each port.
#[root_test]
fn vtepctl_tells_of_each_port() {
    let lab = Lab::new("scctl");
    ip(&lab.leaf, "link set hq10 type bridge_slave isolated on");
    let vtepd = Vtepd::start(&lab.leaf, &["--bridge-bypass", "--no-fpm"]);
    sockets::ping(&lab.host, lab.far.ip(), 2, 56, &[]);
    vtepd.wait_for("the bypass", |m| m.find("vtepd_bypass_addresses{state=\"known\"}") == Some(3));
    sockets::ping(&lab.host, lab.far.ip(), 20, 56, &[]);
    let metrics = vtepd.wait_until_idle();
    let ports = vtepd.ask(&["port"]);
    let frames =
        |way: &str| metrics.get(&format!("vtepd_port_frames_total{{port=\"hp10\",way=\"{way}\"}}"));
    assert!(frames("bypass") > 15, "{}", metrics.0);
    assert_eq!(frames("bypass"), steering(&metrics, "port_bypassed"));
    let counted = ["bypass", "refreshed", "passed", "stalled"]
        .map(|way| (way.to_owned(), json!(frames(way))));
    let expected = json!([
        {
            "port": "hp10", "bridge": "br10", "vni": 10, "bypass": true, "reason": null,
            "frames": serde_json::Map::from_iter(counted),
        },
        {
            "port": "hq10", "bridge": "br10", "vni": 10, "bypass": false, "reason": "it is isolated",
            "frames": null,
        },
    ]);
    assert_eq!(ports, expected);
    assert_eq!(vtepd.ask(&["port", "--vni", "10"]), expected);
    assert!(!vtepd.ctl(&["port", "--vni", "11"]).status.success());
    let status = &vtepd.ask(&["status"])["bypass"];
    let expected = json!({
        "ports": 1, "other_ports": 1, "addresses": 3, "capacity": 131_072, "no_room": 0, "no_room_total": 0,
    });
    assert_eq!(*status, expected);
    let text = String::from_utf8(vtepd.ctl(&["status"]).stdout).unwrap();
    assert!(text.contains("Bypass: 1 of 2 ports, 3 of 131072 addresses\n"), "{text}");
    let text = String::from_utf8(vtepd.ctl(&["port"]).stdout).unwrap();
    assert!(text.contains("it is isolated"), "{text}");
    // With the bypass turned off, the configuration is the reason.
    drop(vtepd);
    let vtepd = Vtepd::start(&lab.leaf, &["--no-bridge-bypass", "--no-fpm"]);
    wait_for("the ports", || vtepd.ask(&["port"]).as_array().is_some_and(|ports| ports.len() == 2));
    for port in vtepd.ask(&["port"]).as_array().unwrap() {
        assert_eq!(
            (&port["bypass"], &port["reason"]),
            (&json!(false), &json!("the configuration turns it off"))
        );
    }
}
