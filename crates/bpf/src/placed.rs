//! The source ports of queue pairs that the policy `qp-pin` has placed in the `kernel` datapath
//! (`programs/placed_port.bpf.h`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};

use crate::error::SteeringError;
use crate::mapped::{MappedWords, mapped};
use crate::maps::absent;

/// The most queue pairs that the programs know (`PLACED`). The others have ports of `qp-hash`.
#[cfg(test)]
pub(crate) const PLACED: u32 = 65_536;

const INDICES: &str = "placed_indices";
const PORTS: &str = "placed_ports";
const NEW: &str = "new_queue_pairs";
const USAGE: &str = "offload_usage";

/// The words of an entry of `offload_usage`, and that of its last time (`struct pinned_usage`).
const USAGE_WORDS: usize = size_of::<crate::offload::pinned::PinnedUsage>() / size_of::<u64>();
const LAST: usize = 2;

shared! {
    /// A queue pair in a vxlan netdev: `struct placed_key` of the programs.
    #[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct PlacedKey {
        pub(crate) hash: u64,
        pub(crate) ifindex: u32,
        pub(crate) zero: u32,
    }
}

impl PlacedKey {
    /// The hash of the flow, under the VNI's seed.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The interface index of the netdev.
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }
}

/// The first frame of a queue pair, which has left with the port of `qp-hash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewQueuePair {
    /// The queue pair.
    pub key: PlacedKey,
    /// The frame, as long as it was. Behind its headers, there are zeros.
    pub frame: Vec<u8>,
}

impl NewQueuePair {
    /// `struct new_queue_pair` of the programs.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (hash, rest) = bytes.split_first_chunk()?;
        let (ifindex, rest) = rest.split_first_chunk()?;
        let (length, frame) = rest.split_first_chunk()?;
        let mut frame = frame.to_vec();
        // No frame is longer than the longest super-frame.
        frame.resize((u32::from_ne_bytes(*length) as usize).min(1 << 20), 0);
        let (hash, ifindex) = (u64::from_ne_bytes(*hash), u32::from_ne_bytes(*ifindex));
        Some(Self { key: PlacedKey { hash, ifindex, zero: 0 }, frame })
    }
}

/// Where a queue pair is, and where it moves at its first frame after a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Outer UDP source port.
    pub port: u16,
    /// The port to which it moves, not 0, and the time without a frame that this needs.
    pub next: Option<(u16, Duration)>,
}

impl Place {
    fn word(self) -> u64 {
        let next = self.next.map_or(0, |(port, gap)| {
            // Rounded up, and at most 71 minutes.
            let micros = u32::try_from(gap.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
            u64::from(port) << 16 | u64::from(micros) << 32
        });
        u64::from(self.port) | next
    }

    fn of(word: u64) -> Self {
        let next = (word >> 16) as u16;
        let gap = Duration::from_micros(word >> 32);
        Self { port: word as u16, next: (next != 0).then_some((next, gap)) }
    }
}

/// The queue pairs of the `kernel` datapath in the programs' maps.
pub struct PlacedPorts {
    indices: HashMap<MapData, PlacedKey, u32>,
    ports: MappedWords,
    usage: MappedWords,
    new: RingBuf<MapData>,
}

impl std::fmt::Debug for PlacedPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedPorts").finish_non_exhaustive()
    }
}

impl PlacedPorts {
    /// Takes the maps out of the object.
    ///
    /// # Errors
    /// When they are not there, or cannot be mapped into memory.
    pub fn take(ebpf: &mut Ebpf) -> Result<Self, SteeringError> {
        let (ports, usage) = (mapped(ebpf, PORTS)?, mapped(ebpf, USAGE)?);
        let mut take = |name: &'static str| -> Result<Map, SteeringError> {
            ebpf.take_map(name).ok_or(SteeringError::Missing(name))
        };
        let indices = take(INDICES)?.try_into().map_err(|e| SteeringError::Map(INDICES, e))?;
        let new = take(NEW)?.try_into().map_err(|e| SteeringError::Map(NEW, e))?;
        Ok(Self { indices, ports, usage, new })
    }

    /// The next queue pair whose first frame was sent.
    pub fn next_new(&mut self) -> Option<NewQueuePair> {
        // The programs write nothing else.
        NewQueuePair::parse(&self.new.next()?)
    }

    /// Gives a queue pair an index, under which its frames are counted and its place is found. `false`
    /// if the programs have no such index.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(
        &mut self,
        key: PlacedKey,
        index: u32,
        place: Place,
    ) -> Result<bool, SteeringError> {
        if self.ports.get(index as usize).is_none() {
            return Ok(false);
        }
        // Without a move at first: until frames are counted, nothing tells when the last one was.
        self.ports.set(index as usize, Place { next: None, ..place }.word());
        self.indices.insert(key, index, 0).map_err(|error| SteeringError::Map(INDICES, error))?;
        self.usage.set(index as usize * USAGE_WORDS + LAST, now());
        self.ports.set(index as usize, place.word());
        Ok(true)
    }

    /// Forgets a queue pair. Its next frame is a first one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&mut self, key: PlacedKey) -> Result<(), SteeringError> {
        let removed = self.indices.remove(&key).or_else(absent);
        removed.map_err(|error| SteeringError::Map(INDICES, error))
    }

    /// The place with this index.
    #[must_use]
    pub fn place(&self, index: u32) -> Place {
        let word = self.ports.get(index as usize);
        Place::of(word.map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// Changes a place, unless it is not `before` any more: the queue pair has just moved.
    pub fn change(&self, index: u32, before: Place, after: Place) -> bool {
        let order = Ordering::AcqRel;
        self.ports.get(index as usize).is_some_and(|word| {
            word.compare_exchange(before.word(), after.word(), order, Ordering::Relaxed).is_ok()
        })
    }
}

impl AsFd for PlacedPorts {
    /// It is readable when there are new queue pairs.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.new.as_fd()
    }
}

/// The time in nanoseconds of the clock that the programs use (`bpf_ktime_get_ns`).
fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_word() {
        let gap = Duration::from_nanos(1_500_001);
        let place = Place { port: 0xc001, next: Some((0xc002, gap)) };
        assert_eq!(place.word(), 0x0000_05dd_c002_c001);
        assert_eq!(Place::of(place.word()).next, Some((0xc002, Duration::from_micros(1501))));
        let still = Place { port: 0xffff, next: None };
        assert_eq!((still.word(), Place::of(still.word())), (0xffff, still));
        let longest = Place { port: 1, next: Some((2, Duration::from_secs(1 << 40))) };
        assert_eq!(longest.word(), 0xffff_ffff_0002_0001);
    }

    #[test]
    fn a_first_frame_is_as_long_as_it_was() {
        let mut bytes = [1u64.to_ne_bytes().to_vec(), 7u32.to_ne_bytes().to_vec()].concat();
        bytes.extend(130u32.to_ne_bytes());
        bytes.extend([5; 128]);
        let new = NewQueuePair::parse(&bytes).unwrap();
        assert_eq!((new.key.hash, new.key.ifindex(), new.frame.len()), (1, 7, 130));
        assert_eq!(new.frame[126..], [5, 5, 0, 0]);
        assert_eq!(NewQueuePair::parse(&bytes[..15]), None);
    }
}
