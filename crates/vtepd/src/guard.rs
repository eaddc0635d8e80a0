//! Two threads that do not depend on the control task.
//!
//! One answers SIGTERM and SIGINT. It asks the control task to stop, and ends the process itself
//! when the task does not.
//!
//! The other one looks whether the control task does its work. A control task that hangs leaves
//! workers with tables that are out of date, so everything is handed to the kernel until the task
//! works again. Work that is not done within the stall limit is a hang when the runtime's thread
//! does not answer and uses no CPU time. A thread that computes, or a task that waits for a long
//! dump, has [`PATIENCE`].
//!
//! A control task without work has nothing to be late with. So the guard does not wake an idle
//! control task to ask it; it sleeps until the kernel sends an event, and looks at the queue of
//! requests once a second.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use control::{Event, Journal, Request, Status};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal, raise};
use ports::KillSwitch;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// How long the control task has to stop before the guard ends the process.
const STOPPING: Duration = Duration::from_secs(2);
/// How often the guard looks whether it has.
const STEP: Duration = Duration::from_millis(20);
/// After the kill switch is empty, workers have this long to forward what they have.
const LAST_FRAMES: Duration = Duration::from_millis(100);
/// How long work may wait for a control task that computes, or that waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the queue of requests is looked at while the kernel has no events.
const IDLE: Duration = Duration::from_secs(1);
/// So many looks make a stall limit.
const LOOKS: u32 = 4;
/// A longer stall limit means that nobody else forwards (standalone VNIs only).
const LONGEST_LIMIT: Duration = Duration::from_secs(60);

/// What the two threads and the rest of the daemon share.
#[derive(Debug, Default)]
pub struct Guarded {
    /// There as soon as there is something to hand back.
    kill_switch: OnceLock<KillSwitch>,
    /// The control task hangs.
    hangs: AtomicBool,
    /// How often it has.
    stalls: AtomicU64,
    /// The daemon is about to end; everything is handed back.
    stopped: AtomicBool,
}

impl Guarded {
    /// Nothing needs to be handed back any more.
    pub fn stopped(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// How often the control task has hung.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Empties the kill switch.
    fn hand_back(&self) -> Result<bool, ports::SteeringError> {
        self.kill_switch.get().map_or(Ok(false), KillSwitch::suspend)
    }
}

/// The signals that end the daemon.
fn ending() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Keeps these signals for the thread of [`answer_signals`]. To be called before any thread is
/// started.
///
/// # Errors
/// As pthread_sigmask(3).
pub fn block_signals() -> io::Result<()> {
    Ok(ending().thread_block()?)
}

/// Starts the thread for SIGTERM and SIGINT. The first signal sends to the channel, which the
/// control task's runtime listens to. When that does not stop the daemon, and on a second signal,
/// the thread ends the process.
///
/// # Errors
/// When the system gives no thread.
pub fn answer_signals(guarded: Arc<Guarded>) -> io::Result<mpsc::Receiver<()>> {
    let (stop, stopping) = mpsc::channel(1);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // It is older than what main gives up.
        let _ = ports::confine::capabilities();
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
            // One that has handed everything back detaches its programs, which may take long.
            if !guarded_too.stopped.load(Ordering::Relaxed) {
                end_process(&guarded_too, signal);
            }
        });
        let second = signals.wait().unwrap_or(signal);
        end_process(&guarded, second);
    })?;
    Ok(stopping)
}

/// Hands everything back and ends the process, without the control task.
fn end_process(guarded: &Guarded, signal: Signal) -> ! {
    if guarded.hand_back().is_ok_and(|was_engaged| was_engaged) {
        std::thread::sleep(LAST_FRAMES);
    }
    end_by(signal)
}

/// Ends the process as the signal does that nobody handles.
fn end_by(signal: Signal) -> ! {
    let _ = ending().thread_unblock();
    let _ = raise(signal);
    std::process::exit(1)
}

/// What the guard knows the control task by.
#[derive(Debug)]
pub struct Watched {
    /// Readable while events of the kernel wait.
    pub events: OwnedFd,
    /// Full or not, and how full.
    pub requests: mpsc::Sender<Request>,
    /// Changes with each turn of the control task.
    pub status: watch::Receiver<Status>,
    /// The runtime that the control task runs in.
    pub runtime: Handle,
    /// Told when a hang is over.
    pub journal: Journal,
}

/// Starts the thread that watches the control task. It must be called from the thread of the
/// control task.
///
/// # Errors
/// When the system gives no thread.
pub fn watch_control(
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

/// The thread's own state.
struct Guard {
    guarded: Arc<Guarded>,
    watched: Watched,
    /// The folder of proc(5) of the control task's thread.
    statistics: String,
    /// Answers of the runtime.
    pongs: Arc<AtomicU64>,
    limit: Duration,
}

impl Guard {
    fn run(&mut self) -> io::Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // Once, so that a busy control task does not keep the guard busy, too.
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

    /// Whether the control task has something to do.
    fn work_waits(&self) -> bool {
        let requests = &self.watched.requests;
        let mut events = [PollFd::new(self.watched.events.as_fd(), PollFlags::POLLIN)];
        requests.capacity() < requests.max_capacity()
            || poll(&mut events, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether the control task has made a turn since the last call.
    fn has_turned(&mut self) -> bool {
        // Neither takes the lock that a hanging task may hold.
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

    /// Waits for a turn of the control task while there is work. Returns for how long it has made
    /// none when that is a hang.
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
            // The first look has already waited, and sleeping takes a little longer than asked for.
            if looks_without_sign + 1 >= LOOKS || start.elapsed() >= PATIENCE.max(self.limit) {
                return Some(start.elapsed());
            }
        }
    }

    /// Asks the runtime for a sign of life.
    fn ping(&self) {
        let pongs = Arc::clone(&self.pongs);
        drop(self.watched.runtime.spawn(async move {
            pongs.fetch_add(1, Ordering::Relaxed);
        }));
    }

    /// Hands everything to the kernel until the control task has caught up.
    fn hand_over(&self, hang: Duration) {
        // Before anything that could wait for the task that hangs, such as a log line or memory.
        let handed_over = self.guarded.hand_back();
        self.guarded.hangs.store(true, Ordering::Relaxed);
        let start = Instant::now();
        match handed_over {
            // Nothing is taken over, or no more.
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

    /// Waits for two turns, of which the second has read everything that waited when the first one
    /// ended.
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

    /// May wait for a control task that hangs, which does not matter here.
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
