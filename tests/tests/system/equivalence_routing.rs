//! Policy routing, IPsec, addresses, encapsulations and path MTU: vtepd delivers what the kernel
//! delivers, and no more.
//!
//! Each test compares three cases: kernel VXLAN alone, vtepd started with the setting in place, and
//! the setting added and removed while vtepd runs.

use std::time::Duration;

use fabric::Namespace;
use fabric::process::wait_until;
use root_test::root_test;
use vtepd_tests::bulk::snmp;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, Host, VNI, bridge, ip, namespace_name, run, sysctl};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets, wait_for};

use crate::ipv6_underlay::over_ipv6;

/// Number of flows in each direction.
const FLOWS: u16 = 20;
/// UDP destination port of the flows.
const PORT: u16 = 9;

/// Counts of frames of [`FLOWS`] flows in each direction, between the leaf's host and the peer's.
#[derive(Debug)]
struct Fate {
    /// Frames that arrive at the peer's host.
    sent: usize,
    /// Frames that arrive at the leaf's host.
    received: usize,
    /// Routers that get frames from the leaf. In an expectation, routers that may get frames,
    /// because the kernel may use only one of several.
    routers: [bool; 2],
}

/// Sends the flows, and tells their fate. A busy machine may need time for those that are expected.
fn fate(lab: &Lab, expected: &Fate) -> Fate {
    let to_port = |frame: &[u8]| {
        frame.get(12..14) == Some(&[8, 0])
            && frame.get(23) == Some(&17)
            && frame.get(36..38) == Some(&PORT.to_be_bytes())
    };
    let hosts = [&lab.far, &lab.host].map(|host| Capture::start(&host.ns, ETH, to_port));
    let routers = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let flows = |from: &Host, to: &Host| {
        let pair = Pair::of(from, to);
        let frames: Vec<_> =
            (1..=FLOWS).map(|flow| frames::udp(pair, (flow, PORT), b"N")).collect();
        inject(&from.ns, ETH, &frames);
    };
    flows(&lab.host, &lab.far);
    flows(&lab.far, &lab.host);
    // A capture also sees the frames that its own host sends.
    let of = |frames: &[Captured], own: u8| {
        frames.iter().filter(|frame| frame.bytes.get(5) == Some(&own)).count()
    };
    let [far, host] = hosts;
    wait_until(Duration::from_secs(5), || {
        far.look(|frames| of(frames, lab.far.number)) >= expected.sent
            && host.look(|frames| of(frames, lab.host.number)) >= expected.received
    });
    quiet();
    Fate {
        sent: of(&far.stop(), lab.far.number),
        received: of(&host.stop(), lab.host.number),
        routers: routers.map(|capture| !capture.stop().is_empty()),
    }
}

/// Sends frames, and compares what arrives.
fn check(lab: &Lab, expected: &Fate, what: &str) {
    let seen = fate(lab, expected);
    let ways = seen.routers.iter().zip(&expected.routers).all(|(used, allowed)| !used || *allowed);
    let same = (seen.sent, seen.received) == (expected.sent, expected.received);
    assert!(same && ways, "{what}: {seen:?} instead of {expected:?}");
}

/// Everything arrives, over both routers.
const ALL: Fate = Fate { sent: FLOWS as usize, received: FLOWS as usize, routers: [true, true] };

/// Waits until the VNI stays with the kernel for this reason.
fn wait_until_left(vtepd: &Vtepd, slug: &str) {
    vtepd.wait_for(slug, |metrics| {
        metrics.left("vx10").as_deref() == Some(slug) && !metrics.has_vni(VNI)
    });
}

/// Waits until vtepd has taken over the VNI, and knows a way to the peer. An address exists before
/// the routes that have it as their source.
fn wait_until_taken(vtepd: &Vtepd) {
    vtepd.wait_for("the VNI", |metrics| metrics.has_vni(VNI));
    wait_for("a route over an uplink", || {
        let routes = String::from_utf8(vtepd.ctl(&["route"]).stdout).unwrap();
        routes.contains("up1") || routes.contains("up2")
    });
}

/// Compares kernel VXLAN and vtepd while the setting of `add` is in force, and after `remove`.
fn as_the_kernel(
    lab: &Lab,
    slug: &str,
    expected: &Fate,
    add: impl Fn(&Lab),
    remove: impl Fn(&Lab),
) {
    check(lab, &ALL, "the kernel, before");
    add(lab);
    check(lab, expected, "the kernel");
    // The setting exists before the start.
    let dry = Vtepd::output(&lab.leaf, &["--dry-run"]);
    let dry = String::from_utf8(dry.stdout).unwrap();
    assert!(dry.contains(&format!("[{slug}]")), "{dry}");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    wait_until_left(&vtepd, slug);
    check(lab, expected, "vtepd, started afterwards");
    remove(lab);
    wait_until_taken(&vtepd);
    // It is shown before all of its programs are attached. The kernel forwards until then.
    wait_for("all frames by vtepd", || {
        let frames = || vtepd.metrics().vni_frames(VNI, "encapsulated");
        let before = frames();
        check(lab, &ALL, "vtepd, once it is gone");
        frames() - before >= u64::from(FLOWS)
    });
    // The setting appears and disappears.
    add(lab);
    wait_until_left(&vtepd, slug);
    check(lab, expected, "vtepd, running before");
    let status = String::from_utf8(vtepd.ctl(&["status"]).stdout).unwrap();
    assert!(status.contains(&format!("[{slug}]")), "{status}");
    remove(lab);
    wait_until_taken(&vtepd);
    check(lab, &ALL, "vtepd, once it is gone again");
}

#[root_test]
fn rules_decide_the_way_as_with_the_kernel() {
    let second_only = Fate { routers: [false, true], ..ALL };
    let lab = Lab::new("rule");
    ip(&lab.leaf, "route add 10.0.0.2/32 via 10.1.2.0 table 100");
    let command = |what: &'static str, rule: &'static str| {
        move |lab: &Lab| ip(&lab.leaf, &format!("rule {what} {rule}"))
    };
    let rule = "pref 100 to 10.0.0.2 lookup 100";
    as_the_kernel(&lab, "policy-routing", &second_only, command("add", rule), command("del", rule));
    let nothing_sent = Fate { sent: 0, routers: [false, false], ..ALL };
    let rule = "pref 100 from 10.0.0.1 ipproto udp dport 4789 prohibit";
    as_the_kernel(
        &lab,
        "policy-routing",
        &nothing_sent,
        command("add", rule),
        command("del", rule),
    );
}

#[root_test]
fn ipsec_policies_keep_packets_from_leaving_and_entering_in_clear() {
    let lab = Lab::new("ipsec");
    let policy = |selector: &'static str, rest: &'static str| {
        let add = move |lab: &Lab| ip(&lab.leaf, &format!("xfrm policy add {selector} {rest}"));
        let remove = move |lab: &Lab| ip(&lab.leaf, &format!("xfrm policy del {selector}"));
        (add, remove)
    };
    let no_output = Fate { sent: 0, routers: [false, false], ..ALL };
    let (add, remove) = policy(
        "src 10.0.0.1/32 dst 10.0.0.2/32 proto udp dport 4789 dir out",
        "tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode transport",
    );
    as_the_kernel(&lab, "ipsec-policy", &no_output, add, remove);
    let no_input = Fate { received: 0, ..ALL };
    let (add, remove) = policy(
        "src 10.0.0.2/32 dst 10.0.0.1/32 proto udp dport 4789 dir in",
        "tmpl src 10.0.0.2 dst 10.0.0.1 proto esp mode transport",
    );
    as_the_kernel(&lab, "ipsec-policy", &no_input, add, remove);
    let (add, remove) = policy("src 10.0.0.2/32 dst 10.0.0.1/32 dir in", "action block");
    as_the_kernel(&lab, "ipsec-policy", &no_input, add, remove);
}

#[root_test]
fn without_its_local_address_a_vni_sends_and_receives_nothing() {
    let lab = Lab::new("local");
    let nothing = Fate { sent: 0, received: 0, routers: [false, false] };
    as_the_kernel(
        &lab,
        "local-address-missing",
        &nothing,
        // The routes with this source address disappear with it.
        |lab| ip(&lab.leaf, "addr del 10.0.0.1/32 dev lo"),
        |lab| {
            let routes = [2, 3].map(|other| {
                format!("route add 10.0.0.{other}/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0")
            });
            ip(&lab.leaf, &format!("addr add 10.0.0.1/32 dev lo\n{}", routes.join("\n")));
        },
    );
}

#[root_test]
fn next_hops_with_an_encapsulation_are_not_bypassed() {
    let lab = Lab::new("encap");
    // With proxy ARP, a sender that ignored the encapsulation would deliver its packets.
    sysctl(&lab.routers[0], "ipv4/conf/leaf/proxy_arp", "1");
    // The namespace has no IPv6, so the kernel sends nothing.
    let no_output = Fate { sent: 0, routers: [false, false], ..ALL };
    as_the_kernel(
        &lab,
        "route-encapsulation",
        &no_output,
        |lab| ip(&lab.leaf, "route replace 10.0.0.2/32 encap seg6 mode encap segs fc00::2 dev up1"),
        |lab| {
            ip(
                &lab.leaf,
                "route replace 10.0.0.2/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0",
            );
        },
    );
}

/// A blackhole drops with the kernel and with vtepd. A route by TOS concerns only tunnels with that
/// TOS.
#[root_test]
fn blackholes_drop_and_routes_by_tos_are_followed() {
    let lab = Lab::with("tos", Setup { vxlan: "tos 0x10", ..Setup::default() });
    let second_only = Fate { routers: [false, true], ..ALL };
    as_the_kernel(
        &lab,
        "tos-route",
        &second_only,
        |lab| ip(&lab.leaf, "route add 10.0.0.2/32 tos 0x10 via 10.1.2.0"),
        |lab| ip(&lab.leaf, "route del 10.0.0.2/32 tos 0x10 via 10.1.2.0"),
    );
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let ways = "10.0.0.2/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0";
    for kind in ["blackhole", "prohibit", "unreachable"] {
        ip(&lab.leaf, &format!("route del {ways}\nroute add {kind} 10.0.0.2/32"));
        let gone = || {
            vtepd.ask(&["route"]).as_array().unwrap().iter().any(|row| {
                row["vtep"] == "10.0.0.2" && row["next_hops"].as_array().is_some_and(Vec::is_empty)
            })
        };
        wait_for("the way to go", gone);
        let nothing_sent = Fate { sent: 0, routers: [false, false], ..ALL };
        check(&lab, &nothing_sent, kind);
        assert!(vtepd.metrics().has_vni(VNI));
        ip(&lab.leaf, &format!("route del {kind} 10.0.0.2/32\nroute add {ways}"));
        wait_for("the way to come back", || !gone());
    }
}

/// As with Docker, the netdev is created in one namespace, whose addresses and routes it keeps, and
/// moved to another.
#[root_test]
fn a_netdev_moved_here_keeps_its_underlay_and_is_left() {
    let lab = Lab::new("moved");
    let tenant = Namespace::create(namespace_name("moved", "tenant")).unwrap();
    for netdev in ["vx10", "hp10"] {
        ip(&lab.leaf, &format!("link set {netdev} netns {}", tenant.name()));
    }
    ip(
        &tenant,
        "link set lo up\n\
         addr add 10.0.0.1/32 dev lo\n\
         link add br10 type bridge mcast_snooping 0\n\
         link set vx10 master br10 up\n\
         link set hp10 master br10 up\n\
         link set br10 up",
    );
    bridge(&tenant, "fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.2");
    let forwards = || run(&tenant, "bridge link show dev hp10").contains("state forwarding");
    wait_for("the port to forward", forwards);
    sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
    let vtepd = Vtepd::start(&tenant, &[]);
    wait_until_left(&vtepd, "foreign-namespace");
    sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
}

/// Pings of a host, 20 ms apart, while a link behind the routers has a smaller MTU than the host
/// knows. Returns how many of 60 arrive. Answers have no DF, so that an IPv6 underlay loses them.
fn arrived_over_a_smaller_mtu(lab: &Lab) -> u64 {
    for namespace in [&lab.host.ns, &lab.far.ns, &lab.leaf, &lab.peer] {
        run(namespace, "ip route flush cache");
        run(namespace, "ip -6 route flush cache");
    }
    let arrived = || snmp(&lab.far.ns, "Icmp", "InEchos");
    let before = arrived();
    let pings = format!("ping -n -q -i 0.02 -W 1 -c 60 -M want -s 3000 {}", lab.far.ip());
    // Its status says that no answer came.
    let _ = lab.host.ns.output(&pings.split(' ').collect::<Vec<_>>()).unwrap();
    arrived() - before
}

/// A path MTU that shrinks costs as many frames as with kernel VXLAN: a router's message is an
/// event.
#[root_test(alone)]
fn a_path_mtu_that_shrinks_is_no_black_hole() {
    // In parallel, because most of the time is waiting.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let setup =
                Setup { overlay_mtu: 8000, vxlan: "df set", peers: "df set", ..Setup::default() };
            costs_no_more_when_it_shrinks(&Lab::with("shrink", setup));
        });
        scope.spawn(|| {
            // Over IPv6, no router fragments. The kernel keeps a path MTU for one next hop of an IPv6
            // route, which it chooses by the message and not by the ports of the packet
            // (`ip6_update_pmtu`). With two next hops this is another one at some hash seeds, and then
            // kernel VXLAN loses everything.
            let one_way = over_ipv6("shrink6", "");
            ip(&one_way.leaf, "route replace fd00::2/128 via fd01:1:1::2");
            costs_no_more_when_it_shrinks(&one_way);
        });
    });
}

fn costs_no_more_when_it_shrinks(lab: &Lab) {
    for router in &lab.routers {
        ip(router, "link set peer mtu 1500");
    }
    ip(&lab.peer, "link set up1 mtu 1500\nlink set up2 mtu 1500");
    let attempt = || arrived_over_a_smaller_mtu(lab);
    let kernel = attempt();
    assert!((50..60).contains(&kernel), "kernel VXLAN: {kernel} of 60");
    for datapath in ["offload", "userspace"] {
        let vtepd = Vtepd::start(&lab.leaf, &["--datapath", datapath]);
        vtepd.wait_for("the VNI", |metrics| metrics.has_vni(VNI));
        let arrived = attempt();
        assert!(arrived + 1 >= kernel, "{datapath}: {arrived} of 60, kernel VXLAN {kernel}");
        assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") > 10);
    }
}

/// A link behind the routers has a smaller MTU. The kernel learns it from ICMP messages about
/// packets that vtepd sent.
#[root_test]
fn path_mtu_is_followed() {
    for df in ["df set", "df inherit"] {
        let lab = Lab::with(
            "pmtu",
            Setup { overlay_mtu: 8000, vxlan: df, peers: df, ..Setup::default() },
        );
        for router in &lab.routers {
            ip(router, "link set peer mtu 1500");
        }
        ip(&lab.peer, "link set up1 mtu 1500\nlink set up2 mtu 1500");
        let transfer = || {
            for namespace in [&lab.host.ns, &lab.far.ns, &lab.leaf] {
                run(namespace, "ip route flush cache");
            }
            sockets::tcp_both_ways(&lab.host, &lab.far, 300_000);
            // The host has learned the path MTU.
            let way = run(&lab.host.ns, &format!("ip route get {}", lab.far.ip()));
            assert!(way.contains("mtu 1450"), "{way}");
        };
        transfer();
        let vtepd = Vtepd::start(&lab.leaf, &[]);
        let limit = || vtepd.ask(&["vni"])[0]["taken"]["frame_limit"].as_u64();
        transfer();
        assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") > 10);
        wait_for("the path MTU", || limit() == Some(1500 - 36));
        run(&lab.leaf, "ip route flush cache");
        wait_for("the path MTU to be forgotten", || limit() == Some(9000 - 36));
        transfer();
    }
}
