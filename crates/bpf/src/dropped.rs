//! The frames that the programs drop (`programs/dropped.bpf.h`).
//!
//! A program writes what is remembered of a frame into a ring buffer, at most 128 frames of
//! each cause in a second. It counts the others.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};

use crate::error::SteeringError;
use crate::mapped::{MappedWords, mapped};

/// Bytes of a frame that the programs tell.
pub(crate) const HEADERS: usize = 128;
/// Frames of a cause that the programs tell in a second (of 2^30 ns).
#[cfg(test)]
pub(crate) const A_SECOND: u64 = 128;
/// Causes.
pub(crate) const REASONS: usize = 2;

const FRAMES: &str = "dropped_frames";
const LIMITS: &str = "dropped_limits";

/// Why a program drops a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// Its headers could not be changed.
    Failed = 0,
    /// It is for a VNI that is not, or no longer, taken over.
    UnknownSlot = 1,
}

/// Who sent a dropped frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// Another VTEP. Its outer headers are gone.
    Uplink = 0,
    /// A host.
    Host = 1,
    /// A worker, into a bridge.
    Worker = 2,
}

/// A frame that a program dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramDrop {
    /// When, by `CLOCK_MONOTONIC`.
    pub time: Duration,
    /// Why.
    pub cause: DropCause,
    /// Who sent it.
    pub sender: Sender,
    /// The slot of its VNI.
    pub slot: u16,
    /// Bytes of the whole frame. That of an uplink is the frame in the packet.
    pub length: usize,
    /// Its first 128 bytes, or all of a shorter one. A tag that is beside the frame may be missing.
    pub headers: Vec<u8>,
}

impl ProgramDrop {
    /// Reads a `struct dropped_frame`; `None` if it is none.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (time, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let ([cause, sender], rest) = rest.split_first_chunk()?;
        let length = u32::from_ne_bytes(*length) as usize;
        Some(Self {
            time: Duration::from_nanos(u64::from_ne_bytes(*time)),
            cause: match cause {
                0 => DropCause::Failed,
                1 => DropCause::UnknownSlot,
                _ => return None,
            },
            sender: match sender {
                0 => Sender::Uplink,
                1 => Sender::Host,
                2 => Sender::Worker,
                _ => return None,
            },
            slot: u16::from_ne_bytes(*slot),
            length,
            headers: rest.get(..HEADERS.min(length))?.to_vec(),
        })
    }
}

/// How many dropped frames the programs did not tell, because there were too many at once. Any thread
/// may read it.
#[derive(Debug, Clone)]
pub struct Untold(Arc<MappedWords>);

impl Untold {
    /// Frames of all causes since the programs were loaded.
    #[must_use]
    pub fn get(&self) -> u64 {
        let word = |cause| self.0.get(2 * cause + 1);
        (0..REASONS).filter_map(word).map(|word| word.load(Ordering::Relaxed)).sum()
    }
}

/// The ring buffer of dropped frames. It is readable when there are some. Iterating over it returns
/// them.
pub struct ProgramDrops {
    ring: RingBuf<MapData>,
    untold: Untold,
}

impl std::fmt::Debug for ProgramDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramDrops").finish_non_exhaustive()
    }
}

impl ProgramDrops {
    /// Takes the ring buffer out of the object.
    ///
    /// # Errors
    /// When the maps are not there, or cannot be mapped into memory.
    pub fn take(ebpf: &mut Ebpf) -> Result<Self, SteeringError> {
        let untold = Untold(Arc::new(mapped(ebpf, LIMITS)?));
        let ring = ebpf.take_map(FRAMES).ok_or(SteeringError::Missing(FRAMES))?;
        let ring = ring.try_into().map_err(|error| SteeringError::Map(FRAMES, error))?;
        Ok(Self { ring, untold })
    }

    /// How many were not told.
    #[must_use]
    pub fn untold(&self) -> Untold {
        self.untold.clone()
    }
}

impl Iterator for ProgramDrops {
    type Item = ProgramDrop;

    /// The next dropped frame, if there is one.
    fn next(&mut self) -> Option<ProgramDrop> {
        // The programs write nothing else.
        ProgramDrop::parse(&self.ring.next()?)
    }
}

impl AsFd for ProgramDrops {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_frame_is_read_with_its_length() {
        let mut bytes = [7u64.to_ne_bytes().to_vec(), 60u32.to_ne_bytes().to_vec()].concat();
        bytes.extend(9u16.to_ne_bytes());
        bytes.extend([1, 2]);
        bytes.extend([5; HEADERS]);
        let drop = ProgramDrop::parse(&bytes).unwrap();
        assert_eq!((drop.time, drop.slot), (Duration::from_nanos(7), 9));
        assert_eq!((drop.cause, drop.sender), (DropCause::UnknownSlot, Sender::Worker));
        assert_eq!((drop.length, drop.headers), (60, vec![5; 60]));
        assert_eq!(ProgramDrop::parse(&bytes[..80]).map(|drop| drop.length), Some(60));
        for short in [0, 15, 75] {
            assert_eq!(ProgramDrop::parse(&bytes[..short]), None, "{short}");
        }
        for (at, wrong) in [(14, 2), (15, 3)] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            assert_eq!(ProgramDrop::parse(&bytes), None, "{at}");
        }
    }
}
