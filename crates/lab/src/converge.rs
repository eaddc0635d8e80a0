//! Waiting until a fabric forwards: by asking FRR and the kernel, never by the clock alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::deployed::{Count, parse};
use crate::fabric::{Fabric, FabricError, OnProgress};
use crate::node::Node;

/// How long every route must have stayed as it is. A session's first BFD exchange can take it down
/// once more.
pub(crate) const CALM: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(100);
/// Hosts say again where they are if their addresses have not spread after so long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);
/// After so many times, FRR has overlooked a host rather than that it is slow.
const OVERLOOKED: u32 = 3;

/// `show bgp summary json`, as far as it matters.
#[derive(Deserialize)]
struct AddressFamily {
    /// Counts what changed in the best paths.
    #[serde(default, rename = "tableVersion")]
    table_version: u64,
    #[serde(default)]
    peers: BTreeMap<String, Peer>,
}

#[derive(Deserialize)]
struct Peer {
    state: String,
}

impl Fabric {
    /// Waits until all BGP sessions are up, every VTEP floods to every other of its VNIs (type-3
    /// routes), every VTEP knows every host's MAC address (type-2 routes), and no route has changed
    /// for a second.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] with what is missing after `limit`.
    pub fn converge(&self, limit: Duration, report: OnProgress) -> Result<(), FabricError> {
        let deployed = self.deployed();
        let overlay = deployed.overlay()?;
        let speakers = self.speakers()?;
        let start = Instant::now();
        let (mut announced, mut announcements): (Option<Instant>, u32) = (None, 0);
        let mut calm: Option<(Instant, Vec<String>)> = None;
        loop {
            let (sessions, away) = sessions(&speakers)?;
            let (floods, addresses) = deployed.entries(&overlay)?;
            let text = format!(
                "BGP sessions {}/{}{}, flood entries {}/{}, remote MACs {}/{}",
                sessions.found,
                sessions.expected,
                few(&away),
                floods.found,
                floods.expected,
                addresses.found,
                addresses.expected
            );
            report(&text)?;
            if sessions.complete() && floods.complete() && addresses.complete() {
                let routes = deployed.routes()?;
                match &calm {
                    Some((since, before)) if *before == routes => {
                        if since.elapsed() >= CALM {
                            return Ok(());
                        }
                    }
                    _ => calm = Some((Instant::now(), routes)),
                }
            } else {
                calm = None;
                if floods.complete() && announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_AGAIN) {
                    if announcements >= OVERLOOKED {
                        deployed.forget_overlooked(&overlay)?;
                    }
                    deployed.announce(&overlay.hosts)?;
                    announced = Some(Instant::now());
                    announcements += 1;
                }
            }
            if start.elapsed() >= limit {
                return Err(FabricError::NotConverged { limit, missing: text });
            }
            std::thread::sleep(POLL);
        }
    }

    /// How often BGP has changed a best path, of each node and address family. What is the same
    /// before and after a measurement did not change meanwhile, not even to and fro.
    ///
    /// # Errors
    /// When a node does not answer.
    pub(crate) fn best_path_changes(&self) -> Result<Vec<u64>, FabricError> {
        let mut versions = Vec::new();
        for node in &self.speakers()? {
            versions.extend(summary(node)?.values().map(|family| family.table_version));
        }
        Ok(versions)
    }

    /// The nodes that run bgpd.
    fn speakers(&self) -> Result<Vec<Node>, FabricError> {
        let processes = self.processes()?;
        let speaks = |node: &Node| {
            processes.iter().any(|process| process.name == "bgpd" && process.node == node.name())
        };
        Ok(self.nodes().into_iter().filter(speaks).collect())
    }
}

fn summary(node: &Node) -> Result<BTreeMap<String, AddressFamily>, FabricError> {
    parse(&node.run(&["vtysh", "-c", "show bgp summary json"])?, "show bgp summary json")
}

/// How many sessions are up, and which are not.
fn sessions(nodes: &[Node]) -> Result<(Count, BTreeSet<String>), FabricError> {
    let (mut count, mut away) = (Count::default(), BTreeSet::new());
    for node in nodes {
        for (name, peer) in summary(node)?.values().flat_map(|family| &family.peers) {
            let established = peer.state == "Established";
            count.see(established);
            if !established {
                away.insert(format!("{} to {name} is {}", node.name(), peer.state));
            }
        }
    }
    Ok((count, away))
}

/// By name, where they are so few that somebody may look for why.
fn few(away: &BTreeSet<String>) -> String {
    match away.len() {
        1..=4 => format!(" ({})", Vec::from_iter(away.iter().map(String::as_str)).join(", ")),
        _ => String::new(),
    }
}
