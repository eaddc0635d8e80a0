//! Leaves and spines fail, with and without a loss of carrier, and return.

use std::time::Instant;

use fabric::process::{Identity, wait_until};
use nix::sys::signal::Signal;
use root_test::root_test;
use serde_json::Value;

use super::fixture::{CONVERGENCE, ScaleAcross, TIMEOUT, frr};
use super::hosts::{host, tcp_both_ways};
use super::stream::Stream;

/// The addresses of two neighbours on their common links.
const LEAF4_OF_SPINE3: &str = "10.1.43.1";
const SPINE1_OF_LEAF1: &str = "10.1.11.0";

/// Waits until BFD on a router has found that a neighbour is silent. Without BFD, only BGP's hold
/// timer would.
fn wait_for_bfd(fabric: &ScaleAcross, router: &str, neighbour: &str) {
    let state = || {
        let said = fabric.node(router).run(&["vtysh", "-c", "show bfd peers json"]).unwrap();
        let peers: Value = serde_json::from_str(&said).unwrap();
        let peers = peers.as_array().unwrap();
        let peer = peers.iter().find(|peer| peer["peer"] == neighbour);
        peer.map_or_else(
            || said.clone(),
            |peer| format!("{}: {}", peer["status"], peer["diagnostic"]),
        )
    };
    let is_silent = || state() == "\"down\": \"control detection time expired\"";
    assert!(wait_until(TIMEOUT, is_silent), "{router} to {neighbour} is {}", state());
}

/// FRR's processes on a leaf, stopped with SIGSTOP. Drop continues them.
struct Frozen(Vec<Identity>);

impl Frozen {
    fn new(fabric: &ScaleAcross, leaf: &str) -> Self {
        let frozen = Self(fabric.frr(leaf));
        frozen.0.iter().for_each(|daemon| daemon.signal(Signal::SIGSTOP).unwrap());
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for daemon in &self.0 {
            let _ = daemon.signal(Signal::SIGCONT);
        }
    }
}

/// leaf4 fails, first silently, then with its links. leaf1 (with FPM) and leaf2 (without) remove
/// its hosts and no longer flood to it. Traffic to others is not affected. When leaf4 returns, so
/// do its entries.
fn vtep_death_and_return(fabric: &ScaleAcross) {
    let vtepds =
        ["leaf1", "leaf2"].map(|leaf| (leaf, fabric.vtepd(leaf), 1 + u64::from(leaf == "leaf2")));
    let (near, far, bystander) =
        (host(fabric, "host1"), host(fabric, "host4"), host(fabric, "host5"));
    let all_there = || {
        for (_, vtepd, stores) in &vtepds {
            vtepd.wait_for_peers(10010, 5, 5);
            vtepd.wait_for_peers(10020, *stores, 5);
        }
        tcp_both_ways(&near, &far, 100_000);
    };
    let gone = |how: &str, start: Instant| {
        for (leaf, vtepd, stores) in &vtepds {
            vtepd.wait_for_peers(10010, 4, 4);
            vtepd.wait_for_peers(10020, stores - 1, 4);
            let after = start.elapsed();
            println!("vtep_death_and_return: {leaf} knows that leaf4 {how} after {after:?}");
        }
    };
    all_there();

    let stream = Stream::start(&near.namespace, (&bystander.namespace, bystander.address), 1000);
    let frozen = Frozen::new(fabric, "leaf4");
    gone("is silent", Instant::now());
    wait_for_bfd(fabric, "spine3", LEAF4_OF_SPINE3);
    stream.goes_on(200);
    drop(frozen);
    fabric.converge();
    all_there();
    stream.finish_whole("vtep_death_and_return, to another leaf");

    for uplink in ["up1", "up2"] {
        fabric.run("leaf4", &format!("ip link set {uplink} down"));
    }
    gone("has no links", Instant::now());
    for uplink in ["up1", "up2"] {
        fabric.run("leaf4", &format!("ip link set {uplink} up"));
    }
    fabric.converge();
    all_there();
}

/// spine1 fails silently with its links up, so only BFD detects it. Frames in flight to it are
/// lost, later ones take spine2.
fn uplink_failure_and_return(fabric: &ScaleAcross) {
    const RATE: u32 = 2000;
    let vtepd = fabric.vtepd("leaf1");
    let (near, far) = (host(fabric, "host1"), host(fabric, "host4"));
    let start = || Stream::start(&near.namespace, (&far.namespace, far.address), RATE);
    let sent = || {
        let metrics = vtepd.metrics();
        (metrics.sent_by("up1"), metrics.sent_by("up2"))
    };
    let stream = start();
    stream.goes_on(500);
    let (by_one, by_two) = sent();
    assert!(by_one > 50 && by_two > 50, "{by_one} frames by up1, {by_two} by up2");

    // Drops all received packets and sends none.
    for command in
        ["ip rule add pref 10 lookup local", "ip rule del pref 0", "ip rule add pref 0 blackhole"]
    {
        fabric.run("spine1", command);
    }
    let silent = Instant::now();
    let route = || fabric.run("leaf1", "ip route show 10.0.0.14");
    wait_until(TIMEOUT, || !route().contains("up1"));
    let known = silent.elapsed();
    let mut before = sent();
    let moved = wait_until(TIMEOUT, || {
        let after = sent();
        // A tenth of a second of traffic, with no frame over up1.
        if after.1 < before.1 + u64::from(RATE) / 10 {
            return false;
        }
        let none = after.0 == before.0;
        before = after;
        none
    });
    let after = silent.elapsed();
    println!(
        "uplink_failure_and_return: FRR knows of the silent spine after {known:?}, vtepd after {after:?}"
    );
    assert!(moved, "{:?}", sent());
    wait_for_bfd(fabric, "leaf1", SPINE1_OF_LEAF1);
    let (all, report) = stream.finish();
    println!("uplink_failure_and_return: {all} frames sent, {} lost", report.lost());
    assert!(report.lost() > 0, "the spine was not silent");
    // The other spine forwarded its share all the time.
    assert!(
        (report.lost() as f64) < f64::from(RATE) * after.as_secs_f64() * 0.9,
        "{} of {all} lost",
        report.lost()
    );

    let (by_one, _) = sent();
    let stream = start();
    stream.goes_on(500);
    assert_eq!(sent().0, by_one, "frames by the uplink to the silent spine");
    fabric.run("spine1", "ip rule del pref 0");
    let used = wait_until(2 * TIMEOUT, || sent().0 > by_one + 200);
    assert!(used, "the uplink is not used again: {:?}", sent());
    fabric.converge();
    let (all, report) = stream.finish();
    println!(
        "uplink_failure_and_return: {all} frames sent while the spine came back, {} lost",
        report.lost()
    );
    assert!(report.lost() < u64::from(RATE), "{} of {all} lost", report.lost());

    let stream = start();
    stream.goes_on(1000);
    stream.finish_whole("uplink_failure_and_return, afterwards");
    assert_eq!(vtepd.metrics().dropped(), 0);
}

#[root_test(needs = frr)]
fn vteps_and_uplinks_fail_and_return() {
    let fabric = ScaleAcross::up("evpn-failures");
    vtep_death_and_return(&fabric);
    uplink_failure_and_return(&fabric);
}

/// Uplinks go down and return, one after the other. The leaf uses both again, and knows all remote
/// hosts: zebra 8.4.4 could say so while the kernel had no route over both.
#[root_test(needs = frr)]
fn an_uplink_that_returns_is_used_again() {
    let fabric = ScaleAcross::up("evpn-returns");
    let route = || fabric.run("leaf1", "ip route show 10.0.0.14");
    for uplink in ["up1", "up2", "up1", "up2"] {
        fabric.run("leaf1", &format!("ip link set {uplink} down"));
        let by_the_other = || !route().is_empty() && !route().contains(uplink);
        assert!(wait_until(TIMEOUT, by_the_other), "{uplink} is down: {}", route());
        fabric.run("leaf1", &format!("ip link set {uplink} up"));
        let by_both = || ["up1", "up2"].iter().all(|uplink| route().contains(uplink));
        assert!(wait_until(CONVERGENCE, by_both), "{uplink} has returned: {}", route());
    }
    fabric.converge();
}
