//! Topologies in the style of public labs: each comes up with vtepd on all leaves, its hosts reach
//! each other, and it goes down.

use std::thread;

use fabric::Fabric;
use fabric::deployed::Host;
use root_test::root_test;
use serde_json::Value;

use super::fixture::frr;
use super::lab_command::{NewFabric, ask, lab, said};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Static routes and flood lists, or FRR; one VNI or two; by one uplink or several; numbered and
/// unnumbered; IPv4 and IPv6; with and without circuits.
const FILES: [&str; 13] = [
    "tests/tests/system/evpn/topologies/back-to-back.clab.yml",
    "tests/tests/system/evpn/topologies/one-uplink.clab.yml",
    "tests/tests/system/evpn/topologies/route-server.clab.yml",
    "tests/tests/system/evpn/topologies/static-flooding.clab.yml",
    "tests/tests/system/evpn/topologies/two-hosts-a-leaf.clab.yml",
    "tests/tests/system/evpn/topologies/two-sites.clab.yml",
    "tests/tests/system/evpn/topologies/two-vnis.clab.yml",
    "tests/tests/system/evpn/topologies/unnumbered.clab.yml",
    "tests/tests/system/evpn/other_overlay.clab.yml",
    "deploy/containerlab/minimal.clab.yml",
    "deploy/containerlab/wide.clab.yml",
    "deploy/containerlab/circuits2.clab.yml",
    "deploy/containerlab/scaleacross.clab.yml",
];

/// Takes a fabric down.
struct Up(String);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = lab(&["down", &self.0]);
    }
}

#[root_test(needs = frr)]
#[ignore = "takes a minute and a half: tests/run --all"]
fn topologies_of_many_kinds_come_up_and_forward() {
    for file in FILES {
        let kind = file.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap();
        let name = format!("topo-{kind}");
        let up = Up(name.clone());
        let started = lab(&["up", &format!("{ROOT}/{file}"), "--name", &name]);
        assert!(started.status.success(), "{file}: {}", said(&started));
        forwards(&name);
        drop(up);
        assert_eq!(fabric::netns::list(&format!("lab-{name}-")), Vec::<String>::new());
    }
}

#[root_test(needs = frr)]
#[ignore = "takes a minute: tests/run --all"]
fn a_fabric_of_32_routers_comes_up_and_forwards() {
    let files = NewFabric::new("topo-32", &["--leaves", "24", "--spines", "8"]);
    let started = lab(&["up", &files.topology(), "--timeout", "240"]);
    assert!(started.status.success(), "{}", said(&started));
    forwards("topo-32");
}

/// vtepd forwards on all leaves, and each host reaches all others of its VNI.
fn forwards(name: &str) {
    let leaves = ask(&["status", "--name", name]);
    for leaf in leaves.as_array().unwrap() {
        let vnis = leaf["vnis"].as_array().unwrap();
        let is_taken = |vni: &Value| vni["policy"] == "qp-hash" && vni["datapath"] == "offload";
        assert!(!vnis.is_empty() && vnis.iter().all(is_taken), "{name}: {leaf}");
    }
    let fabric = Fabric::open(&name.parse().unwrap()).unwrap();
    let hosts = fabric.deployed().overlay().unwrap().hosts;
    assert!(hosts.len() >= 2, "{name}: {hosts:?}");
    thread::scope(|scope| {
        for from in &hosts {
            scope.spawn(|| reaches_others(&fabric, from, &hosts));
        }
    });
}

fn reaches_others(fabric: &Fabric, from: &Host, hosts: &[Host]) {
    let node = fabric.node(&from.end.node).unwrap();
    let is_other = |to: &&Host| to.vni == from.vni && to.address != from.address;
    for to in hosts.iter().filter(is_other) {
        let address = to.address.to_string();
        // The first frame may wait for an address to be learned.
        let pinged = node.run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", &address]);
        assert!(pinged.is_ok(), "{} to {}: {pinged:?}", from.end, to.end);
    }
}
