//! The links that traffic between two hosts can take, and its distribution over them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::roce::Report;
use crate::stream::CARRIED;
use experiment::balance::{jain, mmr};
use fabric::counters::{self, CountersError};
use fabric::deployed::{Deployed, Host, Overlay};
use fabric::topology::{Endpoint, Topology};

/// The distribution of one stream over links, and how it arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The max-mean ratio over the links of the widest tier; 1 is even.
    pub mmr: f64,
    /// Jain's fairness index over the same links; 1 is even.
    pub jain: f64,
    /// Frames that arrived after a later frame of their queue pair.
    pub reordered: u64,
    /// Frames that did not arrive, or arrived damaged.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// The number of frames that each link on the path carried in the direction of the traffic.
    pub links: BTreeMap<String, u64>,
}

impl Spread {
    /// The share of the tier's frames that this link carried, 0 to 1.
    #[must_use]
    pub fn share(&self, link: &str, tier: &[String]) -> f64 {
        let load = |name: &str| self.links.get(name).copied().unwrap_or_default() as f64;
        let all: f64 = tier.iter().map(|name| load(name)).sum();
        if all == 0.0 { 0.0 } else { load(link) / all }
    }
}

/// A link, and the end where its frames are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    /// The end at a leaf if the link has one, otherwise the sending end.
    end: Endpoint,
    /// Whether frames of the stream are sent at `end`; otherwise they are received there.
    sends: bool,
    /// The sending end.
    near: Endpoint,
}

/// The shortest paths from one leaf to another.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Parallel links by tier, in the order that frames pass them.
    tiers: Vec<Vec<Counter>>,
}

impl Paths {
    /// The paths between two leaves.
    pub fn new(topology: &Topology, from: &str, to: &str) -> Self {
        let (after, before) = (distances_from(topology, from), distances_from(topology, to));
        let length = after.get(to).copied().unwrap_or_default();
        let mut tiers = vec![Vec::new(); length];
        let links = links(topology);
        let directed = links.iter().flat_map(|[a, b]| [(a, b), (b, a)]);
        for (near, far) in directed {
            let (Some(start), Some(rest)) =
                (after.get(near.node.as_str()), before.get(far.node.as_str()))
            else {
                continue;
            };
            if start + 1 + rest != length {
                continue;
            }
            let sends = far.node != to || length == 1;
            let end = if sends { near } else { far };
            if let Some(tier) = tiers.get_mut(*start) {
                tier.push(Counter { end: end.clone(), sends, near: near.clone() });
            }
        }
        Self { tiers }
    }

    /// The names of the links by tier, as `node:interface`.
    pub fn tiers(&self) -> Vec<Vec<String>> {
        self.tiers
            .iter()
            .map(|tier| tier.iter().map(|counter| counter.end.to_string()).collect())
            .collect()
    }

    /// The first of the tiers with the most links.
    pub fn widest(&self) -> Vec<String> {
        self.tiers().into_iter().rev().max_by_key(Vec::len).unwrap_or_default()
    }

    /// The sending leaf's links on the path.
    pub fn uplinks(&self) -> Vec<Endpoint> {
        self.tiers.first().into_iter().flatten().map(|counter| counter.end.clone()).collect()
    }

    /// The sending end of a link, by its name in [`Paths::tiers`].
    pub fn near(&self, name: &str) -> Option<&Endpoint> {
        let named = |counter: &&Counter| counter.end.to_string() == name;
        self.tiers.iter().flatten().find(named).map(|counter| &counter.near)
    }

    /// The sending ends of the links by tier.
    pub fn senders(&self) -> Vec<Vec<Endpoint>> {
        let near = |tier: &Vec<Counter>| tier.iter().map(|counter| counter.near.clone()).collect();
        self.tiers.iter().map(near).collect()
    }

    /// The share of the traffic that passes the links with these sending ends, 0 to 1; the largest of
    /// the tiers.
    pub fn share(&self, loads: &BTreeMap<String, u64>, is_one: impl Fn(&Endpoint) -> bool) -> f64 {
        let sum = |tier: &[Counter], is_one: &dyn Fn(&Endpoint) -> bool| {
            let own = tier.iter().filter(|counter| is_one(&counter.near));
            let load = |of: &Counter| loads.get(&of.end.to_string()).copied().unwrap_or_default();
            own.map(load).sum::<u64>() as f64
        };
        let of = |tier: &Vec<Counter>| sum(tier, &is_one) / sum(tier, &|_| true).max(1.0);
        self.tiers.iter().map(of).fold(0.0, f64::max)
    }

    /// The links on the path that lead into a circuit, each with the interface of the circuit.
    pub fn circuits(&self, topology: &Topology) -> BTreeMap<Endpoint, Endpoint> {
        let ports: BTreeSet<Endpoint> = topology.circuits().flatten().collect();
        let near = self.tiers.iter().flatten().map(|counter| &counter.near);
        let into = near.filter_map(|near| Some((near.clone(), topology.peer(near)?.clone())));
        into.filter(|(_, port)| ports.contains(port)).collect()
    }

    /// The number of frames that each link has carried in the direction of the traffic, computed
    /// from bytes.
    pub fn loads(&self, deployed: &Deployed) -> Result<BTreeMap<String, u64>, CountersError> {
        let mut loads = BTreeMap::new();
        for Counter { end, sends, .. } in self.tiers.iter().flatten() {
            let counters = counters::read(&deployed.namespace(&end.node)?)?;
            let interface = counters.get(&end.interface).copied().unwrap_or_default();
            let frames = if *sends {
                interface.frames_sent(CARRIED)
            } else {
                interface.frames_received(CARRIED)
            };
            loads.insert(end.to_string(), frames);
        }
        Ok(loads)
    }

    /// The distribution of a stream, from two readings of [`Paths::loads`].
    pub fn spread(
        &self,
        before: &BTreeMap<String, u64>,
        after: &BTreeMap<String, u64>,
        arrived: &Report,
    ) -> Spread {
        let carried = |name: &String| {
            let count =
                |loads: &BTreeMap<String, u64>| loads.get(name).copied().unwrap_or_default();
            count(after).saturating_sub(count(before))
        };
        let loads: Vec<u64> = self.widest().iter().map(carried).collect();
        Spread {
            mmr: mmr(&loads),
            jain: jain(&loads),
            reordered: arrived.reordered(),
            lost: arrived.lost(),
            duplicated: arrived.duplicated(),
            links: after.keys().map(|name| (name.clone(), carried(name))).collect(),
        }
    }
}

/// The default sender and receiver: the first host, and the first of the most distant hosts of its
/// VNI.
pub fn ends<'a>(topology: &Topology, overlay: &'a Overlay) -> Option<(&'a Host, &'a Host)> {
    let from = overlay.hosts.first()?;
    let distances = distances_from(topology, &from.leaf);
    let others = overlay.hosts.iter().rev().filter(|to| to.vni == from.vni && to.leaf != from.leaf);
    Some((from, others.max_by_key(|to| distances.get(to.leaf.as_str()))?))
}

/// The two ends of each link. A circuit and the links at its ends are combined into one link.
fn links(topology: &Topology) -> Vec<[Endpoint; 2]> {
    topology.wires().into_iter().map(|wire| wire.ends).collect()
}

/// The neighbours of each node, once for each link.
pub type Neighbours = BTreeMap<String, Vec<String>>;

/// The neighbours of all nodes with links. A circuit and the links at its ends are one link.
pub fn neighbours(topology: &Topology) -> Neighbours {
    let mut neighbours = Neighbours::new();
    for [a, b] in links(topology) {
        neighbours.entry(a.node.clone()).or_default().push(b.node.clone());
        neighbours.entry(b.node).or_default().push(a.node);
    }
    neighbours
}

/// The distance of each node from the nearest of these, in links.
pub fn distances(neighbours: &Neighbours, from: BTreeSet<String>) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let (mut next, mut distance) = (from, 0);
    while !next.is_empty() {
        found.extend(next.iter().map(|name| (name.clone(), distance)));
        let around = next.iter().filter_map(|name| neighbours.get(name)).flatten();
        next = around.filter(|name| !found.contains_key(*name)).cloned().collect();
        distance += 1;
    }
    found
}

/// The distance of each node from this one, in links.
fn distances_from(topology: &Topology, node: &str) -> BTreeMap<String, usize> {
    distances(&neighbours(topology), BTreeSet::from([node.to_owned()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(name: &str) -> Topology {
        let file =
            format!("{}/../../deploy/containerlab/{name}.clab.yml", env!("CARGO_MANIFEST_DIR"));
        Topology::load(file.as_ref()).unwrap()
    }

    fn host(name: &str, vni: u32, leaf: &str) -> Host {
        Host {
            end: Endpoint { node: name.into(), interface: "eth1".into() },
            address: std::net::Ipv4Addr::UNSPECIFIED,
            mac: wire::MacAddr([0; 6]),
            vni,
            vtep: std::net::Ipv4Addr::UNSPECIFIED.into(),
            udp_port: 4789,
            port: String::new(),
            leaf: leaf.into(),
        }
    }

    #[test]
    fn paths_have_all_links_of_the_shortest_ones() {
        let scaleacross = topology("scaleacross");
        let paths = Paths::new(&scaleacross, "leaf1", "leaf4");
        let tiers = paths.tiers();
        assert_eq!(tiers[0], ["leaf1:up1", "leaf1:up2"]);
        assert_eq!(tiers[1], ["spine1:dci1", "spine1:dci2", "spine2:dci1", "spine2:dci2"]);
        assert_eq!(tiers[2..], [["leaf4:up1", "leaf4:up2"]], "a circuit is one link");
        assert_eq!(paths.widest(), tiers[1]);
        let circuits = paths.circuits(&scaleacross);
        let circuits: Vec<String> =
            circuits.iter().map(|(near, port)| format!("{near} {port}")).collect();
        assert_eq!(
            circuits,
            [
                "spine1:dci1 wan:a1",
                "spine1:dci2 wan:a2",
                "spine2:dci1 wan:a3",
                "spine2:dci2 wan:a4"
            ]
        );
        assert!(!paths.tiers.last().unwrap()[0].sends && paths.tiers[1][0].sends);
        let near = Paths::new(&scaleacross, "leaf1", "leaf2");
        assert_eq!(near.tiers(), [["leaf1:up1", "leaf1:up2"], ["leaf2:up1", "leaf2:up2"]]);
        assert_eq!(near.widest(), ["leaf1:up1", "leaf1:up2"], "the first of equals");
        assert_eq!(Paths::new(&topology("wide"), "leaf1", "leaf2").widest().len(), 8);
        assert_eq!(Paths::new(&scaleacross, "leaf1", "nobody").tiers(), [[""; 0]; 0]);
    }

    #[test]
    fn a_path_with_a_circuit_is_as_long_as_one_without() {
        let mut mixed = topology("scaleacross");
        // A plain link replaces the circuit at wan:a1.
        let near = Endpoint { node: "spine1".into(), interface: "dci1".into() };
        let [a, b] = mixed.circuits().find(|[a, _]| a.interface == "a1").unwrap();
        let (far, ports) = (mixed.peer(&b).unwrap().clone(), [a, b]);
        mixed.links.retain(|link| !link.ends.iter().any(|end| ports.contains(end)));
        let mut link = mixed.links[0].clone();
        link.ends = [near, far];
        mixed.links.push(link);
        let paths = Paths::new(&mixed, "leaf1", "leaf4");
        let mut widest = paths.widest();
        widest.sort();
        assert_eq!(widest, ["spine1:dci1", "spine1:dci2", "spine2:dci1", "spine2:dci2"]);
        assert_eq!(paths.circuits(&mixed).len(), 3);
    }

    #[test]
    fn the_first_host_sends_to_the_farthest() {
        let hosts = (1..=6).map(|n| host(&format!("host{n}"), 10010, &format!("leaf{n}")));
        let overlay = Overlay {
            tunnels: Vec::new(),
            hosts: hosts.chain([host("store4", 10020, "leaf4")]).collect(),
        };
        let scaleacross = topology("scaleacross");
        let (from, to) = ends(&scaleacross, &overlay).unwrap();
        assert_eq!((from.end.node.as_str(), to.end.node.as_str()), ("host1", "host4"));
        let alone =
            Overlay { hosts: vec![host("a", 1, "leaf1"), host("b", 2, "leaf2")], ..overlay };
        assert!(ends(&scaleacross, &alone).is_none());
    }
}
