//! What was done, counted by each worker for itself and read by anybody.
//!
//! For every worker and at any time when no batch is under way: `received + copies = sent + Σ
//! dropped + held`, where `copies` counts what replication and segmentation added.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::net::Ipv4Addr;

use crate::drop_reason::DropReason;

/// A counter with a single writer: an addition needs no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the thread that owns the counter may call this, else additions get lost.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Takes away `n`, which was added before.
    pub fn subtract(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Frames and their bytes.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Frames (segments, where the kernel handed over super-frames).
    pub frames: Counter,
    /// Bytes, Ethernet headers included.
    pub bytes: Counter,
}

impl Traffic {
    /// Counts frames.
    pub fn add(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }

    fn add_all(&self, other: &Self) {
        self.add(other.frames.get(), other.bytes.get());
    }
}

/// One VNI's counters. Inner bytes.
#[derive(Debug, Default)]
pub struct VniCounters {
    /// Encapsulated and sent, each copy and segment.
    pub encapsulated: Traffic,
    /// Decapsulated and handed to the bridge.
    pub decapsulated: Traffic,
    /// Handed from access port to access port.
    pub switched: Traffic,
    /// Frames from the bridge that were replicated to the flood list.
    pub flooded: Counter,
    /// Frames from VTEPs that no table names.
    pub unknown_vtep: Counter,
    /// Frames of this VNI that were dropped, for whatever reason.
    pub dropped: Counter,
}

/// One remote VTEP's counters, in a cache line of their own. Inner bytes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PeerCounters {
    /// Whose they are: an index is given to another VTEP when nobody names the first one any more.
    address: AtomicU32,
    /// Encapsulated and sent to it, each copy and segment.
    pub sent: Traffic,
    /// Received from it, decapsulated and handed to the bridge.
    pub received: Traffic,
    /// Of the frames sent, those that left by a default route.
    pub by_default: Counter,
}

impl PeerCounters {
    /// These counters, from zero if they were another VTEP's. Only the thread that owns them may
    /// call this.
    pub(crate) fn of(&self, vtep: Ipv4Addr) -> &Self {
        if self.address.load(Ordering::Relaxed) != vtep.to_bits() {
            let both = [&self.sent, &self.received].into_iter().flat_map(|t| [&t.frames, &t.bytes]);
            both.chain([&self.by_default]).for_each(Counter::reset);
            // Who reads the new address reads none of the old counts.
            self.address.store(vtep.to_bits(), Ordering::Release);
        }
        self
    }
}

/// What the bridge of our own learned, and what not.
#[derive(Debug, Default)]
pub struct StationCounters {
    /// Stations that were not known.
    pub new: Counter,
    /// Stations that were known elsewhere.
    pub moved: Counter,
    /// Frames whose source found no room.
    pub too_many: Counter,
    /// Frames whose source moves too often.
    pub flapping: Counter,
}

/// Everything a worker counts.
#[derive(Debug)]
pub struct Counters {
    vnis: Box<[VniCounters]>,
    paths: Box<[Traffic]>,
    peers: Box<[PeerCounters]>,
    drops: Box<[Counter]>,
    /// Frames received from the underlay.
    pub underlay_received: Counter,
    /// Frames received from the bridge.
    pub bridge_received: Counter,
    /// What replication and segmentation added.
    pub copies: Counter,
    /// Frames handed to a port, which accepted them.
    pub sent: Counter,
    /// UDP super-frames among what was sent.
    pub super_frames: Counter,
    /// Frames that left in them.
    pub in_super_frames: Counter,
    /// Frames, each segment, that went to hosts past the bridge.
    pub past_bridge: Counter,
    /// Frames sent, each copy and segment, to VTEPs that nothing better than a default route leads
    /// to.
    pub by_default: Counter,
    /// Frames that wait for their next hop now.
    pub held: Counter,
    /// How often the worker was away for so long that the kernel took over.
    pub stalls: Counter,
    /// Frames whose source address was to be reported, which too many others were.
    pub learn_limited: Counter,
    /// See there.
    pub stations: StationCounters,
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// Adjacencies that have counters of their own; more share the last.
pub const PATHS: u16 = 1024;
/// Remote VTEPs that have counters of their own; more have none.
pub const PEERS: usize = 4096;

impl Counters {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        fn zeros<T: Default>(n: usize) -> Box<[T]> {
            (0..n).map(|_| T::default()).collect()
        }
        Self {
            vnis: zeros(usize::from(tables::Slot::MAX) + 1),
            paths: zeros(usize::from(PATHS)),
            peers: zeros(PEERS),
            drops: zeros(DropReason::ALL.len()),
            underlay_received: Counter::default(),
            bridge_received: Counter::default(),
            copies: Counter::default(),
            sent: Counter::default(),
            super_frames: Counter::default(),
            in_super_frames: Counter::default(),
            past_bridge: Counter::default(),
            by_default: Counter::default(),
            held: Counter::default(),
            stalls: Counter::default(),
            learn_limited: Counter::default(),
            stations: StationCounters::default(),
        }
    }

    /// What several workers count, in all, as of now; of VTEPs, of these: their indices and
    /// addresses.
    #[must_use]
    pub fn sum<'a>(
        workers: impl Iterator<Item = &'a Self> + Clone,
        vteps: impl Iterator<Item = (u32, Ipv4Addr)>,
    ) -> Self {
        let sum = Self::new();
        for one in workers.clone() {
            sum.add(one);
        }
        for (index, vtep) in vteps {
            for one in workers.clone().filter_map(|one| one.peer(index, vtep)) {
                if let Some(all) = sum.peer_at(index).map(|all| all.of(vtep)) {
                    all.sent.add_all(&one.sent);
                    all.received.add_all(&one.received);
                    all.by_default.add(one.by_default.get());
                }
            }
        }
        sum
    }

    /// Adds everything but what is of VTEPs.
    fn add(&self, other: &Self) {
        let Self {
            vnis,
            paths,
            peers: _,
            drops,
            underlay_received,
            bridge_received,
            copies,
            sent,
            super_frames,
            in_super_frames,
            past_bridge,
            by_default,
            held,
            stalls,
            learn_limited,
            stations: StationCounters { new, moved, too_many, flapping },
        } = self;
        for (all, one) in vnis.iter().zip(&other.vnis) {
            let VniCounters {
                encapsulated,
                decapsulated,
                switched,
                flooded,
                unknown_vtep,
                dropped,
            } = all;
            encapsulated.add_all(&one.encapsulated);
            decapsulated.add_all(&one.decapsulated);
            switched.add_all(&one.switched);
            flooded.add(one.flooded.get());
            unknown_vtep.add(one.unknown_vtep.get());
            dropped.add(one.dropped.get());
        }
        paths.iter().zip(&other.paths).for_each(|(all, one)| all.add_all(one));
        drops.iter().zip(&other.drops).for_each(|(all, one)| all.add(one.get()));
        for (all, one) in [
            (underlay_received, &other.underlay_received),
            (bridge_received, &other.bridge_received),
            (copies, &other.copies),
            (sent, &other.sent),
            (super_frames, &other.super_frames),
            (in_super_frames, &other.in_super_frames),
            (past_bridge, &other.past_bridge),
            (by_default, &other.by_default),
            (held, &other.held),
            (stalls, &other.stalls),
            (learn_limited, &other.learn_limited),
            (new, &other.stations.new),
            (moved, &other.stations.moved),
            (too_many, &other.stations.too_many),
            (flapping, &other.stations.flapping),
        ] {
            all.add(one.get());
        }
    }

    /// A VNI's counters, by its slot.
    #[must_use]
    pub fn vni(&self, slot: u16) -> Option<&VniCounters> {
        self.vnis.get(usize::from(slot))
    }

    /// Outer traffic sent to a next hop, by its path index.
    #[must_use]
    pub fn path(&self, path: u16) -> Option<&Traffic> {
        self.paths.get(usize::from(path.min(PATHS - 1)))
    }

    /// The counters at a VTEP's index, whoever's they are.
    pub(crate) fn peer_at(&self, index: u32) -> Option<&PeerCounters> {
        self.peers.get(index as usize)
    }

    /// A remote VTEP's counters, by its index; none until it has sent or been sent something, and
    /// none beyond [`PEERS`].
    #[must_use]
    pub fn peer(&self, index: u32, vtep: Ipv4Addr) -> Option<&PeerCounters> {
        self.peer_at(index).filter(|peer| peer.address.load(Ordering::Acquire) == vtep.to_bits())
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

    /// Counts `n` dropped frames, of the VNI in this slot (0: of none).
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

    /// What one worker and the other count is added, VTEP by VTEP, where an index is another's in
    /// one of them.
    #[test]
    fn several_workers_count_together() {
        let workers = [Counters::new(), Counters::new()];
        let vteps = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3)];
        for (counters, n) in workers.iter().zip(1..) {
            counters.sent.add(n);
            counters.stations.moved.add(10 * n);
            counters.drop_frames(DropReason::NoRoute, 7, 100 * n);
            counters.vni(7).unwrap().switched.add(n, 5 * n);
            counters.path(3).unwrap().add(n, 6 * n);
        }
        workers[0].peer_at(0).unwrap().of(vteps[0]).sent.add(1, 64);
        workers[1].peer_at(0).unwrap().of(vteps[1]).sent.add(2, 128);
        workers[0].peer_at(1).unwrap().of(vteps[1]).received.add(1, 60);
        workers[1].peer_at(1).unwrap().of(vteps[1]).received.add(3, 90);
        let all = Counters::sum(workers.iter(), [(0, vteps[0]), (1, vteps[1])].into_iter());
        let dropped = [all.dropped(DropReason::NoRoute), all.vni(7).unwrap().dropped.get()];
        assert_eq!((all.sent.get(), all.stations.moved.get(), dropped), (3, 30, [300; 2]));
        let both = |traffic: &Traffic| (traffic.frames.get(), traffic.bytes.get());
        assert_eq!(both(&all.vni(7).unwrap().switched), (3, 15));
        assert_eq!(both(all.path(3).unwrap()), (3, 18));
        assert_eq!(both(&all.peer(0, vteps[0]).unwrap().sent), (1, 64));
        assert_eq!(both(&all.peer(1, vteps[1]).unwrap().received), (4, 150));
        assert!(all.peer(0, vteps[1]).is_none());
    }
}
