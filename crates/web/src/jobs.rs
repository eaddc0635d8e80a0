//! Commands that a page has started. They end with the server.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::hub::Hub;

/// The finished commands that are shown.
const SHOWN: usize = 20;
/// The commands that may run at once.
const RUNNING: usize = 16;
/// The commands that only read and may run at once. More wait.
const READING: usize = 4;
/// The bytes of a command's output that are shown.
const OUTPUT: usize = 64 << 10;
/// How long commands may take to put things back when the server ends.
const STOP: Duration = Duration::from_secs(5);

/// A command could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// Too many are running.
    #[error("{RUNNING} commands of the page are running already: stop one of them")]
    Many,
    /// The program is missing.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        source: std::io::Error,
    },
}

#[derive(Debug)]
struct Job {
    number: u64,
    command: String,
    /// When it was started, in ms since 1970.
    at: u64,
    /// While it runs.
    pid: Option<Pid>,
    /// When it has ended.
    outcome: Option<(bool, String)>,
}

/// The commands of all pages.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    list: Arc<Mutex<Vec<Job>>>,
    hub: Arc<Hub>,
    reading: Arc<Semaphore>,
}

/// What a command has done: whether its status is 0, and its output.
pub(crate) type Ended = (bool, String);

impl Jobs {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        Self { list: Arc::default(), hub, reading: Arc::new(Semaphore::new(READING)) }
    }

    /// Starts a command without a shell. Returns its text, and a task that ends with it.
    pub(crate) fn start(
        &self,
        words: &[String],
    ) -> Result<(String, tokio::task::JoinHandle<Ended>), JobError> {
        let text = text(words);
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.iter().filter(|job| job.pid.is_some()).count() >= RUNNING {
            return Err(JobError::Many);
        }
        let child = spawn(words)?;
        let number = list.last().map_or(1, |job| job.number + 1);
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(now.as_millis()).unwrap_or_default();
        list.push(Job { number, command: text.clone(), at, pid, outcome: None });
        drop(list);
        self.publish();
        let own = self.clone();
        Ok((text, tokio::spawn(async move { own.finish(number, child).await })))
    }

    /// Runs a command that only reads, which is not listed. It ends if nobody waits for it.
    pub(crate) async fn read(&self, words: &[String]) -> Result<(String, Ended), JobError> {
        // Nobody closes the semaphore.
        let _running = self.reading.acquire().await;
        Ok((text(words), outcome(spawn(words)?).await))
    }

    async fn finish(self, number: u64, child: Child) -> Ended {
        let ended = outcome(child).await;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = list.iter_mut().find(|job| job.number == number) {
            (job.pid, job.outcome) = (None, Some(ended.clone()));
        }
        let many = list.len().saturating_sub(SHOWN);
        let old: Vec<u64> =
            list.iter().filter(|job| job.pid.is_none()).take(many).map(|job| job.number).collect();
        list.retain(|job| !old.contains(&job.number));
        drop(list);
        self.publish();
        ended
    }

    /// Ends a running command as Ctrl-C does.
    pub(crate) fn stop(&self, number: u64) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let job = list.iter().find(|job| job.number == number);
        if let Some(pid) = job.and_then(|job| job.pid) {
            // It may have ended meanwhile.
            let _ = kill(pid, Signal::SIGINT);
        }
    }

    /// Ends all commands, and waits until they have put back what they changed for a time.
    pub(crate) async fn stop_all(&self) {
        let numbers: Vec<u64> = {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().map(|job| job.number).collect()
        };
        numbers.into_iter().for_each(|number| self.stop(number));
        let running = || {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().any(|job| job.pid.is_some())
        };
        let ended = async {
            while running() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // What takes longer is left alone.
        let _ = tokio::time::timeout(STOP, ended).await;
    }

    fn publish(&self) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: Map<String, Value> = list
            .iter()
            .map(|job| {
                let fields = match &job.outcome {
                    None => json!({"command": job.command, "at": job.at, "running": true}),
                    Some((ok, output)) => json!({
                        "command": job.command, "at": job.at, "running": false, "ok": ok,
                        "output": output,
                    }),
                };
                (job.number.to_string(), fields)
            })
            .collect();
        drop(list);
        self.hub.publish([("jobs", Value::Object(shown))]);
    }
}

/// The command as a shell takes it.
pub(crate) fn text(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
}

fn spawn(words: &[String]) -> Result<Child, JobError> {
    let (program, arguments) = words.split_first().map_or(("", [].as_slice()), |(p, a)| (p, a));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.kill_on_drop(true).spawn();
    child.map_err(|source| JobError::Start { program: program.to_owned(), source })
}

async fn outcome(child: Child) -> Ended {
    match child.wait_with_output().await {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            // 130: a signal ended it, and it has put back what it changed.
            let ok = output.status.success() || output.status.code() == Some(130);
            (ok, text.chars().take(OUTPUT).collect())
        }
        Err(error) => (false, error.to_string()),
    }
}
