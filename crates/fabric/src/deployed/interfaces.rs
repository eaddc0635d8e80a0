//! The interfaces of all nodes, and which of them are behind a bridge.

use std::collections::{BTreeMap, BTreeSet};

use super::Tunnel;
use crate::rtnl::{Link, VxlanSettings};
use crate::topology::{Endpoint, Topology};

/// The interfaces of all namespaces, and the links between them.
pub(super) struct Interfaces<'a> {
    topology: &'a Topology,
    /// By the node that has the namespace.
    links: BTreeMap<String, Vec<Link>>,
    /// The far ends of links. The near ends are named by the node that has the namespace.
    far_ends: BTreeMap<Endpoint, Endpoint>,
}

/// An interface behind a bridge of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    /// The port of the leaf's bridge that leads to it.
    pub(super) port: String,
    /// The interface.
    pub(super) end: Endpoint,
}

impl<'a> Interfaces<'a> {
    /// `links` are the interfaces of each node that has a namespace of its own.
    pub(super) fn new(topology: &'a Topology, links: BTreeMap<String, Vec<Link>>) -> Self {
        let near = |end: Endpoint| Endpoint { node: topology.owner(&end.node).to_owned(), ..end };
        let far_ends = topology.far_ends().into_iter().map(|(end, far)| (near(end), far)).collect();
        Self { topology, links, far_ends }
    }

    /// The VXLAN netdevs.
    pub(super) fn tunnels(&self) -> Vec<Tunnel> {
        let mut tunnels = Vec::new();
        for (node, links) in &self.links {
            for link in links {
                let Some(VxlanSettings { vni, local, port }) = link.vxlan else { continue };
                let (node, index) = (node.clone(), link.index);
                tunnels.push(Tunnel { node, index, vni, vtep: local, udp_port: port });
            }
        }
        tunnels
    }

    /// The interfaces that are no bridge ports and that frames of this VXLAN netdev reach by its
    /// bridge, directly or by further bridges without VXLAN netdevs.
    pub(super) fn behind(&self, leaf: &str, vxlan: u32) -> Vec<Port> {
        let own = self.of(leaf).iter().find(|link| link.index == vxlan);
        let Some(first) = own.and_then(|link| link.master) else { return Vec::new() };
        let mut found = Vec::new();
        let mut seen = BTreeSet::from([(leaf.to_owned(), first)]);
        let mut bridges = vec![(leaf.to_owned(), first, None::<String>)];
        while let Some((node, bridge, leaf_port)) = bridges.pop() {
            for port in self.ports(&node, bridge) {
                let near = Endpoint { node: node.clone(), interface: port.name.clone() };
                let Some(end) = self.far_ends.get(&near).cloned() else { continue };
                let leaf_port = leaf_port.clone().unwrap_or_else(|| port.name.clone());
                let far = self.topology.owner(&end.node).to_owned();
                match self.bridge_of(&far, &end.interface) {
                    None => found.push(Port { port: leaf_port, end }),
                    Some(next) if self.ports(&far, next).any(|port| port.vxlan.is_some()) => {}
                    Some(next) => {
                        if seen.insert((far.clone(), next)) {
                            bridges.push((far, next, Some(leaf_port)));
                        }
                    }
                }
            }
        }
        found
    }

    fn of(&self, node: &str) -> &[Link] {
        self.links.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn ports(&self, node: &str, bridge: u32) -> impl Iterator<Item = &Link> {
        self.of(node).iter().filter(move |port| port.master == Some(bridge))
    }

    /// The bridge that has this interface as a port.
    fn bridge_of(&self, node: &str, interface: &str) -> Option<u32> {
        let links = self.of(node);
        let master = links.iter().find(|link| link.name == interface)?.master?;
        links.iter().any(|link| link.index == master && link.bridge).then_some(master)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, master: u32) -> Link {
        Link {
            index,
            name: name.into(),
            up: true,
            carrier: true,
            mtu: 1500,
            master: (master > 0).then_some(master),
            bridge: name.starts_with("br"),
            vxlan: None,
        }
    }

    /// A VXLAN netdev with index 9 in bridge 1.
    fn vxlan() -> Link {
        let local = "fd00::1".parse().unwrap();
        Link { vxlan: Some(VxlanSettings { vni: 10, local, port: 8472 }), ..link(9, "vx", 1) }
    }

    #[test]
    fn hosts_behind_bridges_are_found_once() {
        let file = "name: x\ntopology:\n  nodes:\n    leaf: {kind: linux}\n    other: {kind: linux}\n    \
            switch: {kind: linux}\n    sw2: {kind: bridge}\n    a: {kind: linux}\n    b: {kind: linux}\n    \
            c: {kind: linux}\n  links:\n";
        let ends = [
            "leaf:p1, switch:s1",
            "leaf:p2, a:eth1",
            "switch:s2, b:eth1",
            "switch:s3, sw2:t1",
            "switch:s4, sw2:t2",
            "sw2:t3, c:eth1",
            "switch:s5, other:p1",
            "leaf:up, other:up",
        ];
        let links = ends.map(|ends| {
            let words: Vec<String> = ends.split(", ").map(|end| format!("\"{end}\"")).collect();
            format!("    - endpoints: [{}]\n", words.join(", "))
        });
        let text = format!("{file}{}", links.concat());
        let topology = Topology::parse(&text, "/".as_ref(), |_| None).unwrap();
        let bridge = |ports: &[&str]| {
            let ports = ports.iter().zip(2..).map(|(name, index)| link(index, name, 1));
            ports.chain([link(1, "br0", 0)]).collect::<Vec<_>>()
        };
        let leaf = |ports: &[&str]| [bridge(ports), vec![vxlan(), link(20, "up", 0)]].concat();
        let host = || vec![link(2, "eth1", 0)];
        let nodes = BTreeMap::from([
            ("leaf".to_owned(), leaf(&["p1", "p2"])),
            ("other".to_owned(), leaf(&["p1"])),
            ("switch".to_owned(), bridge(&["s1", "s2", "s3", "s4", "s5"])),
            ("sw2".to_owned(), bridge(&["t1", "t2", "t3"])),
            ("a".to_owned(), host()),
            ("b".to_owned(), host()),
            ("c".to_owned(), host()),
        ]);
        let interfaces = Interfaces::new(&topology, nodes);
        let tunnels = interfaces.tunnels();
        assert_eq!((tunnels.len(), tunnels[0].udp_port), (2, 8472));
        let mut found: Vec<String> = interfaces
            .behind("leaf", 9)
            .into_iter()
            .map(|Port { port, end }| format!("{port} {end}"))
            .collect();
        found.sort();
        assert_eq!(found, ["p1 b:eth1", "p1 c:eth1", "p2 a:eth1"]);
    }
}
