//! The repository's own fabric is a valid ContainerLab file, and the one that the demo describes.

use std::path::{Path, PathBuf};

use lab::topology::Topology;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/containerlab/scaleacross.clab.yml")
}

fn violations(text: &str) -> Vec<String> {
    let schema = serde_json::from_str(include_str!("fixtures/clab.schema.json")).unwrap();
    let topology: serde_json::Value = serde_norway::from_str(text).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.iter_errors(&topology).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn scaleacross_is_valid_against_containerlabs_schema() {
    let text = std::fs::read_to_string(file()).unwrap();
    assert_eq!(violations(&text), Vec::<String>::new());
    let wrong = text.replace("network-mode: none", "network-mode: nowhere");
    assert_ne!(violations(&wrong), Vec::<String>::new(), "the schema must be able to refuse");
}

#[test]
fn scaleacross_has_four_disjoint_paths_and_seeds_that_differ() {
    let topology = Topology::load(&file()).unwrap();
    let nodes = |prefix: &str| topology.nodes.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!((nodes("spine"), nodes("leaf"), nodes("host")), (4, 6, 6));
    let between =
        topology.links.iter().filter(|link| link.ends.iter().all(|end| end.interface.starts_with("dci")));
    assert_eq!(between.count(), 4);

    let routers = topology.nodes.values().filter(|node| node.group.as_deref() == Some("router"));
    let mut seeds: Vec<_> = routers.map(|node| &node.sysctls["net.ipv4.fib_multipath_hash_seed"]).collect();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), 10);

    let binds = topology.nodes.values().flat_map(|node| &node.binds);
    for bind in binds {
        assert!(bind.source.is_file(), "{} is missing", bind.source.display());
    }
}
