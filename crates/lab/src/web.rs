//! What the live page (crate `web`) shows of a fabric.

mod replay;
mod results;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use web::{Fabric, Link, Node};

use crate::{graph, link};
use fabric::deployed::DeployedError;
use fabric::topology::Topology;

pub use replay::{Replay, ReplayError, replay};
pub use results::experiment;

/// Describes a fabric that is up. `program` is the path of `lab`.
///
/// # Errors
/// If the overlay cannot be read.
pub fn describe(fabric: &fabric::Fabric, program: PathBuf) -> Result<Fabric, DeployedError> {
    let (name, deployed) = (fabric.name().to_string(), fabric.deployed());
    let overlay = deployed.overlay()?;
    let leaves: BTreeSet<&String> = overlay.tunnels.iter().map(|tunnel| &tunnel.node).collect();
    let wires = deployed.topology().wires();
    let mut nodes = BTreeMap::new();
    for end in wires.iter().flat_map(fabric::topology::Wire::interfaces) {
        let namespace = deployed.namespace(&end.node)?.name().to_owned();
        let leaf = leaves.contains(&end.node);
        nodes.insert(end.node.clone(), Node { namespace, leaf });
    }
    let links = links(deployed.topology());
    let picture = graph::outline(&name, deployed.topology());
    let hosts = overlay.hosts.iter().map(|host| (host.end.node.clone(), host.address)).collect();
    let circuits = Arc::new(move || {
        let circuits = wires.iter().filter(|wire| wire.circuit.is_some());
        let answered = circuits.filter_map(|wire| {
            // A circuit whose `lab wan` does not answer is shown without properties.
            let properties = link::properties(&deployed, wire).ok()?;
            let lost = link::lost(&deployed, wire).ok()?;
            let mut both = properties.map(|of| json!(of));
            for (way, lost) in both.iter_mut().filter_map(Value::as_object_mut).zip(lost) {
                way.insert("lost_frames".to_owned(), json!(lost));
            }
            Some((wire.circuit_name()?, both))
        });
        answered.collect()
    });
    Ok(Fabric { name, picture, nodes, links, hosts, program, circuits })
}

/// The links of a topology; a circuit is one.
fn links(topology: &Topology) -> Vec<Link> {
    let link = |wire: fabric::topology::Wire| Link {
        a: wire.ends[0].to_string(),
        b: wire.ends[1].to_string(),
        circuit: wire.circuit_name(),
        interfaces: wire.interfaces().map(ToString::to_string).collect(),
    };
    topology.wires().into_iter().map(link).collect()
}
