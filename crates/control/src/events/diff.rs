//! The events of a publication: what differs from the one before.

use std::net::IpAddr;

use tables::{TakenVni, VniSource};

use crate::events::event::Event;
use crate::mac_mobility::Flap;
use crate::publish::diff::{Diff, Placement, TableChange};
use crate::publish::update::Update;
use crate::stores::overlay::MacChange;

/// Writes the events of one publication. `macs` is the result of
/// [`crate::State::take_mac_changes`]. Changes of VNIs that were not taken over before, or are not
/// any more, are left out: all their entries appear or disappear together.
pub(crate) fn between(
    before: &Update,
    after: &Update,
    diff: &Diff,
    macs: &[(VniSource, MacChange)],
    mut write: impl FnMut(Event),
) {
    let netdev = |vni: &TakenVni| (vni.vni, vni.name.clone());
    for (vni, netdev) in diff.steering.vnis.removed.iter().map(netdev) {
        write(Event::Detached { vni, netdev });
    }
    for (vni, netdev) in diff.steering.vnis.added.iter().map(netdev) {
        write(Event::Attached { vni, netdev });
    }
    diff.left.iter().for_each(|left| write(Event::Left(left.clone())));
    next_hops(before, after, diff, &mut write);
    for vtep in &diff.by_default.removed {
        write(Event::ByDefault { vtep: *vtep, begins: false });
    }
    for vtep in &diff.by_default.added {
        write(Event::ByDefault { vtep: *vtep, begins: true });
    }
    diff.tables.iter().for_each(|change| table(change, &mut write));
    for (source, change) in macs {
        let (old, new) = (before.plan.vnis.get(source), after.plan.vnis.get(source));
        if let (Some(_), Some(vni)) = (old, new) {
            write(Event::Mac { vni: vni.vni, netdev: vni.name.clone(), change: *change });
        }
    }
}

/// The event for an address that began or stopped flapping; `None` if its VNI is not taken over.
pub(crate) fn flapping(update: &Update, flap: &Flap) -> Option<Event> {
    let taken = update.plan.vnis.get(&flap.source)?;
    let table = update.snapshot.vni(taken.index.get())?;
    let vtep = table.fdb.get(&flap.mac).and_then(|index| update.snapshot.vtep(*index));
    Some(Event::Flapping {
        vni: taken.vni,
        netdev: taken.name.clone(),
        mac: flap.mac,
        vtep: vtep.map(|vtep| vtep.address),
        over: flap.over,
    })
}

fn next_hops(before: &Update, after: &Update, diff: &Diff, write: &mut impl FnMut(Event)) {
    let name = |ifindex: u32, update: &Update| {
        let found = update.plan.uplinks.iter().find(|uplink| uplink.ifindex == ifindex);
        found.map_or_else(|| ifindex.to_string(), |uplink| uplink.name.clone())
    };
    let next_hop = |(ifindex, gateway): (u32, IpAddr), update: &Update, up| Event::NextHop {
        uplink: name(ifindex, update),
        gateway,
        up,
    };
    for hop in &diff.next_hops.removed {
        write(next_hop(*hop, before, false));
    }
    for hop in &diff.next_hops.added {
        write(next_hop(*hop, after, true));
    }
    for Placement { buckets, reduced, vtep, vteps } in diff.placements.iter().copied() {
        write(Event::Placement { buckets, vtep, vteps, reduced });
    }
    for ifindex in &diff.impaired.removed {
        write(Event::Impaired { uplink: name(*ifindex, before), begins: false });
    }
    for ifindex in &diff.impaired.added {
        write(Event::Impaired { uplink: name(*ifindex, after), begins: true });
    }
}

/// Writes changes of a VNI's policy and flood list.
fn table(TableChange { old, new, flood }: &TableChange, write: &mut impl FnMut(Event)) {
    let (vni, netdev) = (new.tunnel.vni, &new.netdev);
    if old.entropy != new.entropy {
        write(Event::Policy { vni, netdev: netdev.clone(), entropy: new.entropy });
    }
    for (list, added) in [(&flood.removed, false), (&flood.added, true)] {
        for vtep in list {
            write(Event::Flood { vni, netdev: netdev.clone(), vtep: *vtep, added });
        }
    }
}
