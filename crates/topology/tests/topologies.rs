//! The repository's topologies are valid ContainerLab files and have the documented structure.

#![cfg(test)]

use std::path::{Path, PathBuf};

use topology::Topology;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../deploy/containerlab/{name}.clab.yml"))
}

const ALL: [&str; 6] = ["minimal", "scaleacross", "wide", "circuits2", "circuits4", "circuits9"];

fn violations(text: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let schema = serde_json::from_str(include_str!("fixtures/clab.schema.json"))?;
    let topology: serde_json::Value = serde_norway::from_str(text)?;
    let validator = jsonschema::validator_for(&schema)?;
    Ok(validator
        .iter_errors(&topology)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect())
}

#[test]
fn each_is_valid_against_containerlabs_schema() {
    for name in ALL.into_iter().chain(["monitoring"]) {
        let text = std::fs::read_to_string(file(name)).unwrap();
        assert_eq!(violations(&text).unwrap(), Vec::<String>::new(), "{name}");
        let wrong = text.replace("kind: linux", "kind: nothing");
        assert_ne!(
            violations(&wrong).unwrap(),
            Vec::<String>::new(),
            "the schema must be able to refuse"
        );
    }
}

#[test]
fn each_has_a_sidecar_for_every_leaf_and_all_its_files() {
    for name in ALL {
        let topology = Topology::load(&file(name)).unwrap();
        assert_eq!(topology.name.as_str(), name);
        assert!(topology.notes.is_empty(), "{:?}", topology.notes);
        for leaf in topology.nodes.keys().filter(|node| node.starts_with("leaf")) {
            let sidecar = &topology.nodes[&format!("vtepd-{leaf}")];
            assert_eq!(sidecar.shares.as_deref(), Some(leaf.as_str()), "{name}");
        }
        for bind in topology.nodes.values().flat_map(|node| &node.binds) {
            assert!(bind.source.is_file(), "{} is missing", bind.source.display());
        }
    }
}

#[test]
fn scaleacross_has_four_disjoint_paths_and_seeds_that_differ() {
    let topology = Topology::load(&file("scaleacross")).unwrap();
    let nodes =
        |prefix: &str| topology.nodes.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!((nodes("spine"), nodes("leaf"), nodes("host")), (4, 6, 6));
    // A circuit connects each spine of one data centre to each spine of the other.
    let spines = topology.circuits().map(|ends| {
        let [near, far] = ends.map(|end| topology.peer(&end).unwrap().clone());
        assert!(
            near.interface.starts_with("dci") && far.interface.starts_with("dci"),
            "{near} {far}"
        );
        (near.node, far.node)
    });
    let pairs =
        [("spine1", "spine3"), ("spine1", "spine4"), ("spine2", "spine3"), ("spine2", "spine4")];
    assert_eq!(
        spines.collect::<Vec<_>>(),
        pairs.map(|(near, far)| (near.to_owned(), far.to_owned()))
    );
    let cmd = topology.nodes["wan"].program.join(" ");
    assert!(cmd.ends_with("--delay 5ms --jitter 1ms"), "{cmd}");

    // The seeds are drawn from the repository's seed in the order of the node names.
    let mut random = experiment::random::Random::new(experiment::random::SEED);
    let routers = topology.nodes.iter().filter(|(_, node)| node.group.as_deref() == Some("router"));
    let mut count = 0;
    for (name, node) in routers {
        let drawn = (random.next() >> 32).to_string();
        assert_eq!(node.sysctls["net.ipv4.fib_multipath_hash_seed"], drawn, "{name}");
        count += 1;
    }
    assert_eq!(count, 10);
}
