//! Detects a worker that hangs.
//!
//! When a steering program redirects a frame, it writes the time into a shared map, unless a time
//! is there already. The worker clears the entry before it reads the punt pair. If the entry is
//! older than the limit, the programs pass further frames to the kernel.
//!
//! No timer is needed. If a frame is lost on its way to an idle worker, its entry would never be
//! cleared. The programs therefore wake the worker once before they pass frames ([`Wakeups`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};

use crate::mapped::MappedWords;

/// The lowest bit of an entry: the programs have woken the worker.
pub(crate) const CALLED: u64 = 1;
/// Maximum number of workers, each with two punt pairs (`WORKERS` in `programs/workers.bpf.h`).
pub const MOST_WORKERS: usize = 8;

/// Words of the map for each worker (`WORDS` in `programs/steering.bpf.c`): one cache line, so that
/// workers do not share lines.
pub(crate) const WORDS: usize = 8;

/// The two punt pairs of a worker, by their index within its part of `waiting_since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PuntSide {
    /// Packets from the uplinks.
    Underlay = 0,
    /// Frames from bridges and host ports.
    Bridge = 1,
}

/// A worker's view of its entries in the map `waiting_since`.
#[derive(Debug)]
pub struct Watchdog {
    notes: Arc<MappedWords>,
    /// The worker's number.
    worker: usize,
    limit: Duration,
}

impl Watchdog {
    /// Maps `waiting_since` and returns one watchdog for each worker. `limit` is the one that the
    /// programs have.
    pub(crate) fn share(notes: &MapData, workers: usize, limit: Duration) -> io::Result<Vec<Self>> {
        let notes = Arc::new(MappedWords::new(notes)?);
        let of = |worker| Self { notes: Arc::clone(&notes), worker, limit };
        Ok((0..workers.min(MOST_WORKERS)).map(of).collect())
    }

    /// Clears the entry of a punt pair. To be called before the worker reads the punt pair. If the
    /// entry is older than the limit, it stays and its age is returned. The kernel then forwards
    /// further frames until [`Self::forgive`].
    #[must_use]
    pub fn look(&self, punt: PuntSide) -> Option<Duration> {
        let note = self.note(punt);
        let since = note.load(Ordering::Relaxed) & !CALLED;
        if since == 0 {
            return None;
        }
        let waited = Duration::from_nanos(now().saturating_sub(since));
        if waited > self.limit {
            return Some(waited);
        }
        note.store(0, Ordering::Relaxed);
        None
    }

    /// Clears the entry after the worker has emptied the punt pair. Further frames are redirected
    /// to it again.
    pub fn forgive(&self, punt: PuntSide) {
        self.note(punt).store(0, Ordering::Relaxed);
    }

    /// How long frames may wait before the kernel forwards further ones.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    fn note(&self, punt: PuntSide) -> &AtomicU64 {
        // The map has a word for each worker and side.
        static NONE: AtomicU64 = AtomicU64::new(0);
        self.notes.get(WORDS * self.worker + punt as usize).unwrap_or(&NONE)
    }
}

/// The ring buffer through which the programs wake workers. It is readable when they do. Iterating
/// over it returns the numbers of those workers.
pub struct Wakeups(RingBuf<MapData>);

impl std::fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

impl Wakeups {
    pub(crate) const fn new(ring: RingBuf<MapData>) -> Self {
        Self(ring)
    }
}

impl Iterator for Wakeups {
    type Item = usize;

    /// The number of the next worker to wake, if there is one.
    fn next(&mut self) -> Option<usize> {
        let call = self.0.next()?;
        let number = call.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        usize::try_from(number).ok()
    }
}

impl AsRawFd for Wakeups {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Wakeups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer owns the descriptor and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

/// The time in nanoseconds of the clock that the programs use (`bpf_ktime_get_coarse_ns`), with the
/// resolution of a tick.
fn now() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
