//! Applies FDB entries to the stores: those of bridges, of vxlan netdevs, and zebra's.

use netlink::{Dump, FdbEntry, Operation};
use tables::VniSource;
use wire::MacAddr;

use crate::stores::Stores;
use crate::stores::addresses::is_usable;
use crate::stores::bridges::MOST;
use crate::stores::epoch_map::Epoch;
use crate::stores::overlay::Overlay;

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
        stores
            .overlays
            .get(&VniSource::Netdev(vxlan))
            .is_some_and(|overlay| overlay.fdb.get(&entry.mac).is_some())
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
            let source = VniSource::Netdev(vxlan);
            if stores.overlays.get_mut(&source).is_some_and(|overlay| overlay.mark(mac)) {
                stores.changes.overlays.insert(source);
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
    let source = VniSource::Netdev(entry.ifindex);
    match operation {
        Operation::New => {
            let overlay = stores.overlays.entry(source).or_default();
            overlay.kernel_new(entry, stores.epochs.fdb);
        }
        Operation::Delete => {
            if let Some(overlay) = stores.overlays.get_mut(&source) {
                overlay.kernel_delete(entry);
            }
        }
    }
    stores.changes.overlays.insert(source);
}

/// A bridge or a vxlan netdev gained or lost multicast entries. Only a dump shows how many are
/// left.
pub(crate) fn apply_multicast(stores: &mut Stores, operation: Operation, ifindex: u32) {
    if is_other_device(stores, ifindex) {
        return;
    }
    match operation {
        Operation::New if stores.multicast.insert(ifindex) => {
            stores.changes.netdevs([ifindex]);
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
    let sent = VniSource::Netdev(entry.ifindex);
    let known = stores.vxlan(sent).map(|_| sent);
    let by_vni = || only_source(stores, entry.source_vni?, entry.master);
    let source = known.or_else(by_vni).unwrap_or(sent);
    stores.changes.overlays.insert(source);
    match (operation, entry.destination) {
        (Operation::New, Some(vtep)) if is_usable(vtep) => {
            let overlay = stores.overlays.entry(source).or_default();
            return !overlay.fpm_new(entry.mac, vtep, stores.epochs.fpm);
        }
        (Operation::New, _) => {}
        (Operation::Delete, _) => {
            if let Some(overlay) = stores.overlays.get_mut(&source) {
                overlay.fpm_delete(entry.mac);
            }
        }
    }
    false
}

/// The only source of this VNI. If there are several, the only netdev in `bridge`.
fn only_source(stores: &Stores, vni: u32, bridge: Option<u32>) -> Option<VniSource> {
    let only = |sources: &mut dyn Iterator<Item = VniSource>| {
        let first = sources.next()?;
        sources.next().is_none().then_some(first)
    };
    let inside = |source: &VniSource| bridge.is_some() && stores.bridge_of(*source) == bridge;
    only(&mut stores.sources_of(vni)).or_else(|| only(&mut stores.sources_of(vni).filter(inside)))
}

/// Removes the entries that the last dump did not have, and returns their number.
pub(crate) fn sweep_kernel(stores: &mut Stores, epoch: Epoch) -> usize {
    let gone = stores.bridges.sweep(epoch);
    let mut swept = gone.len();
    for (bridge, mac) in gone {
        mark(stores, bridge, [mac]);
    }
    for (source, overlay) in &mut stores.overlays {
        let gone = overlay.sweep_kernel(epoch);
        if gone > 0 {
            stores.changes.overlays.insert(*source);
        }
        swept += gone;
    }
    fill_room(stores);
    let links = &stores.links;
    let has_link = |ifindex| links.get(ifindex).is_some();
    let is_unused = |source: &VniSource, overlay: &Overlay| {
        !source.netdev().is_none_or(has_link) && overlay.is_empty()
    };
    let of = stores.overlays.iter().filter(|(source, overlay)| is_unused(source, overlay));
    for source in of.map(|(source, _)| *source).collect::<Vec<_>>() {
        if let Some(overlay) = stores.overlays.remove(&source) {
            overlay.release(&mut stores.vteps);
        }
    }
    swept
}
