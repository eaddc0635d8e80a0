//! The overlay of a fabric that is up: VXLAN netdevs and the hosts on their bridges, as the kernel
//! reports them.

mod interfaces;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;
use wire::MacAddr;

use crate::arp::announce;
use crate::at_once::at_once;
use crate::entries::{Entries, Entry};
use crate::netns::{self, Namespace, NetnsError};
use crate::packet::Interface;
use crate::rtnl::{FdbEntry, Route, Rtnl};
use crate::topology::{Endpoint, Topology};
use interfaces::{Interfaces, Port};

/// The MAC address of entries in the flood list of a VXLAN netdev.
const FLOOD: MacAddr = MacAddr([0; 6]);

/// A fabric that is up, brought up by `lab` or by ContainerLab. ContainerLab names the namespaces
/// of its containers as `ip netns` does.
#[derive(Debug, Clone)]
pub struct Deployed {
    topology: Topology,
    prefix: String,
}

/// A VXLAN netdev of a node.
#[derive(Debug, Clone)]
pub struct Tunnel {
    /// The node.
    pub node: String,
    /// The index of the interface.
    index: u32,
    /// The VNI.
    pub vni: u32,
    vtep: IpAddr,
    udp_port: u16,
}

/// A host on a bridge with a VXLAN netdev, or on one behind it.
#[derive(Debug, Clone)]
pub struct Host {
    /// The interface of the host.
    pub end: Endpoint,
    /// The IPv4 address.
    pub address: Ipv4Addr,
    /// The MAC address.
    pub mac: MacAddr,
    /// The VNI of the bridge.
    pub vni: u32,
    /// The VTEP address of the host's leaf.
    pub vtep: IpAddr,
    /// The UDP destination port of VXLAN packets from that leaf.
    pub udp_port: u16,
    /// The node with the VXLAN netdev.
    pub leaf: String,
    /// The port of the leaf's bridge towards the host.
    pub port: String,
}

/// The VXLAN netdevs and hosts of a fabric.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// The VXLAN netdevs.
    pub tunnels: Vec<Tunnel>,
    /// The hosts on their bridges.
    pub hosts: Vec<Host>,
}

/// The overlay of a fabric could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DeployedError {
    /// There is no fabric of that name.
    #[error(
        "fabric '{0}' is not running: start it with 'containerlab deploy -t FILE' or 'lab up FILE'"
    )]
    NotUp(String),
    /// An operation in a namespace failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel does not notify of changes.
    #[error("cannot watch the routes and forwarding databases of {node}")]
    NotWatched {
        /// The node.
        node: String,
        /// The cause.
        source: netlink::Error,
    },
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
    /// [`DeployedError::NotUp`].
    pub fn find(topology: Topology) -> Result<Self, DeployedError> {
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
        Err(DeployedError::NotUp(name.to_string()))
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
        Namespace::open(format!("{}{}", self.prefix, self.topology.owner(node)))
    }

    /// The routes of each node.
    pub fn routes(&self) -> Result<Vec<Vec<Route>>, NetnsError> {
        self.namespaces().map(|name| self.namespace(name)?.rtnl(|rtnl| rtnl.routes())).collect()
    }

    /// The names of the nodes that have a namespace of their own.
    pub fn namespaces(&self) -> impl Iterator<Item = &String> {
        let own = self.topology.nodes.iter().filter(|(_, node)| node.shares.is_none());
        own.map(|(name, _)| name)
    }

    /// Reads the VXLAN netdevs of all nodes and the hosts on their bridges.
    pub fn overlay(&self) -> Result<Overlay, DeployedError> {
        let nodes: Vec<&String> = self.namespaces().collect();
        let links = at_once(&nodes, |node| self.namespace(node)?.rtnl(|rtnl| rtnl.links()))?;
        let links = nodes.into_iter().cloned().zip(links).collect();
        let interfaces = Interfaces::new(&self.topology, links);
        let tunnels = interfaces.tunnels();
        let ends: Vec<(&Tunnel, Port)> = tunnels
            .iter()
            .flat_map(|tunnel| {
                interfaces
                    .behind(&tunnel.node, tunnel.index)
                    .into_iter()
                    .map(move |at| (tunnel, at))
            })
            .collect();
        let hosts = at_once(&ends, |(tunnel, at)| self.host_at(at, tunnel))?;
        let hosts = hosts.into_iter().flatten().collect();
        Ok(Overlay { tunnels, hosts })
    }

    /// The host that has this interface, if it has an IPv4 address. Its leaf has the tunnel.
    fn host_at(&self, at: &Port, tunnel: &Tunnel) -> Result<Option<Host>, NetnsError> {
        let end = &at.end;
        let Ok(interface) = self.namespace(&end.node)?.enter(|| Interface::find(&end.interface))?
        else {
            return Ok(None);
        };
        let Tunnel { node: leaf, vni, vtep, udp_port, .. } = tunnel.clone();
        let (end, port, mac) = (end.clone(), at.port.clone(), interface.mac);
        let host = |address| Host { end, address, mac, vni, vtep, udp_port, leaf, port };
        Ok(interface.ipv4.map(host))
    }

    /// Makes every host send a gratuitous ARP, so that bridges learn its port.
    pub fn announce(&self, hosts: &[Host]) -> Result<(), DeployedError> {
        at_once(hosts, |host| {
            // A host without an IPv4 address is not announced.
            let _ = self.namespace(&host.end.node)?.enter(|| announce(&host.end.interface))?;
            Ok::<_, DeployedError>(())
        })?;
        Ok(())
    }

    /// Deletes bridge entries of hosts that some other VTEP does not know, so that the next frame
    /// makes the kernel notify again. zebra 10.3 processes notifications of links and of MAC
    /// addresses in two threads. It loses an address on a port that it does not know yet, and the
    /// kernel does not repeat the notification.
    pub(crate) fn forget_overlooked(&self, overlay: &Overlay) -> Result<(), DeployedError> {
        let databases = self.databases(overlay)?;
        for host in &overlay.hosts {
            if overlay
                .far_from(host.vni, host.vtep)
                .all(|there| databases.has(there, host.mac, host.vtep))
            {
                continue;
            }
            for here in
                overlay.tunnels.iter().filter(|here| (here.vni, here.vtep) == (host.vni, host.vtep))
            {
                let on_ports = databases
                    .of(here)
                    .iter()
                    .filter(|entry| entry.mac == host.mac && entry.remote.is_none());
                let ports: Vec<u32> =
                    on_ports.map(|entry| entry.index).filter(|port| *port != here.index).collect();
                self.namespace(&here.node)?.rtnl(|rtnl| {
                    for port in ports {
                        // The entry may have been removed meanwhile.
                        let _ = rtnl.delete_port_mac(port, host.mac);
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Deletes the routes to the remote VTEPs of these entries, so that zebra installs them again.
    /// Returns the leaves with the VTEPs.
    ///
    /// When FPM connects, zebra before 10.7 sends all routes, and gives each a new sequence number
    /// (`fpm_rib_send`, `dplane_ctx_route_init`). If the kernel's answer for a route is still on its
    /// way, zebra then ignores it as stale, and the route stays `queued`. Nexthop tracking does not
    /// use such a route, so bgpd regards the EVPN routes of that VTEP as invalid until the route
    /// changes. zebra installs a route again that another process has deleted.
    pub(crate) fn reinstall_routes(&self, missing: &[Entry]) -> Result<Vec<String>, DeployedError> {
        let mut vteps: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
        for entry in missing {
            vteps.entry(&entry.node).or_default().insert(entry.vtep);
        }
        let reinstall = |(node, vteps): &(&str, BTreeSet<IpAddr>)| {
            let mut reinstalled = Vec::new();
            let delete = |rtnl: &Rtnl| {
                let routes = rtnl.routes()?;
                for route in routes.iter().filter(|route| route.is_from_frr()) {
                    let Some(vtep) = vteps.iter().find(|vtep| route.is_to(**vtep)) else {
                        continue;
                    };
                    match rtnl.delete_route(route) {
                        Ok(()) => reinstalled.push(format!("{node} to {vtep}")),
                        // FRR has deleted it meanwhile.
                        Err(error) if error.errno() == Some(Errno::ESRCH as i32) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            };
            self.namespace(node)?.rtnl(delete)?;
            Ok::<_, NetnsError>(reinstalled)
        };
        let reinstalled = at_once(&Vec::from_iter(vteps), reinstall)?;
        Ok(reinstalled.into_iter().flatten().collect())
    }

    /// Reads the forwarding databases of all nodes with a VXLAN netdev.
    ///
    /// # Errors
    /// [`DeployedError::Netns`].
    pub fn databases(&self, overlay: &Overlay) -> Result<Databases, DeployedError> {
        let mut databases = Databases::default();
        let nodes = overlay.tunnels.iter().map(|tunnel| tunnel.node.clone()).collect();
        self.read_again(overlay, &nodes, &mut databases)?;
        Ok(databases)
    }

    /// Reads the forwarding databases of these nodes, if they have a VXLAN netdev.
    pub(crate) fn read_again(
        &self,
        overlay: &Overlay,
        nodes: &BTreeSet<String>,
        databases: &mut Databases,
    ) -> Result<(), DeployedError> {
        let has_tunnel = |node: &&String| overlay.tunnels.iter().any(|of| of.node == **node);
        let nodes: Vec<&String> = nodes.iter().filter(has_tunnel).collect();
        let read = at_once(&nodes, |node| self.namespace(node)?.rtnl(|rtnl| rtnl.fdb()))?;
        databases.0.extend(nodes.into_iter().cloned().zip(read));
        Ok(())
    }
}

impl Overlay {
    /// Whether some VTEP has an IPv6 address.
    #[must_use]
    pub fn is_over_ipv6(&self) -> bool {
        self.tunnels.iter().any(|tunnel| tunnel.vtep.is_ipv6())
    }

    /// The number of other VTEPs of a node's VNIs.
    pub fn remote_vteps(&self, node: &str) -> usize {
        let own = self.tunnels.iter().filter(|here| here.node == node);
        let remote = own.flat_map(|here| self.far_from(here.vni, here.vtep));
        remote.map(|there| there.vtep).collect::<BTreeSet<_>>().len()
    }

    /// The entries of the flood lists, and those of remote hosts' MAC addresses.
    pub fn entries(&self, databases: &Databases) -> (Entries, Entries) {
        let (mut floods, mut addresses) = (Entries::default(), Entries::default());
        for here in &self.tunnels {
            let entry = |mac, vtep| Entry { node: here.node.clone(), vni: here.vni, mac, vtep };
            for there in self.far_from(here.vni, here.vtep) {
                let found = databases.has(here, FLOOD, there.vtep);
                floods.see(entry(None, there.vtep), found);
            }
            for host in
                self.hosts.iter().filter(|host| host.vni == here.vni && host.vtep != here.vtep)
            {
                let found = databases.has(here, host.mac, host.vtep);
                addresses.see(entry(Some(host.mac), host.vtep), found);
            }
        }
        (floods, addresses)
    }

    /// The VXLAN netdevs of this VNI at other VTEPs.
    fn far_from(&self, vni: u32, vtep: IpAddr) -> impl Iterator<Item = &Tunnel> {
        self.tunnels.iter().filter(move |there| there.vni == vni && there.vtep != vtep)
    }
}

/// Forwarding databases by node.
#[derive(Debug, Default)]
pub struct Databases(BTreeMap<String, Vec<FdbEntry>>);

impl Databases {
    /// The forwarding database of a tunnel's node.
    fn of(&self, tunnel: &Tunnel) -> &[FdbEntry] {
        self.0.get(tunnel.node.as_str()).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a tunnel's netdev has a MAC address with this remote VTEP.
    fn has(&self, tunnel: &Tunnel, mac: MacAddr, vtep: IpAddr) -> bool {
        let wanted = FdbEntry { index: tunnel.index, mac, remote: Some(vtep) };
        self.of(tunnel).contains(&wanted)
    }
}
