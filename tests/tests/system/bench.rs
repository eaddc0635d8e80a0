//! `lab bench`: its output, and that it leaves nothing behind.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fabric::netns::list;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::{lab_program, program};

fn bench(arguments: &[&str]) -> Child {
    bench_of(&program(), arguments)
}

fn bench_of(vtepd: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(lab_program());
    command.arg("bench").arg("--vtepd").arg(vtepd).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start lab")
}

/// Namespaces of a run that still exist.
fn left_behind(process: u32) -> Vec<String> {
    list("vty-").into_iter().filter(|name| name.ends_with(&format!("-{process}"))).collect()
}

/// A run as short as possible contains every figure, next to the kernel's where there is one.
/// Ratios are correct.
#[root_test(alone)]
fn a_bench_has_every_figure_beside_the_kernels() {
    let child = bench(&["--rounds", "1", "--time", "30", "-o", "json"]);
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let of = |bench: &str| rows.iter().filter(|row| row["bench"] == bench).collect::<Vec<_>>();
    assert_eq!(of("in memory").len(), 8, "{rows:?}");
    for way in ["offload", "userspace"] {
        let rows = of(way);
        for word in
            ["encapsulate 64 B", "decapsulate 1082 B", "round trip", "TCP, sent", "TCP, received"]
        {
            let found = rows.iter().any(|row| row["case"].as_str().unwrap().starts_with(word));
            assert!(found, "no {word} of {way}");
        }
        for row in rows {
            let [figure, kernel, ratio] =
                ["vtepd", "kernel", "ratio"].map(|name| row[name].as_f64().unwrap());
            assert!((ratio - figure / kernel).abs() < 1e-9, "{row}");
        }
    }
    // Net CPU is a difference: in so short a run, it can be anything on a busy machine.
    let is_net = |row: &Value| row["case"].as_str().unwrap().ends_with("net CPU");
    let is_positive = |row: &Value| {
        ["vtepd", "kernel"].iter().all(|name| row[*name].as_f64().is_none_or(|figure| figure > 0.0))
    };
    assert!(rows.iter().all(|row| is_net(row) || is_positive(row)), "{rows:?}");
    assert!(rows.iter().any(|row| row["case"] == "encapsulate 64 B, 1 core, net CPU"), "{rows:?}");
    assert!(report["rounds"] == 1 && report["left_out"].is_array(), "{report}");
    assert_eq!(report["verdict"].as_array().unwrap().len(), 3, "{report}");
    assert!(said.contains("kernel VXLAN"), "no progress: {said}");
    assert_eq!(left_behind(id), Vec::<String>::new());
}

/// A vtepd that ignores `--bridge-bypass`. Figures that need the bypass are left out with a reason,
/// and all others are present.
#[root_test(alone)]
fn frames_that_went_another_way_are_left_out_and_the_rest_is_told() {
    let stubborn = std::env::temp_dir().join(format!("vtepd-stubborn-{}", std::process::id()));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *' --bridge-bypass'*) set -- \"$@\" --no-bridge-bypass;; esac\nexec '{}' \"$@\"\n",
        program().display()
    );
    std::fs::write(&stubborn, script).unwrap();
    std::fs::set_permissions(&stubborn, Permissions::from_mode(0o755)).unwrap();
    let output =
        bench_of(&stubborn, &["--rounds", "1", "--time", "30"]).wait_with_output().unwrap();
    std::fs::remove_file(&stubborn).unwrap();
    let [table, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}");
    let rows = |who: &str, what: &str| {
        let row = |line: &&str| line.starts_with(&format!("{who}  ")) && line.contains(what);
        table.lines().filter(row).count()
    };
    assert!(rows("offload", "encapsulate") > 0 && rows("userspace", "decapsulate") > 0, "{table}");
    assert_eq!(rows("userspace", "encapsulate"), 0, "{table}");
    let left_out = "userspace, encapsulate 64 B, 1 core: only 0 % of the frames that arrived";
    assert!(table.contains(left_out) && !table.contains("Case {"), "{table}");
    assert!(
        table.contains("TCP, sent") && table.contains("MIN-MAX") && table.contains("10 %"),
        "{table}"
    );
}

#[root_test]
fn an_interrupted_bench_leaves_nothing() {
    let mut child = bench(&["--rounds", "100", "--time", "30"]);
    let id = child.id();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(": offload") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended by itself");
    }
    assert_eq!(left_behind(id).len(), 4, "it has namespaces of its own");
    kill(Pid::from_raw(id.cast_signed()), Signal::SIGINT).unwrap();
    let status = child.wait().unwrap();
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(!status.success() && said.contains("lab: interrupted"), "{status}: {said}");
    assert_eq!(left_behind(id), Vec::<String>::new());
}
