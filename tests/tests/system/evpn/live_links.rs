//! `lab link` changes the links of a running fabric for a time, and `lab graph` shows their load.
//!
//! ```text
//! host1 ── leaf1 ── spine1 ── circuit a1:b1, 5 ms ── spine2 ── leaf2 ── host2
//! ```
//!
//! The delay is seen by ping before, during and after a change; a lost carrier at both spines; the
//! load on the circuit in the direction of the traffic.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use fabric::process::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::lab_program;

use super::fixture::{TIMEOUT, frr};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-live";
/// The delay of the circuit in each direction, in milliseconds.
const DELAY: f64 = 5.0;

/// A command of `lab` that runs until a signal. Drop ends it.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(lab_program());
        Self(command.args(arguments).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the properties of the circuit are printed: the change is made.
    fn wait_until_changed(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "}"), "the command has ended");
    }

    /// Sends Ctrl-C.
    fn interrupt(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGINT).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The shortest round trip between the hosts in ms. It does not depend on the load of the machine
/// as the others do.
fn shortest_round_trip() -> f64 {
    let ping = ["ping", "-n", "-c", "5", "-i", "0.05", "-W", "5", "192.168.10.2"];
    let output = lab(&[&["exec", "--name", FABRIC, "host1", "--"][..], &ping].concat());
    let text = said(&output);
    let times = text.lines().filter_map(|line| line.split_once("time=")?.1.split_once(" ms"));
    let times = times.map(|(time, _)| time.parse::<f64>().unwrap());
    times.reduce(f64::min).unwrap_or_else(|| panic!("no answer: {text}"))
}

fn assert_round_trip(expected: f64) {
    let found = shortest_round_trip();
    assert!((expected..expected + 2.0 * DELAY).contains(&found), "{found} ms, not {expected}");
}

/// The circuit in the figures of `lab graph`.
fn circuit() -> Value {
    let graph = ask(&["graph", "--name", FABRIC, "--seconds", "1"]);
    let links = graph["links"].as_array().unwrap();
    links.iter().find(|link| link["circuit"] == "wan a1:b1").unwrap().clone()
}

#[root_test(needs = frr)]
fn links_change_for_a_time_and_a_picture_shows_their_load() {
    let options = ["--sites", "2", "--leaves", "1", "--spines", "1", "--no-bfd", "--no-vtepd"];
    let files = NewFabric::new(FABRIC, &[&options[..], &["--jitter", "0ms"]].concat());
    ask(&["up", &files.topology()]);
    assert_round_trip(2.0 * DELAY);

    // For a time that Ctrl-C ends: one direction, named by a router's interface.
    let impair = ["link", "impair", "--name", FABRIC, "-o", "json"];
    let slow = ["spine2:dci1", "--delay", "45ms", "--direction", "a-to-b", "--for", "600s"];
    let mut slow = Running::start(&[&impair[..], &slow].concat());
    slow.wait_until_changed();
    assert_round_trip(45.0 + DELAY);
    assert_eq!(slow.interrupt().code(), Some(130));
    assert_round_trip(2.0 * DELAY);

    // For a time that passes. Another property that changes meanwhile stays.
    let mut short =
        Running::start(&[&impair[..], &["a1:b1", "--delay", "20ms", "--for", "1s"]].concat());
    short.wait_until_changed();
    ask(&[&impair[..4], &["a1:b1", "--queue", "5000"]].concat());
    assert!(short.0.wait().unwrap().success());
    assert_round_trip(2.0 * DELAY);

    // Also if the command is killed.
    let mut killed =
        Running::start(&[&impair[..], &["a1:b1", "--delay", "20ms", "--for", "2s"]].concat());
    killed.wait_until_changed();
    drop(killed);
    assert_round_trip(40.0);
    assert!(wait_until(TIMEOUT, || shortest_round_trip() < 4.0 * DELAY), "the change stays");
    the_picture_shows_the_load();

    let plain = lab(&["link", "impair", "--name", FABRIC, "leaf1:up1", "--loss", "1%"]);
    let text = said(&plain);
    assert!(!plain.status.success() && text.contains("is a plain link"), "{text}");
    a_circuit_goes_down_at_both_ends();
}

/// The load of a stream is on the circuit in its direction, in JSON and in the picture.
fn the_picture_shows_the_load() {
    let send = ["roce", "send", "--name", FABRIC, "--node", "host1", "--to", "192.168.10.2"];
    let stream = Running::start(&[&send[..], &["--rate", "2000", "--seconds", "600"]].concat());
    let mut link = Value::Null;
    // 2,000 frames of 1 KiB and more.
    let loaded = wait_until(TIMEOUT, || {
        link = circuit();
        link["a_to_b"]["sent_bits_per_second"].as_f64().unwrap() > 10e6
    });
    assert!(loaded && link["b_to_a"]["sent_bits_per_second"].as_f64().unwrap() < 1e6, "{link}");
    assert!(link["a_to_b"]["received_bits_per_second"].as_f64().unwrap() > 10e6, "{link}");
    assert_eq!((&link["a"], &link["b"]), (&"spine1:dci1".into(), &"spine2:dci1".into()));
    let properties = &link["a_to_b"]["circuit"];
    assert_eq!(
        (&properties["delay_milliseconds"], &properties["queue_bytes"]),
        (&DELAY.into(), &5000.into())
    );

    let picture = lab(&["graph", "--name", FABRIC]);
    let svg = String::from_utf8(picture.stdout).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("<title>circuit wan a1:b1</title>"), "{svg}");
    let there = "<title>host1:eth1 to leaf1:hp1";
    assert!(svg.contains(there) && !svg.contains(&format!("<g class=\"l0\">{there}")), "{svg}");
    stream.interrupt();
}

/// A circuit is a wire: if it is down, both routers have no carrier.
fn a_circuit_goes_down_at_both_ends() {
    let has_carrier = |spine: &str| {
        let show = ["exec", "--name", FABRIC, spine, "--", "ip", "-o", "link", "show", "dci1"];
        said(&lab(&show)).contains("LOWER_UP")
    };
    let both = |up: bool| {
        let changed = || has_carrier("spine1") == up && has_carrier("spine2") == up;
        assert!(wait_until(TIMEOUT, changed), "the carriers are not {up}");
    };
    let down = ["link", "down", "--name", FABRIC, "spine1:dci1", "--for", "600s"];
    let down = Running::start(&down);
    both(false);
    assert_eq!(circuit()["up"], false);
    assert_eq!(down.interrupt().code(), Some(130));
    both(true);
    assert_eq!(circuit()["up"], true);
    assert!(wait_until(Duration::from_secs(60), || {
        lab(&[
            "exec",
            "--name",
            FABRIC,
            "host1",
            "--",
            "ping",
            "-c",
            "1",
            "-W",
            "1",
            "192.168.10.2",
        ])
        .status
        .success()
    }));
}
