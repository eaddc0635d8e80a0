//! Four pairs of leaves send over the same links between two data centres. `qp-pin` places their queue
//! pairs evenly, although no leaf knows what the others will send.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::Namespace;
use fabric::Topology;
use fabric::process::wait_until;
use fabric::topology::Endpoint;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::{ctl_program, lab_program};

use super::fixture::{CONVERGENCE, frr};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-share";
/// Leaves and spines of each site. Each spine has a link to each spine of the other site.
const LEAVES: usize = 4;
const SPINES: usize = 4;
/// Queue pairs of each pair of leaves: together one for each link between the sites.
const QUEUE_PAIRS: usize = SPINES * SPINES / LEAVES;
/// Frames a second of a queue pair.
const RATE: u64 = 500;
/// How long the queue pairs may take until they are even, and how long they then have to stay so.
const SETTLED: Duration = Duration::from_secs(2);
const STAYS: Duration = Duration::from_secs(4);

fn vtepctl(leaf: usize, arguments: &[&str]) -> Value {
    let node = Namespace::open(format!("lab-{FABRIC}-leaf{leaf}")).unwrap();
    let program = ctl_program().display().to_string();
    let said = node.run(&[&[&program, "-o", "json"], arguments].concat()).unwrap();
    serde_json::from_str(&said).unwrap()
}

/// Whether a leaf knows all paths to its partner, which are those over all spines of both sites.
fn knows_paths(leaf: usize) -> bool {
    vtepctl(leaf, &["path"]).as_array().unwrap().iter().any(|map| {
        map["complete"] == true
            && map["paths"].as_array().is_some_and(|paths| paths.len() == SPINES * SPINES)
    })
}

/// Programs that send. Drop ends them.
struct Senders(Vec<Child>);

impl Drop for Senders {
    fn drop(&mut self) {
        for sender in &mut self.0 {
            let _ = sender.kill();
            let _ = sender.wait();
        }
    }
}

/// Sends from a host to the one behind the partner of its leaf.
fn send(pair: usize) -> Child {
    let to = format!("192.168.10.{}", pair + LEAVES);
    let (queue_pairs, seed) = (QUEUE_PAIRS.to_string(), pair.to_string());
    let rate = (RATE * QUEUE_PAIRS as u64).to_string();
    Command::new(lab_program())
        .args(["roce", "send", "--name", FABRIC, "--node", &format!("host{pair}"), "--to", &to])
        .args(["--queue-pairs", &queue_pairs, "--seed", &seed, "--inner-port", "49152"])
        .args(["--rate", &rate, "--seconds", "60"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Queue pairs of the leaves of the first site, with the number of their moves.
fn moves() -> BTreeMap<(usize, u64), u64> {
    let of_leaf = |leaf: usize| {
        let all = vtepctl(leaf, &["qp"]);
        let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
        let active = |row: &&Value| row["state"] == "pinned" && number(row, "idle_ms") < 1000;
        let rows = all.as_array().unwrap().iter().filter(active);
        rows.map(|row| ((leaf, number(row, "queue_pair")), number(row, "moves")))
            .collect::<Vec<_>>()
    };
    (1..=LEAVES).flat_map(of_leaf).collect()
}

/// Bytes that each link from the first site to the second one has carried.
fn between_sites(topology: &Topology) -> BTreeMap<String, u64> {
    let counters = ask(&["counters", "--name", FABRIC]);
    let mut carried = BTreeMap::new();
    for spine in 1..=SPINES {
        let node = format!("spine{spine}");
        for (interface, counted) in counters[&node].as_object().unwrap() {
            let end = Endpoint { node: node.clone(), interface: interface.clone() };
            if topology.far_end(&end).is_some_and(|far| far.node.starts_with("spine")) {
                carried.insert(end.to_string(), counted["tx_bytes"].as_u64().unwrap());
            }
        }
    }
    assert_eq!(carried.len(), SPINES * SPINES, "{carried:?}");
    carried
}

#[root_test(needs = frr)]
#[ignore = "starts 16 routers, takes a minute: tests/run --all"]
fn four_pairs_of_leaves_share_a_tier_evenly() {
    let (leaves, spines) = (LEAVES.to_string(), SPINES.to_string());
    let sites = ["--sites", "2", "--delay", "0ms", "--jitter", "0ms", "--bfd", "500ms"];
    let size = ["--leaves", &leaves, "--spines", &spines];
    let files = NewFabric::new(FABRIC, &[&sites[..], &size].concat());
    let topology = files.topology();
    ask(&["up", &topology]);
    let topology = Topology::load(topology.as_ref()).unwrap();
    ask(&["policy", "qp-pin", "--name", FABRIC]);
    assert!(wait_until(CONVERGENCE, || (1..=LEAVES).all(knows_paths)), "paths are not known");

    let senders = Senders((1..=LEAVES).map(send).collect());
    let all = LEAVES * QUEUE_PAIRS;
    let placed = wait_until(CONVERGENCE, || moves().len() == all);
    let began = Instant::now();
    assert!(placed, "{:?}", moves());
    std::thread::sleep(SETTLED.saturating_sub(began.elapsed()));
    let (before, settled) = (between_sites(&topology), moves());
    std::thread::sleep(STAYS);
    let (after, stayed) = (between_sites(&topology), moves());
    drop(senders);

    let loads: Vec<u64> = after.iter().map(|(link, bytes)| bytes - before[link]).collect();
    let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
    let mmr = *loads.iter().max().unwrap() as f64 / mean;
    println!("{all} queue pairs on {} links: MMR {mmr:.2}, {loads:?}", loads.len());
    // The floor is 1. Probes and routing packets are a part of the loads.
    assert!(mmr < 1.1, "MMR {mmr:.2}: {loads:?}");
    assert_eq!(settled, stayed, "queue pairs moved after they were even");
    let down = lab(&["down", FABRIC]);
    assert!(down.status.success(), "{}", said(&down));
}
