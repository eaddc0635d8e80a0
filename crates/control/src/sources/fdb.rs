//! Applies FDB entries to the stores: those of bridges, of vxlan netdevs, and zebra's.

use std::net::IpAddr;

use netlink::{Dump, FdbEntry, Operation};
use wire::MacAddr;

use crate::stores::Stores;
use crate::stores::bridges::MOST;
use crate::stores::epoch_map::Epoch;

/// Applies an entry from the kernel.
pub(crate) fn apply_kernel(stores: &mut Stores, operation: Operation, entry: &FdbEntry) {
    match entry.master {
        Some(bridge) => apply_bridge(stores, operation, bridge, entry),
        None => apply_vxlan(stores, operation, entry),
    }
}

fn apply_bridge(stores: &mut Stores, operation: Operation, bridge: u32, entry: &FdbEntry) {
    // An entry with a VLAN belongs to a VLAN-aware bridge, whose VNIs stay with the kernel.
    if entry.vlan.is_some() {
        return;
    }
    if operation == Operation::New && exceeds_limit(stores, bridge, entry) {
        return;
    }
    let changed = match operation {
        Operation::New => stores.bridges.insert(bridge, entry, stores.epochs.fdb),
        Operation::Delete => stores.bridges.remove(bridge, entry),
    };
    if changed {
        mark(stores, bridge, [entry.mac]);
    }
    if operation == Operation::Delete && stores.bridges.is_crowded(bridge) {
        fill_room(stores);
    }
}

/// Whether a bridge has too many addresses for this entry. Entries of remote hosts are always
/// followed.
fn exceeds_limit(stores: &mut Stores, bridge: u32, entry: &FdbEntry) -> bool {
    let is_remote = || stores.links.vxlan(entry.ifindex).is_some();
    if !stores.bridges.is_full_for(bridge, entry.mac) || is_remote() {
        return false;
    }
    let has = |vxlan| {
        stores.overlays.get(&vxlan).is_some_and(|overlay| overlay.fdb.get(&entry.mac).is_some())
    };
    if stores.links.vxlans_in(bridge).any(has) {
        return false;
    }
    if stores.bridges.set_crowded(bridge) {
        let bridge = stores.links.name(bridge);
        tracing::warn!(
            "the bridge {bridge} has more than {MOST} addresses: frames for the others all go by the bridge"
        );
    }
    true
}

/// Asks for a dump of the FDB if a bridge over the limit has room again.
fn fill_room(stores: &mut Stores) {
    if stores.bridges.take_room() {
        stores.changes.want_dumps(&[Dump::Fdb]);
    }
}

/// Applies a bridge's FDB entry for an address. It was read from the kernel after all notifications
/// that the stores have.
pub(crate) fn apply_read(stores: &mut Stores, bridge: u32, mac: MacAddr, entry: Option<&FdbEntry>) {
    if !stores.links.is_bridge(bridge) {
        return;
    }
    if stores.bridges.set_read(bridge, mac, entry, stores.epochs.fdb) {
        tracing::debug!(bridge, %mac, "the last notification about an FDB entry was out of order");
        mark(stores, bridge, [mac]);
    }
}

/// Marks these addresses of a bridge as changed.
pub(crate) fn mark(stores: &mut Stores, bridge: u32, macs: impl IntoIterator<Item = MacAddr>) {
    for mac in macs {
        stores.changes.bypass.address(bridge, mac);
        for vxlan in stores.links.vxlans_in(bridge) {
            if stores.overlays.get_mut(&vxlan).is_some_and(|overlay| overlay.mark(mac)) {
                stores.changes.overlays.insert(vxlan);
            }
        }
    }
}

/// Whether an interface is known to be no vxlan netdev.
fn is_other_device(stores: &Stores, ifindex: u32) -> bool {
    stores.links.get(ifindex).is_some() && stores.links.vxlan(ifindex).is_none()
}

fn apply_vxlan(stores: &mut Stores, operation: Operation, entry: &FdbEntry) {
    if is_other_device(stores, entry.ifindex) {
        return;
    }
    match operation {
        Operation::New => {
            let overlay = stores.overlays.entry(entry.ifindex).or_default();
            overlay.kernel_new(entry, stores.epochs.fdb);
        }
        Operation::Delete => {
            if let Some(overlay) = stores.overlays.get_mut(&entry.ifindex) {
                overlay.kernel_delete(entry);
            }
        }
    }
    stores.changes.overlays.insert(entry.ifindex);
}

/// A bridge or a vxlan netdev gained or lost multicast entries. Only a dump shows how many are
/// left.
pub(crate) fn apply_multicast(stores: &mut Stores, operation: Operation, ifindex: u32) {
    if is_other_device(stores, ifindex) {
        return;
    }
    match operation {
        Operation::New if stores.multicast.insert(ifindex) => {
            stores.changes.overlays.insert(ifindex);
        }
        Operation::New => {}
        Operation::Delete => stores.changes.want_dumps(&[Dump::Mdb]),
    }
}

/// Applies an entry from zebra. Returns whether the kernel has not reported its address yet.
pub(crate) fn apply_zebra(stores: &mut Stores, operation: Operation, entry: &FdbEntry) -> bool {
    if entry.mac.is_group() || entry.mac == MacAddr::ZERO {
        return false;
    }
    // zebra sends the index of the vxlan netdev. If that index is unknown, the netdev follows from
    // the VNI, and from the bridge if several netdevs have the VNI. Otherwise the entry waits for a
    // netdev with this index.
    let known = stores.links.vxlan(entry.ifindex).map(|_| entry.ifindex);
    let by_vni = || only_netdev(stores, entry.source_vni?, entry.master);
    let ifindex = known.or_else(by_vni).unwrap_or(entry.ifindex);
    stores.changes.overlays.insert(ifindex);
    match (operation, entry.destination) {
        (Operation::New, Some(IpAddr::V4(vtep))) => {
            let overlay = stores.overlays.entry(ifindex).or_default();
            return !overlay.fpm_new(entry.mac, vtep, stores.epochs.fpm);
        }
        (Operation::New, _) => {}
        (Operation::Delete, _) => {
            if let Some(overlay) = stores.overlays.get_mut(&ifindex) {
                overlay.fpm_delete(entry.mac);
            }
        }
    }
    false
}

/// The only netdev with this VNI. If there are several, the only one in `bridge`.
fn only_netdev(stores: &Stores, vni: u32, bridge: Option<u32>) -> Option<u32> {
    let only = |netdevs: &mut dyn Iterator<Item = u32>| {
        let first = netdevs.next()?;
        netdevs.next().is_none().then_some(first)
    };
    let inside = |ifindex: &u32| {
        bridge.is_some() && stores.links.get(*ifindex).and_then(|link| link.master) == bridge
    };
    only(&mut stores.links.vxlans_of(vni))
        .or_else(|| only(&mut stores.links.vxlans_of(vni).filter(inside)))
}

/// Removes the entries that the last dump did not have, and returns their number.
pub(crate) fn sweep_kernel(stores: &mut Stores, epoch: Epoch) -> usize {
    let gone = stores.bridges.sweep(epoch);
    let mut swept = gone.len();
    for (bridge, mac) in gone {
        mark(stores, bridge, [mac]);
    }
    for (ifindex, overlay) in &mut stores.overlays {
        let gone = overlay.sweep_kernel(epoch);
        if gone > 0 {
            stores.changes.overlays.insert(*ifindex);
        }
        swept += gone;
    }
    fill_room(stores);
    let links = &stores.links;
    stores.overlays.retain(|ifindex, overlay| links.get(*ifindex).is_some() || !overlay.is_empty());
    swept
}
