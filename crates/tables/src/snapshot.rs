//! All forwarding tables of the workers at one moment. A snapshot is published as a whole and is
//! immutable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use path::{Entropy, Policy, Version};
use wire::{MacAddr, Vni};

use crate::fdb::Fdb;
use crate::hash::TableMap;
use crate::kernel_vni::KernelVni;
use crate::learning::Learning;
use crate::pages::Pages;
use crate::tunnel::Tunnel;

mod builder;

pub use builder::SnapshotBuilder;
use path::Paths;

/// Index of a VNI that is taken over, 1 to [`VniIndex::MAX`]. The control plane assigns it. It stays
/// the same while the VNI is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VniIndex(u16);

impl VniIndex {
    /// The largest index: each needs a [`Slot`](crate::slot::Slot).
    pub const MAX: u16 = 4094;

    /// Creates an index; `None` unless the number is 1 to [`VniIndex::MAX`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number >= 1 && number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Index of a remote VTEP in a snapshot. It stays the same in later snapshots while the VTEP is
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VtepIndex(pub u32);

/// A remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vtep {
    /// Its address.
    pub address: IpAddr,
    /// The live next hops of the route to it. Empty if it cannot be reached.
    pub paths: Arc<Paths>,
}

/// The tables of one VNI that is taken over.
#[derive(Debug, Clone)]
pub struct VniTable {
    /// Its index.
    pub index: VniIndex,
    /// Name of its vxlan netdev.
    pub netdev: String,
    /// MAC address of its vxlan netdev. A frame with this source address is a loop.
    pub mac: Option<MacAddr>,
    /// The settings of the outer header.
    pub tunnel: Tunnel,
    /// The policy that chooses the outer source port.
    pub entropy: Entropy,
    /// Remote MAC addresses and the VTEPs behind which they are.
    pub fdb: Fdb,
    /// Local MAC addresses, each with the interface index of its bridge port. Decapsulated frames
    /// for these addresses use the bridge bypass.
    pub hosts: Fdb<u32>,
    /// The flood list: VTEPs that receive broadcast, unknown unicast and multicast frames (RFC 7432
    /// inclusive multicast routes).
    pub flood: Vec<VtepIndex>,
    /// Whether frames are dropped if no FDB or flood list in the snapshot has their VTEP.
    pub strict_vtep: bool,
    /// Whether BPF programs forward the flows whose path is decided.
    pub offload: bool,
    /// Set if MAC addresses are learned from received frames.
    pub learning: Option<Learning>,
}

/// All forwarding tables at one moment, immutable. A clone costs a few pointers: snapshots share
/// the tables that do not differ.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    generation: u64,
    version: Version<Self>,
    reception: Version<Reception>,
    addition: Version<Addition>,
    vnis: Pages<Arc<VniTable>>,
    /// The version of each VNI's settings.
    settings: Pages<Version<VniTable>>,
    receivers: Arc<TableMap<(IpAddr, u16, Vni), VniIndex>>,
    vteps: Pages<Vtep>,
    /// The last address of each VTEP index, and the number of its assignment.
    assignments: Pages<(IpAddr, u32)>,
    /// The number of the last assignment.
    assigned: u32,
    addresses: Arc<TableMap<IpAddr, VtepIndex>>,
    /// The leaf's own addresses, as far as they are refused as sources.
    own: Arc<BTreeSet<IpAddr>>,
    /// By the interface index of their netdevs.
    kernel: Arc<BTreeMap<u32, Arc<KernelVni>>>,
}

/// What decides how packets from the underlay are received ([`Snapshot::reception_version`]).
#[derive(Debug)]
pub enum Reception {}

/// The last addition of a VNI ([`Snapshot::addition_version`]).
#[derive(Debug)]
pub enum Addition {}

/// Whether no host can have this address: 0.0.0.0, loopback, multicast, broadcast and class E (RFC
/// 1122 section 3.2.1.3, RFC 1112 section 4). The kernel treats the rest of 0.0.0.0/8 as ordinary
/// addresses (`ipv4_is_zeronet()`).
#[must_use]
pub const fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, ..] = address.octets();
            address.is_unspecified() || first == 127 || first >= 224
        }
        IpAddr::V6(address) => {
            address.is_unspecified() || address.is_loopback() || address.is_multicast()
        }
    }
}

impl Snapshot {
    /// Whether a packet with this source address is a martian: no host can have the address, or it
    /// is this leaf's own. A class E address is accepted if a table has a VTEP with it, because the
    /// kernel accepts class E.
    #[must_use]
    pub fn is_martian_source(&self, source: IpAddr) -> bool {
        let is_class_e = match source {
            IpAddr::V4(source) => source.octets() >= [240, 0, 0, 0] && !source.is_broadcast(),
            IpAddr::V6(_) => false,
        };
        if is_class_e && self.find_vtep(source).is_some() {
            return false;
        }
        is_martian(source) || self.own.contains(&source)
    }

    /// Number of publications so far. 0 for the empty snapshot.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The version of all tables: only clones have the same one. Caches compare it, because the
    /// generations of two sources may be equal. [`Version::NONE`] for the empty snapshot and for one
    /// that is not built yet.
    #[must_use]
    pub const fn version(&self) -> Version<Self> {
        self.version
    }

    /// The version of a VNI's settings: everything in its table but MAC addresses and flood list.
    /// [`Version::NONE`] if there is no VNI with this index.
    #[must_use]
    pub fn settings_version(&self, index: VniIndex) -> Version<VniTable> {
        self.settings.get(usize::from(index.get())).copied().unwrap_or_default()
    }

    /// The version of what decides how packets from the underlay are received: the settings of all
    /// VNIs, the set of VTEPs, and the leaf's own addresses.
    #[must_use]
    pub const fn reception_version(&self) -> Version<Reception> {
        self.reception
    }

    /// The version of the last addition of a VNI.
    #[must_use]
    pub const fn addition_version(&self) -> Version<Addition> {
        self.addition
    }

    /// The VNI with this index.
    #[must_use]
    pub fn vni(&self, index: u16) -> Option<&Arc<VniTable>> {
        self.vnis.get(usize::from(index))
    }

    /// All VNIs, by index.
    pub fn vnis(&self) -> impl Iterator<Item = &Arc<VniTable>> {
        self.vnis.iter()
    }

    /// The VNIs whose queue pairs `qp-pin` places while the kernel encapsulates their frames, by the
    /// interface index of their netdevs.
    #[must_use]
    pub fn kernel_vnis(&self) -> &BTreeMap<u32, Arc<KernelVni>> {
        &self.kernel
    }

    /// The VNI that receives packets to this address and UDP port.
    #[must_use]
    pub fn terminate(
        &self,
        local: IpAddr,
        destination_port: u16,
        vni: Vni,
    ) -> Option<&Arc<VniTable>> {
        self.vni(self.receivers.get(&(local, destination_port, vni))?.get())
    }

    /// The VTEP with this index.
    #[must_use]
    pub fn vtep(&self, index: VtepIndex) -> Option<&Vtep> {
        self.vteps.get(index.0 as usize)
    }

    /// All VTEPs with their indices.
    pub fn indexed_vteps(&self) -> impl Iterator<Item = (VtepIndex, &Vtep)> {
        self.vteps.entries().map(|(index, vtep)| (VtepIndex(index as u32), vtep))
    }

    /// The number of the assignment of this index to its VTEP, from 1; 0 if the index was never
    /// assigned. The index of a VTEP that is gone can be reused, and the number tells the two
    /// apart. It is unique among this snapshot and those before it.
    #[must_use]
    pub fn vtep_assignment(&self, index: VtepIndex) -> u32 {
        self.assignments.get(index.0 as usize).map_or(0, |(_, number)| *number)
    }

    /// All VTEPs.
    pub fn vteps(&self) -> impl Iterator<Item = &Vtep> {
        self.vteps.iter()
    }

    /// Whether the VTEPs of both snapshots are the same. A VTEP that was replaced by an equal one
    /// counts as changed.
    #[must_use]
    pub fn has_vteps_of(&self, other: &Self) -> bool {
        self.vteps.is_unchanged(&other.vteps)
    }

    /// The index of the VTEP with this address, if a table refers to it.
    #[must_use]
    pub fn find_vtep(&self, address: IpAddr) -> Option<VtepIndex> {
        self.addresses.get(&address).copied()
    }

    /// Whether a table refers to a VTEP with this address.
    #[must_use]
    pub fn knows_vtep(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }
}

impl VniTable {
    /// The tables of a VNI without addresses and VTEPs.
    #[must_use]
    pub fn new(index: VniIndex, tunnel: Tunnel, entropy: Entropy) -> Self {
        Self {
            index,
            netdev: String::new(),
            mac: None,
            tunnel,
            entropy,
            fdb: Fdb::default(),
            hosts: Fdb::default(),
            flood: Vec::new(),
            strict_vtep: false,
            offload: false,
            learning: None,
        }
    }

    /// Whether a worker sprays its packets, and restores the order of those that other VTEPs spray.
    #[inline]
    #[must_use]
    pub fn sprays(&self) -> bool {
        self.entropy.policy() == Policy::Spray && !self.offload
    }

    /// Whether both tables have the same settings: all but MAC addresses and flood list.
    fn has_settings_of(&self, other: &Self) -> bool {
        let Self { index, netdev, mac, tunnel, entropy, strict_vtep, offload, .. } = self;
        let learning = |of: &Self| of.learning.as_ref().map(|of| (of.ifindex, of.ageing));
        (index, netdev, mac, tunnel, entropy, strict_vtep, offload, learning(self))
            == (
                &other.index,
                &other.netdev,
                &other.mac,
                &other.tunnel,
                &other.entropy,
                &other.strict_vtep,
                &other.offload,
                learning(other),
            )
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));

    fn table(index: u16, vni: u32) -> Arc<VniTable> {
        let tunnel = Tunnel::new(Vni::try_from(vni).unwrap(), LOCAL);
        let entropy = Entropy::new(path::Settings::default()).unwrap();
        let table = VniTable::new(VniIndex::new(index).unwrap(), tunnel, entropy);
        Arc::new(VniTable { netdev: format!("vx{vni}"), ..table })
    }

    fn netdev(found: Option<&Arc<VniTable>>) -> Option<&str> {
        found.map(|table| table.netdev.as_str())
    }

    fn vtep(last: u8) -> Vtep {
        Vtep { address: IpAddr::from([10, 0, 0, last]), paths: Arc::default() }
    }

    #[test]
    fn an_index_fits_a_vlan_identifier_that_is_not_reserved() {
        assert_eq!(
            [0, 1, 4094, 4095].map(|number| VniIndex::new(number).is_some()),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_vni_is_found_by_its_index_and_by_what_it_listens_on() {
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
        assert_eq!(netdev(snapshot.terminate(Ipv4Addr::LOCALHOST.into(), 4789, vni(20))), None);
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
        assert!(!snapshot.knows_vtep(IpAddr::from([10, 0, 0, 12])));
        assert!(snapshot.knows_vtep(IpAddr::from([10, 0, 0, 13])));
        assert_eq!(snapshot.vtep(VtepIndex(3)), Some(&vtep(13)));
        assert_eq!(snapshot.vtep(VtepIndex(0)), None);
        assert_eq!(snapshot.vtep(VtepIndex(u32::MAX)), None);
        assert_eq!(snapshot.vteps().count(), 1);
    }

    #[test]
    fn a_vtep_index_that_is_reused_has_another_assignment() {
        let numbers = |snapshot: &Snapshot| [1, 2].map(|n| snapshot.vtep_assignment(VtepIndex(n)));
        let after = |before: &Snapshot, change: &dyn Fn(&mut SnapshotBuilder)| {
            let mut builder = SnapshotBuilder::after(before);
            change(&mut builder);
            builder.build()
        };
        let first = after(&Snapshot::default(), &|builder| builder.vtep(VtepIndex(1), vtep(12)));
        assert_eq!(numbers(&first), [1, 0]);
        let gone = after(&first, &|builder| builder.remove_vtep(VtepIndex(1)));
        let back = after(&gone, &|builder| builder.vtep(VtepIndex(1), vtep(12)));
        assert_eq!(numbers(&back), [1, 0], "the same VTEP");
        let other = after(&gone, &|builder| builder.vtep(VtepIndex(1), vtep(13)));
        assert_eq!(numbers(&other), [2, 0]);
        let again = after(&other, &|builder| {
            builder.vtep(VtepIndex(1), vtep(12));
            builder.vtep(VtepIndex(2), vtep(13));
        });
        assert_eq!(numbers(&again), [3, 4]);
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
        builder.remove_vni(VniIndex::new(3).unwrap());
        builder.remove_vtep(VtepIndex(1));
        builder.remove_vtep(VtepIndex(7));
        let after = builder.build();
        assert_eq!(after.generation(), 2);
        let vni = |number| Vni::try_from(number).unwrap();
        assert_eq!(netdev(after.terminate(LOCAL, 4789, vni(20))), None);
        assert_eq!(netdev(after.terminate(LOCAL, 4789, vni(10))), Some("vx10"));
        assert_eq!((after.vnis().count(), after.vteps().count()), (1, 1));
        assert!(!after.knows_vtep(IpAddr::from([10, 0, 0, 13])));
        // The earlier snapshot does not change.
        assert_eq!(netdev(before.terminate(LOCAL, 4789, vni(20))), Some("vx20"));
        assert_eq!((before.vnis().count(), before.vteps().count()), (2, 2));
        assert!(before.knows_vtep(IpAddr::from([10, 0, 0, 13])));
        let mut builder = SnapshotBuilder::after(&after);
        builder.vni(table(2, 10));
        assert!(Arc::ptr_eq(&builder.so_far().receivers, &after.receivers), "it listens as before");
    }

    #[test]
    fn versions_change_with_what_they_stand_for() {
        let change = |before: &Snapshot, change: &dyn Fn(&mut SnapshotBuilder)| {
            let mut builder = SnapshotBuilder::after(before);
            change(&mut builder);
            builder.build()
        };
        let versions = |snapshot: &Snapshot| {
            let settings =
                [2, 3].map(|index| snapshot.settings_version(VniIndex::new(index).unwrap()));
            (settings, snapshot.reception_version())
        };
        let first = change(&Snapshot::default(), &|builder| {
            builder.vni(table(2, 10));
            builder.vtep(VtepIndex(1), vtep(12));
        });
        let ([settings, none], reception) = versions(&first);
        assert!(settings != Version::NONE && none == Version::NONE && reception != Version::NONE);
        let with = |change: &dyn Fn(&mut VniTable)| {
            let mut table = VniTable::clone(&table(2, 10));
            change(&mut table);
            Arc::new(table)
        };
        let same = [
            change(&first, &|builder| builder.vni(table(2, 10))),
            change(&first, &|builder| {
                builder.vni(with(&|table| {
                    table.fdb.insert(MacAddr([2; 6]), VtepIndex(1));
                    table.hosts.insert(MacAddr([4; 6]), 7);
                    table.flood = vec![VtepIndex(1)];
                }));
            }),
            change(&first, &|builder| {
                builder
                    .vtep(VtepIndex(1), Vtep { paths: Arc::new(Paths::new(vec![])), ..vtep(12) });
            }),
        ];
        assert!(same.iter().all(|snapshot| versions(snapshot) == versions(&first)));
        let received_otherwise = [
            change(&first, &|builder| builder.vtep(VtepIndex(2), vtep(13))),
            change(&first, &|builder| builder.remove_vtep(VtepIndex(1))),
            change(&first, &|builder| builder.own([LOCAL].into_iter())),
            change(&first, &|builder| builder.vni(table(3, 20))),
            change(&first, &|builder| builder.vni(with(&|table| table.strict_vtep = true))),
            change(&first, &|builder| builder.remove_vni(VniIndex::new(2).unwrap())),
        ];
        assert!(received_otherwise.iter().all(|snapshot| versions(snapshot).1 != reception));
        let own = received_otherwise.map(|snapshot| versions(&snapshot).0[0]);
        assert!(own[..4].iter().all(|version| *version == settings), "{own:?}");
        assert!(own[4].number() > settings.number() && own[5] == Version::NONE, "{own:?}");
    }

    #[test]
    fn what_moves_to_another_index_is_found_there() {
        let mut builder = SnapshotBuilder::new(1);
        builder.vni(table(2, 10));
        builder.vni(table(3, 10));
        builder.remove_vni(VniIndex::new(2).unwrap());
        let vni = Vni::try_from(10).unwrap();
        assert_eq!(
            builder.build().terminate(LOCAL, 4789, vni).map(|table| table.index.get()),
            Some(3)
        );
        let mut builder = SnapshotBuilder::new(1);
        builder.vtep(VtepIndex(1), vtep(12));
        builder.vtep(VtepIndex(2), vtep(12));
        builder.remove_vtep(VtepIndex(1));
        assert!(builder.build().knows_vtep(IpAddr::from([10, 0, 0, 12])));
    }
}
