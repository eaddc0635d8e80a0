//! The tables of `docs/guide/planner.md` are what the planner finds for the shipped jobs.
#![cfg(test)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use planner::plan::Boundary;
use study::plan::{Outcome, PlanError, PlanFile, Settings, Source, What, plan, traffic_file};
use study::simulation;

const EXAMPLE: &str = include_str!("../../../deploy/plans/gpt3-two-sites.toml");
const EMULATED: &str = include_str!("../../../deploy/plans/emulated.toml");
const PLACEMENT: &str = include_str!("../../../deploy/plans/placement.toml");

fn outcome(text: &str, settings: &Settings) -> Outcome {
    let (file, job) = PlanFile::parse(Path::new("job.toml"), text).unwrap();
    plan(&file, &job, settings, &|_| Ok(())).unwrap()
}

fn settings(top: usize) -> Settings {
    Settings { top, threads: 2, explain: true, sweep: false, measured: Vec::new() }
}

/// The three fastest plans of the example, and the fastest with replicas at both sites.
fn example() -> String {
    let outcome = outcome(EXAMPLE, &settings(3));
    let baseline = outcome.baseline.as_ref().unwrap().seconds;
    let mut text = String::from(
        "| time | compute | inside | across | bubble | memory | speed-up | plan |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for ranked in &outcome.found.plans {
        let iteration = &ranked.iteration;
        let seconds = iteration.seconds;
        let share = |part: f64| format!("{:.1} %", 100.0 * part / seconds);
        let _ = writeln!(
            text,
            "| {seconds:.2} s | {} | {} | {} | {} | {:.0} GB | {:.2}x | {} |",
            share(iteration.compute),
            share(iteration.inside),
            share(iteration.across),
            share(iteration.bubble),
            iteration.memory.total() / 1e9,
            baseline / seconds,
            ranked.plan,
        );
    }
    let at_both = |one: &&study::plan::Alternative| one.name.starts_with("data-out");
    let mut others: Vec<_> =
        outcome.alternatives.iter().filter(at_both).map(|one| &one.best).collect();
    others.sort_by(|a, b| a.iteration.seconds.total_cmp(&b.iteration.seconds));
    for ranked in others {
        let (iteration, plan) = (&ranked.iteration, &ranked.plan);
        let across = 100.0 * iteration.across / iteration.seconds;
        let _ = writeln!(text, "| {:.2} s | | | {across:.1} % | | | | {plan} |", iteration.seconds);
    }
    let considered = outcome.found.considered;
    let (thousands, rest) = (considered / 1000, considered % 1000);
    let _ = write!(
        text,
        "\nThe baseline of the file takes {baseline:.2} s. {thousands},{rest:03} plans can be laid \
         out."
    );
    text
}

/// The job of the heat maps with other values of a key of `[search]` or `[sweep]`.
fn placement(changes: &[(&str, &str)]) -> String {
    let mut text = PLACEMENT.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

const SCHEDULES: &str = "schedule = [\"1f1b\", \"interleaved-2\", \"zb-h1\"]";
const BATCHES: &str = "batch = [128, 512, 2048, 8192]";
const RATES: &str = "bandwidth = [\"12.5gbit\", \"50gbit\", \"200gbit\", \"800gbit\"]";

/// The times of replicas and of stages at both sites, by batch and bandwidth.
fn times(text: &str) -> BTreeMap<(String, String), [f64; 2]> {
    let points = outcome(text, &Settings { sweep: true, explain: false, ..settings(1) }).sweep;
    let of = |point: study::plan::Point| {
        let time = |boundary| {
            let found = point.placements.iter().find(|(known, _)| *known == boundary);
            found.unwrap().1
        };
        ((point.x.clone(), point.y.clone()), [Boundary::Data, Boundary::Pipeline].map(time))
    };
    points.into_iter().map(of).collect()
}

/// Which placement is faster, by batch and bandwidth.
fn heat_map(text: &str) -> String {
    let times = times(text);
    let batches = ["128", "512", "2048", "8192"];
    let mut table =
        format!("| link | {} |\n", batches.map(|of| format!("batch of {of}")).join(" | "));
    table += "|---|---|---|---|---|\n";
    for rate in ["12.5", "50", "200", "800"] {
        let cell = |batch: &str| {
            let [data, pipeline] = times[&(batch.to_owned(), format!("{rate}gbit"))];
            if data <= pipeline {
                format!("**DP-out** +{:.0} %", 100.0 * (pipeline / data - 1.0))
            } else {
                format!("PP-out +{:.0} %", 100.0 * (data / pipeline - 1.0))
            }
        };
        let _ = writeln!(table, "| {rate} Gbit/s | {} |", batches.map(cell).join(" | "));
    }
    table.trim_end().to_owned()
}

/// The rate at which both placements are equally fast for a batch of 512, between two rates that
/// are 1.4 times apart.
fn border(technology: &str) -> f64 {
    let rates: Vec<f64> = (0..13).map(|step| 8.0 * 1.4_f64.powi(step)).collect();
    let named: Vec<String> = rates.iter().map(|rate| format!("\"{rate:.4}gbit\"")).collect();
    let schedules = format!("{SCHEDULES}\ntechnology = [{technology}]");
    let text = placement(&[
        (SCHEDULES, &schedules),
        (BATCHES, "batch = [512]"),
        (RATES, &format!("bandwidth = [{}]", named.join(", "))),
    ]);
    let times = times(&text);
    let difference = |rate: f64| {
        let [data, pipeline] = times[&("512".to_owned(), format!("{rate:.4}gbit"))];
        (data / pipeline).ln()
    };
    let (two, [slow, fast]) = rates
        .windows(2)
        .map(|two| (two, [two[0], two[1]].map(difference)))
        .find(|(_, [slow, fast])| *slow > 0.0 && *fast <= 0.0)
        .unwrap();
    two[0] * 1.4_f64.powf(slow / (slow - fast))
}

fn borders() -> String {
    let mut text = String::from("| `[search]` `technology` | link |\n|---|---|\n");
    for (policy, queue_pairs) in [("ecmp", 1), ("ecmp", 4), ("qp-pin", 4), ("spray", 1)] {
        let technology = format!("{{ policy = \"{policy}\", queue-pairs = {queue_pairs} }}");
        let _ = writeln!(text, "| `[{technology}]` | {:.0} Gbit/s |", border(&technology));
    }
    text.trim_end().to_owned()
}

/// Replaces the `at`-th text between a line that begins so and the line that ends so.
fn replace(page: &str, begins: &str, ends: &str, at: usize, with: &str) -> String {
    let (start, _) = page.match_indices(begins).nth(at).unwrap_or_else(|| panic!("{begins}"));
    let rest = &page[start..];
    let end = rest.find(ends).unwrap_or(rest.len());
    format!("{}{with}{}", &page[..start], &rest[end..])
}

#[test]
fn the_tables_of_the_guide_are_up_to_date() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/planner.md"));
    let found = fs::read_to_string(&path).unwrap();
    let more = "schedule = [\"1f1b\", \"interleaved-2\", \"zb-h1\", \"up-down\", \"wave\"]";
    let mut page = replace(&found, "| time | compute |", "\n\n- **compute**", 0, &example());
    for (at, text) in [PLACEMENT.to_owned(), placement(&[(SCHEDULES, more)])].iter().enumerate() {
        page = replace(&page, "| link | batch of", "\n\n", at, &heat_map(text));
    }
    page = replace(&page, "| `[search]` `technology`", "\n\n", 0, &borders());
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    assert!(found == page, "run VTEPD_UPDATE_DOCS=1 cargo test -p lab --test plans; now: {page}");
}

/// The shipped simulation sends what the plans of `emulated.toml` do, and takes as long as predicted
/// where packets are spread evenly.
#[test]
fn simulated_traffic_of_a_plan_takes_as_long_as_predicted() {
    let simulations = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/simulations"));
    let out = tempfile::tempdir().unwrap();
    let run = simulation::Settings {
        file: simulations.join("planned.toml"),
        out: out.path().to_owned(),
        threads: 2,
        shard: None,
        command: String::new(),
    };
    simulation::run(&run, &|_| Ok(()), &AtomicBool::new(false)).unwrap();
    let both = "boundary = [\"data\", \"pipeline\"]";
    for boundary in ["data", "pipeline"] {
        let text = EMULATED.replace(both, &format!("boundary = [\"{boundary}\"]"));
        let (file, job) = PlanFile::parse(Path::new("job.toml"), &text).unwrap();
        let settings =
            Settings { explain: false, measured: vec![out.path().to_owned()], ..settings(1) };
        let outcome = plan(&file, &job, &settings, &|_| Ok(())).unwrap();
        let matrix = simulations.join(format!("planned-{boundary}.cm"));
        let written = traffic_file(&matrix, &job, &outcome.found.plans[0].plan).unwrap();
        assert_eq!(fs::read_to_string(&matrix).unwrap(), written);
        let [even, .., random] = &outcome.measured[..] else { panic!("{:?}", outcome.measured) };
        assert_eq!((even.source, even.what, even.runs), (Source::Simulation, What::Traffic, 5));
        assert!(even.variant.ends_with(&format!("planned-{boundary}.cm")), "{even:?}");
        assert!(even.error().abs() < 0.02, "{even:?}");
        assert!(random.dataplane == "ecmp" && random.seconds > 3.0 * even.seconds, "{random:?}");
        let other = text.replace("hidden = 512", "hidden = 1024");
        let (file, job) = PlanFile::parse(Path::new("job.toml"), &other).unwrap();
        let error = plan(&file, &job, &settings, &|_| Ok(())).unwrap_err();
        assert!(matches!(error, PlanError::OtherTraffic(_)), "{error}");
    }
}
