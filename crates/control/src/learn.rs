//! Workers' reports of MAC addresses, and what of them is written into the kernel's FDB.
//!
//! Nothing here changes the forwarding tables directly. The kernel gets the entry first, and its
//! notification brings it into the tables, as any other entry. The kernel ages the entry, and still
//! has it if it forwards again itself.

use std::net::IpAddr;

use netlink::{FdbChange, FdbWrite};
use tables::Learned;
use wire::Vni;

use crate::resolve::underlay::LinkLocal;
use crate::settings::LearnLimits;
use crate::state::State;
use crate::stores::overlay::Overlay;

/// `NTF_EXT_LEARNED`: another program owns the entry, and the kernel does not age it.
const EXTERNAL: u32 = 0x10;
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

impl State {
    /// Handles a worker's report. Returns the entry to write, or `None` if there is nothing to
    /// write. Refused reports are counted.
    ///
    /// The worker's snapshot may be outdated, so the entry is looked up again.
    pub fn learn(&mut self, learned: &Learned) -> Option<FdbWrite> {
        let Learned { ifindex, mac, vtep } = *learned;
        let vxlan = self.links.vxlan(ifindex).filter(|vxlan| vxlan.learning)?;
        // Workers drop such frames. An entry with such a VTEP would move the VNI to the kernel.
        if tables::is_martian(vtep) || self.own.contains(&IpAddr::V4(vtep)) {
            self.learning.unreachable += 1;
            return None;
        }
        let in_all = *self.learned.get_or_insert_with(|| {
            self.overlays.values().filter(|overlay| overlay.learns()).map(Overlay::addresses).sum()
        });
        let overlay = self.overlays.get(&ifindex).filter(|_| self.publication.takes(ifindex))?;
        let known = overlay.kernel_entry(mac);
        let flags = known.map_or(0, |known| known.flags);
        let write = |change| Some(FdbWrite { ifindex, mac, vtep, change, flags });
        let change = match known {
            Some(known) if known.fixed => return None,
            Some(known) if known.vtep == vtep => {
                return write(FdbChange::Refreshed).filter(|_| flags & EXTERNAL == 0);
            }
            Some(_) => FdbChange::Moved,
            None => FdbChange::New,
        };
        let LearnLimits { total, vteps, moves } = self.settings.learning;
        if change == FdbChange::New {
            let own = Vni::try_from(vxlan.id).map_or(0, |vni| self.settings.of(vni).addresses);
            let netdevs = usize::try_from(vxlan.limit).ok().filter(|limit| *limit > 0);
            let here = overlay.addresses();
            if here >= own.min(netdevs.unwrap_or(own)) || in_all >= total {
                self.learning.too_many_addresses += 1;
                return None;
            }
        } else if !self.flapping.may_move((ifindex, mac), moves) {
            self.learning.flapping += 1;
            return None;
        }
        let found = self.vteps.find(vtep);
        if found.is_none() && self.vteps.len() >= vteps {
            self.learning.too_many_vteps += 1;
            return None;
        }
        // Any sender can use any outer source address, so this must not move the VNI to the kernel.
        let known = found.and_then(|index| self.vteps.get(index)?.reach.as_ref());
        if known
            .map_or_else(
                || {
                    self.underlay(&LinkLocal::new(&self.kernel, &self.neighbours))
                        .reach(vtep)
                        .obstacle
                },
                |reach| reach.obstacle.clone(),
            )
            .is_some()
        {
            self.learning.unreachable += 1;
            return None;
        }
        write(change)
    }

    /// Counts the result of a write: 0, or the error's number.
    pub fn written(&mut self, write: &FdbWrite, outcome: i32) {
        let counts = &mut self.learning;
        let counter = match (outcome, write.change) {
            (0, FdbChange::New) => &mut counts.new,
            (0, FdbChange::Moved) => &mut counts.moved,
            (0, FdbChange::Refreshed) => &mut counts.refreshed,
            (NO_SPACE, _) => &mut counts.too_many_addresses,
            _ => &mut counts.refused,
        };
        *counter += 1;
        if outcome != 0 {
            tracing::debug!(mac = %write.mac, vtep = %write.vtep, change = ?write.change, errno = outcome, "not learned");
        }
    }

    /// The counters of learning.
    #[must_use]
    pub const fn learn_counts(&self) -> LearnCounts {
        self.learning
    }
}
