//! A fabric that `lab new` has written: `lab up` starts it with vtepd beside each leaf, and traffic
//! spreads over its paths.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use fabric::Namespace;
use fabric::Topology;
use fabric::process::wait_until;
use fabric::topology::Endpoint;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::{ctl_program, lab_program};
use vtepd_tests::lab::run;

use super::fixture::{TIMEOUT, frr};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-new";
/// Spines of each of two sites. A leaf has a link to each of its site, and these to each other one.
const SPINES: usize = 3;

#[root_test(needs = frr)]
fn a_new_fabric_forwards_with_vtepd_and_is_not_overwritten() {
    let spines = SPINES.to_string();
    let sites = ["--sites", "2", "--delay", "0ms", "--jitter", "0ms"];
    let size = ["--leaves", "1", "--spines", &spines, "--bfd", "500ms"];
    let files = NewFabric::new(FABRIC, &[&sites[..], &size].concat());
    let topology = files.topology();
    ask(&["up", &topology]);
    for leaf in ask(&["status", "--name", FABRIC]).as_array().unwrap() {
        assert_eq!(leaf["vnis"][0]["policy"], "qp-hash", "{leaf}");
        assert_eq!(leaf["vnis"][0]["datapath"], "offload", "{leaf}");
        assert_eq!(leaf["sources"]["kernel"], "live", "{leaf}");
        let all = serde_json::json!({"established": SPINES, "configured": SPINES});
        assert_eq!(leaf["bgp"], all, "{leaf}");
        assert_eq!(leaf["balance"]["sent"].as_object().unwrap().len(), 3, "{leaf}");
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
    let leaves = ask(&["policy", "qp-bins", "--name", FABRIC]);
    let has_bins = |leaf: &Value| leaf["vnis"][0]["policy"] == "qp-bins";
    assert!(leaves.as_array().unwrap().iter().all(has_bins), "{leaves}");
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
    path_map_is_that_of_the_routers(&topology);
    a_queue_pair_has_a_path_once_it_is_placed();
    a_shell_runs_on_the_node();
    // The others are stopped all the same.
    let down = lab(&["down", "evpn-not-there", FABRIC]);
    assert!(said(&down).contains("'evpn-not-there' is not running"), "{}", said(&down));
    assert_eq!(fabric::netns::list(&format!("lab-{FABRIC}-")), Vec::<String>::new());
}

/// Pairs of uplink and source port lead where the path map of vtepd says, by the routers' own
/// answers.
fn path_map_is_that_of_the_routers(topology: &str) {
    /// Ports of each path.
    const SAMPLE: usize = 3;
    let topology = Topology::load(topology.as_ref()).unwrap();
    let vtepctl = ctl_program().display().to_string();
    let said = node("leaf1").run(&[vtepctl.as_str(), "-o", "json", "path"]).unwrap();
    let map = serde_json::from_str::<Value>(&said).unwrap()[0].take();
    let ends = ["local", "vtep"].map(|end| map[end].as_str().unwrap());
    let paths = map["paths"].as_array().unwrap();
    assert_eq!((&map["complete"], paths.len()), (&true.into(), SPINES * SPINES), "{map}");
    for path in paths {
        let ports = path["source_ports"].as_array().unwrap();
        assert!(ports.len() >= SAMPLE, "{path}");
        for port in ports.iter().take(SAMPLE) {
            let uplink = path["uplink"].as_str().unwrap();
            let routers = routers_of(&topology, uplink, ends, port.as_u64().unwrap());
            assert_eq!(path["routers"], serde_json::json!(routers), "port {port} by {uplink}");
        }
    }
}

fn node(name: &str) -> Namespace {
    Namespace::open(format!("lab-{FABRIC}-{name}")).unwrap()
}

/// The address of the interface by which each router sends on what leaf1 sends by this uplink from
/// this port.
fn routers_of(
    topology: &Topology,
    uplink: &str,
    [local, vtep]: [&str; 2],
    port: u64,
) -> Vec<String> {
    let far = |node: &str, interface: &str| {
        let end = Endpoint { node: node.to_owned(), interface: interface.to_owned() };
        topology.far_end(&end).unwrap()
    };
    let ask = |node: &Namespace, command: &str| {
        let mut said: Value = serde_json::from_str(&run(node, command)).unwrap();
        said[0].take()
    };
    let mut routers = Vec::new();
    let mut at = far("leaf1", uplink);
    loop {
        let (router, arrives) = (node(&at.node), &at.interface);
        let route = ask(
            &router,
            &format!(
                "ip -j route get {vtep} from {local} iif {arrives} ipproto udp sport {port} dport 4789"
            ),
        );
        if route["type"] == "local" {
            return routers;
        }
        let leaves = route["dev"].as_str().unwrap();
        let shown = ask(&router, &format!("ip -j -4 addr show dev {leaves}"));
        routers.push(shown["addr_info"][0]["local"].as_str().unwrap().to_owned());
        at = far(&at.node, leaves);
    }
}

/// With `qp-pin`, a queue pair that has sent nothing has only paths that it can get. It gets one of
/// them.
fn a_queue_pair_has_a_path_once_it_is_placed() {
    let seed = 101_u64;
    let queue_pair = traffic::roce::connections(seed, 1)[0].remote.get().to_string();
    let flow = ["path", "--name", FABRIC, "--from", "host1", "--to", "host2", "--qp", &queue_pair];
    let routers = |hops: &Value| {
        let hop = |hop: &Value| format!("{}:{}", hop["node"], hop["leaves"]);
        hops.as_array().unwrap().iter().map(hop).collect::<Vec<_>>()
    };
    let before = ask(&flow);
    assert_eq!((&before["placed"], &before["outer_port"]), (&false.into(), &Value::Null));
    assert_eq!(before["hops"], serde_json::json!([]), "{before}");
    let paths = before["paths"].as_array().unwrap();
    let paths: BTreeSet<_> = paths.iter().map(|path| routers(&path["hops"])).collect();
    assert_eq!(paths.len(), SPINES * SPINES, "{before}");
    let text = lab(&flow);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("not placed yet: one of 9 paths, qp-pin by queue pair"), "{text}");

    let send = ["roce", "send", "--name", FABRIC, "--node", "host1", "--to", "192.168.10.2"];
    let options = ["--queue-pairs", "1", "--seed", "101", "--frames", "300", "--rate", "3000"];
    ask(&[&send[..], &options].concat());
    let after = ask(&flow);
    assert_eq!(after["placed"], true, "{after}");
    assert!(paths.contains(&routers(&after["hops"])), "{after} is none of {before}");

    // The way back is that of another queue pair, which nothing has told yet.
    let unknown = lab(&[&flow[..], &["--reverse"]].concat());
    assert!(
        !unknown.status.success() && said(&unknown).contains("--reverse NUMBER"),
        "{unknown:?}"
    );
    let both = ask(&[&flow[..], &["--reverse", "0x99"]].concat());
    assert_eq!(both["hops"], after["hops"], "{both}");
    let back = &both["reverse"];
    assert_eq!((&back["from"], &back["to"]), (&both["to"], &both["from"]), "{both}");
    assert_eq!(back["paths"][0]["hops"][0]["node"], "leaf2", "{both}");
}

/// A shell on a node, and the end of several fabrics of which one is not there.
fn a_shell_runs_on_the_node() {
    let mut shell = Command::new(lab_program());
    shell.args(["shell", "--name", FABRIC, "leaf2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(b"hostname\nexit 7\n").unwrap();
    let ended = shell.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), said(&ended).trim()), (Some(7), "leaf2"));
}

/// Frames of a queue pair take the links that `lab path` names, and no others of their tier.
fn paths_are_those_of_the_frames() {
    const FRAMES: u64 = 300;
    let mut spines = BTreeSet::new();
    for seed in 1..=6_u64 {
        let queue_pair = traffic::roce::connections(seed, 1)[0].remote.get().to_string();
        let flow = ["path", "--name", FABRIC, "--from", "host1", "--to", "host2"];
        let path = ask(&[&flow[..], &["--qp", &queue_pair]].concat());
        let hops = path["hops"].as_array().unwrap();
        let text = |hop: usize, field: &str| hops[hop][field].as_str().unwrap().to_owned();
        assert_eq!(
            (hops.len(), text(0, "node"), text(3, "node")),
            (4, "leaf1".into(), "leaf2".into())
        );
        assert_eq!((text(0, "arrives"), text(3, "leaves")), ("hp1".into(), "hp1".into()));
        spines.insert((text(1, "node"), text(2, "node")));

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
        for hop in 0..3 {
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
