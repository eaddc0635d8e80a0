//! The demo's figures, with fewer frames.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use experiment::balance::{RandomPlacement, jain, mmr};
use fabric::Fabric;
use fabric::{Namespace, counters, netns};
use lab::demo;
use root_test::root_test;
use serde_json::Value;
use traffic::stream::CARRIED;
use vtepd_tests::daemon::program;

use super::fixture::{DAEMONS, MANAGEMENT, frr, topology};

const FABRIC: &str = "evpn-demo";
const FRAMES: u64 = 20_000;
const QUEUE_PAIRS: usize = 32;
const POLICIES: [&str; 5] = ["kernel", "five-tuple", "qp-bins", "qp-hash", "qp-pin"];
/// Maximum number of BGP and BFD frames on four links while one policy is measured. Each link
/// carries two BFD sessions with a packet every 300 ms.
const NOISE: u64 = 400;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[root_test(needs = frr)]
fn demo_figures() {
    let settings = demo::Settings {
        fabric: FABRIC.parse().unwrap(),
        topology: topology(),
        vtepd: program(),
        queue_pairs: QUEUE_PAIRS,
        rate: 20_000,
        frames: FRAMES,
    };
    let (fabric, outcome) = demo::run(&settings, &|_| Ok(()), &AtomicBool::new(false))
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{outcome}");

    // The documented fields and no others.
    let json: Value =
        serde_json::from_slice(&serde_json::to_vec_pretty(&outcome).unwrap()).unwrap();
    assert_eq!(keys(&json), BTreeSet::from(["setup", "policies"]));
    let setup = &json["setup"];
    let (texts, numbers): (BTreeSet<&str>, BTreeSet<&str>) =
        keys(setup).iter().partition(|key| setup[**key].is_string());
    assert_eq!(texts, BTreeSet::from(["kernel", "cpu_model", "frr", "vtepd", "topology"]));
    assert_eq!(
        numbers,
        BTreeSet::from(["unix_time", "cpus", "seed", "queue_pairs", "frames", "rate", "payload"])
    );
    assert_eq!((setup["frames"].as_u64(), setup["queue_pairs"].as_u64()), (Some(FRAMES), Some(32)));
    assert!(
        setup["unix_time"].as_u64().unwrap() > 1_700_000_000 && setup["cpus"].as_u64().unwrap() > 0,
        "{setup}"
    );
    for key in ["frr", "vtepd", "kernel"] {
        assert!(
            setup[key].as_str().unwrap().starts_with(|c: char| c.is_ascii_digit()),
            "{key}: {setup}"
        );
    }
    let policies = json["policies"].as_array().unwrap();
    let names: Vec<&str> = policies.iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, POLICIES);
    let between: Vec<String> = (1..=2)
        .flat_map(|spine| (1..=2).map(move |link| format!("spine{spine}:dci{link}")))
        .collect();
    let uplinks =
        [1, 4].into_iter().flat_map(|leaf| (1..=2).map(move |link| format!("leaf{leaf}:up{link}")));
    let links: BTreeSet<String> = between.iter().cloned().chain(uplinks).collect();
    let known = demo::Figures::load(&topology().with_file_name("scaleacross").join("figures.json"))
        .unwrap();

    let mut all: BTreeMap<&String, u64> = BTreeMap::new();
    for (policy, name) in policies.iter().zip(POLICIES) {
        assert_eq!(
            keys(policy),
            BTreeSet::from(["name", "mmr", "jain", "reordered", "lost", "duplicated", "links"])
        );
        assert_eq!(policy["lost"].as_u64(), Some(0), "{name}");
        assert_eq!(policy["reordered"].as_u64(), Some(0), "{name}");
        assert!(
            keys(&policy["links"]).is_superset(&links.iter().map(String::as_str).collect()),
            "{name}"
        );
        if outcome.hash_seeds {
            let spread =
                &outcome.policies.iter().find(|policy| policy.name == name).unwrap().spread;
            assert_eq!(known.differences(name, QUEUE_PAIRS, spread, &between), [""; 0]);
        }

        // Every frame took exactly one link of each group.
        let load = |link: &String| policy["links"][link].as_u64().unwrap();
        for group in [
            &between[..],
            &["leaf1:up1".into(), "leaf1:up2".into()],
            &["leaf4:up1".into(), "leaf4:up2".into()],
        ] {
            let sum: u64 = group.iter().map(load).sum();
            assert!(
                (FRAMES..=FRAMES + NOISE).contains(&sum),
                "{name}: {sum} frames over {group:?}"
            );
        }
        let loads: Vec<u64> = between.iter().map(load).collect();
        assert!((policy["mmr"].as_f64().unwrap() - mmr(&loads)).abs() < 1e-9, "{name}");
        assert!((policy["jain"].as_f64().unwrap() - jain(&loads)).abs() < 1e-9, "{name}");
        for link in &between {
            *all.entry(link).or_default() += load(link);
        }
    }

    // One pair of hosts and one inner source port are one flow and take one path.
    let of =
        |name: &str| outcome.policies.iter().find(|policy| policy.name == name).unwrap().spread.mmr;
    for name in ["kernel", "five-tuple"] {
        assert!((of(name) - 4.0).abs() < 0.05, "{name}: MMR {}", of(name));
    }
    assert!(of("qp-pin") < 1.02, "qp-pin: MMR {}, and the floor is 1", of("qp-pin"));
    if outcome.hash_seeds {
        let chance = RandomPlacement::new(QUEUE_PAIRS, between.len());
        let (low, high) = (chance.quantile_mmr(0.0005) - 0.05, chance.quantile_mmr(0.9995) + 0.05);
        assert!(
            (low..=high).contains(&of("qp-hash")),
            "MMR {} of qp-hash, {low} to {high} expected",
            of("qp-hash")
        );
    }

    // The figures come from the links' counters. The difference is FRR's frames, probes of qp-pin
    // and measurements that were repeated.
    let again: u32 = outcome.policies.iter().map(|policy| policy.attempts - 1).sum();
    let others = 2500 + u64::from(again) * FRAMES;
    for (link, figure) in all {
        let (node, interface) = link.split_once(':').unwrap();
        let counters = counters::read(&fabric.node(node).unwrap().namespace().unwrap()).unwrap();
        let counted = counters[interface].frames_sent(CARRIED);
        assert!(
            counted >= figure,
            "{link}: {figure} frames in the figures, {counted} in the counter"
        );
        assert!(
            counted - figure < others,
            "{link}: {figure} frames in the figures, {counted} in the counter"
        );
    }
    nothing_is_left(fabric);
    if !outcome.hash_seeds {
        root_test::ignore("everything but qp-hash is right: routers without hash seeds polarise");
    }
}

/// The fabric runs only FRR, vtepd and `lab wan`. Once deleted, it leaves no process, no namespace
/// and no state.
fn nothing_is_left(fabric: Fabric) {
    let processes = fabric.processes().unwrap();
    let mut running = BTreeMap::<&str, usize>::new();
    for process in processes.iter().filter(|process| process.name != MANAGEMENT) {
        *running.entry(process.name.as_str()).or_default() += 1;
    }
    let expected = DAEMONS.map(|daemon| (daemon, 10)).into_iter().chain([("vtepd", 6), ("lab", 1)]);
    assert_eq!(running, expected.collect());
    let prefix = format!("lab-{FABRIC}-");
    let inside: Vec<i32> = netns::list(&prefix)
        .iter()
        .flat_map(|name| Namespace::open(name).unwrap().pids().unwrap())
        .collect();
    assert!(processes.iter().all(|process| inside.contains(&process.identity.pid)));
    fabric.down().unwrap();
    assert!(processes.iter().all(|process| !process.identity.alive()));
    assert_eq!(netns::list(&prefix), [""; 0]);
    assert!(!Fabric::list().contains(&FABRIC.parse().unwrap()));
}
