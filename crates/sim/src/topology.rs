//! Hosts, switches and links.

use crate::time::{Picos, Rate};

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// The name, such as `leaf0`.
    pub name: String,
    /// How many switches a packet passes before it on its way up.
    pub tier: u8,
}

/// A link, in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The nodes at its ends.
    pub ends: [u32; 2],
    /// The rate of each direction.
    pub rate: Rate,
    /// The time that a packet spends on it.
    pub delay: Picos,
}

/// The settings that links share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lines {
    /// The rate.
    pub rate: Rate,
    /// The time that a packet spends on a link.
    pub delay: Picos,
}

/// A fabric. Nodes are numbered: first the hosts, then the switches. The first links are those of
/// the hosts, in their order. Link `n` has the ports `2n`, from its first end, and `2n + 1`, from its
/// second.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// The number of hosts.
    pub hosts: u32,
    /// The switches.
    pub switches: Vec<Switch>,
    /// The links.
    pub links: Vec<Link>,
    /// The number of uplinks at each tier that a packet to the most distant host chooses from.
    pub uplinks: Vec<u16>,
    /// The names of the hosts; empty for `host0` and so on.
    pub host_names: Vec<String>,
}

/// The numbers of a fat tree with three tiers. Core `c` has a link to aggregation switch `c / cores`
/// of each pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FatTree {
    /// Pods.
    pub pods: u32,
    /// Leaves of a pod.
    pub leaves: u32,
    /// Hosts of a leaf.
    pub hosts: u32,
    /// Aggregation switches of a pod: uplinks of a leaf.
    pub aggregations: u32,
    /// Cores of an aggregation switch: its uplinks.
    pub cores: u32,
}

/// The numbers of a fabric with two tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafSpine {
    /// Leaves.
    pub leaves: u32,
    /// Hosts of a leaf.
    pub hosts: u32,
    /// Spines: uplinks of a leaf.
    pub spines: u32,
}

/// Builds a topology.
struct Builder {
    lines: Lines,
    hosts: u32,
    switches: Vec<Switch>,
    links: Vec<Link>,
}

impl Builder {
    fn new(hosts: u32, lines: Lines) -> Self {
        Self { lines, hosts, switches: Vec::new(), links: Vec::new() }
    }

    /// Adds switches, and gives the node of the first one.
    fn switches(&mut self, number: u32, name: &str, tier: u8) -> u32 {
        let first = self.hosts + self.switches.len() as u32;
        self.switches.extend((0..number).map(|n| Switch { name: format!("{name}{n}"), tier }));
        first
    }

    fn link(&mut self, low: u32, high: u32) {
        let Lines { rate, delay } = self.lines;
        self.links.push(Link { ends: [low, high], rate, delay });
    }

    fn finish(self, uplinks: &[u32]) -> Topology {
        let uplinks = uplinks.iter().map(|&number| u16::try_from(number).unwrap_or(u16::MAX));
        Topology {
            hosts: self.hosts,
            switches: self.switches,
            links: self.links,
            uplinks: uplinks.collect(),
            host_names: Vec::new(),
        }
    }
}

impl Topology {
    /// A fat tree with three tiers. Its switches are `leaf0`, `agg0` and `core0` and so on, counted
    /// over all pods.
    #[must_use]
    pub fn fat_tree(tree: &FatTree, lines: Lines) -> Self {
        let FatTree { pods, leaves, hosts, aggregations, cores } = *tree;
        let mut builder = Builder::new(pods * leaves * hosts, lines);
        let leaf = builder.switches(pods * leaves, "leaf", 0);
        let aggregation = builder.switches(pods * aggregations, "agg", 1);
        let core = builder.switches(aggregations * cores, "core", 2);
        for host in 0..builder.hosts {
            builder.link(host, leaf + host / hosts);
        }
        for pod in 0..pods {
            for own in 0..leaves {
                for up in 0..aggregations {
                    builder.link(leaf + pod * leaves + own, aggregation + pod * aggregations + up);
                }
            }
            for own in 0..aggregations {
                for up in 0..cores {
                    builder.link(aggregation + pod * aggregations + own, core + own * cores + up);
                }
            }
        }
        builder.finish(&[aggregations, cores])
    }

    /// Leaves and spines, `leaf0` and `spine0` and so on, each with a link to each other.
    #[must_use]
    pub fn leaf_spine(numbers: &LeafSpine, lines: Lines) -> Self {
        let LeafSpine { leaves, hosts, spines } = *numbers;
        let mut builder = Builder::new(leaves * hosts, lines);
        let leaf = builder.switches(leaves, "leaf", 0);
        let spine = builder.switches(spines, "spine", 1);
        for host in 0..builder.hosts {
            builder.link(host, leaf + host / hosts);
        }
        for own in 0..leaves {
            for up in 0..spines {
                builder.link(leaf + own, spine + up);
            }
        }
        builder.finish(&[spines])
    }

    /// Two fabrics of leaves and spines, the second with the higher numbers. Each spine has a circuit
    /// to each spine of the other: with `n` spines, `n²` circuits.
    #[must_use]
    pub fn two_sites(numbers: &LeafSpine, lines: Lines, circuits: Lines) -> Self {
        let LeafSpine { leaves, hosts, spines } = *numbers;
        let mut builder = Builder::new(2 * leaves * hosts, lines);
        let leaf = builder.switches(2 * leaves, "leaf", 0);
        let spine = builder.switches(2 * spines, "spine", 1);
        for host in 0..builder.hosts {
            builder.link(host, leaf + host / hosts);
        }
        for own in 0..2 * leaves {
            for up in 0..spines {
                builder.link(leaf + own, spine + own / leaves * spines + up);
            }
        }
        builder.lines = circuits;
        for here in 0..spines {
            for there in 0..spines {
                builder.link(spine + here, spine + spines + there);
            }
        }
        builder.finish(&[spines, spines])
    }

    /// The number of ports: two for each link.
    #[must_use]
    pub fn ports(&self) -> u32 {
        2 * self.links.len() as u32
    }

    /// Where a port's packets come from and go to.
    #[must_use]
    pub fn port(&self, port: u32) -> Option<(u32, u32)> {
        let [first, second] = self.links.get(port as usize / 2)?.ends;
        Some(if port.is_multiple_of(2) { (first, second) } else { (second, first) })
    }

    /// The switch to which a host is connected.
    #[must_use]
    pub fn leaf(&self, host: u32) -> Option<u32> {
        self.links.get(host as usize).map(|link| link.ends[1])
    }

    /// A node's name: that of a switch, or of a host, which is `host0` if hosts have none.
    #[must_use]
    pub fn name(&self, node: u32) -> String {
        match node.checked_sub(self.hosts) {
            None => match self.host_names.get(node as usize) {
                Some(name) => name.clone(),
                None => format!("host{node}"),
            },
            Some(at) => {
                self.switches.get(at as usize).map(|switch| switch.name.clone()).unwrap_or_default()
            }
        }
    }

    /// The port from one node to another, by their names.
    #[must_use]
    pub fn find_port(&self, from: &str, to: &str) -> Option<u32> {
        let switch = |name: &str| {
            let at = self.switches.iter().position(|switch| switch.name == name)?;
            Some(self.hosts + at as u32)
        };
        let node = |name: &str| self.find_host(name).or_else(|| switch(name));
        let ends = (node(from)?, node(to)?);
        (0..self.ports()).find(|&port| self.port(port) == Some(ends))
    }

    /// The host of this name.
    #[must_use]
    pub fn find_host(&self, name: &str) -> Option<u32> {
        let host = match self.host_names.iter().position(|own| own == name) {
            Some(at) => at as u32,
            None => name.strip_prefix("host")?.parse().ok()?,
        };
        (host < self.hosts && self.name(host) == name).then_some(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Lines = Lines { rate: Rate::ENDLESS, delay: 1 };

    #[test]
    fn a_fat_tree_of_128_hosts() {
        let tree = FatTree { pods: 8, leaves: 4, hosts: 4, aggregations: 4, cores: 4 };
        let topology = Topology::fat_tree(&tree, LINES);
        assert_eq!((topology.hosts, topology.switches.len()), (128, 32 + 32 + 16));
        assert_eq!((topology.links.len(), topology.ports()), (384, 768));
        assert_eq!(topology.leaf(127), Some(128 + 31));
        assert_eq!(topology.uplinks, [4, 4]);
        // Core 5 is above the second aggregation switch of each pod.
        for (pod, aggregation) in (0..8).map(|pod| (pod, format!("agg{}", 4 * pod + 1))) {
            assert!(topology.find_port("core5", &aggregation).is_some(), "pod {pod}");
        }
        assert_eq!(topology.find_port("core5", "agg0"), None);
        let port = topology.find_port("leaf31", "host127").unwrap();
        assert_eq!((port, topology.port(port)), (255, Some((159, 127))));
        let hosts = ["host0", "host127", "host128", "host07", "leaf0"];
        let hosts = hosts.map(|name| topology.find_host(name));
        assert_eq!(hosts, [Some(0), Some(127), None, None, None]);
    }

    #[test]
    fn two_sites_have_a_circuit_between_each_two_spines() {
        let numbers = LeafSpine { leaves: 2, hosts: 3, spines: 2 };
        let topology = Topology::two_sites(&numbers, LINES, Lines { delay: 9, ..LINES });
        let long = topology.links.iter().filter(|link| link.delay == 9).count();
        assert_eq!((topology.hosts, topology.links.len(), long), (12, 12 + 8 + 4, 4));
        assert!(topology.find_port("spine0", "spine3").is_some());
        assert_eq!(topology.find_port("spine0", "spine1"), None);
        assert_eq!(topology.find_port("leaf0", "spine2"), None);
    }
}
