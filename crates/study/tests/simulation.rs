//! `lab sim`: results do not depend on threads, interruptions and shards.
#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use study::simulation::{Outcome, Settings, Shard, SimulationError, compare, merge, run};

const FILE: &str = r#"
name = "small"
title = "A small fabric"
question = "Which scheme is faster?"
seeds = 3

[fabric]
kind = "leaf-spine"
leaves = 4
hosts = 2
spines = 2
rate = "100Gbit/s"
delay = "1us"

[[traffic]]
kind = "matrix"
file = "own.cm"

[[variant]]
scheme = "ecmp"
values = 1

[[variant]]
scheme = "prime-like"

[sweep]
"transport.acknowledge" = [4150, 16384]
"#;

const MATRIX: &str = "Nodes 8\n0->5 id 1 start 0 size 400000 send_done_trigger 1\n\
    1->6 id 2 start 0 size 400000\n5->0 id 3 trigger 1 size 400000\ntrigger id 1 oneshot\n";

/// A directory with the file.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::write(place.join("small.toml"), FILE).unwrap();
        fs::write(place.join("own.cm"), MATRIX).unwrap();
        place
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(
        &self,
        out: &str,
        threads: usize,
        shard: Option<&str>,
    ) -> Result<Outcome, SimulationError> {
        let settings = Settings {
            file: self.join("small.toml"),
            out: self.join(out),
            threads,
            shard: shard.map(|text| text.parse::<Shard>().unwrap()),
            command: "lab sim small.toml".into(),
        };
        run(&settings, &|_| Ok(()), &AtomicBool::new(false))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.join(file)).unwrap()
    }

    /// The lines without times of the machine.
    fn lines(&self, out: &str) -> Vec<String> {
        let text = self.read(&format!("{out}/results.jsonl"));
        let line = |line: &str| line.split(",\"user-s\"").next().unwrap().to_owned();
        text.lines().map(line).collect()
    }
}

#[test]
fn threads_and_interruptions_do_not_change_results() {
    let place = Place::new();
    let one = place.run("one", 1, None).unwrap();
    assert_eq!((one.unfinished.len(), one.summary.len()), (0, 4));
    place.run("three", 3, None).unwrap();
    let lines = place.lines("one");
    assert_eq!((lines.len(), &lines), (12, &place.lines("three")));
    let page = place.read("one/report.html");
    for part in ["A small fabric", "known-prime-like", "own.cm", "MMR leaf-spine"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(place.read("one/own.cm"), MATRIX);

    // The program was killed while it wrote the seventh line.
    let file = place.join("one/results.jsonl");
    let text = place.read("one/results.jsonl");
    let whole: Vec<&str> = text.lines().collect();
    fs::write(&file, format!("{}\n{}", whole[..6].join("\n"), &whole[6][..50])).unwrap();
    place.run("one", 2, None).unwrap();
    assert_eq!(place.lines("one"), lines);
    let changes =
        compare(&place.join("one"), &place.join("three")).unwrap().expect("two simulations");
    assert!(changes.len() == 4 && changes.iter().all(|change| !change.changed), "{changes:?}");

    fs::write(place.join("small.toml"), FILE.replace("seeds = 3", "seeds = 2")).unwrap();
    let other = place.run("one", 1, None).unwrap_err();
    assert!(matches!(other, SimulationError::Other { .. }), "{other}");
}

#[test]
fn shards_give_together_what_one_machine_gives() {
    let place = Place::new();
    place.run("one", 1, None).unwrap();
    for shard in ["0/3", "2/3"] {
        assert!(place.run("parts", 1, Some(shard)).unwrap().report.is_none());
    }
    let missing = merge(&place.join("parts"), "").unwrap_err();
    assert!(matches!(missing, SimulationError::Missing { .. }), "{missing}");
    place.run("parts", 1, Some("1/3")).unwrap();
    merge(&place.join("parts"), "").unwrap();
    assert_eq!(place.lines("parts"), place.lines("one"));

    let shard = place.join("parts/results-1-of-3.jsonl");
    let text = fs::read_to_string(&shard).unwrap();
    fs::write(&shard, text.replacen("\"acks\":", "\"acks\":1", 1)).unwrap();
    let contradiction = merge(&place.join("parts"), "").unwrap_err();
    assert!(matches!(contradiction, SimulationError::Contradiction { .. }), "{contradiction}");
}

#[test]
fn a_flow_that_does_not_finish_is_named() {
    let place = Place::new();
    let stuck = format!("end = \"20us\"\n{FILE}");
    fs::write(place.join("small.toml"), stuck).unwrap();
    let outcome = place.run("out", 2, None).unwrap();
    let named = "small/transport.acknowledge=4150 ecmp seed 1: flow 3 from host 5 to host 0: it waits \
        for trigger 1 of flow 1";
    assert!(outcome.unfinished.iter().any(|text| text == named), "{:?}", outcome.unfinished);
    assert!(place.read("out/report.html").contains("not finished"));
    assert!(Path::new(&outcome.report.unwrap()).exists());
}

const EXPERIMENT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/experiments/spraying.toml");

/// The shipped experiment, with few seeds, and a change, by `lab sim`.
fn simulated(place: &Place, from: &str, to: &str) -> Result<Outcome, SimulationError> {
    let text = fs::read_to_string(EXPERIMENT).unwrap();
    assert!(text.contains(from), "{from}");
    let folder = Path::new(EXPERIMENT).parent().unwrap().canonicalize().unwrap();
    let topologies = folder.with_file_name("containerlab");
    let text = text.replace("../containerlab", topologies.to_str().unwrap());
    let text = text.replace("seeds = 100", "seeds = 4").replacen(from, to, 1);
    let file = place.join("spraying.toml");
    fs::write(&file, text).unwrap();
    let settings =
        Settings { file, out: place.join("out"), threads: 2, shard: None, command: String::new() };
    run(&settings, &|_| Ok(()), &AtomicBool::new(false))
}

#[test]
fn an_experiment_is_simulated_from_its_own_file() {
    let place = Place::new();
    let outcome = simulated(&place, "max = 100", "max = 100").unwrap();
    assert_eq!((outcome.summary.len(), outcome.unfinished.len()), (3 * 7, 0));
    let mmr = |queue_pairs: usize, dataplane: &str| {
        let case = format!("spraying/traffic.0.flows={queue_pairs}");
        let own = |row: &&study::simulation::Row| row.case == case && row.scheme == dataplane;
        outcome.summary.iter().find(own).unwrap().mmr["spine-spine"]
    };
    // One path for one queue pair; two and four queue pairs on as many of the four circuits.
    assert_eq!([1, 2, 4].map(|number| mmr(number, "qp-pin").round()), [4.0, 2.0, 1.0]);
    assert_eq!(mmr(1, "qp-hash"), 4.0);
    for scheme in ["prime-like", "bitmap", "oblivious"] {
        for number in [1, 2, 4] {
            let sprayed = mmr(number, &format!("spray-{scheme}"));
            assert!((1.0..1.02).contains(&sprayed), "{scheme}, {number}: {sprayed}");
        }
    }
    // The copy in the results repeats the simulation.
    let copy = place.join("out/simulation.toml");
    let settings = Settings {
        file: copy,
        out: place.join("again"),
        threads: 2,
        shard: None,
        command: String::new(),
    };
    let again = run(&settings, &|_| Ok(()), &AtomicBool::new(false)).unwrap();
    assert_eq!(again.summary, outcome.summary);
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let place = Place::new();
    for (from, to, problem) in [
        ("policy = \"qp-pin\"", "policy = \"qp-bins\"", "qp-hash, qp-pin and spray, not qp-bins"),
        ("from = \"host1\"", "", "set 'from' and 'to' in [traffic]"),
        ("[sweep]", "[[variant]]\nname = \"a\"\n[sweep]", "simulates the stream of an experiment"),
        ("end = \"60s\"", "name = \"x\"", "'name' of [simulation] follows from the experiment"),
        ("end = \"60s\"", "ends = \"60s\"", "unknown field `ends`"),
    ] {
        let text = simulated(&place, from, to).expect_err(to).to_string();
        assert!(text.contains(problem), "{text}");
    }
}

/// Threads do not change them either. What they cannot simulate names the case.
#[test]
fn hosts_can_have_real_vteps() {
    let place = Place::new();
    let file = FILE.replace("[sweep]", "[hosts]\nkind = \"real\"\n\n[sweep]");
    let problem = |text: &str, out: &str| {
        fs::write(place.join("small.toml"), text).unwrap();
        place.run(out, 1, None).unwrap_err().to_string()
    };
    let says = problem(&file, "hashed");
    assert!(says.contains("small/") && says.contains("over known paths"), "{says}");
    let known = file.replace("scheme = \"ecmp\"\nvalues = 1", "scheme = \"bitmap\"");
    let says = problem(&known.replace("leaves = 4", "leaves = 9"), "many");
    assert!(says.contains("18 hosts are too many"), "{says}");
    fs::write(place.join("small.toml"), &known).unwrap();
    place.run("one", 1, None).unwrap();
    place.run("two", 2, None).unwrap();
    assert_eq!(place.lines("one").len(), 2 * 2 * 3);
    assert_eq!(place.lines("one"), place.lines("two"));
}
