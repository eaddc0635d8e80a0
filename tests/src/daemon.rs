//! vtepd as a child process, its metrics and its log.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ::fabric::process::wait_until;
use ::fabric::{Namespace, Process};
use nix::sys::signal::Signal;
use serde_json::Value;
use wire::MacAddr;

use crate::{TIMEOUT, wait_for};

/// Default address of vtepd's metrics.
const METRICS: &str = "127.0.0.1:9472";

/// A running vtepd. Drop kills it, and prints its log if the test failed.
#[derive(Debug)]
pub struct Vtepd {
    process: Option<Process>,
    namespace: Namespace,
    log: PathBuf,
}

/// The program under test: `VTEPD` from the environment, or the binary built next to the test.
#[must_use]
pub fn program() -> PathBuf {
    named_or_beside("VTEPD", "vtepd")
}

/// Arguments for stories about the workers.
pub const USERSPACE: [&str; 2] = ["--datapath", "userspace"];

/// The datapath that `VTEPD_DATAPATH` names, as arguments, unless these arguments or their
/// configuration file choose one. With it, any story can be run in any datapath.
fn datapath_for(arguments: &[&str]) -> Option<String> {
    let datapath = std::env::var("VTEPD_DATAPATH").ok()?;
    let is_chosen = |text: &str| text.lines().any(|line| line.trim_start().starts_with("datapath"));
    let mut files = arguments.windows(2).filter(|pair| pair.first() == Some(&"--config"));
    let is_configured = files.any(|pair| {
        pair.last()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .is_some_and(|t| is_chosen(&t))
    });
    let is_given = arguments.iter().any(|argument| argument.starts_with("--datapath"));
    (!is_configured && !is_given).then(|| format!("--datapath={datapath}"))
}

/// The `lab` program: `LAB` from the environment, or the binary built next to the test.
#[must_use]
pub fn lab_program() -> PathBuf {
    named_or_beside("LAB", "lab")
}

/// The `vtepctl` program: `VTEPCTL` from the environment, or the binary built next to the test.
#[must_use]
pub fn ctl_program() -> PathBuf {
    named_or_beside("VTEPCTL", "vtepctl")
}

fn named_or_beside(variable: &str, name: &str) -> PathBuf {
    if let Some(program) = std::env::var_os(variable) {
        return program.into();
    }
    let test = std::env::current_exe().expect("the test's own path");
    let beside = test.ancestors().skip(1).map(|folder| folder.join(name));
    beside.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "no {name} beside {}: build it first (cargo build -p {name}), or name it in {variable}",
            test.display()
        )
    })
}

impl Vtepd {
    /// Starts vtepd in a namespace and waits until it has taken over.
    #[must_use]
    pub fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut vtepd = Self::spawn(namespace, arguments);
        vtepd.wait_until_ready();
        vtepd
    }

    /// Like [`Self::start`], with a configuration file. The file is deleted once vtepd is ready.
    #[must_use]
    pub fn start_configured(
        namespace: &Namespace,
        configuration: &str,
        arguments: &[&str],
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file =
            std::env::temp_dir().join(format!("vtepd-story-{}-{number}.toml", std::process::id()));
        std::fs::write(&file, configuration).expect("a file for vtepd's configuration");
        let path = file.to_str().expect("a path of UTF-8");
        let vtepd = Self::start(namespace, &[arguments, &["--config", path]].concat());
        std::fs::remove_file(&file).expect("the configuration file");
        vtepd
    }

    /// Like [`Self::start`], with additional environment variables.
    #[must_use]
    pub fn start_in(
        namespace: &Namespace,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut vtepd = Self::spawn_in(namespace, arguments, environment);
        vtepd.wait_until_ready();
        vtepd
    }

    /// Starts vtepd without waiting.
    #[must_use]
    pub fn spawn(namespace: &Namespace, arguments: &[&str]) -> Self {
        Self::spawn_in(namespace, arguments, &[])
    }

    fn spawn_in(namespace: &Namespace, arguments: &[&str], environment: &[(&str, &Path)]) -> Self {
        Self::spawn_by(&[], namespace, arguments, environment)
    }

    /// Starts vtepd by a command, such as setpriv(1), that executes its last words, and waits until
    /// it is ready.
    #[must_use]
    pub fn start_by(command: &[&str], namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut vtepd = Self::spawn_by(command, namespace, arguments, &[]);
        vtepd.wait_until_ready();
        vtepd
    }

    fn spawn_by(
        command: &[&str],
        namespace: &Namespace,
        arguments: &[&str],
        environment: &[(&str, &Path)],
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log =
            std::env::temp_dir().join(format!("vtepd-story-{}-{number}.log", std::process::id()));
        let file = std::fs::File::create(&log).expect("a file for vtepd's log");
        let program = program();
        let words: Vec<&OsStr> = command.iter().map(OsStr::new).chain([program.as_ref()]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(arguments)
            .args(datapath_for(arguments))
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let process = namespace.spawn(&mut command).unwrap_or_else(|error| panic!("{error}"));
        let namespace = Namespace::open(namespace.name()).unwrap();
        Self { process: Some(process), namespace, log }
    }

    /// Waits until vtepd reports that it is ready (`vtepd_ready`).
    pub fn wait_until_ready(&mut self) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process().try_wait().unwrap() {
                panic!("vtepd ended ({status}) before it was ready:\n{}", self.log());
            }
            if self.try_metrics().is_some_and(|metrics| metrics.find("vtepd_ready") == Some(1)) {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "vtepd is not ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs vtepd until it exits, for `--dry-run` and for configurations that it rejects.
    #[must_use]
    pub fn output(namespace: &Namespace, arguments: &[&str]) -> Output {
        namespace
            .enter(|| {
                Command::new(program())
                    .args(arguments)
                    .env_remove("RUST_LOG")
                    .output()
                    .expect("start vtepd")
            })
            .unwrap()
    }

    /// The location of a host in `vtepctl fdb`: a VTEP or a port.
    #[must_use]
    pub fn place(&self, mac: MacAddr) -> Option<String> {
        let rows = self.ask(&["fdb", "--mac", &mac.to_string()]);
        let row = rows.as_array()?.first()?;
        row["port"].as_str().or(row["vtep"].as_str()).map(str::to_owned)
    }

    /// The `/proc` directory of the thread with this name (`proc(5)`).
    #[must_use]
    pub fn thread(&self, name: &str) -> PathBuf {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let called = |task: &PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|found| found.trim_end() == name)
        };
        let found = tasks.map(|task| task.unwrap().path()).find(called);
        found.unwrap_or_else(|| panic!("no thread '{name}'"))
    }

    /// The CPU time of the thread with this name so far (`schedstats.rst`).
    #[must_use]
    pub fn cpu_time(&self, thread: &str) -> Duration {
        let line = std::fs::read_to_string(self.thread(thread).join("schedstat")).unwrap();
        Duration::from_nanos(line.split(' ').next().unwrap().parse().unwrap())
    }

    /// The CPU time of the thread with this name during [`QUIET`](crate::QUIET), in percent of a
    /// core.
    #[must_use]
    pub fn cpu_use(&self, thread: &str) -> u128 {
        let (before, start) = (self.cpu_time(thread), Instant::now());
        crate::quiet();
        (self.cpu_time(thread) - before).as_nanos() * 100 / start.elapsed().as_nanos()
    }

    /// Runs vtepctl in vtepd's namespace until it exits.
    #[must_use]
    pub fn ctl(&self, arguments: &[&str]) -> Output {
        let run = || Command::new(ctl_program()).args(arguments).output().expect("start vtepctl");
        self.namespace.enter(run).unwrap()
    }

    /// Runs vtepctl and returns its output as JSON.
    #[must_use]
    pub fn ask(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[arguments, &["-o", "json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "vtepctl {arguments:?}: {said}; log:\n{}", self.log());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("vtepctl {arguments:?}: {error}"))
    }

    /// The event stream, with the events since vtepd started.
    #[must_use]
    pub fn events(&self) -> Events {
        let mut command = Command::new(ctl_program());
        command
            .args(["events", "--follow", "--output", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = self.namespace.enter(|| command.spawn().expect("start vtepctl")).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, receive) = mpsc::channel();
        // Ends with the child process.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                if send.send(event).is_err() {
                    return;
                }
            }
        });
        Events { child, receive, seen: Vec::new() }
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("vtepd has not been stopped")
    }

    /// The process ID.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.as_ref().expect("vtepd has not been stopped").pid()
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line of the log that contains `text`.
    pub fn wait_for_log(&self, text: &str) {
        wait_for(&format!("'{text}' in vtepd's log"), || self.log().contains(text));
    }

    /// The current metrics.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.try_metrics()
            .unwrap_or_else(|| panic!("no metrics from vtepd; its log:\n{}", self.log()))
    }

    fn try_metrics(&self) -> Option<Metrics> {
        let text = self.namespace.enter(|| fetch("/metrics")).unwrap()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200").then(|| Metrics(body.to_owned()))
    }

    /// Waits until `wanted` holds for the metrics, and returns them.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        let mut last = None;
        let came = wait_until(TIMEOUT, || wanted(last.insert(self.metrics())));
        let metrics = last.expect("it asks at once");
        assert!(came, "waited in vain for {what}; metrics:\n{}", metrics.0);
        metrics
    }

    /// Waits until the worker's frame counters do not change for 20 ms.
    pub fn wait_until_idle(&self) -> Metrics {
        let mut before = self.metrics();
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.metrics();
            if now.passed() == before.passed() {
                return now;
            }
            assert!(start.elapsed() < TIMEOUT, "vtepd is never idle:\n{}", now.0);
            before = now;
        }
    }

    /// Sends SIGHUP, so that vtepd reads its configuration again.
    pub fn hangup(&self) {
        self.process.as_ref().unwrap().signal(Signal::SIGHUP).unwrap();
    }

    /// Stops vtepd with SIGTERM. Returns its exit status and its log.
    #[must_use]
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.process().signal(Signal::SIGTERM).unwrap();
        self.wait()
    }

    /// Waits until vtepd exits. Returns its exit status and its log.
    #[must_use]
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = self
            .process()
            .wait(TIMEOUT)
            .unwrap_or_else(|error| panic!("{error}; log:\n{}", self.log()));
        (status, self.log())
    }

    /// Stops vtepd with SIGKILL.
    pub fn kill(mut self) {
        self.process.take().unwrap().kill().unwrap();
    }
}

impl Drop for Vtepd {
    fn drop(&mut self) {
        self.process = None;
        if std::thread::panicking() {
            eprintln!("--- log of vtepd in {}:\n{}---", self.namespace.name(), self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// The event stream of a vtepd.
#[derive(Debug)]
pub struct Events {
    child: Child,
    receive: mpsc::Receiver<Value>,
    seen: Vec<Value>,
}

impl Events {
    /// Waits for the next event for which `wanted` holds, and returns it. Events before it are
    /// skipped.
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(event) = self.receive.recv_timeout(left) else {
                panic!("waited in vain for the event of {what}; there were {:#?}", self.seen);
            };
            self.seen.push(event.clone());
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Waits for the next event of a kind.
    pub fn wait_for_kind(&mut self, kind: &str) -> Value {
        self.wait_for(kind, |event| event["kind"] == kind)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fetch(path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(METRICS).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: leaf\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The metrics' text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics(pub String);

impl Metrics {
    /// The value of a series, written as in the text: `name{label="value"}`.
    #[must_use]
    pub fn find(&self, series: &str) -> Option<u64> {
        self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The value of a series that must exist.
    #[must_use]
    pub fn get(&self, series: &str) -> u64 {
        self.find(series).unwrap_or_else(|| panic!("no '{series}' in\n{}", self.0))
    }

    /// The sum of all series of a name.
    #[must_use]
    pub fn sum(&self, name: &str) -> u64 {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            (rest.starts_with('{') || rest.starts_with(' '))
                .then(|| rest.rsplit(' ').next()?.parse::<u64>().ok())?
        });
        values.sum()
    }

    /// Number of frames of a VNI, `encapsulated` or `decapsulated`.
    #[must_use]
    pub fn vni_frames(&self, vni: u32, direction: &str) -> u64 {
        self.find(&format!("vtepd_vni_frames_total{{vni=\"{vni}\",direction=\"{direction}\"}}"))
            .unwrap_or(0)
    }

    /// Number of frames dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: &str) -> u64 {
        self.get(&format!("vtepd_dropped_frames_total{{reason=\"{reason}\"}}"))
    }

    /// Number of frames dropped for any reason.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        self.sum("vtepd_dropped_frames_total")
    }

    /// Whether vtepd knows this VNI.
    #[must_use]
    pub fn has_vni(&self, vni: u32) -> bool {
        self.0.contains(&format!("vtepd_vni_info{{vni=\"{vni}\","))
    }

    /// The reason's slug, if a netdev stays with the kernel.
    #[must_use]
    pub fn left(&self, netdev: &str) -> Option<String> {
        let start = format!("vtepd_left_to_kernel{{netdev=\"{netdev}\",");
        let line = self.0.lines().find(|line| line.starts_with(&start))?;
        line.split_once("reason=\"")?.1.split_once('"').map(|(reason, _)| reason.to_owned())
    }

    /// The worker's frame counters: received, copied, sent, dropped, held.
    #[must_use]
    pub fn passed(&self) -> [u64; 5] {
        [
            self.sum("vtepd_received_frames_total"),
            self.sum("vtepd_copied_frames_total"),
            self.sum("vtepd_sent_frames_total"),
            self.dropped_in_all(),
            self.sum("vtepd_held_frames"),
        ]
    }
}
