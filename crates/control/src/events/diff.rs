//! The events of a publication: what differs from the one before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tables::{Paths, Snapshot, TakenVni, VniSource, VniTable, Vtep};

use crate::eligibility::ineligible::LeftToKernel;
use crate::events::event::Event;
use crate::mac_mobility::Flap;
use crate::publish::update::Update;
use crate::stores::overlay::MacChange;

/// Writes the events of one publication, by comparing it with the previous one. `macs` is the
/// result of [`crate::State::take_mac_changes`]. Changes of VNIs that were not taken over before,
/// or are not any more, are left out: all their entries appear or disappear together.
pub(crate) fn between(
    before: &Update,
    after: &Update,
    macs: &[(VniSource, MacChange)],
    mut write: impl FnMut(Event),
) {
    let (old, new) = (&before.plan.vnis, &after.plan.vnis);
    if !Arc::ptr_eq(&before.plan, &after.plan) {
        let netdev = |vni: &TakenVni| (vni.vni, vni.name.clone());
        for (vni, netdev) in
            old.iter().filter(|(ifindex, _)| !new.contains_key(ifindex)).map(|(_, v)| netdev(v))
        {
            write(Event::Detached { vni, netdev });
        }
        for (vni, netdev) in
            new.iter().filter(|(ifindex, _)| !old.contains_key(ifindex)).map(|(_, v)| netdev(v))
        {
            write(Event::Attached { vni, netdev });
        }
    }
    if !Arc::ptr_eq(&before.left, &after.left) {
        let known: HashMap<VniSource, &LeftToKernel> =
            before.left.iter().map(|left| (left.source, left)).collect();
        for left in after.left.iter().filter(|left| known.get(&left.source) != Some(left)) {
            write(Event::Left(left.clone()));
        }
    }
    next_hops(before, after, &mut write);
    if !Arc::ptr_eq(&before.by_default, &after.by_default) {
        let mut tell = |vtep: &Ipv4Addr, begins| write(Event::ByDefault { vtep: *vtep, begins });
        before.by_default.difference(&after.by_default).for_each(|vtep| tell(vtep, false));
        after.by_default.difference(&before.by_default).for_each(|vtep| tell(vtep, true));
    }
    tables(&before.snapshot, &after.snapshot, &mut write);
    for (source, change) in macs {
        if let (Some(_), Some(vni)) = (old.get(source), new.get(source)) {
            write(Event::Mac { vni: vni.vni, netdev: vni.name.clone(), change: *change });
        }
    }
}

/// The event for an address that began or stopped flapping; `None` if its VNI is not taken over.
pub(crate) fn flapping(update: &Update, flap: &Flap) -> Option<Event> {
    let taken = update.plan.vnis.get(&flap.source)?;
    let table = update.snapshot.vni(taken.slot.get())?;
    let vtep = table.fdb.get(&flap.mac).and_then(|index| update.snapshot.vtep(*index));
    Some(Event::Flapping {
        vni: taken.vni,
        netdev: taken.name.clone(),
        mac: flap.mac,
        vtep: vtep.map(|vtep| vtep.address),
        over: flap.over,
    })
}

fn next_hops(before: &Update, after: &Update, write: &mut impl FnMut(Event)) {
    let (old, new) = (&before.snapshot, &after.snapshot);
    if new.has_vteps_of(old) {
        return;
    }
    let hops = |snapshot: &Snapshot| -> (BTreeSet<(u32, IpAddr)>, BTreeMap<u32, bool>) {
        let mut seen = HashSet::new();
        let paths = snapshot
            .vteps()
            .map(|vtep| &vtep.paths)
            .filter(|paths| seen.insert(Arc::as_ptr(paths)));
        let hops = paths.flat_map(|paths| paths.next_hops());
        hops.map(|hop| ((hop.ifindex, hop.gateway), (hop.ifindex, hop.impaired))).unzip()
    };
    let ((old, old_uplinks), (new, uplinks)) = (hops(old), hops(new));
    let name = |ifindex: u32, update: &Update| {
        let found = update.plan.uplinks.iter().find(|uplink| uplink.ifindex == ifindex);
        found.map_or_else(|| ifindex.to_string(), |uplink| uplink.name.clone())
    };
    let mut tell = |(ifindex, gateway): (u32, IpAddr), update: &Update, up| {
        write(Event::NextHop { uplink: name(ifindex, update), gateway, up });
    };
    old.difference(&new).for_each(|hop| tell(*hop, before, false));
    new.difference(&old).for_each(|hop| tell(*hop, after, true));
    placement(&before.snapshot, &after.snapshot, write);
    for (ifindex, impaired) in uplinks {
        // An uplink that was not used before counts as not impaired.
        if impaired != old_uplinks.get(&ifindex).copied().unwrap_or_default() {
            write(Event::Impaired { uplink: name(ifindex, after), begins: impaired });
        }
    }
}

/// Writes how many buckets have another next hop. VTEPs with equal numbers share one event. VTEPs
/// that had no next hop, or have none now, had no flows to move.
fn placement(before: &Snapshot, after: &Snapshot, write: &mut impl FnMut(Event)) {
    let old: HashMap<Ipv4Addr, &Arc<Paths>> =
        before.vteps().map(|vtep| (vtep.address, &vtep.paths)).collect();
    let mut counted = HashMap::new();
    let mut told: BTreeMap<(usize, bool), (Ipv4Addr, usize)> = BTreeMap::new();
    for Vtep { address, paths: new } in after.vteps() {
        let Some(old) = old.get(address).filter(|old| !Arc::ptr_eq(old, new)) else { continue };
        if old.next_hops().is_empty() || new.next_hops().is_empty() {
            continue;
        }
        let pair = (Arc::as_ptr(old), Arc::as_ptr(new));
        let buckets = *counted.entry(pair).or_insert_with(|| new.moved_since(old));
        if buckets > 0 {
            let (vtep, vteps) = told.entry((buckets, new.is_reduced())).or_insert((*address, 0));
            (*vtep, *vteps) = (*address.min(vtep), *vteps + 1);
        }
    }
    for ((buckets, reduced), (vtep, vteps)) in told {
        write(Event::Placement { buckets, vtep, vteps, reduced });
    }
}

/// Writes changes of policies and flood lists.
fn tables(before: &Snapshot, after: &Snapshot, write: &mut impl FnMut(Event)) {
    for new in after.vnis() {
        let Some(old) = before.vni(new.slot.get()).filter(|old| old.tunnel.vni == new.tunnel.vni)
        else {
            continue;
        };
        if Arc::ptr_eq(old, new) {
            continue;
        }
        if old.entropy != new.entropy {
            let (vni, netdev) = (new.tunnel.vni, new.netdev.clone());
            write(Event::Policy { vni, netdev, entropy: new.entropy });
        }
        let addresses = |table: &VniTable, snapshot: &Snapshot| -> BTreeSet<Ipv4Addr> {
            table
                .flood
                .iter()
                .filter_map(|index| snapshot.vtep(*index))
                .map(|vtep| vtep.address)
                .collect()
        };
        let (was, is) = (addresses(old, before), addresses(new, after));
        let (vni, netdev) = (new.tunnel.vni, &new.netdev);
        let mut tell = |vtep: &Ipv4Addr, added| {
            write(Event::Flood { vni, netdev: netdev.clone(), vtep: *vtep, added })
        };
        was.difference(&is).for_each(|vtep| tell(vtep, false));
        is.difference(&was).for_each(|vtep| tell(vtep, true));
    }
}
