//! Wires: the links of a fabric as its nodes see them. A circuit of `lab wan` and the links at its
//! two ends are one wire.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::model::{Endpoint, Topology};

/// A link between two nodes, with the circuit in it if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    /// The two ends.
    pub ends: [Endpoint; 2],
    /// The interfaces of the circuit, `A` and `B` of `lab wan A:B`, each at the side of its end.
    pub circuit: Option<[Endpoint; 2]>,
}

impl Wire {
    /// The other end.
    #[must_use]
    pub fn far(&self, near: &Endpoint) -> Option<&Endpoint> {
        match &self.ends {
            [a, b] if a == near => Some(b),
            [a, b] if b == near => Some(a),
            _ => None,
        }
    }

    /// The name of the circuit, as `NODE A:B`.
    #[must_use]
    pub fn circuit_name(&self) -> Option<String> {
        let [a, b] = self.circuit.as_ref()?;
        Some(format!("{} {}:{}", a.node, a.interface, b.interface))
    }

    /// The interfaces to set down so that both ends lose their carrier, and `near` itself stays
    /// up: the far end, or both interfaces of the circuit.
    #[must_use]
    pub fn cut_at(&self, near: &Endpoint) -> Vec<&Endpoint> {
        match &self.circuit {
            Some(ports) => ports.iter().collect(),
            None => self.far(near).into_iter().collect(),
        }
    }

    /// All interfaces of the wire: its ends, and those of the circuit.
    pub fn interfaces(&self) -> impl Iterator<Item = &Endpoint> {
        self.ends.iter().chain(self.circuit.iter().flatten())
    }

    /// Whether the wire has this name: an interface as `NODE:INTERFACE`, or the circuit as `A:B` or
    /// `NODE A:B`.
    fn is_named(&self, name: &str) -> bool {
        let circuit = self.circuit_name();
        let short = circuit.as_ref().and_then(|name| name.split_once(' ')).map(|(_, short)| short);
        self.interfaces().any(|end| end.to_string() == name)
            || circuit.as_deref() == Some(name)
            || short == Some(name)
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = &self.ends;
        write!(f, "{a} to {b}")?;
        match self.circuit_name() {
            Some(name) => write!(f, ", circuit {name}"),
            None => Ok(()),
        }
    }
}

impl Topology {
    /// The wires: links in the order of the file, then circuits.
    #[must_use]
    pub fn wires(&self) -> Vec<Wire> {
        let circuits: Vec<[Endpoint; 2]> = self.circuits().collect();
        let ports: BTreeSet<&Endpoint> = circuits.iter().flatten().collect();
        let is_plain = |ends: &&[Endpoint; 2]| !ends.iter().any(|end| ports.contains(end));
        let plain = self.links.iter().map(|link| &link.ends).filter(is_plain);
        let plain = plain.map(|ends| Wire { ends: ends.clone(), circuit: None });
        let joined = circuits.iter().filter_map(|[a, b]| {
            let ends = [self.peer(a)?.clone(), self.peer(b)?.clone()];
            Some(Wire { ends, circuit: Some([a.clone(), b.clone()]) })
        });
        plain.chain(joined).collect()
    }

    /// The wire with this interface, which is an end of it or of its circuit.
    #[must_use]
    pub fn wire_at(&self, end: &Endpoint) -> Option<Wire> {
        self.wires().into_iter().find(|wire| wire.interfaces().any(|own| own == end))
    }

    /// The other end of the wire that ends at `end`.
    #[must_use]
    pub fn far_end(&self, end: &Endpoint) -> Option<Endpoint> {
        self.wire_at(end)?.far(end).cloned()
    }

    /// The other ends of all wires, by their near ends. To ask for many, this is faster than
    /// [`Self::far_end`].
    #[must_use]
    pub fn far_ends(&self) -> BTreeMap<Endpoint, Endpoint> {
        let both = |Wire { ends: [a, b], .. }| [(a.clone(), b.clone()), (b, a)];
        self.wires().into_iter().flat_map(both).collect()
    }

    /// The wire of this name: an interface as `NODE:INTERFACE`, or a circuit as `A:B` or `NODE A:B`.
    /// `None` also if the name fits several.
    #[must_use]
    pub fn wire_named(&self, name: &str) -> Option<Wire> {
        let mut named = self.wires().into_iter().filter(|wire| wire.is_named(name));
        named.next().filter(|_| named.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaleacross() -> Topology {
        let file =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/containerlab/scaleacross.clab.yml");
        Topology::load(file.as_ref()).unwrap()
    }

    #[test]
    fn a_circuit_and_the_links_at_its_ends_are_one_wire() {
        let topology = scaleacross();
        let wires = topology.wires();
        // 12 links of leaves to spines, 8 to hosts, and 4 circuits.
        assert_eq!(wires.len(), 24);
        assert!(wires.iter().all(|wire| wire.ends.iter().all(|end| end.node != "wan")));
        let end = |text: &str| {
            let (node, interface) = text.split_once(':').unwrap();
            Endpoint { node: node.into(), interface: interface.into() }
        };
        let circuit = topology.wire_at(&end("spine3:dci1")).unwrap();
        assert_eq!(circuit.to_string(), "spine1:dci1 to spine3:dci1, circuit wan a1:b1");
        let names = |ends: Vec<&Endpoint>| ends.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(circuit.cut_at(&end("spine3:dci1"))), ["wan:a1", "wan:b1"]);
        let plain = topology.wire_at(&end("leaf1:up2")).unwrap();
        assert_eq!(plain.to_string(), "leaf1:up2 to spine2:dn1");
        assert_eq!(names(plain.cut_at(&end("leaf1:up2"))), ["spine2:dn1"]);
        assert_eq!(topology.far_end(&end("spine4:dci1")), Some(end("spine1:dci2")));
        assert_eq!(topology.far_end(&end("wan:a1")), None, "it is inside of a wire");
        let far_ends = topology.far_ends();
        assert_eq!(far_ends.len(), 2 * wires.len());
        for (near, far) in &far_ends {
            assert_eq!(topology.far_end(near).as_ref(), Some(far));
        }
    }

    #[test]
    fn a_wire_is_named_by_an_interface_or_by_its_circuit() {
        let topology = scaleacross();
        let named = |name: &str| topology.wire_named(name).map(|wire| wire.ends[0].to_string());
        for name in ["spine1:dci2", "spine4:dci1", "wan:a2", "wan:b2", "a2:b2", "wan a2:b2"] {
            assert_eq!(named(name).as_deref(), Some("spine1:dci2"), "{name}");
        }
        assert_eq!(named("host1:eth1").as_deref(), Some("leaf1:hp1"));
        for name in ["b2:a2", "leaf1", "leaf1:up9", "wan", ""] {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
