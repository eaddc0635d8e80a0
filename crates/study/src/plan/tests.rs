//! The job file, the search of a shipped job, and its report.

use std::path::Path;

use planner::Evaluator;
use planner::plan::Boundary;

use super::{Outcome, PlanFile, Settings, explanation, page, plan, table, traffic_file};

const SHIPPED: &str = include_str!("../../../../deploy/plans/gpt3-two-sites.toml");

fn error(from: &str, to: &str) -> String {
    assert!(SHIPPED.contains(from), "{from}");
    let text = SHIPPED.replacen(from, to, 1);
    PlanFile::parse(Path::new("job.toml"), &text).unwrap_err().to_string()
}

#[test]
fn errors_name_the_place_and_what_to_write() {
    let mut wrong = Vec::new();
    for (from, to, place, says) in [
        ("\"a100\"", "\"b100\"", "line 4, column 11", "write a100, gh200"),
        ("batch = 1536", "batch = 0", "line 5, column 9", "1 to 1048576"),
        ("\"400gbit\"", "\"400\"", "line 16, column 13", "such as 400gbit"),
        ("gpus = [256, 256]", "gpus = []", "line 15, column 8", "[256, 256]"),
        ("paths = 4", "paths = 5000", "line 19, column 9", "1 to 4096"),
        ("hidden = 12288", "gather-bytes = 1\nhidden = 12288", "line 9, column 16", "or 1 with"),
        ("paths = 4", "packet = 32", "line 19, column 10", "64 to 65536"),
        ("paths = 4", "headers = 1025", "line 19, column 11", "0 to 1024"),
        ("paths = 4", "packet = \"4kB\"", "line 19, column 10", "a whole number"),
        ("loss = 0.001", "loss = 100", "line 18, column 8", "0 to 99 percent"),
        ("loss = 0.001", "oversubscription = inf", "line 18, column 20", "1 to 1000000"),
        ("gpus = [256, 256]", "gpus = [4294967295, 256]", "line 15, column 8", "1048576 in all"),
        ("tensor = 8", "tensor = 0", "line 23, column 10", "1 to 1048576"),
        ("\"25gbit\"", "\"0mbit\"", "line 35, column 13", "8kbit"),
        ("\"a100\"", "{ gpus = 8, oprations = 1e15 }", "line 4, column 23", "oprations"),
        ("\"a100\"", "7", "line 4, column 11", "the name of a machine"),
        ("\"1f1b\"", "\"2f2b\"", "line 27, column 12", "write 1f1b"),
        ("hidden = 12288", "hiden = 12288", "line 9, column 1", "hiden"),
        ("latency = [", "loss = [1.0]\nlatency = [", "line 34, column 1", "two quantities"),
    ] {
        let text = error(from, to);
        let is_right = text.starts_with(&format!("job.toml, {place}: ")) && text.contains(says);
        wrong.extend((!is_right).then(|| format!("{from}: {text}")));
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn the_other_shipped_job_can_be_read() {
    let text = include_str!("../../../../deploy/plans/placement.toml");
    let (file, job) = PlanFile::parse(Path::new("placement.toml"), text).unwrap();
    assert_eq!(file.sweep.unwrap().names(), ["batch", "bandwidth"]);
    assert_eq!(job.sites.total(), 64);
}

#[test]
fn nonsense_in_other_tables_is_named() {
    let machine = SHIPPED.replacen("machine = \"a100\"\n", "", 1);
    let table = "[machine]\ndescription = \"\"\ngpus = 8\noperations = 1e15\nmemory = 8e10\n\
                 reserved = 0.0\nmemory-rate = 1e12\nnode-link = 1e11\nnetwork-link = 1e10\n\
                 [machine.efficiency]\nproducts = 0.5\nmemory = 0.5\nnode-link = 0.5\n\
                 network-link = 0.5\nlayer-overhead = 0.0\n";
    let balance = "[[balance]]\npolicy = \"ecmp\"\nqueue-pairs = 8\nimbalance = inf\n";
    let of_search = "[search]\npipeline = [0]\n";
    for (base, more, key, says) in [
        (SHIPPED, balance.to_owned(), "imbalance", "1 to 4096"),
        (SHIPPED, balance.replace("8\n", "0\n"), "queue-pairs", "1 to 65536"),
        (SHIPPED, of_search.to_owned(), "pipeline", "1 to"),
        (
            machine.as_str(),
            table.replace("products = 0.5", "products = nan"),
            "products",
            "1e-6 to 1",
        ),
        (machine.as_str(), table.replace("memory = 8e10", "memory = inf"), "memory", "to 1e18"),
        (machine.as_str(), table.replace("reserved = 0.0", "reserved = 9e10"), "reserved", "0 to"),
        (
            machine.as_str(),
            table.replace("overhead = 0.0", "overhead = -1.0"),
            "overhead",
            "0 to 1000",
        ),
    ] {
        let text = format!("{base}\n{more}");
        let error = PlanFile::parse(Path::new("job.toml"), &text).unwrap_err().to_string();
        let line = error.split("line ").nth(1).and_then(|rest| rest.split(',').next());
        let line = line.and_then(|line| line.parse::<usize>().ok()).unwrap_or_default();
        let named = text.lines().nth(line.max(1) - 1).unwrap_or_default();
        assert!(named.contains(key) && error.contains(says), "{key}: {error}: {named}");
    }
}

#[test]
fn messages_have_single_spaces() {
    let error = super::PlanError::Emulation("plan".into()).to_string();
    assert!(!error.contains("  "), "{error}");
}

/// The shipped job with few plans, so that the test is quick.
pub(super) fn shipped(sweep: bool) -> (PlanFile, planner::Job, Outcome) {
    let few = "\n[search]\ntensor = [8]\npipeline = [8]\nmicro-batch = [1]\n\
               schedule = [\"1f1b\"]\nsharding = [\"ddp\"]\nrecompute = [\"full\"]\n";
    let text = format!("{SHIPPED}{few}");
    let (file, job) = PlanFile::parse(Path::new("job.toml"), &text).unwrap();
    let settings = Settings { top: 3, threads: 1, explain: true, sweep, measured: Vec::new() };
    let outcome = plan(&file, &job, &settings, &|_| Ok(())).unwrap();
    (file, job, outcome)
}

#[test]
fn the_shipped_job_has_plans_and_a_speed_up() {
    let (_, job, outcome) = shipped(false);
    let times: Vec<f64> = outcome.found.plans.iter().map(|one| one.iteration.seconds).collect();
    assert!(times.len() == 2 && times.is_sorted(), "{times:?}");
    let baseline = outcome.baseline.as_ref().unwrap().seconds;
    let lines = table(&outcome);
    assert!(lines.contains(&format!("{:.2}x", baseline / times[0])), "{lines}");
    assert!(lines.contains("the baseline takes"), "{lines}");
    let text = explanation(&job, &outcome);
    for says in ["Fastest: t8 p8 d8", "link between sites", "data-out, ddp", "pipeline-out, ddp"] {
        assert!(text.contains(says), "{says}: {text}");
    }
    let best = &outcome.found.plans[0].plan;
    let matrix = traffic_file(Path::new("a.cm"), &job, best).unwrap();
    assert!(matrix.starts_with("Nodes 512\n"), "{matrix}");
    let flows = traffic_file(Path::new("a.json"), &job, best).unwrap();
    assert!(flows.contains("\"purpose\""), "{flows}");
}

/// Explorer's rule (DP-out for dense models) and CrossPipe's (PP-out) are both there, each under its
/// own conditions.
#[test]
fn both_placements_win_somewhere() {
    let (file, job, outcome) = shipped(true);
    assert_eq!(outcome.sweep.len(), 20);
    let wins = |boundary: Boundary| {
        let best = outcome.sweep.iter().filter_map(|point| point.best.as_ref());
        best.filter(|best| best.plan.boundary == boundary).count()
    };
    let (data, pipeline) = (wins(Boundary::Data), wins(Boundary::Pipeline));
    assert!(data > 0 && pipeline > 0, "data {data}, pipeline {pipeline}");
    let spans = Evaluator::new(&job).spans(&outcome.found.plans[0].plan).unwrap();
    let text = page(&file, &job, &outcome, &spans);
    for says in ["<svg", "stage 7", "pipeline-out", "data-out", "1.6tbit"] {
        assert!(text.contains(says), "{says}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "a figure is missing");
}
