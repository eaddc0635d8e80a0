//! Two threads that do not depend on the control task.
//!
//! The first handles SIGTERM and SIGINT. It asks the control task to stop, and ends the process
//! itself if the task does not.
//!
//! The second is the guard: it checks that the control task does its work. Workers would use
//! outdated tables while the control task hangs. The guard therefore gives everything back to the
//! kernel until the task works again. If work is not done within the stall limit, the runtime's
//! thread does not answer, and the thread uses no CPU time, that is a hang. A thread that computes,
//! or a task that waits for a long dump, is given [`COMPUTE_LIMIT`].
//!
//! An idle control task cannot be late. The guard does not wake it, but sleeps until the kernel
//! sends an event. It checks the queue of requests once a second.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bpf::KillSwitch;
use control::{Event, Journal, Request, Status};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal, raise};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// How long the control task may take to stop before the process is ended.
const STOPPING: Duration = Duration::from_secs(2);
/// How often conditions are checked while waiting.
const STEP: Duration = Duration::from_millis(20);
/// After the kill switch is emptied, workers have this long to forward the frames that they have.
const LAST_FRAMES: Duration = Duration::from_millis(100);
/// How long work may wait for a control task that computes, or that waits for the kernel.
const COMPUTE_LIMIT: Duration = Duration::from_secs(5);
/// How often the queue of requests is checked while the kernel has no events.
const IDLE: Duration = Duration::from_secs(1);
/// Number of checks within one stall limit.
const LOOKS: u32 = 4;
/// A longer stall limit means that the kernel cannot forward instead (standalone VNIs only).
const LONGEST_LIMIT: Duration = Duration::from_secs(60);

/// State that the two threads and the rest of the daemon share.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    /// Set by [`watch_control`], once something can be taken over.
    kill_switch: OnceLock<KillSwitch>,
    /// Whether the control task hangs.
    hangs: AtomicBool,
    /// How often the control task has hung.
    stalls: AtomicU64,
    /// Whether the daemon has given everything back and is about to end.
    stopped: AtomicBool,
}

impl Guarded {
    /// Records that everything is given back to the kernel.
    pub(crate) fn stopped(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// How often the control task has hung.
    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Empties the kill switch. Returns whether it was filled.
    fn hand_back(&self) -> Result<bool, bpf::SteeringError> {
        self.kill_switch.get().map_or(Ok(false), KillSwitch::suspend)
    }
}

/// The signals that end the daemon.
fn ending() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Blocks SIGTERM and SIGINT, so that the thread of [`answer_signals`] receives them. Must be
/// called before any thread is started.
///
/// # Errors
/// As pthread_sigmask(3).
pub(crate) fn block_signals() -> io::Result<()> {
    Ok(ending().thread_block()?)
}

/// Starts the thread that handles SIGTERM and SIGINT. The first signal sends to the returned
/// channel. If the daemon does not stop in time, or on a second signal, the process is ended.
///
/// # Errors
/// When the thread cannot be created.
pub(crate) fn answer_signals(guarded: Arc<Guarded>) -> io::Result<mpsc::Receiver<()>> {
    let (stop, stopping) = mpsc::channel(1);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // The thread is started before main drops its capabilities.
        let _ = bpf::confine::capabilities();
        let signals = ending();
        let Ok(signal) = signals.wait() else { return };
        let _ = stop.try_send(());
        let guarded_too = Arc::clone(&guarded);
        let deadline = std::thread::Builder::new().name("deadline".to_owned());
        let _ = deadline.spawn(move || {
            let until = Instant::now() + STOPPING;
            while Instant::now() < until && !guarded_too.hangs.load(Ordering::Relaxed) {
                std::thread::sleep(STEP);
            }
            // If everything is given back, the daemon is detaching its programs. That may take long
            // and is not interrupted.
            if !guarded_too.stopped.load(Ordering::Relaxed) {
                end_process(&guarded_too, signal);
            }
        });
        let second = signals.wait().unwrap_or(signal);
        end_process(&guarded, second);
    })?;
    Ok(stopping)
}

/// Gives everything back to the kernel and ends the process, without the control task.
fn end_process(guarded: &Guarded, signal: Signal) -> ! {
    if guarded.hand_back().is_ok_and(|was_engaged| was_engaged) {
        std::thread::sleep(LAST_FRAMES);
    }
    end_by(signal)
}

/// Ends the process by the signal's default action.
fn end_by(signal: Signal) -> ! {
    let _ = ending().thread_unblock();
    let _ = raise(signal);
    std::process::exit(1)
}

/// How the guard observes the control task.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Readable while kernel events wait to be read.
    pub events: OwnedFd,
    /// The queue of requests. Its free capacity shows whether requests wait.
    pub requests: mpsc::Sender<Request>,
    /// Published with each turn of the control task.
    pub status: watch::Receiver<Status>,
    /// The runtime that the control task runs in.
    pub runtime: Handle,
    /// Receives an event when a hang is over.
    pub journal: Journal,
}

/// Starts the guard thread. Must be called from the thread of the control task.
///
/// # Errors
/// When the thread cannot be created.
pub(crate) fn watch_control(
    guarded: &Arc<Guarded>,
    kill_switch: KillSwitch,
    watched: Watched,
    stall_limit: Duration,
) -> io::Result<()> {
    let _ = guarded.kill_switch.set(kill_switch);
    if stall_limit > LONGEST_LIMIT {
        return Ok(());
    }
    let mut guard = Guard {
        guarded: Arc::clone(guarded),
        watched,
        statistics: format!("/proc/self/task/{}/", nix::unistd::gettid()),
        pongs: Arc::default(),
        limit: stall_limit,
    };
    std::thread::Builder::new().name("guard".to_owned()).spawn(move || {
        if let Err(error) = guard.run() {
            tracing::warn!("the control task is watched no more: {error}");
        }
    })?;
    Ok(())
}

/// The guard thread's own state.
struct Guard {
    guarded: Arc<Guarded>,
    watched: Watched,
    /// The directory of proc(5) of the control task's thread, with a slash at the end.
    statistics: String,
    /// How often the runtime has answered [`Self::ping`].
    pongs: Arc<AtomicU64>,
    limit: Duration,
}

impl Guard {
    fn run(&mut self) -> io::Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // One-shot: otherwise every event of a busy control task would wake the guard.
        let mut once = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, 0);
        epoll.add(self.watched.events.as_fd(), once)?;
        let idle = EpollTimeout::try_from(IDLE).unwrap_or(EpollTimeout::NONE);
        while !self.is_stopped() {
            let mut ready = [EpollEvent::empty()];
            match epoll.wait(&mut ready, idle) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            while self.work_waits() && !self.is_stopped() {
                if let Some(hang) = self.wait_for_turn() {
                    self.hand_over(hang);
                }
            }
            epoll.modify(self.watched.events.as_fd(), &mut once)?;
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.guarded.stopped.load(Ordering::Relaxed)
    }

    /// Whether requests or kernel events wait for the control task.
    fn work_waits(&self) -> bool {
        let requests = &self.watched.requests;
        let mut events = [PollFd::new(self.watched.events.as_fd(), PollFlags::POLLIN)];
        requests.capacity() < requests.max_capacity()
            || poll(&mut events, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether the control task has made a turn since the last call.
    fn has_turned(&mut self) -> bool {
        // Neither call takes the lock that a hanging task may hold.
        let turned = self.watched.status.has_changed().unwrap_or(true);
        if turned {
            self.watched.status.mark_unchanged();
        }
        turned
    }

    /// CPU time that the control task's thread has used, in nanoseconds, and whether it runs or
    /// waits for a CPU.
    fn cpu(&self) -> (u64, bool) {
        let read = |name: &str| {
            fs::read_to_string(format!("{}{name}", self.statistics)).unwrap_or_default()
        };
        let used = read("schedstat").split(' ').next().and_then(|text| text.parse().ok());
        let runs = read("stat").rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'));
        (used.unwrap_or(0), runs)
    }

    /// Waits until the control task makes a turn or no work is left. Returns how long it has made
    /// none if that is a hang.
    fn wait_for_turn(&mut self) -> Option<Duration> {
        self.has_turned();
        let start = Instant::now();
        let (mut used, _) = self.cpu();
        let pongs = self.pongs.load(Ordering::Relaxed);
        let mut looks_without_sign = 0;
        loop {
            std::thread::sleep(self.limit / LOOKS);
            if self.has_turned() || !self.work_waits() || self.is_stopped() {
                return None;
            }
            if looks_without_sign == 0 {
                self.ping();
            }
            let (used_now, runs) = self.cpu();
            let lives = used_now != used || runs || self.pongs.load(Ordering::Relaxed) != pongs;
            used = used_now;
            looks_without_sign = if lives { 0 } else { looks_without_sign + 1 };
            // One check less than `LOOKS`: the first check comes after a wait as well, and each
            // sleep takes a little longer than requested.
            if looks_without_sign + 1 >= LOOKS || start.elapsed() >= COMPUTE_LIMIT.max(self.limit) {
                return Some(start.elapsed());
            }
        }
    }

    /// Spawns a task on the runtime that counts up `pongs`.
    fn ping(&self) {
        let pongs = Arc::clone(&self.pongs);
        drop(self.watched.runtime.spawn(async move {
            pongs.fetch_add(1, Ordering::Relaxed);
        }));
    }

    /// Gives everything back to the kernel until the control task has caught up.
    fn hand_over(&self, hang: Duration) {
        // This comes first: a log line or an allocation could wait for the task that hangs.
        let handed_over = self.guarded.hand_back();
        self.guarded.hangs.store(true, Ordering::Relaxed);
        let start = Instant::now();
        match handed_over {
            // Nothing is taken over.
            Ok(false) => {}
            Ok(true) => {
                self.guarded.stalls.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    "the control task has not worked for {} ms: the kernel forwards everything until it does",
                    hang.as_millis()
                );
            }
            Err(error) => {
                tracing::error!(
                    "the control task hangs, and {error}: vtepd ends, so that the kernel forwards"
                );
                std::thread::sleep(LAST_FRAMES);
                std::process::exit(1);
            }
        }
        self.wait_until_caught_up();
        self.guarded.hangs.store(false, Ordering::Relaxed);
        let Some(kill_switch) = self.guarded.kill_switch.get() else { return };
        match kill_switch.resume() {
            Ok(false) => {}
            Ok(true) => {
                let text = format!(
                    "the control task hung, and the kernel forwarded everything for {} ms",
                    start.elapsed().as_millis()
                );
                tracing::warn!("{text}");
                self.watched.journal.write(Event::Warning(text));
            }
            Err(error) => tracing::error!("frames stay with the kernel: {error}"),
        }
    }

    /// Waits for two turns: the second has read everything that waited when the first ended. One
    /// turn is enough if no work is left.
    fn wait_until_caught_up(&self) {
        let before = self.turns();
        while !self.is_stopped() {
            std::thread::sleep(STEP);
            let turns = self.turns().saturating_sub(before);
            if turns >= 2 || (turns == 1 && !self.work_waits()) {
                return;
            }
        }
    }

    /// This may block on a control task that hangs, which does no harm here.
    fn turns(&self) -> u64 {
        self.watched.status.borrow().turns
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("events", &self.watched.events.as_raw_fd())
            .finish_non_exhaustive()
    }
}
