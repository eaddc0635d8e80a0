//! The examples of `docs/guide`, run as they are printed: each page in namespaces of its own, with an
//! empty `/run`. A new example fails the first test until the table has it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use Use::{File, First, Needs, Output, Run, Serve, Test};
use root_test::root_test;
use vtepd_tests::daemon::{ctl_program, lab_program, program};

use super::fixture::frr;

/// What becomes of an example.
#[derive(Debug, Clone, Copy)]
enum Use {
    /// A shell runs it, in the order of the page.
    Run,
    /// The same, beside those that follow.
    Serve,
    /// Only so many lines: the others take hours, or name what the reader has.
    First(usize),
    /// It is a file of this name, for this command.
    File(&'static str, &'static str),
    /// It is what commands print.
    Output,
    /// This test of the repository uses it.
    Test(&'static str),
    /// It needs what a test machine does not have.
    Needs(&'static str),
}

/// The examples of each page, by their first lines.
const PAGES: &[(&str, &[(&str, Use)])] = &[
    (
        "artifact",
        &[
            ("deploy/experiments/run --all", Needs("half an hour")),
            ("deploy/experiments/run --all --quick --record", Needs("half an hour")),
            ("target/demo/lab run deploy/experiments", Needs("the repository and hours")),
        ],
    ),
    (
        "containerlab",
        &[
            ("    vtepd-leaf1:", Test("tests/containerlab")),
            ("docker run -d --rm", Test("tests/containerlab")),
            ("cargo build", Run),
        ],
    ),
    (
        "datapaths",
        &[
            ("lab new", Run),
            ("lab status", Run),
            ("  vni  netdev", Output),
            ("lab exec leaf1 -- ip rule add", Run),
            ("  vni  netdev", Output),
            ("lab exec leaf1 -- ip rule del", Run),
            ("lab exec leaf1 -- vtepctl counters", Run),
            ("lab policy qp-hash --datapath userspace", Run),
        ],
    ),
    (
        "experiments",
        &[
            ("deploy/experiments/run   ", First(1)),
            ("lab run results/NAME", Test("tests/tests/system/evpn/guides.rs")),
            ("lab plot again", Test("tests/tests/system/evpn/experiment.rs")),
            ("name = \"mine\"", File("mine.toml", "")),
            ("name = \"allreduce\"", Test("crates/study/tests/experiments.rs")),
            ("lab run mine.toml --plan", First(1)),
            ("[[variant]]", Test("crates/experiment/tests/guide.rs")),
            ("[workload]", Test("tests/tests/system/evpn/program.rs")),
            ("{\"seconds\"", Output),
            ("#!/bin/sh", File("throughput", "chmod +x throughput")),
            ("deploy/containerlab/up", Test("tests/containerlab")),
            ("[[failure]]", Test("crates/study/tests/experiments.rs")),
            ("[simulation]", Test("crates/study/tests/simulation.rs")),
            ("lab run deploy/experiments/spraying", Test("tests/tests/system/evpn/sprayed.rs")),
            ("lab run FILE --shard", Test("tests/tests/system/evpn/experiment.rs")),
        ],
    ),
    (
        "install",
        &[
            ("cargo build", Run),
            ("ip netns exec leaf1 vtepd --dry-run", Run),
            ("ip netns exec leaf1 vtepd", Serve),
        ],
    ),
    (
        "lab",
        &[
            ("cargo build", Run),
            ("lab policy qp-pin", Run),
            ("leaf     VNI", Output),
            ("lab link down", Run),
            ("  links:\n    - type: vxlan-stitch", Test("tests/tests/system/machines.rs")),
            ("lab workload", Run),
            ("lab path", Run),
            ("host1:eth1 to host4:eth1", Output),
            ("from vtepd import", Test("deploy/python/tests/test_leaf.py")),
            ("lab down fabric", Run),
        ],
    ),
    ("operations", &[("VTEP 10.0.1.1", Output), ("ip netns exec leaf1 curl", Run)]),
    (
        "planner",
        &[
            ("name = \"gpt3-two-sites\"", File("gpt3.toml", "lab plan gpt3.toml --top 1")),
            // With the sweep of the file, minutes in a build for tests.
            ("lab plan deploy/plans/gpt3", Test("crates/study/src/plan/tests.rs")),
            ("lab plan deploy/plans/placement", Test("crates/study/src/plan/tests.rs")),
            ("deploy/experiments/run planned", Test("crates/lab/tests/namespaces/planned.rs")),
        ],
    ),
    (
        "policies",
        &[
            ("[entropy]", File("vtepd.toml", "serve vtepd.toml")),
            ("vtepctl policy set", Run),
            (
                "[entropy]",
                File("pin.toml", "ip netns exec leaf1 vtepd --config pin.toml --dry-run"),
            ),
            ("sysctl", First(2)),
        ],
    ),
    (
        "roce",
        &[
            ("lab exec leaf1 -- ip tuntap", Needs("the image of a virtual machine")),
            ("ip link set dev eth1", Needs("the image of a virtual machine")),
            ("modprobe rdma_rxe", Test("tests/tests/system/soft_roce.rs")),
            ("ib_write_bw", Test("tests/tests/system/soft_roce.rs")),
            ("export UCX_TLS", Needs("UCX")),
            ("vtepctl explain", Run),
        ],
    ),
    (
        "simulation",
        &[
            // It simulates for minutes.
            ("lab sim deploy", Test("crates/sim/tests/file.rs")),
            ("lab: spraying", Output),
            ("name = \"example\"", File("example.toml", "lab sim example.toml --out results")),
            ("[transport.roce]", Test("crates/sim/tests/endpoints.rs")),
            ("[fabric]\nkind = \"topology\"", Test("crates/sim/tests/file.rs")),
            ("[hosts]\nkind = \"real\"", Test("crates/vteps/tests/choices.rs")),
            ("lab sim FILE --shard", Test("crates/study/tests/simulation.rs")),
            ("deploy/slurm/submit", Test("tests/slurm")),
            ("parallel lab sim", Needs("GNU parallel")),
        ],
    ),
    (
        "spraying",
        &[
            ("[entropy]", Test("tests/tests/system/spraying.rs")),
            ("vtepctl policy set", Test("tests/tests/system/spraying.rs")),
            ("lab policy spray", Test("tests/tests/system/evpn/sprayed.rs")),
            ("[spraying]", Test("crates/configuration/src/tests.rs")),
            ("[spraying]", Test("crates/configuration/src/tests.rs")),
        ],
    ),
    ("standalone", &[("ip netns add peer", Run), ("kill %1", Run)]),
    (
        "training",
        &[
            ("sudo deploy/training/run --install", Needs("PyTorch and Ray")),
            (" host1 ", Output),
            ("[workload]", Test("deploy/experiments/scaleacross-ddp.toml")),
            ("truncate", Test("crates/lab/tests/namespaces/allreduce.rs")),
        ],
    ),
    ("troubleshooting", &[]),
    (
        "tutorial",
        &[
            ("sudo apt-get", Run),
            ("lab new", Run),
            ("name = \"first\"", File("first.toml", "")),
            ("lab run first.toml", Run),
            ("✓ qp-hash", Output),
            ("name = \"ports\"", File("ports.toml", "")),
            ("lab run ports.toml", Run),
            ("lab up", Run),
        ],
    ),
    ("web", &[("lab web fabric", Test("tests/tests/system/evpn/web.rs"))]),
    (
        "wireshark",
        &[
            ("ip netns exec leaf1 vtepctl capture", Test("tests/tests/system/capture.rs")),
            ("sent by vtepd", Output),
            ("lab capture -w", Test("tests/tests/system/lab_capture.rs")),
            ("ip netns exec leaf1 tcpdump", Test("tests/tests/system/wireshark.rs")),
            ("tshark -r leaf1.pcap", Test("tests/tests/system/wireshark.rs")),
        ],
    ),
    (
        "workloads",
        &[
            ("[ -e fabric ]", Run),
            ("cat > jobs.json", Run),
            ("lab roce serve", Run),
            ("modprobe rdma_rxe", Test("tests/tests/system/soft_roce.rs")),
            ("lab roce bench", Run),
            ("lab exec host4 -- iperf3", Needs("iperf3")),
            ("lab exec host1 -- env GLOO", Needs("PyTorch")),
            ("deploy/mpi/run", Test("tests/mpi")),
        ],
    ),
];

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The code blocks of a page, without the indentation of a list.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(format!("docs/guide/{page}.md"))).unwrap();
    let mut blocks = Vec::new();
    let mut open = None::<(usize, String)>;
    for line in text.lines() {
        let indentation = line.len() - line.trim_start().len();
        match open.as_mut() {
            _ if line.trim_start().starts_with("```") => match open.take() {
                Some((_, block)) => blocks.push(block),
                None => open = Some((indentation, String::new())),
            },
            Some((skip, block)) => writeln!(block, "{}", line.get(*skip..).unwrap_or("")).unwrap(),
            None => {}
        }
    }
    blocks
}

fn examples(page: &str) -> Vec<(String, Use)> {
    let (_, uses) = PAGES.iter().find(|(name, _)| *name == page).unwrap();
    let blocks = blocks(page);
    assert_eq!(blocks.len(), uses.len(), "{page}: {blocks:#?}");
    for (block, (first, _)) in blocks.iter().zip(*uses) {
        assert!(block.starts_with(first), "{page}: {first} is not\n{block}");
    }
    blocks.into_iter().zip(uses.iter().map(|(_, of)| *of)).collect()
}

#[root_test]
fn each_example_is_run_by_a_test() {
    let folder = fs::read_dir(root().join("docs/guide")).unwrap();
    let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
    let mut pages: Vec<_> = folder.map(|file| name(file.unwrap())).collect();
    pages.sort();
    let known: Vec<_> = PAGES.iter().map(|(page, _)| format!("{page}.md")).collect();
    assert_eq!(pages, known);
    for (page, _) in PAGES {
        for (block, of) in examples(page) {
            match of {
                Test(test) => assert!(root().join(test).is_file(), "{page}: {test}\n{block}"),
                Needs(what) => assert!(!what.is_empty()),
                Run | Serve | First(_) | File(..) | Output => {}
            }
        }
    }
}

/// What a shell runs for the examples of a page.
fn script(page: &str) -> String {
    let mut script = String::new();
    for (block, of) in examples(page) {
        match of {
            Run => script.push_str(&block),
            Serve => writeln!(script, "{} &", block.trim_end()).unwrap(),
            First(lines) => {
                block.lines().take(lines).for_each(|line| writeln!(script, "{line}").unwrap());
            }
            File(name, then) => {
                writeln!(script, "cat > {name} <<'END_OF_FILE'\n{block}END_OF_FILE\n{then}")
                    .unwrap();
            }
            Output | Test(_) | Needs(_) => {}
        }
    }
    script
}

/// Pictures of the documents that commands of a story draw. `VTEPD_UPDATE_DOCS=1` makes them anew.
const PICTURES: [(&str, &str, &str); 2] = [
    ("tutorial", "results/first/fabric-constant-leaf.svg", "tutorial.svg"),
    ("lab", "fabric.svg", "graph.svg"),
];

/// What is so on the reader's machine: a shell of root, and the programs, which are built.
const SHELL: &str = r#"
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link set lo up
cargo() { :; }
sudo() { [ "$1" = -s ] || [ "$1" = apt-get ]; }
export PATH="$PWD/target/release:$PATH"
# A leaf, for pages without a fabric.
leaf() {
  ip netns add leaf1
  ip -n leaf1 link set lo up
  ip -n leaf1 addr add 10.0.0.1/32 dev lo
  ip -n leaf1 link add br10020 type bridge
  ip -n leaf1 link add vx10020 type vxlan id 10020 local 10.0.0.1 dstport 4789 nolearning
  ip -n leaf1 link set vx10020 master br10020 up
  ip -n leaf1 link set br10020 up
}
until_it_works() { until "$@"; do sleep 0.1; done; }
serve() {
  ip netns exec leaf1 vtepd --config "$1" &
  until_it_works vtepctl status
  until vtepctl status | grep -q "^Taken over: [1-9]"; do sleep 0.1; done
}
set -x
"#;

/// Runs a script for at most so many seconds. `story`: a name of this test alone.
pub(super) fn run(story: &str, seconds: u32, script: &str) {
    let place = std::env::temp_dir().join(format!("guide-{story}-{}", std::process::id()));
    fs::create_dir_all(place.join("target/release")).unwrap();
    symlink(root().join("deploy"), place.join("deploy")).unwrap();
    let programs: [(&str, PathBuf); 3] =
        [("lab", lab_program()), ("vtepd", program()), ("vtepctl", ctl_program())];
    for (name, path) in programs {
        symlink(path, place.join("target/release").join(name)).unwrap();
    }
    fs::write(place.join("script"), format!("{SHELL}{script}")).unwrap();
    // All processes end with the first one of their namespace.
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["timeout", "--kill-after=5", &seconds.to_string()]);
    command.args(["bash", "-euo", "pipefail", "script"]).current_dir(&place);
    let log = fs::File::create(place.join("log")).unwrap();
    let ended = command.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    let said = String::from_utf8_lossy(&fs::read(place.join("log")).unwrap()).into_owned();
    let pictures = PICTURES.iter().filter(|(of, ..)| *of == story).map(|(_, drawn, image)| {
        let image = root().join("docs/images").join(image);
        let is_kept = std::env::var_os("VTEPD_UPDATE_DOCS").is_some();
        let drawn = fs::read(place.join(drawn))?;
        if is_kept { fs::write(image, drawn) } else { fs::metadata(image).map(drop) }
    });
    let pictures: std::io::Result<Vec<()>> = pictures.collect();
    fs::remove_dir_all(&place).unwrap();
    assert!(ended.success(), "{story}: {ended}\n{said}");
    pictures.unwrap_or_else(|error| panic!("{story}: a picture: {error}"));
}

/// The report is where the page says, and the experiments measure what it says of `qp-pin`: field 9
/// of `summary.csv` is the mean MMR.
#[root_test(needs = frr)]
fn the_tutorial_works() {
    let figure = "
[ -e results/first/report.html ]
for name in first ports; do
  awk -F, '$5 == \"qp-pin\" && $6 == \"leaf\" { n++; if ($9 > 1.2) bad++ }
    END { exit n != 2 || bad }' results/$name/summary.csv
done
";
    run("tutorial", 400, &[&script("tutorial"), figure].concat());
}

#[root_test(needs = frr)]
fn the_commands_of_the_page_on_datapaths_work() {
    run("datapaths", 200, &script("datapaths"));
}

#[root_test(needs = frr)]
fn the_commands_of_the_page_on_lab_work() {
    run("lab", 400, &script("lab"));
}

/// Alone: connections that get no answer for too long fail. The page on RoCE asks vtepd on a leaf of
/// that fabric.
#[root_test(alone, needs = frr)]
fn the_commands_of_the_pages_on_workloads_and_roce_work() {
    let on_leaf = "vtepctl() { lab exec leaf1 -- vtepctl \"$@\"; }\n";
    run("workloads", 400, &[&script("workloads"), on_leaf, &script("roce")].concat());
}

#[root_test(needs = frr)]
fn the_commands_of_the_page_on_containerlab_work_without_it() {
    run("containerlab", 200, &script("containerlab"));
}

#[root_test]
fn the_commands_of_the_pages_on_plans_and_simulations_work() {
    run("planner", 200, &[script("planner"), script("simulation")].concat());
}

#[root_test]
fn the_commands_of_the_pages_on_vtepd_work() {
    let curl =
        "until_it_works ip netns exec leaf1 curl -so /dev/null http://127.0.0.1:9472/metrics\n";
    let pages = ["leaf\n", &script("install"), curl, &script("operations")];
    run("install", 60, &pages.concat());
    let on_leaf = "leaf\nvtepctl() { ip netns exec leaf1 vtepctl \"$@\"; }\n";
    run("policies", 60, &[on_leaf, &script("policies")].concat());
    // The page says to repeat this command.
    let repeat = "vtepctl() { until_it_works command vtepctl \"$@\"; }\n";
    run("standalone", 60, &[repeat, &script("standalone")].concat());
}

/// What the experiment files of the two tests below have in common.
const EXPERIMENT: &str = r#"
question = "Does it run?"
topologies = ["fabric.clab.yml"]
baseline = "kernel"
dataplane = [{ policy = "kernel" }, { policy = "qp-hash" }]
repetitions = { min = 2, max = 2, turn = 1 }
"#;

/// With an experiment that is as short as possible, the commands on its results work, too.
#[root_test(needs = frr)]
fn the_commands_of_the_page_on_experiments_work() {
    let small = format!(
        "cat > small.toml <<'END_OF_FILE'
name = \"small\"
title = \"A small one\"
{EXPERIMENT}
sweep = {{ queue-pairs = [4] }}
traffic = {{ frames = 20, rate = 2000 }}
END_OF_FILE
lab run small.toml --out results/small
lab run results/small/experiment.toml --out again
lab compare results/small again
"
    );
    run("experiments", 400, &[IN_FABRIC, &script("experiments"), &small].concat());
}

/// The script of the page measures with the real iperf3, as the program of an experiment.
#[root_test(needs = iperf3)]
fn the_script_of_the_page_on_experiments_measures() {
    let throughput = format!(
        "cat > throughput.toml <<'END_OF_FILE'
name = \"throughput\"
title = \"TCP\"
{EXPERIMENT}
sweep = {{ queue-pairs = [1] }}
traffic = {{ sites = [[\"host1\"], [\"host2\"]] }}
workload = {{ command = [\"./throughput\"], bytes = 1000000 }}
END_OF_FILE
lab run throughput.toml --out results
[ \"$(wc -l < results/runs.jsonl)\" = 4 ]
[ ! -e out.json ]
"
    );
    run("iperf3", 400, &[IN_FABRIC, &script("experiments"), &throughput].concat());
}

/// The page on experiments expects a topology beside the files, and has a row for each experiment of
/// the list.
const IN_FABRIC: &str = "lab new fabric
cd fabric
ln -s ../deploy
deploy/experiments/run > list
[ $(wc -l < list) = $(ls deploy/experiments/*.toml | wc -l) ]
while read -r name _; do grep -q \"^| .$name. |\" deploy/../docs/guide/experiments.md; done < list
";

fn iperf3() -> Result<(), String> {
    frr()?;
    let is_there = |name: &&str| !Path::new("/usr/bin").join(name).is_file();
    let missing: Vec<&str> = ["iperf3", "jq"].into_iter().filter(is_there).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no {}", missing.join(" and "))) }
}
