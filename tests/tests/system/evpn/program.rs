//! A program of the user as the workload of `lab run`: what it gets, what counts, and how it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use experiment::Run;
use fabric::netns::Namespace;
use fabric::process::{command_line, wait_until};
use root_test::root_test;
use vtepd_tests::daemon::{lab_program, program};

use super::fixture::frr;
use super::lab_command::{NewFabric, ask, said};

const FABRIC: &str = "evpn-program";
/// On the second host, it is a server that does not end.
const PROGRAM: &str = r#"#!/bin/sh
[ "$LAB_RANK" = 0 ] || exec sleep 4321
ping -c 1 -W 5 "${LAB_ADDRESSES#*,}" >/dev/null || exit 7
ip link show "$LAB_INTERFACE" >/dev/null || exit 8
echo "$1 $LAB_HOSTS $LAB_SITES $LAB_HOST $LAB_NAMESPACE $LAB_BYTES $LAB_QUEUE_PAIRS $LAB_SOURCE_PORT ${LAB##*/}" >"$0.out"
echo starting
echo '{"seconds": 9}'
echo '{"seconds": 0.25, "bus_bandwidth": 8e6}'
echo '{"seconds": 0.75, "bus_bandwidth": 4e6}'
"#;

struct Story {
    folder: PathBuf,
    topology: String,
}

impl Story {
    /// Runs an experiment with this workload over the fabric that is up.
    fn run(&self, out: &str, workload: &str) -> Output {
        let file = self.folder.join("story.toml");
        let text = format!(
            "name = 'story'\ntitle = 'A story'\nquestion = 'Does it run?'
             topologies = ['{}']\ndataplane = [{{policy = 'kernel'}}]
             [traffic]\nsites = [['host1'], ['host2']]\n[workload]\n{workload}
             [sweep]\nqueue-pairs = [4]\n[repetitions]\nmin = 2\nmax = 2\nturn = 2\n",
            self.topology
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(lab_program());
        command.arg("run").arg(file).arg("--deployed").arg("--out").arg(self.folder.join(out));
        command.arg("--vtepd").arg(program()).output().unwrap()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap()
    }
}

/// No process of the program is left on a host.
fn assert_gone(what: &str) {
    for host in ["host1", "host2"] {
        let namespace = Namespace::open(format!("lab-{FABRIC}-{host}")).unwrap();
        // The first process of the node stays.
        let others = || {
            let lines = namespace.pids().unwrap().into_iter().filter_map(command_line);
            lines.filter(|line| !line.contains("lab init ")).collect::<Vec<_>>()
        };
        let gone = wait_until(Duration::from_secs(10), || others().is_empty());
        assert!(gone, "{what}: {host} has {:?}", others());
    }
}

#[root_test(needs = frr)]
fn a_program_says_how_long_its_iterations_take_and_leaves_nothing_behind() {
    let files = NewFabric::new(FABRIC, &["--leaves", "2", "--spines", "1", "--no-vtepd"]);
    let folder = Path::new(&files.topology()).with_file_name("story");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("program"), PROGRAM).unwrap();
    fs::set_permissions(folder.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    let story = Story { folder, topology: files.topology() };
    ask(&["up", &story.topology]);

    let good = "command = ['./program', 'argument']\nwarm-up = 1\nbytes = 70";
    let output = story.run("good", good);
    assert!(output.status.success(), "{}", said(&output));
    let (runs, _) = experiment::record::parse_lines::<Run>(&story.read("good/runs.jsonl")).unwrap();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let result = run.workload.as_ref().unwrap();
        assert_eq!((result.iterations, result.milliseconds, result.worst), (2, 500.0, 750.0));
        assert!((result.bus_bandwidth - 6.0).abs() < 1e-9, "{result:?}");
    }
    let given = format!("argument host1,host2 0,1 host1 lab-{FABRIC}-host1 70 4 constant lab\n");
    assert_eq!(story.read("program.out"), given);
    assert_eq!(story.read("good/iterations.csv").lines().count(), 1 + 2 * 2);
    assert!(story.read("good/report.html").contains("starts a program on hosts"));
    let copy = story.read("good/experiment.toml");
    assert!(copy.contains(&format!("{}/program", story.folder.display())), "{copy}");
    assert_gone("the server");

    for (out, workload, expected) in [
        ("missing", "command = ['no-such-program']", "cannot find the program 'no-such-program'"),
        (
            "failed",
            "command = ['sh', '-c', 'echo why >&2; exit 3']",
            "ended with exit status: 3\n  why",
        ),
        (
            "other",
            "command = ['sh', '-c', '[ $LAB_RANK = 1 ] || sleep 4321; exit 4']",
            "the program on host2 ended with exit status: 4",
        ),
        ("silent", "command = ['true']", "needs a line such as {\"seconds\": 0.25}"),
        ("warm-up", "command = ['./program', 'x']\nwarm-up = 3", "after 3 of the warm-up"),
        (
            "long",
            "command = ['sh', '-c', 'sleep 4321 & setsid sleep 4321 & wait']\nlimit = 0.5",
            "still ran after 0.5 s and was killed",
        ),
    ] {
        let output = story.run(out, workload);
        assert!(!output.status.success() && said(&output).contains(expected), "{}", said(&output));
        assert_gone(out);
    }
}
