//! Waits until a fabric forwards, by the kernel's notifications and the state of FRR.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::at_once::at_once;
use crate::changes::Changes;
use crate::deployed::{Databases, Deployed, Overlay};
use crate::entries::{self, Entries};
use crate::lifecycle::{Fabric, FabricError};
use crate::node::Node;
use crate::progress::OnProgress;
use crate::state::Record;

/// How long all routes must be unchanged. The first BFD exchange of a session can take it down once
/// more.
pub const STABLE_TIME: Duration = Duration::from_secs(1);
/// The time between two looks at the notifications, so that many changes are read at once.
const TICK: Duration = Duration::from_millis(200);
/// The time between two questions to bgpd, each by a process of vtysh.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The time after which hosts announce their addresses again.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);
/// The number of announcements after which FRR is assumed to have lost a host.
const LOST_AFTER: u32 = 3;
/// How long nothing must have changed before zebra is assumed to have lost a route.
const STUCK_TIME: Duration = Duration::from_secs(3);

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

/// The state of a session that the configuration keeps down.
const SHUT_DOWN: &str = "Idle (Admin)";

/// What is known about a fabric while it converges.
struct Convergence {
    deployed: Deployed,
    overlay: Overlay,
    changes: Changes,
    databases: Databases,
    /// Entries of flood lists, and of hosts' MAC addresses.
    floods: Entries,
    addresses: Entries,
    /// The last change of a route or of the missing entries.
    changed: Instant,
    /// All nodes that run bgpd, and those whose sessions were not all established since the last
    /// change.
    speakers: Vec<Node>,
    unconfirmed: Vec<Node>,
    asked: Option<Instant>,
    announced: Option<Instant>,
    announcements: u32,
}

impl Fabric {
    /// Waits until the fabric forwards:
    /// - every VTEP has every other VTEP of its VNIs in the flood list (type-3 routes),
    /// - every VTEP has every host's MAC address (type-2 routes),
    /// - no route has changed for a second,
    /// - all BGP sessions are established that are not shut down.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] after `limit`, with what is missing.
    pub fn converge(&self, limit: Duration, report: OnProgress) -> Result<(), FabricError> {
        self.converge_with(limit, report, || Ok(()))
    }

    /// As [`Self::converge`]. Calls `beside` as soon as all flood lists are complete, and then waits
    /// until the fabric forwards with what it has started. The start of vtepd on many leaves takes
    /// time from FRR, and zebra's connections to it make zebra lose routes that it is installing.
    ///
    /// # Errors
    /// As [`Self::converge`], and those of `beside`.
    pub fn converge_with<E: From<FabricError>>(
        &self,
        limit: Duration,
        report: OnProgress,
        beside: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = Instant::now();
        report("reading the overlay").map_err(FabricError::from)?;
        let mut convergence = Convergence::begin(self)?;
        let mut beside = Some(beside);
        loop {
            let text = convergence.text();
            report(&text).map_err(FabricError::from)?;
            if convergence.floods.complete()
                && let Some(beside) = beside.take()
            {
                let began = Instant::now();
                beside()?;
                // It has a limit of its own.
                start += began.elapsed();
                convergence.disturbed();
            } else if convergence.step(report)? {
                return Ok(());
            }
            if start.elapsed() >= limit {
                return Err(convergence.missing(limit)?.into());
            }
            std::thread::sleep(TICK);
            convergence.update()?;
        }
    }

    /// Waits until the fabric forwards and `prepare` is done, and no best path has changed meanwhile.
    /// On a busy machine, a late BFD packet can take a link down once more. Returns the number of
    /// best path changes so far.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] if it takes longer than `limit`, and those of `prepare`.
    pub fn settle<E: From<FabricError>>(
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
                return Err(FabricError::NotConverged { limit, missing, forwards: false }.into());
            }
        }
    }

    /// The number of best path changes of each node and address family. If it is the same before
    /// and after a measurement, no best path changed in between.
    ///
    /// # Errors
    /// If a node does not answer.
    pub fn best_path_changes(&self) -> Result<Vec<u64>, FabricError> {
        let summaries = at_once(&self.speakers()?, summary)?;
        let families = summaries.iter().flat_map(BTreeMap::values);
        Ok(families.map(|family| family.table_version).collect())
    }

    /// The nodes that run bgpd.
    pub fn speakers(&self) -> Result<Vec<Node>, FabricError> {
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

/// The BGP sessions of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sessions {
    /// Those that are established.
    pub established: usize,
    /// All peers of the configuration; 0 if bgpd does not answer.
    pub configured: usize,
}

impl Node {
    /// The BGP sessions; `None` if the node's `daemons` file does not enable bgpd.
    ///
    /// # Errors
    /// If that file cannot be read.
    pub fn sessions(&self) -> Result<Option<Sessions>, FabricError> {
        if !self.enables("bgpd")? {
            return Ok(None);
        }
        let families = summary(self).unwrap_or_default();
        // A session has a peer in each of its address families.
        let peers: BTreeMap<&String, bool> = families
            .values()
            .flat_map(|family| &family.peers)
            .map(|(name, peer)| (name, peer.state == "Established"))
            .collect();
        let established = peers.values().filter(|established| **established).count();
        Ok(Some(Sessions { established, configured: peers.len() }))
    }
}

impl Convergence {
    fn begin(fabric: &Fabric) -> Result<Self, FabricError> {
        let deployed = fabric.deployed();
        // The order matters: what changes after it was read is notified.
        let changes = Changes::watch(&deployed)?;
        let overlay = deployed.overlay()?;
        let databases = deployed.databases(&overlay)?;
        let (floods, addresses) = overlay.entries(&databases);
        let speakers = fabric.speakers()?;
        Ok(Self {
            deployed,
            overlay,
            changes,
            databases,
            floods,
            addresses,
            changed: Instant::now(),
            unconfirmed: speakers.clone(),
            speakers,
            asked: None,
            announced: None,
            announcements: 0,
        })
    }

    /// Reads again what the kernel has notified of.
    fn update(&mut self) -> Result<(), FabricError> {
        let changed = self.changes.take()?;
        self.deployed.read_again(&self.overlay, &changed.databases, &mut self.databases)?;
        let (floods, addresses) = self.overlay.entries(&self.databases);
        let routes = changed.routes || changed.ipv6_routes && self.overlay.is_over_ipv6();
        if routes || (&floods, &addresses) != (&self.floods, &self.addresses) {
            self.disturbed();
        }
        (self.floods, self.addresses) = (floods, addresses);
        Ok(())
    }

    /// Nothing that was seen before counts any longer.
    fn disturbed(&mut self) {
        self.changed = Instant::now();
        self.unconfirmed.clone_from(&self.speakers);
    }

    /// Does what is due. Returns whether the fabric forwards.
    fn step(&mut self, report: OnProgress) -> Result<bool, FabricError> {
        if !self.floods.complete() {
            if self.changed.elapsed() >= STUCK_TIME {
                let routes = self.deployed.reinstall_routes(&self.floods.missing)?;
                if !routes.is_empty() {
                    let routes = entries::first(routes);
                    report(&format!("zebra installs routes again: {routes}"))?;
                }
                self.changed = Instant::now();
            }
        } else if !self.addresses.complete() {
            self.announce()?;
        } else if self.changed.elapsed() >= STABLE_TIME
            && self.asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN)
        {
            self.unconfirmed = unestablished(&self.unconfirmed)?.1;
            self.asked = Some(Instant::now());
            self.update()?;
            return Ok(self.unconfirmed.is_empty());
        }
        Ok(false)
    }

    /// Makes hosts send gratuitous ARPs from time to time.
    fn announce(&mut self) -> Result<(), FabricError> {
        if self.announced.is_some_and(|at| at.elapsed() < ANNOUNCE_AGAIN) {
            return Ok(());
        }
        if self.announcements >= LOST_AFTER {
            self.deployed.forget_overlooked(&self.overlay)?;
        }
        self.deployed.announce(&self.overlay.hosts)?;
        self.announced = Some(Instant::now());
        self.announcements += 1;
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = format!("flood entries {}, remote MACs {}", self.floods, self.addresses);
        if self.asked.is_some() && self.floods.complete() && self.addresses.complete() {
            let nodes = self.speakers.len();
            text += &format!(", BGP complete on {}/{nodes}", nodes - self.unconfirmed.len());
        }
        text
    }

    /// Names what is missing after `limit`.
    fn missing(&self, limit: Duration) -> Result<FabricError, FabricError> {
        let away = unestablished(&self.speakers)?.0;
        let sessions = match away.len() {
            0 => "all BGP sessions are established".to_owned(),
            count => format!("{count} BGP sessions are not established{}", few(&away)),
        };
        let missing = entries::list(self.floods.missing.iter().chain(&self.addresses.missing));
        let is_stable = self.changed.elapsed() >= STABLE_TIME;
        let forwards = missing.is_empty() && is_stable;
        let rest = match (missing.is_empty(), is_stable) {
            (true, true) => String::new(),
            (true, false) => "; routes change again and again".to_owned(),
            (false, _) => format!("; {missing}"),
        };
        let missing = format!("{}; {sessions}{rest}", self.text());
        Ok(FabricError::NotConverged { limit, missing, forwards })
    }
}

fn summary(node: &Node) -> Result<BTreeMap<String, AddressFamily>, FabricError> {
    let command = "show bgp summary json";
    let text = node.run(&["vtysh", "-c", command])?;
    serde_json::from_str(&text)
        .map_err(|source| FabricError::Answer { command: command.to_owned(), source })
}

/// The sessions that are not established although they are not shut down, and the nodes that have
/// such sessions.
fn unestablished(nodes: &[Node]) -> Result<(BTreeSet<String>, Vec<Node>), FabricError> {
    let (mut away, mut incomplete) = (BTreeSet::new(), Vec::new());
    for (node, summary) in nodes.iter().zip(at_once(nodes, summary)?) {
        let before = away.len();
        for (name, peer) in summary.values().flat_map(|family| &family.peers) {
            if peer.state != "Established" && peer.state != SHUT_DOWN {
                away.insert(format!("{} to {name} is {}", node.name(), peer.state));
            }
        }
        if away.len() > before {
            incomplete.push(node.clone());
        }
    }
    Ok((away, incomplete))
}

/// Lists the sessions if there are at most four.
fn few(away: &BTreeSet<String>) -> String {
    match away.len() {
        1..=4 => format!(" ({})", Vec::from_iter(away.iter().map(String::as_str)).join(", ")),
        _ => String::new(),
    }
}
