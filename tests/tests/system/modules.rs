//! Tests that need kernel modules which the machines of the other tests lack (8021q, vrf,
//! sch_netem). They run in the guest of `tests/linux-vm`.

use root_test::root_test;
use vtepd_tests::lab::{VNI, ip, run, sysctl};
use vtepd_tests::{Lab, Setup, Vtepd, sockets};

/// MTUs that an emulated machine can handle quickly.
fn lab(case: &str) -> Lab {
    Lab::with(case, Setup { overlay_mtu: 1500, underlay_mtu: 1550, ..Setup::default() })
}

fn start(lab: &Lab) -> Vtepd {
    Vtepd::start_configured(&lab.leaf, "[takeover]\nstall-limit-ms = 5000\n", &["--no-fpm"])
}

/// The leaf removes the tag: `hp10.100` is in the bridge, not `hp10`.
#[root_test]
#[ignore = "needs 8021q: tests/linux-vm 6.1 modules"]
fn hosts_on_vlan_interfaces_of_the_leaf() {
    let lab = lab("dot1q");
    ip(
        &lab.leaf,
        "link set hp10 nomaster\n\
         link add link hp10 name hp10.100 type vlan id 100\n\
         link set hp10.100 master br10 up",
    );
    ip(
        &lab.host.ns,
        "addr flush dev eth10\n\
         link add link eth10 name eth10.100 type vlan id 100\n\
         addr add 192.168.10.1/24 dev eth10.100\n\
         link set eth10.100 up",
    );
    let attempt = || {
        for (from, to) in [(&lab.host, &lab.far), (&lab.far, &lab.host)] {
            sockets::ping(from, to.ip(), 5, 1000, &[]);
            sockets::tcp_both_ways(from, to, 100_000);
            sockets::udp(from, to, 50, 1000, true);
        }
    };
    attempt();
    let vtepd = start(&lab);
    attempt();
    let metrics = vtepd.wait_until_idle();
    for way in ["encapsulated", "decapsulated"] {
        assert!(metrics.vni_frames(VNI, way) > 100, "{}", metrics.0);
    }
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
}

/// The leaf's SVIs are in a VRF, which routes between their subnets.
#[root_test]
#[ignore = "needs vrf: tests/linux-vm 6.1 modules"]
fn svis_in_a_vrf() {
    const OTHER: u32 = 20;
    let lab = lab("vrf");
    lab.overlay(OTHER, "nolearning", "nolearning", "");
    sysctl(&lab.leaf, "ipv4/ip_forward", "1");
    ip(
        &lab.leaf,
        "link add tenant type vrf table 100\n\
         link set tenant up\n\
         link set br10 master tenant\n\
         link set br20 master tenant\n\
         addr add 192.168.10.254/24 dev br10\n\
         addr add 192.168.20.254/24 dev br20",
    );
    ip(&lab.host.ns, "addr flush dev eth20\nroute add 192.168.20.0/24 via 192.168.10.254");
    ip(&lab.far.ns, "addr flush dev eth10\nroute add 192.168.10.0/24 via 192.168.20.254");
    let to = lab.far.ip_in(OTHER);
    let attempt = || {
        sockets::ping(&lab.host, to, 5, 1000, &[]);
        sockets::tcp_between((&lab.host, lab.host.ip()), (&lab.far, to), 100_000);
        sockets::ping(&lab.far, [192, 168, 20, 254].into(), 5, 1000, &[]);
    };
    attempt();
    let vtepd = start(&lab);
    let status = vtepd.ask(&["status"]);
    assert_eq!(status["taken"].as_array().unwrap().len(), 2, "{status}");
    let forwards = |rules: &str| {
        let frames = || {
            let metrics = vtepd.wait_until_idle();
            assert_eq!(metrics.dropped_in_all(), 0, "{rules}: {}", metrics.0);
            ["encapsulated", "decapsulated"].map(|way| metrics.vni_frames(OTHER, way))
        };
        let before = frames();
        attempt();
        let grown = frames().into_iter().zip(before).all(|(after, before)| after > before + 20);
        assert!(grown, "{rules}");
    };
    forwards("the default rules");
    // As Documentation/networking/vrf.rst has them: table local is behind the rule for VRFs.
    ip(&lab.leaf, "rule add pref 32765 table local\nrule del pref 0");
    let rules = run(&lab.leaf, "ip rule");
    assert!(rules.starts_with("1000:") && rules.contains("l3mdev"), "{rules}");
    forwards("the rules of VRFs");
    let status = vtepd.ask(&["status"]);
    assert_eq!(status["taken"].as_array().unwrap().len(), 2, "{status}");
}

/// An uplink's netem delay and loss apply to vtepd's packets.
#[root_test]
#[ignore = "needs sch_netem: tests/linux-vm 6.1 modules"]
fn netem_on_uplinks() {
    let lab = lab("netem");
    let tc = |line: &str| drop(run(&lab.leaf, &format!("tc qdisc {line}")));
    let vtepd = start(&lab);
    sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
    for uplink in ["up1", "up2"] {
        tc(&format!("add dev {uplink} root netem delay 100ms limit 10000"));
    }
    let said = sockets::try_ping(&lab.host, lab.far.ip(), 5, 100, &[]);
    assert!(said.contains("5 packets transmitted, 5 received"), "{said}");
    let shortest =
        said.split("min/avg/max/mdev = ").nth(1).and_then(|times| times.split('/').next());
    let shortest: f64 = shortest.unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    assert!(shortest >= 100.0, "{said}");
    let before = vtepd.metrics().vni_frames(VNI, "encapsulated");
    for uplink in ["up1", "up2"] {
        tc(&format!("change dev {uplink} root netem loss 100%"));
    }
    let said = sockets::try_ping(&lab.host, lab.far.ip(), 5, 100, &["-w", "3"]);
    assert!(said.contains(" 0 received"), "{said}");
    let metrics = vtepd.wait_until_idle();
    assert!(metrics.vni_frames(VNI, "encapsulated") > before, "{}", metrics.0);
    for uplink in ["up1", "up2"] {
        tc(&format!("del dev {uplink} root"));
    }
    sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
}
