//! Processes with a defined end. They are identified by id and start time, so a signal never
//! reaches another process with a reused id.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus, Output};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::progress::note;

const POLL: Duration = Duration::from_millis(2);
/// The longest pause of [`wait_until`].
const POLL_MOST: Duration = Duration::from_millis(50);

/// A process could not be started, signalled or waited for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program could not be started.
    #[error("cannot start {command}")]
    Start {
        /// The command line.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// The process does not exist, or has ended.
    #[error("process {0} has ended")]
    Gone(i32),
    /// The signal could not be delivered.
    #[error("cannot send {signal} to process {pid}")]
    Signal {
        /// The process.
        pid: i32,
        /// The signal.
        signal: Signal,
        /// The cause.
        source: io::Error,
    },
    /// Waiting for the process failed.
    #[error("cannot wait for process {pid}")]
    Wait {
        /// The process.
        pid: i32,
        /// The cause.
        source: io::Error,
    },
    /// The process did not end in time.
    #[error("process {pid} is still running after {after:?}")]
    StillRuns {
        /// The process.
        pid: i32,
        /// How long the caller waited.
        after: Duration,
    },
}

/// Identifies a process by its id and its start time, in clock ticks since boot (`/proc/PID/stat`,
/// field 22). The kernel does not reuse the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// The start time in clock ticks since boot.
    pub start_time: u64,
}

impl Identity {
    /// The identity of the process that has this id now.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] if there is none, or only a zombie.
    pub fn of(pid: i32) -> Result<Self, ProcessError> {
        let start_time = start_time(pid).ok_or(ProcessError::Gone(pid))?;
        Ok(Self { pid, start_time })
    }

    /// Whether this process is still running.
    #[must_use]
    pub fn alive(self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// Sends a signal to this process.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] if it has ended.
    pub fn signal(self, signal: Signal) -> Result<(), ProcessError> {
        if !self.alive() {
            return Err(ProcessError::Gone(self.pid));
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) => Ok(()),
            Err(Errno::ESRCH) => Err(ProcessError::Gone(self.pid)),
            Err(errno) => Err(ProcessError::Signal { pid: self.pid, signal, source: errno.into() }),
        }
    }

    /// Ends the process with SIGTERM, then with SIGKILL if it still runs after `grace`. It is no
    /// error if the process has already ended.
    ///
    /// # Errors
    /// [`ProcessError::Signal`] if it cannot be signalled. [`ProcessError::StillRuns`] if it still
    /// runs `grace` plus one second after SIGKILL.
    pub fn stop(self, grace: Duration) -> Result<(), ProcessError> {
        for (signal, limit) in
            [(Signal::SIGTERM, grace), (Signal::SIGKILL, grace + Duration::from_secs(1))]
        {
            match self.signal(signal) {
                Err(ProcessError::Gone(_)) => return Ok(()),
                result => result?,
            }
            if wait_until(limit, || !self.alive()) {
                return Ok(());
            }
        }
        Err(ProcessError::StillRuns { pid: self.pid, after: grace })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

/// Reads a field of `/proc/PID/stat` from the third on, numbered as in `proc_pid_stat(5)`. Returns
/// `None` for a process that has ended, including a zombie.
fn stat<T: FromStr>(pid: i32, field: usize) -> Option<T> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name (field 2) may contain spaces and parentheses, so fields are counted from the
    // last one.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.clone().next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(field.checked_sub(3)?)?.parse().ok()
}

fn start_time(pid: i32) -> Option<u64> {
    stat(pid, 22)
}

/// The process, its parent, its parent's parent, and so on, without process 1.
pub fn ancestry(pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| stat(*pid, 4).filter(|parent| *parent > 1))
}

/// The command line of a process, arguments separated by spaces. `None` for kernel threads and
/// processes that have ended.
#[must_use]
pub fn command_line(pid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Polls until `condition` holds. Returns whether it did within `limit`. It asks at once, and again
/// after pauses that grow with the time that it has waited: from 2 ms to 50 ms.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        let waited = start.elapsed();
        if waited >= limit {
            return false;
        }
        thread::sleep((waited / 16).clamp(POLL, POLL_MOST).min(limit - waited));
    }
}

/// A command as a user would write it, without its environment.
pub(crate) fn words_of(command: &Command) -> String {
    in_words([command.get_program()].into_iter().chain(command.get_args()))
}

/// The words of a command in a line.
pub(crate) fn in_words<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> String {
    let words = words.into_iter().map(|word| word.as_ref().to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Starts the command in a process group of its own.
pub(crate) fn start(command: &mut Command) -> Result<Child, ProcessError> {
    use std::os::unix::process::CommandExt;
    command
        .process_group(0)
        .spawn()
        .map_err(|source| ProcessError::Start { command: words_of(command), source })
}

/// A guard for a child process. Dropping it kills and reaps the child, unless it was
/// [`Process::detach`]ed.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    identity: Identity,
}

impl Process {
    /// Starts the command in a process group of its own, so that Ctrl-C reaches only the caller.
    ///
    /// # Errors
    /// [`ProcessError::Start`] if the program cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self, ProcessError> {
        Ok(Self::of(start(command)?))
    }

    /// Guards a child. The caller sees the machine's `/proc`.
    pub(crate) fn of(child: Child) -> Self {
        let pid = child.id().cast_signed();
        // A child that has ended stays a zombie until it is reaped, so its id cannot be reused yet.
        let identity = Identity { pid, start_time: start_time(pid).unwrap_or_default() };
        Self { child: Some(child), identity }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.identity.pid
    }

    /// The identity of the process, for a record of it.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The child with its standard streams, where they are pipes.
    pub fn child_mut(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] if the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        self.identity.signal(signal)
    }

    /// The exit status, if the process has ended.
    ///
    /// # Errors
    /// [`ProcessError::Wait`] if the system call fails.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        let pid = self.identity.pid;
        let child = self.child.as_mut().ok_or(ProcessError::Gone(pid))?;
        child.try_wait().map_err(|source| ProcessError::Wait { pid, source })
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    /// [`ProcessError::StillRuns`] if it still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= limit {
                return Err(ProcessError::StillRuns { pid: self.identity.pid, after: limit });
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until the process ends, and returns what it wrote to its pipes until then. Its children may
    /// keep these open. It is killed with its children when `go_on` returns false.
    ///
    /// # Errors
    /// [`ProcessError::Wait`] if a system call fails.
    pub fn output(mut self, go_on: &dyn Fn() -> bool) -> Result<Output, ProcessError> {
        let pid = self.identity.pid;
        let failed = |source| ProcessError::Wait { pid, source };
        let child = self.child.as_mut().ok_or(ProcessError::Gone(pid))?;
        let out = child.stdout.take().map(OwnedFd::from);
        let err = child.stderr.take().map(OwnedFd::from);
        let mut streams = [out, err].map(|pipe| (pipe.map(File::from), Vec::new()));
        loop {
            // What it wrote before its end is read after that.
            let ended = self.try_wait()?;
            for (pipe, read) in &mut streams {
                drain(pipe, read).map_err(failed)?;
            }
            if let Some(status) = ended {
                let [stdout, stderr] = streams.map(|(_, read)| read);
                return Ok(Output { status, stdout, stderr });
            }
            if !go_on() {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
            wait_for_input(&streams).map_err(failed)?;
        }
    }

    /// Ends the process with SIGTERM, then with SIGKILL if it still runs after `grace`. Returns its
    /// exit status.
    ///
    /// # Errors
    /// [`ProcessError::Wait`] if the system call fails.
    pub fn stop(mut self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        if let Some(status) = self.try_wait()? {
            return Ok(status);
        }
        match self.signal(Signal::SIGTERM) {
            Ok(()) | Err(ProcessError::Gone(_)) => {}
            Err(error) => return Err(error),
        }
        match self.wait(grace) {
            Err(ProcessError::StillRuns { .. }) => self.kill(),
            ended => ended,
        }
    }

    /// Kills the process with SIGKILL and reaps it. Returns its exit status.
    ///
    /// # Errors
    /// [`ProcessError::Wait`] if the system call fails.
    pub fn kill(mut self) -> Result<ExitStatus, ProcessError> {
        self.kill_and_reap()
    }

    /// Removes the guard: the process keeps running.
    pub fn detach(mut self) -> Identity {
        self.child = None;
        self.identity
    }

    fn kill_and_reap(&mut self) -> Result<ExitStatus, ProcessError> {
        let pid = self.identity.pid;
        let mut child = self.child.take().ok_or(ProcessError::Gone(pid))?;
        let wait_error = |source| ProcessError::Wait { pid, source };
        child.kill().map_err(wait_error)?;
        child.wait().map_err(wait_error)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.is_some()
            && let Err(error) = self.kill_and_reap()
        {
            note(error);
        }
    }
}

/// Reads what is in a pipe now, which is at most its size: somebody may write on and on. One that has
/// ended is closed.
fn drain(pipe: &mut Option<File>, read: &mut Vec<u8>) -> io::Result<()> {
    const PIPE: usize = 1 << 16;
    let (mut buffer, mut all) = ([0; 1 << 12], 0);
    while let Some(file) = pipe
        && all < PIPE
        && has_input(file)?
    {
        match file.read(&mut buffer)? {
            0 => *pipe = None,
            length => {
                read.extend(buffer.iter().take(length));
                all += length;
            }
        }
    }
    Ok(())
}

fn has_input(file: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    match poll(&mut polled, PollTimeout::ZERO) {
        Err(Errno::EINTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Waits a moment, or until there is something to read.
fn wait_for_input(streams: &[(Option<File>, Vec<u8>)]) -> io::Result<()> {
    let open = streams.iter().filter_map(|(pipe, _)| pipe.as_ref());
    let mut polled: Vec<PollFd> =
        open.map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
    match poll(&mut polled, POLL.try_into().unwrap_or(PollTimeout::ZERO)) {
        Err(Errno::EINTR) => Ok(()),
        polled => Ok(polled.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    #[test]
    fn dropped_means_killed_and_detached_means_not() {
        let process = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        let identity = process.identity();
        assert!(identity.alive());
        drop(process);
        assert!(!identity.alive());

        let identity = Process::spawn(Command::new("sleep").arg("60")).unwrap().detach();
        assert!(identity.alive());
        identity.stop(Duration::from_secs(5)).unwrap();
        assert!(!identity.alive());
        identity.stop(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_reused_id_is_somebody_else() {
        let process = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        let earlier =
            Identity { start_time: process.identity().start_time - 1, ..process.identity() };
        assert!(!earlier.alive());
        assert!(matches!(earlier.signal(Signal::SIGKILL), Err(ProcessError::Gone(_))));
        earlier.stop(Duration::ZERO).unwrap();
        assert!(process.identity().alive());
    }

    #[test]
    fn stop_asks_first_and_insists_then() {
        let polite = Process::spawn(Command::new("sleep").arg("60")).unwrap();
        assert_eq!(polite.stop(Duration::from_secs(5)).unwrap().signal(), Some(15));
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]);
        let mut ignoring = Process::spawn(command.stdout(std::process::Stdio::piped())).unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(ignoring.child_mut().unwrap().stdout.as_mut().unwrap(), &mut ready)
            .unwrap();
        assert_eq!(ignoring.stop(Duration::from_millis(50)).unwrap().signal(), Some(9));
    }

    #[test]
    fn the_output_ends_with_the_process_and_not_with_its_children() {
        let run = |script: &str, go_on: &dyn Fn() -> bool| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            let start = Instant::now();
            let output = Process::spawn(&mut command).unwrap().output(go_on).unwrap();
            assert!(start.elapsed() < Duration::from_secs(30), "{script}");
            output
        };
        let output = run("sleep 60 & seq 20000; echo no >&2; kill -9 $!; exit 3", &|| true);
        assert_eq!((output.status.code(), output.stderr), (Some(3), b"no\n".to_vec()));
        assert!(output.stdout.ends_with(b"\n19999\n20000\n"));
        // What writes on and on has nobody to write to then.
        assert!(run("yes &", &|| true).status.success());
        assert_eq!(run("yes", &|| false).status.signal(), Some(9));
        let pid = run("sleep 60 & echo $!", &|| true).stdout;
        let pid = String::from_utf8(pid).unwrap().trim().parse().unwrap();
        Identity::of(pid).unwrap().stop(Duration::ZERO).unwrap();
        assert_eq!(run("sleep 60 & sleep 60", &|| false).status.signal(), Some(9));
    }

    #[test]
    fn an_end_in_time_gives_the_status() {
        let mut process = Process::spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        assert_eq!(process.wait(Duration::from_secs(5)).unwrap().code(), Some(7));
        assert!(Process::spawn(&mut Command::new("/no/such/program")).is_err());
    }
}
