//! The FDB of one vxlan netdev: what the sources report, and what is used for forwarding.
//!
//! The kernel's entry decides which VTEP a MAC address is behind, and zebra's if there is none. If
//! the bridge has the address on another port, it is behind no VTEP: the bridge learns of a host
//! that moved here before the remote entry is withdrawn.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;

use netlink::FdbEntry;
use tables::hash::{TableHasher, TableMap};
use tables::{Fdb, VtepIndex};
use wire::MacAddr;

use crate::eligibility::ineligible::UnsupportedEntry;
use crate::stores::addresses::{is_group, is_usable};
use crate::stores::epoch_map::{Epoch, EpochMap};
use crate::stores::vteps::Vteps;

/// `NUD_PERMANENT | NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const STATIC: u16 = 0xc0;

/// An entry of the netdev's own FDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) vtep: IpAddr,
    /// Whether received frames do not move it.
    pub(crate) fixed: bool,
    /// `NTF_*`.
    pub(crate) flags: u32,
}

/// What tells entries of one address apart (`vxlan_fdb_find_rdst()`): destination, port, VNI and
/// interface.
type OneOfMany = (Option<IpAddr>, Option<u16>, Option<u32>, Option<u32>);

/// The FDB and the flood list of one vxlan netdev.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    kernel: EpochMap<MacAddr, Remote>,
    fpm: EpochMap<MacAddr, IpAddr>,
    flood: EpochMap<IpAddr, ()>,
    /// Entries that only the kernel supports.
    unsupported: EpochMap<(MacAddr, Option<OneOfMany>), UnsupportedEntry>,
    /// Addresses with changes since the last [`Overlay::apply`].
    marked: Vec<MacAddr>,
    flood_changed: bool,
    /// Whether the netdev learns from received frames.
    learns: bool,
    /// Moves of each address between VTEPs that the kernel reported since the last
    /// [`Overlay::apply`].
    moves: HashMap<MacAddr, u32, BuildHasherDefault<TableHasher>>,

    /// The entries used for forwarding.
    pub(crate) fdb: Fdb,
    pub(crate) flooding: BTreeMap<IpAddr, VtepIndex>,
    /// On a netdev that learns: entries that received frames do not move.
    pub(crate) fixed: TableMap<MacAddr, IpAddr>,
    /// Number of entries that refer to each VTEP.
    remotes: HashMap<VtepIndex, u32, BuildHasherDefault<TableHasher>>,
    /// Whether the VNI is taken over. Its VTEPs count such overlays.
    taken: bool,
}

/// A change of a MAC address. At least one of `from` and `to` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacChange {
    /// The address.
    pub mac: MacAddr,
    /// The previous VTEP.
    pub from: Option<IpAddr>,
    /// The new VTEP.
    pub to: Option<IpAddr>,
    /// Whether it left its VTEP because the bridge has it on a host port.
    pub local: bool,
}

impl MacChange {
    /// Whether a known address moved.
    pub(crate) const fn is_move(&self) -> bool {
        self.from.is_some() && (self.to.is_some() || self.local)
    }
}

/// What [`Overlay::apply`] changed.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Whether an entry used for forwarding changed.
    pub(crate) entries: bool,
    /// Moves between VTEPs that were applied.
    pub(crate) followed: u64,
    /// Moves of each address that the kernel reported and that another one replaced.
    pub(crate) coalesced: Vec<(MacAddr, u32)>,
    /// Changes of addresses, for the journal.
    pub(crate) changes: Vec<MacChange>,
}

impl Overlay {
    /// An entry was added to the netdev's own FDB or changed.
    pub(crate) fn kernel_new(&mut self, entry: &FdbEntry, epoch: Epoch) {
        if entry.destination.is_none() && entry.next_hop_id.is_none() {
            // Before Linux 6.14 a write to the FDB was announced twice, the second time without the
            // written attributes (`rtnl_fdb_notify()` in `net/core/rtnetlink.c`). Notifications of
            // the vxlan netdev itself always have a destination.
            return;
        }
        let key = unsupported_key(entry);
        match destination(entry) {
            Ok(vtep) if entry.mac == MacAddr::ZERO => {
                self.flood_changed |= self.flood.insert(vtep, (), epoch);
            }
            Ok(vtep) => {
                let was_unsupported = self.unsupported.remove(&key).is_some();
                let remote = Remote { vtep, fixed: entry.state & STATIC != 0, flags: entry.flags };
                let before = self.kernel.replace(entry.mac, remote, epoch);
                if before.is_some_and(|before| before.vtep != vtep) {
                    let moves = self.moves.entry(entry.mac).or_default();
                    *moves = moves.saturating_add(1);
                }
                if before != Some(remote) || was_unsupported {
                    self.marked.push(entry.mac);
                }
            }
            Err(reason) => {
                let was_supported = self.kernel.remove(&entry.mac).is_some();
                if self.unsupported.insert(key, reason, epoch) || was_supported {
                    self.marked.push(entry.mac);
                }
            }
        }
    }

    /// An entry was deleted from the netdev's own FDB. zebra's entry is removed as well, because
    /// zebra reports only what the kernel has accepted.
    pub(crate) fn kernel_delete(&mut self, entry: &FdbEntry) {
        match destination(entry) {
            Ok(vtep) if entry.mac == MacAddr::ZERO => {
                self.flood_changed |= self.flood.remove(&vtep).is_some();
            }
            _ => {
                self.unsupported.remove(&unsupported_key(entry));
                self.kernel.remove(&entry.mac);
                self.fpm.remove(&entry.mac);
                self.marked.push(entry.mac);
            }
        }
    }

    /// zebra reported an entry. Returns whether the kernel has reported this address as well.
    pub(crate) fn fpm_new(&mut self, mac: MacAddr, vtep: IpAddr, epoch: Epoch) -> bool {
        if self.fpm.insert(mac, vtep, epoch) {
            self.marked.push(mac);
        }
        self.kernel_knows(mac)
    }

    /// Number of addresses that zebra reported.
    pub(crate) fn fpm_entries(&self) -> usize {
        self.fpm.len()
    }

    /// Whether there is an address that zebra has reported and the kernel has not.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.fpm.keys().any(|mac| !self.kernel_knows(mac))
    }

    fn kernel_knows(&self, mac: MacAddr) -> bool {
        self.kernel.contains(&mac) || self.unsupported.contains(&(mac, None))
    }

    /// zebra withdrew an entry.
    pub(crate) fn fpm_delete(&mut self, mac: MacAddr) {
        if self.fpm.remove(&mac).is_some() {
            self.marked.push(mac);
        }
    }

    /// Removes the entries that the last dump did not have and returns their number. As with a
    /// deletion, zebra's entries are removed as well, even if the kernel never reported the
    /// address: zebra reports only what the kernel has accepted.
    pub(crate) fn sweep_kernel(&mut self, epoch: Epoch) -> usize {
        let (kernel, unsupported) = (&self.kernel, &self.unsupported);
        let alone = self
            .fpm
            .remove_if(|mac, _| !kernel.contains(mac) && !unsupported.contains(&(*mac, None)));
        self.marked.extend(alone.iter().map(|(mac, _)| *mac));
        let macs = self.kernel.sweep(epoch);
        let flood = self.flood.sweep(epoch);
        let unsupported = self.unsupported.sweep(epoch);
        self.flood_changed |= !flood.is_empty();
        for mac in
            macs.iter().map(|(mac, _)| *mac).chain(unsupported.iter().map(|((mac, _), _)| *mac))
        {
            self.fpm.remove(&mac);
            self.marked.push(mac);
        }
        macs.len() + flood.len() + unsupported.len() + alone.len()
    }

    /// Removes the entries that zebra has not repeated since it reconnected, and returns their
    /// number.
    pub(crate) fn sweep_fpm(&mut self, epoch: Epoch) -> usize {
        let macs = self.fpm.sweep(epoch);
        self.marked.extend(macs.iter().map(|(mac, _)| *mac));
        macs.len()
    }

    /// The bridge's entry for this address changed. Returns whether the address is known here.
    pub(crate) fn mark(&mut self, mac: MacAddr) -> bool {
        let known = self.kernel.contains(&mac) || self.fpm.contains(&mac);
        if known {
            self.marked.push(mac);
        }
        known
    }

    /// The netdev is in another bridge, so all entries have to be looked at again.
    pub(crate) fn mark_all(&mut self) {
        self.marked.extend(self.kernel.keys());
        self.marked.extend(self.fpm.keys());
        self.flood_changed = true;
    }

    /// Sets whether the netdev learns from received frames.
    pub(crate) fn set_learns(&mut self, learns: bool) {
        if self.learns != learns {
            self.learns = learns;
            self.marked.extend(self.kernel.keys());
        }
    }

    /// Whether the netdev learns from received frames.
    pub(crate) const fn learns(&self) -> bool {
        self.learns
    }

    /// The entry of the netdev's own FDB for an address.
    pub(crate) fn kernel_entry(&self, mac: MacAddr) -> Option<Remote> {
        self.kernel.get(&mac).copied()
    }

    /// Number of entries as the kernel counts them: the flood list is one entry.
    pub(crate) fn addresses(&self) -> usize {
        self.kernel.len() + self.unsupported.len() + usize::from(!self.flood.is_empty())
    }

    /// An entry that only the kernel supports. Of several, always the same one.
    pub(crate) fn unsupported(&self) -> Option<(MacAddr, UnsupportedEntry)> {
        self.unsupported.iter().min_by_key(|(key, _)| *key).map(|((mac, _), reason)| (mac, *reason))
    }

    /// Whether an entry leads to this next-hop object.
    pub(crate) fn follows(&self, id: u32) -> bool {
        self.unsupported.iter().any(|(_, reason)| *reason == UnsupportedEntry::NextHop(id))
    }

    /// Whether a source reports this address behind this VTEP.
    pub(crate) fn says(&self, mac: MacAddr, vtep: IpAddr) -> bool {
        self.kernel.get(&mac).is_some_and(|remote| remote.vtep == vtep)
            || self.fpm.get(&mac) == Some(&vtep)
    }

    /// Number of entries that the kernel has.
    pub(crate) fn len(&self) -> usize {
        self.kernel.len() + self.flood.len() + self.unsupported.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.fpm.is_empty()
    }

    /// Sets whether the VNI is taken over.
    pub(crate) fn take(&mut self, vteps: &mut Vteps, taken: bool) {
        if self.taken != taken {
            self.taken = taken;
            self.remotes.keys().for_each(|index| vteps.take(*index, taken));
        }
    }

    /// All VTEPs that entries refer to.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = VtepIndex> {
        self.remotes.keys().copied()
    }

    /// Applies all changes to the entries used for forwarding. `local` returns whether the bridge
    /// has an address on a host port.
    pub(crate) fn apply(&mut self, vteps: &mut Vteps, local: impl Fn(MacAddr) -> bool) -> Applied {
        let mut applied = Applied::default();
        let mut moves = std::mem::take(&mut self.moves);
        for mac in std::mem::take(&mut self.marked) {
            let kernel = self.kernel.get(&mac).copied();
            let fixed =
                kernel.filter(|remote| remote.fixed && self.learns).map(|remote| remote.vtep);
            let was_fixed = match fixed {
                Some(vtep) => self.fixed.insert(mac, vtep),
                None => self.fixed.remove(&mac),
            };
            applied.entries |= was_fixed != fixed;
            let said = kernel.map(|remote| remote.vtep).or_else(|| self.fpm.get(&mac).copied());
            // The new VTEP is acquired before the old one is released. If both are the same, it
            // keeps its index.
            let local = said.is_some() && local(mac);
            let new = said.filter(|_| !local).map(|vtep| self.acquire(vteps, vtep));
            let old = match new {
                Some(new) => self.fdb.insert(mac, new),
                None => self.fdb.remove(&mac),
            };
            applied.entries |= old != new;
            if old != new {
                let address = |index| vteps.get(index).map(|known| known.address);
                let (from, to) = (old.and_then(address), new.and_then(address));
                if from.is_some() && to.is_some() {
                    applied.followed += 1;
                    moves.entry(mac).and_modify(|moves| *moves = moves.saturating_sub(1));
                }
                applied.changes.push(MacChange { mac, from, to, local });
            }
            if let Some(old) = old {
                self.release_one(vteps, old);
            }
        }
        applied.coalesced = moves.into_iter().filter(|(_, moves)| *moves > 0).collect();
        if std::mem::take(&mut self.flood_changed) {
            for (vtep, index) in std::mem::take(&mut self.flooding) {
                if self.flood.contains(&vtep) {
                    self.flooding.insert(vtep, index);
                } else {
                    self.release_one(vteps, index);
                    applied.entries = true;
                }
            }
            for vtep in self.flood.keys().collect::<Vec<_>>() {
                if !self.flooding.contains_key(&vtep) {
                    let index = self.acquire(vteps, vtep);
                    self.flooding.insert(vtep, index);
                    applied.entries = true;
                }
            }
        }
        applied
    }

    fn acquire(&mut self, vteps: &mut Vteps, vtep: IpAddr) -> VtepIndex {
        if let Some(index) = vteps.find(vtep)
            && let Some(entries) = self.remotes.get_mut(&index)
        {
            *entries += 1;
            return index;
        }
        let index = vteps.acquire(vtep, self.taken);
        self.remotes.insert(index, 1);
        index
    }

    fn release_one(&mut self, vteps: &mut Vteps, index: VtepIndex) {
        if let Some(entries) = self.remotes.get_mut(&index) {
            *entries -= 1;
            if *entries == 0 {
                self.remotes.remove(&index);
                vteps.release(index, self.taken);
            }
        }
    }

    /// The netdev is gone: releases its VTEPs.
    pub(crate) fn release(self, vteps: &mut Vteps) {
        for index in self.remotes.into_keys() {
            vteps.release(index, self.taken);
        }
    }
}

/// The key of an unsupported entry. Only the flood list and groups have several entries for one
/// address.
fn unsupported_key(entry: &FdbEntry) -> (MacAddr, Option<OneOfMany>) {
    let many = entry.mac == MacAddr::ZERO || entry.mac.is_group();
    (entry.mac, many.then_some((entry.destination, entry.port, entry.vni, entry.via)))
}

/// The VTEP of an entry, unless only the kernel supports the entry.
fn destination(entry: &FdbEntry) -> Result<IpAddr, UnsupportedEntry> {
    // The kernel reports port, VNI and next-hop id only if they differ from the netdev's
    // (`vxlan_fdb_info()`).
    if let Some(id) = entry.next_hop_id {
        return Err(UnsupportedEntry::NextHop(id));
    }
    if let Some(port) = entry.port {
        return Err(UnsupportedEntry::Port(port));
    }
    if let Some(vni) = entry.vni {
        return Err(UnsupportedEntry::Vni(vni));
    }
    if let Some(via) = entry.via {
        return Err(UnsupportedEntry::Via(via));
    }
    if entry.mac.is_group() {
        return Err(UnsupportedEntry::Group);
    }
    match entry.destination {
        Some(vtep) if is_group(vtep) => Err(UnsupportedEntry::MulticastGroup(vtep)),
        Some(IpAddr::V4(vtep)) if !vtep.is_unspecified() => Ok(IpAddr::V4(vtep)),
        Some(vtep @ IpAddr::V6(address)) if is_usable(vtep) => Ok(IpAddr::V6(address)),
        Some(IpAddr::V6(address)) if !address.is_unspecified() => {
            Err(UnsupportedEntry::Ipv6(address))
        }
        _ => Err(UnsupportedEntry::NoDestination),
    }
}
