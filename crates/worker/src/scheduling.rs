//! Scheduling of a worker: real-time while it has little work, and as a batch thread under load.
//! See docs/adr/0007-real-time-scheduling-while-idle.md.
//!
//! Kernel VXLAN forwards in softirqs, which run before every thread. An ordinary worker thread
//! would wait for other threads, for a tick (4 ms) and longer. A worker that sleeps often is
//! therefore scheduled as `SCHED_FIFO`, before all ordinary threads.
//!
//! A `SCHED_BATCH` thread runs when the CPU is free or the time slice of another thread is over. A
//! worker becomes one after any of these:
//!
//! - It has been awake for [`LONGEST`], and could starve other threads. The kernel hands softirqs
//!   to ksoftirqd after the same 2 ms (`MAX_SOFTIRQ_TIME`, `kernel/softirq.c`).
//! - It was woken more than [`WAKES`] times a millisecond, or had more than [`FRAMES`] frames in
//!   one. It would interrupt the sender for a few frames each time. Larger batches are cheaper.
//! - It was busy for more than [`DUTY`] of the window.
//! - It is about to send more than [`LARGE`] frames, such as copies of a flooded frame.
//!
//! It becomes `SCHED_FIFO` again after a window of at least [`WINDOW`] with low load.

use std::io;
use std::time::{Duration, Instant};

use ports::thread_policy::ThreadPolicy;

/// How long a worker may be awake as `SCHED_FIFO`.
const LONGEST: Duration = Duration::from_millis(2);
/// Minimum length of the window over which its load is measured.
const WINDOW: Duration = Duration::from_millis(1);
/// Wake-ups in a millisecond up to which a worker stays `SCHED_FIFO`.
const WAKES: u32 = 20;
/// Frames in a millisecond up to which a worker stays `SCHED_FIFO`.
const FRAMES: usize = 50;
/// Share of time that a worker may be busy as `SCHED_FIFO`. A few frames can be much work: a
/// super-frame may be split into 45 segments.
const DUTY: f64 = 0.5;
/// A batch of more frames is sent as `SCHED_BATCH`.
const LARGE: usize = 512;

/// Switches the scheduling policy of a worker. Belongs to the thread that created it.
#[derive(Debug, Default)]
pub struct Scheduling {
    policy: ThreadPolicy,
    /// Whether the policy may be changed.
    allowed: bool,
    /// Since when the worker is awake; `None` while it sleeps.
    awake_since: Option<Instant>,
    /// The start of the window, with the wake-ups and frames since.
    window: Option<Instant>,
    wakes: u32,
    frames: usize,
    /// How long the worker was awake in the window.
    busy: Duration,
}

impl Scheduling {
    /// Never changes the calling thread's policy.
    #[must_use]
    pub fn fair() -> Self {
        Self::default()
    }

    /// Schedules the calling thread as `SCHED_FIFO` from now on, as long as its load is low.
    ///
    /// # Errors
    /// When the kernel refuses it (`EPERM`: without CAP_SYS_NICE, or in a control group without
    /// real-time share).
    pub fn prompt() -> io::Result<Self> {
        ThreadPolicy::Fifo.set()?;
        Ok(Self { policy: ThreadPolicy::Fifo, allowed: true, ..Self::fair() })
    }

    /// The worker is about to send this many frames.
    pub fn begin(&mut self, frames: usize) {
        if frames > LARGE {
            self.change(ThreadPolicy::Batch);
        }
    }

    /// The worker has moved this many frames, and continues.
    pub fn work(&mut self, now: Instant, frames: usize) {
        self.frames += frames;
        let since = *self.awake_since.get_or_insert(now);
        if self.policy == ThreadPolicy::Fifo && now.saturating_duration_since(since) >= LONGEST {
            self.change(ThreadPolicy::Batch);
        }
    }

    /// The worker goes to sleep.
    pub fn rest(&mut self, now: Instant) {
        let awake = self.awake_since.take().map(|since| now.saturating_duration_since(since));
        // Time before the first window is not counted.
        self.busy += awake.filter(|_| self.window.is_some()).unwrap_or_default();
        self.wakes = self.wakes.saturating_add(1);
        let passed = now.saturating_duration_since(*self.window.get_or_insert(now));
        if passed >= WINDOW {
            let windows = passed.as_secs_f64() / WINDOW.as_secs_f64();
            let few = f64::from(self.wakes) <= f64::from(WAKES) * windows
                && self.frames as f64 <= FRAMES as f64 * windows
                && self.busy <= passed.mul_f64(DUTY);
            (self.window, self.wakes, self.frames, self.busy) = (Some(now), 0, 0, Duration::ZERO);
            self.change(if few { ThreadPolicy::Fifo } else { ThreadPolicy::Batch });
        }
    }

    fn change(&mut self, policy: ThreadPolicy) {
        if self.allowed && self.policy != policy {
            // The kernel may refuse what it allowed before. The policy then stays as it is.
            self.allowed = policy.set().is_ok();
            self.policy = policy;
        }
    }
}
