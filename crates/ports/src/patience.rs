//! A worker that hangs is noticed by the frames that wait for it: the steering programs note since when they do, the worker
//! takes the note away whenever it looks, and where the note grows too old, the programs leave what follows to the kernel.
//!
//! Nobody wakes up for this by the clock. A frame that was lost on its way to an idle worker would leave a note that nobody takes
//! away; so the programs call the worker once before they give it up ([`Patience::as_fd`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use nix::time::{ClockId, clock_gettime};

/// Said by the programs beside the time: the worker was called.
const CALLED: u64 = 1;
/// `PAGE_SIZE`, which a map that is shared by mmap(2) has at the least.
const PAGE: usize = 4096;

/// The splices, by their places in the programs' map `waiting_since`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Frames from the uplinks.
    Underlay = 0,
    /// Frames from the bridges.
    Bridge = 1,
}

/// See the module's description. The worker holds it.
pub struct Patience {
    /// The map's page, two words of it.
    page: NonNull<AtomicU64>,
    _notes: MapData,
    calls: RingBuf<MapData>,
    limit: Duration,
}

impl std::fmt::Debug for Patience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("limit", &self.limit).finish_non_exhaustive()
    }
}

// SAFETY: the page is shared memory that is only touched by atomic operations, from whatever thread.
unsafe impl Send for Patience {}

impl Patience {
    /// Shares the map `waiting_since`; `limit` as the programs have it.
    pub(crate) fn share(notes: MapData, calls: RingBuf<MapData>, limit: Duration) -> io::Result<Self> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = notes.fd().as_fd().as_raw_fd();
        // SAFETY: a fresh mapping of a page that the map has; it is unmapped when dropped, and the map lives as long.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, shared, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { page, _notes: notes, calls, limit })
    }

    /// To be called before the worker looks into a splice: takes the note away. Where it had grown too old, it stays, the time that
    /// frames have waited is returned, and the kernel forwards what follows until [`Self::forgive`].
    #[must_use]
    pub fn look(&self, splice: Waiting) -> Option<Duration> {
        let note = self.note(splice);
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

    /// The worker has emptied the splice: what follows is redirected to it again.
    pub fn forgive(&mut self, splice: Waiting) {
        while self.calls.next().is_some() {}
        self.note(splice).store(0, Ordering::Relaxed);
    }

    /// How long frames may wait.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    fn note(&self, splice: Waiting) -> &AtomicU64 {
        // SAFETY: the page holds two words, and `splice` is 0 or 1; the mapping lives as long as `self`.
        unsafe { self.page.add(splice as usize).as_ref() }
    }
}

impl AsFd for Patience {
    /// Readable when the programs call.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer owns the descriptor and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.calls.as_raw_fd()) }
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        // SAFETY: mapped by `share`, and not used after.
        let _ = unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

/// The programs' clock (`bpf_ktime_get_coarse_ns`): nanoseconds, a tick's worth exact.
fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
