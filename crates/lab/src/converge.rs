//! Waiting until a fabric forwards: by asking FRR and the kernel, never by the clock alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::fabric::{Fabric, FabricError, OnProgress};
use crate::netns::Namespace;
use crate::node::{Node, NodeError};
use crate::packet::Interface;
use crate::roce::announce;
use crate::topology::Endpoint;

/// How long every route must have stayed as it is. A session's first BFD exchange can take it down once more.
const CALM: Duration = Duration::from_secs(1);
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

/// `ip -json -details link`, as far as it matters.
#[derive(Deserialize)]
struct Link {
    ifname: String,
    master: Option<String>,
    linkinfo: Option<LinkInfo>,
}

#[derive(Deserialize)]
struct LinkInfo {
    info_kind: Option<String>,
    info_data: Option<Vxlan>,
}

#[derive(Deserialize)]
struct Vxlan {
    id: Option<u32>,
    local: Option<Ipv4Addr>,
}

/// `bridge -json fdb`, as far as it matters.
#[derive(Deserialize)]
struct FdbEntry {
    mac: String,
    dst: Option<Ipv4Addr>,
    ifname: Option<String>,
}

/// A VXLAN netdev of a node.
struct Overlay {
    node: String,
    device: String,
    vni: u32,
    vtep: Ipv4Addr,
}

/// A host on a VXLAN bridge.
struct Host {
    end: Endpoint,
    mac: String,
    vni: u32,
    vtep: Ipv4Addr,
}

/// How much of something is there.
#[derive(Default, PartialEq)]
struct Count {
    found: usize,
    expected: usize,
}

impl Count {
    fn see(&mut self, found: bool) {
        self.found += usize::from(found);
        self.expected += 1;
    }

    fn complete(&self) -> bool {
        self.found == self.expected
    }
}

impl Fabric {
    /// Waits until all BGP sessions are up, every VTEP floods to every other of its VNIs (type-3 routes), every VTEP
    /// knows every host's MAC address (type-2 routes), and no route has changed for a second.
    ///
    /// # Errors
    /// [`FabricError::NotConverged`] with what is missing after `limit`.
    pub fn converge(&self, limit: Duration, report: OnProgress) -> Result<(), FabricError> {
        let nodes = self.nodes();
        let (overlays, hosts) = self.overlays_and_hosts(&nodes)?;
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
            let (floods, addresses) = self.entries(&overlays, &hosts)?;
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
                let routes: Vec<String> = nodes.iter().map(routes).collect::<Result<_, NodeError>>()?;
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
                    self.announce(&hosts)?;
                    announced = Some(Instant::now());
                }
            }
            if start.elapsed() >= limit {
                return Err(FabricError::NotConverged { limit, missing: text });
            }
            std::thread::sleep(POLL);
        }
    }

    fn announce(&self, hosts: &[Host]) -> Result<(), FabricError> {
        for host in hosts {
            let namespace = self.node(&host.end.node)?.namespace()?;
            // A host without an IPv4 address speaks when it likes.
            let _ = namespace.enter(|| announce(&host.end.interface))?;
        }
        Ok(())
    }

    fn overlays_and_hosts(&self, nodes: &[Node]) -> Result<(Vec<Overlay>, Vec<Host>), FabricError> {
        let (mut overlays, mut hosts) = (Vec::new(), Vec::new());
        for node in nodes.iter().filter(|node| node.settings.shares.is_none()) {
            let links: Vec<Link> = json(&node.namespace()?, &["ip", "-json", "-details", "link", "show"])?;
            for link in &links {
                let info = link.linkinfo.as_ref().filter(|info| info.info_kind.as_deref() == Some("vxlan"));
                let Some(Vxlan { id: Some(vni), local: Some(vtep) }) =
                    info.and_then(|info| info.info_data.as_ref())
                else {
                    continue;
                };
                overlays.push(Overlay {
                    node: node.name().to_owned(),
                    device: link.ifname.clone(),
                    vni: *vni,
                    vtep: *vtep,
                });
                for port in links.iter().filter(|port| port.master.is_some() && port.master == link.master) {
                    let near = Endpoint { node: node.name().to_owned(), interface: port.ifname.clone() };
                    let Some(end) = self.topology().peer(&near).cloned() else { continue };
                    let namespace = self.node(&end.node)?.namespace()?;
                    let Ok(interface) = namespace.enter(|| Interface::find(&end.interface))? else {
                        continue;
                    };
                    if interface.ipv4.is_some() {
                        hosts.push(Host { end, mac: interface.mac.to_string(), vni: *vni, vtep: *vtep });
                    }
                }
            }
        }
        Ok((overlays, hosts))
    }

    /// How many flood entries and how many remote MAC addresses the kernels' forwarding databases hold.
    fn entries(&self, overlays: &[Overlay], hosts: &[Host]) -> Result<(Count, Count), FabricError> {
        const FLOOD: &str = "00:00:00:00:00:00";
        let (mut floods, mut addresses) = (Count::default(), Count::default());
        let mut databases: BTreeMap<&str, Vec<FdbEntry>> = BTreeMap::new();
        for here in overlays {
            if !databases.contains_key(here.node.as_str()) {
                let fdb = json(&self.node(&here.node)?.namespace()?, &["bridge", "-json", "fdb", "show"])?;
                databases.insert(&here.node, fdb);
            }
            let fdb = databases.get(here.node.as_str()).map(Vec::as_slice).unwrap_or_default();
            let has = |mac: &str, vtep: Ipv4Addr| {
                fdb.iter().any(|entry| {
                    entry.mac == mac && entry.dst == Some(vtep) && entry.ifname.as_ref() == Some(&here.device)
                })
            };
            for there in overlays.iter().filter(|there| there.vni == here.vni && there.vtep != here.vtep) {
                floods.see(has(FLOOD, there.vtep));
            }
            for host in hosts.iter().filter(|host| host.vni == here.vni && host.vtep != here.vtep) {
                addresses.see(has(&host.mac, host.vtep));
            }
        }
        Ok((floods, addresses))
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

fn routes(node: &Node) -> Result<String, NodeError> {
    Ok(node.namespace()?.run(&["ip", "route", "show"])?)
}

fn json<T: serde::de::DeserializeOwned>(namespace: &Namespace, command: &[&str]) -> Result<T, FabricError> {
    parse(&namespace.run(command)?, &command.join(" "))
}

fn parse<T: serde::de::DeserializeOwned>(text: &str, command: &str) -> Result<T, FabricError> {
    // Both tools print nothing at all where there is nothing to list.
    let text = if text.trim().is_empty() { "[]" } else { text };
    serde_json::from_str(text).map_err(|source| FabricError::Answer { command: command.to_owned(), source })
}
