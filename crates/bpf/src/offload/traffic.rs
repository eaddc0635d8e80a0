//! The offload's counters.

use std::collections::BTreeMap;

use aya::maps::{PerCpuArray, PerCpuValues};
use aya::{Ebpf, Pod};
use tables::{Slot, Snapshot, VtepIndex};

use crate::error::SteeringError;

/// `struct offload_traffic` of the programs: frames and their bytes, of a VNI or of a remote VTEP.
/// Each segment of a super-frame counts. Bytes are those of inner frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
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
    /// Of the received frames: sent to a host port, past the bridge.
    pub past_bridge: u64,
}

/// `struct offload_path_traffic` of the programs: frames sent to a next hop. Bytes include the outer
/// headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OffloadPathTraffic {
    /// Frames; each segment counts.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

// SAFETY: plain integers without padding.
unsafe impl Pod for OffloadTraffic {}
// SAFETY: plain integers without padding.
unsafe impl Pod for OffloadPathTraffic {}

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
        self.past_bridge += other.past_bridge;
    }
}

/// Reads the counters of what is in this snapshot.
pub(crate) fn read(ebpf: &Ebpf, snapshot: &Snapshot) -> Result<OffloadCounts, SteeringError> {
    let mut counts = OffloadCounts::default();
    let offloaded = snapshot.vnis().filter(|table| table.offload);
    for slot in offloaded.map(|table| Slot::of(table.index).get()) {
        let found = sum(ebpf, "offload_vni_traffic", slot.into(), OffloadTraffic::add)?;
        counts.vnis.insert(slot, found);
    }
    if counts.vnis.is_empty() {
        return Ok(counts);
    }
    let vteps = snapshot.indexed_vteps().filter(|(VtepIndex(index), _)| *index < COUNTED);
    for (VtepIndex(index), vtep) in vteps {
        let found = sum(ebpf, "offload_vtep_traffic", index, OffloadTraffic::add)?;
        counts.vteps.insert(index, found);
        for hop in vtep.paths.next_hops() {
            if u32::from(hop.path) >= PATHS || counts.paths.contains_key(&hop.path) {
                continue;
            }
            let add = |all: &mut OffloadPathTraffic, one: &OffloadPathTraffic| {
                all.frames += one.frames;
                all.bytes += one.bytes;
            };
            counts.paths.insert(hop.path, sum(ebpf, "offload_path_traffic", hop.path.into(), add)?);
        }
    }
    Ok(counts)
}

/// Adds the values of all CPUs at an index.
fn sum<T: Pod + Default>(
    ebpf: &Ebpf,
    name: &'static str,
    index: u32,
    add: impl Fn(&mut T, &T),
) -> Result<T, SteeringError> {
    let map = ebpf.map(name).ok_or(SteeringError::Missing(name))?;
    let failed = |error| SteeringError::Map(name, error);
    let values: PerCpuArray<_, T> = map.try_into().map_err(failed)?;
    let values: PerCpuValues<T> = values.get(&index, 0).map_err(failed)?;
    let mut all = T::default();
    values.iter().for_each(|one| add(&mut all, one));
    Ok(all)
}
