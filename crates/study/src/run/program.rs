//! A program of the user as the workload of a run: it starts on hosts, and says on its standard
//! output how long each of its iterations took.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use experiment::Experiment;
use experiment::record::{Completion, Iteration};
use nix::unistd::mkdtemp;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::RunError;
use fabric::netns::Namespace;
use fabric::process::Process;
use fabric::progress::Interrupted;

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(10);
/// Lines of the standard error that an error shows.
const SAID: usize = 5;

/// The settings of a program.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Program {
    /// The program and its arguments. A path with `/` is relative to the experiment file.
    pub(super) command: Vec<String>,
    /// The hosts that it starts on. Default: `all`.
    pub(super) on: On,
    /// Bytes of a buffer, for the program: `LAB_BYTES`.
    pub(super) bytes: Option<u64>,
    /// Bytes of a message, for the program: `LAB_MESSAGE`.
    pub(super) message: Option<u32>,
    /// Iterations at the beginning that do not count.
    pub(super) warm_up: u32,
    /// Seconds after which a run of the program is ended.
    pub(super) limit: f64,
}

/// The hosts that a program starts on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum On {
    /// Every host of the workload.
    #[default]
    All,
    /// The first, which starts the others, as `mpirun` does.
    First,
}

impl Default for Program {
    fn default() -> Self {
        let (bytes, message) = (None, None);
        Self { command: Vec::new(), on: On::All, bytes, message, warm_up: 0, limit: 300.0 }
    }
}

/// A program could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no such program.
    #[error("cannot find the program '{0}': install it, or correct 'command' in [workload]")]
    Missing(String),
    /// It ended with an error.
    #[error("the program on {host} ended with {status}{said}")]
    Failed {
        /// The host.
        host: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its standard error.
        said: String,
    },
    /// It wrote no times.
    #[error(
        "the program wrote no time of an iteration that counts: its standard output on {host} needs \
         a line such as {{\"seconds\": 0.25}} for each iteration, after {warm_up} of the warm-up{said}"
    )]
    Silent {
        /// The first host.
        host: String,
        /// Iterations that do not count.
        warm_up: u32,
        /// The end of its standard error.
        said: String,
    },
    /// A time is no time, or a result is wrong.
    #[error("the program on {host} wrote {line}: {wrong}")]
    Line {
        /// The host.
        host: String,
        /// The line.
        line: String,
        /// What is wrong.
        wrong: String,
    },
    /// Its current directory could not be created.
    #[error(
        "cannot create a directory for the program in the folder for temporary files ($TMPDIR)"
    )]
    Scratch(#[source] std::io::Error),
    /// It did not end.
    #[error(
        "the program still ran after {seconds} s and was killed: raise 'limit' in [workload], or let \
         it do less{said}"
    )]
    TooLong {
        /// The limit.
        seconds: f64,
        /// The end of its standard error.
        said: String,
    },
}

/// A host of the workload.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) site: usize,
    pub(super) namespace: Namespace,
    pub(super) interface: String,
    pub(super) address: String,
}

/// What a run gives the program, beside its hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    pub(super) queue_pairs: usize,
    /// How inner source ports are chosen, as `--inner-port` says it.
    pub(super) source_port: &'static str,
    pub(super) seed: u64,
}

/// A line of the standard output that is a time.
#[derive(Debug, Deserialize)]
struct Line {
    seconds: f64,
    /// In bits per second.
    bus_bandwidth: Option<f64>,
    mismatches: Option<u64>,
}

/// A process of the program, and the ends of its output.
struct Started {
    process: Process,
    status: Option<ExitStatus>,
    output: Receiver<String>,
    /// What was read of the output while it ran.
    read: Vec<String>,
    /// The last lines of the standard error, when all processes that write to it have ended.
    errors: Option<JoinHandle<VecDeque<String>>>,
    /// Removed after the process has ended.
    _scratch: Scratch,
}

/// The current directory of a process.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, ProgramError> {
        let directory = mkdtemp(&std::env::temp_dir().join("lab-program-XXXXXX"));
        Ok(Self(directory.map_err(|errno| ProgramError::Scratch(errno.into()))?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What a program has left there does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Program {
    /// What is wrong with a value, and its key.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(("command", "the program is missing: command = [\"PROGRAM\", ...]".into()));
        }
        if !(self.limit > 0.0 && self.limit < 1e6) {
            let message = format!(
                "limit is {}: use a number of seconds above 0 and below a million",
                self.limit
            );
            return Err(("limit", message));
        }
        Ok(())
    }

    /// The path of the program of an experiment file.
    ///
    /// # Errors
    /// [`ProgramError::Missing`].
    pub(super) fn path(&self, file: &Path) -> Result<PathBuf, ProgramError> {
        let name = self.command.first().map(String::as_str).unwrap_or_default();
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let candidates: Vec<PathBuf> = match name.contains('/') {
            true => vec![beside(file, name)],
            false => std::env::split_paths(&folders).map(|folder| folder.join(name)).collect(),
        };
        let found = candidates.into_iter().find(|path| path.is_file());
        found.ok_or_else(|| ProgramError::Missing(name.to_owned()))
    }

    /// Runs the program on its hosts, until that on the first one ends. The others, which may be
    /// servers, are then killed. `tell` hears the seconds of each iteration of the first one at once.
    /// Returns the result of the iterations that count, and the seconds of all.
    ///
    /// # Errors
    /// [`ProgramError`]; [`Interrupted`] if `stop` is set.
    pub(super) fn run(
        &self,
        file: &Path,
        hosts: &[Host],
        given: Given,
        (stop, tell): (&AtomicBool, &dyn Fn(f64)),
    ) -> Result<(Completion, f64), RunError> {
        let path = self.path(file)?;
        let number = if self.on == On::All { hosts.len() } else { 1 };
        let mut all: Vec<(&Host, Started)> = Vec::new();
        for (rank, host) in hosts.iter().enumerate().take(number) {
            let mut command = self.command(&path, hosts, rank, given);
            all.push((host, Started::new(&host.namespace, &mut command)?));
        }
        let start = Instant::now();
        let limit = Duration::try_from_secs_f64(self.limit).unwrap_or(Duration::MAX);
        loop {
            for (rank, (host, started)) in all.iter_mut().enumerate() {
                started.status = started.process.try_wait()?;
                if let Some(status) = started.status.filter(|status| !status.success()) {
                    let (host, said) = (host.name.clone(), started.said());
                    return Err(ProgramError::Failed { host, status, said }.into());
                }
                // The others may notice that it has ended, and fail.
                if rank == 0 && started.status.is_some() {
                    break;
                }
            }
            let Some((host, first)) = all.first_mut() else { return Err(RunError::Nothing) };
            first.tell(&host.name, tell);
            if first.status.is_some() {
                return Ok(self.result(&host.name, first)?);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if start.elapsed() >= limit {
                let _ = first.process.signal(nix::sys::signal::Signal::SIGKILL);
                let said = first.said();
                return Err(ProgramError::TooLong { seconds: self.limit, said }.into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The command on a host, in a process namespace of its own: with its first process, the kernel
    /// kills all that this has started.
    fn command(&self, path: &Path, hosts: &[Host], rank: usize, given: Given) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]).arg(path);
        command.args(self.command.iter().skip(1));
        let list =
            |of: &dyn Fn(&Host) -> String| hosts.iter().map(of).collect::<Vec<_>>().join(",");
        command.env("LAB_RANK", rank.to_string());
        command.env("LAB_HOSTS", list(&|host| host.name.clone()));
        command.env("LAB_ADDRESSES", list(&|host| host.address.clone()));
        command.env("LAB_SITES", list(&|host| host.site.to_string()));
        command.env("LAB_QUEUE_PAIRS", given.queue_pairs.to_string());
        command.env("LAB_SOURCE_PORT", given.source_port);
        command.env("LAB_SEED", given.seed.to_string());
        // The program may start commands of this lab.
        std::env::current_exe().map(|lab| command.env("LAB", lab)).ok();
        if let Some(own) = hosts.get(rank) {
            command.env("LAB_HOST", &own.name).env("LAB_INTERFACE", &own.interface);
            command.env("LAB_NAMESPACE", own.namespace.name());
        }
        for (name, value) in
            [("LAB_BYTES", self.bytes), ("LAB_MESSAGE", self.message.map(u64::from))]
        {
            value.map(|value| command.env(name, value.to_string()));
        }
        // Only the first one tells times.
        let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        command
    }

    /// The result, from what the program on the first host wrote.
    fn result(&self, host: &str, first: &mut Started) -> Result<(Completion, f64), ProgramError> {
        let all: Vec<Line> = first
            .read
            .iter()
            .cloned()
            .chain(first.output.iter())
            .filter_map(|line| parse(host, &line).transpose())
            .collect::<Result<_, _>>()?;
        let counted = all.get(self.warm_up as usize..).unwrap_or_default();
        if counted.is_empty() {
            let (host, warm_up) = (host.to_owned(), self.warm_up);
            return Err(ProgramError::Silent { host, warm_up, said: first.said() });
        }
        let number = counted.len() as f64;
        let bandwidths: Vec<f64> = counted.iter().filter_map(|line| line.bus_bandwidth).collect();
        let bandwidth = bandwidths.iter().sum::<f64>() / bandwidths.len().max(1) as f64;
        let each =
            |line: &Line| Iteration { milliseconds: line.seconds * 1e3, ..Iteration::default() };
        let completion = Completion {
            iterations: u32::try_from(counted.len()).unwrap_or(u32::MAX),
            milliseconds: counted.iter().map(|line| line.seconds).sum::<f64>() / number * 1e3,
            worst: counted.iter().map(|line| line.seconds).fold(0.0, f64::max) * 1e3,
            bus_bandwidth: bandwidth / 1e6,
            each: counted.iter().map(each).collect(),
            ..Completion::default()
        };
        Ok((completion, all.iter().map(|line| line.seconds).sum()))
    }
}

/// Finds the programs of all variants.
///
/// # Errors
/// [`ProgramError::Missing`].
pub(super) fn find(experiment: &Experiment, file: &Path) -> Result<(), ProgramError> {
    if !experiment.is_program() {
        return Ok(());
    }
    // Without variants, the command is that of the file.
    let own = experiment.variants.is_empty().then_some(None);
    let variants = (0..experiment.variants.len()).map(Some).chain(own);
    for variant in variants {
        // The file has been checked.
        let program = Program::deserialize(experiment.workload(variant)).unwrap_or_default();
        program.path(file)?;
    }
    Ok(())
}

/// A path of an experiment file.
pub(super) fn beside(file: &Path, name: &str) -> PathBuf {
    let folder = file.parent().unwrap_or(Path::new(""));
    let path = folder.join(name);
    path.canonicalize().unwrap_or(path)
}

/// Reads a line: a JSON object with `seconds` is a time, and every other line is something else.
fn parse(host: &str, text: &str) -> Result<Option<Line>, ProgramError> {
    let value: Option<serde_json::Value> = serde_json::from_str(text.trim()).ok();
    let Some(value) = value.filter(|value| value.get("seconds").is_some()) else {
        return Ok(None);
    };
    let wrong = |wrong: String| {
        let (host, line) = (host.to_owned(), text.trim().to_owned());
        ProgramError::Line { host, line, wrong }
    };
    if let Some(seconds) = value.get("seconds").filter(|seconds| !seconds.is_number()) {
        return Err(wrong(format!("'seconds' must be a number, not {seconds}")));
    }
    let line = Line::deserialize(value).map_err(|error| wrong(error.to_string()))?;
    if !(line.seconds > 0.0 && line.seconds.is_finite()) {
        return Err(wrong("'seconds' must be above 0".into()));
    }
    match line.mismatches {
        Some(1..) => Err(wrong("its results are wrong".into())),
        _ => Ok(Some(line)),
    }
}

impl Started {
    fn new(namespace: &Namespace, command: &mut Command) -> Result<Self, RunError> {
        let scratch = Scratch::new()?;
        let mut process = namespace.spawn(command.current_dir(&scratch.0))?;
        let child = process.child_mut();
        let (output, errors) = match child {
            Some(child) => (child.stdout.take(), child.stderr.take()),
            None => (None, None),
        };
        let (output, errors) = (lines(output), errors.map(last_lines));
        Ok(Self { process, status: None, output, read: Vec::new(), errors, _scratch: scratch })
    }

    /// Tells of the iterations in the output since the last time.
    fn tell(&mut self, host: &str, tell: &dyn Fn(f64)) {
        for line in self.output.try_iter() {
            // What is wrong with a line is told at the end.
            if let Ok(Some(line)) = parse(host, &line) {
                tell(line.seconds);
            }
            self.read.push(line);
        }
    }

    /// The last lines of the standard error.
    fn said(&mut self) -> String {
        let last = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        last.iter().map(|line| format!("\n  {line}")).collect()
    }
}

/// The lines of an output, until all processes that write to it have ended.
fn lines(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver): (Sender<String>, _) = channel();
    std::thread::spawn(move || {
        for line in from.into_iter().flat_map(|from| BufReader::new(from).split(b'\n')) {
            let Ok(line) = line else { return };
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Keeps the last lines of an output, until all processes that write to it have ended.
fn last_lines(from: impl Read + Send + 'static) -> JoinHandle<VecDeque<String>> {
    std::thread::spawn(move || {
        let mut last = VecDeque::new();
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if last.len() == SAID {
                last.pop_front();
            }
            last.push_back(String::from_utf8_lossy(&line).into_owned());
        }
        last
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_seconds_are_times_and_others_are_not() {
        for (text, seconds) in [
            ("{\"seconds\": 0.25}", Some(0.25)),
            (
                " {\"iteration\": 1, \"seconds\": 2, \"bus_bandwidth\": 8e6, \"mismatches\": 0}\r",
                Some(2.0),
            ),
            ("{\"rate\": 1}", None),
            ("0.25", None),
            ("iteration 1: 0.25 s", None),
            ("", None),
        ] {
            let line = parse("host1", text).unwrap();
            assert_eq!(line.map(|line| line.seconds), seconds, "{text}");
        }
        for (text, wrong) in [
            ("{\"seconds\": 0}", "above 0"),
            ("{\"seconds\": -1}", "above 0"),
            ("{\"seconds\": \"1\"}", "'seconds' must be a number, not \"1\""),
            ("{\"seconds\": null}", "'seconds' must be a number, not null"),
            ("{\"seconds\": 1, \"bus_bandwidth\": \"1\"}", "invalid type"),
            ("{\"seconds\": 1, \"mismatches\": 3}", "results are wrong"),
        ] {
            let error = parse("host1", text).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_program_is_found_beside_the_file_or_on_the_path() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = |name: &str| {
            let program = Program { command: vec![name.to_owned()], ..Program::default() };
            program.path(&folder.join("x.toml"))
        };
        assert!(path("src/lib.rs").unwrap().ends_with("crates/study/src/lib.rs"));
        assert!(path("sh").unwrap().ends_with("sh"));
        for name in ["no-such-program", "src/no-such-program"] {
            assert!(path(name).unwrap_err().to_string().contains(name));
        }
    }
}
