//! Hosts of which the kernel knows both MAC and IP address: neighbours on the bridges of VNIs that
//! are taken over.

use std::net::IpAddr;

use tables::{SteeringPlan, VniIndex, VniSource};
use wire::{MacAddr, Vni};

use crate::stores::Stores;
use crate::stores::neighbours::Adjacency;

/// A host in a VNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The VNI.
    pub vni: Vni,
    /// The bridge, or the VLAN interface on it (SVI).
    pub interface: String,
    /// The host's IP address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: MacAddr,
}

/// The host port behind which the bridge of the VNI in this index has an address; the bridge itself
/// for an address of its own.
pub(crate) fn port_of(
    stores: &Stores,
    plan: &SteeringPlan,
    index: VniIndex,
    mac: MacAddr,
) -> Option<String> {
    let vxlan = plan.vnis.values().find(|vni| vni.index == index)?.source.netdev()?;
    let bridge = stores.links.get(vxlan)?.master?;
    let port = stores.bridges.get(bridge, mac)?;
    let at = if port.permanent { bridge } else { port.ifindex };
    (port.ifindex != vxlan).then(|| stores.links.name(at))
}

/// All known hosts.
pub(crate) fn hosts<'a>(
    stores: &'a Stores,
    plan: &'a SteeringPlan,
) -> impl Iterator<Item = Host> + 'a {
    let links = &stores.links;
    let hosts = stores.neighbours.iter().filter(|(host, _)| !host.address.is_multicast());
    hosts.flat_map(move |(Adjacency { ifindex, address }, adjacent)| {
        let link = links.get(ifindex);
        let bridge =
            link.and_then(|link| if links.is_bridge(ifindex) { Some(ifindex) } else { link.link });
        let vxlans = bridge.into_iter().flat_map(|bridge| links.vxlans_in(bridge));
        vxlans.filter_map(move |vxlan| {
            let vni = plan.vnis.get(&VniSource::Netdev(vxlan))?.vni;
            Some(Host { vni, interface: link?.name.clone(), address, mac: adjacent.mac? })
        })
    })
}
