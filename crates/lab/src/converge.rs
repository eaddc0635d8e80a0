//! Waits until a fabric forwards, by reading the state of FRR and of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::deployed::Count;
use crate::fabric::{Fabric, FabricError};
use crate::node::Node;
use crate::progress::OnProgress;
use crate::state::Record;
use fabric::rtnl::Route;

/// How long all routes must be unchanged. The first BFD exchange of a session can take it down once
/// more.
pub(crate) const STABLE_TIME: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(100);
/// The time after which hosts announce their addresses again.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);
/// The number of announcements after which FRR is assumed to have lost a host.
const LOST_AFTER: u32 = 3;

/// The fields of `show bgp summary json` that are used.
#[derive(Deserialize)]
struct AddressFamily {
    /// Increases with every change of a best path.
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
    /// Waits until the fabric forwards:
    /// - all BGP sessions are established,
    /// - every VTEP has every other VTEP of its VNIs in the flood list (type-3 routes),
    /// - every VTEP has every host's MAC address (type-2 routes),
    /// - no route has changed for a second.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] after `limit`, with what is missing.
    pub fn converge(&self, limit: Duration, report: OnProgress) -> Result<(), FabricError> {
        let deployed = self.deployed();
        let overlay = deployed.overlay()?;
        let speakers = self.speakers()?;
        let start = Instant::now();
        let (mut announced, mut announcements): (Option<Instant>, u32) = (None, 0);
        let mut stable: Option<(Instant, Vec<Vec<Route>>)> = None;
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
                match &stable {
                    Some((since, before)) if *before == routes => {
                        if since.elapsed() >= STABLE_TIME {
                            return Ok(());
                        }
                    }
                    _ => stable = Some((Instant::now(), routes)),
                }
            } else {
                stable = None;
                if floods.complete() && announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_AGAIN) {
                    if announcements >= LOST_AFTER {
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

    /// Waits until the fabric forwards and `prepare` is done, and no best path has changed meanwhile.
    /// On a busy machine, a late BFD packet can take a link down once more. Returns the number of
    /// best path changes so far.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] if it takes longer than `limit`, and those of `prepare`.
    pub(crate) fn settle<E: From<FabricError>>(
        &self,
        limit: Duration,
        report: OnProgress,
        mut prepare: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<u64>, E> {
        let start = Instant::now();
        loop {
            let before = self.best_path_changes()?;
            self.converge(limit, report)?;
            prepare()?;
            if self.best_path_changes()? == before {
                return Ok(before);
            }
            if start.elapsed() >= limit {
                let missing = "BGP changes its best paths again and again".to_owned();
                return Err(FabricError::NotConverged { limit, missing }.into());
            }
        }
    }

    /// The number of best path changes of each node and address family. If it is the same before
    /// and after a measurement, no best path changed in between.
    ///
    /// # Errors
    /// If a node does not answer.
    pub(crate) fn best_path_changes(&self) -> Result<Vec<u64>, FabricError> {
        let mut versions = Vec::new();
        for node in &self.speakers()? {
            versions.extend(summary(node)?.values().map(|family| family.table_version));
        }
        Ok(versions)
    }

    /// The nodes that run bgpd.
    pub(crate) fn speakers(&self) -> Result<Vec<Node>, FabricError> {
        let processes = self.processes()?;
        let mut speakers = Vec::new();
        for node in self.nodes() {
            let own = |record: &Record| record.name == "bgpd" && record.node == node.name();
            let speaks = match node.container {
                Some(_) => node.enables("bgpd")?,
                None => processes.iter().any(own),
            };
            if speaks {
                speakers.push(node);
            }
        }
        Ok(speakers)
    }
}

fn summary(node: &Node) -> Result<BTreeMap<String, AddressFamily>, FabricError> {
    let command = "show bgp summary json";
    let text = node.run(&["vtysh", "-c", command])?;
    serde_json::from_str(&text)
        .map_err(|source| FabricError::Answer { command: command.to_owned(), source })
}

/// Counts the established sessions and lists the others.
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

/// Lists the sessions if there are at most four.
fn few(away: &BTreeSet<String>) -> String {
    match away.len() {
        1..=4 => format!(" ({})", Vec::from_iter(away.iter().map(String::as_str)).join(", ")),
        _ => String::new(),
    }
}
