//! The policy `qp-pin` in the `kernel` datapath: kernel VXLAN encapsulates, and queue pairs get the
//! source ports of known paths.

use std::collections::{BTreeMap, BTreeSet};

use fabric::Namespace;
use root_test::root_test;
use serde_json::Value;
use traffic::roce::Report;
use vtepd_tests::lab::{run, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Vtepd, wait_for};

use crate::both_directions::Routed;
use crate::offload::steered;
use crate::qp_pin::CONFIGURATION;
use crate::qp_pin_shown::explained;

const QUEUE_PAIRS: usize = 32;
/// Frames per second, dealt to the queue pairs in turn.
const RATE: u32 = 8000;
/// The links between routers: numbers of both.
const LINKS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

fn start(namespace: &Namespace) -> Vtepd {
    let configuration = format!("{CONFIGURATION}\n[vni.10]\ndatapath = \"kernel\"\n");
    Vtepd::start_configured(namespace, &configuration, &[])
}

/// The rows of `vtepctl qp`, by the number of the queue pair.
fn queue_pairs(vtepd: &Vtepd) -> BTreeMap<u64, Value> {
    let rows = vtepd.ask(&["qp"]);
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (row["queue_pair"].as_u64().unwrap(), row.clone())).collect()
}

fn are_pinned(rows: &BTreeMap<u64, Value>) -> bool {
    rows.len() == QUEUE_PAIRS && rows.values().all(|row| row["state"] == "pinned")
}

/// Frames that each link between routers has carried from the leaf, by its counter.
fn carried(fabric: &Routed) -> [u64; 4] {
    LINKS.map(|(router, spine)| {
        let shown = run(&fabric.lab.routers[router], &format!("ip -s -j link show dev s{spine}"));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
    })
}

/// Maximum over mean of the frames that the links carry meanwhile. Probes count too.
fn mmr(fabric: &Routed, stream: &Stream) -> f64 {
    let before = carried(fabric);
    stream.pass(RATE.into());
    let sent: Vec<u64> =
        carried(fabric).iter().zip(before).map(|(now, before)| now - before).collect();
    println!("p11: frames by link: {sent:?}");
    *sent.iter().max().unwrap() as f64 * 4.0 / sent.iter().sum::<u64>() as f64
}

/// The queue pairs on each link between routers, by what passes it.
fn on_links(fabric: &Routed, stream: &Stream) -> BTreeMap<(usize, usize), BTreeSet<u64>> {
    let [there, _] = fabric.passed(|| stream.pass(RATE.into()));
    let mut on = BTreeMap::<_, BTreeSet<u64>>::new();
    for (number, links) in there {
        links.into_iter().for_each(|link| _ = on.entry(link).or_default().insert(number.into()));
    }
    let numbers: BTreeMap<_, usize> = on.iter().map(|(link, on)| (link, on.len())).collect();
    println!("p11: queue pairs by link: {numbers:?}");
    on
}

/// Each link has as many queue pairs, and each of these has one path.
fn is_even(on: &BTreeMap<(usize, usize), BTreeSet<u64>>) -> bool {
    on.len() == LINKS.len() && on.values().all(|on| on.len() == QUEUE_PAIRS / LINKS.len())
}

fn lost(report: &Report) -> BTreeSet<u64> {
    let lost = report.queue_pairs.iter().filter(|of| of.lost > 0);
    lost.map(|of| u64::from(of.queue_pair)).collect()
}

/// A fabric whose leaves leave all frames to kernel VXLAN, with these settings, and know all paths.
fn fabric(case: &str, settings: [(&str, &str); 2]) -> (Routed, [Vtepd; 2]) {
    let fabric = Routed::new(case);
    let lab = &fabric.lab;
    let [leaf, peer] = [&lab.leaf, &lab.peer].map(|leaf| {
        settings.into_iter().for_each(|(name, value)| sysctl(leaf, name, value));
        start(leaf)
    });
    for (leaf, vtep) in [(&leaf, "10.0.0.2"), (&peer, "10.0.0.1")] {
        wait_for("the VNI", || leaf.ask(&["vni"])[0]["reason_slug"] == "kernel-datapath");
        wait_for("all four paths", || {
            let known = leaf.ask(&["path", "--vtep", vtep])[0].clone();
            known["complete"] == true
                && known["paths"].as_array().is_some_and(|paths| paths.len() == 4)
        });
    }
    (fabric, [leaf, peer])
}

/// Starts queue pairs, which are even on all links soon. Returns those on each link, too.
fn even_stream(fabric: &Routed, leaf: &Vtepd) -> (Stream, BTreeMap<(usize, usize), BTreeSet<u64>>) {
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&fabric.lab.host, &fabric.lab.far, rate, 0x7108);
    wait_for("all queue pairs on known paths", || are_pinned(&queue_pairs(leaf)));
    stream.pass(u64::from(RATE) / 4);
    wait_for("as many frames on each link", || mmr(fabric, &stream) < 1.03);
    let on = on_links(fabric, &stream);
    assert!(is_even(&on), "{on:?}");
    (stream, on)
}

/// With policy 1, a leaf that does not forward can ask for the next hop of a port.
#[root_test]
fn p12_queue_pairs_in_kernel_vxlan_are_even_with_policy_1() {
    let settings = [("ipv4/fib_multipath_hash_policy", "1"), ("ipv4/ip_forward", "0")];
    let (fabric, [leaf, _peer]) = fabric("qpkone", settings);
    let (stream, _) = even_stream(&fabric, &leaf);
    stream.finish_whole();
}

/// A link between routers dies silently and returns.
#[root_test]
fn p11_queue_pairs_in_kernel_vxlan_are_even_and_leave_a_path_that_dies_silently() {
    let settings = [("ipv4/fib_multipath_hash_policy", "3"), ("ipv4/ip_forward", "1")];
    let (fabric, [leaf, _peer]) = fabric("qpkern", settings);
    let lab = &fabric.lab;
    let (stream, on) = even_stream(&fabric, &leaf);
    // Workers and programs of the other datapaths had no part in it.
    let metrics = leaf.metrics();
    assert_eq!(metrics.sum("vtepd_vni_frames_total"), 0);
    assert!(steered(&metrics, "port_chosen") > 2 * u64::from(RATE));
    let before = queue_pairs(&leaf);
    assert!(before.values().all(|row| row["moves"] == 0 && row["frames"].as_u64() > Some(100)));
    assert_eq!(stream.report().reordered(), 0);
    let (number, row) = before.first_key_value().unwrap();
    let (copy, text) = explained(&leaf, lab, *number as u32);
    assert_eq!((&copy["source_port"], &copy["vtep"]), (&row["source_port"], &row["vtep"]));
    let uplink = row["uplink"].as_str().unwrap();
    assert!(
        text.contains("placed by qp-pin on outer source port")
            && text.contains(&format!("tier 1 {uplink}, tier 2 ")),
        "{text}"
    );
    let (_, text) = explained(&leaf, lab, 0x99);
    assert!(text.contains("kernel VXLAN sends its first frame from the port of qp-hash"), "{text}");

    // The link is up, and drops everything.
    let qdisc = |words: &str| {
        let words = format!("tc qdisc {words}");
        lab.routers[0].run(&words.split(' ').collect::<Vec<_>>()).unwrap();
    };
    qdisc("replace dev s1 root tbf rate 1kbit burst 1 limit 1");
    let moved = |rows: &BTreeMap<u64, Value>| -> BTreeSet<u64> {
        let moved = rows.iter().filter(|(number, row)| row["moves"] != before[number]["moves"]);
        moved.map(|(number, _)| *number).collect()
    };
    let dead = on[&(0, 1)].clone();
    wait_for("the queue pairs to leave", || dead.is_subset(&moved(&queue_pairs(&leaf))));
    stream.pass(u64::from(RATE) / 2);
    let report = stream.report();
    assert_eq!(lost(&report), dead, "only queue pairs of the dead path");
    // Others may have moved after a pause, for balance.
    let left = leaf.metrics().find("vtepd_queue_pair_moves_total{reason=\"dead\"}");
    assert_eq!(left, Some(dead.len() as u64));
    let lost: u64 = report.queue_pairs.iter().map(|of| of.lost).sum();
    let milliseconds = lost as f64 * 1000.0 / f64::from(RATE / 4);
    println!("p11: {lost} frames lost on the dead path: {milliseconds:.1} ms");

    qdisc("del dev s1 root");
    wait_for("four paths again", || {
        leaf.ask(&["path", "--vtep", "10.0.0.2"])[0]["paths"].as_array().unwrap().len() == 4
    });
    let found = (0..5).find(|_| is_even(&on_links(&fabric, &stream)));
    assert!(found.is_some(), "not even after five attempts");
    let (_, report) = stream.finish();
    assert_eq!((report.duplicated(), report.corrupted()), (0, 0));
    assert_eq!(report.reordered(), 0, "moves wait for a pause");
}
