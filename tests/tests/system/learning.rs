//! VXLAN without a control plane: leaves configured only with `ip`, which learn from received
//! frames.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use root_test::root_test;
use vtepd_tests::experiments::{EXPERIMENT, Uplinks, experiments};
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, PEER2, bridge, ip, mac_of, run};
use vtepd_tests::{Capture, Host, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

fn lab(case: &str, vxlan: &'static str, peers: &'static str) -> Lab {
    Lab::with(case, Setup { learning: true, vxlan, peers, ..Setup::default() })
}

/// A host sends a broadcast frame.
fn speak(host: &Host) {
    inject(&host.ns, ETH, &experiments(Pair::of(host, host).to_mac(MacAddr::BROADCAST), 1));
}

/// The VTEPs that get ten frames from the leaf's host to this address.
fn ways(lab: &Lab, to: MacAddr, count: usize) -> BTreeMap<Ipv4Addr, usize> {
    let uplinks = Uplinks::watch(lab);
    inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far).to_mac(to), 10));
    uplinks.sent(count)
}

/// The kernel's entry for an address on the leaf, in the output of `bridge fdb`.
fn entry(lab: &Lab, mac: MacAddr) -> Option<String> {
    let shown = run(&lab.leaf, "bridge fdb show dev vx10");
    shown
        .lines()
        .find(|line| line.starts_with(&mac.to_string()) && line.contains(" dst "))
        .map(str::to_owned)
}

/// Waits until the kernel has learned an address and the worker uses it.
fn learned(lab: &Lab, vtepd: &Vtepd, mac: MacAddr, vtep: Ipv4Addr) {
    let wanted = format!("{mac} dst {vtep} self");
    wait_for(&wanted, || entry(lab, mac).is_some_and(|entry| entry.trim_end() == wanted));
    vtepd.wait_for("the entry's way to the worker", |m| {
        m.find("vtepd_vni_remote_macs{vni=\"10\"}").is_some_and(|macs| macs > 0)
    });
    quiet();
}

fn count(vtepd: &Vtepd, change: &str) -> u64 {
    vtepd.metrics().get(&format!("vtepd_learned_addresses_total{{change=\"{change}\"}}"))
}

/// Flood entries for two VTEPs. Frames to a silent host are flooded, frames to a host that has sent
/// are not, and a host that moves is followed. When vtepd is killed, the kernel knows all
/// addresses.
#[root_test]
fn l9_first_frames_flood_the_next_go_to_their_vtep() {
    let lab = lab("learn", "", "");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let far = lab.far.mac();
    assert_eq!(
        ways(&lab, far, 20),
        BTreeMap::from([(PEER, 10), (PEER2, 10)]),
        "nobody knows the host"
    );
    speak(&lab.far);
    learned(&lab, &vtepd, far, PEER);
    assert_eq!(ways(&lab, far, 10), BTreeMap::from([(PEER, 10)]));

    // All hosts talk to each other.
    for (from, to) in [(&lab.host, &lab.far), (&lab.farther, &lab.host), (&lab.next, &lab.farther)]
    {
        sockets::ping(from, to.ip(), 5, 1600, &[]);
    }
    sockets::tcp_both_ways(&lab.host, &lab.far, 300_000);
    learned(&lab, &vtepd, lab.farther.mac(), PEER2);
    assert_eq!(ways(&lab, lab.farther.mac(), 10), BTreeMap::from([(PEER2, 10)]));

    // The host appears behind the other VTEP and sends.
    let moved = Pair { from: (far, lab.far.ip()), ..Pair::of(&lab.farther, &lab.host) };
    inject(&lab.farther.ns, ETH, &experiments(moved.to_mac(MacAddr::BROADCAST), 1));
    learned(&lab, &vtepd, far, PEER2);
    assert_eq!(ways(&lab, far, 10), BTreeMap::from([(PEER2, 10)]));
    assert_eq!((count(&vtepd, "new"), count(&vtepd, "moved")), (2, 1), "{}", vtepd.metrics().0);

    // The host becomes local. The bridge's entry takes precedence over the tunnel's.
    let local = Pair { from: (far, lab.far.ip()), ..Pair::of(&lab.next, &lab.host) };
    inject(&lab.next.ns, ETH, &experiments(local.to_mac(lab.host.mac()), 1));
    wait_for("the bridge to learn", || {
        run(&lab.leaf, "bridge fdb show dev hq10").contains(&far.to_string())
    });
    let at_next =
        Capture::start(&lab.next.ns, ETH, |frame| frame.get(12..14) == Some(&[0x88, 0xb5]));
    assert_eq!(ways(&lab, far, 0), BTreeMap::new());
    assert_eq!(at_next.stop().len(), 10);
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);

    // The kernel keeps what vtepd learned, and continues to learn.
    vtepd.kill();
    assert_eq!(ways(&lab, lab.farther.mac(), 10), BTreeMap::from([(PEER2, 10)]));
    inject(
        &lab.far.ns,
        ETH,
        &experiments(Pair::of(&lab.far, &lab.host).to_mac(MacAddr::BROADCAST), 1),
    );
    let wanted = format!("{far} dst {PEER} self");
    wait_for("the kernel to move it", || {
        entry(&lab, far).is_some_and(|entry| entry.trim_end() == wanted)
    });
}

/// Entries that the kernel has learned are used from the first frame on, and the kernel still has
/// them afterwards.
#[root_test]
fn what_the_kernel_had_learned_stays() {
    let lab = lab("had", "", "");
    let far = lab.far.mac();
    speak(&lab.far);
    let wanted = format!("{far} dst {PEER} self");
    wait_for("the kernel to learn", || {
        entry(&lab, far).is_some_and(|entry| entry.trim_end() == wanted)
    });
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    assert_eq!(ways(&lab, far, 10), BTreeMap::from([(PEER, 10)]));
    // vtepd does not know the entry's age, so the first frame refreshes it.
    speak(&lab.far);
    vtepd.wait_for("a refresh", |m| {
        m.get("vtepd_learned_addresses_total{change=\"refreshed\"}") == 1
    });
    assert_eq!(count(&vtepd, "new"), 0);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
    assert_eq!(ways(&lab, far, 10), BTreeMap::from([(PEER, 10)]));
    assert_eq!(entry(&lab, far).unwrap().trim_end(), wanted);
}

/// Leaves with a default `remote` each: one leaf gets flooded frames, and a third leaf, which is
/// not configured, is still learned from.
#[root_test]
fn a_default_remote_is_where_first_frames_go() {
    let lab = lab("p2p", "remote 10.0.0.2", "remote 10.0.0.1");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    assert_eq!(
        ways(&lab, lab.farther.mac(), 10),
        BTreeMap::from([(PEER, 10)]),
        "nobody knows the host"
    );
    sockets::ping(&lab.host, lab.far.ip(), 5, 1600, &[]);
    speak(&lab.farther);
    learned(&lab, &vtepd, lab.farther.mac(), PEER2);
    assert_eq!(ways(&lab, lab.farther.mac(), 10), BTreeMap::from([(PEER2, 10)]));
    sockets::ping(&lab.host, lab.farther.ip(), 5, 1600, &[]);
    let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--output", "json"]);
    let dry: serde_json::Value = serde_json::from_slice(&dry.stdout).expect("JSON");
    assert_eq!(
        (&dry["taken"][0]["learning"], &dry["taken"][0]["flood_vteps"]),
        (&true.into(), &1.into())
    );
}

/// A static entry is not moved. The kernel and vtepd drop frames with its address from elsewhere.
#[root_test]
fn what_is_static_is_not_moved() {
    let lab = lab("static", "", "");
    let far = lab.far.mac();
    let own = mac_of(&lab.leaf, "vx10");
    bridge(&lab.leaf, &format!("fdb add {far} dev vx10 dst {PEER} self static"));
    let forged = |mac| {
        let pair = Pair { from: (mac, lab.far.ip()), ..Pair::of(&lab.farther, &lab.host) };
        experiments(pair.to_mac(MacAddr::BROADCAST), 10)
    };
    let heard =
        || Capture::start(&lab.host.ns, ETH, |frame| frame.get(12..14) == Some(&[0x88, 0xb5]));
    for takes_over in [false, true] {
        let vtepd = takes_over.then(|| Vtepd::start(&lab.leaf, &[]));
        let at_host = heard();
        inject(&lab.farther.ns, ETH, &forged(far));
        inject(&lab.farther.ns, ETH, &forged(own));
        speak(&lab.far);
        at_host.wait(1);
        quiet();
        let arrived = at_host.stop();
        assert_eq!(arrived.len(), 1, "{} frames with vtepd: {takes_over}", arrived.len());
        assert_eq!(arrived[0].bytes[6..12], far.0);
        assert_eq!(entry(&lab, far).unwrap().trim_end(), format!("{far} dst {PEER} self static"));
        if let Some(vtepd) = vtepd {
            let metrics = vtepd.metrics();
            assert_eq!(
                (metrics.dropped("static_source"), metrics.dropped("invalid_source")),
                (10, 10)
            );
            assert_eq!(ways(&lab, far, 10), BTreeMap::from([(PEER, 10)]));
        }
    }
}

/// The entry of a host that sends stays, and that of a silent host ages out although frames are
/// sent to it, with the netdev's ageing time.
#[root_test]
fn l9_who_sends_is_remembered_who_does_not_is_forgotten() {
    let lab = lab("age", "ageing 3", "");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    speak(&lab.farther);
    let said = Instant::now();
    let mut forgotten = None;
    let until = Duration::from_secs(15);
    while said.elapsed() < until {
        speak(&lab.far);
        inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.farther), 1));
        std::thread::sleep(Duration::from_millis(200));
        if forgotten.is_none()
            && said.elapsed() > Duration::from_secs(1)
            && entry(&lab, lab.farther.mac()).is_none()
        {
            forgotten = Some(said.elapsed());
        }
    }
    let forgotten = forgotten.expect("the silent host is forgotten");
    // The kernel checks entries at least every ten seconds.
    assert!(forgotten > Duration::from_millis(2900), "{forgotten:?}");
    assert!(entry(&lab, lab.far.mac()).is_some());
    // If it had aged out in between, it would be counted as new again.
    assert_eq!(count(&vtepd, "new"), 2, "{}", vtepd.metrics().0);
    assert!((8..=40).contains(&count(&vtepd, "refreshed")), "{}", vtepd.metrics().0);
    // After that, frames to it are flooded.
    assert_eq!(ways(&lab, lab.farther.mac(), 20), BTreeMap::from([(PEER, 10), (PEER2, 10)]));
}

/// The kernel's flood list.
fn kernel_flood(lab: &Lab) -> BTreeSet<Ipv4Addr> {
    let shown = run(&lab.leaf, "bridge fdb show dev vx10");
    let zero = |line: &&str| line.starts_with("00:00:00:00:00:00 ");
    shown
        .lines()
        .filter(zero)
        .map(|line| line.split(' ').nth(2).unwrap().parse().unwrap())
        .collect()
}

/// Frames to a deleted entry are flooded again. A netdev stops learning when learning is turned
/// off, and resumes when it is turned on.
#[root_test]
fn l9_what_is_deleted_is_flooded_to_and_learning_goes_off_and_on() {
    let lab = lab("offon", "", "");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let (far, farther) = (lab.far.mac(), lab.farther.mac());
    let (flood, known) = (BTreeMap::from([(PEER, 10), (PEER2, 10)]), BTreeMap::from([(PEER, 10)]));
    let remote_macs = |wanted: u64| {
        vtepd.wait_for("the entries", |m| m.get("vtepd_vni_remote_macs{vni=\"10\"}") == wanted);
    };
    speak(&lab.far);
    learned(&lab, &vtepd, far, PEER);
    assert_eq!(ways(&lab, far, 10), known);
    bridge(&lab.leaf, &format!("fdb del {far} dev vx10 dst {PEER} self"));
    remote_macs(0);
    assert_eq!(ways(&lab, far, 20), flood, "deleted");
    speak(&lab.far);
    learned(&lab, &vtepd, far, PEER);
    assert_eq!(ways(&lab, far, 10), known, "and learned again at once");

    // Without learning, learned entries stay, and new senders are not learned.
    let learning = |on: bool| {
        let word = if on { "learning" } else { "nolearning" };
        ip(&lab.leaf, &format!("link set vx10 type vxlan id 10 {word}"));
        wait_for(word, || vtepd.ask(&["vni"])[0]["taken"]["learning"] == on);
    };
    learning(false);
    let at_host =
        Capture::start(&lab.host.ns, ETH, |frame| frame.get(12..14) == Some(&[0x88, 0xb5]));
    speak(&lab.farther);
    at_host.wait(1);
    quiet();
    assert_eq!(entry(&lab, farther), None);
    assert_eq!((ways(&lab, farther, 20), ways(&lab, far, 10)), (flood.clone(), known.clone()));
    learning(true);
    assert_eq!(ways(&lab, farther, 20), flood);
    speak(&lab.farther);
    wait_for("the kernel to have it", || entry(&lab, farther).is_some());
    remote_macs(2);
    assert_eq!(ways(&lab, farther, 10), BTreeMap::from([(PEER2, 10)]));
    assert_eq!(count(&vtepd, "new"), 3, "{}", vtepd.metrics().0);
}

/// The default `remote` changes. Every other flood entry stays, in vtepd as in the kernel.
#[root_test]
fn l17_changing_the_default_remote_loses_no_flood_entry() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);
    let lab = lab("l17", "remote 10.0.0.2", "remote 10.0.0.1");
    // A second address of the peer.
    ip(&lab.peer, &format!("addr add {OTHER}/32 dev lo"));
    for (router, number) in lab.routers.iter().zip(1..) {
        ip(router, &format!("route add {OTHER}/32 via 10.2.{number}.1"));
    }
    ip(
        &lab.leaf,
        &format!("route add {OTHER}/32 src {LEAF} nexthop via 10.1.1.0 nexthop via 10.1.2.0"),
    );
    bridge(&lab.leaf, &format!("fdb append 00:00:00:00:00:00 dev vx10 dst {PEER2} self permanent"));
    let all = MacAddr::BROADCAST;
    let flooded = |to: [Ipv4Addr; 2]| {
        assert_eq!(ways(&lab, all, 20), BTreeMap::from(to.map(|vtep| (vtep, 10))));
        assert_eq!(kernel_flood(&lab), BTreeSet::from(to));
    };
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    flooded([PEER, PEER2]);
    let mut events = vtepd.events();
    for (remote, to) in [(OTHER, [OTHER, PEER2]), (PEER, [PEER, PEER2]), (OTHER, [OTHER, PEER2])] {
        ip(&lab.leaf, &format!("link set vx10 type vxlan id 10 remote {remote}"));
        events.wait_for("the new remote", |event| {
            event["kind"] == "flood-added" && event["vtep"] == remote.to_string()
        });
        flooded(to);
        let shown = vtepd.ask(&["flood"]);
        let shown = shown
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["vtep"].as_str().unwrap().parse().unwrap());
        assert_eq!(shown.collect::<BTreeSet<Ipv4Addr>>(), BTreeSet::from(to));
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
    flooded([OTHER, PEER2]);
}

/// The kernel's MAC addresses with a VTEP for a vxlan netdev, without the flood list.
fn kernel_macs(lab: &Lab, vni: u32) -> BTreeSet<String> {
    let shown = run(&lab.leaf, &format!("bridge fdb show dev vx{vni}"));
    let entries = shown
        .lines()
        .filter(|line| line.contains(" dst ") && !line.starts_with("00:00:00:00:00:00"));
    entries.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn vtepd_macs(vtepd: &Vtepd, vni: u32) -> BTreeSet<String> {
    let fdb = vtepd.ask(&["fdb", "--vni", &vni.to_string()]);
    fdb.as_array().unwrap().iter().map(|row| row["mac"].as_str().unwrap().to_owned()).collect()
}

/// Addresses above a limit are not learned: the netdev's `maxaddress`, the VNI's own limit or the
/// total. Entries are flushed by VNI, by origin and by bridge port while two VNIs forward, and the
/// tables stay equal to the kernel's.
#[root_test]
fn v12_the_table_cap_holds_and_flushes_are_followed() {
    const VNIS: [u32; 3] = [10, 20, 30];
    let lab = lab("v12", "maxaddress 12", "");
    lab.overlay(20, "", "", "");
    lab.overlay(30, "", "", "");
    // After a stall, kernel VXLAN would learn without the VNI's own limit.
    let limits = "[takeover]\nstall-limit-ms = 5000\n[learning]\ntotal = 36\n\
                  [vni.20]\naddresses = 8\n";
    let vtepd = Vtepd::start_configured(&lab.leaf, limits, &[]);
    let stream = |vni: u32| {
        let stop = Arc::new(AtomicBool::new(false));
        let (ending, host, to) = (Arc::clone(&stop), lab.host.ip_in(vni), lab.far.ip_in(vni));
        let pinging = lab.host.ns.thread(move || {
            let mut sent = 0;
            while !ending.load(Ordering::Relaxed) || sent == 0 {
                let mut command = std::process::Command::new("ping");
                command.args([
                    "-n",
                    "-i",
                    "0.01",
                    "-c",
                    "50",
                    "-w",
                    "20",
                    "-I",
                    &host.to_string(),
                    &to.to_string(),
                ]);
                let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
                assert!(said.contains("50 packets transmitted, 50 received"), "{said}");
                sent += 50;
            }
            sent
        });
        (stop, pinging.unwrap())
    };
    let streams = [10, 20].map(stream);
    let claims = |vni: u32, numbers: std::ops::Range<u8>| {
        for number in numbers {
            let mac = MacAddr([2, 7, 0, 0, vni as u8, number]);
            let pair = Pair { from: (mac, lab.far.ip()), to: (MacAddr::BROADCAST, lab.host.ip()) };
            inject(
                &lab.far.ns,
                &format!("eth{vni}"),
                &[frames::ethernet(pair, EXPERIMENT, &[number; 50])],
            );
        }
    };
    let refused =
        || vtepd.metrics().get("vtepd_not_learned_addresses_total{reason=\"too_many_addresses\"}");
    VNIS.iter().for_each(|vni| claims(*vni, 0..40));
    wait_for("addresses that do not fit", || refused() >= 80);
    quiet();
    // The flood list counts as one address.
    let sizes = VNIS.map(|vni| kernel_macs(&lab, vni).len());
    assert_eq!(sizes, [11, 7, 36 - 12 - 8 - 1], "{}", vtepd.metrics().0);
    let same = |vni: u32| {
        wait_for("the kernel's table", || vtepd_macs(&vtepd, vni) == kernel_macs(&lab, vni))
    };
    VNIS.iter().for_each(|vni| same(*vni));

    // By VNI: all learned entries of one VNI. The others keep theirs.
    run(&lab.leaf, "bridge fdb flush dev vx20 self nopermanent");
    wait_for("the flush", || !vtepd_macs(&vtepd, 20).iter().any(|mac| mac.starts_with("02:07")));
    same(20);
    assert_eq!([10, 30].map(|vni| vtepd_macs(&vtepd, vni).len()), [sizes[0], sizes[2]]);
    claims(20, 40..42);
    wait_for("what is learned in its place", || {
        vtepd_macs(&vtepd, 20).iter().filter(|mac| mac.starts_with("02:07")).count() == 2
    });
    // By origin: learned entries go and `extern_learn` entries stay, and vice versa.
    let external: BTreeSet<String> =
        ["02:09:00:00:00:01", "02:09:00:00:00:02"].map(str::to_owned).into();
    let set = |mac: &String| format!("fdb add {mac} dev vx20 dst {PEER2} self extern_learn\n");
    bridge(&lab.leaf, &external.iter().map(set).collect::<String>());
    wait_for("entries of somebody else", || vtepd_macs(&vtepd, 20).is_superset(&external));
    run(&lab.leaf, "bridge fdb flush dev vx20 self nopermanent noextern_learn");
    wait_for("learned ones to go", || {
        !vtepd_macs(&vtepd, 20).iter().any(|mac| mac.starts_with("02:07"))
    });
    assert!(vtepd_macs(&vtepd, 20).is_superset(&external));
    claims(20, 42..44);
    run(&lab.leaf, "bridge fdb flush dev vx20 self extern_learn");
    wait_for("the others to go", || vtepd_macs(&vtepd, 20).is_disjoint(&external));
    same(20);
    // By bridge port: a host port, and the vxlan netdev.
    run(&lab.leaf, "bridge fdb flush dev br30 brport vx30");
    run(&lab.leaf, "bridge fdb flush dev br30 brport hp30");
    assert_eq!(vtepd_macs(&vtepd, 30).len(), sizes[2], "the bridge's entries are not the tunnel's");
    VNIS.iter().for_each(|vni| same(*vni));

    for (stop, pinging) in streams {
        stop.store(true, Ordering::Relaxed);
        let sent = pinging.join().unwrap().unwrap();
        assert!(sent >= 50);
    }
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}
