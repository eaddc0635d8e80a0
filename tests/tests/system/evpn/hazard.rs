//! zebra 8.4.4 may crash when it opens an FPM connection while it knows a router MAC address.

use std::time::Duration;

use fabric::process::{Identity, wait_until};
use root_test::root_test;

use super::fixture::{ScaleAcross, TIMEOUT, frr};

/// The release in Debian 12.
const HAZARDOUS: &str = "8.4.4";
const LISTENING: &str = "0A";
const PORT: &str = ":0A3C";
/// zebra tries to connect every 3 s.
const RETRY: Duration = Duration::from_secs(4);

/// Whether a socket on the node listens on TCP port 2620.
fn listens(fabric: &ScaleAcross, node: &str) -> bool {
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let sockets = fabric.namespace(node).enter(sockets).unwrap();
    sockets.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        local.ends_with(PORT) && fields.nth(1) == Some(LISTENING)
    })
}

/// Adds a layer-3 VNI in the default VRF on leaf1 and leaf4.
fn layer3_vni(fabric: &ScaleAcross) {
    for leaf in [1, 4] {
        let node = format!("leaf{leaf}");
        for command in [
            "ip link add br5000 type bridge".to_owned(),
            format!("ip link set br5000 addrgenmode none address 02:00:00:00:50:0{leaf} up"),
            format!(
                "ip link add vx5000 type vxlan id 5000 local 10.0.0.1{leaf} dstport 4789 nolearning"
            ),
            "ip link set vx5000 addrgenmode none master br5000 up".to_owned(),
            "ip link set vx5000 type bridge_slave learning off".to_owned(),
        ] {
            fabric.run(&node, &command);
        }
        fabric.node(&node).run(&["vtysh", "-c", "configure terminal", "-c", "vni 5000"]).unwrap();
    }
}

/// Adds or deletes a host's neighbour entry on its leaf. The host's type-2 route then has an IP
/// address and the leaf's router MAC address.
fn know_by_address(fabric: &ScaleAcross, leaf: u32, change: &str) {
    let host = format!("192.168.10.{leaf} lladdr 02:00:00:00:0{leaf}:01 dev br10010");
    let state = if change == "replace" { "nud reachable" } else { "" };
    fabric.run(&format!("leaf{leaf}"), &format!("ip neigh {change} {host} {state}"));
}

#[root_test(needs = frr)]
#[ignore = "half a minute for a bug of one release of FRR: tests/run --all"]
fn frr_vni_and_l3vni_hazard() {
    let fabric = ScaleAcross::up("evpn-hazard");
    let version = fabric.node("leaf1").run(&["vtysh", "-c", "show version"]).unwrap();
    let zebra = |leaf| {
        let processes = fabric.fabric.processes().unwrap();
        processes
            .into_iter()
            .find(|p| p.node == leaf && p.name == "zebra")
            .expect("zebra runs")
            .identity
    };
    let (zebra1, zebra4) = (zebra("leaf1"), zebra("leaf4"));
    if !version.contains(HAZARDOUS) {
        layer3_vni_does_no_harm(&fabric, zebra1);
        return;
    }

    // An existing connection stays.
    let vtepd = fabric.vtepd("leaf1");
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    assert!(listens(&fabric, "leaf1"));
    layer3_vni(&fabric);
    for leaf in [1, 4] {
        know_by_address(&fabric, leaf, "replace");
    }
    vtepd.wait_for("leaf4's router MAC", |metrics| metrics.peers(5000).0 == Some(1));
    vtepd.wait_for_log("knows router MAC 02:00:00:00:50:04 of 10.0.0.14 and may crash");
    assert!(vtepd.metrics().is_state("fpm", "live") && !vtepd.log().contains("not listened for"));
    vtepd.stop();

    // vtepd accepts no new connection, neither a second one on leaf1 nor the first one on leaf4.
    // Both learn the same entries from rtnetlink and log the reason.
    let again = fabric.vtepd("leaf1");
    let first = fabric.vtepd("leaf4");
    for (vtepd, leaf, router_mac) in [
        (&again, "leaf1", "02:00:00:00:50:04 of 10.0.0.14"),
        (&first, "leaf4", "02:00:00:00:50:01 of 10.0.0.11"),
    ] {
        for words in ["FPM is not listened for", "rtnetlink", router_mac, "--fpm-unsafe"] {
            vtepd.wait_for_log(words);
        }
        vtepd.wait_for_peers(10010, 5, 5);
        vtepd.wait_for_peers(5000, 1, 0);
        assert!(!listens(&fabric, leaf), "{leaf}");
    }
    // zebra tries to connect meanwhile and does not crash.
    assert!(!wait_until(RETRY, || !zebra1.alive() || !zebra4.alive()), "zebra has died");
    for (vtepd, leaf) in [(&again, "leaf1"), (&first, "leaf4")] {
        assert!(
            vtepd.metrics().is_state("fpm", "disconnected") && !listens(&fabric, leaf),
            "{leaf}"
        );
    }

    // Without the router MAC address, connections are accepted again.
    know_by_address(&fabric, 4, "del");
    again.wait_for("zebra's FPM again", |metrics| metrics.is_state("fpm", "live"));
    assert!(zebra1.alive());
    again.stop();

    // `--fpm-unsafe` overrides the check.
    first.stop();
    let vtepd = fabric.spawn("leaf4", &["--fpm-unsafe"]);
    assert!(wait_until(TIMEOUT, || listens(&fabric, "leaf4")), "{}", vtepd.log());
    // zebra may crash before vtepd has looked up its user.
    let connected = || vtepd.log().contains("FPM is connected") || !zebra4.alive();
    assert!(wait_until(TIMEOUT, connected), "{}", vtepd.log());
    assert!(!vtepd.log().contains("not listened for"), "{}", vtepd.log());
    let died = wait_until(RETRY, || !zebra4.alive());
    println!(
        "frr_vni_and_l3vni_hazard: let connect, zebra {}",
        if died { "crashed" } else { "lives" }
    );
}

/// Other releases of zebra do not crash. With `--fpm-unsafe` zebra connects repeatedly and replays
/// its state.
fn layer3_vni_does_no_harm(fabric: &ScaleAcross, zebra: Identity) {
    layer3_vni(fabric);
    for leaf in [1, 4] {
        know_by_address(fabric, leaf, "replace");
    }
    for _ in 0..3 {
        let vtepd = fabric.spawn("leaf1", &["--fpm-unsafe"]);
        vtepd.wait_until_ready();
        vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
        vtepd.wait_for_peers(10010, 5, 5);
        vtepd.wait_for_peers(5000, 1, 0);
        assert!(zebra.alive());
        vtepd.stop();
    }
}
