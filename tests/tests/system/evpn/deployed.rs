//! `lab run --deployed` over a fabric that is up: it stays up as it was.
//!
//! ```text
//! host1 ── leaf1 ── spine1 ── circuit a1:b1, 5 ms ── spine2 ── leaf2 ── host2
//! ```
//!
//! Once it is the fabric of `lab up`. Once its namespaces have the names of ContainerLab's, and a
//! stand-in for `docker exec` runs commands on the nodes. `tests/containerlab` has the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use experiment::Run;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use root_test::root_test;
use vtepd_tests::daemon::{lab_program, program};

use super::fixture::frr;
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-deployed";
const NODES: [&str; 7] = ["host1", "host2", "leaf1", "leaf2", "spine1", "spine2", "wan"];
const NAMESPACES: &str = "/run/netns";

/// The names of ContainerLab for the namespaces of the fabric. Drop removes them.
struct Names;

impl Names {
    fn new() -> Self {
        let names = Self;
        for node in NODES {
            let name = Self::path(node);
            fs::write(&name, []).unwrap();
            let own = Path::new(NAMESPACES).join(format!("lab-{FABRIC}-{node}"));
            mount(Some(&own), &name, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }
        names
    }

    fn path(node: &str) -> PathBuf {
        Path::new(NAMESPACES).join(format!("clab-{FABRIC}-{node}"))
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in NODES.map(Self::path) {
            let _ = umount2(&name, MntFlags::MNT_DETACH);
            let _ = fs::remove_file(name);
        }
    }
}

/// The experiment, and the folder of its results.
struct Story(PathBuf);

impl Story {
    fn new(files: &NewFabric) -> Self {
        let folder = Path::new(&files.topology()).with_file_name("story");
        fs::create_dir(&folder).unwrap();
        let docker = folder.join("docker");
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = exec ] || exit 1\nnode=${{2#clab-{FABRIC}-}}\nshift 2\n\
             exec {} exec --name {FABRIC} \"$node\" -- \"$@\"\n",
            lab_program().display()
        );
        fs::write(&docker, text).unwrap();
        fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    /// Runs the experiment, with this failure in addition.
    fn run(&self, out: &str, topology: &str, more: &str) -> Output {
        let file = self.0.join("story.toml");
        let text = format!(
            "name = 'story'\ntitle = 'A story'\nquestion = 'Does it stay up?'
             topologies = ['{topology}']\ndataplane = [{{policy = 'kernel'}}, {{policy = 'qp-hash'}}]
             [circuits]\ndelay = '2ms'\n[traffic]\nframes = 20\nrate = 2000
             [sweep]\nqueue-pairs = [4]\n[repetitions]\nmin = 2\nmax = 2\nturn = 2\n{more}"
        );
        fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(lab_program());
        command.env("PATH", format!("{}:{path}", self.0.display()));
        command.arg("run").arg(file).arg("--deployed").arg("--out").arg(self.0.join(out));
        command.arg("--vtepd").arg(program()).output().unwrap()
    }

    fn assert_whole(&self, out: &str, output: &Output) {
        assert!(output.status.success(), "{}", said(output));
        let text = fs::read_to_string(self.0.join(out).join("runs.jsonl")).unwrap();
        let (runs, _) = experiment::record::parse_lines::<Run>(&text).unwrap();
        assert_eq!(runs.len(), 4);
        assert!(
            runs.iter().all(|run| run.sent == 80 && run.arrival.is_some_and(|of| of.lost == 0)),
            "{text}"
        );
        let page = fs::read_to_string(self.0.join(out).join("report.html")).unwrap();
        assert!(page.contains("already up before (--deployed)"));
        assert_as_before();
    }
}

/// No vtepd runs, and the circuit has the delay of the topology.
fn assert_as_before() {
    let leaves = ask(&["status", "--name", FABRIC]).to_string();
    assert!(leaves.contains("\"datapath\":\"none\"") && !leaves.contains("qp-hash"), "{leaves}");
    let circuit = ask(&["graph", "--name", FABRIC]).to_string();
    assert!(circuit.contains("\"delay_milliseconds\":5.0"), "{circuit}");
}

#[root_test(needs = frr)]
fn an_experiment_runs_over_a_fabric_that_is_up_and_leaves_it_as_it_was() {
    let options = ["--sites", "2", "--leaves", "1", "--spines", "1", "--no-bfd", "--no-vtepd"];
    let files = NewFabric::new(FABRIC, &[&options[..], &["--jitter", "0ms"]].concat());
    let (story, topology) = (Story::new(&files), files.topology());
    let down = story.run("down", &topology, "");
    assert!(said(&down).contains("'containerlab deploy -t FILE' or 'lab up FILE'"));

    ask(&["up", &topology]);
    story.assert_whole("lab", &story.run("lab", &topology, ""));
    let names = Names::new();
    story.assert_whole("containers", &story.run("containers", &topology, ""));
    let router = story.run("router", &topology, "[[failure]]\nkind = 'frr'\nnode = 'spine1'");
    assert!(said(&router).contains("the failure 'frr' needs FRR that 'lab' started"));
    assert_as_before();
    drop(names);

    let vtepd = program();
    let policy = ["policy", "--name", FABRIC, "qp-bins", "--vtepd", vtepd.to_str().unwrap()];
    let output = lab(&policy);
    assert!(output.status.success(), "{}", said(&output));
    let refused = story.run("refused", &topology, "");
    assert!(said(&refused).contains("vtepd already runs on leaf1, leaf2"), "{}", said(&refused));
}
