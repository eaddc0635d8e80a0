//! After any change of the kernel's objects, vtepd's tables equal the kernel's, and frames pass.

use std::fmt::Write as _;

use fabric::process::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use vtepd_tests::canonical::{Lines, bypass_differences, differences, of_kernel, of_vtepd};
use vtepd_tests::lab::{VNI, bridge, ifindex, ip, run};
use vtepd_tests::{Lab, TIMEOUT, Vtepd, sockets, wait_for};

/// The current names of the first overlay's vxlan netdev and bridge.
type Names<'a> = (&'a str, &'a str);

const NAMES: Names<'_> = ("vx10", "br10");

/// Waits until vtepd's tables equal the kernel's for these netdevs. Returns the lines.
fn agree(what: &str, lab: &Lab, vtepd: &Vtepd, netdevs: &[(u32, Names<'_>)]) -> Lines {
    let (vnis, names): (Vec<u32>, Vec<Names<'_>>) = netdevs.iter().copied().unzip();
    let mut last = (Lines::new(), vec![String::new()]);
    wait_until(TIMEOUT, || {
        // vtepctl refuses requests for a VNI that is not taken over yet.
        if !vnis.iter().all(|vni| vtepd.metrics().has_vni(*vni)) {
            return false;
        }
        let kernel = of_kernel(|command| run(&lab.leaf, command), &names);
        let mut differences = differences(&of_vtepd(|words| vtepd.ask(words), &vnis), &kernel);
        let run = |command: &str| run(&lab.leaf, command);
        differences.extend(bypass_differences(|words| vtepd.ask(words), run, &names));
        last = (kernel, differences);
        last.1.is_empty()
    });
    let (kernel, differences) = last;
    assert!(differences.is_empty(), "{what}: {differences:#?}");
    kernel
}

/// Checks that frames pass in both directions through vtepd.
fn traffic(what: &str, lab: &Lab, vtepd: &Vtepd) {
    let frames = || {
        ["encapsulated", "decapsulated"].map(|direction| vtepd.metrics().vni_frames(VNI, direction))
    };
    let before = frames();
    for (from, to) in [(&lab.host, lab.far.ip()), (&lab.farther, lab.next.ip())] {
        let said = sockets::try_ping(from, to, 3, 1000, &["-w", "10"]);
        // A busy machine may have sent a fourth request.
        assert!(said.contains(" 0% packet loss"), "{what}: {said}");
    }
    // The last one is counted when its batch is complete.
    wait_for(&format!("{what}: six frames more than {before:?} by vtepd"), || {
        frames().iter().zip(before).all(|(now, before)| *now >= before + 6)
    });
}

/// Creates the leaf's vxlan netdev and its entries again.
fn make_again(lab: &Lab, local: &str) {
    let mtu = lab.setup.overlay_mtu;
    ip(
        &lab.leaf,
        &format!(
            "link add vx10 mtu {mtu} type vxlan id {VNI} local {local} dstport 4789 nolearning\n\
             link set vx10 master br10 up\n\
             link set vx10 type bridge_slave learning off"
        ),
    );
    lab.entries(VNI);
}

/// A leaf with a binding of a MAC and an IP address, and a next hop with more weight.
fn bound(case: &str) -> Lab {
    let lab = Lab::new(case);
    ip(
        &lab.leaf,
        &format!(
            "addr add 192.168.10.254/24 dev br10\n\
             neigh replace 192.168.10.3 lladdr {} dev br10 extern_learn nud noarp\n\
             route replace 10.0.0.2/32 src 10.0.0.1 nexthop via 10.1.1.0 weight 6 nexthop via 10.1.2.0 weight 2",
            lab.far.mac()
        ),
    );
    lab
}

/// Uplink, bridge and vxlan netdev are moved, set down and up, deleted and created again.
#[root_test]
fn links_are_followed_whatever_becomes_of_them() {
    let lab = bound("links");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let settled = |what: &str, names: Names<'_>| {
        let lines = agree(what, &lab, &vtepd, &[(VNI, names)]);
        traffic(what, &lab, &vtepd);
        lines
    };
    let leaf = |commands: &str| ip(&lab.leaf, commands);
    let lines = settled("at the start", NAMES);
    for line in
        ["route 10.0.0.2 up1 10.1.1.0 3", "route 10.0.0.2 up2 10.1.2.0 1", "flood vx10 10.0.0.3"]
    {
        assert!(lines.contains(line), "{line} is missing: {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("host br10 192.168.10.3 ")), "{lines:#?}");

    leaf("link set vx10 nomaster");
    vtepd.wait_for("vx10 to be left", |m| m.left("vx10").is_some_and(|why| why == "not-in-bridge"));
    leaf("link set vx10 master br10\nlink set vx10 type bridge_slave learning off");
    settled("back in its bridge", NAMES);

    leaf(
        "link add other type bridge mcast_snooping 0\nlink set other up\nlink set vx10 master other",
    );
    agree("in another bridge", &lab, &vtepd, &[(VNI, ("vx10", "other"))]);
    leaf(
        "link set hp10 master other\nlink set hq10 master other\nlink set vx10 type bridge_slave learning off",
    );
    settled("the hosts have followed", ("vx10", "other"));
    leaf(
        "link set hp10 master br10\nlink set hq10 master br10\nlink set vx10 master br10\nlink del other",
    );
    leaf("link set vx10 type bridge_slave learning off");
    settled("all back", NAMES);

    // The netdev's learned entries disappear when it goes down.
    leaf("link set vx10 down");
    vtepd.wait_for("vx10 to be left", |m| m.left("vx10").is_some_and(|why| why == "down"));
    leaf("link set vx10 up");
    bridge(&lab.leaf, "fdb flush dev vx10");
    lab.entries(VNI);
    settled("down and up", NAMES);
    leaf("link set br10 down\nlink set br10 up");
    settled("the bridge, down and up", NAMES);

    let old = ifindex(&lab.leaf, "vx10");
    leaf("link del vx10");
    vtepd.wait_for("vx10 to be gone", |m| !m.has_vni(VNI) && m.left("vx10").is_none());
    make_again(&lab, "10.0.0.1");
    assert_ne!(ifindex(&lab.leaf, "vx10"), old);
    settled("made again", NAMES);
    // Both together, without waiting in between.
    leaf(
        "link del vx10\nlink del br10\nlink add br10 type bridge mcast_snooping 0\nlink set br10 up",
    );
    leaf(
        "link set hp10 master br10\nlink set hq10 master br10\naddr add 192.168.10.254/24 dev br10",
    );
    make_again(&lab, "10.0.0.1");
    let lines = settled("made again with its bridge", NAMES);
    assert!(!lines.iter().any(|line| line.starts_with("host ")), "{lines:#?}");
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}

/// Uplink, bridge and vxlan netdev get other names.
#[root_test]
fn links_are_followed_when_they_are_renamed() {
    let lab = bound("names");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    for (from, to, names) in [
        ("up1", "core1", NAMES),
        ("br10", "fabric", ("vx10", "fabric")),
        ("vx10", "tunnel", ("tunnel", "fabric")),
        ("tunnel", "vx10", ("vx10", "fabric")),
        ("fabric", "br10", NAMES),
        ("core1", "up1", NAMES),
    ] {
        // Before Linux 6.2 an interface cannot be renamed while it is up.
        if lab.leaf.run(&["ip", "link", "set", from, "name", to]).is_err() {
            root_test::ignore("the kernel renames nothing that is up");
        }
        wait_for(&format!("{to} in the tables"), || {
            let lines = agree(&format!("{from} is called {to}"), &lab, &vtepd, &[(VNI, names)]);
            lines.iter().any(|line| line.split(' ').any(|word| word == to))
        });
        traffic(to, &lab, &vtepd);
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}

/// VNIs appear and disappear, and the VTEP's address and the MTU change.
#[root_test]
fn vnis_addresses_and_mtus_are_followed() {
    let lab = Lab::new("vtep");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let both = [(VNI, NAMES), (20, ("vx20", "br20"))];
    for _ in 0..3 {
        lab.overlay(20, "nolearning", "nolearning", "");
        agree("a VNI more", &lab, &vtepd, &both);
        sockets::ping(&lab.host, lab.far.ip_in(20), 3, 1000, &[]);
        traffic("a VNI more", &lab, &vtepd);
        for leaf in [&lab.leaf, &lab.peer, &lab.peer2] {
            let ports = if leaf.name() == lab.leaf.name() {
                "link del hp20\nlink del hq20"
            } else {
                "link del hp20"
            };
            ip(leaf, &format!("link del vx20\nlink del br20\n{ports}"));
        }
        vtepd.wait_for("VNI 20 to go", |m| !m.has_vni(20) && m.left("vx20").is_none());
        agree("a VNI less", &lab, &vtepd, &both[..1]);
        traffic("a VNI less", &lab, &vtepd);
    }

    // From 10.0.0.1 to 10.0.0.9 and back: first by a change of the netdev, then by creating it
    // again.
    for (from, to) in [("10.0.0.1", "10.0.0.9"), ("10.0.0.9", "10.0.0.1")] {
        for (router, number) in lab.routers.iter().zip(1..) {
            ip(router, &format!("route replace {to}/32 via 10.1.{number}.1"));
        }
        for (peer, number) in [(&lab.peer, 2), (&lab.peer2, 3)] {
            ip(
                peer,
                &format!(
                    "route replace {to}/32 src 10.0.0.{number} nexthop via 10.{number}.1.0 nexthop via 10.{number}.2.0"
                ),
            );
            let mut entries = format!(
                "fdb append 00:00:00:00:00:00 dev vx10 dst {to}\nfdb del 00:00:00:00:00:00 dev vx10 dst {from}\n"
            );
            for host in [&lab.host, &lab.next] {
                writeln!(entries, "fdb replace {} dev vx10 dst {to} self extern_learn", host.mac())
                    .unwrap();
            }
            bridge(peer, &entries);
        }
        // Routes with this source address disappear with it, without a notification.
        ip(&lab.leaf, &format!("addr add {to}/32 dev lo\naddr del {from}/32 dev lo"));
        for peer in 2..=3 {
            ip(
                &lab.leaf,
                &format!(
                    "route replace 10.0.0.{peer}/32 src {to} nexthop via 10.1.1.0 nexthop via 10.1.2.0"
                ),
            );
        }
        if to == "10.0.0.9" {
            ip(&lab.leaf, &format!("link set vx10 type vxlan local {to}"));
        } else {
            ip(&lab.leaf, "link del vx10");
            make_again(&lab, to);
        }
        let local = || vtepd.ask(&["vni"])[0]["taken"]["local"].as_str().map(str::to_owned);
        wait_for("the new address", || local().as_deref() == Some(to));
        agree(to, &lab, &vtepd, &both[..1]);
        traffic(to, &lab, &vtepd);
    }

    // The limit applies to the inner frame with its Ethernet header. IPv4, UDP and VXLAN headers
    // take 36 bytes more.
    let limit = || vtepd.ask(&["vni"])[0]["taken"]["frame_limit"].as_u64();
    for mtu in [3000_u64, 9000] {
        for up in ["up1", "up2"] {
            ip(&lab.leaf, &format!("link set {up} mtu {mtu}"));
        }
        wait_for("the new limit", || limit() == Some(mtu - 36));
        agree("another MTU", &lab, &vtepd, &both[..1]);
        traffic("another MTU", &lab, &vtepd);
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}

/// Q18: while vtepd is stopped, so many events occur that the kernel drops some (ENOBUFS). vtepd
/// reads all tables again, reports and counts that, and its tables of every kind equal the
/// kernel's.
#[root_test]
fn q18_what_a_stopped_vtepd_did_not_hear_it_reads_again() {
    let lab = Lab::new("q18");
    let mut old = String::new();
    for number in 0..500_u16 {
        let [high, low] = number.to_be_bytes();
        writeln!(old, "fdb add 02:0d:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.2 self")
            .unwrap();
    }
    bridge(&lab.leaf, &old);
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    agree("at the start", &lab, &vtepd, &[(VNI, NAMES)]);
    let mut events = vtepd.events();
    assert_eq!(vtepd.metrics().get("vtepd_netlink_overruns_total"), 0);

    let signal = |signal| kill(Pid::from_raw(vtepd.pid()), signal).unwrap();
    signal(Signal::SIGSTOP);
    // More events than the socket's receive buffer holds.
    let mut flood = String::new();
    for number in 0..20_000_u16 {
        let [high, low] = number.to_be_bytes();
        writeln!(
            flood,
            "fdb add 02:e0:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.{} self",
            2 + number % 2
        )
        .unwrap();
    }
    bridge(&lab.leaf, &flood);
    // Most entries are deleted again, so that the journal can store all events of the
    // resynchronisation.
    let gone: String =
        flood.lines().skip(5000).map(|line| line.replace("fdb add", "fdb del") + "\n").collect();
    bridge(&lab.leaf, &gone);
    // vtepd gets no events about the following changes: entries, a move, a route, a host and a
    // whole VNI.
    bridge(&lab.leaf, &old.replace("fdb add", "fdb del"));
    bridge(&lab.leaf, "fdb replace 02:e0:00:00:00:00 dev vx10 dst 10.0.0.3 self");
    bridge(&lab.leaf, "fdb del 00:00:00:00:00:00 dev vx10 dst 10.0.0.3 self");
    ip(
        &lab.leaf,
        "route replace 10.0.0.3/32 src 10.0.0.1 nexthop via 10.1.1.0 weight 1 nexthop via 10.1.2.0 weight 4\n\
         addr add 192.168.10.254/24 dev br10\n\
         neigh replace 192.168.10.77 lladdr 02:e0:00:00:00:07 dev br10 extern_learn nud noarp",
    );
    lab.overlay(20, "nolearning", "nolearning", "");
    signal(Signal::SIGCONT);

    events
        .wait_for("lost events", |event| event["source"] == "kernel" && event["state"] == "stale");
    let resync = events.wait_for_kind("resync");
    let said = resync["text"].as_str().unwrap();
    assert!(said.contains("FDB entries (") && said.contains(" gone)"), "{said}");
    events.wait_for("the kernel to be heard again", |event| {
        event["source"] == "kernel" && event["state"] == "live"
    });
    let both = [(VNI, NAMES), (20, ("vx20", "br20"))];
    let lines = agree("after the overrun", &lab, &vtepd, &both);
    assert!(lines.len() > 5000, "{}", lines.len());
    for line in [
        "route 10.0.0.3 up2 10.1.2.0 4",
        "host br10 192.168.10.77 02:e0:00:00:00:07",
        "fdb vx10 02:e0:00:00:00:00 10.0.0.3",
    ] {
        assert!(lines.contains(line), "{line}");
    }
    let metrics = vtepd.metrics();
    assert!(metrics.get("vtepd_netlink_overruns_total") > 0);
    assert!(metrics.get("vtepd_swept_entries_total{source=\"kernel\"}") >= 500, "{}", metrics.0);
    assert_eq!(
        vtepd.ask(&["status"])["sources"][0]["overruns"],
        metrics.get("vtepd_netlink_overruns_total")
    );
    traffic("after the overrun", &lab, &vtepd);
    sockets::ping(&lab.host, lab.far.ip_in(20), 3, 1000, &[]);
}
