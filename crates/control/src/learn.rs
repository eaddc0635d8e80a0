//! Workers' reports of MAC addresses, and what of them is written into the kernel's FDB.
//!
//! Nothing here changes the forwarding tables directly. The kernel gets the entry first, and its
//! notification brings it into the tables, as any other entry. The kernel ages the entry, and still
//! has it if it forwards again itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink::{FdbChange, FdbWrite};
use tables::{Learned, VniSource};
use wire::{MacAddr, Vni};

use crate::mac_mobility::Flapping;
use crate::resolve::link_local::LinkLocal;
use crate::resolve::underlay::Underlay;
use crate::settings::{LearnLimits, Settings};
use crate::stores::Stores;
use crate::stores::addresses::is_usable;
use crate::stores::overlay::Overlay;

/// `NTF_EXT_LEARNED`: another program owns the entry, and the kernel does not age it.
const NTF_EXT_LEARNED: u32 = 0x10;
/// `ENOSPC`.
const NO_SPACE: i32 = 28;

/// Results of workers' reports. An address counts as often as it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LearnCounts {
    /// Written for the first time.
    pub new: u64,
    /// Written because the address moved to another VTEP.
    pub moved: u64,
    /// Written again so that the entry does not age.
    pub refreshed: u64,
    /// Not written: a limit for addresses was reached, of the settings or the netdev's
    /// `maxaddress`.
    pub too_many_addresses: u64,
    /// Not written: the limit for remote VTEPs was reached.
    pub too_many_vteps: u64,
    /// Not written: the address moves too often.
    pub flapping: u64,
    /// Not written: only the kernel supports the route to the VTEP, so the whole VNI would move to
    /// the kernel; or no other host can have the VTEP's address.
    pub unreachable: u64,
    /// The kernel refused the write: the entry exists or is missing by now, or another error.
    pub refused: u64,
}

/// Handles workers' reports.
#[derive(Debug, Default)]
pub(crate) struct Learning {
    pub(crate) counts: LearnCounts,
    /// Number of addresses of all netdevs that learn. Computed on demand.
    addresses: Option<usize>,
    /// Entries, new or with another VTEP, that the kernel is asked to write and has not told of.
    asked: BTreeMap<(u32, MacAddr), FdbWrite>,
    /// The VTEPs of entries that it has told of since the last build, which makes VTEPs known.
    told: BTreeSet<IpAddr>,
}

impl Learning {
    /// Entries of netdevs may have changed, and VTEPs are known.
    pub(crate) fn entries_changed(&mut self) {
        self.addresses = None;
        self.told.clear();
    }

    /// The kernel tells of an entry.
    pub(crate) fn told(&mut self, ifindex: u32, mac: MacAddr) {
        if let Some(write) = self.asked.remove(&(ifindex, mac)) {
            self.told.insert(write.vtep);
            self.addresses = None;
        }
    }

    /// The kernel has told of all its entries.
    pub(crate) fn told_all(&mut self) {
        self.asked.clear();
        self.addresses = None;
    }

    /// Handles a worker's report. Returns the entry to write, or `None` if there is nothing to
    /// write. `taken`: whether the VNI is taken over.
    ///
    /// The worker's snapshot may be outdated, so the entry is looked up again.
    pub(crate) fn learn(
        &mut self,
        learned: &Learned,
        stores: &Stores,
        settings: &Settings,
        taken: bool,
        flapping: &mut Flapping,
    ) -> Option<FdbWrite> {
        let Learned { ifindex, mac, vtep } = *learned;
        let source = VniSource::Netdev(ifindex);
        let vxlan = stores.links.vxlan(ifindex).filter(|vxlan| vxlan.learning)?;
        // Workers drop such frames. An entry with such a VTEP would move the VNI to the kernel.
        if tables::is_martian(vtep) || !is_usable(vtep) || stores.addresses.own().contains(&vtep) {
            self.counts.unreachable += 1;
            return None;
        }
        let in_all = *self.addresses.get_or_insert_with(|| {
            let learning = stores.overlays.values().filter(|overlay| overlay.learns());
            learning.map(Overlay::addresses).sum()
        });
        let overlay = stores.overlays.get(&source).filter(|_| taken)?;
        let known = overlay.kernel_entry(mac);
        let flags = known.map_or(0, |known| known.flags);
        let write = |change| Some(FdbWrite { ifindex, mac, vtep, change, flags });
        let change = match known {
            Some(known) if known.fixed => return None,
            Some(known) if known.vtep == vtep => {
                return write(FdbChange::Refreshed).filter(|_| flags & NTF_EXT_LEARNED == 0);
            }
            Some(_) => FdbChange::Moved,
            None => FdbChange::New,
        };
        let LearnLimits { total, vteps, moves } = settings.learning;
        if change == FdbChange::New {
            let own = Vni::try_from(vxlan.id).map_or(0, |vni| settings.of(vni).addresses);
            let netdevs = usize::try_from(vxlan.limit).ok().filter(|limit| *limit > 0);
            // Many reports may come before the kernel tells of an entry.
            let is_other = |write: &&FdbWrite| (write.ifindex, write.mac) != (ifindex, mac);
            let asked =
                || self.asked.values().filter(|w| w.change == FdbChange::New).filter(is_other);
            let in_netdev = asked().filter(|write| write.ifindex == ifindex).count();
            let of_netdev = overlay.addresses() + in_netdev;
            let is_full = of_netdev >= own.min(netdevs.unwrap_or(own));
            if is_full || in_all + asked().count() >= total {
                self.counts.too_many_addresses += 1;
                return None;
            }
        } else if !flapping.may_move((source, mac), moves) {
            self.counts.flapping += 1;
            return None;
        }
        if self.is_one_too_many(vtep, stores, vteps) {
            self.counts.too_many_vteps += 1;
            return None;
        }
        // Any sender can use any outer source address, so this must not move the VNI to the kernel.
        if has_obstacle(stores, vtep) {
            self.counts.unreachable += 1;
            return None;
        }
        let write = FdbWrite { ifindex, mac, vtep, change, flags };
        self.asked.insert((ifindex, mac), write);
        Some(write)
    }

    /// Whether this VTEP is a new one, and there are as many as may be.
    fn is_one_too_many(&self, vtep: IpAddr, stores: &Stores, limit: usize) -> bool {
        let is_new = |vtep: IpAddr| stores.vteps.find(vtep).is_none();
        let asked = self.asked.values().map(|write| write.vtep).chain(self.told.iter().copied());
        let others = asked.filter(|asked| *asked != vtep && is_new(*asked));
        is_new(vtep) && stores.vteps.len() + others.collect::<BTreeSet<_>>().len() >= limit
    }

    /// Counts the result of a write: 0, or the error's number.
    pub(crate) fn written(&mut self, write: &FdbWrite, outcome: i32) {
        let counts = &mut self.counts;
        let counter = match (outcome, write.change) {
            (0, FdbChange::New) => &mut counts.new,
            (0, FdbChange::Moved) => &mut counts.moved,
            (0, FdbChange::Refreshed) => &mut counts.refreshed,
            (NO_SPACE, _) => &mut counts.too_many_addresses,
            _ => &mut counts.refused,
        };
        *counter += 1;
        if outcome != 0 {
            self.asked.remove(&(write.ifindex, write.mac));
            tracing::debug!(mac = %write.mac, vtep = %write.vtep, change = ?write.change, errno = outcome, "not learned");
        }
    }
}

/// Whether vtepd cannot use the route to a VTEP.
fn has_obstacle(stores: &Stores, vtep: IpAddr) -> bool {
    let known = stores.vteps.find(vtep).and_then(|index| stores.vteps.get(index)?.route.as_ref());
    if let Some(route) = known {
        return route.obstacle.is_some();
    }
    let link_local = LinkLocal::new(&stores.routes.kernel, &stores.neighbours);
    Underlay::new(stores, &link_local).resolve(vtep).obstacle.is_some()
}
