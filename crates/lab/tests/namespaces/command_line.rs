//! Tests of the `lab` executable.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use root_test::root_test;
use tempfile::TempDir;

#[root_test]
fn a_reader_that_has_gone_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    let output = command
        .args(["list", "-o", "json"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < deadline, "waited 20 s for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A pipe in place of a file, whose writer writes nothing.
#[root_test]
fn a_signal_ends_the_wait_for_a_file() {
    for command in [&["plan"][..], &["up"], &["run", "--plan"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(command)
            .arg("/dev/stdin")
            .stdin(reader)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The pipe is standard input, and then also the file that `lab` opens.
        let opened = || {
            let files = std::fs::read_dir(format!("/proc/{}/fd", lab.id())).unwrap();
            let files = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
            let pipe = std::fs::read_link(format!("/proc/{}/fd/0", lab.id())).unwrap();
            files.filter(|file| *file == pipe).count() == 2
        };
        wait_for("the file to be opened", opened);
        std::thread::sleep(Duration::from_millis(20));
        let pid = nix::unistd::Pid::from_raw(lab.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        wait_for("the end", || lab.try_wait().unwrap().is_some());
        let output = lab.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("interrupted"), "{command:?}: {}: {said}", output.status);
        drop(writer);
    }
}

const TOPOLOGY: &str = "
name: pair
topology:
  defaults: {kind: linux}
  nodes:
    h1: {exec: [ip addr add 192.0.2.1/24 dev eth1]}
    h2: {exec: [ip addr add 192.0.2.2/24 dev eth1]}
  links: [{endpoints: ['h1:eth1', 'h2:eth1']}]
";

/// A fabric of `lab up`. Drop stops it.
struct Up {
    name: String,
    folder: TempDir,
}

impl Up {
    /// Two hosts and a link between them.
    fn pair(kind: &str) -> Self {
        let name = format!("{kind}{}", std::process::id());
        let up = Self { folder: tempfile::tempdir().unwrap(), name };
        let topology = up.file("pair.clab.yml", TOPOLOGY);
        let started = lab(&["up", &topology, "--name", &up.name, "--no-wait"]);
        assert!(started.status.success(), "{started:?}");
        up
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = lab(&["down", &self.name]);
    }
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().unwrap()
}

#[root_test]
fn hosts_of_a_job_file_are_nodes_of_the_fabric() {
    let up = Up::pair("pair");
    // One host by its name, one by its namespace.
    let jobs = format!(
        r#"[{{"name": "training", "hosts": [{{"name": "h1", "interface": "eth1"}},
            {{"name": "other", "namespace": "lab-{}-h2", "interface": "eth1"}}],
            "workload": {{"bytes": 10000, "iterations": 1, "warm-up": 0}}}}]"#,
        up.name
    );
    let file = up.file("jobs.json", &jobs);
    let run = |file: &str| lab(&["workload", "--file", file, "--name", &up.name, "-o", "json"]);
    let done = run(&file);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains(r#""mismatches":0"#), "{done:?}");
    let unknown = run(&up.file("unknown.json", &jobs.replace("\"h1\"", "\"h9\"")));
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && said.contains("h9"), "{said}");
}

/// As at a terminal, the interrupt goes to the whole process group.
#[root_test]
fn an_interrupt_is_for_the_command_on_the_node() {
    let up = Up::pair("exec");
    let script = "trap 'sleep 0.2; exit 7' INT; echo ready; while :; do sleep 0.05; done";
    let mut exec = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["exec", "--name", &up.name, "h1", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(exec.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let group = nix::unistd::Pid::from_raw(exec.id().try_into().unwrap());
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(exec.wait().unwrap().code(), Some(7), "lab waits for the command");
}

/// A leaf with a VXLAN netdev and two paths, by commands instead of FRR.
const LEAF: &str = "
name: leaf
topology:
  defaults: {kind: linux}
  nodes:
    leaf1:
      exec:
        - ip addr add 192.0.2.1/24 dev eth1
        - ip addr add 198.51.100.1/24 dev eth2
        - ip link add vx10 mtu 1450 type vxlan id 10 local 192.0.2.1 dstport 4789
        - ip route add 203.0.113.0/24 proto 186 nexthop via 192.0.2.2 nexthop via 198.51.100.2
        - sysctl -w net.ipv4.fib_multipath_hash_policy=1
    spine1:
  links: [{endpoints: ['leaf1:eth1', 'spine1:eth1']}, {endpoints: ['leaf1:eth2', 'spine1:eth2']}]
";

#[root_test]
fn the_doctor_names_what_makes_a_fabric_measure_something_else() {
    let name = format!("leaf{}", std::process::id());
    let up = Up { name: name.clone(), folder: tempfile::tempdir().unwrap() };
    let topology = up.file("leaf.clab.yml", LEAF);
    let output = lab(&["up", &topology, "--name", &name, "--no-wait"]);
    assert!(output.status.success(), "{output:?}");
    let faults = || {
        let output = lab(&["doctor", &name, "-o", "json"]);
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let of_leaf = |finding: &&serde_json::Value| finding["subject"] == "leaf1";
        let all = all.as_array().unwrap().iter().filter(of_leaf);
        let checks: Vec<String> =
            all.map(|of| format!("{} {}", of["check"], of["state"])).collect();
        (checks.join(", "), output.status.success())
    };
    let (found, _) = faults();
    assert_eq!(found, "");
    let change = |words: &[&str]| {
        let output = lab(&[&["exec", "leaf1", "--name", &name, "--"], words].concat());
        assert!(output.status.success(), "{output:?}");
    };
    change(&["sysctl", "-w", "net.ipv4.fib_multipath_hash_policy=0"]);
    assert_eq!(faults(), ("\"hash policy\" \"fault\"".to_owned(), false));
    change(&["sysctl", "-w", "net.ipv4.fib_multipath_hash_policy=1"]);
    change(&["ip", "link", "set", "eth2", "mtu", "1499"]);
    assert_eq!(faults(), ("\"MTU\" \"fault\"".to_owned(), false));
    change(&["ip", "link", "set", "eth2", "mtu", "1500"]);
    change(&["ip", "route", "replace", "203.0.113.0/24", "proto", "186", "via", "192.0.2.2"]);
    assert_eq!(faults().0, "\"uplinks\" \"limit\"");
}
