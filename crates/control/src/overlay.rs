//! One vxlan netdev's FDB, as the sources tell it and as it is forwarded by.
//!
//! Which remote VTEP has a MAC address: the kernel's word, else zebra's; nobody if the bridge knows
//! the address on another port of its own, because the bridge learns of a host that came here
//! before anybody withdraws it there.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};

use netlink::FdbEntry;
use tables::hash::{TableHasher, TableMap};
use tables::{Fdb, VtepIndex};
use wire::MacAddr;

use crate::epoch_map::{Epoch, Swept};
use crate::events::MacChange;
use crate::ineligible::UnsupportedEntry;
use crate::vteps::Vteps;

/// `NUD_PERMANENT | NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const STATIC: u16 = 0xc0;

/// What the netdev's own FDB has for a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) vtep: Ipv4Addr,
    /// Whether no received frame moves it.
    pub(crate) fixed: bool,
    /// `NTF_*`.
    pub(crate) flags: u32,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    kernel: Swept<MacAddr, Remote>,
    fpm: Swept<MacAddr, Ipv4Addr>,
    flood: Swept<Ipv4Addr, ()>,
    /// Entries that only the kernel can follow.
    odd: Swept<(MacAddr, Option<IpAddr>), UnsupportedEntry>,
    /// Addresses about which something was said since the last [`Overlay::settle`].
    touched: Vec<MacAddr>,
    touched_flood: bool,
    /// Whether the netdev learns from received frames.
    learns: bool,
    /// Moves from VTEP to VTEP that the kernel has told since the last [`Overlay::settle`].
    moves: u64,
    /// What settling changed, for who watches.
    pub(crate) changes: Vec<MacChange>,

    /// What is forwarded by.
    pub(crate) fdb: Fdb,
    pub(crate) flooding: BTreeMap<Ipv4Addr, VtepIndex>,
    /// Where the netdev learns: what no frame moves.
    pub(crate) fixed: TableMap<MacAddr, Ipv4Addr>,
    /// How many entries name each VTEP.
    remotes: HashMap<VtepIndex, u32, BuildHasherDefault<TableHasher>>,
    /// Whether it is taken over: its VTEPs count how many are.
    taken: bool,
}

/// What [`Overlay::settle`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Settled {
    /// An entry that is forwarded by.
    pub(crate) entries: bool,
    /// Moves from VTEP to VTEP: those that the kernel told, and those that are followed.
    pub(crate) moves: u64,
    pub(crate) followed: u64,
}

impl Overlay {
    /// The netdev's own FDB says so.
    pub(crate) fn kernel_new(&mut self, entry: &FdbEntry, epoch: Epoch) {
        if entry.destination.is_none() && entry.next_hop_id.is_none() {
            // Before Linux 6.14 a write to the FDB was announced twice, the second time without
            // what was written (`rtnl_fdb_notify()` in `net/core/rtnetlink.c`). The vxlan netdev
            // itself always names a destination.
            return;
        }
        let key = odd_key(entry);
        match destination(entry) {
            Ok(vtep) if entry.mac == MacAddr::ZERO => {
                self.touched_flood |= self.flood.insert(vtep, (), epoch);
            }
            Ok(vtep) => {
                let was_odd = self.odd.remove(&key).is_some();
                let remote = Remote { vtep, fixed: entry.state & STATIC != 0, flags: entry.flags };
                let before = self.kernel.replace(entry.mac, remote, epoch);
                self.moves += u64::from(before.is_some_and(|before| before.vtep != vtep));
                if before != Some(remote) || was_odd {
                    self.touched.push(entry.mac);
                }
            }
            Err(oddity) => {
                if self.odd.insert(key, oddity, epoch) || self.kernel.remove(&entry.mac).is_some() {
                    self.touched.push(entry.mac);
                }
            }
        }
    }

    /// The netdev's own FDB has it no more, and so nobody has: zebra tells what the kernel
    /// accepted.
    pub(crate) fn kernel_delete(&mut self, entry: &FdbEntry) {
        match destination(entry) {
            Ok(vtep) if entry.mac == MacAddr::ZERO => {
                self.touched_flood |= self.flood.remove(&vtep).is_some();
            }
            _ => {
                self.odd.remove(&odd_key(entry));
                self.kernel.remove(&entry.mac);
                self.fpm.remove(&entry.mac);
                self.touched.push(entry.mac);
            }
        }
    }

    /// zebra says so. Returns whether the kernel has said something of this address, too.
    pub(crate) fn fpm_new(&mut self, mac: MacAddr, vtep: Ipv4Addr, epoch: Epoch) -> bool {
        if self.fpm.insert(mac, vtep, epoch) {
            self.touched.push(mac);
        }
        self.kernel_knows(mac)
    }

    /// How many addresses are known from zebra.
    pub(crate) fn fpm_entries(&self) -> usize {
        self.fpm.len()
    }

    /// Whether zebra has told of an address of which the kernel has said nothing.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.fpm.keys().any(|mac| !self.kernel_knows(mac))
    }

    fn kernel_knows(&self, mac: MacAddr) -> bool {
        self.kernel.contains(&mac) || self.odd.contains(&(mac, None))
    }

    /// zebra takes it back.
    pub(crate) fn fpm_delete(&mut self, mac: MacAddr) {
        if self.fpm.remove(&mac).is_some() {
            self.touched.push(mac);
        }
    }

    /// Removes what the last dump did not have; says how many entries that were. As with a delete,
    /// zebra's version of an entry goes too, even where the kernel had never said anything: zebra
    /// tells what the kernel has accepted.
    pub(crate) fn sweep_kernel(&mut self, epoch: Epoch) -> usize {
        let (kernel, odd) = (&self.kernel, &self.odd);
        let alone =
            self.fpm.remove_if(|mac, _| !kernel.contains(mac) && !odd.contains(&(*mac, None)));
        self.touched.extend(alone.iter().map(|(mac, _)| *mac));
        let macs = self.kernel.sweep(epoch);
        let flood = self.flood.sweep(epoch);
        let odd = self.odd.sweep(epoch);
        self.touched_flood |= !flood.is_empty();
        for mac in macs.iter().map(|(mac, _)| *mac).chain(odd.iter().map(|((mac, _), _)| *mac)) {
            self.fpm.remove(&mac);
            self.touched.push(mac);
        }
        macs.len() + flood.len() + odd.len() + alone.len()
    }

    /// Removes what zebra has not said again since it came back; says how many entries that were.
    pub(crate) fn sweep_fpm(&mut self, epoch: Epoch) -> usize {
        let macs = self.fpm.sweep(epoch);
        self.touched.extend(macs.iter().map(|(mac, _)| *mac));
        macs.len()
    }

    /// The bridge said something about this address.
    pub(crate) fn touch(&mut self, mac: MacAddr) -> bool {
        let known = self.kernel.contains(&mac) || self.fpm.contains(&mac);
        if known {
            self.touched.push(mac);
        }
        known
    }

    /// Everything the bridge says may be different now: the netdev is in another one.
    pub(crate) fn touch_all(&mut self) {
        self.touched.extend(self.kernel.keys());
        self.touched.extend(self.fpm.keys());
        self.touched_flood = true;
    }

    /// Whether the netdev learns from received frames.
    pub(crate) fn set_learns(&mut self, learns: bool) {
        if self.learns != learns {
            self.learns = learns;
            self.touched.extend(self.kernel.keys());
        }
    }

    /// Whether the netdev learns from received frames.
    pub(crate) const fn learns(&self) -> bool {
        self.learns
    }

    /// What the netdev's own FDB has for an address.
    pub(crate) fn kernel_entry(&self, mac: MacAddr) -> Option<Remote> {
        self.kernel.get(&mac).copied()
    }

    /// Entries as the kernel counts them: a flood list is one.
    pub(crate) fn addresses(&self) -> usize {
        self.kernel.len() + self.odd.len() + usize::from(!self.flood.is_empty())
    }

    /// An entry that only the kernel can follow, the same one every time.
    pub(crate) fn odd(&self) -> Option<(MacAddr, UnsupportedEntry)> {
        self.odd.iter().min_by_key(|(key, _)| *key).map(|((mac, _), oddity)| (mac, *oddity))
    }

    /// Whether a source has this address behind this VTEP.
    pub(crate) fn says(&self, mac: MacAddr, vtep: Ipv4Addr) -> bool {
        self.kernel.get(&mac).is_some_and(|remote| remote.vtep == vtep)
            || self.fpm.get(&mac) == Some(&vtep)
    }

    /// Number of entries that sources hold.
    pub(crate) fn len(&self) -> usize {
        self.kernel.len() + self.flood.len() + self.odd.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && self.fpm.is_empty()
    }

    /// It is taken over from now on, or no more.
    pub(crate) fn take(&mut self, vteps: &mut Vteps, taken: bool) {
        if self.taken != taken {
            self.taken = taken;
            self.remotes.keys().for_each(|index| vteps.take(*index, taken));
        }
    }

    /// All VTEPs that entries name.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = VtepIndex> {
        self.remotes.keys().copied()
    }

    /// Draws the consequences of what was said. `local` says whether the bridge has an address on a
    /// port of its own.
    pub(crate) fn settle(&mut self, vteps: &mut Vteps, local: impl Fn(MacAddr) -> bool) -> Settled {
        let mut settled = Settled { moves: std::mem::take(&mut self.moves), ..Settled::default() };
        for mac in std::mem::take(&mut self.touched) {
            let kernel = self.kernel.get(&mac).copied();
            let fixed =
                kernel.filter(|remote| remote.fixed && self.learns).map(|remote| remote.vtep);
            let was_fixed = match fixed {
                Some(vtep) => self.fixed.insert(mac, vtep),
                None => self.fixed.remove(&mac),
            };
            settled.entries |= was_fixed != fixed;
            let said = kernel.map(|remote| remote.vtep).or_else(|| self.fpm.get(&mac).copied());
            // The VTEP is held before the old one is let go, lest it lose its index in between.
            let local = said.is_some() && local(mac);
            let new = said.filter(|_| !local).map(|vtep| self.hold(vteps, vtep));
            let old = match new {
                Some(new) => self.fdb.insert(mac, new),
                None => self.fdb.remove(&mac),
            };
            settled.entries |= old != new;
            if old != new {
                let address = |index| vteps.get(index).map(|known| known.address);
                let (from, to) = (old.and_then(address), new.and_then(address));
                settled.followed += u64::from(from.is_some() && to.is_some());
                self.changes.push(MacChange { mac, from, to, local });
            }
            if let Some(old) = old {
                self.let_go(vteps, old);
            }
        }
        if std::mem::take(&mut self.touched_flood) {
            for (vtep, index) in std::mem::take(&mut self.flooding) {
                if self.flood.contains(&vtep) {
                    self.flooding.insert(vtep, index);
                } else {
                    self.let_go(vteps, index);
                    settled.entries = true;
                }
            }
            for vtep in self.flood.keys().collect::<Vec<_>>() {
                if !self.flooding.contains_key(&vtep) {
                    let index = self.hold(vteps, vtep);
                    self.flooding.insert(vtep, index);
                    settled.entries = true;
                }
            }
        }
        settled
    }

    fn hold(&mut self, vteps: &mut Vteps, vtep: Ipv4Addr) -> VtepIndex {
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

    fn let_go(&mut self, vteps: &mut Vteps, index: VtepIndex) {
        if let Some(entries) = self.remotes.get_mut(&index) {
            *entries -= 1;
            if *entries == 0 {
                self.remotes.remove(&index);
                vteps.release(index, self.taken);
            }
        }
    }

    /// The netdev is gone.
    pub(crate) fn release(self, vteps: &mut Vteps) {
        for index in self.remotes.into_keys() {
            vteps.release(index, self.taken);
        }
    }
}

/// An address has one entry; only the flood list and groups have one for each destination.
fn odd_key(entry: &FdbEntry) -> (MacAddr, Option<IpAddr>) {
    let many = entry.mac == MacAddr::ZERO || entry.mac.is_group();
    (entry.mac, entry.destination.filter(|_| many))
}

/// The VTEP of an entry that any VTEP could follow.
fn destination(entry: &FdbEntry) -> Result<Ipv4Addr, UnsupportedEntry> {
    // The kernel names port, VNI and next-hop id only where they differ from the netdev's
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
        Some(IpAddr::V4(vtep)) if vtep.is_multicast() => {
            Err(UnsupportedEntry::MulticastGroup(vtep))
        }
        Some(IpAddr::V4(vtep)) if !vtep.is_unspecified() => Ok(vtep),
        Some(IpAddr::V6(vtep)) => Err(UnsupportedEntry::Ipv6(vtep)),
        _ => Err(UnsupportedEntry::NoDestination),
    }
}
