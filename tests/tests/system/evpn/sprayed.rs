//! Policy `spray` in a fabric of the laboratory: any scheme, over all paths, and what `lab` shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabric::process::wait_until;
use fabric::{Fabric, Namespace};
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::daemon::{ctl_program, program};

use super::fixture::{TIMEOUT, frr};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-spray";
/// Spines of each of two sites: each leaf has a path over each pair of them.
const SPINES: usize = 2;
const PATHS: usize = SPINES * SPINES;
const FRAMES: u64 = 400;
/// VTEPs agree again every half second.
const AGREED: Duration = Duration::from_secs(30);

fn node(name: &str) -> Namespace {
    Namespace::open(format!("lab-{FABRIC}-{name}")).unwrap()
}

/// Whether a leaf sprays over all paths.
fn sprays(leaf: &str) -> bool {
    let metrics = fabric::metrics::read(&node(leaf)).unwrap_or_default();
    metrics
        .lines()
        .any(|line| line.starts_with("vtepd_spray_paths{") && line.ends_with(&format!(" {PATHS}")))
}

/// Has all leaves spray, and returns the process of each vtepd.
fn spray(options: &[&str]) -> Vec<String> {
    let leaves = ask(&[&["policy", "spray", "--name", FABRIC], options].concat());
    let has_spray = |leaf: &Value| leaf["vnis"][0]["policy"] == "spray";
    assert!(leaves.as_array().unwrap().iter().all(has_spray), "{leaves}");
    let all_spray = || ["leaf1", "leaf2"].into_iter().all(sprays);
    assert!(wait_until(AGREED, all_spray), "no agreement with {options:?}");
    let all = Fabric::open(&FABRIC.parse().unwrap()).unwrap().processes().unwrap();
    let vtepd = all.into_iter().filter(|of| of.name == "vtepd");
    vtepd.map(|of| format!("{:?}", of.identity)).collect()
}

#[root_test(needs = frr)]
fn lab_sprays_by_any_scheme_and_shows_paths_with_shares() {
    let spines = SPINES.to_string();
    let sites = ["--sites", "2", "--delay", "0ms", "--jitter", "0ms"];
    let size = ["--leaves", "1", "--spines", &spines, "--bfd", "500ms"];
    let files = NewFabric::new(FABRIC, &[&sites[..], &size].concat());
    ask(&["up", &files.topology()]);

    let default = spray(&[]);
    let bitmap = spray(&["--scheme", "bitmap"]);
    assert_eq!((default.len(), bitmap.len()), (2, 2), "{bitmap:?}");
    assert!(default.iter().zip(&bitmap).all(|(default, bitmap)| default != bitmap), "{bitmap:?}");
    assert_eq!(spray(&["--scheme", "bitmap"]), bitmap, "vtepd was started again for nothing");
    for (wrong, message) in [
        (&["spray", "--scheme", "ecmp"], "'ecmp' is no scheme: expected oblivious, reps, bitmap"),
        (&["sprays", "--scheme", "reps"], "a similar value exists: 'spray'"),
        (&["qp-hash", "--scheme", "reps"], "only spray has --scheme"),
    ] {
        let refused = lab(&[&["policy", "--name", FABRIC], &wrong[..]].concat());
        assert!(!refused.status.success() && said(&refused).contains(message), "{refused:?}");
    }

    let queue_pair = traffic::roce::connections(101, 1)[0].remote.get().to_string();
    let flow = ["path", "--name", FABRIC, "--from", "host1", "--to", "host2", "--qp", &queue_pair];
    let before = ask(&flow);
    let send = ["roce", "send", "--name", FABRIC, "--node", "host1", "--to", "192.168.10.2"];
    let frames = FRAMES.to_string();
    let options = ["--queue-pairs", "1", "--seed", "101", "--frames", &frames, "--rate", "2000"];
    ask(&[&send[..], &options].concat());
    let mut after = Value::Null;
    let sent = |said: &Value| {
        let paths = said["paths"].as_array().unwrap();
        assert_eq!((paths.len(), &said["sprayed"]), (PATHS, &true.into()), "{said}");
        let sent = |path: &Value| path["sprayed"]["sent"].as_u64().unwrap();
        paths.iter().map(sent).collect::<Vec<_>>()
    };
    let all_are_there = wait_until(TIMEOUT, || {
        after = ask(&flow);
        sent(&after).iter().sum::<u64>() == sent(&before).iter().sum::<u64>() + FRAMES
    });
    assert!(all_are_there, "{after}");
    // One queue pair, evenly over all paths.
    for (after, before) in sent(&after).into_iter().zip(sent(&before)) {
        let own = after - before;
        assert!(own.abs_diff(FRAMES / PATHS as u64) <= 2, "{own} of {FRAMES}");
    }
    // vtepctl counts it as any other queue pair.
    let ctl = ctl_program().display().to_string();
    let expected = serde_json::json!(["sprayed", PATHS, FRAMES, 0, true]);
    let mut said = String::new();
    let is_counted = wait_until(TIMEOUT, || {
        said = node("leaf1").run(&[&ctl, "-o", "json", "qp"]).unwrap();
        let rows: Value = serde_json::from_str(&said).unwrap();
        let is_own = |row: &&Value| row["queue_pair"].as_u64() == queue_pair.parse().ok();
        rows.as_array().unwrap().iter().find(is_own).is_some_and(|row| {
            let figures = ["state", "paths", "frames", "psn_gaps", "exact"];
            serde_json::json!(figures.map(|name| row[name].clone())) == expected
        })
    });
    assert!(is_counted, "{said}");
    let text = String::from_utf8(lab(&flow).stdout).unwrap();
    assert!(text.contains("sprayed over 4 paths, spray by queue pair"), "{text}");
    assert_eq!(text.matches(" with ECN marks, 0 lost").count(), PATHS, "{text}");
    let spines = |path: &Value| [1, 2].map(|hop| path["hops"][hop]["node"].to_string());
    let spines: BTreeSet<_> = after["paths"].as_array().unwrap().iter().map(spines).collect();
    assert_eq!(spines.len(), PATHS, "{after}");
}

/// A folder for the experiment. Drop deletes it, and stops the fabric.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = lab(&["down", EMULATED]);
    }
}

const EMULATED: &str = "evpn-spray-run";

/// The shipped experiment, with fewer schemes, and its simulation from the same file agree on the
/// balance of one queue pair, and on the order of policies and schemes. Where the machine does something
/// else, packets wait and are lost, and schemes avoid the paths that this hits.
#[root_test(alone, needs = frr)]
#[ignore = "half a minute, and needs an idle machine: tests/run --all"]
fn an_experiment_and_its_simulation_agree() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/experiments");
    let shipped = shipped.canonicalize().unwrap();
    let text = fs::read_to_string(shipped.join("spraying.toml")).unwrap();
    let topologies = shipped.with_file_name("containerlab");
    let mut text = text.replace("../containerlab", topologies.to_str().unwrap());
    for scheme in ["bitmap", "mixed", "oblivious"] {
        let block = format!("[[dataplane]]\npolicy = \"spray\"\nscheme = \"{scheme}\"\n");
        assert!(text.contains(&block), "{scheme}");
        text = text.replace(&block, "");
    }
    let folder = Folder(std::env::temp_dir().join(format!("{EMULATED}-{}", std::process::id())));
    fs::create_dir_all(&folder.0).unwrap();
    let path = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let [file, measured, simulated] = ["spraying.toml", "measured", "simulated"].map(path);
    fs::write(&file, text).unwrap();

    let vtepd = program().to_str().unwrap().to_owned();
    let emulate = ["run", &file, "--quick", "--out", &measured, "--name", EMULATED, "--vtepd"];
    for command in [&[&emulate[..], &[&vtepd]].concat()[..], &["sim", &file, "--out", &simulated]] {
        let output = lab(command);
        assert!(output.status.success(), "{}", said(&output));
    }
    let agreement = ask(&["compare", &measured, &simulated]);
    assert_eq!(agreement["contradictions"], serde_json::json!([]), "{agreement}");
    let mut seen = BTreeSet::new();
    for balance in agreement["balances"].as_array().unwrap() {
        // A stall of the machine loses frames, and schemes avoid paths after losses: one run of five.
        let mmr = |from: &str| balance[from]["median"].as_f64().unwrap();
        assert!((mmr("measured") - mmr("simulated")).abs() <= 0.05, "{balance}");
        if balance["tier"] == "spine" {
            let dataplane = balance["dataplane"].as_str().unwrap();
            let expected = if dataplane.starts_with("qp-") { 4.0 } else { 1.0 };
            assert!((mmr("measured") - expected).abs() < 0.1, "{balance}");
            seen.insert(dataplane);
        }
    }
    let all = ["qp-hash", "qp-pin", "spray-prime-like", "spray-reps"];
    assert_eq!(seen, BTreeSet::from(all), "{agreement}");
    let text = said(&lab(&["compare", &measured, &simulated]));
    assert!(text.contains("agree on balance (MMR within 0.05) and on the order."), "{text}");
}
