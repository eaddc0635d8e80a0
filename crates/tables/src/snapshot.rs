//! One consistent view of everything a worker forwards by. Published whole, never changed afterwards.

use std::net::Ipv4Addr;
use std::sync::Arc;

use entropy::Entropy;
use wire::{MacAddr, Vni};

use crate::hash::TableMap;
use crate::learning::Learning;
use crate::paths::Paths;
use crate::tunnel::Tunnel;

/// The 802.1ad tag that numbers a taken VNI on the bridge splice, 1 to 4094.
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
    /// Its tag on the bridge splice.
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
    pub fdb: TableMap<MacAddr, VtepIndex>,
    /// Where broadcast, unknown unicast and multicast go (RFC 7432 inclusive multicast routes).
    pub flood: Vec<VtepIndex>,
    /// Whether frames from a VTEP that is in neither table are dropped.
    pub strict_vtep: bool,
    /// Set where MAC addresses are learned from received frames.
    pub learning: Option<Learning>,
}

/// See the module's description.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    generation: u64,
    vnis: Vec<Option<Arc<VniTable>>>,
    slots: TableMap<(Ipv4Addr, u16, Vni), Slot>,
    vteps: Vec<Option<Vtep>>,
    addresses: TableMap<Ipv4Addr, VtepIndex>,
}

impl Snapshot {
    /// Counts publications, from 0 for the empty snapshot.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The VNI with this tag on the bridge splice.
    #[must_use]
    pub fn vni(&self, slot: u16) -> Option<&Arc<VniTable>> {
        self.vnis.get(usize::from(slot))?.as_ref()
    }

    /// All VNIs, by slot.
    pub fn vnis(&self) -> impl Iterator<Item = &Arc<VniTable>> {
        self.vnis.iter().flatten()
    }

    /// The VNI that listens on this address and UDP port.
    #[must_use]
    pub fn terminate(&self, local: Ipv4Addr, destination_port: u16, vni: Vni) -> Option<&Arc<VniTable>> {
        self.vni(self.slots.get(&(local, destination_port, vni))?.get())
    }

    /// The VTEP at this index.
    #[must_use]
    pub fn vtep(&self, index: VtepIndex) -> Option<&Vtep> {
        self.vteps.get(index.0 as usize)?.as_ref()
    }

    /// All VTEPs.
    pub fn vteps(&self) -> impl Iterator<Item = &Vtep> {
        self.vteps.iter().flatten()
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

    /// Adds a VNI, replacing another one in its slot.
    pub fn vni(&mut self, table: Arc<VniTable>) {
        let slot = table.slot;
        let index = usize::from(slot.get());
        if self.0.vnis.len() <= index {
            self.0.vnis.resize(index + 1, None);
        }
        let Some(place) = self.0.vnis.get_mut(index) else { return };
        if let Some(replaced) = place {
            self.0.slots.remove(&listens(replaced));
        }
        self.0.slots.insert(listens(&table), slot);
        *place = Some(table);
    }

    /// Puts a VTEP at an index, replacing another one there.
    pub fn vtep(&mut self, index: VtepIndex, vtep: Vtep) {
        let place = index.0 as usize;
        if self.0.vteps.len() <= place {
            self.0.vteps.resize(place + 1, None);
        }
        let Some(to) = self.0.vteps.get_mut(place) else { return };
        if let Some(replaced) = to {
            self.0.addresses.remove(&replaced.address);
        }
        self.0.addresses.insert(vtep.address, index);
        *to = Some(vtep);
    }

    /// The finished snapshot.
    #[must_use]
    pub fn build(self) -> Snapshot {
        self.0
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
            fdb: TableMap::default(),
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
        assert_eq!([0, 1, 4094, 4095].map(|number| Slot::new(number).is_some()), [false, true, true, false]);
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
        assert_eq!(snapshot.vnis().map(|table| table.netdev.as_str()).collect::<Vec<_>>(), ["vx20", "vx10"]);
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
}
