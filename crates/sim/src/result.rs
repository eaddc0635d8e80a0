//! The line of a run in `results.jsonl`. Its keys are those of the reference runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::{FlowOutcome, Outcome};
use crate::scenario::Scenario;

/// The distribution of the times of flows, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The number of flows that finished.
    pub flows: usize,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The value that one of a hundred exceeds.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Spread {
    /// The distribution of these times. `None` without times.
    fn new(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let flows = times.len();
        let at = |share: f64| {
            let at = (share * flows as f64) as usize;
            times.get(at.min(flows.checked_sub(1)?)).copied().map(rounded)
        };
        Some(Self {
            flows,
            mean: rounded(times.iter().sum::<f64>() / flows as f64),
            p50: at(0.5)?,
            p99: at(0.99)?,
            max: times.last().copied().map(rounded)?,
        })
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Line {
    /// The case.
    pub case: String,
    /// The scheme: the label of the variant.
    pub scheme: String,
    /// The seed.
    pub seed: u64,
    /// Flows that finished.
    pub finished: usize,
    /// Flows.
    pub expected: usize,
    /// 0, or 1 if flows did not finish.
    pub status: u8,
    /// The end of the last flow in microseconds.
    pub completion: Option<f64>,
    /// The times of all flows, and of groups of them: `fct-ordered` and `fct-sprayed`, `fct-incast`
    /// and `fct-background`, or `fct-job-0` and so on.
    #[serde(flatten)]
    pub fct: BTreeMap<String, Spread>,
    /// Data packets that were sent for the first time.
    pub packets: u64,
    /// Packets that were repeated.
    pub retransmitted: u64,
    /// Probes after a timeout.
    pub timeouts_rts: u64,
    /// Acknowledgements.
    pub acks: u64,
    /// Negative acknowledgements.
    pub nacks: u64,
    /// Steps of the simulation.
    pub events: u64,
    /// The load of the most loaded link as a multiple of the mean, by the tiers that it joins, such
    /// as `leaf-agg`.
    pub mmr: BTreeMap<String, f64>,
    /// What flows wait for that did not finish; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
    /// CPU time in seconds.
    pub user_s: f64,
    /// Time in seconds.
    pub wall_s: f64,
    /// The most memory of the program so far in KiB.
    pub peak_kib: u64,
}

/// The group of each flow.
fn groups(scenario: &Scenario) -> Vec<Option<String>> {
    let flows = &scenario.flows;
    let count = |key: fn(&crate::traffic::Flow) -> u32| {
        let mut counts = BTreeMap::new();
        flows.iter().for_each(|flow| *counts.entry(key(flow)).or_insert(0) += 1);
        counts.into_iter().max_by_key(|&(_, count)| count).unwrap_or_default()
    };
    let several = flows.iter().any(|flow| flow.job > 0);
    let ordered = flows.iter().any(|flow| flow.ordered);
    let (hot, targets) = count(|flow| flow.target);
    let (_, sources) = count(|flow| flow.source);
    let incast = targets > 1 && sources == 1;
    let group = |flow: &crate::traffic::Flow| match () {
        () if several => Some(format!("job-{}", flow.job)),
        () if ordered => Some(if flow.ordered { "ordered" } else { "sprayed" }.to_owned()),
        () if incast && flow.target == hot => Some("incast".to_owned()),
        () if incast => Some("background".to_owned()),
        () => None,
    };
    flows.iter().map(group).collect()
}

impl Line {
    /// The line of a run, without times of the machine.
    #[must_use]
    pub fn new(
        case: &str,
        scheme: &str,
        seed: u64,
        scenario: &Scenario,
        outcome: &Outcome,
    ) -> Self {
        let times = |flows: &[&FlowOutcome]| {
            Spread::new(flows.iter().filter_map(|flow| flow.time()).collect())
        };
        let mut by_group = BTreeMap::<String, Vec<&FlowOutcome>>::new();
        for (group, flow) in groups(scenario).into_iter().zip(&outcome.flows) {
            by_group.entry("fct".to_owned()).or_default().push(flow);
            if let Some(group) = group {
                by_group.entry(format!("fct-{group}")).or_default().push(flow);
            }
        }
        let finished = outcome.flows.iter().filter(|flow| flow.end.is_some()).count();
        Self {
            case: case.to_owned(),
            scheme: scheme.to_owned(),
            seed,
            finished,
            expected: outcome.flows.len(),
            status: u8::from(finished < outcome.flows.len()),
            completion: outcome.completion().map(rounded),
            fct: by_group
                .into_iter()
                .filter_map(|(group, flows)| Some((group, times(&flows)?)))
                .collect(),
            packets: outcome.packets,
            retransmitted: outcome.retransmitted,
            timeouts_rts: outcome.probes,
            acks: outcome.acks,
            nacks: outcome.nacks,
            events: outcome.events,
            mmr: balance(outcome),
            waiting: outcome.unfinished.iter().map(ToString::to_string).collect(),
            user_s: 0.0,
            wall_s: 0.0,
            peak_kib: 0,
        }
    }

    /// Whether two lines agree, but for times of the machine.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        let Self { user_s, wall_s, peak_kib, .. } = *self;
        *self == Self { user_s, wall_s, peak_kib, ..other.clone() }
    }
}

/// The balance of each tier of links, by the names of its nodes without their numbers.
fn balance(outcome: &Outcome) -> BTreeMap<String, f64> {
    let kind = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let mut tiers = BTreeMap::new();
    for port in &outcome.ports {
        if port.tiers.0 > 0 && port.tiers.1 > 0 {
            let (from, to) = &port.ends;
            tiers.insert(port.tiers, format!("{}-{}", kind(from), kind(to)));
        }
    }
    let ratio = |(tiers, name)| Some((name, rounded(outcome.max_mean_ratio(tiers)?)));
    tiers.into_iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    #[test]
    fn a_line_has_the_keys_of_the_reference() {
        let spraying = reference::spraying("bitmap-64").unwrap();
        let mut scenario = reference::scenario("ordered-25%", spraying, 128, 1);
        scenario.flows.truncate(20);
        let outcome = crate::run(&scenario, 1);
        let line = Line::new("small", "bitmap-64", 1, &scenario, &outcome);
        let value = serde_json::to_value(&line).unwrap();
        for key in [
            "case",
            "scheme",
            "seed",
            "finished",
            "expected",
            "status",
            "completion",
            "fct",
            "fct-ordered",
            "fct-sprayed",
            "packets",
            "retransmitted",
            "timeouts-rts",
            "acks",
            "nacks",
            "events",
            "user-s",
            "wall-s",
            "peak-kib",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!((line.finished, line.status), (20, 0));
        assert!(line.mmr.contains_key("leaf-agg") && line.mmr.contains_key("core-agg"));
        let back: Line = serde_json::from_value(value).unwrap();
        assert_eq!(back, line);
        assert!(back.agrees(&Line { wall_s: 3.0, ..line.clone() }));
        assert!(!back.agrees(&Line { acks: 0, ..line }));
    }

    #[test]
    fn percentiles() {
        let spread = Spread::new((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max, spread.mean), (51.0, 100.0, 100.0, 50.5));
        assert_eq!(Spread::new(Vec::new()), None);
    }
}
