//! What `lab run` has measured of a plan, and `lab sim` simulated.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use experiment::Run;
use experiment::compare::Results;
use experiment::statistics::Statistics;
use planner::Job;
use planner::plan::{Boundary, Plan};
use planner::search::Ranked;
use serde::Serialize;
use sim::matrix::Matrix;
use sim::traffic::{Flow, Start};

use super::{PlanError, traffic_file};
use crate::run;
use crate::simulation::{self, Row, recorded_matrices};

/// The confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// Where a time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `lab run`.
    Run,
    /// `lab sim`.
    Simulation,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "lab run",
            Self::Simulation => "lab sim",
        })
    }
}

/// What a time is that of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// An iteration, with what hosts compute.
    Iteration,
    /// What is sent between sites in an iteration, from the start of the first message to the end of
    /// the last one.
    Traffic,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iteration => "iteration",
            Self::Traffic => "traffic alone",
        })
    }
}

/// A mean time, as `lab run` measured or `lab sim` simulated it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Measured {
    /// Where it comes from.
    pub source: Source,
    /// What it is the time of.
    pub what: What,
    /// The variant of the experiment, or the case of the simulation.
    pub variant: String,
    /// The dataplane, or the scheme.
    pub dataplane: String,
    /// Queue pairs between two hosts, in an experiment.
    pub queue_pairs: Option<usize>,
    /// The number of runs, or of seeds.
    pub runs: usize,
    /// Seconds.
    pub seconds: f64,
    /// The 95 % confidence interval of the mean is so wide to each side, in seconds. Absent with one
    /// run.
    pub half_width: Option<f64>,
    /// Seconds as they are predicted.
    pub predicted: f64,
}

impl Measured {
    /// By how much the prediction is above the time, as a share of the time.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted / self.seconds - 1.0
    }
}

/// Predicted seconds of the fastest plan.
#[derive(Debug, Clone, Copy)]
struct Predicted {
    iteration: f64,
    /// Its traffic, if all of it starts at once.
    traffic: f64,
}

/// Iterations of a plan, and with replicas at both sites also their traffic alone. If variants have
/// names of placements, such as `data-out`, those of the plan's placement count.
fn of(runs: &[Run], plan: &Plan, predicted: Predicted) -> Vec<Measured> {
    let mut times = BTreeMap::<(String, String, usize), Vec<[f64; 2]>>::new();
    for run in runs {
        let Some(workload) = run.workload.as_ref().filter(|of| of.iterations > 0) else { continue };
        let Run { key, .. } = run;
        let queue_pairs = key.point.queue_pairs.get();
        let name = (key.point.variant().to_owned(), key.dataplane.clone(), queue_pairs);
        let iteration = run.seconds / f64::from(workload.iterations);
        times.entry(name).or_default().push([iteration, workload.milliseconds / 1e3]);
    }
    let placement = format!("{}-out", plan.boundary);
    if times.keys().any(|(variant, ..)| *variant == placement) {
        times.retain(|(variant, ..), _| *variant == placement);
    }
    // Stages send between operations: their traffic is never alone.
    let parts = [(What::Iteration, predicted.iteration), (What::Traffic, predicted.traffic)];
    let parts = if plan.boundary == Boundary::Data { &parts[..] } else { &parts[..1] };
    let mut found = Vec::new();
    for (at, (what, predicted)) in parts.iter().enumerate() {
        for ((variant, dataplane, queue_pairs), times) in &times {
            let own: Vec<f64> = times.iter().filter_map(|of| of.get(at).copied()).collect();
            let Some(statistics) = Statistics::of(&own, CONFIDENCE) else { continue };
            found.push(Measured {
                source: Source::Run,
                what: *what,
                variant: variant.clone(),
                dataplane: dataplane.clone(),
                queue_pairs: Some(*queue_pairs),
                runs: statistics.count,
                seconds: statistics.mean,
                half_width: Some(statistics.half_width).filter(|width| width.is_finite()),
                predicted: *predicted,
            });
        }
    }
    found
}

/// The share by which numbers of a workload, and bytes of a flow, may differ from those of a plan.
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

/// Reads what was measured or simulated of a plan: iterations first, then traffic alone.
///
/// # Errors
/// [`PlanError`], if a directory has nothing of it, or something of another plan.
pub(super) fn read_all(
    directories: &[PathBuf],
    job: &Job,
    best: &Ranked,
) -> Result<Vec<Measured>, PlanError> {
    let plan = &best.plan;
    let flows = planner::traffic::flows(job, plan)?;
    let traffic = planner::traffic::seconds(job, plan, &flows)?;
    let predicted = Predicted { iteration: best.iteration.seconds, traffic };
    let mut all = Vec::new();
    for directory in directories {
        all.extend(if simulation::is_directory(directory) {
            of_simulation(directory, job, plan, traffic)?
        } else {
            read(directory, job, plan, predicted)?
        });
    }
    all.sort_by_key(|one| one.what == What::Traffic);
    Ok(all)
}

/// Whether a simulation sends from the start on what a plan does.
fn is_same_traffic(found: &Matrix, planned: &Matrix) -> bool {
    let ends = |flow: &Flow| (flow.source, flow.target);
    let sorted = |matrix: &Matrix| {
        let mut flows = matrix.flows.clone();
        flows.sort_by_key(|flow| (ends(flow), flow.bytes));
        flows
    };
    let near =
        |found: u64, planned: u64| found.abs_diff(planned) as f64 <= ROUNDING * planned as f64;
    let is_same = |(found, planned): (&Flow, &Flow)| {
        ends(found) == ends(planned)
            && near(found.bytes, planned.bytes)
            && found.start == Start::At(0)
    };
    found.flows.len() == planned.flows.len()
        && sorted(found).iter().zip(&sorted(planned)).all(is_same)
}

/// Reads the end of a plan's traffic from the results of a simulation, by case and scheme.
fn of_simulation(
    directory: &Path,
    job: &Job,
    plan: &Plan,
    predicted: f64,
) -> Result<Vec<Measured>, PlanError> {
    let other = || PlanError::OtherTraffic(directory.to_owned());
    let text = traffic_file(Path::new("traffic.cm"), job, plan)?;
    let planned = Matrix::parse(&text).map_err(|_| other())?;
    let measured = |row: Row| {
        let end = row.completion_us?;
        Some(Measured {
            source: Source::Simulation,
            what: What::Traffic,
            variant: row.case,
            dataplane: row.scheme,
            queue_pairs: None,
            runs: row.seeds,
            seconds: end.mean * 1e-6,
            half_width: Some(end.half_width * 1e-6).filter(|width| width.is_finite()),
            predicted,
        })
    };
    let all = recorded_matrices(directory)?.into_iter();
    let rows = all.filter(|(_, matrix)| is_same_traffic(matrix, &planned)).map(|(row, _)| row);
    let found: Vec<Measured> = rows.filter_map(measured).collect();
    if found.is_empty() { Err(other()) } else { Ok(found) }
}

/// Reads the iterations of a plan from the results of an experiment.
fn read(
    directory: &Path,
    job: &Job,
    plan: &Plan,
    predicted: Predicted,
) -> Result<Vec<Measured>, PlanError> {
    let Results { experiment, runs, .. } = run::load(directory)?;
    let found = of(&runs, plan, predicted);
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
        let predicted = Predicted { iteration: 1.24, traffic: 0.002 };
        let found = of(&runs, plan, predicted);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.seconds, one.runs, one.queue_pairs), (1.55, 2, Some(4)));
        assert!(one.half_width.is_some_and(|half_width| half_width > 0.1));
        assert!((one.error() + 0.2).abs() < 1e-12, "{one:?}");
        let other = of(&runs[2..], plan, predicted);
        assert_eq!((other[0].seconds, other[0].half_width), (4.5, None));
        // Replicas compute, and then send: the communication time of the runs, 1 ms.
        let replicas = Plan { boundary: Boundary::Data, ..plan.clone() };
        let both = of(&runs[2..], &replicas, predicted);
        let times: Vec<_> = both.iter().map(|one| (one.what, one.seconds, one.predicted)).collect();
        assert_eq!(times, [(What::Iteration, 4.5, 1.24), (What::Traffic, 0.001, 0.002)]);
        let (runs, _) = parse_lines::<Run>(&line(None, 9.0, 0)).unwrap();
        assert_eq!(of(&runs, plan, predicted), []);
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

    #[test]
    fn traffic_is_the_same_in_any_order_and_apart_from_rounding() {
        let matrix = |text: &str| Matrix::parse(&format!("Nodes 4\n{text}")).unwrap();
        let planned = matrix("0->2 id 1 start 0 size 1000\n3->1 id 2 start 0 size 500\n");
        let is = |text: &str| is_same_traffic(&matrix(text), &planned);
        assert!(is("3->1 id 7 start 0 size 505\n0->2 id 9 start 0 size 990\n"));
        for other in [
            "0->2 id 1 start 0 size 1000\n",
            "0->2 id 1 start 0 size 1000\n3->1 id 2 start 0 size 600\n",
            "0->2 id 1 start 0 size 1000\n2->1 id 2 start 0 size 500\n",
            "0->2 id 1 start 0 size 1000\n3->1 id 2 start 4 size 500\n",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
