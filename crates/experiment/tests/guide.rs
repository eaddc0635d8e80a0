//! The examples of `docs/guide/experiments.md` are files that can be read.
#![cfg(test)]

use experiment::Experiment;
use quantity::Kind;

/// The code blocks of the page, without their indentation.
fn blocks() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/experiments.md");
    let page = std::fs::read_to_string(page).unwrap();
    let lines = |block: &str| {
        block.lines().skip(1).map(|line| format!("{}\n", line.trim_start())).collect()
    };
    page.split("```").skip(1).step_by(2).map(lines).collect()
}

fn block(with: &str) -> String {
    let found = blocks().into_iter().find(|block| block.contains(with));
    found.unwrap_or_else(|| panic!("no example has '{with}'"))
}

#[test]
fn the_example_is_an_experiment() {
    let experiment = Experiment::parse("mine.toml".as_ref(), &block("name = \"mine\"")).unwrap();
    assert_eq!((experiment.name.as_str(), experiment.dataplanes.len()), ("mine", 4));
}

#[test]
fn the_example_of_a_job_runs_beside_a_workload() {
    let workload = "[workload]\ncollective = \"all-reduce-ring\"\nbytes = 1000\n[traffic]\nsites = [[\"host1\"], [\"host4\"]]\n";
    let text = format!("{}\n{workload}\n{}", block("name = \"mine\""), block("[[job]]"));
    let experiment = Experiment::parse("mine.toml".as_ref(), &text).unwrap();
    let jobs =
        |variant: usize| experiment.jobs(experiment.variants.get(variant).map(|of| &of.name));
    assert_eq!((jobs(0).count(), jobs(1).count()), (0, 1));
}

#[test]
fn the_page_of_units_has_all_units() {
    let page = include_str!("../../../docs/reference/units.md");
    let row = |kind: &str| {
        let mut rows = page.lines().filter(|line| line.starts_with(&format!("| {kind} |")));
        rows.next().unwrap_or_else(|| panic!("no row for {kind}"))
    };
    for (name, kind) in
        [("time", Kind::TIME), ("size", Kind::SIZE), ("rate", Kind::RATE), ("share", Kind::SHARE)]
    {
        for unit in kind.units() {
            assert!(row(name).contains(&format!("`{unit}`")), "{unit}: {}", row(name));
        }
    }
}
