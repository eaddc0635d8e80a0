//! The common start of all ranks of a job, without traffic.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::report::RankResult;

/// Takes the results of all ranks of an iteration: its number and when it began.
pub(super) type OnResults<'a> = Box<dyn Fn(u32, Instant, &[RankResult]) + Sync + 'a>;

/// Opens for each iteration when all ranks have finished the one before.
pub(super) struct Gate<'a> {
    /// Set by the user.
    stop: &'a AtomicBool,
    /// Set when a rank fails.
    abort: &'a AtomicBool,
    /// The number of iterations that may begin.
    opened: AtomicU32,
    inner: Mutex<Inner>,
    /// Wakes each rank.
    bells: Vec<EventFd>,
    on_results: OnResults<'a>,
}

struct Inner {
    results: Vec<RankResult>,
    started: Instant,
}

impl<'a> Gate<'a> {
    pub(super) fn new(
        ranks: usize,
        (stop, abort): (&'a AtomicBool, &'a AtomicBool),
        on_results: OnResults<'a>,
    ) -> Result<Self, Errno> {
        let bell = |_| EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Self {
            stop,
            abort,
            opened: AtomicU32::new(0),
            inner: Mutex::new(Inner { results: Vec::new(), started: Instant::now() }),
            bells: (0..ranks).map(bell).collect::<Result<_, _>>()?,
            on_results,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of iterations that may begin.
    pub(super) fn opened(&self) -> u32 {
        self.opened.load(Ordering::Acquire)
    }

    /// The time since the current iteration began.
    pub(super) fn since_start(&self) -> Duration {
        self.inner().started.elapsed()
    }

    /// Becomes readable when the gate opens.
    pub(super) fn bell(&self, rank: usize) -> Option<&EventFd> {
        self.bells.get(rank)
    }

    /// Whether the ranks should stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.abort.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    /// Makes the bell quiet.
    pub(super) fn silence(&self, rank: usize) {
        if let Some(bell) = self.bell(rank) {
            // EAGAIN: it has not rung.
            let _ = bell.read();
        }
    }

    /// Lets the next iteration begin, or the end after the last one.
    pub(super) fn open(&self) {
        self.inner().started = Instant::now();
        self.opened.fetch_add(1, Ordering::Release);
        for bell in &self.bells {
            let _ = bell.write(1);
        }
    }

    /// Takes the result of a rank. The last one opens the gate.
    pub(super) fn arrive(&self, iteration: u32, result: RankResult) {
        let mut inner = self.inner();
        inner.results.push(result);
        if inner.results.len() < self.bells.len() {
            return;
        }
        let results = std::mem::take(&mut inner.results);
        let started = inner.started;
        drop(inner);
        (self.on_results)(iteration, started, &results);
        self.open();
    }
}
