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
            let sessions = sessions(nodes.iter().filter(|node| speakers.contains(node.name())))?;
            let (floods, addresses) = deployed.entries(&overlay)?;
            let text = format!(
                "BGP sessions {}/{}, flood entries {}/{}, remote MACs {}/{}",
                sessions.found,
                sessions.expected,
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

fn sessions<'a>(nodes: impl Iterator<Item = &'a Node>) -> Result<Count, FabricError> {
    let mut count = Count::default();
    for node in nodes {
        let text = node.run(&["vtysh", "-c", "show bgp summary json"])?;
        let families: BTreeMap<String, AddressFamily> = parse(&text, "show bgp summary json")?;
        for peer in families.values().flat_map(|family| family.peers.values()) {
            count.see(peer.state == "Established");
        }
    }
    Ok(count)
}
