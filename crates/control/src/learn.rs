//! What workers hear of MAC addresses, and what of it goes into the kernel's FDB.
//!
//! Nothing is forwarded by here: the kernel has the entry first and says so, as with any other. It
//! ages it, and has it when it forwards again itself.

use std::net::IpAddr;

use netlink::{FdbChange, FdbWrite};
use tables::Learned;
use wire::Vni;

use crate::overlay::Overlay;
use crate::settings::LearnLimits;
use crate::state::State;
use crate::underlay::LinkLocal;

/// `NTF_EXT_LEARNED`: somebody else keeps the entry, and the kernel does not age it.
const EXTERNAL: u32 = 0x10;
/// `ENOSPC`.
const NO_SPACE: i32 = 28;

/// What became of what workers heard. Of addresses, each as often as it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LearnCounts {
    /// Written for the first time.
    pub new: u64,
    /// Written because they had moved to another VTEP.
    pub moved: u64,
    /// Written again so that they do not age.
    pub refreshed: u64,
    /// Not written: the netdev has as many as its settings or its `maxaddress` allow, or all have.
    pub too_many_addresses: u64,
    /// Not written: as many others are known as may be.
    pub too_many_vteps: u64,
    /// Not written: the address moves too often.
    pub flapping: u64,
    /// Not written: the VTEP is reached in a way only the kernel can go, and would take the whole
    /// VNI along; or it has an address that no other host can have.
    pub unreachable: u64,
    /// The kernel refused: it has or lacks the entry by now, or another reason.
    pub refused: u64,
}

impl State {
    /// A worker heard of an address. What to write; nothing, which is counted, where a limit
    /// forbids it.
    ///
    /// The worker goes by a snapshot that may be old, so this looks again.
    pub fn learn(&mut self, learned: &Learned) -> Option<FdbWrite> {
        let Learned { ifindex, mac, vtep } = *learned;
        let vxlan = self.links.vxlan(ifindex).filter(|vxlan| vxlan.learning)?;
        // Workers drop such frames. An entry with such an address would take the VNI away from
        // vtepd.
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
        // Anybody can claim to be any VTEP: that must not move the VNI to the kernel.
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

    /// What became of a write: 0, or the error's number.
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

    /// What became of everything so far.
    #[must_use]
    pub const fn learn_counts(&self) -> LearnCounts {
        self.learning
    }
}
