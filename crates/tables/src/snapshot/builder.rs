//! The builder of snapshots.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use path::Version;
use wire::Vni;

use crate::kernel_vni::KernelVni;

use super::{Snapshot, VniIndex, VniTable, Vtep, VtepIndex};

/// Builds a [`Snapshot`].
#[derive(Debug)]
pub struct SnapshotBuilder {
    snapshot: Snapshot,
}

impl SnapshotBuilder {
    /// Starts with an empty snapshot of this generation.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self { snapshot: Snapshot { generation, ..Snapshot::default() } }
    }

    /// Starts with the contents of this snapshot, as the next generation.
    #[must_use]
    pub fn after(snapshot: &Snapshot) -> Self {
        let generation = snapshot.generation + 1;
        let snapshot = Snapshot { generation, version: Version::NONE, ..snapshot.clone() };
        Self { snapshot }
    }

    /// Adds a VNI. Replaces the one with its index.
    pub fn vni(&mut self, table: Arc<VniTable>) {
        let index = table.index;
        let listens = listens(&table);
        let before = self.snapshot.vni(index.get());
        if before.is_none_or(|before| !table.has_settings_of(before)) {
            self.snapshot.settings.set(usize::from(index.get()), Some(Version::unique()));
            self.snapshot.reception = Version::unique();
        }
        let replaced = self.snapshot.vnis.set(usize::from(index.get()), Some(table));
        if replaced.is_none() {
            self.snapshot.addition = Version::unique();
        }
        self.listen(index, replaced.as_deref(), Some(listens));
    }

    /// Removes the VNI with this index.
    pub fn remove_vni(&mut self, index: VniIndex) {
        let removed = self.snapshot.vnis.set(usize::from(index.get()), None);
        self.snapshot.settings.set(usize::from(index.get()), None);
        self.snapshot.reception = Version::unique();
        self.listen(index, removed.as_deref(), None);
    }

    fn listen(
        &mut self,
        index: VniIndex,
        before: Option<&VniTable>,
        now: Option<(IpAddr, u16, Vni)>,
    ) {
        let before = before.map(listens);
        if before == now {
            return;
        }
        let receivers = Arc::make_mut(&mut self.snapshot.receivers);
        if let Some(before) = before.filter(|before| receivers.get(before) == Some(&index)) {
            receivers.remove(&before);
        }
        if let Some(now) = now {
            receivers.insert(now, index);
        }
    }

    /// Sets the VTEP with this index. Replaces the one that is there.
    pub fn vtep(&mut self, index: VtepIndex, vtep: Vtep) {
        let address = vtep.address;
        self.assign(index, address);
        let replaced = self.snapshot.vteps.set(index.0 as usize, Some(vtep));
        self.call(index, replaced.as_ref(), Some(address));
    }

    /// Numbers the assignment of an index to an address, unless the last one was to the same.
    fn assign(&mut self, index: VtepIndex, address: IpAddr) {
        let Snapshot { assignments, assigned, .. } = &mut self.snapshot;
        let place = index.0 as usize;
        if assignments.get(place).is_none_or(|(last, _)| *last != address) {
            *assigned = assigned.wrapping_add(1);
            assignments.set(place, Some((address, *assigned)));
        }
    }

    /// Sets the addresses of the leaf that it refuses as sources, in ascending order.
    pub fn own(&mut self, addresses: impl Iterator<Item = IpAddr> + Clone) {
        if !addresses.clone().eq(self.snapshot.own.iter().copied()) {
            self.snapshot.own = Arc::new(addresses.collect());
            self.snapshot.reception = Version::unique();
        }
    }

    /// Sets the VNIs whose queue pairs `qp-pin` places while the kernel encapsulates their frames,
    /// by the interface index of their netdevs.
    pub fn kernel_vnis(&mut self, vnis: BTreeMap<u32, Arc<KernelVni>>) {
        self.snapshot.kernel = Arc::new(vnis);
    }

    /// Removes the VTEP with this index.
    pub fn remove_vtep(&mut self, index: VtepIndex) {
        let removed = self.snapshot.vteps.set(index.0 as usize, None);
        self.call(index, removed.as_ref(), None);
    }

    fn call(&mut self, index: VtepIndex, before: Option<&Vtep>, now: Option<IpAddr>) {
        let before = before.map(|vtep| vtep.address);
        if before == now {
            return;
        }
        self.snapshot.reception = Version::unique();
        let addresses = Arc::make_mut(&mut self.snapshot.addresses);
        if let Some(before) = before.filter(|before| addresses.get(before) == Some(&index)) {
            addresses.remove(&before);
        }
        if let Some(now) = now {
            addresses.insert(now, index);
        }
    }

    /// The snapshot as it is so far.
    #[must_use]
    pub const fn so_far(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The finished snapshot.
    #[must_use]
    pub fn build(self) -> Snapshot {
        Snapshot { version: Version::unique(), ..self.snapshot }
    }
}

/// The outer destination address, the UDP port and the VNI of the packets that a table receives.
const fn listens(table: &VniTable) -> (IpAddr, u16, Vni) {
    (table.tunnel.local, table.tunnel.destination_port, table.tunnel.vni)
}
