//! The shortcut: known unicast of hosts skips the bridge, everything else does not, and the bridge stays in the picture.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::time::{Duration, Instant};

use lab::packet::{Interface, PacketSocket};
use nix::time::{ClockId, clock_gettime};
use vtepd_tests::daemon::Metrics;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{ETH, PEER, VNI, bridge, ip, remote_mac, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Host, Lab, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

const HOOKS: [&str; 2] = ["tcx", "clsact"];
const RATE: Rate = Rate { frames: 4000, queue_pairs: 64, payload: 64 };

fn steering(metrics: &Metrics, decision: &str) -> u64 {
    metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"))
}

/// Whether a port of the leaf has the shortcut, and why not.
fn port(metrics: &Metrics, name: &str) -> Option<Result<(), String>> {
    let start = format!("vtepd_port_shortcut{{port=\"{name}\",vni=\"{VNI}\",reason=\"");
    let line = metrics.0.lines().find_map(|line| line.strip_prefix(start.as_str()))?;
    let (reason, value) = line.split_once("\"} ")?;
    assert_eq!(value == "1", reason.is_empty(), "{line}");
    Some(if reason.is_empty() { Ok(()) } else { Err(reason.to_owned()) })
}

/// vtepd with the shortcut; the bridge has heard of both hosts of the leaf.
fn start(lab: &Lab, hook: &str) -> Vtepd {
    let vtepd = Vtepd::start(&lab.leaf, &["--shortcut", "--hook", hook, "--no-fpm"]);
    for host in [&lab.host, &lab.next] {
        speak(host);
    }
    vtepd.wait_for("the shortcut", |m| {
        ["hp10", "hq10"].iter().all(|name| port(m, name) == Some(Ok(())))
            && m.find("vtepd_shortcut_addresses{state=\"known\"}") == Some(4)
    });
    vtepd
}

fn speak(host: &Host) {
    let frame = frames::ethernet(Pair::of(host, host).to_mac(MacAddr::BROADCAST), 0x88b5, &[0; 50]);
    inject(&host.ns, ETH, &[frame]);
}

fn in_fdb(lab: &Lab, port: &str, mac: MacAddr) -> bool {
    run(&lab.leaf, &format!("bridge fdb show dev {port}")).contains(&mac.to_string())
}

#[test]
fn known_unicast_skips_the_bridge_and_nothing_else_does() {
    if !can_run("known_unicast_skips_the_bridge_and_nothing_else_does") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new("sc");
        let vtepd = start(&lab, hook);
        sockets::ping(&lab.host, lab.far.ip(), 2, 56, &[]);
        let before = vtepd.wait_until_idle();
        sockets::ping(&lab.host, lab.far.ip(), 20, 1400, &[]);
        sockets::tcp_both_ways(&lab.host, &lab.farther, 3_000_000);
        let after = vtepd.wait_until_idle();
        let moved = |decision: &str| steering(&after, decision) - steering(&before, decision);
        assert!(moved("port_shortcut") > 20, "{}", after.0);
        // What the bridge saw, it saw because it was time to.
        assert_eq!(moved("vxlan_redirected"), moved("port_refreshed"), "{}", after.0);
        assert_eq!(after.dropped_in_all(), 0, "{}", after.0);

        // From host to host on this leaf.
        sockets::ping(&lab.host, lab.next.ip(), 5, 1400, &[]);
        let local = vtepd.wait_until_idle();
        assert_eq!(steering(&local, "port_shortcut"), steering(&after, "port_shortcut"));
        assert!(steering(&local, "port_passed") >= steering(&after, "port_passed") + 10);

        // ARP to a known address, an unknown address and everybody.
        let pair = Pair::of(&lab.host, &lab.far);
        let seen = Capture::start(&lab.far.ns, ETH, |frame| frame.get(12..14) == Some(&[8, 6]));
        inject(&lab.host.ns, ETH, &[frames::ethernet(pair, 0x0806, &[0; 46])]);
        inject(&lab.host.ns, ETH, &[frames::ethernet(pair.to_mac(MacAddr::BROADCAST), 0x0806, &[0; 46])]);
        seen.wait(2);
        quiet();
        assert_eq!(seen.stop().len(), 2);
        let arp = vtepd.wait_until_idle();
        assert_eq!(steering(&arp, "port_shortcut"), steering(&local, "port_shortcut"));
    }
}

/// A MAC address that is behind a VTEP and turns up behind a port of this leaf, and goes away again.
#[test]
fn a_remote_host_that_comes_here_is_reached_here_at_once() {
    if !can_run("a_remote_host_that_comes_here_is_reached_here_at_once") {
        return;
    }
    let lab = Lab::new("sclocal");
    let mover = MacAddr([2, 0, 0, 0, 0, 0x66]);
    let vtepd = start(&lab, "tcx");
    let to_mover =
        |from: &Host| frames::udp(Pair::of(from, &lab.far).to_mac(mover), (1, 2), b"where are you");
    let known =
        |count| vtepd.wait_for("addresses", |m| m.get("vtepd_shortcut_addresses{state=\"known\"}") == count);
    let shortcuts = || steering(&vtepd.wait_until_idle(), "port_shortcut");
    for round in 0..3 {
        bridge(&lab.leaf, &remote_mac(mover, VNI, PEER));
        known(5);
        let at_peer = Capture::start(&lab.far.ns, ETH, move |frame| frame.get(..6) == Some(&mover.0[..]));
        let before = shortcuts();
        inject(&lab.host.ns, ETH, &vec![to_mover(&lab.host); 10]);
        at_peer.wait(10);
        assert!(shortcuts() >= before + 9, "round {round}");
        drop(at_peer.stop());

        // It speaks from the other host's port: the bridge has it there, and zebra has not said a word.
        let here = Pair { from: (mover, lab.next.ip()), ..Pair::of(&lab.next, &lab.next) };
        bridge(&lab.leaf, &format!("fdb del {mover} dev vx10 master"));
        inject(&lab.next.ns, ETH, &[frames::ethernet(here.to_mac(MacAddr::BROADCAST), 0x88b5, &[0; 50])]);
        wait_for("the bridge to learn", || in_fdb(&lab, "hq10", mover));
        // It is an address of a port now, and no remote one.
        known(5);
        vtepd.wait_for("the move", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == 2);
        let before = shortcuts();
        let at_next = Capture::start(&lab.next.ns, ETH, move |frame| frame.get(..6) == Some(&mover.0[..]));
        inject(&lab.host.ns, ETH, &vec![to_mover(&lab.host); 10]);
        at_next.wait(10);
        quiet();
        assert_eq!(at_next.stop().len(), 10, "round {round}");
        assert_eq!(shortcuts(), before, "round {round}");
        bridge(&lab.leaf, &format!("fdb del {mover} dev hq10 master"));
        known(4);
    }
}

/// With an ageing time of three seconds: who talks by the shortcut alone is remembered, who is silent is forgotten.
#[test]
fn who_talks_is_not_forgotten_by_the_bridge_and_who_is_silent_is() {
    if !can_run("who_talks_is_not_forgotten_by_the_bridge_and_who_is_silent_is") {
        return;
    }
    let lab = Lab::new("scage");
    let vtepd = start(&lab, "tcx");
    ip(&lab.leaf, "link set br10 type bridge ageing_time 300");
    quiet();
    let stream = Stream::start(&lab.host, &lab.far, RATE, 0x91);
    let begun = Instant::now();
    let mut forgotten = false;
    while begun.elapsed() < Duration::from_secs(12) {
        assert!(in_fdb(&lab, "hp10", lab.host.mac()), "forgotten after {:?}", begun.elapsed());
        forgotten |= !in_fdb(&lab, "hq10", lab.next.mac());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(forgotten, "the silent host is forgotten");
    vtepd.wait_for("it to be forgotten here", |m| m.get("vtepd_shortcut_addresses{state=\"known\"}") == 3);
    let (sent, report) = stream.finish();
    assert_eq!(report.received(), sent.frames);
    assert_eq!((report.lost(), report.duplicated(), report.reordered()), (0, 0, 0), "of {}", sent.frames);
    let metrics = vtepd.metrics();
    let refreshed = steering(&metrics, "port_refreshed");
    assert!((12..100).contains(&refreshed), "{refreshed}");
    assert!(steering(&metrics, "port_shortcut") + refreshed + 100 > sent.frames, "{}", metrics.0);

    // Silent as well, it is forgotten as before.
    let silent = Instant::now();
    while in_fdb(&lab, "hp10", lab.host.mac()) {
        assert!(silent.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(silent.elapsed() > Duration::from_secs(1));
}

/// What only the bridge can do with a port's frames takes the shortcut away, says why, and works.
#[test]
fn a_port_with_a_feature_of_the_bridge_has_no_shortcut() {
    if !can_run("a_port_with_a_feature_of_the_bridge_has_no_shortcut") {
        return;
    }
    let lab = Lab::new("scport");
    let vtepd = start(&lab, "tcx");
    let becomes = |wanted: Result<(), &str>| {
        vtepd.wait_for("the port to change", |m| match (port(m, "hp10"), wanted) {
            (Some(Ok(())), Ok(())) => true,
            (Some(Err(reason)), Err(part)) => reason.contains(part),
            _ => false,
        });
    };
    let count = || steering(&vtepd.wait_until_idle(), "port_shortcut");
    let goes = |through: bool, shortcut: bool, why: &str| {
        let before = count();
        let pair = Pair::of(&lab.host, &lab.far);
        let source = pair.from.0.0;
        let seen = Capture::start(&lab.far.ns, ETH, move |frame| {
            frame.get(6..12) == Some(&source[..]) && frame.get(23) == Some(&17)
        });
        inject(&lab.host.ns, ETH, &vec![frames::udp(pair, (1, 2), b"through?"); 10]);
        if through {
            seen.wait(10);
        }
        quiet();
        assert_eq!(seen.stop().len(), if through { 10 } else { 0 }, "{why}");
        assert_eq!(count() > before, shortcut, "{why}");
    };
    goes(true, true, "at first");
    for (interface, on, off, reason, through) in [
        ("hp10", "isolated on", "isolated off", "isolated", true),
        ("hp10", "locked on", "locked off", "locked", true),
        ("hp10", "state 0", "state 3", "STP state 0", false),
        ("vx10", "state 0", "state 3", "to the vxlan netdev (STP state 0)", false),
    ] {
        bridge(&lab.leaf, &format!("link set dev {interface} {on}"));
        becomes(Err(reason));
        goes(through, false, reason);
        bridge(&lab.leaf, &format!("link set dev {interface} {off}"));
        becomes(Ok(()));
        speak(&lab.host);
        vtepd.wait_for("the host", |m| m.get("vtepd_shortcut_addresses{state=\"known\"}") >= 3);
        goes(true, true, off);
    }
    // The kernel tells of a port as a link, too.
    ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
    becomes(Err("isolated"));
    ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
    becomes(Ok(()));
    // A VLAN-aware bridge, where the kernel has them, is left to it with all that is on it.
    let aware = ["ip", "link", "set", "br10", "type", "bridge", "vlan_filtering", "1"];
    if lab.leaf.run(&aware).is_ok() {
        vtepd.wait_for("the VNI to be left", |m| !m.has_vni(VNI) && port(m, "hp10").is_none());
        goes(true, false, "a VLAN-aware bridge");
        ip(&lab.leaf, "link set br10 type bridge vlan_filtering 0");
        becomes(Ok(()));
    }
    // A port that goes and comes back.
    ip(&lab.leaf, "link set hp10 nomaster");
    vtepd.wait_for("the port to go", |m| port(m, "hp10").is_none());
    ip(&lab.leaf, "link set hp10 master br10");
    becomes(Ok(()));
    speak(&lab.host);
    vtepd.wait_for("the host", |m| m.get("vtepd_shortcut_addresses{state=\"known\"}") >= 3);
    goes(true, true, "back again");
}

/// The shortcut comes and goes under numbered frames of many queue pairs: nothing is lost, doubled or overtaken.
#[test]
fn the_shortcut_comes_and_goes_without_loss_or_reordering() {
    if !can_run("the_shortcut_comes_and_goes_without_loss_or_reordering") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new("sccycle");
        let vtepd = start(&lab, hook);
        let streams = [
            Stream::start(&lab.host, &lab.far, RATE, 0xa1),
            Stream::start(&lab.next, &lab.farther, RATE, 0xa2),
        ];
        for round in 0..10 {
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
            vtepd.wait_for("it to go", |m| port(m, "hp10").is_some_and(|port| port.is_err()));
            streams.iter().for_each(|stream| stream.pass(300));
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
            vtepd.wait_for("it to come", |m| port(m, "hp10") == Some(Ok(())));
            let before = steering(&vtepd.metrics(), "port_shortcut");
            streams.iter().for_each(|stream| stream.pass(300));
            assert!(steering(&vtepd.metrics(), "port_shortcut") > before + 300, "{hook}, round {round}");
        }
        for stream in streams {
            let (sent, report) = stream.finish();
            let bad = (report.lost(), report.duplicated(), report.reordered(), report.corrupted());
            assert_eq!(bad, (0, 0, 0, 0), "{hook}: of {}", sent.frames);
        }
    }
}

/// Killed under a stream: the bridge has its frames at once.
#[test]
fn killed_it_leaves_everything_to_the_bridge() {
    if !can_run("killed_it_leaves_everything_to_the_bridge") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new("sckill");
        let vtepd = start(&lab, hook);
        let stream = Stream::start(&lab.host, &lab.far, RATE, 0xb1);
        stream.pass(1000);
        assert!(steering(&vtepd.metrics(), "port_shortcut") > 500);
        vtepd.kill();
        stream.pass(4000);
        let (sent, report) = stream.finish();
        let limit = u64::from(RATE.frames) / 10;
        assert!(report.lost() < limit, "{hook}: {} of {} are lost", report.lost(), sent.frames);
        assert_eq!((report.duplicated(), report.corrupted()), (0, 0), "{hook}");
    }
}

/// What a frame costs the CPU of its sender, on which everything up to the splice happens, in turns by the bridge and by the shortcut.
#[test]
#[ignore = "a measurement: cargo test -p vtepd-tests --test shortcut what_the_shortcut_saves -- --ignored --nocapture"]
fn what_the_shortcut_saves() {
    const BATCHES: u32 = 1000;
    let lab = Lab::new("sccost");
    let vtepd = start(&lab, "tcx");
    let frames: Vec<Vec<u8>> =
        (0..64).map(|n| frames::Roce::to(n).frame(Pair::of(&lab.host, &lab.far))).collect();
    let cpu = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let cost = || {
        let send = || {
            let socket = PacketSocket::sender(&Interface::find(ETH).unwrap()).unwrap();
            let start = cpu();
            for _ in 0..BATCHES {
                let mut rest: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                while !rest.is_empty() {
                    let taken = socket.send(&rest).unwrap();
                    rest.drain(..taken);
                }
                // The worker keeps up.
                std::thread::sleep(Duration::from_millis(1));
            }
            (cpu() - start) / (BATCHES * 64)
        };
        lab.host.ns.enter(send).unwrap()
    };
    let (mut bridged, mut shortcut) = (Vec::new(), Vec::new());
    for netfilter in ["1", "0"] {
        if netfilter == "0" {
            lab.without_bridge_netfilter();
        }
        for _ in 0..7 {
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
            vtepd.wait_for("the bridge", |m| port(m, "hp10").is_some_and(|port| port.is_err()));
            bridged.push(cost());
            ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
            vtepd.wait_for("the shortcut", |m| port(m, "hp10") == Some(Ok(())));
            speak(&lab.host);
            let before = steering(&vtepd.metrics(), "port_shortcut");
            shortcut.push(cost());
            let taken = steering(&vtepd.metrics(), "port_shortcut") - before;
            assert!(taken > u64::from(BATCHES) * 60, "{taken}");
        }
        let mut ratios: Vec<f64> =
            bridged.iter().zip(&shortcut).map(|(b, s)| s.as_secs_f64() / b.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        [&mut bridged, &mut shortcut].iter_mut().for_each(|costs| costs.sort());
        println!(
            "bridge-nf-call {netfilter}: by the bridge {:?}, by the shortcut {:?}, ratio {:.2} (medians of {})",
            bridged[3],
            shortcut[3],
            ratios[3],
            ratios.len()
        );
        bridged.clear();
        shortcut.clear();
    }
    println!("dropped: {}", vtepd.metrics().dropped_in_all());
}
