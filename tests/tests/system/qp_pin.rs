//! The policy `qp-pin`: queue pairs on known paths, and away from a path that dies silently.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::both_directions::Routed;
use crate::offload::steered;
use crate::qp_pin_shown::explained;
use fabric::Namespace;
use root_test::root_test;
use test_frames::{ROCE, UDP, bth, udp};
use traffic::roce::Report;
use vtepd_tests::frames::{Ipv4, Pair, inject, ipv4};
use vtepd_tests::lab::{ETH, Host, VNI, ip, run, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd, wait_for};

/// A leaf that places queue pairs on paths it has probed. After a stall the kernel would forward,
/// and would send all queue pairs on one path: a busy machine causes stalls of 200 ms.
pub(crate) const CONFIGURATION: &str = "\
[takeover]
stall-limit-ms = 5000

[entropy]
policy = \"qp-pin\"

[probing]
key = \"key-of-this-story\"
interval-ms = 10
";

/// The VTEP of the far leaf, and the address by which the first router reaches it.
const FAR: (&str, &str) = ("10.0.0.2", "10.2.1.1");

/// Counts frames whose queue pair was not placed at once, because the placement was in use.
const BUSY: &str = "vtepd_queue_pairs_beyond_total{limit=\"busy\"}";

pub(crate) const QUEUE_PAIRS: usize = 32;
/// Frames per second, dealt to the queue pairs in turn.
pub(crate) const RATE: u32 = 8000;

pub(crate) fn start(namespace: &Namespace) -> Vtepd {
    Vtepd::start_configured(namespace, CONFIGURATION, &[])
}

/// Packets that the far leaf has received from each router. One dump has both counters: between two
/// processes that read one each, a busy machine forwards hundreds of frames.
fn arrived(lab: &Lab) -> [u64; 2] {
    let shown: serde_json::Value =
        serde_json::from_str(&run(&lab.peer, "ip -s -j link show type veth")).unwrap();
    let links = shown.as_array().unwrap();
    ["up1", "up2"].map(|name| {
        let link = links.iter().find(|link| link["ifname"] == name).unwrap();
        link["stats64"]["rx"]["packets"].as_u64().unwrap()
    })
}

/// The uplink of each queue pair, and how often it moved.
pub(crate) fn placed(vtepd: &Vtepd) -> BTreeMap<u64, (String, u64)> {
    let answer = vtepd.ask(&["qp"]);
    let number = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
    let rows = answer.as_array().unwrap().iter();
    rows.filter(|row| row["state"] == "pinned")
        .map(|row| {
            let uplink = row["uplink"].as_str().unwrap().to_owned();
            let place = (uplink, number(row, "moves"));
            (number(row, "queue_pair"), place)
        })
        .collect()
}

/// Number of queue pairs on each of the two uplinks.
fn on_uplinks(vtepd: &Vtepd) -> BTreeMap<String, usize> {
    let answer = vtepd.ask(&["qp"]);
    by_uplink(answer.as_array().unwrap().iter().map(|row| row["uplink"].as_str().unwrap().into()))
}

fn by_uplink(uplinks: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut on = BTreeMap::new();
    uplinks.for_each(|uplink| *on.entry(uplink).or_default() += 1);
    on
}

/// Waits until each queue pair is on a known path, and returns these as [`placed`] does. If a worker
/// cannot have the placement at once, a queue pair begins on the path of qp-hash, until a pause.
pub(crate) fn all_placed(vtepd: &Vtepd) -> BTreeMap<u64, (String, u64)> {
    let mut all = BTreeMap::new();
    wait_for("all queue pairs to be placed", || {
        all = placed(vtepd);
        all.len() == QUEUE_PAIRS
    });
    all
}

fn even() -> BTreeMap<String, usize> {
    BTreeMap::from([("up1".to_owned(), QUEUE_PAIRS / 2), ("up2".to_owned(), QUEUE_PAIRS / 2)])
}

fn lost_by_queue_pair(report: &Report) -> BTreeMap<u64, u64> {
    report.queue_pairs.iter().map(|of| (u64::from(of.queue_pair), of.lost)).collect()
}

#[root_test]
fn p1_queue_pairs_are_even_and_leave_a_path_that_dies_silently() {
    let lab = Lab::new("qppin");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let paths = two_paths(&leaf, FAR.0);
    assert_eq!(paths["complete"], true, "{paths}");
    even_and_back(&lab, &leaf, FAR, "p1");
}

/// Waits until both paths to a VTEP behind one router are known, and returns what is known.
pub(crate) fn two_paths(leaf: &Vtepd, vtep: &str) -> serde_json::Value {
    leaf.wait_for("the paths to be known", |metrics| {
        let known = format!("vtepd_probed_path_ids{{vtep=\"{vtep}\",state=\"known\"}}");
        metrics.find(&format!("vtepd_probing_ready{{vtep=\"{vtep}\"}}")) == Some(1)
            && metrics.find(&known) == Some(128)
    });
    // A VTEP that starts later than this leaf is traced until it answers.
    let path = || leaf.ask(&["path", "--vtep", vtep])[0].clone();
    wait_for("the paths to be probed", || path()["traced"] == false);
    let known = path();
    assert_eq!(known["paths"].as_array().unwrap().len(), 2, "{known}");
    assert_eq!(known["routers_max"], 1, "{known}");
    known
}

/// Half of the queue pairs are on each path, leave one that dies, and return.
pub(crate) fn even_and_back(lab: &Lab, leaf: &Vtepd, far: (&str, &str), story: &str) {
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7101);
    // Each is placed evenly at its first frame. Where that could not have the placement at once, which
    // is counted, the queue pair has left the path of qp-hash.
    let first = all_placed(leaf);
    let left = first.values().map(|(_, moves)| moves).sum::<u64>();
    assert!(left <= leaf.metrics().get(BUSY), "{first:?}");
    assert_eq!(by_uplink(first.values().map(|(uplink, _)| uplink.clone())), even());
    // On a busy machine, the rates of queue pairs seem to differ at times, and some move.
    assert!((0..5).any(|_| stays_even(lab, leaf, &stream, story)), "not even in five attempts");
    // The worker gets the first frames of each queue pair, and programs forward the others.
    let offloaded = steered(&leaf.metrics(), "offload_encapsulated");
    let is_userspace =
        std::env::var("VTEPD_DATAPATH").is_ok_and(|datapath| datapath == "userspace");
    assert_eq!(offloaded > 7000, !is_userspace, "{offloaded} of 8000 frames");

    leave_and_return(lab, leaf, stream, far, story);
}

/// Whether half of 8000 frames take each path, by the far leaf's counters, and no queue pair moves
/// meanwhile. Probes count too.
fn stays_even(lab: &Lab, leaf: &Vtepd, stream: &Stream, story: &str) -> bool {
    let (placed_before, before) = (all_placed(leaf), arrived(lab));
    stream.pass(8000);
    let sent: Vec<u64> =
        arrived(lab).iter().zip(before).map(|(now, before)| now - before).collect();
    let mmr = sent[0].max(sent[1]) as f64 * 2.0 / (sent[0] + sent[1]) as f64;
    let on = on_uplinks(leaf);
    println!("{story}: MMR {mmr:.3}, {sent:?}; {on:?}");
    mmr < 1.02 && on == even() && placed(leaf) == placed_before
}

/// The far vtepd is killed, and kernel VXLAN goes on receiving: no path is called dead then.
#[root_test]
fn p4_a_vtep_that_falls_silent_says_nothing_about_paths() {
    let lab = Lab::new("qpsilent");
    let (leaf, peer) = (start(&lab.leaf), start(&lab.peer));
    two_paths(&leaf, FAR.0);
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7104);
    stream.pass(4000);
    let before = all_placed(&leaf);
    peer.kill();
    // Three probes without an answer, of which one is sent every 10 ms, make a path dead.
    wait_for("the VTEP to be silent", || {
        leaf.ask(&["path", "--vtep", FAR.0])[0]["age_ms"].as_u64().is_some_and(|age| age > 2000)
    });
    stream.pass(RATE.into());
    assert_eq!(placed(&leaf), before);
    let dead = leaf.ask(&["path", "--vtep", FAR.0])[0]["dead"].clone();
    assert_eq!(dead, 0, "pairs that are called dead");
}

/// A router drops packets for a time. Only the queue pairs on this path leave it, and return.
fn leave_and_return(
    lab: &Lab,
    leaf: &Vtepd,
    stream: Stream,
    (vtep, via): (&str, &str),
    story: &str,
) {
    let placed_before = placed(leaf);
    let dead = || leaf.metrics().find("vtepd_queue_pair_moves_total{reason=\"dead\"}");
    let dead_before = dead().unwrap_or(0);
    // A router drops what is for the far leaf. Its links stay up.
    ip(&lab.routers[0], &format!("route replace blackhole {vtep}"));
    wait_for("all queue pairs on the living path", || on_uplinks(leaf).len() == 1);
    stream.pass(4000);
    let report = stream.report();
    let placed_after = placed(leaf);
    let moved = |number: &u64| placed_before[number].0 != placed_after[number].0;
    let lost = lost_by_queue_pair(&report);
    let lost_of_moved: u64 = lost.iter().filter(|(n, _)| moved(n)).map(|(_, lost)| lost).sum();
    let milliseconds = lost_of_moved as f64 * 1000.0 / f64::from(RATE / 2);
    println!("{story}: {lost_of_moved} frames lost on the dead path: {milliseconds:.1} ms");
    assert_eq!(placed_before.keys().filter(|number| moved(number)).count(), QUEUE_PAIRS / 2);
    assert!(lost.iter().all(|(number, lost)| moved(number) || *lost == 0), "{lost:?}");
    for of in report.queue_pairs.iter().filter(|of| !moved(&u64::from(of.queue_pair))) {
        assert_eq!(of.reordered, 0);
    }
    assert!(lost_of_moved > 0);
    // Each has moved once, because its path was found dead, and not later for balance. How long that
    // takes is measured in `lab verify` and checked without a clock in `crates/pathmap/tests`.
    assert_eq!(dead().map(|now| now - dead_before), Some(QUEUE_PAIRS as u64 / 2));

    // It returns.
    let returned = Instant::now();
    ip(&lab.routers[0], &format!("route replace {vtep} via {via}"));
    wait_for("the queue pairs to be even again", || on_uplinks(leaf) == even());
    println!("{story}: even again after {} ms", returned.elapsed().as_millis());
    let again = placed(leaf);
    assert!(
        again.iter().all(|(number, (_, moves))| moves - placed_after[number].1 <= 1),
        "{again:?}; moves from dead paths {dead_before}, then {:?}",
        dead()
    );
    let (_, report) = stream.finish();
    assert_eq!((report.duplicated(), report.corrupted()), (0, 0));
    assert_eq!(report.reordered(), 0, "moves wait for a pause");
}

/// The far end is kernel VXLAN, behind two tiers of routers.
#[root_test]
fn p5_paths_to_kernel_vxlan_are_known_by_icmp_errors() {
    let fabric = Routed::new("qpicmp");
    let lab = &fabric.lab;
    for router in lab.routers.iter().chain(&fabric.spines) {
        // As many errors as packets.
        sysctl(router, "ipv4/icmp_ratelimit", "0");
    }
    traced(&fabric, FAR.0, "p5");
}

/// The four paths to a VTEP without vtepd are known, and queue pairs are even on them.
pub(crate) fn traced(fabric: &Routed, vtep: &str, story: &str) {
    let leaf = start(&fabric.lab.leaf);
    let began = Instant::now();
    let paths = || leaf.ask(&["path", "--vtep", vtep])[0].clone();
    wait_for("the paths to be traced", || paths()["ready"] == true && paths()["known"] == 128);
    let known = paths();
    println!("{story}: traced after {} ms", began.elapsed().as_millis());
    assert_eq!((&known["traced"], &known["complete"]), (&true.into(), &true.into()), "{known}");
    assert_eq!(known["paths"].as_array().unwrap().len(), 4, "{known}");
    even_on_four_links(fabric, &leaf, story);
}

/// With policy 1, routers on one machine use the hash that a packet carries.
#[root_test]
fn p10_queue_pairs_are_even_over_routers_with_policy_1() {
    let fabric = Routed::new("qpone");
    let lab = &fabric.lab;
    for router in lab.routers.iter().chain(&fabric.spines) {
        sysctl(router, "ipv4/fib_multipath_hash_policy", "1");
    }
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let paths = || leaf.ask(&["path", "--vtep", "10.0.0.2"])[0].clone();
    wait_for("the paths to be known", || paths()["ready"] == true && paths()["complete"] == true);
    let known = paths();
    assert_eq!(known["paths"].as_array().unwrap().len(), 4, "{known}");
    even_on_four_links(&fabric, &leaf, "p10");
}

/// Another policy ends the probing of a VTEP, as does zebra that withdraws it. The far leaf knows
/// the ids of the probes before.
#[root_test]
fn p9_a_vtep_that_returns_is_probed_again() {
    let lab = Lab::new("qpback");
    let (leaf, peer) = (start(&lab.leaf), start(&lab.peer));
    let set =
        |policy| assert!(leaf.ctl(&["policy", "set", &VNI.to_string(), policy]).status.success());
    two_paths(&leaf, FAR.0);
    set("qp-hash");
    wait_for("no VTEP to be probed", || leaf.ask(&["path"]) == serde_json::json!([]));
    set("qp-pin");
    let returned = Instant::now();
    two_paths(&leaf, FAR.0);
    println!("p9: both paths are known again after {} ms", returned.elapsed().as_millis());
    let replayed = peer.metrics().find("vtepd_probe_messages_total{what=\"replayed\"}");
    assert_eq!(replayed, Some(0), "probes that the far leaf took for old ones");
}

/// Every queue pair is on one link between routers, and each link has as many.
pub(crate) fn even_on_four_links(fabric: &Routed, leaf: &Vtepd, story: &str) {
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&fabric.lab.host, &fabric.lab.far, rate, 0x7106);
    stream.pass(4000);
    all_placed(leaf);
    assert_eq!(on_uplinks(leaf), even());
    let measure = |_| {
        let [there, _] = fabric.passed(|| stream.pass(RATE.into()));
        let mut on = BTreeMap::<_, usize>::new();
        there.into_values().for_each(|links| *on.entry(links).or_default() += 1);
        println!("{story}: queue pairs by the links between routers: {on:?}");
        on
    };
    // Some queue pairs move until all is even.
    let is_even = |on: &BTreeMap<_, usize>| {
        on.len() == 4 && on.values().all(|number| *number == QUEUE_PAIRS / 4)
    };
    assert!((0..5).map(measure).any(|on| is_even(&on)), "not even after five attempts");
    stream.finish_whole();
}

/// A leaf whose far end has another key knows no path, and forwards like `qp-hash`.
#[root_test]
fn p2_without_answers_queue_pairs_are_hashed() {
    let lab = Lab::new("qphash");
    let leaf = Vtepd::start_configured(&lab.leaf, &format!("{CONFIGURATION}trace = false\n"), &[]);
    let other = CONFIGURATION.replace("key-of-this-story", "another-key-of-16");
    let _peer = Vtepd::start_configured(&lab.peer, &other, &[]);
    leaf.wait_for("the probes to be given up", |metrics| {
        metrics.find("vtepd_probing_ready{vtep=\"10.0.0.2\"}") == Some(1)
    });
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7102);
    stream.pass(2000);
    let rows = leaf.ask(&["qp"]);
    let rows = rows.as_array().unwrap();
    assert!(
        rows.len() == QUEUE_PAIRS && rows.iter().all(|row| row["state"] == "hashed"),
        "{rows:?}"
    );
    // The reason is told, for a queue pair that is placed and for one that is not.
    let number = rows[0]["queue_pair"].as_u64().unwrap() as u32;
    for (queue_pair, reason) in [
        (number, "no path was known when it was placed"),
        (0x99, "no path to the VTEP is known: it answers no probes, or all paths are dead"),
    ] {
        let (copy, text) = explained(&leaf, &lab, queue_pair);
        assert_eq!(copy["placement"]["state"], "hashed", "{copy}");
        assert!(text.contains(&format!("by qp-hash: {reason}\n  hash ")), "{text}");
    }
    stream.finish_whole();
}

/// Opcode, PSN, syndrome and type of service.
pub(crate) type Packet = (u8, u32, u8, u8);

const SEND: u8 = 0x04;
const READ: u8 = 0x0c;
const ACKNOWLEDGE: u8 = 0x11;
const NOTIFICATION: u8 = 0x81;

/// What a queue pair sends at first, by the worker: one gap of 2 PSNs.
const BEFORE: [Packet; 3] = [(SEND, 0xff_fffd, 0, 2), (SEND, 0xff_fffe, 0, 2), (SEND, 1, 0, 2)];

/// What it sends then: gaps of 1 and 4, three repeated PSNs, two NAKs, a CNP and four marks.
const AFTER: [Packet; 17] = [
    (SEND, 2, 0, 2),
    (SEND, 4, 0, 3),
    (SEND, 3, 0, 2),
    (SEND, 5, 0, 2),
    (SEND, 10, 0, 3),
    (SEND, 10, 0, 3),
    (SEND, 9, 0, 2),
    (ACKNOWLEDGE, 70, 0x1f, 2),
    (ACKNOWLEDGE, 71, 0x60, 2),
    (ACKNOWLEDGE, 71, 0x20, 2),
    (ACKNOWLEDGE, 72, 0x61, 3),
    (NOTIFICATION, 0, 0, 2),
    (READ, 11, 0, 2),
    (SEND, 30, 0, 2),
    (SEND, 31, 0, 2),
    (SEND, 32, 0, 2),
    (SEND, 33, 0, 2),
];

/// Sends packets to a queue pair.
pub(crate) fn send(from: &Host, to: &Host, queue_pair: u32, packets: &[Packet]) {
    let pair = Pair::of(from, to);
    let frame = |&(opcode, sequence, syndrome, tos): &Packet| {
        let transport = bth(opcode, queue_pair, sequence, &[syndrome, 0, 0, 0]);
        ipv4(pair, UDP, &udp((0xc000, ROCE), &transport), Ipv4 { tos, ..Ipv4::default() })
    };
    inject(&from.ns, ETH, &packets.iter().map(frame).collect::<Vec<_>>());
}

/// The figures of a queue pair.
fn figures(vtepd: &Vtepd, queue_pair: u32) -> serde_json::Value {
    let rows = vtepd.ask(&["qp"]);
    let row = rows.as_array().unwrap().iter().find(|row| row["queue_pair"] == queue_pair);
    let names = ["frames", "psn_gaps", "psn_repeats", "naks", "cnps", "ecn_marks", "exact"];
    names.iter().map(|name| row.map(|row| row[*name].clone()).unwrap_or_default()).collect()
}

/// What headers tell is counted exactly, also while a queue pair goes from the worker to the programs.
#[root_test]
fn p3_gaps_repeats_naks_and_congestion_are_counted() {
    let lab = Lab::new("qprecord");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    leaf.wait_for("the paths to be known", |metrics| {
        metrics.find("vtepd_probing_ready{vtep=\"10.0.0.2\"}") == Some(1)
    });
    send(&lab.host, &lab.far, 0x51, &BEFORE);
    wait_for("the first figures", || {
        figures(&leaf, 0x51) == serde_json::json!([3, 2, 0, 0, 0, 0, true])
    });
    let is_userspace =
        std::env::var("VTEPD_DATAPATH").is_ok_and(|datapath| datapath == "userspace");
    let before = steered(&leaf.metrics(), "offload_encapsulated");
    send(&lab.host, &lab.far, 0x51, &AFTER);
    wait_for("the other figures", || {
        figures(&leaf, 0x51)[0].as_u64() == Some((BEFORE.len() + AFTER.len()) as u64)
    });
    assert_eq!(figures(&leaf, 0x51), serde_json::json!([20, 7, 3, 2, 1, 4, true]));
    let offloaded = steered(&leaf.metrics(), "offload_encapsulated") - before;
    assert_eq!(offloaded >= AFTER.len() as u64, !is_userspace, "{offloaded} frames");
}
