//! Waiting until a fabric forwards: by asking FRR and the kernel, never by the clock alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::fabric::{Fabric, FabricError, OnProgress};
use crate::node::Node;
use crate::overlay::{Count, parse};

/// How long every route must have stayed as it is. A session's first BFD exchange can take it down once more.
pub(crate) const CALM: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(100);
/// Hosts say again where they are if their addresses have not spread after so long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);

/// `show bgp summary json`, as far as it matters.
#[derive(Deserialize)]
struct AddressFamily {
    #[serde(default)]
    peers: BTreeMap<String, Peer>,
}

#[derive(Deserialize)]
struct Peer {
    state: String,
}

impl Fabric {
    /// Waits until all BGP sessions are up, every VTEP floods to every other of its VNIs (type-3 routes), every VTEP
    /// knows every host's MAC address (type-2 routes), and no route has changed for a second.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] with what is missing after `limit`.
    pub fn converge(&self, limit: Duration, report: OnProgress) -> Result<(), FabricError> {
        let nodes = self.nodes();
        let deployed = self.deployed();
        let overlay = deployed.overlay()?;
        let speakers: BTreeSet<String> = self
            .processes()?
            .into_iter()
            .filter(|process| process.name == "bgpd")
            .map(|process| process.node)
            .collect();
        let start = Instant::now();
        let mut announced: Option<Instant> = None;
        let mut calm: Option<(Instant, Vec<String>)> = None;
        loop {
            let (sessions, away) = sessions(nodes.iter().filter(|node| speakers.contains(node.name())))?;
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
                    deployed.announce(&overlay.hosts)?;
                    announced = Some(Instant::now());
                }
            }
            if start.elapsed() >= limit {
                return Err(FabricError::NotConverged { limit, missing: text });
            }
            std::thread::sleep(POLL);
        }
    }
}

/// How many sessions are up, and which are not.
fn sessions<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<(Count, BTreeSet<String>), FabricError> {
    let (mut count, mut away) = (Count::default(), BTreeSet::new());
    for node in nodes {
        let text = node.run(&["vtysh", "-c", "show bgp summary json"])?;
        let families: BTreeMap<String, AddressFamily> = parse(&text, "show bgp summary json")?;
        for (name, peer) in families.values().flat_map(|family| &family.peers) {
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
