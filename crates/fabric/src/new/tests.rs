use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::topology::Topology;

fn plan(sites: usize, leaves: usize, spines: usize) -> Plan {
    Plan {
        name: "mine".parse().unwrap(),
        sites,
        leaves,
        spines,
        hosts: 1,
        bfd: Some(Duration::from_millis(300)),
        circuit: (Duration::from_millis(5), Duration::from_millis(1)),
        vtepd: true,
    }
}

fn file<'a>(files: &'a [(PathBuf, String)], name: &str) -> &'a str {
    &files.iter().find(|(path, _)| path == Path::new(name)).unwrap().1
}

fn topology(plan: &Plan) -> Topology {
    let files = plan.files().unwrap();
    Topology::parse(file(&files, "mine.clab.yml"), Path::new("/"), |_| None).unwrap()
}

#[test]
fn the_topology_is_valid_against_containerlabs_schema() {
    let schema = include_str!("../../../topology/tests/fixtures/clab.schema.json");
    let validator = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    for plan in [plan(1, 4, 4), plan(2, 3, 2), plan(3, 1, 1)] {
        let files = plan.files().unwrap();
        let text: serde_json::Value =
            serde_norway::from_str(file(&files, "mine.clab.yml")).unwrap();
        let wrong: Vec<String> = validator.iter_errors(&text).map(|e| e.to_string()).collect();
        assert_eq!(wrong, Vec::<String>::new());
    }
}

#[test]
fn every_leaf_has_a_link_to_every_spine_of_its_site_and_spines_to_other_sites() {
    let plan = plan(2, 3, 2);
    let topology = topology(&plan);
    let between = |a: &str, b: &str| {
        let joined = |ends: [&str; 2]| ends == [a, b] || ends == [b, a];
        let links = topology.links.iter().map(|link| [&*link.ends[0].node, &*link.ends[1].node]);
        links.filter(|ends| joined(*ends)).count()
    };
    for leaf in 1..=6 {
        for spine in 1..=4 {
            let same = (leaf <= 3) == (spine <= 2);
            let found = between(&format!("leaf{leaf}"), &format!("spine{spine}"));
            assert_eq!(found, usize::from(same), "leaf{leaf} spine{spine}");
        }
    }
    let circuits: BTreeSet<String> = topology
        .circuits()
        .map(|ends| ends.map(|end| topology.peer(&end).unwrap().node.clone()).join(" "))
        .collect();
    let pairs = ["spine1 spine3", "spine1 spine4", "spine2 spine3", "spine2 spine4"];
    assert_eq!(circuits, pairs.map(str::to_owned).into());
    assert_eq!(topology.nodes["vtepd-leaf6"].shares.as_deref(), Some("leaf6"));
    assert_eq!(topology.nodes.keys().filter(|name| name.starts_with("host")).count(), 6);
}

#[test]
fn addresses_seeds_and_systems_are_unique_and_neighbours_agree() {
    let plan = plan(3, 4, 4);
    let layout = Layout::new(&plan);
    let seeds: BTreeSet<u32> = layout.routers.iter().map(|router| router.hash_seed).collect();
    assert_eq!(seeds.len(), layout.routers.len());
    let ports: Vec<_> = layout.routers.iter().flat_map(|router| &router.ports).collect();
    let addresses: BTreeSet<_> = ports.iter().map(|port| port.address).collect();
    assert_eq!(addresses.len(), ports.len());
    for router in &layout.routers {
        for port in &router.ports {
            let there = layout.routers.iter().find(|other| other.name == port.neighbour).unwrap();
            assert_eq!(there.autonomous_system, port.neighbour_system);
            let back = there.ports.iter().find(|back| back.address == port.neighbour_address);
            assert_eq!(back.unwrap().neighbour_address, port.address);
            let mask = !1;
            assert_eq!(u32::from(port.address) & mask, u32::from(port.neighbour_address) & mask);
        }
        let names: BTreeSet<_> = router.ports.iter().map(|port| &port.interface).collect();
        assert_eq!(names.len(), router.ports.len(), "{}", router.name);
    }
    let leaves = layout.routers.iter().filter(|router| router.role == layout::Role::Leaf);
    let systems: BTreeSet<u32> = leaves.map(|leaf| leaf.autonomous_system).collect();
    assert_eq!(systems.len(), 12);
}

#[test]
fn bfd_and_vtepd_can_be_left_out_and_short_circuits_are_plain_links() {
    let without = Plan { bfd: None, vtepd: false, circuit: Default::default(), ..plan(2, 1, 2) };
    let files = without.files().unwrap();
    assert!(
        files.iter().all(|(_, text)| !text.contains("bfd profile") && !text.contains("vtepd-"))
    );
    let topology = topology(&without);
    assert_eq!((topology.circuits().count(), topology.nodes.contains_key("wan")), (0, false));
    let with = plan(2, 1, 2).files().unwrap();
    let spine = file(&with, "spine1.conf");
    assert!(spine.contains("  transmit-interval 300\n") && spine.contains(" peer 10.1.0.1\n"));
    assert!(spine.contains("neighbor FABRIC bfd profile fabric"));
    assert!(file(&with, "leaf1.conf").contains("  maximum-paths 2\n"));
}

#[test]
fn numbers_have_limits() {
    let error = |plan: Plan| plan.files().unwrap_err().to_string();
    assert_eq!(error(plan(1, 1, 4)), "a fabric needs at least 2 leaves");
    assert_eq!(error(plan(1, 4, 0)), "a fabric needs at least 1 spines");
    assert_eq!(error(plan(1, 100, 29)), "leaves and spines: 129 is more than 128");
    assert_eq!(error(plan(9, 2, 2)), "sites: 9 is more than 8");
    assert_eq!(error(Plan { hosts: 126, ..plan(1, 2, 2) }), "hosts: 252 is more than 250");
}

#[test]
fn a_directory_with_files_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("new");
    let written = plan(2, 2, 3).write(&directory).unwrap();
    assert_eq!((written.leaves, written.spines, written.hosts), (4, 6, 4));
    assert_eq!((written.links, written.paths.clone()), (4 * 3 + 9 + 4, vec![3, 9]));
    let topology = Topology::load(&written.topology).unwrap();
    assert!(topology.nodes.values().flat_map(|node| &node.binds).all(|bind| bind.source.is_file()));
    let again = plan(2, 2, 3).write(&directory).unwrap_err();
    assert!(matches!(again, NewError::NotEmpty(_)), "{again}");
}

#[test]
fn large_fabrics_have_slower_bfd() {
    let of = |sites, leaves, spines| Plan::usual_bfd(sites, leaves, spines).as_millis();
    assert_eq!((of(1, 4, 4), of(1, 25, 8), of(1, 26, 8)), (300, 300, 1000));
    // 2 x 8 x 8 links in the sites, and 8 x 8 between them.
    assert_eq!((of(2, 8, 8), of(3, 4, 8)), (300, 1000));
}
