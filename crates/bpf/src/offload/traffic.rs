//! The offload's counters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aya::maps::{MapError, PerCpuArray, PerCpuValues};
use aya::{Ebpf, Pod};
use tables::{Snapshot, Vtep, VtepIndex};
use wire::Vni;

use crate::error::SteeringError;
use crate::maps::{map, per_cpu};

shared! {
    /// `struct offload_traffic` of the programs: frames and their bytes, of a VNI or of a remote
    /// VTEP. Each segment of a super-frame counts. Bytes are those of inner frames.
    #[derive(Default, PartialEq, Eq)]
    pub struct OffloadTraffic {
        /// Frames encapsulated and sent.
        pub sent: u64,
        /// Their bytes.
        pub sent_bytes: u64,
        /// Frames received, decapsulated and delivered.
        pub received: u64,
        /// Their bytes.
        pub received_bytes: u64,
        /// Frames sent by a default route.
        pub by_default: u64,
    }

    /// `struct offload_path_traffic` of the programs: frames sent to a next hop. Bytes include the
    /// outer headers.
    #[derive(Default, PartialEq, Eq)]
    pub struct OffloadPathTraffic {
        /// Frames; each segment counts.
        pub frames: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

/// Entries of the maps for VNIs and VTEPs.
pub(crate) const COUNTED: u32 = 4096;
/// Entries of the map for next hops (`OFFLOAD_PATHS` in the programs).
pub(crate) const PATHS: u32 = 1024;

/// The counters of the `offload` datapath at one moment, summed over all CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadCounts {
    /// By the index of the VNI.
    pub vnis: BTreeMap<u16, OffloadTraffic>,
    /// By the index of the VTEP.
    pub vteps: BTreeMap<u32, OffloadTraffic>,
    /// By the path index of the next hop.
    pub paths: BTreeMap<u16, OffloadPathTraffic>,
}

impl OffloadTraffic {
    const fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.by_default += other.by_default;
    }
}

impl OffloadPathTraffic {
    const fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

/// What the entries of the counters belong to. Entries keep their values when a VNI, a VTEP or a
/// next hop is not offloaded any more, so that sums never fall. An entry begins at zero again when
/// its index belongs to another VNI or VTEP.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    vnis: BTreeMap<u16, Vni>,
    vteps: BTreeMap<u32, IpAddr>,
    paths: BTreeSet<u16>,
}

impl Owners {
    /// Frames of this VNI are counted at this slot from now on. To be called before the programs
    /// count any.
    pub(crate) fn vni(
        &mut self,
        ebpf: &mut Ebpf,
        slot: u16,
        vni: Vni,
    ) -> Result<(), SteeringError> {
        if self.vnis.insert(slot, vni).is_some_and(|last| last != vni) {
            zero(ebpf, "offload_vni_traffic", slot.into())?;
        }
        Ok(())
    }

    /// The same for a remote VTEP.
    pub(crate) fn vtep(
        &mut self,
        ebpf: &mut Ebpf,
        index: u32,
        vtep: &Vtep,
    ) -> Result<(), SteeringError> {
        let next_hops = vtep.paths.next_hops().iter();
        self.paths.extend(next_hops.map(|hop| hop.path).filter(|path| u32::from(*path) < PATHS));
        if index < COUNTED
            && self.vteps.insert(index, vtep.address).is_some_and(|last| last != vtep.address)
        {
            zero(ebpf, "offload_vtep_traffic", index)?;
        }
        Ok(())
    }

    /// Reads the counters of the VNIs and VTEPs in this snapshot, and of all next hops.
    pub(crate) fn read(
        &self,
        ebpf: &Ebpf,
        snapshot: &Snapshot,
    ) -> Result<OffloadCounts, SteeringError> {
        let mut counts = OffloadCounts::default();
        for (slot, vni) in &self.vnis {
            if snapshot.vni(*slot).is_some_and(|table| table.tunnel.vni == *vni) {
                let found = sum(ebpf, "offload_vni_traffic", (*slot).into(), OffloadTraffic::add)?;
                counts.vnis.insert(*slot, found);
            }
        }
        for (index, address) in &self.vteps {
            if snapshot.vtep(VtepIndex(*index)).is_some_and(|vtep| vtep.address == *address) {
                let found = sum(ebpf, "offload_vtep_traffic", *index, OffloadTraffic::add)?;
                counts.vteps.insert(*index, found);
            }
        }
        for path in &self.paths {
            let found = sum(ebpf, "offload_path_traffic", (*path).into(), OffloadPathTraffic::add)?;
            counts.paths.insert(*path, found);
        }
        Ok(counts)
    }
}

/// Sets the counters of an index to zero.
fn zero(ebpf: &mut Ebpf, name: &'static str, index: u32) -> Result<(), SteeringError> {
    let failed = |error| SteeringError::Map(name, error);
    let mut values: PerCpuArray<_, OffloadTraffic> = map(ebpf, name)?;
    let cpus = values.get(&index, 0).map_err(failed)?.len();
    let zeros = PerCpuValues::try_from(vec![OffloadTraffic::default(); cpus]);
    let zeros = zeros.map_err(|error| failed(MapError::IoError(error)))?;
    values.set(index, zeros, 0).map_err(failed)
}

/// Adds the values of all CPUs at an index.
fn sum<T: Pod + Default>(
    ebpf: &Ebpf,
    name: &'static str,
    index: u32,
    add: impl Fn(&mut T, &T),
) -> Result<T, SteeringError> {
    let mut all = T::default();
    per_cpu(ebpf, name, index)?.iter().for_each(|one| add(&mut all, one));
    Ok(all)
}
