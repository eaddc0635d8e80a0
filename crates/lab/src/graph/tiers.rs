//! The tiers of a topology: hosts, leaves, spines, and what is above them.

use std::collections::{BTreeMap, BTreeSet};

use fabric::topology::{Kind, Topology};
use traffic::spread::{self, Neighbours, distances};

/// The tier of each node with wires: its distance from the nearest host. Nodes without a namespace
/// of their own, and those that only emulate circuits, have none.
pub(super) fn of(topology: &Topology) -> BTreeMap<String, usize> {
    let neighbours = spread::neighbours(topology);
    let is_host = |name: &str| {
        topology.nodes.get(name).is_some_and(|node| {
            let bound = node.binds.iter().any(|bind| bind.target.starts_with("/etc/frr"));
            node.kind == Kind::Linux && (!bound || node.has_own_program())
        })
    };
    let mut tiers = BTreeMap::new();
    while let Some(start) = neighbours.keys().find(|name| !tiers.contains_key(*name)) {
        let part = connected(&neighbours, start);
        let bottom = bottom(&neighbours, &part, &is_host);
        tiers.extend(distances(&neighbours, bottom));
    }
    tiers
}

/// The nodes that this one has a path to.
fn connected(neighbours: &Neighbours, start: &str) -> BTreeSet<String> {
    distances(neighbours, BTreeSet::from([start.to_owned()])).into_keys().collect()
}

/// The hosts. If there are no routers beside them, or only routers: the nodes with the fewest wires.
fn bottom(
    neighbours: &Neighbours,
    part: &BTreeSet<String>,
    is_host: &dyn Fn(&str) -> bool,
) -> BTreeSet<String> {
    let hosts: BTreeSet<String> = part.iter().filter(|name| is_host(name)).cloned().collect();
    if !hosts.is_empty() && hosts.len() < part.len() {
        return hosts;
    }
    let wires = |name: &String| neighbours.get(name).map_or(0, Vec::len);
    let fewest = part.iter().map(wires).min().unwrap_or_default();
    part.iter().filter(|name| wires(name) == fewest).cloned().collect()
}
