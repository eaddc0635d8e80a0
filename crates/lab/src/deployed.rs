//! The overlay of a fabric that is up: VXLAN netdevs and the hosts on their bridges, as the kernel
//! reports them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Deserialize;

use crate::fabric::FabricError;
use crate::netns::{self, Namespace, NetnsError};
use crate::packet::Interface;
use crate::roce::announce;
use crate::topology::{Endpoint, Topology};

/// A fabric that is up, brought up by `lab` or by ContainerLab. ContainerLab names the namespaces
/// of its containers as `ip netns` does.
#[derive(Debug, Clone)]
pub struct Deployed {
    topology: Topology,
    prefix: String,
}

/// A VXLAN netdev of a node.
#[derive(Debug, Clone)]
pub(crate) struct Tunnel {
    pub(crate) node: String,
    device: String,
    vni: u32,
    vtep: Ipv4Addr,
}

/// A host on a bridge with a VXLAN netdev.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The interface of the host.
    pub(crate) end: Endpoint,
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: String,
    pub(crate) vni: u32,
    /// The VTEP address of the host's leaf.
    pub(crate) vtep: Ipv4Addr,
    /// The node with the bridge.
    pub(crate) leaf: String,
}

/// How many of the expected items were found.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Count {
    pub(crate) found: usize,
    pub(crate) expected: usize,
}

impl Count {
    pub(crate) fn see(&mut self, found: bool) {
        self.found += usize::from(found);
        self.expected += 1;
    }

    pub(crate) fn complete(&self) -> bool {
        self.found == self.expected
    }
}

/// The VXLAN netdevs and hosts of a fabric.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    pub(crate) tunnels: Vec<Tunnel>,
    pub(crate) hosts: Vec<Host>,
}

/// The fields of `ip -json -details link` that are used.
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

/// The fields of `bridge -json fdb` that are used.
#[derive(Deserialize)]
struct FdbEntry {
    mac: String,
    dst: Option<Ipv4Addr>,
    ifname: Option<String>,
}

impl Deployed {
    /// A fabric whose namespaces are named `prefix` plus the name of the node.
    #[must_use]
    pub fn new(topology: Topology, prefix: String) -> Self {
        Self { topology, prefix }
    }

    /// Finds the fabric of this topology: ContainerLab's if it is up, otherwise `lab`'s.
    ///
    /// # Errors
    /// [`FabricError::NotUp`].
    pub fn find(topology: Topology) -> Result<Self, FabricError> {
        let name = topology.name.clone();
        for prefix in [format!("clab-{name}-"), format!("lab-{name}-")] {
            let there = netns::list(&prefix);
            let own = topology.nodes.iter().filter(|(_, node)| node.shares.is_none());
            if own.clone().next().is_some()
                && own.clone().all(|(node, _)| there.contains(&format!("{prefix}{node}")))
            {
                return Ok(Self::new(topology, prefix));
            }
        }
        Err(FabricError::NotUp(name))
    }

    /// The topology of the fabric.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether ContainerLab brought the fabric up; otherwise `lab` did.
    #[must_use]
    pub fn is_containerlab(&self) -> bool {
        self.prefix.starts_with("clab-")
    }

    /// Opens the namespace of a node.
    ///
    /// # Errors
    /// If the namespace does not exist.
    pub fn namespace(&self, node: &str) -> Result<Namespace, NetnsError> {
        let shared = self.topology.nodes.get(node).and_then(|settings| settings.shares.as_deref());
        Namespace::open(format!("{}{}", self.prefix, shared.unwrap_or(node)))
    }

    /// The IPv4 routes of each node, as `ip route` prints them.
    pub(crate) fn routes(&self) -> Result<Vec<String>, NetnsError> {
        let own = self.topology.nodes.iter().filter(|(_, node)| node.shares.is_none());
        own.map(|(name, _)| self.namespace(name)?.run(&["ip", "route", "show"])).collect()
    }

    /// Reads the VXLAN netdevs of all nodes and the hosts on their bridges.
    pub(crate) fn overlay(&self) -> Result<Overlay, FabricError> {
        let mut overlay = Overlay::default();
        for node in self
            .topology
            .nodes
            .iter()
            .filter(|(_, node)| node.shares.is_none())
            .map(|(name, _)| name)
        {
            let links: Vec<Link> =
                json(&self.namespace(node)?, &["ip", "-json", "-details", "link", "show"])?;
            for link in &links {
                let info = link
                    .linkinfo
                    .as_ref()
                    .filter(|info| info.info_kind.as_deref() == Some("vxlan"));
                let Some(Vxlan { id: Some(vni), local: Some(vtep) }) =
                    info.and_then(|info| info.info_data.as_ref())
                else {
                    continue;
                };
                let (vni, vtep) = (*vni, *vtep);
                overlay.tunnels.push(Tunnel {
                    node: node.clone(),
                    device: link.ifname.clone(),
                    vni,
                    vtep,
                });
                for port in
                    links.iter().filter(|port| port.master.is_some() && port.master == link.master)
                {
                    let near = Endpoint { node: node.clone(), interface: port.ifname.clone() };
                    let Some(end) = self.topology.peer(&near).cloned() else { continue };
                    let namespace = self.namespace(&end.node)?;
                    let Ok(interface) = namespace.enter(|| Interface::find(&end.interface))? else {
                        continue;
                    };
                    if let Some(address) = interface.ipv4 {
                        let mac = interface.mac.to_string();
                        overlay.hosts.push(Host {
                            end,
                            address,
                            mac,
                            vni,
                            vtep,
                            leaf: node.clone(),
                        });
                    }
                }
            }
        }
        Ok(overlay)
    }

    /// Makes every host send a gratuitous ARP, so that bridges learn its port.
    pub(crate) fn announce(&self, hosts: &[Host]) -> Result<(), FabricError> {
        for host in hosts {
            // A host without an IPv4 address is not announced.
            let _ = self.namespace(&host.end.node)?.enter(|| announce(&host.end.interface))?;
        }
        Ok(())
    }

    /// Deletes bridge entries of hosts that some other VTEP does not know, so that the next frame
    /// makes the kernel notify again. zebra 10.3 processes notifications of links and of MAC
    /// addresses in two threads. It loses an address on a port that it does not know yet, and the
    /// kernel does not repeat the notification.
    pub(crate) fn forget_overlooked(&self, overlay: &Overlay) -> Result<(), FabricError> {
        let databases = self.databases(overlay)?;
        for host in &overlay.hosts {
            if overlay
                .far_from(host.vni, host.vtep)
                .all(|there| databases.has(there, &host.mac, host.vtep))
            {
                continue;
            }
            for here in
                overlay.tunnels.iter().filter(|here| (here.vni, here.vtep) == (host.vni, host.vtep))
            {
                let on_ports = databases
                    .of(here)
                    .iter()
                    .filter(|entry| entry.mac == host.mac && entry.dst.is_none());
                let ports = on_ports
                    .filter_map(|entry| entry.ifname.as_deref())
                    .filter(|port| *port != here.device);
                for port in ports {
                    let command = ["bridge", "fdb", "del", &host.mac, "dev", port, "master"];
                    // The entry may have been removed meanwhile.
                    let _ = self.namespace(&here.node)?.run(&command);
                }
            }
        }
        Ok(())
    }

    /// Counts the flood list entries and remote MAC addresses in the kernel's forwarding databases.
    pub(crate) fn entries(&self, overlay: &Overlay) -> Result<(Count, Count), FabricError> {
        const FLOOD: &str = "00:00:00:00:00:00";
        let (mut floods, mut addresses) = (Count::default(), Count::default());
        let databases = self.databases(overlay)?;
        for here in &overlay.tunnels {
            for there in overlay.far_from(here.vni, here.vtep) {
                floods.see(databases.has(here, FLOOD, there.vtep));
            }
            for host in
                overlay.hosts.iter().filter(|host| host.vni == here.vni && host.vtep != here.vtep)
            {
                addresses.see(databases.has(here, &host.mac, host.vtep));
            }
        }
        Ok((floods, addresses))
    }

    /// Reads the forwarding databases of all nodes with a VXLAN netdev.
    fn databases<'a>(&self, overlay: &'a Overlay) -> Result<Databases<'a>, FabricError> {
        let mut databases = Databases::default();
        for tunnel in &overlay.tunnels {
            if !databases.0.contains_key(tunnel.node.as_str()) {
                let fdb =
                    json(&self.namespace(&tunnel.node)?, &["bridge", "-json", "fdb", "show"])?;
                databases.0.insert(&tunnel.node, fdb);
            }
        }
        Ok(databases)
    }
}

impl Overlay {
    /// The VXLAN netdevs of this VNI at other VTEPs.
    fn far_from(&self, vni: u32, vtep: Ipv4Addr) -> impl Iterator<Item = &Tunnel> {
        self.tunnels.iter().filter(move |there| there.vni == vni && there.vtep != vtep)
    }
}

/// Forwarding databases by node.
#[derive(Default)]
struct Databases<'a>(BTreeMap<&'a str, Vec<FdbEntry>>);

impl Databases<'_> {
    /// The forwarding database of a tunnel's node.
    fn of(&self, tunnel: &Tunnel) -> &[FdbEntry] {
        self.0.get(tunnel.node.as_str()).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a tunnel's netdev has a MAC address with this remote VTEP.
    fn has(&self, tunnel: &Tunnel, mac: &str, vtep: Ipv4Addr) -> bool {
        let device = Some(&tunnel.device);
        self.of(tunnel).iter().any(|entry| {
            entry.mac == mac && entry.dst == Some(vtep) && entry.ifname.as_ref() == device
        })
    }
}

fn json<T: serde::de::DeserializeOwned>(
    namespace: &Namespace,
    command: &[&str],
) -> Result<T, FabricError> {
    parse(&namespace.run(command)?, &command.join(" "))
}

/// Parses the JSON output of a command of iproute2 or FRR.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    text: &str,
    command: &str,
) -> Result<T, FabricError> {
    // Both print nothing instead of an empty list.
    let text = if text.trim().is_empty() { "[]" } else { text };
    serde_json::from_str(text)
        .map_err(|source| FabricError::Answer { command: command.to_owned(), source })
}
