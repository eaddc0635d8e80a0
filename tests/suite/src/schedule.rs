//! Jobs at the same time.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Error;
use crate::job::Job;
use crate::outcome::Outcome;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many jobs that only compute run at once, when a core is idle.
pub(crate) fn half() -> usize {
    (cores() / 2).max(1)
}

/// How many root tests run at once: most wait for daemons or the kernel, so that six on two cores
/// leave a third of the time idle. A fabric takes about a GiB.
pub(crate) fn at_once() -> usize {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?;
        kibibytes.parse::<usize>().ok()
    });
    (3 * cores()).min(available.map_or(2, |kibibytes| kibibytes >> 20)).max(1)
}

/// Ends the running processes when this one is told to end.
#[derive(Debug)]
pub(crate) struct Signals(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    processes: HashSet<i32>,
    is_interrupted: bool,
    /// Whether all jobs have an ordinary priority.
    is_raised: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signals {
    /// Begins to listen for SIGINT and SIGTERM.
    pub(crate) fn new() -> Result<Self, Error> {
        let running = Arc::new(Mutex::new(Running::default()));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        let shared = Arc::clone(&running);
        std::thread::spawn(move || {
            for _ in signals.forever() {
                let mut running = lock(&shared);
                running.is_interrupted = true;
                for process in &running.processes {
                    // timeout(1) hands it on. One that has just ended needs none.
                    let _ = kill(Pid::from_raw(*process), Signal::SIGINT);
                }
            }
        });
        Ok(Self(running))
    }

    fn is_interrupted(&self) -> bool {
        lock(&self.0).is_interrupted
    }

    /// Gives jobs an ordinary priority: on a busy machine, what runs when a core is idle would never
    /// end. A process that is being forked meanwhile is found by the second turn.
    pub(crate) fn raise(&self) -> Result<(), Error> {
        const GROUP: &str = "for turn in 1 2; do pgrep -g \"$0\" | xargs -rn 1 chrt --all-tasks --other --pid 0; done";
        let mut running = lock(&self.0);
        running.is_raised = true;
        for process in &running.processes {
            // timeout(1) leads a group of its own. Processes may end at any time.
            let mut command = Command::new("bash");
            command.args(["-c", GROUP, &process.to_string()]).stderr(Stdio::null());
            command.status()?;
        }
        Ok(())
    }
}

/// Runs the jobs, in their order, and prints a line when one ends. The results have no order.
pub(crate) fn run(
    jobs: Vec<Job>,
    at_once: usize,
    folder: &Path,
    signals: &Signals,
) -> Result<Vec<(Job, Outcome)>, Error> {
    let queue = Mutex::new(VecDeque::from(jobs));
    let done = Mutex::new(Vec::new());
    let next = || lock(&queue).pop_front().filter(|_| !signals.is_interrupted());
    std::thread::scope(|scope| {
        let threads = (0..at_once).map(|_| {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let outcome = process(&job, folder, signals)?;
                    tell(&job, &outcome);
                    lock(&done).push((job, outcome));
                }
                Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Error::Interrupted)))
    })?;
    if signals.is_interrupted() {
        return Err(Error::Interrupted);
    }
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a job to its end.
fn process(job: &Job, folder: &Path, signals: &Signals) -> Result<Outcome, Error> {
    let file = job.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let path = folder.join("logs").join(file);
    let log = File::create(&path)?;
    let start = Instant::now();
    let mut child = {
        // A signal finds it in the list, or it does not start.
        let mut running = lock(&signals.0);
        if running.is_interrupted {
            return Err(Error::Interrupted);
        }
        let mut command = job.process(!running.is_raised);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn()?;
        running.processes.insert(child.id().cast_signed());
        child
    };
    let cpu = cpu(&child);
    let status = child.wait()?;
    lock(&signals.0).processes.remove(&child.id().cast_signed());
    let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    let outcome = job.outcome(status.success(), &log, start.elapsed().as_secs_f64());
    Ok(Outcome { cpu, ..outcome })
}

/// Waits for the end of a process, and reads how long it and the children that it waited for used a
/// core, in seconds: proc_pid_stat(5), fields 14 to 17. Daemons that leave their parent are missing.
fn cpu(child: &Child) -> Option<f64> {
    let id = Pid::from_raw(child.id().cast_signed());
    waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok()?;
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program may have spaces.
    let (_, fields) = text.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum();
    let rate = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(ticks as f64 / rate as f64)
}

fn tell(job: &Job, outcome: &Outcome) {
    let word = if outcome.is_passed() { "ok" } else { "FAILED" };
    let mut text = format!("{word:6} {:7.1} s  {}\n", outcome.seconds, job.name);
    if !outcome.is_passed() {
        for line in outcome.log.lines() {
            text += "    ";
            text += line;
            text.push('\n');
        }
    }
    // One call, so that the lines of two jobs do not mix.
    print!("{text}");
}
