//! vtepd, or another datapath, as a child process in a namespace.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabric::{Namespace, Process};

use crate::ovs_dpdk::Resources;
use crate::{Error, cpu};

/// How long vtepd may take to give back all VNIs to the kernel.
const GRACE: Duration = Duration::from_secs(20);

/// A running vtepd or reference datapath. Dropping the value kills it.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    namespace: String,
    started: Instant,
    /// The resources of a reference datapath. They are dropped after the process.
    resources: Option<Resources>,
}

/// The path of the vtepd executable beside the running program.
///
/// # Errors
/// If the path of the running program is unknown.
pub fn beside_this_program() -> Result<PathBuf, Error> {
    Ok(std::env::current_exe()?.with_file_name("vtepd"))
}

impl Daemon {
    /// Starts vtepd with these arguments.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, namespace: &Namespace, arguments: &[&str]) -> Result<Self, Error> {
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args(arguments).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = namespace.spawn(&mut command)?;
        Ok(Self { process, namespace: namespace.name().to_owned(), started, resources: None })
    }

    /// A reference datapath that is already running.
    pub(crate) fn running(resources: Resources, process: Process, namespace: &Namespace) -> Self {
        let (namespace, started) = (namespace.name().to_owned(), Instant::now());
        Self { process, namespace, started, resources: Some(resources) }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.pid().unsigned_abs()
    }

    /// Waits until the log reports that `vnis` VNIs are taken over. Returns the time since the
    /// start.
    ///
    /// # Errors
    /// If vtepd ends before.
    pub fn await_offloaded(&mut self, vnis: u32) -> Result<Duration, Error> {
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
                // A thread reads the rest of the log, so that vtepd never blocks on a full pipe.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(time);
            }
        }
        Err(format!("vtepd ended before it offloaded {vnis} VNIs: {last}").into())
    }

    /// The sum of the metric samples whose line begins with `start`: a name, and labels if
    /// necessary.
    ///
    /// # Errors
    /// If vtepd does not answer.
    pub fn metric_sum(&self, start: &str) -> Result<f64, Error> {
        let text = fabric::metrics::read(&Namespace::open(self.namespace.clone())?)?;
        let samples = text.lines().filter(|line| line.starts_with(start));
        Ok(samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    /// The CPU time of the process so far, in nanoseconds.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu(&self) -> Result<u64, Error> {
        cpu::spent(self.id())
    }

    /// Ends the process: vtepd gives back its VNIs, a reference datapath is killed. Returns the
    /// time that this takes.
    ///
    /// # Errors
    /// If the process cannot be signalled or does not end.
    pub fn stop(self) -> Result<Duration, Error> {
        let start = Instant::now();
        let ended =
            if self.resources.is_some() { self.process.kill() } else { self.process.stop(GRACE) };
        ended.map_err(fabric::netns::NetnsError::from)?;
        Ok(start.elapsed())
    }
}
