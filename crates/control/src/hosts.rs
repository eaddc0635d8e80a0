//! Hosts of which the kernel knows both MAC and IP address: neighbours on the bridges of VNIs that
//! are taken over.

use std::net::IpAddr;

use tables::Slot;
use wire::{MacAddr, Vni};

use crate::state::State;

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

impl State {
    /// The host port behind which the bridge of the VNI in this slot has an address.
    #[must_use]
    pub fn port_of(&self, slot: Slot, mac: MacAddr) -> Option<String> {
        let vxlan = self.published().plan.vnis.values().find(|vni| vni.slot == slot)?.ifindex;
        let bridge = self.links.get(vxlan)?.master?;
        let port = self.bridges.get(&bridge)?.get(&mac)?;
        (port.ifindex != vxlan).then(|| self.links.name(port.ifindex))
    }

    /// All known hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        let hosts = self.neighbours.iter().filter(|((_, address), _)| !address.is_multicast());
        hosts.flat_map(move |((ifindex, address), adjacent)| {
            let link = self.links.get(ifindex);
            let bridge = link.and_then(|link| {
                if self.links.is_bridge(ifindex) { Some(ifindex) } else { link.link }
            });
            let vxlans = bridge.into_iter().flat_map(|bridge| self.links.vxlans_in(bridge));
            vxlans.filter_map(move |vxlan| {
                let vni = self.published().plan.vnis.get(&vxlan)?.vni;
                Some(Host { vni, interface: link?.name.clone(), address, mac: adjacent.mac? })
            })
        })
    }
}
