//! Which ports lead to a host on a shortest way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::table::Table;
use crate::topology::Topology;

/// Ports to choose from.
#[derive(Debug, Clone, Copy, Default)]
struct Set {
    start: u32,
    len: u32,
}

/// How switches choose among ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// By a hash of the flow, the number of the path, and a salt of the switch.
    Hashed,
    /// Each tier takes its own digit of the number of the path, so the sender knows the path.
    Known,
}

/// The next hops of all switches.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    hosts: u32,
    leaves: u32,
    /// The number of each host's leaf, counted from the first switch with a host.
    leaf: Table<u32>,
    /// For each switch, the number of its leaf, if it is one.
    own: Table<u32>,
    /// For each switch and leaf, the number of a set.
    index: Table<u32>,
    sets: Table<Set>,
    ports: Table<u32>,
    /// For each switch, its salt, or the value of its digit.
    salt: Table<u32>,
    known: bool,
}

/// No leaf.
const NO_LEAF: u32 = u32::MAX;

/// Spreads all bits of a number over all others (the finaliser of MurmurHash3).
const fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

impl Routes {
    /// The routes over ports for which `lives` holds.
    pub(crate) fn new(
        topology: &Topology,
        choice: Choice,
        salts: impl FnMut(u32) -> u32,
        lives: impl Fn(u32) -> bool,
    ) -> Self {
        let switches = topology.switches.len() as u32;
        let mut own: Table<u32> = (0..switches).map(|_| NO_LEAF).collect();
        let mut nodes = Vec::new();
        let leaf = (0..topology.hosts).map(|host| {
            let node = topology.leaf(host).unwrap_or_default();
            let number = &mut own[node - topology.hosts];
            if *number == NO_LEAF {
                *number = nodes.len() as u32;
                nodes.push(node);
            }
            *number
        });
        let leaf: Table<u32> = leaf.collect();
        let mut routes = Self {
            hosts: topology.hosts,
            leaves: nodes.len() as u32,
            leaf,
            own,
            index: (0..switches * nodes.len() as u32).map(|_| 0).collect(),
            salt: match choice {
                Choice::Hashed => (0..switches).map(salts).collect(),
                Choice::Known => Self::digits(topology),
            },
            known: choice == Choice::Known,
            ..Self::default()
        };
        routes.search(topology, &nodes, lives);
        routes
    }

    /// The value of the digit that each switch takes: the product of the uplinks below.
    fn digits(topology: &Topology) -> Table<u32> {
        let value = |tier: u8| {
            topology.uplinks.iter().take(tier.into()).map(|&number| u32::from(number)).product()
        };
        topology.switches.iter().map(|switch| value(switch.tier)).collect()
    }

    /// Finds the shortest ways to each leaf.
    fn search(&mut self, topology: &Topology, leaves: &[u32], lives: impl Fn(u32) -> bool) {
        let switches = topology.switches.len();
        let (mut out, mut into) = (vec![Vec::new(); switches], vec![Vec::new(); switches]);
        for port in (0..topology.ports()).filter(|&port| lives(port)) {
            let Some((from, to)) = topology.port(port) else { continue };
            let (Some(from), Some(to)) = (from.checked_sub(self.hosts), to.checked_sub(self.hosts))
            else {
                continue;
            };
            out.get_mut(from as usize).into_iter().for_each(|list| list.push((port, to)));
            into.get_mut(to as usize).into_iter().for_each(|list| list.push(from));
        }
        let mut known = BTreeMap::new();
        for (number, leaf) in leaves.iter().enumerate() {
            let distances = distances(leaf - self.hosts, &into);
            let distance = |switch: u32| distances.get(switch as usize).copied().flatten();
            for (switch, list) in out.iter().enumerate() {
                let nearer = |to: u32| {
                    distance(to).zip(distance(switch as u32)).is_some_and(|(to, own)| to < own)
                };
                let next: Vec<u32> =
                    list.iter().filter(|(_, to)| nearer(*to)).map(|(port, _)| *port).collect();
                let set = *known.entry(next).or_insert_with_key(|next| {
                    let start = self.ports.len();
                    next.iter().for_each(|&port| {
                        self.ports.add(port);
                    });
                    self.sets.add(Set { start, len: next.len() as u32 })
                });
                self.index[switch as u32 * self.leaves + number as u32] = set;
            }
        }
    }

    /// The ports between switches on the shortest ways between these pairs of hosts.
    pub(crate) fn ways(
        &self,
        topology: &Topology,
        pairs: impl Iterator<Item = (u32, u32)>,
    ) -> BTreeSet<u32> {
        let leaves = pairs.filter_map(|(from, to)| Some((topology.leaf(from)?, self.leaf[to])));
        let mut seen: BTreeSet<(u32, u32)> = leaves.collect();
        let mut left: Vec<(u32, u32)> = seen.iter().copied().collect();
        let mut ports = BTreeSet::new();
        while let Some((switch, leaf)) = left.pop() {
            let Set { start, len } =
                self.sets[self.index[(switch - self.hosts) * self.leaves + leaf]];
            for port in (start..start + len).map(|at| self.ports[at]) {
                ports.insert(port);
                let next = topology.port(port).map(|(_, to)| (to, leaf));
                left.extend(next.filter(|next| seen.insert(*next)));
            }
        }
        ports
    }

    /// The port of a switch towards a host. `None` if no way is left.
    #[inline]
    pub(crate) fn port(&self, switch: u32, host: u32, flow: u32, entropy: u16) -> Option<u32> {
        let switch = switch - self.hosts;
        let leaf = self.leaf[host];
        if self.own[switch] == leaf {
            return Some(2 * host + 1);
        }
        let Set { start, len } = self.sets[self.index[switch * self.leaves + leaf]];
        let at = match len {
            0 => return None,
            1 => 0,
            _ if self.known => u32::from(entropy) / self.salt[switch] % len,
            _ => {
                let both = flow.wrapping_mul(0x9e37_79b1) ^ u32::from(entropy) << 16;
                let hash = mix(mix(both) ^ self.salt[switch]);
                ((u64::from(hash) * u64::from(len)) >> 32) as u32
            }
        };
        Some(self.ports[start + at])
    }
}

/// The number of links from each switch to a leaf.
fn distances(leaf: u32, into: &[Vec<u32>]) -> Vec<Option<u32>> {
    let mut distances = vec![None; into.len()];
    let mut queue = VecDeque::from([(leaf, 0)]);
    while let Some((switch, distance)) = queue.pop_front() {
        match distances.get_mut(switch as usize) {
            Some(own @ None) => *own = Some(distance),
            _ => continue,
        }
        let before = into.get(switch as usize).into_iter().flatten();
        queue.extend(before.map(|&from| (from, distance + 1)));
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Rate;
    use crate::topology::{FatTree, LeafSpine, Lines};

    const LINES: Lines = Lines { rate: Rate::ENDLESS, delay: 1 };

    /// The nodes on the way from a host to another.
    fn way(
        topology: &Topology,
        routes: &Routes,
        ends: [u32; 2],
        flow: u32,
        entropy: u16,
    ) -> Vec<String> {
        let mut node = topology.leaf(ends[0]).unwrap();
        let mut way = vec![topology.name(node)];
        while node != ends[1] {
            let port = routes.port(node, ends[1], flow, entropy).unwrap();
            node = topology.port(port).unwrap().1;
            way.push(topology.name(node));
        }
        way
    }

    fn fat_tree() -> Topology {
        let tree = FatTree { pods: 8, leaves: 4, hosts: 4, aggregations: 4, cores: 4 };
        Topology::fat_tree(&tree, LINES)
    }

    #[test]
    fn the_sender_knows_the_path() {
        let topology = fat_tree();
        let routes = Routes::new(&topology, Choice::Known, |_| 0, |_| true);
        let between = |entropy| way(&topology, &routes, [0, 127], 5, entropy);
        assert_eq!(between(0), ["leaf0", "agg0", "core0", "agg28", "leaf31", "host127"]);
        assert_eq!(between(0b10_01), ["leaf0", "agg1", "core6", "agg29", "leaf31", "host127"]);
        let all: BTreeSet<Vec<String>> = (0..16).map(between).collect();
        assert_eq!(all.len(), 16);
        // Within a pod only the first digit counts.
        assert_eq!(
            way(&topology, &routes, [0, 4], 5, 0b10_11),
            ["leaf0", "agg3", "leaf1", "host4"]
        );
        assert_eq!(way(&topology, &routes, [0, 1], 5, 9), ["leaf0", "host1"]);
    }

    #[test]
    fn hashes_use_all_paths_evenly_and_differ_by_switch() {
        let topology = fat_tree();
        let routes = Routes::new(&topology, Choice::Hashed, |switch| mix(switch + 77), |_| true);
        let mut counts = BTreeMap::new();
        for entropy in 0..64 {
            for flow in 0..100 {
                *counts.entry(way(&topology, &routes, [0, 127], flow, entropy)).or_insert(0) += 1;
            }
        }
        assert_eq!(counts.len(), 16);
        assert!(counts.values().all(|count| (320..480).contains(count)), "{counts:?}");
    }

    #[test]
    fn dead_links_are_avoided_at_both_ends() {
        let topology = fat_tree();
        let dead = topology.find_port("agg0", "core0").unwrap() / 2;
        let routes = Routes::new(&topology, Choice::Hashed, mix, |port| port / 2 != dead);
        for entropy in 0..200 {
            let there = way(&topology, &routes, [0, 127], 3, entropy);
            assert!(there[1] != "agg0" || there[2] != "core0", "{there:?}");
            let back = way(&topology, &routes, [127, 0], 3, entropy);
            assert!(back[2] != "core0", "{back:?}");
        }
    }

    #[test]
    fn between_sites_all_circuits_are_used() {
        let numbers = LeafSpine { leaves: 2, hosts: 2, spines: 2 };
        let topology = Topology::two_sites(&numbers, LINES, LINES);
        let routes = Routes::new(&topology, Choice::Known, |_| 0, |_| true);
        let ways: BTreeSet<Vec<String>> =
            (0..4).map(|entropy| way(&topology, &routes, [0, 7], 1, entropy)).collect();
        assert_eq!(ways.len(), 4);
        let near = way(&topology, &routes, [0, 2], 1, 1);
        assert_eq!(near, ["leaf0", "spine1", "leaf1", "host2"]);
    }

    #[test]
    fn without_a_way_there_is_no_port() {
        let numbers = LeafSpine { leaves: 2, hosts: 1, spines: 1 };
        let topology = Topology::leaf_spine(&numbers, LINES);
        let dead = topology.find_port("spine0", "leaf1").unwrap();
        let routes = Routes::new(&topology, Choice::Hashed, mix, |port| port != dead);
        assert_eq!(routes.port(topology.leaf(0).unwrap(), 1, 0, 0), None);
        assert!(routes.port(topology.leaf(1).unwrap(), 0, 0, 0).is_some());
    }
}
