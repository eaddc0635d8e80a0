//! Everything is restarted in random order, and in the end vtepd forwards by what the kernel has, entry by entry.
//!
//! The normal form that is compared, per vxlan netdev: pairs of MAC address and VTEP, the flood list with MAC address zero, as in
//! `bridge fdb show dev vxN` (entries with `dst`), and per VTEP the set of (interface, gateway) of the route to it. Routes are
//! zebra's where it tells them by FPM, the kernel's elsewhere, dead next hops left out: after an uplink has flapped, zebra 8.4.4
//! may use both and have only one in the kernel.

use std::collections::BTreeSet;

use lab::process::wait_until;
use lab::random::{Random, SEED};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{CONVERGENCE, LEAVES, PATIENCE, ScaleAcross, Vtepd, can_run};
use crate::hosts::host;
use crate::stream::Stream;

/// The leaf whose things are restarted; it offers FPM.
const LEAF: &str = "leaf1";
/// Those that do.
const FPM: [&str; 3] = ["leaf1", "leaf4", "leaf5"];
const ROUNDS: usize = 20;

#[derive(Debug, Clone, Copy)]
enum Restart {
    Zebra(Signal),
    Bgpd(Signal),
    /// The FPM connection alone.
    Fpm,
    /// vtepd, by a signal.
    Vtepd(Signal),
    /// vtepd, by its successor.
    Replace,
    /// An uplink goes down and comes up.
    Uplink(&'static str),
    /// A vxlan netdev goes down and comes up.
    NetdevDown,
    /// It is deleted and made again, with another ifindex.
    NetdevNew,
    /// A bridge and the netdev in it.
    BridgeNew,
}

const RESTARTS: [Restart; 12] = [
    Restart::Zebra(Signal::SIGTERM),
    Restart::Zebra(Signal::SIGKILL),
    Restart::Bgpd(Signal::SIGTERM),
    Restart::Bgpd(Signal::SIGKILL),
    Restart::Fpm,
    Restart::Vtepd(Signal::SIGTERM),
    Restart::Vtepd(Signal::SIGKILL),
    Restart::Replace,
    Restart::Uplink("up1"),
    Restart::NetdevDown,
    Restart::NetdevNew,
    Restart::BridgeNew,
];

fn restart(fabric: &ScaleAcross, vtepd: &mut Option<Vtepd>, what: Restart) {
    let zebra = |command: &str| {
        fabric.node(LEAF).run(&["vtysh", "-c", "configure terminal", "-c", command]).unwrap();
    };
    // The leaf's own lines that make it, once more.
    let again = |links: &[&str]| {
        let lines = &fabric.fabric.topology().nodes[LEAF].exec;
        for words in lines.iter().filter(|words| words.iter().any(|word| links.contains(&word.as_str()))) {
            fabric.run(LEAF, &words.join(" "));
        }
    };
    match what {
        Restart::Zebra(signal) => {
            // The others follow, as watchfrr has it: without, bgpd 10.3 waits for a BFD that has lost zebra.
            fabric.node(LEAF).restart_frr("zebra", signal).unwrap();
            for daemon in ["staticd", "bfdd", "bgpd"] {
                fabric.node(LEAF).restart_frr(daemon, Signal::SIGTERM).unwrap();
            }
        }
        Restart::Bgpd(signal) => fabric.node(LEAF).restart_frr("bgpd", signal).unwrap(),
        Restart::Fpm => {
            zebra("no fpm address");
            zebra("fpm address 127.0.0.1");
        }
        Restart::Vtepd(signal) => {
            vtepd.take().expect("vtepd runs").end_by(signal);
            *vtepd = Some(fabric.spawn(LEAF, &[]));
        }
        Restart::Replace => {
            let old = vtepd.take().expect("vtepd runs");
            // One that has only begun to start does not hear yet.
            old.wait_until_ready();
            let new = fabric.spawn(LEAF, &["--replace"]);
            assert!(wait_until(PATIENCE, || !old.alive()), "{}", new.log());
            *vtepd = Some(new);
        }
        Restart::Uplink(name) => {
            fabric.run(LEAF, &format!("ip link set {name} down"));
            fabric.run(LEAF, &format!("ip link set {name} up"));
        }
        Restart::NetdevDown => {
            fabric.run(LEAF, "ip link set vx10010 down");
            fabric.run(LEAF, "ip link set vx10010 up");
        }
        Restart::NetdevNew => {
            fabric.run(LEAF, "ip link del vx10010");
            again(&["vx10010"]);
        }
        Restart::BridgeNew => {
            fabric.run(LEAF, "ip link del vx10020");
            fabric.run(LEAF, "ip link del br10020");
            again(&["br10020", "vx10020"]);
        }
    }
}

type Pairs = BTreeSet<(String, String)>;

fn pairs(rows: &Value, first: &str, second: &str) -> Pairs {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    rows.as_array().unwrap().iter().map(|row| (text(row, first), text(row, second))).collect()
}

/// MAC addresses and VTEPs of a vxlan netdev; the flood list with MAC address zero.
fn kernel_fdb(fabric: &ScaleAcross, leaf: &str, netdev: &str) -> Pairs {
    let text = fabric.run(leaf, &format!("bridge -j fdb show dev {netdev}"));
    let mut all = pairs(&serde_json::from_str(&text).unwrap(), "mac", "dst");
    all.retain(|(_, vtep)| !vtep.is_empty());
    all
}

fn kernel_route(fabric: &ScaleAcross, leaf: &str, vtep: &str) -> Pairs {
    let routes: Value =
        serde_json::from_str(&fabric.run(leaf, &format!("ip -j route show {vtep}/32"))).unwrap();
    let Some(route) = routes.as_array().unwrap().first() else { return Pairs::new() };
    let hops = route["nexthops"].as_array().cloned().unwrap_or_else(|| vec![route.clone()]);
    let dead =
        |hop: &Value| hop["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "dead"));
    pairs(&hops.into_iter().filter(|hop| !dead(hop)).collect(), "dev", "gateway")
}

fn zebra_route(fabric: &ScaleAcross, leaf: &str, vtep: &str) -> Pairs {
    let command = format!("show ip route {vtep}/32 json");
    let routes: Value =
        serde_json::from_str(&fabric.node(leaf).run(&["vtysh", "-c", &command]).unwrap()).unwrap();
    let routes = routes[format!("{vtep}/32")].as_array().cloned().unwrap_or_default();
    let selected = routes.into_iter().find(|route| route["selected"] == true);
    let hops =
        selected.map_or_else(Vec::new, |route| route["nexthops"].as_array().cloned().unwrap_or_default());
    let used = hops.into_iter().filter(|hop| hop["fib"] == true && hop["active"] == true);
    pairs(&used.collect(), "interfaceName", "ip")
}

/// What vtepd forwards by and the kernel does not have, and the reverse; empty where they agree.
fn differences(fabric: &ScaleAcross, leaf: &str, vtepd: &Vtepd) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: String, vtepd: &Pairs, expected: &Pairs| {
        if vtepd != expected {
            differences.push(format!("{what}: vtepd {vtepd:?}, expected {expected:?}"));
        }
    };
    let mut vteps = BTreeSet::new();
    for vni in ["10010", "10020"] {
        let mut own = pairs(&vtepd.ask(&["fdb", "--vni", vni]), "mac", "vtep");
        let flood = pairs(&vtepd.ask(&["flood", "--vni", vni]), "netdev", "vtep");
        own.extend(flood.into_iter().map(|(_, vtep)| ("00:00:00:00:00:00".to_owned(), vtep)));
        vteps.extend(own.iter().map(|(_, vtep)| vtep.clone()));
        compare(vni.to_owned(), &own, &kernel_fdb(fabric, leaf, &format!("vx{vni}")));
    }
    assert!(!vteps.is_empty(), "{leaf} knows nobody");
    for vtep in vteps {
        let answer = vtepd.ask(&["route", "--vtep", &vtep]);
        let own = pairs(&answer[0]["next_hops"], "uplink", "gateway");
        let route = if FPM.contains(&leaf) { zebra_route } else { kernel_route };
        compare(vtep.clone(), &own, &route(fabric, leaf, &vtep));
    }
    differences
}

fn agree(fabric: &ScaleAcross, leaf: &str, vtepd: &Vtepd) {
    let mut last = Vec::new();
    let agreed = wait_until(CONVERGENCE, || {
        last = differences(fabric, leaf, vtepd);
        last.is_empty()
    });
    assert!(agreed, "{leaf}: {last:#?}\n{}", vtepd.log());
}

#[test]
fn everything_restarts_in_random_order_and_the_tables_are_the_kernels() {
    if !can_run("everything_restarts_in_random_order_and_the_tables_are_the_kernels") {
        return;
    }
    let fabric = ScaleAcross::up("evpn-restarts");
    let others = LEAVES[1..].iter().map(|leaf| (*leaf, fabric.vtepd(leaf))).collect::<Vec<_>>();
    let mut vtepd = Some(fabric.vtepd(LEAF));
    let mut random = Random::new(SEED);
    for round in 0..ROUNDS {
        let what = RESTARTS[usize::try_from(random.below(RESTARTS.len() as u64)).unwrap()];
        println!("everything_restarts: {round}: {what:?}");
        restart(&fabric, &mut vtepd, what);
        // Half of the times the next follows at once.
        if random.below(2) == 0 {
            fabric.converge();
            let vtepd = vtepd.as_ref().unwrap();
            vtepd.wait_until_ready();
            agree(&fabric, LEAF, vtepd);
        }
    }
    fabric.converge();
    let vtepd = vtepd.unwrap();
    vtepd.wait_until_ready();
    for source in ["kernel", "fpm"] {
        vtepd.wait_for("all sources", |metrics| metrics.is_state(source, "live"));
    }
    agree(&fabric, LEAF, &vtepd);
    for (leaf, vtepd) in &others {
        agree(&fabric, leaf, vtepd);
    }
    let (near, far) = (host(&fabric, "host1"), host(&fabric, "host4"));
    let stream = Stream::start(&near.namespace, (&far.namespace, far.address), 2000);
    stream.goes_on(2000);
    stream.finish_whole("after all restarts");
    assert_eq!(vtepd.metrics().dropped(), 0, "{}", vtepd.metrics().0);
}
