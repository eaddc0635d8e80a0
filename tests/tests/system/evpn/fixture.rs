//! The fabric, and vtepd on its leaves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fabric::Namespace;
use fabric::node::Node;
use fabric::process::{Identity, wait_until};
use fabric::{Fabric, Topology};
use nix::sys::signal::Signal;
use study::daemon::{Daemon, Policy, configuration};
use vtepd_tests::daemon::{ctl_program, program};

/// How long a test waits for an expected event.
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);
/// How long FRR may take to converge after something returned. BGP retries every second, and BFD
/// runs at a lower rate meanwhile.
pub(super) const CONVERGENCE: Duration = Duration::from_secs(240);
/// How long a process may take to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// All leaves, and the number of VNIs on each.
pub(super) const LEAVES: [&str; 6] = ["leaf1", "leaf2", "leaf3", "leaf4", "leaf5", "leaf6"];
pub(super) const VNIS: usize = 2;

/// FRR's daemons on each router, and the one that FRR 9 added.
pub(super) const DAEMONS: [&str; 4] = ["bgpd", "bfdd", "staticd", "zebra"];
pub(super) const MANAGEMENT: &str = "mgmtd";

/// A converged ScaleAcross fabric. Drop deletes it.
pub(super) struct ScaleAcross {
    pub fabric: Fabric,
}

/// What all tests with the fabric need.
pub(super) fn frr() -> Result<(), String> {
    let exists = Path::new("/usr/lib/frr/zebra").exists();
    if exists { Ok(()) } else { Err("FRR is not installed".to_owned()) }
}

impl ScaleAcross {
    /// Starts the fabric under this name and waits until FRR has converged.
    pub(super) fn up(name: &str) -> Self {
        Self::up_with(name, |_| ())
    }

    /// Like [`ScaleAcross::up`], with a modified topology.
    pub(super) fn up_with(name: &str, change: impl FnOnce(&mut Topology)) -> Self {
        let mut topology = Topology::load(&topology()).unwrap();
        change(&mut topology);
        for leaf in LEAVES {
            // Also logs routes and FPM messages, not only warnings.
            topology.nodes.get_mut(leaf).unwrap().env.insert("RUST_LOG".into(), "info".into());
        }
        Self::deploy(topology, name)
    }

    /// Starts a fabric with another topology file.
    pub(super) fn other(name: &str, file: &Path) -> Self {
        Self::other_with(name, file, |_| ())
    }

    /// Like [`ScaleAcross::other`], with a modified topology.
    pub(super) fn other_with(name: &str, file: &Path, change: impl FnOnce(&mut Topology)) -> Self {
        let mut topology = Topology::load(file).unwrap();
        change(&mut topology);
        Self::deploy(topology, name)
    }

    fn deploy(topology: Topology, name: &str) -> Self {
        let name = name.parse().unwrap();
        let fabric =
            Fabric::up(topology, Some(&name), &quiet).unwrap_or_else(|error| panic!("{error}"));
        let all = Self { fabric };
        all.converge();
        all
    }

    /// Waits until FRR has all sessions, flood entries and remote MAC addresses.
    pub(super) fn converge(&self) {
        self.fabric.converge(CONVERGENCE, &quiet).unwrap_or_else(|error| panic!("{error}"));
    }

    pub(super) fn node(&self, name: &str) -> Node {
        self.fabric.node(name).unwrap()
    }

    pub(super) fn namespace(&self, name: &str) -> Namespace {
        self.node(name).namespace().unwrap()
    }

    /// FRR's daemons on a router.
    pub(super) fn frr(&self, node: &str) -> Vec<Identity> {
        let mut processes = self.fabric.processes().unwrap();
        processes.retain(|process| process.node == node && process.name != "vtepd");
        assert_eq!(
            processes
                .iter()
                .map(|process| process.name.as_str())
                .filter(|name| *name != MANAGEMENT)
                .collect::<BTreeSet<_>>(),
            BTreeSet::from(DAEMONS)
        );
        processes.into_iter().map(|process| process.identity).collect()
    }

    /// Runs a command line on a node and returns its output.
    pub(super) fn run(&self, node: &str, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        self.node(node).run(&words).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts vtepd on a leaf and waits until it forwards both VNIs.
    pub(super) fn vtepd(&self, leaf: &str) -> Vtepd {
        let vtepd = self.spawn(leaf, &[]);
        vtepd.wait_until_ready();
        vtepd
    }

    /// Starts vtepd on a leaf.
    pub(super) fn spawn(&self, leaf: &str, arguments: &[&str]) -> Vtepd {
        let node = self.node(leaf);
        let said_before = std::fs::read_to_string(node.log("vtepd")).unwrap_or_default().len();
        let daemon = Daemon::start(&node, &program(), Policy::QpHash, arguments).unwrap();
        Vtepd { node, daemon, said_before }
    }
}

pub(super) fn quiet(_: &str) -> Result<(), fabric::progress::Interrupted> {
    Ok(())
}

pub(super) fn topology() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/containerlab/scaleacross.clab.yml")
}

/// vtepd on a leaf. Drop stops it, and prints its log if the test failed.
pub(super) struct Vtepd {
    node: Node,
    daemon: Daemon,
    /// Length of the log of earlier processes on the same leaf, in bytes.
    said_before: usize,
}

impl Vtepd {
    pub(super) fn wait_until_ready(&self) {
        self.wait_until_it_forwards(VNIS);
    }

    pub(super) fn wait_until_it_forwards(&self, vnis: usize) {
        self.daemon.wait(Policy::QpHash, vnis, TIMEOUT).unwrap_or_else(|error| panic!("{error}"));
    }

    pub(super) fn alive(&self) -> bool {
        self.daemon.identity().alive()
    }

    /// The log of this process.
    pub(super) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.node.log("vtepd")).unwrap_or_default();
        log.get(self.said_before..).unwrap_or_default().to_owned()
    }

    pub(super) fn metrics(&self) -> Metrics {
        Metrics(
            self.daemon.metrics().unwrap_or_else(|error| panic!("{}: {error}", self.node.name())),
        )
    }

    /// Waits until `wanted` holds for the metrics. Returns them, and how long it took.
    pub(super) fn wait_for(
        &self,
        what: &str,
        wanted: impl Fn(&Metrics) -> bool,
    ) -> (Metrics, Duration) {
        let start = Instant::now();
        let mut metrics = self.metrics();
        let came = wait_until(TIMEOUT, || {
            metrics = self.metrics();
            wanted(&metrics)
        });
        assert!(
            came,
            "{} waited in vain for {what}; its metrics:\n{}",
            self.node.name(),
            metrics.0
        );
        (metrics, start.elapsed())
    }

    /// Waits until vtepd has this number of MAC addresses behind remote VTEPs, and of VTEPs in the
    /// flood list.
    pub(super) fn wait_for_peers(&self, vni: u32, macs: u64, floods: u64) -> Duration {
        let wanted = (Some(macs), Some(floods));
        self.wait_for(&format!("{macs} MACs and {floods} VTEPs of {vni}"), |m| {
            m.peers(vni) == wanted
        })
        .1
    }

    /// Waits for a line of the log that contains `text`.
    pub(super) fn wait_for_log(&self, text: &str) {
        let came = wait_until(TIMEOUT, || self.log().contains(text));
        assert!(
            came,
            "{} waited in vain for '{text}' in the log:\n{}",
            self.node.name(),
            self.log()
        );
    }

    /// Runs vtepctl and returns its output as JSON.
    pub(super) fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let program = ctl_program();
        let words = [&[program.to_str().unwrap()], arguments, &["-o", "json"]].concat();
        let text = self
            .node
            .run(&words)
            .unwrap_or_else(|error| panic!("{error}; its log:\n{}", self.log()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// The stored events with a higher number than `after`.
    pub(super) fn events(&self, after: u64) -> Vec<serde_json::Value> {
        let program = ctl_program();
        let after = after.to_string();
        let words = [program.to_str().unwrap(), "events", "--after", &after, "-o", "json"];
        let text = self
            .node
            .run(&words)
            .unwrap_or_else(|error| panic!("{error}; its log:\n{}", self.log()));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Appends `text` to the configuration and sends SIGHUP, so that vtepd reads it again.
    pub(super) fn reload_with(&self, text: &str) {
        let path = configuration(&self.node);
        let so_far = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{so_far}\n{text}")).unwrap();
        self.daemon.identity().signal(Signal::SIGHUP).unwrap();
    }

    /// Prints the addresses that the leaf's bridges, zebra and vtepd have, and the counters that
    /// increase, after a failed test. Commands that fail print their error.
    fn show_evidence(&self) {
        let program = ctl_program();
        let program = program.to_str().unwrap_or_default();
        for words in [
            &["bridge", "-s", "fdb", "show", "dynamic"][..],
            &["vtysh", "-c", "show evpn mac vni all"],
            &[program, "fdb"],
            &[program, "port"],
            &[program, "drops"],
        ] {
            let said = self.node.run(words).unwrap_or_else(|error| error.to_string());
            eprintln!("--- {} on {}:\n{said}", words.join(" "), self.node.name());
        }
        let Ok(before) = self.daemon.metrics() else { return };
        std::thread::sleep(Duration::from_millis(500));
        let Ok(after) = self.daemon.metrics() else { return };
        let moved: Vec<&str> =
            after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
        eprintln!(
            "--- counters that moved on {} within 0.5 s:\n{}\n---",
            self.node.name(),
            moved.join("\n")
        );
    }

    /// Ends vtepd with this signal.
    pub(super) fn end_by(self, signal: Signal) {
        self.daemon.identity().signal(signal).unwrap();
        assert!(wait_until(GRACE, || !self.alive()));
    }

    /// Ends vtepd with SIGTERM.
    pub(super) fn stop(self) {
        self.daemon.identity().stop(GRACE).unwrap();
        assert!(!self.alive());
    }
}

impl Drop for Vtepd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of vtepd on {}:\n{}---", self.node.name(), self.log());
            self.show_evidence();
        }
        let _ = self.daemon.identity().stop(GRACE);
    }
}

/// The metrics' text.
pub(super) struct Metrics(pub String);

impl Metrics {
    /// The value of a series, written as in the text: `name{label="value"}`.
    pub(super) fn find(&self, series: &str) -> Option<u64> {
        self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The sum of all series that begin with `start`.
    pub(super) fn sum(&self, start: &str) -> u64 {
        let values = self
            .0
            .lines()
            .filter(|line| line.starts_with(start))
            .filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    }

    /// Number of MAC addresses behind remote VTEPs, and of VTEPs in the flood list.
    pub(super) fn peers(&self, vni: u32) -> (Option<u64>, Option<u64>) {
        let of = |name: &str| self.find(&format!("vtepd_vni_{name}{{vni=\"{vni}\"}}"));
        (of("remote_macs"), of("flood_vteps"))
    }

    /// Number of frames sent over an uplink.
    pub(super) fn sent_by(&self, uplink: &str) -> u64 {
        self.sum(&format!("vtepd_path_frames_total{{uplink=\"{uplink}\""))
    }

    /// The state of a source, `kernel` or `fpm`.
    pub(super) fn is_state(&self, source: &str, state: &str) -> bool {
        self.find(&format!("vtepd_source_state{{source=\"{source}\",state=\"{state}\"}}"))
            == Some(1)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.sum("vtepd_dropped_frames_total{")
    }
}
