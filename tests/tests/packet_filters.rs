//! Packet filters that could match VXLAN packets keep a VNI with kernel VXLAN; others do not.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{VNI, run};
use vtepd_tests::{Lab, Vtepd, sockets};

/// Runs one nft command, whose argument may contain spaces.
fn nft(lab: &Lab, command: &str) {
    lab.leaf.run(&["nft", command]).unwrap_or_else(|error| panic!("{error}"));
}

/// Whether pings of the host arrive; none or all.
fn delivered(lab: &Lab) -> bool {
    let said = sockets::try_ping(&lab.host, lab.far.ip(), 2, 56, &["-W", "1"]);
    assert!(said.contains("2 received") || said.contains(" 0 received"), "{said}");
    said.contains("2 received")
}

/// Rules that drop VXLAN packets, set before the start, taken away, and set while vtepd runs: what the kernel drops does
/// not arrive with vtepd either.
#[test]
fn what_filters_drop_does_not_arrive() {
    if !can_run("what_filters_drop_does_not_arrive") {
        return;
    }
    let lab = Lab::new("filters");
    for (chain, rule) in [
        ("inet t c { type filter hook input priority 0; policy drop; }", None),
        ("ip t c { type filter hook prerouting priority raw; }", Some("ip t c udp dport 4789 drop")),
        ("ip t c { type filter hook output priority 0; }", Some("ip t c ip daddr 10.0.0.0/24 drop")),
        (
            "netdev t c { type filter hook ingress devices = { up1, up2 } priority 0; }",
            Some("netdev t c udp dport 4789 drop"),
        ),
    ] {
        let (family, _) = chain.split_once(' ').unwrap();
        let set = || {
            nft(&lab, &format!("add table {family} t"));
            nft(&lab, &format!("add chain {chain}"));
            rule.iter().for_each(|rule| nft(&lab, &format!("add rule {rule}")));
        };
        let unset = || nft(&lab, &format!("delete table {family} t"));
        set();
        assert!(!delivered(&lab), "the kernel drops by {chain}");
        let vtepd = Vtepd::start(&lab.leaf, &[]);
        assert_eq!(vtepd.metrics().left("vx10").as_deref(), Some("packet-filter"), "{chain}");
        assert!(!delivered(&lab), "set before the start: {chain}");
        unset();
        vtepd.wait_for("the VNI to be taken over", |metrics| metrics.has_vni(VNI));
        assert!(delivered(&lab), "taken away: {chain}");
        set();
        vtepd.wait_for("the VNI to be left", |metrics| metrics.left("vx10").is_some());
        assert!(!delivered(&lab), "set while vtepd runs: {chain}");
        unset();
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{status}: {log}");
    }
}

/// Docker's rules for its name server, a firewall that lets VXLAN in, and rules about other packets disturb nobody.
#[test]
fn filters_of_other_packets_leave_the_vni_with_vtepd() {
    if !can_run("filters_of_other_packets_leave_the_vni_with_vtepd") {
        return;
    }
    let lab = Lab::new("filters");
    for command in [
        "iptables-nft -t nat -N DOCKER_OUTPUT",
        "iptables-nft -t nat -A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT",
        "iptables-nft -t nat -A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp --dport 53 -j DNAT --to-destination 127.0.0.11:38425",
        "iptables-nft -t nat -N DOCKER_POSTROUTING",
        "iptables-nft -t nat -A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING",
        "iptables-nft -t nat -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp --sport 38425 -j SNAT --to-source :53",
    ] {
        run(&lab.leaf, command);
    }
    nft(&lab, "add table inet fw");
    nft(&lab, "add chain inet fw input { type filter hook input priority 0; policy drop; }");
    nft(&lab, "add rule inet fw input tcp dport 22 drop");
    nft(&lab, "add rule inet fw input iifname \"eth0\" udp dport 4789 drop");
    nft(&lab, "add rule inet fw input ct state established accept");
    nft(&lab, "add rule inet fw input udp dport 4789 counter accept");
    nft(&lab, "add rule inet fw input log");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    assert!(vtepd.metrics().has_vni(VNI), "{:?}: {}", vtepd.metrics().left("vx10"), vtepd.log());
    assert!(delivered(&lab));
    // Held-out cases: marks that feed rules.
    run(&lab.leaf, "iptables-nft -t mangle -A OUTPUT -p udp --dport 4789 -j MARK --set-mark 1");
    vtepd.wait_for("the VNI to be left", |metrics| metrics.left("vx10").is_some());
    run(&lab.leaf, "iptables-nft -t mangle -F OUTPUT");
    vtepd.wait_for("the VNI to be taken over", |metrics| metrics.has_vni(VNI));
}
