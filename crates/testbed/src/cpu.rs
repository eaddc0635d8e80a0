//! CPU affinity and CPU time of threads and processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Error;

/// Pins the calling thread to one core.
///
/// # Errors
/// The errors of sched_setaffinity(2), for example if there is no such core.
pub fn pin(core: usize) -> Result<(), Error> {
    pin_thread(Pid::from_raw(0), core)
}

fn pin_thread(thread: Pid, core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    Ok(sched_setaffinity(thread, &cores)?)
}

/// Pins the calling thread to a core. Dropping the value restores the previous affinity.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread, as [`pin`] does.
    ///
    /// # Errors
    /// As [`pin`].
    pub fn to(core: usize) -> Result<Self, Error> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        pin(core)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The previous affinity was valid, so this does not fail in practice.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// Restricts all threads of a process to these cores.
///
/// # Errors
/// If the process has ended.
pub fn pin_process(process: u32, cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        if let Ok(number) = task.file_name().to_string_lossy().parse() {
            // The thread may have ended meanwhile.
            let _ = sched_setaffinity(Pid::from_raw(number), &set);
        }
    }
    Ok(())
}

/// The number of cores that the calling thread may use.
#[must_use]
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The CPU time of all threads of a process so far, in nanoseconds.
///
/// # Errors
/// If the process has ended.
pub fn spent(process: u32) -> Result<u64, Error> {
    let mut all = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let first = text.split_ascii_whitespace().next();
        all += first.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(all)
}

/// A thread that keeps a core busy until the value is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    /// Starts the thread on this core.
    #[must_use]
    pub fn on(core: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let turn = move || {
            if pin(core).is_ok() {
                while !seen.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        Self { stop, thread: Some(std::thread::spawn(turn)) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}
