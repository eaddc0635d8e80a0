//! The queue pairs that `qp-pin` has placed (`programs/pinned.bpf.h`).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::Ebpf;
use path::record::{Record, Records, WORDS};
use path::{CounterId, PathId, Policy};
use tables::{Slot, Snapshot, VniTable};
use wire::Vni;

use super::Offload;
use super::entries::HopEntry;
use crate::error::SteeringError;
use crate::mapped::{MappedWords, mapped};
use crate::maps::{insert, remove};

/// The most queue pairs that the programs know (`OFFLOAD_PINNED`). The worker gets the others.
pub(crate) const PINNED: u32 = 65_536;

const MAP: &str = "offload_pinned";

/// A queue pair and its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedFlow {
    /// The VNI.
    pub vni: Vni,
    /// The remote VTEP.
    pub vtep: IpAddr,
    /// Inner addresses and queue pair.
    pub key: path::Key,
    /// Next hop and source port.
    pub path: PathId,
    /// Where its frames are counted.
    pub counter: CounterId,
}

shared! {
    /// `struct pinned_key` of the programs.
    #[derive(PartialEq, Eq, Hash)]
    pub(crate) struct PinnedKey {
        pub(crate) hash: u64,
        pub(crate) vtep: u32,
        pub(crate) slot: u32,
    }

    /// `struct pinned` of the programs.
    #[derive(PartialEq, Eq)]
    pub(crate) struct PinnedEntry {
        pub(crate) moved: u64,
        pub(crate) hop: u32,
        pub(crate) usage: u32,
        pub(crate) port: u16,
        pub(crate) zero: [u16; 3],
    }

    /// `struct pinned_usage` of the programs (`programs/record.bpf.h`).
    #[derive(PartialEq, Eq)]
    pub(crate) struct PinnedUsage {
        pub(crate) bytes: u64,
        pub(crate) frames: u64,
        pub(crate) last: u64,
        // From here on, it is a `path::record::Record`.
        pub(crate) state: u64,
        pub(crate) gaps: u64,
        pub(crate) repeats: u64,
        pub(crate) naks: u64,
        pub(crate) cnps: u64,
        pub(crate) marks: u64,
    }
}

/// What the programs have sent of each queue pair, and the records that the worker shares.
#[derive(Debug)]
pub struct OffloadUsage(pub(crate) MappedWords);

/// Words of an entry.
const ENTRY: usize = size_of::<PinnedUsage>() / size_of::<u64>();

impl Records for OffloadUsage {
    fn record(&self, counter: CounterId) -> Option<&Record> {
        self.0.array(counter.index() * ENTRY + (ENTRY - WORDS))
    }
}

impl OffloadUsage {
    /// Bytes and frames of a queue pair, and when the last frame was sent, on the clock
    /// `CLOCK_MONOTONIC`; `None` if none was.
    #[must_use]
    pub fn read(&self, counter: CounterId) -> (u64, u64, Option<Duration>) {
        let load = |word| {
            let word = self.0.get(counter.index() * ENTRY + word);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        let last = load(2);
        (load(0), load(1), (last > 0).then(|| Duration::from_nanos(last)))
    }
}

/// The entries that are written. Each uses the index of its next hop.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    /// By VTEP, VNI and hash.
    entries: BTreeMap<(u32, u32, u64), PinnedEntry>,
    by_counter: HashMap<CounterId, PinnedKey>,
}

/// The order of entries: those of a VTEP together.
const fn order(key: &PinnedKey) -> (u32, u32, u64) {
    (key.vtep, key.slot, key.hash)
}

impl Offload {
    /// Writes which paths queue pairs have that have changed. Each has its
    /// counters. Those that have none go to the worker, as does the queue pair that had
    /// the counters before. The work is that for the changes, whatever else there is.
    ///
    /// # Errors
    /// The first error. The next call with the same changes tries again.
    pub fn pin(
        &mut self,
        ebpf: &mut Ebpf,
        changes: &[(CounterId, Option<PinnedFlow>)],
    ) -> Result<(), SteeringError> {
        if changes.is_empty() {
            return Ok(());
        }
        let has_pins = |table: &&VniTable| table.offload && table.entropy.policy() == Policy::QpPin;
        let tables = self.snapshot.vnis().map(AsRef::as_ref).filter(has_pins);
        let tables: HashMap<Vni, &VniTable> =
            tables.map(|table| (table.tunnel.vni, table)).collect();
        let wanted = |(counter, flow): &(CounterId, Option<PinnedFlow>)| {
            let resolved = flow.and_then(|flow| {
                let (key, hop) = self.resolve(&flow, tables.get(&flow.vni)?)?;
                Some((key, hop, flow))
            });
            (*counter, resolved)
        };
        let wanted: Vec<_> = changes.iter().map(wanted).collect();
        for (counter, wanted) in wanted {
            let key = wanted.map(|(key, ..)| key);
            let before = self.pinned.by_counter.get(&counter).copied();
            if let Some(before) = before.filter(|before| Some(*before) != key) {
                let entry = self.pinned.entries.get(&order(&before));
                if entry.is_some_and(|entry| entry.usage == counter.get()) {
                    self.unpin(ebpf, before)?;
                }
                self.pinned.by_counter.remove(&counter);
            }
            if let Some((key, hop, flow)) = wanted {
                self.write(ebpf, key, &hop, &flow)?;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        ebpf: &mut Ebpf,
        key: PinnedKey,
        hop: &HopEntry,
        flow: &PinnedFlow,
    ) -> Result<(), SteeringError> {
        let old = self.pinned.entries.get(&order(&key)).copied();
        let (port, usage) = (flow.path.source_port.to_be(), flow.counter.get());
        let acquired = self.hops.acquire(hop);
        // All next hops of a VTEP that is written have an index.
        let Some((hop, false)) = acquired else { return Ok(()) };
        let entry = PinnedEntry { moved: 0, hop, usage, port, zero: [0; 3] };
        if old == Some(entry) {
            self.hops.release(hop);
            return Ok(());
        }
        insert(ebpf, MAP, key, entry).inspect_err(|_| {
            self.hops.release(hop);
        })?;
        self.pinned.by_counter.insert(flow.counter, key);
        if let Some(old) = self.pinned.entries.insert(order(&key), entry) {
            self.hops.release(old.hop);
        }
        Ok(())
    }

    /// What the programs send of each queue pair.
    ///
    /// # Errors
    /// When the map cannot be mapped into memory.
    pub fn pinned_usage(&self, ebpf: &Ebpf) -> Result<OffloadUsage, SteeringError> {
        Ok(OffloadUsage(mapped(ebpf, "offload_usage")?))
    }

    /// The entry of a queue pair of the VNI with this table. `None` if the worker decides about its
    /// frames.
    fn resolve(&self, flow: &PinnedFlow, table: &VniTable) -> Option<(PinnedKey, HopEntry)> {
        let slot = Slot::of(table.index).get();
        let vtep = self.snapshot.find_vtep(flow.vtep)?.0;
        let written = self.written.get(&vtep).filter(|written| written.address == flow.vtep)?;
        let hop = written.paths.next_hops().iter().find(|hop| hop.identity == flow.path.hop)?;
        let is_usable = table.entropy.range().contains(flow.path.source_port)
            && self.vnis.contains_key(&slot)
            && flow.counter.get() <= self.most_pinned;
        let hash = flow.key.hash(table.entropy.seed());
        is_usable.then(|| (PinnedKey { hash, vtep, slot: slot.into() }, HopEntry::of(hop)))
    }

    /// Gives the worker a queue pair.
    fn unpin(&mut self, ebpf: &mut Ebpf, key: PinnedKey) -> Result<(), SteeringError> {
        remove::<_, PinnedEntry>(ebpf, MAP, &key)?;
        if let Some(entry) = self.pinned.entries.remove(&order(&key)) {
            self.hops.release(entry.hop);
        }
        Ok(())
    }

    /// Gives the worker the queue pairs to VTEPs that are gone or whose next hops have changed. To be
    /// called before these are written.
    pub(super) fn unpin_changed(
        &mut self,
        ebpf: &mut Ebpf,
        snapshot: &Snapshot,
    ) -> Result<(), SteeringError> {
        if self.pinned.entries.is_empty() {
            return Ok(());
        }
        let known: BTreeMap<u32, _> =
            snapshot.indexed_vteps().map(|(index, vtep)| (index.0, vtep)).collect();
        let changed: Vec<u32> = self
            .written
            .iter()
            .filter(|(index, written)| {
                known.get(index).is_none_or(|vtep| !written.is_current(vtep))
            })
            .map(|(index, _)| *index)
            .collect();
        for vtep in changed {
            let keys = self.pinned.entries.range((vtep, 0, 0)..=(vtep, u32::MAX, u64::MAX));
            let keys: Vec<PinnedKey> = keys
                .map(|((vtep, slot, hash), _)| PinnedKey { hash: *hash, vtep: *vtep, slot: *slot })
                .collect();
            keys.into_iter().try_for_each(|key| self.unpin(ebpf, key))?;
        }
        Ok(())
    }
}
