//! The counters of a worker. Only the worker writes them; any thread may read them.
//!
//! For each worker, between two batches: `received + copies = sent + Σ dropped + held`. `copies`
//! counts the frames that replication and segmentation added.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use frame::{DropReason, VtepId};
use tables::{Snapshot, VtepIndex};

use crate::dropped::{DroppedFrame, DroppedFrames, Origin};

/// A counter with a single writer. An addition therefore needs no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the thread that owns the counter may call this; otherwise additions are lost.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the count. Only the thread that owns the counter may call this.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is summed over several workers.
trait Summed {
    /// Zero; empty, if it has one for each of many.
    fn none() -> Self;

    /// Adds what `other` has counted.
    fn add_all(&self, other: &Self);
}

impl Summed for Counter {
    fn none() -> Self {
        Self::default()
    }

    fn add_all(&self, other: &Self) {
        self.add(other.get());
    }
}

impl<T: Summed> Summed for Box<[T]> {
    fn none() -> Self {
        Self::default()
    }

    fn add_all(&self, other: &Self) {
        self.iter().zip(other).for_each(|(all, one)| all.add_all(one));
    }
}

/// Defines counters and their sum: that of each field, except those behind `and`.
macro_rules! counted {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$doc:meta])* $seen:vis $field:ident: $kind:ty,)+
        } $(and {
            $($(#[$other_doc:meta])* $other_seen:vis $other:ident: $other_kind:ty,)+
        })?
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name {
            $($(#[$doc])* $seen $field: $kind,)+
            $($($(#[$other_doc])* $other_seen $other: $other_kind,)+)?
        }

        impl Summed for $name {
            fn none() -> Self {
                Self {
                    $($field: Summed::none(),)+
                    $($($other: Default::default(),)+)?
                }
            }

            fn add_all(&self, other: &Self) {
                $(self.$field.add_all(&other.$field);)+
            }
        }
    };
}

counted! {
    /// A number of frames and their bytes.
    #[derive(Default)]
    pub struct Traffic {
        /// Frames; each segment of a super-frame counts.
        pub frames: Counter,
        /// Bytes, including Ethernet headers.
        pub bytes: Counter,
    }
}

impl Traffic {
    /// Counts frames.
    pub fn add(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }
}

counted! {
    /// Lookups of RoCE flows in the cache of a worker, one for each frame.
    #[derive(Default)]
    pub struct FlowCache {
        /// Frames of flows that were remembered.
        pub hits: Counter,
        /// Frames of flows that were not, or whose decision no longer held.
        pub misses: Counter,
        /// Flows that were forgotten for another, although nothing else had changed.
        pub evictions: Counter,
    }
}

/// Received frames whose order was restored.
#[derive(Debug, Default)]
pub struct Resequenced {
    /// Frames that waited for the ones before them.
    pub waited: Counter,
    /// Gaps that did not close in time.
    pub by_timer: Counter,
    /// Gaps that did not close within the limits of a queue pair or of the worker.
    pub by_bound: Counter,
    /// Gaps that did not close within the share of a host.
    pub by_share: Counter,
    /// Frames of queue pairs for which there was no room.
    pub crowded: Counter,
    /// The longest time that a frame waited, in nanoseconds.
    pub longest_wait: Counter,
}

impl Summed for Resequenced {
    fn none() -> Self {
        Self::default()
    }

    fn add_all(&self, other: &Self) {
        let Self { waited, by_timer, by_bound, by_share, crowded, longest_wait } = other;
        self.waited.add_all(waited);
        self.by_timer.add_all(by_timer);
        self.by_bound.add_all(by_bound);
        self.by_share.add_all(by_share);
        self.crowded.add_all(crowded);
        self.longest_wait.set(self.longest_wait.get().max(longest_wait.get()));
    }
}

counted! {
    /// The counters of one VNI. Bytes are those of inner frames.
    #[derive(Default)]
    pub struct VniCounters {
        /// Frames encapsulated and sent; each copy and segment counts.
        pub encapsulated: Traffic,
        /// Frames decapsulated and delivered to the bridge, a host port or an access port.
        pub decapsulated: Traffic,
        /// Frames forwarded between access ports.
        pub switched: Traffic,
        /// Frames from the bridge that were replicated to the flood list.
        pub flooded: Counter,
        /// Frames from VTEPs that are in no table.
        pub unknown_vtep: Counter,
        /// Frames of this VNI that were dropped for any reason.
        pub dropped: Counter,
    }
}

/// The counters of one remote VTEP, in cache lines of their own. Bytes are those of inner frames.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PeerCounters {
    /// The assignment of the index to the VTEP ([`VtepId`]).
    assignment: AtomicU32,
    /// Frames encapsulated and sent to the VTEP; each copy and segment counts.
    pub sent: Traffic,
    /// Frames received from the VTEP, decapsulated and delivered.
    pub received: Traffic,
    /// Frames sent by a default route.
    pub by_default: Counter,
}

impl PeerCounters {
    /// Resets the counters if they belong to another VTEP. Only the thread that owns them may call
    /// this.
    pub(crate) fn of(&self, vtep: VtepId) -> &Self {
        if self.assignment.load(Ordering::Relaxed) != vtep.assignment {
            let both = [&self.sent, &self.received].into_iter().flat_map(|t| [&t.frames, &t.bytes]);
            both.chain([&self.by_default]).for_each(Counter::reset);
            // A reader that sees the new assignment must not see old counts.
            self.assignment.store(vtep.assignment, Ordering::Release);
        }
        self
    }
}

/// What BPF programs forwarded: frames and bytes of inner frames. Each segment counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Encapsulated and sent.
    pub sent: (u64, u64),
    /// Received, decapsulated and delivered.
    pub received: (u64, u64),
    /// Frames sent by a default route.
    pub by_default: u64,
}

/// What BPF programs did with frames of all VNIs, including those that are gone. A super-frame is
/// one frame and copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Programs {
    /// Frames from hosts and bridges, encapsulated and sent.
    pub encapsulated: u64,
    /// Packets from the underlay, decapsulated and delivered.
    pub decapsulated: u64,
    /// The further segments of super-frames.
    pub copies: u64,
    /// Frames that were dropped. They count as received from bridges.
    pub failed: u64,
    /// Frames sent by a default route; each segment counts.
    pub by_default: u64,
    /// Frames sent to host ports, past the bridge; each segment counts.
    pub past_bridge: u64,
}

counted! {
    /// Counters of the standalone bridge's learning.
    #[derive(Default)]
    pub struct StationCounters {
        /// New stations.
        pub new: Counter,
        /// Stations that moved.
        pub moved: Counter,
        /// Frames whose source was not learned because a limit was reached.
        pub too_many: Counter,
        /// Frames whose source was not moved because it moves too often.
        pub flapping: Counter,
    }
}

counted! {
    /// All counters of a worker.
    pub struct Counters {
        vnis: Box<[VniCounters]>,
        paths: Box<[Traffic]>,
        drops: Box<[Counter]>,
        /// Frames received from the underlay.
        pub underlay_received: Counter,
        /// Frames received from the bridge.
        pub bridge_received: Counter,
        /// Frames that replication and segmentation added.
        pub copies: Counter,
        /// Frames that a port accepted.
        pub sent: Counter,
        /// UDP super-frames sent.
        pub super_frames: Counter,
        /// Frames sent in UDP super-frames.
        pub in_super_frames: Counter,
        /// Frames sent to host ports bypassing the bridge; each segment counts.
        pub past_bridge: Counter,
        /// Frames sent to VTEPs by a default route; each copy and segment counts.
        pub by_default: Counter,
        /// Frames that currently wait for their next hop, or for the ones before them.
        pub held: Counter,
        /// Lookups in the cache of flows.
        pub flow_cache: FlowCache,
        /// What restoring the order of sprayed packets has taken.
        pub resequenced: Resequenced,
        /// Number of times that the worker stalled and the kernel took over.
        pub stalls: Counter,
        /// Frames whose source address was not reported because of the rate limit.
        pub learn_limited: Counter,
        /// Counters of the standalone bridge's learning.
        pub stations: StationCounters,
    } and {
        peers: Box<[PeerCounters]>,
        /// The last frames that were dropped.
        pub dropped_frames: DroppedFrames,
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// What identifies the counters of the VTEP with this index.
#[inline]
#[must_use]
pub fn vtep_id(index: VtepIndex, snapshot: &Snapshot) -> VtepId {
    VtepId { index: index.0, assignment: snapshot.vtep_assignment(index) }
}

/// Number of next hops with separate counters. All others share the last.
pub const PATHS: u16 = 1024;
/// Number of remote VTEPs with separate counters. All others have none.
pub const PEERS: usize = 4096;

fn zeros<T: Default>(n: usize) -> Box<[T]> {
    (0..n).map(|_| T::default()).collect()
}

impl Counters {
    /// Counters with all values zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            vnis: zeros(usize::from(tables::VniIndex::MAX) + 1),
            paths: zeros(usize::from(PATHS)),
            peers: zeros(PEERS),
            drops: zeros(DropReason::ALL.len()),
            ..Self::none()
        }
    }

    /// Counters without those for single VNIs, next hops, VTEPs and drop reasons.
    pub(crate) fn none() -> Self {
        Summed::none()
    }

    /// The current sum over several workers. Counters of remote VTEPs are summed for `vteps` only.
    #[must_use]
    pub fn sum<'a>(
        workers: impl Iterator<Item = &'a Self> + Clone,
        vteps: impl Iterator<Item = VtepId>,
    ) -> Self {
        let sum = Self::new();
        workers.clone().for_each(|one| sum.add_all(one));
        for vtep in vteps {
            for one in workers.clone().filter_map(|one| one.peer(vtep)) {
                if let Some(all) = sum.peer_of(vtep) {
                    all.sent.add_all(&one.sent);
                    all.received.add_all(&one.received);
                    all.by_default.add_all(&one.by_default);
                }
            }
        }
        sum
    }

    /// Adds what BPF programs forwarded for a VNI.
    pub fn add_vni(&self, slot: u16, forwarded: &Forwarded) {
        let Forwarded { sent, received, .. } = *forwarded;
        if let Some(vni) = self.vni(slot) {
            vni.encapsulated.add(sent.0, sent.1);
            vni.decapsulated.add(received.0, received.1);
        }
    }

    /// Adds what BPF programs did with frames of all VNIs.
    pub fn add_programs(&self, programs: &Programs) {
        let Programs { encapsulated, decapsulated, copies, failed, by_default, past_bridge } =
            *programs;
        self.bridge_received.add(encapsulated + failed);
        self.underlay_received.add(decapsulated);
        self.copies.add(copies);
        self.sent.add(encapsulated + decapsulated + copies);
        self.drop_frames(DropReason::ProgramFailed, 0, failed);
        self.by_default.add(by_default);
        self.past_bridge.add(past_bridge);
    }

    /// Adds what BPF programs forwarded to and from a VTEP.
    pub fn add_peer(&self, vtep: VtepId, forwarded: &Forwarded) {
        let Forwarded { sent, received, by_default, .. } = *forwarded;
        if let Some(peer) = self.peer_of(vtep) {
            peer.sent.add(sent.0, sent.1);
            peer.received.add(received.0, received.1);
            peer.by_default.add(by_default);
        }
    }

    /// A VNI's counters, by its slot.
    #[must_use]
    pub fn vni(&self, slot: u16) -> Option<&VniCounters> {
        self.vnis.get(usize::from(slot))
    }

    /// Traffic sent to a next hop by its path index. Bytes include the outer headers.
    #[must_use]
    pub fn path(&self, path: u16) -> Option<&Traffic> {
        self.paths.get(usize::from(path.min(PATHS - 1)))
    }

    /// The counters of a remote VTEP, for counting. Only the thread that owns them may call this.
    #[inline]
    pub(crate) fn peer_of(&self, vtep: VtepId) -> Option<&PeerCounters> {
        self.peers.get(vtep.index as usize).map(|peer| peer.of(vtep))
    }

    /// The counters of a remote VTEP. `None` before the first frame from or to it, and for indices
    /// from [`PEERS`] on.
    #[must_use]
    pub fn peer(&self, vtep: VtepId) -> Option<&PeerCounters> {
        let peer = self.peers.get(vtep.index as usize)?;
        (peer.assignment.load(Ordering::Acquire) == vtep.assignment).then_some(peer)
    }

    /// Frames dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).map_or(0, Counter::get)
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().map(Counter::get).sum()
    }

    /// Counts and remembers a dropped frame, as [`Self::drop_frames`].
    #[cold]
    pub(crate) fn drop_frame(
        &self,
        reason: DropReason,
        slot: u16,
        (data, origin, time): (&[u8], Origin, Instant),
    ) {
        self.drop_frames(reason, slot, 1);
        self.dropped_frames.remember(reason, DroppedFrame::new(data, origin, slot, time));
    }

    /// Counts `n` dropped frames in the VNI with this slot (0: no VNI).
    pub fn drop_frames(&self, reason: DropReason, slot: u16, n: u64) {
        if let Some(counter) = self.drops.get(reason as usize) {
            counter.add(n);
        }
        if slot != 0
            && let Some(vni) = self.vni(slot)
        {
            vni.dropped.add(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of remote VTEPs are summed by VTEP, even if workers have different VTEPs at one
    /// index.
    #[test]
    fn several_workers_count_together() {
        let workers = [Counters::new(), Counters::new()];
        let vtep = |index, assignment| VtepId { index, assignment };
        for (counters, n) in workers.iter().zip(1..) {
            counters.sent.add(n);
            counters.stations.moved.add(10 * n);
            counters.drop_frames(DropReason::NoRoute, 7, 100 * n);
            counters.vni(7).unwrap().switched.add(n, 5 * n);
            counters.path(3).unwrap().add(n, 6 * n);
        }
        workers[0].peer_of(vtep(0, 1)).unwrap().sent.add(1, 64);
        workers[1].peer_of(vtep(0, 2)).unwrap().sent.add(2, 128);
        workers[0].peer_of(vtep(1, 2)).unwrap().received.add(1, 60);
        workers[1].peer_of(vtep(1, 2)).unwrap().received.add(3, 90);
        let all = Counters::sum(workers.iter(), [vtep(0, 1), vtep(1, 2)].into_iter());
        let dropped = [all.dropped(DropReason::NoRoute), all.vni(7).unwrap().dropped.get()];
        assert_eq!((all.sent.get(), all.stations.moved.get(), dropped), (3, 30, [300; 2]));
        let both = |traffic: &Traffic| (traffic.frames.get(), traffic.bytes.get());
        assert_eq!(both(&all.vni(7).unwrap().switched), (3, 15));
        assert_eq!(both(all.path(3).unwrap()), (3, 18));
        assert_eq!(both(&all.peer(vtep(0, 1)).unwrap().sent), (1, 64));
        assert_eq!(both(&all.peer(vtep(1, 2)).unwrap().received), (4, 150));
        assert!(all.peer(vtep(0, 2)).is_none());
    }
}
