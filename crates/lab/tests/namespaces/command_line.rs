//! Tests of the `lab` executable.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use root_test::root_test;

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

const TOPOLOGY: &str = "
name: pair
topology:
  defaults: {kind: linux}
  nodes:
    h1: {exec: [ip addr add 192.0.2.1/24 dev eth1]}
    h2: {exec: [ip addr add 192.0.2.2/24 dev eth1]}
  links: [{endpoints: ['h1:eth1', 'h2:eth1']}]
";

/// A fabric of `lab up`. Drop stops it and deletes the folder.
struct Up {
    name: String,
    folder: PathBuf,
}

impl Up {
    fn file(&self, name: &str, text: &str) -> String {
        let file = self.folder.join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = lab(&["down", &self.name]);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().unwrap()
}

#[root_test]
fn hosts_of_a_job_file_are_nodes_of_the_fabric() {
    let name = format!("pair{}", std::process::id());
    let up = Up { folder: std::env::temp_dir().join(&name), name };
    std::fs::create_dir_all(&up.folder).unwrap();
    let topology = up.file("pair.clab.yml", TOPOLOGY);
    let started = lab(&["up", &topology, "--name", &up.name, "--no-wait"]);
    assert!(started.status.success(), "{started:?}");
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
