//! A fabric that `lab new` has written: `lab up` starts it with vtepd beside each leaf, and traffic
//! spreads over its paths.

use std::collections::BTreeSet;

use lab::process::wait_until;
use root_test::root_test;
use serde_json::Value;

use super::fixture::{TIMEOUT, frr, turn};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-new";

#[root_test(needs = frr)]
fn a_new_fabric_forwards_with_vtepd_and_is_not_overwritten() {
    let _turn = turn();
    let files = NewFabric::new(FABRIC, &["--leaves", "2", "--spines", "3", "--bfd", "500ms"]);
    let topology = files.topology();
    ask(&["up", &topology]);
    for row in ask(&["status", "--name", FABRIC]).as_array().unwrap() {
        assert_ne!((row["datapath"].as_str(), row["policy"].as_str()), (Some("none"), None));
        assert_eq!(row["policy"], "qp-hash", "{row}");
    }
    let verified = ask(&["verify", &topology, "--no-failover"]);
    assert_eq!(verified["faults"], serde_json::json!([]), "{verified}");

    // A fabric that runs is not overwritten, and says what to do.
    let again = lab(&["up", &topology]);
    let text = said(&again);
    assert!(!again.status.success() && text.contains(&format!("'lab down {FABRIC}'")), "{text}");
    assert_eq!(ask(&["status", "--name", FABRIC]).as_array().unwrap().len(), 2);

    paths_are_those_of_the_frames();

    // vtepd of the file's nodes changes its policy as any other.
    let rows = ask(&["policy", "qp-bins", "--name", FABRIC]);
    assert!(rows.as_array().unwrap().iter().all(|row| row["policy"] == "qp-bins"), "{rows}");
    // With qp-pin, the verification waits for the paths, and expects the floor.
    ask(&["policy", "qp-pin", "--name", FABRIC]);
    let verified = ask(&["verify", &topology, "--no-failover"]);
    let balance = &verified["balance"];
    assert_eq!(
        (&verified["faults"], &balance["policy"]),
        (&serde_json::json!([]), &"qp-pin".into())
    );
    let figure = |name: &str| balance[name].as_f64().unwrap();
    assert!(figure("mmr") < figure("floor_mmr") + 0.05, "{balance}");
    let down = lab(&["down", FABRIC]);
    assert!(down.status.success(), "{}", said(&down));
    assert_eq!(lab::netns::list(&format!("lab-{FABRIC}-")), Vec::<String>::new());
}

/// Frames of a queue pair take the links that `lab path` names, and no others of their tier.
fn paths_are_those_of_the_frames() {
    const FRAMES: u64 = 300;
    let mut spines = BTreeSet::new();
    for seed in 1..=6_u64 {
        let queue_pair = lab::roce::connections(seed, 1)[0].remote.get().to_string();
        let flow = ["path", "--name", FABRIC, "--from", "host1", "--to", "host2"];
        let path = ask(&[&flow[..], &["--qp", &queue_pair]].concat());
        let hops = path["hops"].as_array().unwrap();
        let text = |hop: usize, field: &str| hops[hop][field].as_str().unwrap().to_owned();
        assert_eq!(
            (hops.len(), text(0, "node"), text(2, "node")),
            (3, "leaf1".into(), "leaf2".into())
        );
        assert_eq!((text(0, "arrives"), text(2, "leaves")), ("hp1".into(), "hp1".into()));
        spines.insert(text(1, "node"));

        let before = ask(&["counters", "--name", FABRIC]);
        let send = ["roce", "send", "--name", FABRIC, "--node", "host1", "--to", "192.168.10.2"];
        let count = FRAMES.to_string();
        let seed = seed.to_string();
        let options = ["--queue-pairs", "1", "--seed", &seed, "--inner-port", "49152"];
        ask(&[&send[..], &options, &["--frames", &count, "--rate", "3000"]].concat());
        let carried = |after: &Value, node: &str, interface: &str, field: &str| {
            let read = |all: &Value| all[node][interface][field].as_u64().unwrap();
            read(after) - read(&before)
        };
        // vtepd sends at once what it has received.
        let bytes = FRAMES * 1024;
        let mut after = Value::Null;
        wait_until(TIMEOUT, || {
            after = ask(&["counters", "--name", FABRIC]);
            carried(&after, "leaf2", "hp1", "tx_bytes") >= bytes
        });
        for hop in 0..2 {
            let (node, leaves) = (text(hop, "node"), text(hop, "leaves"));
            assert!(carried(&after, &node, &leaves, "tx_bytes") >= bytes, "{path}: {node}");
        }
        for uplink in ["up1", "up2", "up3"].iter().filter(|uplink| **uplink != text(0, "leaves")) {
            let other = carried(&after, "leaf1", uplink, "tx_bytes");
            assert!(other < bytes / 10, "{path}: {other} bytes by {uplink}");
        }
    }
    assert!(spines.len() > 1, "six queue pairs have taken one path: {spines:?}");
}
