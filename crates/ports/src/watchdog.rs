//! A worker that hangs is noticed by the frames that wait for it: the steering programs note since
//! when they do, the worker takes the note away whenever it looks, and where the note grows too
//! old, the programs leave what follows to the kernel.
//!
//! Nobody wakes up for this by the clock. A frame that was lost on its way to an idle worker would
//! leave a note that nobody takes away; so the programs call the worker once before they give it up
//! ([`Wakeups`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};

/// Said by the programs beside the time: the worker was called.
const CALLED: u64 = 1;
/// `PAGE_SIZE`, which a map that is shared by mmap(2) has at the least.
const PAGE: usize = 4096;
/// Workers that there may be, each with two punt pairs (`WORKERS` in `bpf/workers.bpf.h`).
pub const MOST_WORKERS: usize = 8;

/// Words of the map for each worker, as the programs have them (`WORDS` in `bpf/steering.bpf.c`): a
/// line of the cache, which no other writes.
const WORDS: usize = 8;
const _: () = assert!(MOST_WORKERS * WORDS * size_of::<u64>() <= PAGE);

/// A worker's punt pairs, by their places in the programs' map `waiting_since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PuntSide {
    /// Frames from the uplinks.
    Underlay = 0,
    /// Frames from the bridges.
    Bridge = 1,
}

/// See the module's description. A worker holds it.
#[derive(Debug)]
pub struct Watchdog {
    notes: Arc<Notes>,
    /// The worker's number.
    worker: usize,
    limit: Duration,
}

/// The map's page, of which each worker has `WORDS`, and uses two.
#[derive(Debug)]
struct Notes(NonNull<AtomicU64>);

// SAFETY: the page is shared memory that is only touched by atomic operations, from whatever
// thread.
unsafe impl Send for Notes {}
// SAFETY: as above.
unsafe impl Sync for Notes {}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: mapped by `Watchdog::share`, and not used after.
        let _ = unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

impl Watchdog {
    /// Shares the map `waiting_since` among so many workers; `limit` as the programs have it.
    pub(crate) fn share(notes: &MapData, workers: usize, limit: Duration) -> io::Result<Vec<Self>> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = notes.fd().as_fd().as_raw_fd();
        // SAFETY: a fresh mapping of a page that the map has; it is unmapped when dropped, and
        // keeps the map for as long.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, shared, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page =
            NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let notes = Arc::new(Notes(page));
        let of = |worker| Self { notes: Arc::clone(&notes), worker, limit };
        Ok((0..workers.min(MOST_WORKERS)).map(of).collect())
    }

    /// To be called before the worker looks into a punt pair: takes the note away. Where it had
    /// grown too old, it stays, the time that frames have waited is returned, and the kernel
    /// forwards what follows until [`Self::forgive`].
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

    /// The worker has emptied the punt pair: what follows is redirected to it again.
    pub fn forgive(&self, punt: PuntSide) {
        self.note(punt).store(0, Ordering::Relaxed);
    }

    /// How long frames may wait.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    fn note(&self, punt: PuntSide) -> &AtomicU64 {
        // SAFETY: the page holds `WORDS` for each of `MOST_WORKERS` workers, of which this is one;
        // the mapping lives as long as `notes`.
        unsafe { self.notes.0.add(WORDS * self.worker + punt as usize).as_ref() }
    }
}

/// What the programs call workers by: readable when they do.
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

    /// The number of the next worker that is called, if one is.
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

/// The programs' clock (`bpf_ktime_get_coarse_ns`): nanoseconds, a tick's worth exact.
fn now() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
