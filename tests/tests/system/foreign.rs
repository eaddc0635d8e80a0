//! Programs on the same hooks that do not belong to vtepd keep working, and vtepd names them.

use root_test::root_test;
use vtepd_tests::frames::{self, Pair, Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, VNI, ip, mac_of, run};
use vtepd_tests::programs::somebody_else;
use vtepd_tests::{Capture, Lab, Setup, Vtepd, quiet, sockets, wait_for};

const HOOKS: [&str; 2] = ["tcx", "clsact"];

/// Adds a filter at a place of the leaf that drops IPv4 packets with TOS 0x48.
fn drop_marked(lab: &Lab, place: &str) {
    // If byte 15 is 0x48 drop (TC_ACT_SHOT), otherwise continue (TC_ACT_UNSPEC).
    const PROGRAM: &str = "4,48 0 0 15,21 0 1 72,6 0 0 2,6 0 0 4294967295";
    let command = format!("tc filter add {place} prio 10 protocol all bpf da bytecode");
    let words: Vec<&str> = command.split(' ').chain([PROGRAM]).collect();
    lab.leaf.run(&words).unwrap();
}

/// Whether packets with TOS 0x48 to the far host are lost.
fn loses_marked(lab: &Lab) -> bool {
    let marked = ["-Q", "0x48", "-W", "1"];
    let said = sockets::try_ping(&lab.host, lab.far.ip(), 2, 56, &marked);
    said.contains("2 packets transmitted, 0 received")
}

/// A filter that does not belong to vtepd drops frames before vtepd sees them, and vtepd reports
/// the filter.
#[root_test]
fn foreign_clsact_filters_are_named_and_keep_working() {
    for hook in HOOKS {
        let lab = Lab::new("foreign");
        ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
        for command in ["tc qdisc add dev up1 clsact", "tc qdisc add dev vx10 clsact"] {
            run(&lab.leaf, command);
        }
        for (interface, way) in [("up1", "ingress"), ("vx10", "egress")] {
            drop_marked(&lab, &format!("dev {interface} {way}"));
        }
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
        vtepd.wait_for_log("a BPF program of another tool: bpf on up1 (clsact ingress)");
        vtepd.wait_for_log("a BPF program of another tool: bpf on vx10 (clsact egress)");
        let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--hook", hook]);
        assert!(String::from_utf8_lossy(&dry.stdout).contains("Note: bpf on up1"));
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        let dropped = || loses_marked(&lab);
        assert!(dropped(), "{hook}");
        assert!(vtepd.log().contains("runs before vtepd"), "{}", vtepd.log());
        let (status, log) = vtepd.terminate();
        assert!(status.success(), "{status}: {log}");
        // Filters that do not belong to vtepd stay.
        for (interface, way) in [("up1", "ingress"), ("vx10", "egress")] {
            let filters = run(&lab.leaf, &format!("tc filter show dev {interface} {way}"));
            assert!(filters.contains("bytecode") && !filters.contains("vtepd"), "{filters}");
        }
    }
}

/// A clsact filter that is added later also runs before vtepd. The kernel runs all tcx programs
/// before all clsact filters, so vtepd moves its own program behind the filter, and back when the
/// filter is removed.
#[root_test]
fn foreign_clsact_filters_that_come_later_keep_working() {
    for (interface, way) in [("up1", "ingress"), ("vx10", "egress")] {
        // At the uplink, the filter reads the outer header.
        let lab = Lab::with("later", Setup { peers: "tos inherit", ..Setup::default() });
        ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", "tcx"]);
        let dropped = || loses_marked(&lab);
        let own =
            || run(&lab.leaf, &format!("tc filter show dev {interface} {way}")).contains("vtepd");
        assert!(!dropped() && !own());
        run(&lab.leaf, &format!("tc qdisc add dev {interface} clsact"));
        drop_marked(&lab, &format!("dev {interface} {way}"));
        wait_for("vtepd's program behind the filter", own);
        // vtepd detaches its program from tcx only after that.
        wait_for("the filter to drop", dropped);
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        run(&lab.leaf, &format!("tc filter del dev {interface} {way} prio 10"));
        wait_for("vtepd's program back on tcx", || !own());
        wait_for("nothing to drop", || !dropped());
        assert!(vtepd.metrics().vni_frames(VNI, "encapsulated") >= 5);
    }
}

/// The kernel refuses vtepd's program at an interface whose filters are in a block that others may
/// share. It forwards there until the block is gone.
#[root_test]
fn a_filter_block_that_comes_later_keeps_working() {
    for (interface, way, what) in
        [("up1", "ingress", "decapsulated"), ("vx10", "egress", "encapsulated")]
    {
        let lab = Lab::with("block", Setup { peers: "tos inherit", ..Setup::default() });
        ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", "tcx"]);
        let dropped = || loses_marked(&lab);
        let forwards = || {
            let before = vtepd.metrics().vni_frames(VNI, what);
            sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
            vtepd.metrics().vni_frames(VNI, what) >= before + 3
        };
        assert!(!dropped() && forwards());
        run(&lab.leaf, &format!("tc qdisc add dev {interface} {way}_block 7 clsact"));
        drop_marked(&lab, "block 7");
        wait_for("the block to drop", dropped);
        assert!(!forwards(), "the kernel does");
        run(&lab.leaf, &format!("tc qdisc del dev {interface} clsact"));
        wait_for("vtepd to forward again", forwards);
        assert!(!dropped());
    }
}

/// A qdisc `ingress` is in the place of clsact, and has no egress. The kernel lists its filters for both
/// directions, and would attach a program for sent frames to received ones.
#[root_test]
fn a_qdisc_for_received_frames_only_is_not_taken_for_clsact() {
    let lab = Lab::new("ingress");
    ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
    let vtepd = Vtepd::start(&lab.leaf, &["--hook", "tcx"]);
    run(&lab.leaf, "tc qdisc add dev vx10 ingress");
    drop_marked(&lab, "dev vx10 parent ffff:");
    let has_ended = || vtepd.ask(&["port"]).to_string().contains("is on clsact ingress of vx10");
    wait_for("the bypass to end", has_ended);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    let filters = run(&lab.leaf, "tc filter show dev vx10 parent ffff:");
    assert!(filters.contains("bytecode") && !filters.contains("vtepd"), "{filters}");
    assert!(!vtepd.log().contains("(clsact egress)"), "{}", vtepd.log());
}

/// tcx and XDP programs that do not belong to vtepd see received frames first. vtepd does not get
/// what they drop.
#[root_test]
fn foreign_tcx_and_xdp_programs_come_first() {
    let object = somebody_else();
    for place in ["tcx", "xdp"] {
        for hook in HOOKS {
            let lab = Lab::new("order");
            ip(&lab.peer, "route replace 10.0.0.1/32 src 10.0.0.2 via 10.2.1.0");
            let attach = || {
                let mut ebpf = aya::Ebpf::load_file(&object).unwrap();
                if place == "tcx" {
                    let program: &mut aya::programs::SchedClassifier =
                        ebpf.program_mut("somebody_else").unwrap().try_into().unwrap();
                    program.load().unwrap();
                    program.attach("up1", aya::programs::TcAttachType::Ingress).unwrap();
                } else {
                    let program: &mut aya::programs::Xdp =
                        ebpf.program_mut("somebody_xdp").unwrap().try_into().unwrap();
                    program.load().unwrap();
                    program.attach("up1", aya::programs::xdp::XdpMode::Skb).unwrap();
                }
                ebpf
            };
            let theirs = lab.leaf.enter(attach).unwrap();
            let vtepd = Vtepd::start(&lab.leaf, &["--hook", hook]);
            // The kernel shows names of programs only to CAP_SYS_ADMIN, which vtepd has dropped.
            let name =
                if place == "tcx" { "`) on up1 (tcx ingress)" } else { "an XDP program on up1" };
            vtepd.wait_for_log(name);
            assert!(vtepd.log().contains("runs before vtepd"), "{}", vtepd.log());
            sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
            let pair = Pair::of(&lab.far, &lab.host);
            let source = pair.from.0.0;
            let arrived = Capture::start(&lab.host.ns, ETH, move |frame| {
                frame.get(6..12) == Some(&source[..]) && frame.get(23) == Some(&17)
            });
            let to = mac_of(&lab.leaf, "up1");
            let tunnelled = |tos| Tunnelled {
                to,
                source: PEER,
                destination: LEAF,
                port: 4789,
                vni: VNI,
                tos,
                flip: 0,
            };
            let inner = |n| frames::udp(pair, (n, 2), b"numbered");
            let frames = [
                tunnelled(0).frame(&inner(1)),
                tunnelled(0x48).frame(&inner(2)),
                tunnelled(0).frame(&inner(3)),
            ];
            inject(&lab.routers[0], "leaf", &frames);
            arrived.wait(2);
            quiet();
            let ports: Vec<u8> = arrived.stop().iter().map(|frame| frame.bytes[35]).collect();
            assert_eq!(ports, [1, 3], "{place} and {hook}");
            let metrics = vtepd.metrics();
            assert!(metrics.vni_frames(VNI, "decapsulated") >= 5, "{}", metrics.0);
            drop(theirs);
        }
    }
    std::fs::remove_file(object).unwrap();
}

/// Other software deletes the qdiscs with vtepd's filters, and adds its own. vtepd attaches its
/// filters again, and forwards.
#[root_test]
fn deleted_clsact_filters_are_attached_again() {
    for datapath in ["offload", "userspace", "kernel"] {
        let lab = Lab::new("deleted");
        lab.without_bridge_netfilter();
        let vtepd = Vtepd::start(&lab.leaf, &["--hook", "clsact", "--datapath", datapath]);
        sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
        let taken = ["up1", "hp10", "vx10"];
        let interfaces = if datapath == "kernel" { &taken[2..] } else { &taken };
        for interface in interfaces {
            let filters = || {
                ["ingress", "egress"].map(|way| {
                    let shown = run(&lab.leaf, &format!("tc filter show dev {interface} {way}"));
                    shown.matches(" vtepd_").count()
                })
            };
            wait_for("the filters", || filters().iter().sum::<usize>() > 0);
            let before = filters();
            run(&lab.leaf, &format!("tc qdisc del dev {interface} clsact"));
            // Scripts delete a qdisc in order to add one. vtepd may have added it again before.
            let _ = lab.leaf.run(&["tc", "qdisc", "add", "dev", interface, "clsact"]);
            wait_for("the filters again", || filters() == before);
        }
        vtepd.wait_for_log("other software has deleted vtepd's clsact filter on vx10");
        let counted = || {
            let metrics = vtepd.metrics();
            let chosen = "vtepd_steering_frames_total{decision=\"port_chosen\"}";
            metrics.get(chosen) + metrics.vni_frames(VNI, "encapsulated")
        };
        let before = counted();
        sockets::ping(&lab.host, lab.far.ip(), 5, 56, &[]);
        assert!(counted() >= before + 5, "{datapath}: {}", vtepd.metrics().0);
    }
}

/// The netdev of a VNI whose source ports the kernel chooses has no qdisc of vtepd, so others can
/// add theirs.
#[root_test]
fn netdevs_that_are_left_alone_have_no_qdisc() {
    let lab = Lab::new("alone");
    let settings = format!("[takeover]\nexclude = [{VNI}]\n");
    let vtepd = Vtepd::start_configured(&lab.leaf, &settings, &["--hook", "clsact"]);
    let status = vtepd.ask(&["status"]).to_string();
    assert!(status.contains("excluded"), "{status}");
    run(&lab.leaf, "tc qdisc add dev vx10 clsact");
    run(&lab.leaf, "tc qdisc del dev vx10 clsact");
}
