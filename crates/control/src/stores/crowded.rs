//! Bridges with more MAC addresses than are followed, because hosts can forge any number of them.
//!
//! Frames for an address that is not followed pass the bridge. The limit only costs them the bridge
//! bypass.

use netlink::{Dump, FdbEntry};
use wire::MacAddr;

use crate::state::State;

/// Number of host addresses that are followed for each bridge: the capacity of the BPF maps.
pub(crate) const MOST: usize = 131_072;

impl State {
    /// Whether this entry exceeds the limit. Entries of remote hosts are always followed.
    pub(crate) fn is_too_many(&mut self, bridge: u32, entry: &FdbEntry) -> bool {
        let full = |known: &crate::stores::epoch_map::EpochMap<MacAddr, _>| {
            known.len() >= MOST && !known.contains(&entry.mac)
        };
        if !self.bridges.get(&bridge).is_some_and(full) || self.links.vxlan(entry.ifindex).is_some()
        {
            return false;
        }
        let remote =
            |vxlan| self.overlays.get(&vxlan).is_some_and(|of| of.fdb.get(&entry.mac).is_some());
        if self.links.vxlans_in(bridge).any(remote) {
            return false;
        }
        if self.crowded.insert(bridge) {
            let bridge = self.links.name(bridge);
            tracing::warn!(
                "the bridge {bridge} has more than {MOST} addresses: frames for the others all go by the bridge"
            );
        }
        true
    }

    /// Requests a dump of the FDB for bridges over the limit that have room again.
    pub(crate) fn fill_room(&mut self) {
        let known = |bridge: &u32| {
            self.bridges.get(bridge).map_or(0, crate::stores::epoch_map::EpochMap::len)
        };
        let crowded = self.crowded.len();
        let full: std::collections::BTreeSet<u32> =
            self.crowded.iter().copied().filter(|bridge| known(bridge) > MOST / 2).collect();
        if full.len() < crowded {
            self.crowded = full;
            self.doubt(&[Dump::Fdb]);
        }
    }
}
