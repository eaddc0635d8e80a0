//! vtepd takes over, gives back to the kernel, and does not disturb anything else.

use std::process::{Command, Stdio};
use std::time::Duration;

use fabric::Namespace;
use fabric::netns::veth;
use nix::sys::signal::Signal;
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::daemon::{Metrics, program};
use vtepd_tests::frames::{self, Pair, Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, VNI, bridge, ip, mac_of, namespace_name, remote_mac, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Vtepd, quiet, sockets, wait_for};
use wire::{Ethernet, Ipv4Packet};

const HOOKS: [&str; 2] = ["tcx", "clsact"];

/// What vtepd leaves visible in a namespace: links, filters, sockets, and programs if bpftool is
/// installed.
fn traces(leaf: &Namespace) -> String {
    let mut text = run(leaf, "ip -br link");
    for line in run(leaf, "ip -br link").lines() {
        let name = line.split([' ', '@']).next().unwrap();
        for parent in ["ingress", "egress"] {
            let filters = leaf.output(&["tc", "filter", "show", "dev", name, parent]).unwrap();
            let said = String::from_utf8_lossy(&filters.stderr);
            // The punt pairs of a killed vtepd may disappear meanwhile.
            assert!(
                filters.status.success() || said.contains("Cannot find device"),
                "{name}: {said}"
            );
            text += &String::from_utf8_lossy(&filters.stdout);
        }
    }
    text += &run(leaf, "ss -Hanp");
    if let Ok(programs) = leaf.output(&["bpftool", "net", "show"]) {
        text += &String::from_utf8_lossy(&programs.stdout);
    }
    // Only lines that name vtepd, because link states and socket ports vary.
    let ours = |line: &&str| line.contains("vtepd");
    text.lines().filter(ours).collect::<Vec<_>>().join("\n")
}

#[root_test]
fn after_sigterm_nothing_is_left() {
    let lab = Lab::new("term");
    assert_eq!(traces(&lab.leaf), "");
    for hook in HOOKS {
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
        let while_running = traces(&lab.leaf);
        for trace in [
            "vtepd-underlay",
            "vtepd-bridge",
            "vtepd-split",
            "\"vtepd\"",
            // tc does not show tcx links.
            if hook == "clsact" { "vtepd_uplink" } else { "vtepd-" },
        ] {
            assert!(while_running.contains(trace), "{hook}: no {trace} in\n{while_running}");
        }
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{status}: {log}");
        assert_eq!(traces(&lab.leaf), "", "after {hook}");
        // Removing a qdisc would stop the interface for a moment, so an empty one stays.
        assert_eq!(run(&lab.leaf, "tc qdisc show dev up1").contains("clsact"), hook == "clsact");
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    }
}

/// With clsact, filters that pass everything stay until the next start. Punt pairs disappear with
/// the process on both hooks.
#[root_test]
fn after_sigkill_the_next_start_removes_what_is_left() {
    let lab = Lab::new("left");
    for hook in HOOKS {
        Vtepd::start(&lab.leaf, &["--hook", hook]).kill();
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        wait_for("the punts to go", || !run(&lab.leaf, "ip -br link").contains("vtepd-"));
        let left = traces(&lab.leaf);
        assert_eq!(left.contains("vtepd_"), hook == "clsact", "{hook}: {left}");
        // Started and killed again: each finds what the one before left.
        Vtepd::start(&lab.leaf, &["--hook", hook]).kill();
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 3);
        let filters = run(&lab.leaf, "tc filter show dev up1 ingress");
        assert_eq!(
            filters.matches("handle 0x1 vtepd_uplink").count(),
            usize::from(hook == "clsact"),
            "{filters}"
        );
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{status}: {log}");
        let left = traces(&lab.leaf);
        assert!(!left.contains("vtepd"), "{hook}: {left}");
    }
}

/// A start on another hook than the killed one: the old filters do not disturb it and are removed.
#[root_test]
fn after_sigkill_on_clsact_a_start_on_tcx_removes_the_filters() {
    let lab = Lab::new("mix");
    Vtepd::start(&lab.leaf, &["--hook", "clsact"]).kill();
    let vtepd = Vtepd::start(&lab.leaf, &["--hook", "tcx"]);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 3);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
    assert!(!traces(&lab.leaf).contains("vtepd"), "{}", traces(&lab.leaf));
}

/// Filters of a killed vtepd are also removed from interfaces that the next one does not steer.
#[root_test]
fn after_sigkill_filters_go_from_interfaces_that_are_not_steered() {
    let lab = Lab::new("idle");
    Vtepd::start(&lab.leaf, &["--hook", "clsact"]).kill();
    assert!(
        traces(&lab.leaf).contains("vtepd_uplink") && traces(&lab.leaf).contains("vtepd_vxlan")
    );
    let vtepd = Vtepd::start(&lab.leaf, &["--exclude", "10"]);
    assert!(!vtepd.metrics().has_vni(VNI));
    let left = traces(&lab.leaf);
    assert!(!left.contains("vtepd_uplink") && !left.contains("vtepd_vxlan"), "{left}");
    vtepd.wait_for_log("removed what a killed vtepd had left on");
}

/// A log whose reader has exited (`vtepd 2>&1 | head -1`) stops nothing.
#[root_test]
fn an_unread_log_stops_nothing() {
    let lab = Lab::new("mute");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(vtepd_tests::daemon::program());
    command.args(["-vv", "--no-fpm"]).env_remove("RUST_LOG").stdout(Stdio::null()).stderr(writer);
    let mut vtepd = lab.leaf.spawn(&mut command).unwrap();
    wait_for("vtepd to take over or to end", || {
        run(&lab.leaf, "ip -br link").contains("vtepd-bridge")
            || vtepd.try_wait().unwrap().is_some()
    });
    vtepd.signal(Signal::SIGTERM).unwrap();
    let status = vtepd.wait(vtepd_tests::TIMEOUT).unwrap();
    assert!(status.success(), "{status}");
}

#[root_test]
fn a_dry_run_whose_reader_has_gone_is_no_error() {
    for arguments in [&["--dry-run"][..], &["--dry-run", "--output", "json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(program());
        command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(writer);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && !said.contains("panicked"),
            "{arguments:?}: {}: {said}",
            output.status
        );
    }
}

/// On SIGHUP vtepd logs what changed, that nothing changed, or that there is no file.
#[root_test]
fn a_hangup_says_what_changed() {
    let lab = Lab::new("hup");
    let file = std::env::temp_dir().join(format!("vtepd-hup-{}.toml", std::process::id()));
    std::fs::write(&file, "[entropy]\nseed = 1\n").unwrap();
    let vtepd = Vtepd::start(&lab.leaf, &["--config", file.to_str().unwrap()]);
    vtepd.hangup();
    vtepd.wait_for_log("was read again: nothing changed");
    std::fs::write(&file, "[entropy]\nseed = 2\n[takeover]\nvnis = [10, 99]\n").unwrap();
    vtepd.hangup();
    for line in [
        "entropy.seed: 1 → 2",
        "takeover.vnis: all → 10, 99",
        "VNI 99 is to be taken over, but no vxlan",
    ] {
        vtepd.wait_for_log(line);
    }
    std::fs::remove_file(&file).unwrap();
    drop(vtepd);
    let vtepd = Vtepd::start(&lab.leaf, &["--vni", "10", "--vni", "98"]);
    vtepd.wait_for_log("VNI 98 is to be taken over, but no vxlan");
    vtepd.hangup();
    vtepd.wait_for_log("there is no configuration file to read again");
    let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--vni", "98"]);
    let dry = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(dry.contains("Note: VNI 98 is to be taken over, but no vxlan"), "{dry}");
    assert!(!vtepd.log().contains("VNI 10 is to be taken over, but"), "{}", vtepd.log());
    lab.overlay(98, "nolearning", "nolearning", "");
    vtepd.wait_for("the VNI that has come", |metrics| metrics.has_vni(98));
}

#[root_test]
fn a_second_vtepd_is_refused_by_name() {
    let lab = Lab::new("second");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let second = Vtepd::output(&lab.leaf, &["--metrics-listen", "127.0.0.1:9999"]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(said.contains(&format!("process {}", vtepd.pid())), "{said}");
    // The first one is not affected, and another namespace is free.
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    let _other = Vtepd::start(&lab.peer, &[]);
    // A dry run is always possible, and reports the running process.
    let look = Vtepd::output(&lab.leaf, &["--dry-run"]);
    assert!(look.status.success());
    let shown = String::from_utf8_lossy(&look.stdout).into_owned();
    assert!(
        shown.contains(&format!("(process {}) runs in this network namespace", vtepd.pid())),
        "{shown}"
    );
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
    let alone = Vtepd::output(&lab.leaf, &["--dry-run"]);
    assert!(
        !String::from_utf8_lossy(&alone.stdout).contains("runs in this network namespace"),
        "{alone:?}"
    );
}

/// The leaf never sends "port unreachable" for VXLAN: not while vtepd starts, stops, is killed or
/// restarts, under traffic in both directions.
#[root_test]
fn q17_no_icmp_port_unreachable_leaves_the_leaf() {
    let lab = Lab::new("q17");
    let is_unreachable = |frame: &[u8]| {
        let Ok((_, packet)) = Ethernet::parse(frame) else { return false };
        Ipv4Packet::parse(packet)
            .is_ok_and(|ip| ip.header.protocol() == 1 && ip.payload.first() == Some(&3))
    };
    let watching = [
        (&lab.routers[0], "leaf"),
        (&lab.routers[1], "leaf"),
        (&lab.host.ns, ETH),
        (&lab.next.ns, ETH),
    ]
    .map(|(namespace, interface)| Capture::start(namespace, interface, is_unreachable));
    let rate = Rate { frames: 5000, queue_pairs: 16, payload: 64 };
    let (out, back) = (
        Stream::start(&lab.host, &lab.far, rate, 0x1701),
        Stream::start(&lab.far, &lab.next, rate, 0x1702),
    );
    for round in 0..6 {
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", HOOKS[round % 2]]);
        out.pass(200);
        back.pass(200);
        if round < 3 {
            let (status, log) = vtepd.terminate();
            assert!(status.success(), "{status}: {log}");
        } else {
            vtepd.kill();
        }
        out.pass(200);
        back.pass(200);
    }
    let _ = (out.finish(), back.finish());
    for capture in watching {
        assert_eq!(capture.stop(), [], "ICMP unreachable");
    }
}

/// Checks that the metrics and both forms of `--dry-run` name a VNI that stays with the kernel, with
/// a word of its reason.
fn assert_left(
    (vni, word, slug): (u32, &str, &str),
    metrics: &Metrics,
    dry: &serde_json::Value,
    table: &str,
) {
    let netdev = format!("vx{vni}");
    let reason =
        metrics.left(&netdev).unwrap_or_else(|| panic!("{netdev} is not named:\n{}", metrics.0));
    assert_eq!(reason, slug, "{netdev}");
    let left =
        dry["left"].as_array().unwrap().iter().find(|left| left["netdev"] == netdev.as_str());
    let left = left.unwrap_or_else(|| panic!("{dry:#}"));
    assert_eq!(left["reason_slug"], slug);
    assert!(left["reason"].as_str().unwrap().contains(word), "{left}");
    let named = |line: &str| {
        line.contains(&netdev) && line.contains(word) && line.ends_with(&format!("[{slug}]"))
    };
    assert!(table.lines().any(named), "{table}");
}

/// What vtepd does not take over stays with the kernel, works, and is listed with its reason.
#[root_test]
fn what_is_not_taken_is_named_and_keeps_working() {
    let lab = Lab::new("other");
    lab.overlay(40, "nolearning proxy", "nolearning", "");
    lab.overlay(50, "nolearning", "nolearning", "");
    // A multicast group and `external`. Without a multicast underlay, only the reason can be
    // tested.
    ip(
        &lab.leaf,
        "link add vx60 type vxlan id 60 local 10.0.0.1 group 239.1.1.1 dev up1 dstport 4789\n\
         link add br60 type bridge\n\
         link set vx60 master br60 up\n\
         link add vx70 type vxlan external dstport 4790\n\
         link set vx70 up",
    );
    let arguments = ["--exclude", "50"];
    let vtepd = Vtepd::start(&lab.leaf, &arguments);
    let metrics = vtepd.metrics();
    let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--output", "json", "--exclude", "50"]);
    let dry: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    let table = Vtepd::output(&lab.leaf, &["--dry-run", "--exclude", "50"]);
    let table = String::from_utf8(table.stdout).unwrap();
    for (vni, word, slug) in [
        (40, "proxy", "options"),
        (50, "excludes", "excluded"),
        (60, "239.1.1.1", "multicast-group"),
        (70, "external", "external"),
    ] {
        assert_left((vni, word, slug), &metrics, &dry, &table);
    }
    let of_external = r#"{netdev="vx70",vni="external","#;
    assert!(
        table.contains("vx70             external  source ports by qp-hash: 'external' is on"),
        "{table}"
    );
    assert!(metrics.0.contains(of_external), "{}", metrics.0);
    let status = String::from_utf8(vtepd.ctl(&["status"]).stdout).unwrap();
    assert!(
        status.contains("vx70 (external), source ports by qp-hash: 'external' is on"),
        "{status}"
    );
    assert_eq!(dry["taken"].as_array().unwrap().len(), 1);
    assert_eq!((&dry["taken"][0]["vni"], &dry["taken"][0]["netdev"]), (&10.into(), &"vx10".into()));
    assert_eq!(dry["uplinks"], serde_json::json!(["up1", "up2"]));
    assert!(table.contains("Would be taken over: 1") && table.contains("vx10"), "{table}");
    for vni in [40, 50, VNI] {
        sockets::ping(&lab.host, lab.far.ip_in(vni), 3, 1000, &[]);
        sockets::tcp_between(
            (&lab.host, lab.host.ip_in(vni)),
            (&lab.far, lab.far.ip_in(vni)),
            100_000,
        );
    }
    let metrics = vtepd.metrics();
    assert!(metrics.has_vni(VNI) && metrics.vni_frames(VNI, "encapsulated") > 0);
    assert_eq!(metrics.0.matches("vtepd_vni_info{").count(), 1, "{}", metrics.0);
    drop(vtepd);

    // Selected by name instead of by exclusion.
    let vtepd = Vtepd::start(&lab.leaf, &["--vni", "50"]);
    let metrics = vtepd.wait_for("what is left", |metrics| metrics.left("vx10").is_some());
    assert!(metrics.has_vni(50) && !metrics.has_vni(VNI), "{}", metrics.0);
    assert_eq!(metrics.left("vx10").as_deref(), Some("not-included"), "{}", metrics.0);
    sockets::ping(&lab.host, lab.far.ip_in(50), 3, 1000, &[]);
    assert!(vtepd.metrics().vni_frames(50, "encapsulated") >= 3);
}

#[root_test]
fn a_vlan_aware_bridge_is_named_and_keeps_working() {
    let lab = Lab::new("aware");
    let bridge = ["ip", "link", "add", "br99", "type", "bridge", "vlan_filtering", "1"];
    if lab.leaf.run(&bridge).is_err() {
        root_test::ignore("the kernel has no bridge VLAN filtering");
    }
    lab.overlay(30, "nolearning", "nolearning", "vlan_filtering 1");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--output", "json"]);
    let dry: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    let table = Vtepd::output(&lab.leaf, &["--dry-run"]);
    let table = String::from_utf8(table.stdout).unwrap();
    let left = (30, "VLAN-aware", "vlan-aware-bridge");
    assert_left(left, &vtepd.metrics(), &dry, &table);
    for vni in [30, VNI] {
        sockets::ping(&lab.host, lab.far.ip_in(vni), 3, 1000, &[]);
        sockets::tcp_between(
            (&lab.host, lab.host.ip_in(vni)),
            (&lab.far, lab.far.ip_in(vni)),
            100_000,
        );
    }
}

/// VXLAN that arrives on an interface without a route to a VTEP stays with the kernel, and reaches
/// the host.
#[root_test]
fn vxlan_from_elsewhere_still_works_through_the_kernel() {
    let lab = Lab::new("mgmt");
    let management = Namespace::create(namespace_name("mgmt", "station")).unwrap();
    veth((&lab.leaf, "mgmt"), (&management, "leaf"), 9000).unwrap();
    ip(&lab.leaf, "addr add 172.16.0.1/24 dev mgmt");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let pair = Pair::of(&lab.far, &lab.host);
    let source = pair.from.0.0;
    let arrived =
        Capture::start(&lab.host.ns, ETH, move |frame| frame.get(6..12) == Some(&source[..]));
    let to = mac_of(&lab.leaf, "mgmt");
    let tunnelled =
        Tunnelled { to, source: PEER, destination: LEAF, port: 4789, vni: VNI, tos: 0, flip: 0 };
    inject(&management, "leaf", &[tunnelled.frame(&frames::udp(pair, (1, 2), b"from elsewhere"))]);
    arrived.wait(1);
    quiet();
    assert_eq!(arrived.stop().len(), 1);
    let metrics = vtepd.metrics();
    assert_eq!(metrics.vni_frames(VNI, "decapsulated"), 0, "{}", metrics.0);
}

#[root_test]
fn a_vni_that_appears_is_taken_and_one_that_disappears_is_let_go() {
    for hook in HOOKS {
        let lab = Lab::new("appear");
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
        lab.overlay(20, "nolearning", "nolearning", "");
        vtepd.wait_for("VNI 20", |m| {
            m.has_vni(20) && m.find("vtepd_vni_remote_macs{vni=\"20\"}") == Some(2)
        });
        sockets::ping(&lab.host, lab.far.ip_in(20), 3, 1000, &[]);
        sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
        assert!(vtepd.metrics().vni_frames(20, "encapsulated") >= 3);
        // A netdev that is down is given back with a reason, and taken over again when it is up.
        ip(&lab.leaf, "link set vx20 down");
        vtepd.wait_for("VNI 20 to be let go", |m| {
            m.left("vx20").is_some_and(|reason| reason.contains("down"))
        });
        ip(&lab.leaf, "link set vx20 up");
        vtepd.wait_for("VNI 20 again", |m| m.has_vni(20));
        ip(&lab.leaf, "link del vx20");
        let metrics =
            vtepd.wait_for("VNI 20 to disappear", |m| !m.has_vni(20) && m.left("vx20").is_none());
        assert!(metrics.has_vni(VNI));
        sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
    }
}

/// An interface without a route is not an uplink. An uplink that goes down, up, is deleted and
/// created again is used as the routes require.
#[root_test]
fn uplinks_come_and_go() {
    for hook in HOOKS {
        let lab = Lab::new("uplink");
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
        let paths = |m: &vtepd_tests::daemon::Metrics| {
            ["up1", "up2"]
                .map(|up| m.0.contains(&format!("vtepd_path_frames_total{{uplink=\"{up}\",")))
        };
        assert_eq!(paths(&vtepd.metrics()), [true, true]);
        // The peer's route must not use this router either, because its kernel does not know the
        // state of the leaf's link.
        let cut = |router: usize, change: &str| {
            ip(&lab.routers[router], &format!("link set leaf {change}"))
        };
        ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.2.0");
        ip(&lab.leaf, "link set up1 down");
        vtepd.wait_for("up1 to be no path", |m| paths(m) == [false, true]);
        sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
        // Up again. The kernel has removed the next hops of the link from its routes, and zebra
        // would add them again.
        ip(
            &lab.leaf,
            "link set up1 up\n\
             route replace 10.0.0.2/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0\n\
             route replace 10.0.0.3/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0",
        );
        vtepd.wait_for("up1 to be a path again", |m| paths(m) == [true, true]);
        ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
        sockets::ping(&lab.far, lab.host.ip(), 5, 1000, &[]);
        // Without a carrier.
        cut(1, "down");
        vtepd.wait_for("up2 to be no path", |m| paths(m) == [true, false]);
        sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
        cut(1, "up");
        vtepd.wait_for("up2 to be a path again", |m| paths(m) == [true, true]);

        // Deleted and created again: another index, the same name. The kernel removes the whole
        // route with one of its interfaces (`fib_sync_down_dev`).
        ip(&lab.leaf, "link del up1");
        vtepd.wait_for("the route to be gone", |m| paths(m) == [false, false]);
        ip(
            &lab.leaf,
            &format!(
                "link add up1 mtu 9000 type veth peer name leaf mtu 9000 netns {}\n\
                 addr add 10.1.1.1/31 dev up1\n\
                 link set up1 up",
                lab.routers[0].name()
            ),
        );
        ip(
            &lab.routers[0],
            "addr add 10.1.1.0/31 dev leaf\nlink set leaf up\nroute add 10.0.0.1/32 via 10.1.1.1",
        );
        ip(
            &lab.leaf,
            "route replace 10.0.0.2/32 src 10.0.0.1 via 10.1.1.0\nroute replace 10.0.0.3/32 src 10.0.0.1 via 10.1.1.0",
        );
        vtepd.wait_for("the new up1", |m| paths(m) == [true, false]);
        let before = vtepd.metrics();
        sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
        let after = vtepd.metrics();
        assert!(
            after.vni_frames(VNI, "encapsulated") >= before.vni_frames(VNI, "encapsulated") + 5
        );
        assert!(
            after.vni_frames(VNI, "decapsulated") >= before.vni_frames(VNI, "decapsulated") + 5,
            "{}",
            after.0
        );
    }
}

/// With an unresolved next hop, frames wait, the kernel is asked to resolve it, and the frames
/// leave in order.
#[root_test]
fn frames_wait_for_an_unresolved_next_hop() {
    let lab = Lab::new("hold");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let stream = Stream::start(
        &lab.host,
        &lab.far,
        Rate { frames: 500, queue_pairs: 4, payload: 64 },
        0x401d,
    );
    stream.pass(100);
    for _ in 0..5 {
        // vtepd asks for the same next hop at most once a second.
        stream.pass(550);
        run(&lab.leaf, "ip neigh flush dev up1");
        run(&lab.leaf, "ip neigh flush dev up2");
    }
    stream.pass(100);
    let (sent, report) = stream.finish();
    let metrics = vtepd.wait_until_idle();
    assert_eq!(
        (report.lost(), report.duplicated(), report.reordered()),
        (0, 0, 0),
        "of {}: {}",
        sent.frames,
        metrics.0
    );
    assert_eq!(
        (metrics.dropped_in_all(), metrics.sum("vtepd_held_frames")),
        (0, 0),
        "{}",
        metrics.0
    );

    // A next hop that never answers: the number of frames that wait and their time are limited, and
    // all are counted.
    ip(&lab.leaf, "route replace 10.0.0.2/32 src 10.0.0.1 via 10.1.1.77 dev up1 onlink");
    vtepd.wait_for("the new path", |m| m.0.contains("gateway=\"10.1.1.77\""));
    let before = vtepd.metrics().vni_frames(VNI, "encapsulated");
    let pair = Pair::of(&lab.host, &lab.far);
    let frames: Vec<Vec<u8>> =
        (0..1000_u16).map(|n| frames::udp(pair, (n + 1, 9), b"in vain")).collect();
    inject(&lab.host.ns, ETH, &frames);
    vtepd.wait_for("frames to be held", |m| {
        m.sum("vtepd_held_frames") > 0 || m.dropped("next_hop_unresolved") > 0
    });
    let metrics = vtepd.wait_for("them to be given up", |m| m.sum("vtepd_held_frames") == 0);
    assert_eq!(
        metrics.dropped("next_hop_unresolved") + metrics.dropped("hold_queue_full"),
        1000,
        "{}",
        metrics.0
    );
    assert!(
        metrics.dropped("next_hop_unresolved") > 0 && metrics.dropped("hold_queue_full") > 0,
        "{}",
        metrics.0
    );
    assert_eq!(metrics.vni_frames(VNI, "encapsulated"), before);
}

/// The policy changes under traffic without loss. An invalid file changes nothing.
#[root_test]
fn sighup_changes_the_policy_live_and_a_broken_file_nothing() {
    let lab = Lab::new("hup");
    let file = std::env::temp_dir().join(format!("vtepd-live-{}.toml", std::process::id()));
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[entropy]\npolicy = \"five-tuple\"\n");
    let vtepd = Vtepd::start(&lab.leaf, &["--config", file.to_str().unwrap()]);
    let policy = |name: &str| format!("netdev=\"vx10\",policy=\"{name}\"");
    assert!(vtepd.metrics().0.contains(&policy("five-tuple")));
    let stream = Stream::start(
        &lab.host,
        &lab.far,
        Rate { frames: 5000, queue_pairs: 16, payload: 64 },
        0x4095,
    );
    stream.pass(500);
    for (name, bins) in
        [("qp-hash", 4), ("qp-bins", 4), ("qp-bins", 8), ("five-tuple", 4), ("qp-hash", 4)]
    {
        let before = vtepd.metrics().get("vtepd_configuration_generation");
        write(&format!("[entropy]\npolicy = \"{name}\"\nbins = {bins}\n"));
        vtepd.hangup();
        vtepd.wait_for("the new policy", |m| {
            m.0.contains(&policy(name)) && m.get("vtepd_configuration_generation") == before + 1
        });
        stream.pass(500);
    }
    let before = vtepd.metrics();
    write("[entropy]\npolicy = \"qp-spray\"\n");
    vtepd.hangup();
    vtepd.wait_for_log("qp-spray");
    vtepd.wait_for_log("the configuration stays as it was");
    let after = vtepd.metrics();
    assert!(after.0.contains(&policy("qp-hash")), "{}", after.0);
    let generation = "vtepd_configuration_generation";
    assert_eq!(after.get(generation), before.get(generation));
    // An exclusion is also applied and reverted while vtepd runs.
    for (text, taken) in [("[takeover]\nexclude = [10]\n", false), ("", true)] {
        write(text);
        vtepd.hangup();
        vtepd.wait_for("the exclusion", |m| m.has_vni(VNI) == taken);
        stream.pass(500);
    }
    let (sent, report) = stream.finish();
    assert_eq!((report.lost(), report.duplicated()), (0, 0), "of {}", sent.frames);
    std::fs::remove_file(file).unwrap();
}

/// A remote MAC address moves between VTEPs under traffic, by replacing the entry as zebra does. No
/// frame is lost.
#[root_test]
fn a_remote_host_moves_between_vteps_without_loss() {
    let lab = Lab::new("move");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let mover = wire::MacAddr([2, 0, 0, 0, 0, 0x66]);
    bridge(&lab.leaf, &remote_mac(mover, VNI, PEER));
    let is_mine = move |frame: &[u8]| frame.get(..6) == Some(&mover.0[..]);
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    vtepd.wait_for("the MAC", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == 3);
    let pair = Pair::of(&lab.host, &lab.far).to_mac(mover);
    let mut sent = 0;
    for round in 0..20 {
        let vtep = std::net::Ipv4Addr::new(10, 0, 0, 2 + round % 2);
        bridge(&lab.leaf, &format!("fdb replace {mover} dev vx10 dst {vtep} self extern_learn"));
        for _ in 0..10 {
            inject(&lab.host.ns, ETH, &[frames::udp(pair, (sent, 9), b"where are you")]);
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_for("all frames", || up[0].count() + up[1].count() >= usize::from(sent));
    quiet();
    let frames: Vec<Captured> = up.into_iter().flat_map(Capture::stop).collect();
    assert_eq!(frames.len(), usize::from(sent));
    let to = |last: u8| {
        let of = |frame: &&Captured| frame.outer(4789).unwrap().destination.octets()[3] == last;
        frames.iter().filter(of).count()
    };
    assert!(frames.iter().all(|frame| is_mine(&frame.outer(4789).unwrap().inner)));
    assert!(to(2) > 20 && to(3) > 20, "{} and {}", to(2), to(3));
}
