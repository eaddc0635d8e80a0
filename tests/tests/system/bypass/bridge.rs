//! The bridge's entries stay correct with the bypass: addresses are learned, age and move. A port
//! that uses other features of the bridge has no bypass.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric::packet::{Interface, PacketSocket};
use fabric::{Namespace, netns};
use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, PEER, VNI, bridge, ip, remote_mac};
use vtepd_tests::stream::Stream;
use vtepd_tests::{Capture, Host, Lab, quiet, wait_for};
use wire::MacAddr;

use super::{RATE, in_fdb, port, speak, start, steering};

/// A MAC address behind a VTEP appears behind a port of this leaf and disappears again. It is
/// reached at the port immediately.
#[root_test]
fn a_remote_host_that_comes_here_is_reached_here_at_once() {
    let lab = Lab::new("sclocal");
    let mover = MacAddr([2, 0, 0, 0, 0, 0x66]);
    let vtepd = start(&lab, "tcx");
    let to_mover =
        |from: &Host| frames::udp(Pair::of(from, &lab.far).to_mac(mover), (1, 2), b"where are you");
    let known = |count| {
        vtepd.wait_for("addresses", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") == count)
    };
    let bypasses = || steering(&vtepd.wait_until_idle(), "port_bypassed");
    for round in 0..3 {
        bridge(&lab.leaf, &remote_mac(mover, VNI, PEER));
        known(5);
        let at_peer =
            Capture::start(&lab.far.ns, ETH, move |frame| frame.get(..6) == Some(&mover.0[..]));
        let before = bypasses();
        inject(&lab.host.ns, ETH, &vec![to_mover(&lab.host); 10]);
        at_peer.wait(10);
        assert!(bypasses() >= before + 9, "round {round}");
        drop(at_peer.stop());

        // A frame from the other host's port moves the address in the bridge. zebra has not
        // reported the move.
        let here = Pair { from: (mover, lab.next.ip()), ..Pair::of(&lab.next, &lab.next) };
        bridge(&lab.leaf, &format!("fdb del {mover} dev vx10 master"));
        inject(
            &lab.next.ns,
            ETH,
            &[frames::ethernet(here.to_mac(MacAddr::BROADCAST), 0x88b5, &[0; 50])],
        );
        wait_for("the bridge to learn", || in_fdb(&lab, "hq10", mover));
        // The address is now one of a port, and no longer remote.
        known(5);
        vtepd.wait_for("the move", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == 2);
        let before = bypasses();
        let at_next =
            Capture::start(&lab.next.ns, ETH, move |frame| frame.get(..6) == Some(&mover.0[..]));
        inject(&lab.host.ns, ETH, &vec![to_mover(&lab.host); 10]);
        at_next.wait(10);
        quiet();
        assert_eq!(at_next.stop().len(), 10, "round {round}");
        assert_eq!(bypasses(), before, "round {round}");
        bridge(&lab.leaf, &format!("fdb del {mover} dev hq10 master"));
        known(4);
    }
}

/// The bridge loses its entry for a local host whose frames all take the bypass. The entry moves
/// behind a VTEP (a late update of FRR), disappears, or moves to another port. The host's next
/// frame passes through the bridge and restores the entry, long before the next refresh.
#[root_test]
fn the_bridge_hears_at_once_of_a_host_that_it_has_lost() {
    let lab = Lab::new("sclost");
    let vtepd = start(&lab, "tcx");
    let host = lab.host.mac();
    let there = Stream::start(&lab.host, &lab.far, RATE, 0x92);
    let back = Stream::start(&lab.far, &lab.host, RATE, 0x93);
    for round in 0..8 {
        for word in [
            remote_mac(host, VNI, PEER),
            format!("fdb del {host} dev hp10 master"),
            format!("fdb replace {host} dev hq10 master dynamic"),
        ] {
            there.pass(300);
            let metrics = vtepd.metrics();
            let before = steering(&metrics, "port_bypassed");
            let by_the_bridge = steering(&metrics, "port_passed");
            bridge(&lab.leaf, &word);
            wait_for("the bridge to learn", || in_fdb(&lab, "hp10", host));
            // It learns from a frame that lost the bypass. A refresh is not counted here.
            let passed = steering(&vtepd.metrics(), "port_passed");
            assert!(passed > by_the_bridge, "round {round}: {word}");
            back.pass(100);
            // The host has the bypass again soon.
            vtepd.wait_for("the bypass", |m| steering(m, "port_bypassed") > before + 100);
            assert!(in_fdb(&lab, "hp10", host), "round {round}: {word}");
        }
    }
    there.finish_whole();
    let _ = back.finish();
}

/// A host's frames move its entry while another process moves it away repeatedly. The kernel may
/// notify of two concurrent moves in the wrong order. vtepd must still end with the bridge's entry.
#[root_test]
fn moves_that_meet_end_where_the_bridge_has_the_host() {
    let lab = Lab::new("scmeet");
    let mover = MacAddr([2, 0, 0, 0, 0, 0x66]);
    let vtepd = start(&lab, "tcx");
    bridge(&lab.leaf, &remote_mac(mover, VNI, PEER));
    let away = format!("fdb replace {mover} dev vx10 master extern_learn\n").repeat(20);
    let pair = Pair { from: (mover, lab.next.ip()), ..Pair::of(&lab.next, &lab.host) };
    let frame = frames::ethernet(pair, 0x88b5, &[0; 50]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talk = || {
            let socket = PacketSocket::sender(&Interface::find(ETH).unwrap()).unwrap();
            while !ended.load(Ordering::Relaxed) {
                socket.send(&[&frame]).unwrap();
            }
        };
        let (next, ended) = (&lab.next.ns, &ended);
        scope.spawn(move || next.enter(talk).unwrap());
        // The other thread must end even if an assertion fails.
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 {
                bridge(&lab.leaf, &away);
                // The value is 3 if vtepd believes that the host is behind a VTEP.
                vtepd.wait_for("the move", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == 2);
            }
            // The last metrics may be those from before the last move.
            wait_for("the host's frame to move it back", || in_fdb(&lab, "hq10", mover));
        }));
        ended.store(true, Ordering::Relaxed);
        failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(in_fdb(&lab, "hq10", mover));
    vtepd.wait_for("the addresses", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") == 5);
}

/// With an ageing time of three seconds, the entry of a host whose frames take the bypass stays,
/// and the entry of a silent host ages out.
#[root_test]
fn who_talks_is_not_forgotten_by_the_bridge_and_who_is_silent_is() {
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
    vtepd.wait_for("it to be forgotten here", |m| {
        m.get("vtepd_bypass_addresses{state=\"known\"}") == 3
    });
    let (sent, report) = stream.finish();
    assert_eq!(report.received(), sent.frames);
    assert_eq!(
        (report.lost(), report.duplicated(), report.reordered()),
        (0, 0, 0),
        "of {}",
        sent.frames
    );
    let metrics = vtepd.metrics();
    let refreshed = steering(&metrics, "port_refreshed");
    assert!((12..100).contains(&refreshed), "{refreshed}");
    assert!(steering(&metrics, "port_bypassed") + refreshed + 100 > sent.frames, "{}", metrics.0);

    // Without traffic, the host's entry ages out as usual.
    let silent = Instant::now();
    while in_fdb(&lab, "hp10", lab.host.mac()) {
        assert!(silent.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(silent.elapsed() > Duration::from_secs(1));
}

/// A port feature that only the bridge can provide ends the bypass with a reason, and the feature
/// works.
#[root_test]
fn a_port_with_a_feature_of_the_bridge_has_no_bypass() {
    let lab = Lab::new("scport");
    let vtepd = start(&lab, "tcx");
    let becomes = |wanted: Result<(), &str>| {
        vtepd.wait_for("the port to change", |m| match (port(m, "hp10"), wanted) {
            (Some(Ok(())), Ok(())) => true,
            (Some(Err(reason)), Err(part)) => reason.contains(part),
            _ => false,
        });
    };
    let count = || steering(&vtepd.wait_until_idle(), "port_bypassed");
    let goes = |through: bool, bypass: bool, why: &str| {
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
        assert_eq!(count() > before, bypass, "{why}");
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
        vtepd.wait_for("the host", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") >= 3);
        goes(true, true, off);
    }
    // The kernel also notifies of port settings with link messages.
    ip(&lab.leaf, "link set hp10 type bridge_slave isolated on");
    becomes(Err("isolated"));
    ip(&lab.leaf, "link set hp10 type bridge_slave isolated off");
    becomes(Ok(()));
    // If the kernel supports VLAN-aware bridges, such a bridge stays with the kernel, with all its
    // VNIs.
    let aware = ["ip", "link", "set", "br10", "type", "bridge", "vlan_filtering", "1"];
    if lab.leaf.run(&aware).is_ok() {
        vtepd.wait_for("the VNI to be left", |m| !m.has_vni(VNI) && port(m, "hp10").is_none());
        goes(true, false, "a VLAN-aware bridge");
        ip(&lab.leaf, "link set br10 type bridge vlan_filtering 0");
        becomes(Ok(()));
    }
    // A port that leaves the bridge and returns.
    ip(&lab.leaf, "link set hp10 nomaster");
    vtepd.wait_for("the port to go", |m| port(m, "hp10").is_none());
    ip(&lab.leaf, "link set hp10 master br10");
    becomes(Ok(()));
    speak(&lab.host);
    vtepd.wait_for("the host", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") >= 3);
    goes(true, true, "back again");
}

/// A host moves to another leaf together with its port, like a virtual machine, before or after FRR
/// reports the move. Its peers reach it there.
#[root_test]
fn a_host_that_takes_its_port_along_is_reached_behind_its_vtep() {
    let lab = Lab::new("scgone");
    let vtepd = start(&lab, "tcx");
    let mover = MacAddr([2, 0, 0, 0, 0, 0x66]);
    let machine = Namespace::create(format!("{}-mv", lab.leaf.name())).unwrap();
    let to_mover =
        frames::udp(Pair::of(&lab.host, &lab.far).to_mac(mover), (1, 2), b"where are you");
    let hello = Pair { from: (mover, lab.next.ip()), ..Pair::of(&lab.next, &lab.next) };
    let hello = frames::ethernet(hello.to_mac(MacAddr::BROADCAST), 0x88b5, &[0; 50]);
    let arrivals = |ns: &Namespace, interface: &str| {
        Capture::start(ns, interface, move |frame| frame.get(..6) == Some(&mover.0[..]))
    };
    for round in 0..9 {
        netns::veth((&machine, "eth1"), (&lab.leaf, "mv10"), 1500).unwrap();
        ip(&lab.leaf, "link set mv10 master br10");
        wait_for("the bridge to learn", || {
            inject(&machine, "eth1", std::slice::from_ref(&hello));
            in_fdb(&lab, "mv10", mover)
        });
        let here = arrivals(&machine, "eth1");
        inject(&lab.host.ns, ETH, &vec![to_mover.clone(); 10]);
        here.wait(10);
        drop(here.stop());

        let goes = match round % 3 {
            0 => "link del mv10".to_owned(),
            _ => format!("link set mv10 netns {}", lab.peer.name()),
        };
        let said = remote_mac(mover, VNI, PEER);
        if round % 2 == 0 {
            ip(&lab.leaf, &goes);
            bridge(&lab.leaf, &said);
        } else {
            bridge(&lab.leaf, &said);
            ip(&lab.leaf, &goes);
        }
        let there = arrivals(&lab.far.ns, ETH);
        // From when vtepd knows, no frame is lost.
        wait_for(&format!("vtepd to know, in round {round}"), || {
            vtepd.place(mover) == Some(PEER.to_string())
        });
        inject(&lab.host.ns, ETH, std::slice::from_ref(&to_mover));
        there.wait(1);
        quiet();
        // It arrives only there.
        let (before, elsewhere) = (there.count(), arrivals(&lab.farther.ns, ETH));
        inject(&lab.host.ns, ETH, &vec![to_mover.clone(); 10]);
        there.wait(before + 10);
        drop(there.stop());
        assert_eq!(elsewhere.stop().len(), 0, "round {round}");
        bridge(
            &lab.leaf,
            &format!("fdb del {mover} dev vx10 self\nfdb del {mover} dev vx10 master"),
        );
        if round % 3 != 0 {
            ip(&lab.peer, "link del mv10");
        }
    }
}

/// A far host appears on a new port while its peer keeps sending to it. If vtepd watches the port
/// before it forwards, every frame after the host's first one reaches the port. If the port is
/// added while the host sends, the test prints how many frames went to the old VTEP.
#[root_test]
fn a_far_host_that_comes_to_a_new_port_is_reached_there_from_its_first_frame_on() {
    const NUMBER: usize = 14 + 20 + 8;
    let lab = Lab::new("scnew");
    let vtepd = start(&lab, "tcx");
    let mover = MacAddr([2, 0, 0, 0, 0, 0x66]);
    let machine = Namespace::create(format!("{}-mv", lab.leaf.name())).unwrap();
    let hello = Pair { from: (mover, lab.next.ip()), ..Pair::of(&lab.next, &lab.next) };
    let hello = frames::udp(hello.to_mac(MacAddr::BROADCAST), (1, 2), b"here");
    let pair = Pair::of(&lab.host, &lab.far).to_mac(mover);
    let arrivals = |ns: &Namespace, interface: &str| {
        Capture::start(ns, interface, move |frame| frame.get(..6) == Some(&mover.0[..]))
    };
    let number =
        |frame: &Captured| u32::from_be_bytes(frame.bytes[NUMBER..NUMBER + 4].try_into().unwrap());
    let mut astray = Vec::new();
    for round in 0..20 {
        let listens = round % 2 == 0;
        bridge(&lab.leaf, &remote_mac(mover, VNI, PEER));
        netns::veth((&machine, "eth1"), (&lab.leaf, "mv10"), 1500).unwrap();
        if listens {
            ip(&lab.leaf, "link set mv10 down master br10");
            vtepd.wait_for(
                "the port",
                |m| matches!(port(m, "mv10"), Some(Err(why)) if why.contains("down")),
            );
        }
        vtepd.wait_for("the address", |m| m.get("vtepd_bypass_addresses{state=\"known\"}") == 5);
        let (there, here) = (arrivals(&lab.far.ns, ETH), arrivals(&machine, "eth1"));
        let [ended, heard] = [const { AtomicBool::new(false) }; 2];
        let first = AtomicU32::new(u32::MAX);
        std::thread::scope(|scope| {
            let send = || {
                let socket = PacketSocket::sender(&Interface::find(ETH).unwrap()).unwrap();
                for number in (1u32..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                    if heard.load(Ordering::Relaxed) {
                        first.fetch_min(number, Ordering::Relaxed);
                    }
                    socket.send(&[&frames::udp(pair, (1, 2), &number.to_be_bytes())]).unwrap();
                    std::thread::sleep(Duration::from_micros(50));
                }
            };
            let listen = || {
                let timeout = Duration::from_millis(10);
                let socket =
                    PacketSocket::receiver(&Interface::find(ETH).unwrap(), timeout).unwrap();
                let said = |frame: &[u8]| {
                    heard.fetch_or(frame.get(6..12) == Some(&mover.0[..]), Ordering::Relaxed);
                };
                while !ended.load(Ordering::Relaxed) {
                    socket.receive(&mut [0; 64], 64, said).unwrap();
                }
            };
            let talk = || {
                let socket = PacketSocket::sender(&Interface::find("eth1").unwrap()).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    // Without a carrier the send fails.
                    let _ = socket.send(&[&hello]);
                    std::thread::sleep(Duration::from_micros(100));
                }
            };
            let (host, machine) = (&lab.host.ns, &machine);
            scope.spawn(move || host.enter(listen).unwrap());
            scope.spawn(move || host.enter(send).unwrap());
            scope.spawn(move || machine.enter(talk).unwrap());
            // The other threads must end even if an assertion fails.
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                there.wait(100);
                ip(
                    &lab.leaf,
                    if listens { "link set mv10 up" } else { "link set mv10 master br10" },
                );
                here.wait(500);
                // A busy machine may be slow to run the thread that listens.
                wait_for("the host to hear", || heard.load(Ordering::Relaxed));
                here.wait(here.count() + 100);
            }));
            ended.store(true, Ordering::Relaxed);
            failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        quiet();
        let first = first.into_inner();
        let [there, here] =
            [there, here].map(|capture| capture.stop().iter().map(number).collect::<Vec<_>>());
        assert!(first < here[here.len() - 1], "round {round}: {first}");
        let lost = there.iter().filter(|number| **number >= first).count();
        if listens {
            assert_eq!(lost, 0, "round {round}");
            assert!(here.contains(&first), "round {round}");
        } else {
            astray.push(lost);
        }
        ip(&lab.leaf, "link del mv10");
        bridge(&lab.leaf, &format!("fdb del {mover} dev vx10 self"));
        vtepd.wait_for("the port to go", |m| port(m, "mv10").is_none());
    }
    println!(
        "astray of a host that is put into the bridge while it talks: {astray:?} frames, 0.1 ms or more apart"
    );
}
