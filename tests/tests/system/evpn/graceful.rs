//! vtepd takes the place of one PE and follows everything in BGP. The tests check what it keeps and
//! what it removes when FRR or vtepd restarts or dies.

use std::path::{Path, PathBuf};

use fabric::arp::announce;
use fabric::process::wait_until;
use nix::sys::signal::Signal;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::canonical::Lines;

use super::fixture::{CONVERGENCE, DAEMONS, ScaleAcross, TIMEOUT, Vtepd, frr};
use super::hosts::{host, tcp_both_ways};
use super::stream::Stream;
use super::tables::{agree, own, wait_for_line};

/// vtepd's leaf.
const LEAF: &str = "leaf1";
/// How long a restarted zebra keeps the kernel's routes, in seconds.
const KEPT: u32 = 12;
/// How long vtepd keeps zebra's routes, in seconds.
const STALE_TIME: u32 = 3;

const DAEMONS_FILE: &str = "/etc/frr/daemons";
const PLAIN: &str = "-M dplane_fpm_nl";

/// The leaf's `daemons` file, read at every start of a daemon.
struct Options {
    path: PathBuf,
    text: String,
}

impl Options {
    /// Selects whether a restarted zebra keeps the kernel's routes for a while.
    fn graceful(&self, graceful: bool) {
        let options = if graceful { format!("{PLAIN} -K {KEPT}") } else { PLAIN.to_owned() };
        std::fs::write(&self.path, self.text.replace(PLAIN, &options)).unwrap();
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn fabric(name: &str) -> (Options, ScaleAcross) {
    let mut options = None;
    let fabric = ScaleAcross::up_with(name, |topology| {
        let leaf = topology.nodes.get_mut(LEAF).unwrap();
        let bind =
            leaf.binds.iter_mut().find(|bind| bind.target == Path::new(DAEMONS_FILE)).unwrap();
        let path = std::env::temp_dir().join(format!("vtepd-daemons-{}", std::process::id()));
        let own =
            Options { text: std::fs::read_to_string(&bind.source).unwrap(), path: path.clone() };
        own.graceful(true);
        bind.source = path;
        options = Some(own);
    });
    (options.unwrap(), fabric)
}

/// Kills all FRR daemons on the leaf, zebra first, because it would clean up after the others.
fn kill_frr(fabric: &ScaleAcross) {
    let mut daemons = fabric.fabric.processes().unwrap();
    daemons.retain(|process| process.node == LEAF && process.name != "vtepd");
    daemons.sort_by_key(|process| process.name != "zebra");
    for daemon in &daemons {
        daemon.identity.signal(Signal::SIGKILL).unwrap();
    }
    assert!(wait_until(TIMEOUT, || daemons.iter().all(|daemon| !daemon.identity.alive())));
}

fn start_frr(fabric: &ScaleAcross) {
    for daemon in ["mgmtd", "zebra", "staticd", "bfdd", "bgpd"] {
        // FRR before 9 has no mgmtd.
        if DAEMONS.contains(&daemon) {
            fabric.node(LEAF).restart_frr(daemon, Signal::SIGTERM).unwrap();
        } else {
            let _ = fabric.node(LEAF).restart_frr(daemon, Signal::SIGTERM);
        }
    }
}

/// The events after number `after`, as kind and text, and the number of the last one.
fn events(vtepd: &Vtepd, after: u64) -> (Vec<(String, String)>, u64) {
    let events = vtepd.events(after);
    let last = events.last().map_or(after, |event| event["sequence"].as_u64().unwrap());
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    (events.iter().map(|event| (text(event, "kind"), text(event, "text"))).collect(), last)
}

/// The events that remove something permanently. Next hops are not among them, because they return
/// one after the other with BGP's sessions.
fn losses(events: &[(String, String)]) -> Vec<&str> {
    let losing = ["mac-removed", "flood-removed", "detached", "left"];
    events
        .iter()
        .filter(|(kind, _)| losing.contains(&kind.as_str()))
        .map(|(_, text)| text.as_str())
        .collect()
}

fn of_leaf5(lines: &Lines) -> Lines {
    lines
        .iter()
        .filter(|line| line.contains("10.0.0.15") || line.starts_with("host "))
        .cloned()
        .collect()
}

/// F1: learning, type-3 routes, type-2 routes with and without an IP address, and their withdrawal
/// when a VNI goes down.
fn one_pe_is_replaced(fabric: &ScaleAcross, vtepd: &Vtepd) {
    let (near, far) = (host(fabric, "host1"), host(fabric, "host5"));
    let lines = agree(fabric, LEAF, vtepd);
    assert_eq!(
        lines.iter().filter(|line| line.starts_with("flood vx10010 ")).count(),
        5,
        "{lines:#?}"
    );

    // A type-2 route to this leaf. In the other direction, the kernel's bridge learns an address
    // from vtepd's frames, and zebra announces it.
    for (leaf_host, name, mac) in
        [(&far, "host5", "02:00:00:00:05:77"), (&near, "host1", "02:00:00:00:01:77")]
    {
        fabric.run(name, &format!("ip link set eth1 address {mac}"));
        leaf_host.namespace.enter(|| announce("eth1")).unwrap().unwrap();
    }
    wait_for_line(vtepd, "fdb vx10010 02:00:00:00:05:77 10.0.0.15", true);
    let there = || fabric.run("leaf5", "bridge fdb show dev vx10010");
    assert!(
        wait_until(TIMEOUT, || there().contains("02:00:00:00:01:77 dst 10.0.0.11")),
        "leaf5 does not hear of host1: {}",
        there()
    );
    tcp_both_ways(&near, &far, 100_000);

    // With an IP address.
    fabric.run(
        "leaf5",
        "ip neigh replace 192.168.10.5 lladdr 02:00:00:00:05:77 dev br10010 nud reachable",
    );
    wait_for_line(vtepd, "host br10010 192.168.10.5 02:00:00:00:05:77", true);
    let before = agree(fabric, LEAF, vtepd);

    // The VNI goes down on leaf5. Only its entries disappear here.
    fabric.run("leaf5", "ip link set vx10010 down");
    for line in ["flood vx10010 10.0.0.15", "fdb vx10010 02:00:00:00:05:77 10.0.0.15"] {
        wait_for_line(vtepd, line, false);
    }
    let without = agree(fabric, LEAF, vtepd);
    let gone: Lines = before.difference(&without).cloned().collect();
    assert!(without.is_subset(&before), "{without:#?}");
    assert!(gone.iter().all(|line| of_leaf5(&before).contains(line)), "{gone:#?}");
    assert!(without.contains("flood vx10020 10.0.0.15"), "the other VNI stays: {without:#?}");
    fabric.run("leaf5", "ip link set vx10010 up");
    fabric.converge();
    agree(fabric, LEAF, vtepd);
    tcp_both_ways(&near, &far, 100_000);
}

#[root_test(needs = frr)]
fn f1_f4_g6_g7_one_pe_is_replaced_and_keeps_what_is_confirmed() {
    let (options, fabric) = fabric("evpn-graceful");
    let vtepd = fabric.vtepd(LEAF);
    one_pe_is_replaced(&fabric, &vtepd);

    // G7: vtepd is killed and restarted, and all tables return.
    let before = own(&vtepd);
    vtepd.end_by(Signal::SIGKILL);
    let vtepd = fabric.vtepd(LEAF);
    assert_eq!(own(&vtepd), before);
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    assert_eq!(own(&vtepd), before);

    // F4: all of FRR dies and restarts in time, with graceful restart. No entry and no frame is
    // lost.
    let (sender, receiver) = (host(&fabric, "host1"), host(&fabric, "host4"));
    let stream = Stream::start(&sender.namespace, (&receiver.namespace, receiver.address), 1000);
    let (_, start) = events(&vtepd, 0);
    kill_frr(&fabric);
    vtepd.wait_for("zebra's end", |metrics| metrics.is_state("fpm", "stale"));
    stream.goes_on(500);
    assert_eq!(own(&vtepd), before, "all is kept");
    start_frr(&fabric);
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    fabric.converge();
    assert_eq!(agree(&fabric, LEAF, &vtepd), before, "nothing is flushed that is confirmed");
    let (happened, last) = events(&vtepd, start);
    assert_eq!(losses(&happened), [""; 0]);
    stream.finish_whole("f4, FRR dies and restarts gracefully");

    // G6: FRR dies again and stays away longer than `stale-time`. leaf6 leaves meanwhile.
    let stream = Stream::start(&sender.namespace, (&receiver.namespace, receiver.address), 1000);
    let swept = || vtepd.metrics().find("vtepd_swept_entries_total{source=\"fpm\"}").unwrap();
    let swept_before = swept();
    vtepd.reload_with(&format!("[fpm]\nstale-time = {STALE_TIME}\n"));
    vtepd.wait_for_log("fpm.stale-time: 120 → 3");
    kill_frr(&fabric);
    for uplink in ["up1", "up2"] {
        fabric.run("leaf6", &format!("ip link set {uplink} down"));
    }
    vtepd.wait_for("zebra to be forgotten", |metrics| metrics.is_state("fpm", "disconnected"));
    // At least a route to each router's loopback and each leaf's.
    assert!(swept() >= swept_before + 9, "{}", swept());
    vtepd.wait_for_log("zebra has not come back");
    vtepd.wait_for_log("longer than what it said is kept");
    assert_eq!(own(&vtepd), before, "the kernel has it all");
    let (happened, _) = events(&vtepd, last);
    assert!(happened.iter().any(|(kind, _)| kind == "swept"), "{happened:#?}");
    assert_eq!(losses(&happened), [""; 0]);
    stream.goes_on(500);
    stream.finish_whole("g6, FRR dies and is away for long");

    // Without graceful restart, zebra purges routes that it had installed before. zebra 8.4.4
    // purges the route to leaf6 or one of its next hops, 10.3 nothing for minutes. Neither purges
    // the FDB. vtepd follows the kernel, and all other entries stay.
    options.graceful(false);
    start_frr(&fabric);
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    let rest: Lines = before.iter().filter(|line| !line.contains("10.0.0.16")).cloned().collect();
    assert!(wait_until(CONVERGENCE, || rest.is_subset(&own(&vtepd))), "{:#?}", own(&vtepd));
    let left = agree(&fabric, LEAF, &vtepd);
    println!("g6: zebra has purged {:#?}", before.difference(&left).collect::<Vec<_>>());
    for uplink in ["up1", "up2"] {
        fabric.run("leaf6", &format!("ip link set {uplink} up"));
    }
    fabric.converge();
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    // bgpd tells of the hosts' addresses last.
    wait_until(CONVERGENCE, || own(&vtepd) == before);
    assert_eq!(agree(&fabric, LEAF, &vtepd), before, "all is back");
}
