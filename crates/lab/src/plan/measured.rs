//! What `lab run` has measured of a plan.

use std::collections::BTreeMap;
use std::path::Path;

use experiment::Run;
use experiment::compare::Results;
use experiment::statistics::Statistics;
use planner::Job;
use planner::plan::Plan;
use serde::Serialize;

use super::{PlanError, traffic_file};
use crate::run;

/// The confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// The mean time of an iteration, as `lab run` measured it, with what hosts compute before they send.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Measured {
    /// The variant of the experiment.
    pub variant: String,
    /// The dataplane.
    pub dataplane: String,
    /// Queue pairs between two hosts.
    pub queue_pairs: usize,
    /// The number of runs.
    pub runs: usize,
    /// Seconds of an iteration.
    pub seconds: f64,
    /// The 95 % confidence interval of the mean is so wide to each side, in seconds. Absent with one
    /// run.
    pub half_width: Option<f64>,
}

/// Iterations of a plan. If variants have names of placements, such as `data-out`, those of the
/// plan's placement count.
fn of(runs: &[Run], plan: &Plan) -> Vec<Measured> {
    let mut times = BTreeMap::<(String, String, usize), Vec<f64>>::new();
    for run in runs {
        let iterations = run.workload.as_ref().map_or(0, |workload| workload.iterations);
        if iterations > 0 {
            let Run { key, .. } = run;
            let queue_pairs = key.point.queue_pairs.get();
            let name = (key.point.variant().to_owned(), key.dataplane.clone(), queue_pairs);
            times.entry(name).or_default().push(run.seconds / f64::from(iterations));
        }
    }
    let placement = format!("{}-out", plan.boundary);
    if times.keys().any(|(variant, ..)| *variant == placement) {
        times.retain(|(variant, ..), _| *variant == placement);
    }
    let measured = |((variant, dataplane, queue_pairs), times): ((_, _, _), Vec<f64>)| {
        let statistics = Statistics::of(&times, CONFIDENCE)?;
        let half_width = Some(statistics.half_width).filter(|half_width| half_width.is_finite());
        let (runs, seconds) = (statistics.count, statistics.mean);
        Some(Measured { variant, dataplane, queue_pairs, runs, seconds, half_width })
    };
    times.into_iter().filter_map(measured).collect()
}

/// Shares by which numbers of a workload may differ from those of a plan.
const ROUNDING: f64 = 0.02;

/// The values that make a workload that of a plan.
const KEYS: [&str; 6] = [
    "collective",
    "bytes",
    "compute.seconds",
    "pipeline.micro-batches",
    "pipeline.forward",
    "pipeline.backward",
];

/// A value of a table by its keys.
fn value<'a>(table: &'a toml::Table, keys: &str) -> Option<&'a toml::Value> {
    let mut keys = keys.split('.');
    let first = table.get(keys.next()?)?;
    keys.try_fold(first, |value, key| value.get(key))
}

/// Whether two values are the same, apart from rounding.
fn is_same(found: Option<&toml::Value>, planned: Option<&toml::Value>) -> bool {
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|n| n as f64));
    match (found.and_then(number), planned.and_then(number)) {
        (Some(found), Some(planned)) => (found - planned).abs() <= ROUNDING * planned.abs(),
        _ => found == planned,
    }
}

/// Whether the workload of an experiment sends what a plan does.
fn compare(path: &Path, found: &toml::Table, planned: &toml::Table) -> Result<(), PlanError> {
    // A pipeline says how long stages compute; the rest is the optimizer.
    let is_pipeline = planned.contains_key("pipeline");
    let keys = KEYS.into_iter().filter(|key| !(is_pipeline && *key == "compute.seconds"));
    for key in keys.filter(|key| is_pipeline || !key.starts_with("pipeline.")) {
        let (found, planned) = (value(found, key), value(planned, key));
        if !is_same(found, planned) {
            let text =
                |value: Option<&toml::Value>| value.map_or("absent".into(), ToString::to_string);
            let (found, planned) = (text(found), text(planned));
            return Err(PlanError::OtherJob { path: path.to_owned(), key, found, planned });
        }
    }
    Ok(())
}

/// Reads the iterations of a plan from the results of an experiment.
///
/// # Errors
/// [`PlanError`], if the directory has none, or those of another workload.
pub(super) fn read(directory: &Path, job: &Job, plan: &Plan) -> Result<Vec<Measured>, PlanError> {
    let Results { experiment, runs, .. } = run::load(directory)?;
    let found = of(&runs, plan);
    if found.is_empty() {
        return Err(PlanError::NoIterations(directory.to_owned()));
    }
    let text = traffic_file(Path::new("workload.toml"), job, plan)?;
    let planned = text.parse::<toml::Table>().unwrap_or_default();
    let planned = planned.get("workload").and_then(toml::Value::as_table);
    let points = runs.iter().map(|run| &run.key.point);
    for point in points.filter(|point| found.iter().any(|one| one.variant == point.variant())) {
        if let Some(planned) = planned {
            compare(directory, &experiment.workload(point.index()), planned)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use experiment::record::parse_lines;

    use super::*;
    use crate::plan::tests::shipped;

    const RUN: &str = r#"{"fabric":"circuits2","dataplane":"qp-pin","queue_pairs":4,
"inner_port":"constant"VARIANT,"repetition":0,"seed":1,"unix_time":1,"tiers":[],"sent":1,"seconds":SECONDS,
"busy":0.1,"workload":{"iterations":ITERATIONS,"milliseconds":1.0,"worst":1.0,"bus_bandwidth":1.0,
"message_p99":1.0,"retransmitted":0,"busy":0.1}}"#;

    fn line(variant: Option<&str>, seconds: f64, iterations: u32) -> String {
        let variant =
            variant.map_or(String::new(), |name| format!(", \"variant\": [0, \"{name}\"]"));
        let text = RUN.replace("VARIANT", &variant).replace("SECONDS", &seconds.to_string());
        text.replace("ITERATIONS", &iterations.to_string()).replace('\n', "") + "\n"
    }

    #[test]
    fn iterations_of_the_placement_count() {
        let (_, _, outcome) = shipped(false);
        let plan = &outcome.found.plans[0].plan;
        let own = format!("{}-out", plan.boundary);
        let text =
            [line(Some(&own), 3.0, 2), line(Some(&own), 3.2, 2), line(Some("other"), 9.0, 2)];
        let (runs, _) = parse_lines::<Run>(&text.concat()).unwrap();
        let found = of(&runs, plan);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.seconds, one.runs, one.queue_pairs), (1.55, 2, 4));
        assert!(one.half_width.is_some_and(|half_width| half_width > 0.1));
        let other = of(&runs[2..], plan);
        assert_eq!((other[0].seconds, other[0].half_width), (4.5, None));
        let (runs, _) = parse_lines::<Run>(&line(None, 9.0, 0)).unwrap();
        assert_eq!(of(&runs, plan), []);
    }

    #[test]
    fn results_of_another_job_are_an_error() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let planned = table(
            "collective = \"all-reduce-ring\"\nbytes = 14680064\n\
                             compute = { distribution = \"fixed\", seconds = 0.4 }\n",
        );
        let with = |from: &str, to: &str| {
            let text = planned.to_string();
            assert!(text.contains(from), "{text}");
            compare(Path::new("results"), &table(&text.replace(from, to)), &planned)
        };
        with("0.4", "0.401").unwrap();
        for (from, to, key) in [
            ("14680064", "1048576", "bytes"),
            ("all-reduce-ring", "pipeline", "collective"),
            ("0.4", "0.5", "compute.seconds"),
        ] {
            let text = with(from, to).unwrap_err().to_string();
            assert!(text.contains(key) && text.contains("--traffic FILE.toml"), "{text}");
        }
    }
}
