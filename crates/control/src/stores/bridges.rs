//! The FDBs of bridges.
//!
//! Hosts can forge any number of MAC addresses, so at most [`MOST`] addresses of a bridge are
//! followed. Frames for an address that is not followed pass the bridge. The limit only costs them
//! the bridge bypass.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use netlink::FdbEntry;
use tables::hash::TableHasher;
use wire::MacAddr;

use crate::stores::epoch_map::{Epoch, EpochMap};

/// Number of host addresses that are followed for each bridge: the capacity of the BPF maps.
pub(crate) const MOST: usize = 131_072;

/// `NUD_PERMANENT` (`include/uapi/linux/neighbour.h`).
const NUD_PERMANENT: u16 = 0x80;
/// `NTF_EXT_LOCKED`.
const NTF_EXT_LOCKED: u32 = 0x2 << 8;

/// The port behind which a bridge has a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) ifindex: u32,
    /// The bridge's own address, or that of one of its ports.
    pub(crate) permanent: bool,
    /// Seen on a locked port and not authorised.
    pub(crate) locked: bool,
}

impl Port {
    /// The port of a bridge's FDB entry.
    const fn of(entry: &FdbEntry) -> Self {
        Self {
            ifindex: entry.ifindex,
            permanent: entry.state & NUD_PERMANENT != 0,
            locked: entry.flags & NTF_EXT_LOCKED != 0,
        }
    }
}

/// The FDB of each bridge, by the bridge's interface index.
#[derive(Debug, Default)]
pub(crate) struct Bridges {
    tables: HashMap<u32, EpochMap<MacAddr, Port>, BuildHasherDefault<TableHasher>>,
    /// Bridges with more addresses than are followed.
    crowded: BTreeSet<u32>,
    /// MAC addresses whose last notification may be out of order.
    moved: BTreeSet<(u32, MacAddr)>,
}

impl Bridges {
    pub(crate) fn get(&self, bridge: u32, mac: MacAddr) -> Option<&Port> {
        self.tables.get(&bridge)?.get(&mac)
    }

    /// All addresses of a bridge.
    pub(crate) fn macs(&self, bridge: u32) -> impl Iterator<Item = MacAddr> {
        self.tables.get(&bridge).into_iter().flat_map(EpochMap::keys)
    }

    /// Adds or confirms an entry. Returns whether it changed. An address that was on another port
    /// is verified later.
    pub(crate) fn insert(&mut self, bridge: u32, entry: &FdbEntry, epoch: Epoch) -> bool {
        self.note_move(bridge, entry);
        self.set(bridge, entry.mac, entry, epoch)
    }

    /// Removes an entry. Returns whether it was there. A late deletion for the previous port does
    /// not remove the address.
    pub(crate) fn remove(&mut self, bridge: u32, entry: &FdbEntry) -> bool {
        !self.note_move(bridge, entry) && self.unset(bridge, entry.mac)
    }

    /// Sets the entry for an address, as it was read from the kernel. Returns whether it changed.
    pub(crate) fn set_read(
        &mut self,
        bridge: u32,
        mac: MacAddr,
        entry: Option<&FdbEntry>,
        epoch: Epoch,
    ) -> bool {
        match entry {
            Some(entry) => self.set(bridge, mac, entry, epoch),
            None => self.unset(bridge, mac),
        }
    }

    fn set(&mut self, bridge: u32, mac: MacAddr, entry: &FdbEntry, epoch: Epoch) -> bool {
        self.tables.entry(bridge).or_default().insert(mac, Port::of(entry), epoch)
    }

    fn unset(&mut self, bridge: u32, mac: MacAddr) -> bool {
        self.tables.get_mut(&bridge).is_some_and(|ports| ports.remove(&mac).is_some())
    }

    /// Whether the address is known on another port. If so, it is recorded as moved, also in
    /// bridges without a vxlan netdev, because one may be added later.
    fn note_move(&mut self, bridge: u32, entry: &FdbEntry) -> bool {
        let elsewhere =
            self.get(bridge, entry.mac).is_some_and(|port| port.ifindex != entry.ifindex);
        if elsewhere {
            self.moved.insert((bridge, entry.mac));
        }
        elsewhere
    }

    /// Whether there are moved addresses to verify.
    pub(crate) fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }

    /// Up to `most` moved addresses to verify, each with its bridge.
    pub(crate) fn take_moved(&mut self, most: usize) -> Vec<(u32, MacAddr)> {
        std::iter::from_fn(|| self.moved.pop_first()).take(most).collect()
    }

    /// Whether the bridge has as many addresses as are followed, and this one is not among them.
    pub(crate) fn is_full_for(&self, bridge: u32, mac: MacAddr) -> bool {
        let full = |ports: &EpochMap<MacAddr, Port>| ports.len() >= MOST && !ports.contains(&mac);
        self.tables.get(&bridge).is_some_and(full)
    }

    /// Records that a bridge has more addresses than are followed. Returns whether that is new.
    pub(crate) fn set_crowded(&mut self, bridge: u32) -> bool {
        self.crowded.insert(bridge)
    }

    /// Whether the bridge has addresses that are not followed.
    pub(crate) fn is_crowded(&self, bridge: u32) -> bool {
        self.crowded.contains(&bridge)
    }

    /// Whether a crowded bridge has room again. Such bridges do not count as crowded any more.
    pub(crate) fn take_room(&mut self) -> bool {
        let before = self.crowded.len();
        let tables = &self.tables;
        let known = |bridge: &u32| tables.get(bridge).map_or(0, EpochMap::len);
        self.crowded.retain(|bridge| known(bridge) > MOST / 2);
        self.crowded.len() < before
    }

    /// Removes a bridge.
    pub(crate) fn remove_bridge(&mut self, bridge: u32) {
        self.tables.remove(&bridge);
        self.crowded.remove(&bridge);
    }

    /// Removes the addresses on a port of a bridge, and returns them.
    pub(crate) fn remove_port(&mut self, bridge: u32, ifindex: u32) -> Vec<MacAddr> {
        let Some(ports) = self.tables.get_mut(&bridge) else { return Vec::new() };
        let gone = ports.remove_if(|_, port| port.ifindex == ifindex);
        gone.into_iter().map(|(mac, _)| mac).collect()
    }

    /// The addresses behind a port.
    pub(crate) fn behind(&self, bridge: u32, ifindex: u32) -> Vec<MacAddr> {
        let all = self.tables.get(&bridge).into_iter().flat_map(EpochMap::iter);
        all.filter(|(_, port)| port.ifindex == ifindex).map(|(mac, _)| mac).collect()
    }

    /// Removes the entries that the last dump did not have. Returns them with their bridges.
    pub(crate) fn sweep(&mut self, epoch: Epoch) -> Vec<(u32, MacAddr)> {
        let mut swept = Vec::new();
        for (bridge, ports) in &mut self.tables {
            swept.extend(ports.sweep(epoch).into_iter().map(|(mac, _)| (*bridge, mac)));
        }
        self.tables.retain(|_, ports| !ports.is_empty());
        swept
    }
}
