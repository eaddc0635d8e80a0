//! The last frames that a worker, or the BPF programs, dropped for each reason, with their headers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use frame::DropReason;

/// Frames of each reason that are remembered.
pub const REMEMBERED: usize = 32;
/// Frames that are kept aside while somebody reads.
const WAITING: usize = 512;
/// Bytes of a frame that are remembered.
pub const HEADERS: usize = 128;

/// Where a dropped frame came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An uplink.
    Underlay,
    /// A bridge, a host port or an access port.
    Hosts,
    /// An uplink; a BPF program has removed its outer headers.
    Decapsulated,
    /// A worker, on its way into a bridge.
    Worker,
}

/// A frame that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedFrame {
    /// When its batch was received.
    pub time: Instant,
    /// Where it came from.
    pub origin: Origin,
    /// The slot of its VNI; 0 if it is not known.
    pub slot: u16,
    /// Bytes of the whole frame; of a super-frame, all its bytes.
    pub length: usize,
    /// Its first bytes. Behind the end of a shorter frame they are 0.
    headers: [u8; HEADERS],
}

/// The frames that one worker dropped, or all BPF programs. One thread adds to them; any thread may
/// read them.
#[derive(Debug, Default)]
pub struct DroppedFrames {
    last: Mutex<Vec<Last>>,
    /// What was dropped while somebody read `last`. The next drop or the next reader moves it there.
    /// Readers hold both, and this one only for a moment.
    waiting: Mutex<Vec<(DropReason, DroppedFrame)>>,
    /// How many found no room meanwhile.
    missed: AtomicU64,
}

/// The last frames of a reason.
#[derive(Debug, Default)]
struct Last {
    frames: VecDeque<DroppedFrame>,
    /// How many were remembered so far.
    count: u64,
}

impl DroppedFrames {
    /// Remembers a frame. A worker does not wait for those who read, which may be interrupted for long:
    /// then at most [`WAITING`] frames are kept aside, and more are only counted.
    #[cold]
    pub fn remember(&self, reason: DropReason, frame: DroppedFrame) {
        if let Some(mut all) = lock_at_once(&self.last) {
            self.collect(&mut all);
            add(&mut all, reason, frame);
            return;
        }
        match lock_at_once(&self.waiting) {
            Some(mut waiting) if waiting.len() < WAITING => waiting.push((reason, frame)),
            _ => {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Moves what was kept aside to the others.
    fn collect(&self, all: &mut Vec<Last>) {
        let mut kept = Vec::new();
        kept.append(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for (reason, frame) in kept {
            add(all, reason, frame);
        }
    }

    /// The frames of a reason, the oldest first.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> Vec<DroppedFrame> {
        self.since(reason, 0).0
    }

    /// The frames of a reason that are still remembered, the oldest first, without the first `seen` of
    /// all. Also returns the number of all.
    #[must_use]
    pub fn since(&self, reason: DropReason, seen: u64) -> (Vec<DroppedFrame>, u64) {
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.collect(&mut all);
        let Some(Last { frames, count }) = all.get(reason as usize) else { return (Vec::new(), 0) };
        let new = usize::try_from(count.saturating_sub(seen)).unwrap_or(usize::MAX);
        let old = frames.len().saturating_sub(new);
        (frames.iter().skip(old).cloned().collect(), *count)
    }

    /// How many frames of all reasons were not remembered, because somebody read for too long.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// Locks, unless somebody else has locked it.
fn lock_at_once<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn add(all: &mut Vec<Last>, reason: DropReason, frame: DroppedFrame) {
    if all.is_empty() {
        all.resize_with(DropReason::ALL.len(), Last::default);
    }
    let Some(Last { frames, count }) = all.get_mut(reason as usize) else { return };
    *count += 1;
    if frames.is_empty() {
        frames.reserve_exact(REMEMBERED);
    }
    if frames.len() == REMEMBERED {
        frames.pop_front();
    }
    frames.push_back(frame);
}

impl DroppedFrame {
    /// What is remembered of a frame.
    pub(crate) fn new(data: &[u8], origin: Origin, slot: u16, time: Instant) -> Self {
        Self::of_headers(data, data.len(), origin, slot, time)
    }

    /// What is remembered of a frame of this length in bytes, of which the first ones are known.
    #[must_use]
    pub fn of_headers(
        data: &[u8],
        length: usize,
        origin: Origin,
        slot: u16,
        time: Instant,
    ) -> Self {
        let mut headers = [0; HEADERS];
        let first = data.get(..HEADERS).unwrap_or(data);
        if let Some(kept) = headers.get_mut(..first.len()) {
            kept.copy_from_slice(first);
        }
        Self { time, origin, slot, length, headers }
    }

    /// Its first [`HEADERS`] bytes, or all of a shorter one.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        self.headers.get(..self.length).unwrap_or(&self.headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_frames_of_each_reason_are_remembered() {
        let all = DroppedFrames::default();
        assert_eq!(all.of(DropReason::NoRoute), []);
        let now = Instant::now();
        let frame = |number: u8| DroppedFrame::new(&[number; 200], Origin::Underlay, 7, now);
        for number in 0..100 {
            all.remember(DropReason::NoRoute, frame(number));
        }
        all.remember(DropReason::SamePort, DroppedFrame::new(&[1; 60], Origin::Hosts, 0, now));
        let kept = all.of(DropReason::NoRoute);
        assert_eq!(kept, (68..100).map(frame).collect::<Vec<_>>());
        assert!(kept.iter().all(|frame| frame.headers().len() == HEADERS && frame.length == 200));
        assert_eq!(all.of(DropReason::SamePort).len(), 1);
        let (new, count) = all.since(DropReason::NoRoute, 98);
        assert_eq!((new, count), ((98..100).map(frame).collect(), 100));
        assert_eq!(all.since(DropReason::NoRoute, 100), (Vec::new(), 100));
        assert_eq!(all.since(DropReason::NoRoute, 3).0.len(), REMEMBERED);
        assert_eq!(all.of(DropReason::Truncated), []);
    }

    /// A reader is interrupted while it reads. The worker goes on, and what it drops is not lost.
    #[test]
    fn frames_that_are_dropped_while_somebody_reads_are_remembered_later() {
        let all = DroppedFrames::default();
        let now = Instant::now();
        let frame =
            |number: usize| DroppedFrame::new(&number.to_ne_bytes(), Origin::Underlay, 7, now);
        let reason = DropReason::NoRoute;
        let reader = all.last.lock().unwrap();
        (0..40).for_each(|number| all.remember(reason, frame(number)));
        drop(reader);
        assert_eq!(all.since(reason, 0), ((8..40).map(frame).collect(), 40));
        let reader = all.last.lock().unwrap();
        (40..45 + WAITING).for_each(|number| all.remember(reason, frame(number)));
        drop(reader);
        // The next one comes behind them.
        all.remember(reason, frame(7));
        let (last, count) = all.since(reason, 0);
        assert_eq!((last.last(), count), (Some(&frame(7)), 41 + WAITING as u64));
        assert_eq!(all.missed(), 5);
    }
}
