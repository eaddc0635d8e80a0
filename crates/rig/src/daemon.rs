//! A vtepd, or another that forwards, as a child in a namespace.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::{Namespace, Process};

use crate::reference::Base;
use crate::{Error, cpu};

/// How long it may take to give everything back.
const GRACE: Duration = Duration::from_secs(20);

/// A running vtepd, or what it is compared with. Dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    namespace: String,
    started: Instant,
    /// Of what is no vtepd; dropped after the process.
    base: Option<Base>,
}

/// The vtepd that was built beside this program.
///
/// # Errors
/// When this program cannot say where it is.
pub fn beside_this_program() -> Result<PathBuf, Error> {
    Ok(std::env::current_exe()?.with_file_name("vtepd"))
}

impl Daemon {
    /// Starts the program, with these arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path, namespace: &Namespace, arguments: &[&str]) -> Result<Self, Error> {
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args(arguments).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = namespace.spawn(&mut command)?;
        Ok(Self { process, namespace: namespace.name().to_owned(), started, base: None })
    }

    /// One that is no vtepd, and forwards already.
    pub(crate) fn on(base: Base, process: Process, namespace: &Namespace) -> Self {
        let (namespace, started) = (namespace.name().to_owned(), Instant::now());
        Self { process, namespace, started, base: Some(base) }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.pid().unsigned_abs()
    }

    /// Waits for the log's word that so many VNIs are taken over. Returns the time since the start.
    ///
    /// # Errors
    /// When it ends before.
    pub fn until_taken(&mut self, vnis: u32) -> Result<Duration, Error> {
        let stderr = self
            .process
            .child_mut()
            .and_then(|child| child.stderr.take())
            .ok_or("vtepd has no log")?;
        let mut lines = BufReader::new(stderr).lines();
        let (word, mut last) = (format!("taken={vnis} "), String::new());
        for line in lines.by_ref() {
            last = line?;
            if last.contains(&word) {
                let time = self.started.elapsed();
                // What it says later goes nowhere, and must not stop it.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(time);
            }
        }
        Err(format!("vtepd ended before it had taken {vnis} VNIs: {last}").into())
    }

    /// The sum of the samples whose line starts so: a metric's name, and labels if they matter.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn counted(&self, start: &str) -> Result<f64, Error> {
        let text = lab::daemon::metrics(&Namespace::open(self.namespace.clone())?)?;
        let samples = text.lines().filter(|line| line.starts_with(start));
        Ok(samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    /// CPU nanoseconds that it has used.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<u64, Error> {
        cpu::spent(self.id())
    }

    /// Ends it: a vtepd gives back what it has, others are killed. Returns how long that takes.
    ///
    /// # Errors
    /// When it cannot be told to, or does not.
    pub fn stop(self) -> Result<Duration, Error> {
        let start = Instant::now();
        let ended =
            if self.base.is_some() { self.process.kill() } else { self.process.stop(GRACE) };
        ended.map_err(lab::netns::NetnsError::from)?;
        Ok(start.elapsed())
    }
}
