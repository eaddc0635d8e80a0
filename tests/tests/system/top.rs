//! `vtepctl top`: the figures of a leaf under traffic, and its keys on a terminal.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::qp_pin::CONFIGURATION;
use fabric::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::lab::VNI;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd, wait_for};

const QUEUE_PAIRS: usize = 32;
/// Frames per second.
const RATE: u32 = 4000;
/// Bytes of the outer Ethernet, IPv4, UDP and VXLAN headers.
const OUTER: f64 = 50.0;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn rates(value: &Value) -> (f64, f64) {
    (number(&value["frames_per_second"]), number(&value["bits_per_second"]))
}

#[root_test]
fn a_screen_has_the_rates_of_the_traffic() {
    let lab = Lab::new("top");
    let start = |namespace: &Namespace| Vtepd::start_configured(namespace, CONFIGURATION, &[]);
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    leaf.wait_for("the paths to be known", |metrics| {
        metrics.find("vtepd_probed_path_ids{vtep=\"10.0.0.2\",state=\"known\"}") == Some(128)
    });
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7201);
    stream.pass(u64::from(RATE));
    let figures = leaf.ask(&["top", "--once"]);
    let screen = leaf.ctl(&["top", "--once", "--width", "90", "--height", "30"]);
    let values = leaf.ctl(&["top", "--once", "--csv"]);
    stream.finish_whole();

    // Frames at the stream's rate, half of them on each uplink, with outer headers.
    let (frames, bits) = rates(&figures["encapsulated"]);
    assert!((0.5..2.0).contains(&(frames / f64::from(RATE))), "{figures}");
    let hops: Vec<(f64, f64)> =
        figures["next_hops"].as_array().unwrap().iter().map(|hop| rates(&hop["rate"])).collect();
    assert_eq!(hops.len(), 2, "{figures}");
    for (on_hop, bits_on_hop) in hops {
        assert!((0.45..0.55).contains(&(on_hop / frames)), "{figures}");
        let outer = (bits_on_hop / on_hop - bits / frames) / 8.0;
        assert!((outer - OUTER).abs() < 1.0, "{outer} bytes of outer headers: {figures}");
    }
    // Queue pairs, the busiest first, add up to the same.
    let rows = figures["queue_pairs"].as_array().unwrap();
    let of_rows: Vec<f64> = rows.iter().map(|row| number(&row["bits_per_second"])).collect();
    assert!(rows.len() == QUEUE_PAIRS && of_rows.is_sorted_by(|a, b| a >= b), "{of_rows:?}");
    let sum: f64 = of_rows.iter().sum();
    assert!((0.4..2.5).contains(&(sum / bits)), "{sum} of {bits}");
    assert_eq!(figures["vnis"][0]["policy"], "qp-pin");
    assert!(figures["events"].as_array().unwrap().iter().any(|e| e["kind"] == "attached"));

    let screen = String::from_utf8(screen.stdout).unwrap();
    assert_eq!(screen.lines().count(), 30, "{screen}");
    let datapath = std::env::var("VTEPD_DATAPATH").unwrap_or_else(|_| "offload".to_owned());
    for words in [
        &["VTEP 10.0.0.1", "up "][..],
        &["dropped 0 frames/s", " k frames/s", "Mbit/s"],
        &["up1 10.1.1.0", "█", " M", " k"],
        &["10", "vx10", &datapath, "qp-pin"],
        &["Queue pairs: 32"],
        &["10", "192.168.10.1", "192.168.10.3", "0x", "pinned"],
        &["attached"],
    ] {
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(screen.lines().any(has), "{words:?} in\n{screen}");
    }

    // The same paths and queue pairs as values.
    let values = String::from_utf8(values.stdout).unwrap();
    let of = |kind: &str| values.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!(of("kind,vtep,uplink,"), 1, "{values}");
    assert_eq!((of("path,10.0.0.2,"), of("queue pair,10.0.0.2,")), (2, QUEUE_PAIRS), "{values}");

    // Without a terminal.
    let output = leaf.ctl(&["top"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--once"), "{said}");
}

/// `vtepctl top` on a pseudo-terminal of script(1), with a reader for what it draws.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    drawn: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn start(namespace: &Namespace) -> Self {
        // The pseudo-terminal has no size of its own.
        let top = format!(
            "stty rows 30 cols 100; exec {} top --interval 0.2",
            vtepd_tests::daemon::ctl_program().display()
        );
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--flush", "--return", "--command", &top, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut script = namespace.enter(|| command.spawn().expect("start script")).unwrap();
        let (keys, mut output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&drawn);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Self { script, keys, drawn, reader: Some(reader) }
    }

    fn has_drawn(&self, text: &str) -> bool {
        let drawn = self.drawn.lock().unwrap();
        drawn.windows(text.len()).any(|found| found == text.as_bytes())
    }

    fn wait_for(&self, text: &str) {
        wait_for(&format!("{text:?} on the screen"), || self.has_drawn(text));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Ends vtepctl, the child of script, by SIGTERM.
    fn terminate(&self) {
        let script = self.script.id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
        let top = children.unwrap().trim().parse().expect("one child");
        kill(Pid::from_raw(top), Signal::SIGTERM).unwrap();
    }

    /// Waits until it ends, and returns whether it succeeded and has restored the terminal.
    fn end(mut self) -> (bool, bool) {
        let status = self.script.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let drawn = String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned();
        // The alternate screen is entered once, and nothing is drawn after it was left.
        let parts =
            drawn.split_once("\x1b[?1049h").and_then(|(_, on)| on.split_once("\x1b[?1049l"));
        (status.success(), parts.is_some_and(|(_, after)| !after.contains("vx10")))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // vtepctl gets SIGHUP when the pseudo-terminal is closed.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn policy_of(vtepd: &Vtepd) -> Value {
    vtepd.ask(&["policy", "show"])[0]["taken"]["policy"]["name"].clone()
}

#[root_test]
fn keys_change_a_vni_and_the_terminal_is_restored() {
    let lab = Lab::new("keys");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let mut top = Terminal::start(&lab.leaf);
    top.wait_for("vx10");
    assert_eq!(policy_of(&vtepd), "qp-hash", "the default");
    top.press("p1");
    wait_for("the policy", || policy_of(&vtepd) == "five-tuple");
    top.press("dn");
    top.press("dy");
    vtepd.wait_for("the VNI to be detached", |metrics| !metrics.has_vni(VNI));
    top.wait_for("detached");
    top.press("a");
    vtepd.wait_for("the VNI to be attached", |metrics| metrics.has_vni(VNI));

    // vtepd ends, and comes again.
    let _ = vtepd.terminate();
    top.wait_for("No connection");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    wait_for("the new vtepd to be asked", || {
        top.press("p3");
        vtepd_tests::quiet();
        policy_of(&vtepd) == "qp-bins"
    });
    top.terminate();
    assert_eq!(top.end(), (true, true));

    let mut top = Terminal::start(&lab.leaf);
    top.wait_for("vx10");
    top.press("q");
    assert_eq!(top.end(), (true, true));
}
