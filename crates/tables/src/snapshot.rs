//! One consistent view of everything a worker forwards by. Published whole, never changed
//! afterwards.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use entropy::Entropy;
use wire::{MacAddr, Vni};

use crate::fdb::Fdb;
use crate::hash::TableMap;
use crate::learning::Learning;
use crate::pages::Pages;
use crate::paths::Paths;
use crate::tunnel::Tunnel;

/// The 802.1ad tag that numbers a taken VNI on the bridge punt pair, 1 to 4094.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The largest slot: VLAN identifiers 0 and 4095 are reserved (IEEE 802.1Q-2022 table 9-2).
    pub const MAX: u16 = 4094;

    /// A slot, if the number is 1 to 4094.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number >= 1 && number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Index of a VTEP in its snapshot, stable over snapshots while the VTEP is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VtepIndex(pub u32);

/// A remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vtep {
    /// Its address.
    pub address: Ipv4Addr,
    /// The live next hops of the route to it; empty when there is none.
    pub paths: Arc<Paths>,
}

/// One taken VNI.
#[derive(Debug, Clone)]
pub struct VniTable {
    /// Its tag on the bridge punt pair.
    pub slot: Slot,
    /// Name of its vxlan netdev.
    pub netdev: String,
    /// MAC address of its vxlan netdev: a frame from it is a loop.
    pub mac: Option<MacAddr>,
    /// The outer header.
    pub tunnel: Tunnel,
    /// Who picks the outer source port.
    pub entropy: Entropy,
    /// Remote MAC → VTEP.
    pub fdb: Fdb,
    /// Local MAC → interface index of the bridge port that frames for it may be sent to past the
    /// bridge: the bypass of this direction.
    pub hosts: Fdb<u32>,
    /// Where broadcast, unknown unicast and multicast go (RFC 7432 inclusive multicast routes).
    pub flood: Vec<VtepIndex>,
    /// Whether frames from a VTEP that is in neither table are dropped.
    pub strict_vtep: bool,
    /// Set where MAC addresses are learned from received frames.
    pub learning: Option<Learning>,
}

/// See the module's description. Cloning one costs a few pointers: whatever the next one does not
/// change is shared.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    generation: u64,
    identity: u64,
    vnis: Pages<Arc<VniTable>>,
    slots: Arc<TableMap<(Ipv4Addr, u16, Vni), Slot>>,
    vteps: Pages<Vtep>,
    addresses: Arc<TableMap<Ipv4Addr, VtepIndex>>,
    /// The leaf's own addresses.
    own: Arc<BTreeSet<Ipv4Addr>>,
}

/// Whether no host can have this address: 0.0.0.0, loopback, multicast, broadcast and class E (RFC
/// 1122 section 3.2.1.3, RFC 1112 section 4). The kernel takes the rest of 0.0.0.0/8 for ordinary
/// addresses (`ipv4_is_zeronet()`).
#[must_use]
pub const fn is_martian(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    address.is_unspecified() || first == 127 || first >= 224
}

impl Snapshot {
    /// Whether the kernel would drop a packet with this source address as a martian, or nobody
    /// sends by it: no host can have it, or this leaf has it itself. An address of class E is none
    /// where a table names a VTEP by it, for the kernel takes it.
    #[must_use]
    pub fn is_martian_source(&self, source: Ipv4Addr) -> bool {
        let class_e = source.octets() >= [240, 0, 0, 0] && !source.is_broadcast();
        if class_e && self.find_vtep(source).is_some() {
            return false;
        }
        is_martian(source) || self.own.contains(&source)
    }

    /// Counts publications, from 0 for the empty snapshot.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// A number that in this process only this snapshot and its clones have: who remembers what
    /// followed from it asks by this, for two sources may count alike. 0 for the empty snapshot and
    /// what is being built.
    #[must_use]
    pub const fn identity(&self) -> u64 {
        self.identity
    }

    /// The VNI with this tag on the bridge punt pair.
    #[must_use]
    pub fn vni(&self, slot: u16) -> Option<&Arc<VniTable>> {
        self.vnis.get(usize::from(slot))
    }

    /// All VNIs, by slot.
    pub fn vnis(&self) -> impl Iterator<Item = &Arc<VniTable>> {
        self.vnis.iter()
    }

    /// The VNI that listens on this address and UDP port.
    #[must_use]
    pub fn terminate(
        &self,
        local: Ipv4Addr,
        destination_port: u16,
        vni: Vni,
    ) -> Option<&Arc<VniTable>> {
        self.vni(self.slots.get(&(local, destination_port, vni))?.get())
    }

    /// The VTEP at this index.
    #[must_use]
    pub fn vtep(&self, index: VtepIndex) -> Option<&Vtep> {
        self.vteps.get(index.0 as usize)
    }

    /// All VTEPs.
    pub fn vteps(&self) -> impl Iterator<Item = &Vtep> {
        self.vteps.iter()
    }

    /// Whether nothing was said of VTEPs between that snapshot and this one, as far as is quickly
    /// seen.
    #[must_use]
    pub fn has_vteps_of(&self, other: &Self) -> bool {
        self.vteps.is_unchanged(&other.vteps)
    }

    /// The VTEP of this address, if any table names one.
    #[must_use]
    pub fn find_vtep(&self, address: Ipv4Addr) -> Option<VtepIndex> {
        self.addresses.get(&address).copied()
    }

    /// Whether any table names a VTEP of this address.
    #[must_use]
    pub fn knows_vtep(&self, address: Ipv4Addr) -> bool {
        self.addresses.contains_key(&address)
    }
}

/// Builds a [`Snapshot`].
#[derive(Debug, Default)]
pub struct SnapshotBuilder(Snapshot);

impl SnapshotBuilder {
    /// An empty snapshot with this generation number.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self(Snapshot { generation, ..Snapshot::default() })
    }

    /// The next generation, so far as this one.
    #[must_use]
    pub fn after(snapshot: &Snapshot) -> Self {
        Self(Snapshot { generation: snapshot.generation + 1, identity: 0, ..snapshot.clone() })
    }

    /// Adds a VNI, replacing another one in its slot.
    pub fn vni(&mut self, table: Arc<VniTable>) {
        let slot = table.slot;
        let listens = listens(&table);
        let replaced = self.0.vnis.set(usize::from(slot.get()), Some(table));
        self.listen(slot, replaced.as_deref(), Some(listens));
    }

    /// Takes the VNI out of a slot.
    pub fn remove_vni(&mut self, slot: Slot) {
        let removed = self.0.vnis.set(usize::from(slot.get()), None);
        self.listen(slot, removed.as_deref(), None);
    }

    fn listen(&mut self, slot: Slot, before: Option<&VniTable>, now: Option<(Ipv4Addr, u16, Vni)>) {
        let before = before.map(listens);
        if before == now {
            return;
        }
        let slots = Arc::make_mut(&mut self.0.slots);
        if let Some(before) = before.filter(|before| slots.get(before) == Some(&slot)) {
            slots.remove(&before);
        }
        if let Some(now) = now {
            slots.insert(now, slot);
        }
    }

    /// Puts a VTEP at an index, replacing another one there.
    pub fn vtep(&mut self, index: VtepIndex, vtep: Vtep) {
        let address = vtep.address;
        let replaced = self.0.vteps.set(index.0 as usize, Some(vtep));
        self.call(index, replaced.as_ref(), Some(address));
    }

    /// The leaf's own addresses, replacing those before.
    pub fn own(&mut self, addresses: impl Iterator<Item = Ipv4Addr> + Clone) {
        if !addresses.clone().eq(self.0.own.iter().copied()) {
            self.0.own = Arc::new(addresses.collect());
        }
    }

    /// Takes the VTEP away from an index.
    pub fn remove_vtep(&mut self, index: VtepIndex) {
        let removed = self.0.vteps.set(index.0 as usize, None);
        self.call(index, removed.as_ref(), None);
    }

    fn call(&mut self, index: VtepIndex, before: Option<&Vtep>, now: Option<Ipv4Addr>) {
        let before = before.map(|vtep| vtep.address);
        if before == now {
            return;
        }
        let addresses = Arc::make_mut(&mut self.0.addresses);
        if let Some(before) = before.filter(|before| addresses.get(before) == Some(&index)) {
            addresses.remove(&before);
        }
        if let Some(now) = now {
            addresses.insert(now, index);
        }
    }

    /// What was built so far.
    #[must_use]
    pub const fn so_far(&self) -> &Snapshot {
        &self.0
    }

    /// The finished snapshot.
    #[must_use]
    pub fn build(self) -> Snapshot {
        static BUILT: AtomicU64 = AtomicU64::new(0);
        let identity = BUILT.fetch_add(1, Ordering::Relaxed) + 1;
        Snapshot { identity, ..self.0 }
    }
}

/// What a VNI's frames are received by.
const fn listens(table: &VniTable) -> (Ipv4Addr, u16, Vni) {
    (table.tunnel.local, table.tunnel.destination_port, table.tunnel.vni)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{DontFragment, Tos, Ttl};

    const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);

    fn table(slot: u16, vni: u32) -> Arc<VniTable> {
        Arc::new(VniTable {
            slot: Slot::new(slot).unwrap(),
            netdev: format!("vx{vni}"),
            mac: None,
            tunnel: Tunnel {
                vni: Vni::try_from(vni).unwrap(),
                local: LOCAL,
                destination_port: 4789,
                ttl: Ttl::Fixed(64),
                tos: Tos::Fixed(0),
                df: DontFragment::Unset,
                udp_checksum: true,
            },
            entropy: Entropy::new(entropy::Settings::default()).unwrap(),
            fdb: Fdb::default(),
            hosts: Fdb::default(),
            flood: Vec::new(),
            strict_vtep: false,
            learning: None,
        })
    }

    fn netdev(found: Option<&Arc<VniTable>>) -> Option<&str> {
        found.map(|table| table.netdev.as_str())
    }

    fn vtep(last: u8) -> Vtep {
        Vtep { address: Ipv4Addr::new(10, 0, 0, last), paths: Arc::default() }
    }

    #[test]
    fn a_slot_is_a_vlan_identifier_that_is_not_reserved() {
        assert_eq!(
            [0, 1, 4094, 4095].map(|number| Slot::new(number).is_some()),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_vni_is_found_by_its_slot_and_by_what_it_listens_on() {
        let mut builder = SnapshotBuilder::new(7);
        builder.vni(table(4094, 10));
        builder.vni(table(2, 20));
        let snapshot = builder.build();
        assert_eq!(snapshot.generation(), 7);
        assert_eq!(netdev(snapshot.vni(4094)), Some("vx10"));
        assert_eq!(netdev(snapshot.vni(3)), None);
        assert_eq!(netdev(snapshot.vni(u16::MAX)), None);
        let vni = |number| Vni::try_from(number).unwrap();
        assert_eq!(netdev(snapshot.terminate(LOCAL, 4789, vni(20))), Some("vx20"));
        assert_eq!(netdev(snapshot.terminate(LOCAL, 4789, vni(30))), None);
        assert_eq!(netdev(snapshot.terminate(LOCAL, 4790, vni(20))), None);
        assert_eq!(netdev(snapshot.terminate(Ipv4Addr::LOCALHOST, 4789, vni(20))), None);
        assert_eq!(
            snapshot.vnis().map(|table| table.netdev.as_str()).collect::<Vec<_>>(),
            ["vx20", "vx10"]
        );
    }

    #[test]
    fn what_is_replaced_is_not_found_any_more() {
        let mut builder = SnapshotBuilder::new(1);
        builder.vni(table(2, 10));
        builder.vni(table(2, 20));
        builder.vtep(VtepIndex(3), vtep(12));
        builder.vtep(VtepIndex(3), vtep(13));
        let snapshot = builder.build();
        let vni = |number| Vni::try_from(number).unwrap();
        assert_eq!(netdev(snapshot.terminate(LOCAL, 4789, vni(10))), None);
        assert_eq!(netdev(snapshot.terminate(LOCAL, 4789, vni(20))), Some("vx20"));
        assert!(!snapshot.knows_vtep(Ipv4Addr::new(10, 0, 0, 12)));
        assert!(snapshot.knows_vtep(Ipv4Addr::new(10, 0, 0, 13)));
        assert_eq!(snapshot.vtep(VtepIndex(3)), Some(&vtep(13)));
        assert_eq!(snapshot.vtep(VtepIndex(0)), None);
        assert_eq!(snapshot.vtep(VtepIndex(u32::MAX)), None);
        assert_eq!(snapshot.vteps().count(), 1);
    }

    #[test]
    fn the_next_one_shares_what_it_does_not_change() {
        let mut builder = SnapshotBuilder::new(1);
        builder.vni(table(2, 10));
        builder.vni(table(3, 20));
        builder.vtep(VtepIndex(0), vtep(12));
        builder.vtep(VtepIndex(1), vtep(13));
        let before = builder.build();
        let mut builder = SnapshotBuilder::after(&before);
        builder.vni(table(2, 10));
        builder.remove_vni(Slot::new(3).unwrap());
        builder.remove_vtep(VtepIndex(1));
        builder.remove_vtep(VtepIndex(7));
        let after = builder.build();
        assert_eq!(after.generation(), 2);
        let vni = |number| Vni::try_from(number).unwrap();
        assert_eq!(netdev(after.terminate(LOCAL, 4789, vni(20))), None);
        assert_eq!(netdev(after.terminate(LOCAL, 4789, vni(10))), Some("vx10"));
        assert_eq!((after.vnis().count(), after.vteps().count()), (1, 1));
        assert!(!after.knows_vtep(Ipv4Addr::new(10, 0, 0, 13)));
        // Nobody sees that of the one before.
        assert_eq!(netdev(before.terminate(LOCAL, 4789, vni(20))), Some("vx20"));
        assert_eq!((before.vnis().count(), before.vteps().count()), (2, 2));
        assert!(before.knows_vtep(Ipv4Addr::new(10, 0, 0, 13)));
        let mut builder = SnapshotBuilder::after(&after);
        builder.vni(table(2, 10));
        assert!(Arc::ptr_eq(&builder.so_far().slots, &after.slots), "it listens as before");
    }

    #[test]
    fn what_moves_to_another_slot_is_found_there() {
        let mut builder = SnapshotBuilder::new(1);
        builder.vni(table(2, 10));
        builder.vni(table(3, 10));
        builder.remove_vni(Slot::new(2).unwrap());
        let vni = Vni::try_from(10).unwrap();
        assert_eq!(
            builder.build().terminate(LOCAL, 4789, vni).map(|table| table.slot.get()),
            Some(3)
        );
        let mut builder = SnapshotBuilder::new(1);
        builder.vtep(VtepIndex(1), vtep(12));
        builder.vtep(VtepIndex(2), vtep(12));
        builder.remove_vtep(VtepIndex(1));
        assert!(builder.build().knows_vtep(Ipv4Addr::new(10, 0, 0, 12)));
    }
}
