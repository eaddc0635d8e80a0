//! What `lab run` has measured of a plan.

use std::collections::BTreeMap;
use std::path::Path;

use experiment::Run;
use experiment::statistics::Statistics;
use planner::plan::Plan;
use serde::Serialize;

use super::PlanError;
use fabric::owner::Folder;

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

/// Reads the iterations of a plan from the results of an experiment.
///
/// # Errors
/// [`PlanError`], if the directory has none.
pub(super) fn read(directory: &Path, plan: &Plan) -> Result<Vec<Measured>, PlanError> {
    let path = directory.join("runs.jsonl");
    let failed = |source| PlanError::Io { path: path.clone(), source };
    let folder = Folder::existing(directory).map_err(failed)?;
    let text = folder.read_text("runs.jsonl").map_err(failed)?;
    let (runs, _) = Run::parse_lines(&text).map_err(|(_, error)| failed(error.into()))?;
    let found = of(&runs, plan);
    if found.is_empty() { Err(PlanError::NoIterations(path)) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
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
        let (runs, _) = Run::parse_lines(&text.concat()).unwrap();
        let found = of(&runs, plan);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.seconds, one.runs, one.queue_pairs), (1.55, 2, 4));
        assert!(one.half_width.is_some_and(|half_width| half_width > 0.1));
        let other = of(&runs[2..], plan);
        assert_eq!((other[0].seconds, other[0].half_width), (4.5, None));
        let (runs, _) = Run::parse_lines(&line(None, 9.0, 0)).unwrap();
        assert_eq!(of(&runs, plan), []);
    }
}
