//! Packet filter rules and other BPF programs that appear while vtepd runs end the bypass and see
//! every frame. When they are removed, the bypass returns.

use aya::programs::{SchedClassifier, TcAttachType};
use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, ip, run, sysctl};
use vtepd_tests::nftables::{self, BRIDGE, INET};
use vtepd_tests::programs::somebody_else;
use vtepd_tests::stream::Stream;
use vtepd_tests::{Capture, Lab, Vtepd, quiet};

use super::{RATE, port, speak, start, steering};

/// Waits until the port has lost the bypass for this reason, or has it again.
fn becomes(vtepd: &Vtepd, wanted: Result<(), &str>) {
    vtepd.wait_for(&format!("{wanted:?}"), |m| match (port(m, "hp10"), wanted) {
        (Some(Ok(())), Ok(())) => true,
        (Some(Err(reason)), Err(part)) => reason.contains(part),
        _ => false,
    });
}

/// Sends ten frames to a known address and checks how many arrive. Returns whether they took the
/// bypass.
fn ten_frames(lab: &Lab, vtepd: &Vtepd, arrive: usize) -> bool {
    let before = steering(&vtepd.wait_until_idle(), "port_bypassed");
    let pair = Pair::of(&lab.host, &lab.far);
    let source = pair.from.0.0;
    let arrived = Capture::start(&lab.far.ns, ETH, move |frame| {
        frame.get(6..12) == Some(&source[..]) && frame.get(12..14) == Some(&[8, 0])
    });
    inject(&lab.host.ns, ETH, &vec![frames::udp(pair, (1, 2), b"seen?"); 10]);
    arrived.wait(arrive);
    quiet();
    let after = vtepd.wait_until_idle();
    assert_eq!(arrived.stop().len(), arrive);
    steering(&after, "port_bypassed") > before
}

fn heard(lab: &Lab, vtepd: &Vtepd) {
    speak(&lab.host);
    vtepd.wait_for("the host", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") >= 3);
}

#[root_test]
fn rules_that_come_later_take_the_bypass_away() {
    let lab = Lab::new("scrules");
    let vtepd = start(&lab, "tcx");
    let netfilter = std::path::Path::new("/proc/sys/net/bridge").exists();
    for (family, reason) in [(BRIDGE, "nftables has rules"), (INET, "bridge-nf-call-iptables")] {
        if family == INET && !netfilter {
            continue;
        }
        // A chain without rules has no effect.
        nftables::add_chain(&lab.leaf, family);
        assert!(ten_frames(&lab, &vtepd, 10), "{reason}");
        nftables::drop_everything(&lab.leaf, family);
        becomes(&vtepd, Err(reason));
        assert!(!ten_frames(&lab, &vtepd, 0), "{reason}");
        nftables::delete_rules(&lab.leaf, family);
        becomes(&vtepd, Ok(()));
        heard(&lab, &vtepd);
        assert!(ten_frames(&lab, &vtepd, 10), "{reason}");
    }
    if netfilter {
        // The kernel sends no notification about the sysctl. vtepd polls it once a second.
        lab.without_bridge_netfilter();
        nftables::drop_everything(&lab.leaf, INET);
        assert!(ten_frames(&lab, &vtepd, 10));
        sysctl(&lab.leaf, "bridge/bridge-nf-call-iptables", "1");
        becomes(&vtepd, Err("bridge-nf-call-iptables"));
        assert!(!ten_frames(&lab, &vtepd, 0));
        sysctl(&lab.leaf, "bridge/bridge-nf-call-iptables", "0");
        becomes(&vtepd, Ok(()));
        heard(&lab, &vtepd);
        assert!(ten_frames(&lab, &vtepd, 10));
    }
}

/// The kernel notifies vtepd of new rules, so they drop frames of a running stream long before the
/// next poll.
#[root_test]
fn rules_drop_at_once_what_took_the_bypass() {
    let lab = Lab::new("scdrop");
    let vtepd = start(&lab, "tcx");
    nftables::add_chain(&lab.leaf, BRIDGE);
    let stream = Stream::start(&lab.host, &lab.far, RATE, 0xc1);
    let mut late = Vec::new();
    for _ in 0..7 {
        stream.pass(500);
        nftables::drop_everything(&lab.leaf, BRIDGE);
        let there = stream.received();
        becomes(&vtepd, Err("nftables has rules"));
        quiet();
        late.push(stream.received() - there);
        nftables::delete_rules(&lab.leaf, BRIDGE);
        becomes(&vtepd, Ok(()));
    }
    let (_, report) = stream.finish();
    assert_eq!((report.duplicated(), report.reordered(), report.corrupted()), (0, 0, 0));
    late.sort_unstable();
    println!("frames that the rule did not see, of {} in a second: {late:?}", RATE.frames);
    assert!(late[3] < u64::from(RATE.frames) / 10, "{late:?}");
}

/// A capture on the bridge interface sees the frames that the bridge forwards.
#[root_test]
fn a_capture_on_the_bridge_sees_everything() {
    let lab = Lab::new("sccapture");
    let vtepd = start(&lab, "tcx");
    let source = lab.host.mac().0;
    assert!(ten_frames(&lab, &vtepd, 10));
    ip(&lab.leaf, "link set br10 promisc on");
    becomes(&vtepd, Err("promiscuous"));
    let seen =
        Capture::start(&lab.leaf, "br10", move |frame| frame.get(6..12) == Some(&source[..]));
    assert!(!ten_frames(&lab, &vtepd, 10));
    seen.wait(10);
    drop(seen.stop());
    ip(&lab.leaf, "link set br10 promisc off");
    becomes(&vtepd, Ok(()));
    heard(&lab, &vtepd);
    assert!(ten_frames(&lab, &vtepd, 10));
}

#[root_test]
fn programs_that_come_later_take_the_bypass_away() {
    for hook in super::HOOKS {
        let lab = Lab::new("scprog");
        let vtepd = start(&lab, hook);
        for (interface, way) in [("hp10", "ingress"), ("vx10", "egress")] {
            // vtepd may have added the qdisc.
            let _ = lab.leaf.run(&["tc", "qdisc", "add", "dev", interface, "clsact"]);
            // The filter accepts every frame, so none is lost.
            let filter = format!(
                "tc filter add dev {interface} {way} prio 7 protocol all u32 match u32 0 0 flowid 1:1"
            );
            run(&lab.leaf, &filter);
            becomes(&vtepd, Err(&format!("u32 is on clsact {way} of {interface}")));
            assert!(!ten_frames(&lab, &vtepd, 10), "{hook} {interface}");
            run(&lab.leaf, &format!("tc filter del dev {interface} {way} prio 7"));
            becomes(&vtepd, Ok(()));
            heard(&lab, &vtepd);
            assert!(ten_frames(&lab, &vtepd, 10), "{hook} {interface}");
        }
    }
}

/// The kernel sends no notification about tcx programs. vtepd polls once a second.
#[root_test]
fn a_tcx_program_that_comes_later_takes_the_bypass_away() {
    let lab = Lab::new("sctcx");
    let vtepd = start(&lab, "tcx");
    let object = somebody_else();
    for (interface, way) in [("hp10", TcAttachType::Ingress), ("vx10", TcAttachType::Egress)] {
        let attach = || {
            let mut ebpf = aya::Ebpf::load_file(&object).unwrap();
            let program: &mut SchedClassifier =
                ebpf.program_mut("somebody_else").unwrap().try_into().unwrap();
            program.load().unwrap();
            program.attach(interface, way).unwrap();
            ebpf
        };
        let theirs = lab.leaf.enter(attach).unwrap();
        becomes(&vtepd, Err("`) is on tcx"));
        assert!(!ten_frames(&lab, &vtepd, 10), "{interface}");
        lab.leaf.enter(move || drop(theirs)).unwrap();
        becomes(&vtepd, Ok(()));
        heard(&lab, &vtepd);
        assert!(ten_frames(&lab, &vtepd, 10), "{interface}");
    }
    std::fs::remove_file(object).unwrap();
}
