//! Detects a worker that hangs.
//!
//! When a steering program redirects a frame, it writes the time into a shared map, unless a time
//! is there already. The worker clears the entry before it reads the punt pair. If the entry is
//! older than the limit, the programs pass further frames to the kernel.
//!
//! No timer is needed. If a frame is lost on its way to an idle worker, its entry would never be
//! cleared. The programs therefore wake the worker once before they pass frames ([`Wakeups`]).

use std::os::fd::{AsFd, BorrowedFd};
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

/// Words of the map for each worker (`WORDS` in `programs/watchdog.bpf.h`): one cache line, so that
/// workers do not share lines.
pub(crate) const WORDS: usize = 8;
/// A worker's word for [`Watchdog::set_idle`] (`IDLE` in `programs/watchdog.bpf.h`).
pub(crate) const IDLE: usize = 2;
/// The word of the process (`HEARTBEAT_WORD` in `programs/watchdog.bpf.h`).
pub(crate) const HEARTBEAT_WORD: usize = WORDS * MOST_WORKERS;

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
    shared_words: Arc<MappedWords>,
    /// The worker's number.
    worker: usize,
    limit: Duration,
}

impl Watchdog {
    /// Maps `waiting_since` and returns one watchdog for each worker. `limit` is the one that the
    /// programs have.
    pub(crate) fn share(
        shared_words: &Arc<MappedWords>,
        workers: usize,
        limit: Duration,
    ) -> Vec<Self> {
        let of = |worker| Self { shared_words: Arc::clone(shared_words), worker, limit };
        (0..workers.min(MOST_WORKERS)).map(of).collect()
    }

    /// Tells the programs whether the worker has sent all that it has read. It must not be idle any
    /// more before [`Self::look`] is called.
    pub fn set_idle(&self, idle: bool) {
        self.word(IDLE).store(idle.into(), Ordering::SeqCst);
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
        note.store(0, Ordering::SeqCst);
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
        self.word(punt as usize)
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        // The map has all words of each worker.
        static NONE: AtomicU64 = AtomicU64::new(0);
        self.shared_words.get(WORDS * self.worker + word).unwrap_or(&NONE)
    }
}

/// Whether all workers have sent everything that they have read, and nothing waits for them. A frame
/// that is redirected now may change that at any time.
pub(crate) fn are_idle(shared_words: &MappedWords, workers: usize) -> bool {
    let word = |index| shared_words.get(index).map_or(0, |word| word.load(Ordering::SeqCst));
    (0..workers).all(|worker| {
        let line = WORDS * worker;
        word(line + IDLE) != 0
            && [PuntSide::Underlay, PuntSide::Bridge]
                .iter()
                .all(|punt| word(line + *punt as usize) == 0)
    })
}

/// What the programs ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The worker with this number has to read its punt pairs.
    Worker(usize),
    /// The process has to send a heartbeat ([`Wakeups::send_heartbeat`]).
    Process,
}

/// The ring buffer through which the programs call workers and the process. It is readable when they
/// do. Iterating over it returns the calls.
pub struct Wakeups {
    ring: RingBuf<MapData>,
    shared_words: Arc<MappedWords>,
}

impl std::fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

impl Wakeups {
    pub(crate) const fn new(ring: RingBuf<MapData>, shared_words: Arc<MappedWords>) -> Self {
        Self { ring, shared_words }
    }

    /// Tells the programs that the process lives. Without it the `offload` datapath leaves all frames
    /// to the kernel.
    pub fn send_heartbeat(&self) {
        self.shared_words.set(HEARTBEAT_WORD, 0);
    }
}

impl Iterator for Wakeups {
    type Item = Call;

    /// The next call, if there is one.
    fn next(&mut self) -> Option<Call> {
        let call = self.ring.next()?;
        let number = call.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)) as usize;
        Some(if number < MOST_WORKERS { Call::Worker(number) } else { Call::Process })
    }
}

impl AsFd for Wakeups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// The time in nanoseconds of the clock that the programs use (`bpf_ktime_get_coarse_ns`), with the
/// resolution of a tick.
fn now() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
