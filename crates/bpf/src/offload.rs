//! The `offload` datapath: writes the tables of a snapshot into the maps by which the programs
//! encapsulate and decapsulate (`programs/offload.bpf.h`).
//!
//! An object of several words is written at an index that is not in use, and then the word that
//! leads to it changes. So a program sees either the old object or the new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use aya::Ebpf;
use path::{BUCKETS, Paths, Version};
use tables::{Slot, Snapshot, VniTable, Vtep, VtepIndex};

use crate::error::SteeringError;
use crate::mapped::{MappedWords, mapped};
use crate::maps::set;

pub(crate) mod entries;
mod indices;
pub(crate) mod pinned;
mod senders;
pub(crate) mod traffic;

use entries::{AddressEntry, GroupEntry, HopEntry, VniEntry};
use indices::Indices;
use pinned::Pinned;
use senders::Senders;
use traffic::{OffloadCounts, Owners};

/// Sizes of the maps (`OFFLOAD_VNIS` and so on in the programs).
pub(crate) const VNIS: u32 = 8192;
pub(crate) const VTEPS: u32 = 16_384;
pub(crate) const ADDRESSES: u32 = 4096;
pub(crate) const GROUPS: u32 = 512;
pub(crate) const HOPS: u32 = 4096;
/// Marks the index of a next hop, where otherwise a group would be (`OFFLOAD_SINGLE`).
pub(crate) const SINGLE: u32 = 1 << 31;
/// Marks the entry of a slot whose flows come from the worker (`OFFLOAD_MOVING`).
pub(crate) const MOVING: u64 = 1 << 32;
/// No next hop (`OFFLOAD_NO_HOPS`): the worker gets the frames.
pub(crate) const NO_HOPS: u32 = 0;

/// The next hops of a VTEP as written.
#[derive(Debug, Clone)]
struct Written {
    address: IpAddr,
    /// The address itself, or the index of an IPv6 address.
    word: u32,
    paths: Arc<Paths>,
    hops: u32,
}

impl Written {
    /// Whether the VTEP still has the address and the paths that were written.
    fn is_current(&self, vtep: &Vtep) -> bool {
        self.address == vtep.address && Arc::ptr_eq(&self.paths, &vtep.paths)
    }
}

/// The tables of the `offload` datapath in the programs' maps.
#[derive(Debug)]
pub struct Offload {
    slots: MappedWords,
    vteps: MappedWords,
    /// For each offloaded VNI, by its slot: the version of its settings, and the index of its entry.
    vnis: BTreeMap<u16, (Version<VniTable>, u32)>,
    /// The next entry for settings of a VNI. Entries are used in turn.
    next_vni: u32,
    written: BTreeMap<u32, Written>,
    senders: Senders,
    addresses: Indices<AddressEntry>,
    hops: Indices<HopEntry>,
    groups: Indices<GroupEntry>,
    /// The next hops of each group, by its index; one index as often as it was acquired.
    members: BTreeMap<u32, Vec<u32>>,
    pinned: Pinned,
    owners: Owners,
    /// The highest number of a queue pair's counts.
    most_pinned: u32,
    /// How often a snapshot was followed.
    version: Version<Self>,
    /// The snapshot that the maps contain.
    snapshot: Snapshot,
}

impl Offload {
    /// Nothing is offloaded yet. Counts of queue pairs have the numbers up to `most_pinned`.
    ///
    /// # Errors
    /// When the maps cannot be mapped into memory.
    pub fn new(ebpf: &Ebpf, most_pinned: u32) -> Result<Self, SteeringError> {
        Ok(Self {
            slots: mapped(ebpf, "offload_slots")?,
            vteps: mapped(ebpf, "offload_vteps")?,
            vnis: BTreeMap::new(),
            next_vni: 1,
            written: BTreeMap::new(),
            senders: Senders::default(),
            addresses: Indices::new(1, ADDRESSES),
            hops: Indices::new(1, HOPS),
            groups: Indices::new(1, GROUPS),
            members: BTreeMap::new(),
            pinned: Pinned::default(),
            owners: Owners::default(),
            most_pinned,
            version: Version::NONE,
            snapshot: Snapshot::default(),
        })
    }

    /// Writes what differs between this snapshot and the one before.
    ///
    /// # Errors
    /// The first error. The next call tries again.
    pub fn follow(&mut self, ebpf: &mut Ebpf, snapshot: &Snapshot) -> Result<(), SteeringError> {
        let offloads = snapshot.vnis().any(|table| table.offload);
        if !offloads && self.vnis.is_empty() {
            return Ok(());
        }
        self.leave_vnis(snapshot);
        let vteps = if snapshot.has_vteps_of(&self.snapshot) {
            Ok(())
        } else {
            self.unpin_changed(ebpf, snapshot).and_then(|()| self.vteps(ebpf, snapshot))
        };
        let senders = if snapshot.reception_version() == self.snapshot.reception_version() {
            Ok(())
        } else {
            self.senders.follow(ebpf, snapshot)
        };
        let vnis = self.enter_vnis(ebpf, snapshot);
        let followed = vteps.and(senders).and(vnis);
        self.snapshot = if followed.is_ok() { snapshot.clone() } else { Snapshot::default() };
        self.version = self.version.next();
        followed
    }

    /// Changes when queue pairs have to be written again ([`Self::pin`]).
    pub(crate) const fn version(&self) -> Version<Self> {
        self.version
    }

    /// As [`super::Steering::offload_counts`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counts(&self, ebpf: &Ebpf, snapshot: &Snapshot) -> Result<OffloadCounts, SteeringError> {
        self.owners.read(ebpf, snapshot)
    }

    /// Lets all flows of this slot pass the worker until it has sent what it has of them. To be
    /// called before a change by which flows may leave the worker.
    pub(crate) fn settle(&self, slot: u16) {
        if let Some((_, index)) = self.vnis.get(&slot) {
            self.slots.set(usize::from(slot), MOVING | u64::from(*index));
        }
    }

    /// Stops offloading VNIs that are gone or have another datapath.
    fn leave_vnis(&mut self, snapshot: &Snapshot) {
        let slots = &self.slots;
        self.vnis.retain(|slot, _| {
            let stays = snapshot.vni(*slot).is_some_and(|table| table.offload);
            if !stays {
                slots.set(usize::from(*slot), 0);
            }
            stays
        });
    }

    fn enter_vnis(&mut self, ebpf: &mut Ebpf, snapshot: &Snapshot) -> Result<(), SteeringError> {
        for table in snapshot.vnis().filter(|table| table.offload) {
            let (slot, version) =
                (Slot::of(table.index).get(), snapshot.settings_version(table.index));
            if self.vnis.get(&slot).is_some_and(|(known, _)| *known == version) {
                continue;
            }
            self.owners.vni(ebpf, slot, table.tunnel.vni)?;
            let index = self.free_vni();
            set(ebpf, "offload_vnis", index, VniEntry::of(table))?;
            self.slots.set(usize::from(slot), MOVING | u64::from(index));
            self.vnis.insert(slot, (version, index));
        }
        Ok(())
    }

    /// An entry that no VNI uses. There are more entries than VNIs.
    fn free_vni(&mut self) -> u32 {
        loop {
            let index = self.next_vni;
            self.next_vni = if index + 1 < VNIS { index + 1 } else { 1 };
            if self.vnis.values().all(|(_, used)| *used != index) {
                return index;
            }
        }
    }

    fn vteps(&mut self, ebpf: &mut Ebpf, snapshot: &Snapshot) -> Result<(), SteeringError> {
        let gone: Vec<u32> = self.written.keys().copied().collect();
        for index in gone {
            if snapshot.vtep(VtepIndex(index)).is_none() {
                self.forget(index);
            }
        }
        for (VtepIndex(index), vtep) in snapshot.indexed_vteps() {
            let address = vtep.address;
            if index >= VTEPS || self.written.get(&index).is_some_and(|old| old.is_current(vtep)) {
                continue;
            }
            if self.written.get(&index).is_some_and(|written| written.address != address) {
                self.forget(index);
            }
            self.owners.vtep(ebpf, index, vtep)?;
            let Some(word) = self.enter_address(ebpf, index, address)? else { continue };
            let hops = self.enter_hops(ebpf, &vtep.paths)?;
            // Frames may wait in the worker for a next hop that is resolved now.
            self.vnis.keys().for_each(|slot| self.settle(*slot));
            self.vteps.set(index as usize, u64::from(word) | u64::from(hops) << 32);
            let paths = Arc::clone(&vtep.paths);
            if let Some(old) = self.written.insert(index, Written { address, word, paths, hops }) {
                self.leave_hops(old.hops);
            }
        }
        Ok(())
    }

    /// Removes a VTEP.
    fn forget(&mut self, index: u32) {
        let Some(written) = self.written.remove(&index) else { return };
        self.vteps.set(index as usize, 0);
        if written.address.is_ipv6() {
            self.addresses.release(written.word);
        }
        self.leave_hops(written.hops);
    }

    /// The lower half of a VTEP's entry. It writes an IPv6 address at an index of its own. If there is
    /// no room, the worker gets the VTEP's frames.
    fn enter_address(
        &mut self,
        ebpf: &mut Ebpf,
        index: u32,
        address: IpAddr,
    ) -> Result<Option<u32>, SteeringError> {
        let address = match address {
            IpAddr::V4(address) => return Ok(Some(u32::from_ne_bytes(address.octets()))),
            IpAddr::V6(address) => AddressEntry { words: entries::words_of_ipv6(address) },
        };
        if let Some(written) = self.written.get(&index) {
            return Ok(Some(written.word));
        }
        let Some((place, is_new)) = self.addresses.acquire(&address) else { return Ok(None) };
        if is_new {
            set(ebpf, "offload_addresses", place, address)?;
        }
        Ok(Some(place))
    }

    /// Writes the next hops of a VTEP, and returns the word that leads to them. If there is no room,
    /// the worker gets the VTEP's frames.
    fn enter_hops(&mut self, ebpf: &mut Ebpf, paths: &Paths) -> Result<u32, SteeringError> {
        let mut indices = Vec::new();
        for hop in paths.next_hops() {
            let entry = HopEntry::of(hop);
            let Some((index, is_new)) = self.hops.acquire(&entry) else {
                self.release_hops(indices);
                return Ok(NO_HOPS);
            };
            indices.push(index);
            if is_new {
                set(ebpf, "offload_hops", index, entry)?;
            }
        }
        if let [only] = indices.as_slice() {
            return Ok(only | SINGLE);
        }
        let mut group = GroupEntry { hops: [0; BUCKETS] };
        for (hop, owner) in group.hops.iter_mut().zip(paths.buckets()) {
            *hop = indices.get(usize::from(*owner)).map_or(0, |index| *index as u16);
        }
        let acquired = if indices.is_empty() { None } else { self.groups.acquire(&group) };
        let Some((index, is_new)) = acquired else {
            self.release_hops(indices);
            return Ok(NO_HOPS);
        };
        if is_new {
            set(ebpf, "offload_groups", index, group)?;
            self.members.insert(index, indices);
        } else {
            // An equal group already uses these next hops.
            self.release_hops(indices);
        }
        Ok(index)
    }

    fn release_hops(&mut self, indices: Vec<u32>) {
        for index in indices {
            self.hops.release(index);
        }
    }

    /// Ends the use of what [`Self::enter_hops`] returned.
    fn leave_hops(&mut self, hops: u32) {
        if hops & SINGLE != 0 {
            self.hops.release(hops & !SINGLE);
        } else if hops != NO_HOPS && self.groups.release(hops).is_some() {
            let members = self.members.remove(&hops).unwrap_or_default();
            self.release_hops(members);
        }
    }
}
