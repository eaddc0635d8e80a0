//! The runs of each case and scheme, and what follows from them.

use std::collections::{BTreeMap, BTreeSet};

use experiment::statistics::Statistics;
use experiment::verdict::{Grade, Verdict};
use serde::Serialize;
use sim::result::Line;

/// The confidence of intervals.
const CONFIDENCE: f64 = 0.95;

/// A case and a scheme.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The scheme.
    pub scheme: String,
    /// The number of seeds.
    pub seeds: usize,
    /// Whether all flows finished.
    pub all_finished: bool,
    /// The end of the last flow in microseconds.
    pub completion_us: Option<Statistics>,
    /// Of the times of flows in microseconds: the mean, the 99th percentile and the largest value,
    /// by group, such as `fct` and `fct-ordered`.
    pub times_us: BTreeMap<String, [f64; 3]>,
    /// Means of counts: packets, repeated packets, acknowledgements, negative ones, probes.
    pub packets: f64,
    /// Packets that were repeated.
    pub retransmitted: f64,
    /// Acknowledgements.
    pub acks: f64,
    /// Negative acknowledgements.
    pub nacks: f64,
    /// Probes after a timeout.
    pub timeouts_rts: f64,
    /// The load of the most loaded link as a multiple of the mean, by the tiers that it joins.
    pub mmr: BTreeMap<String, f64>,
}

fn mean(lines: &[&Line], figure: impl Fn(&Line) -> f64) -> f64 {
    lines.iter().map(|line| figure(line)).sum::<f64>() / lines.len() as f64
}

fn row(lines: &[&Line]) -> Option<Row> {
    let first = lines.first()?;
    let ends: Vec<f64> = lines.iter().filter_map(|line| line.completion).collect();
    let all_finished = lines.iter().all(|line| line.status == 0);
    let of_group = |group: &String| {
        let spreads: Vec<_> = lines.iter().filter_map(|line| line.fct.get(group)).collect();
        let mean = |figure: fn(&sim::result::Spread) -> f64| {
            spreads.iter().map(|spread| figure(spread)).sum::<f64>() / spreads.len() as f64
        };
        let figures = [mean(|of| of.mean), mean(|of| of.p99), mean(|of| of.max)];
        (group.clone(), figures)
    };
    // Seeds without traffic on a tier say nothing about it.
    let of_tier = |tier: &String| {
        let found: Vec<f64> = lines.iter().filter_map(|line| line.mmr.get(tier).copied()).collect();
        (tier.clone(), found.iter().sum::<f64>() / found.len() as f64)
    };
    let groups: BTreeSet<&String> = lines.iter().flat_map(|line| line.fct.keys()).collect();
    let tiers: BTreeSet<&String> = lines.iter().flat_map(|line| line.mmr.keys()).collect();
    Some(Row {
        case: first.case.clone(),
        scheme: first.scheme.clone(),
        seeds: lines.len(),
        all_finished,
        completion_us: Statistics::of(&ends, CONFIDENCE).filter(|_| all_finished),
        times_us: groups.into_iter().map(of_group).collect(),
        packets: mean(lines, |line| line.packets as f64),
        retransmitted: mean(lines, |line| line.retransmitted as f64),
        acks: mean(lines, |line| line.acks as f64),
        nacks: mean(lines, |line| line.nacks as f64),
        timeouts_rts: mean(lines, |line| line.timeouts_rts as f64),
        mmr: tiers.into_iter().map(of_tier).collect(),
    })
}

/// The rows, in the order of their first lines.
pub(super) fn rows(lines: &[Line]) -> Vec<Row> {
    let mut order = Vec::new();
    let mut groups = BTreeMap::<(&str, &str), Vec<&Line>>::new();
    for line in lines {
        let key = (line.case.as_str(), line.scheme.as_str());
        let group = groups.entry(key).or_default();
        if group.is_empty() {
            order.push(key);
        }
        group.push(line);
    }
    order.into_iter().filter_map(|key| row(groups.get(&key)?)).collect()
}

/// What follows: each scheme beside the first one of its case.
pub(super) fn verdicts(rows: &[Row], lines: &[Line]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut same = 0;
    for row in rows {
        if !row.all_finished {
            let own =
                lines.iter().filter(|line| (&line.case, &line.scheme) == (&row.case, &row.scheme));
            let missing: usize = own.map(|line| line.expected - line.finished).sum();
            let text = format!("{}: {} flows of {} did not finish.", row.case, missing, row.scheme);
            verdicts.push(Grade::Bad.says(text));
            continue;
        }
        let base = rows.iter().find(|base| base.case == row.case);
        let Some(base) = base.filter(|base| base.scheme != row.scheme) else { continue };
        let (Some(own), Some(other)) = (row.completion_us, base.completion_us) else { continue };
        if own == other {
            // Nothing is in the way of a constant rate.
            same += 1;
            continue;
        }
        let [own, other] = [own, other].map(|of| of.among(rows.len()));
        let Some((gain, half)) = own.gain_over(&other) else { continue };
        let (grade, word) = match gain {
            _ if gain > half => (Grade::Good, "earlier than"),
            _ if -gain > half => (Grade::Bad, "later than"),
            _ => (Grade::Note, "not clearly earlier or later than"),
        };
        let share = match grade {
            Grade::Note => String::new(),
            _ => format!("{:.1} ± {:.1} % ", gain.abs() * 100.0, half * 100.0),
        };
        verdicts.push(grade.says(format!(
            "{}: {} ends {share}{word} {} ({:.1} and {:.1} µs).",
            row.case, row.scheme, base.scheme, own.mean, other.mean
        )));
    }
    if same > 0 {
        let text = format!("{same} schemes end when the first one of their case does.");
        verdicts.push(Grade::Note.says(text));
    }
    verdicts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run with this end.
    pub(crate) fn line(scheme: &str, seed: u64, completion: f64) -> Line {
        serde_json::from_value(serde_json::json!({
            "case": "x", "scheme": scheme, "seed": seed, "finished": 2, "expected": 2, "status": 0,
            "completion": completion, "packets": 10, "retransmitted": 1, "timeouts-rts": 0,
            "acks": 5, "nacks": 1, "events": 100, "mmr": { "leaf-spine": 1.5 },
            "fct": { "flows": 2, "mean": 3.0, "p50": 3.0, "p99": 4.0, "max": completion },
            "user-s": 0.1, "wall-s": 0.1, "peak-kib": 1
        }))
        .unwrap()
    }

    #[test]
    fn seeds_without_traffic_on_a_tier_do_not_count_there() {
        let full = line("x", 1, 5.0);
        let empty = Line { mmr: BTreeMap::new(), ..line("x", 2, 5.0) };
        for lines in [[full.clone(), empty.clone()], [empty, full]] {
            assert_eq!(rows(&lines)[0].mmr["leaf-spine"], 1.5);
        }
    }

    #[test]
    fn schemes_are_compared_with_the_first_one() {
        let mut lines: Vec<Line> = Vec::new();
        for (scheme, ends) in [
            ("reps", [100.0, 102.0, 101.0, 101.0]),
            ("ours", [80.0, 80.5, 80.2, 80.3]),
            ("ecmp", [300.0, 310.0, 305.0, 305.0]),
            ("same", [100.0, 102.0, 101.0, 101.0]),
        ] {
            lines.extend(ends.into_iter().zip(1..).map(|(end, seed)| line(scheme, seed, end)));
        }
        lines.push(Line { status: 1, finished: 1, ..line("stuck", 1, 5.0) });
        let rows = rows(&lines);
        let names: Vec<&str> = rows.iter().map(|row| row.scheme.as_str()).collect();
        assert_eq!(names, ["reps", "ours", "ecmp", "same", "stuck"]);
        assert_eq!(rows[1].completion_us.unwrap().mean, 80.25);
        assert_eq!(rows[4].completion_us, None);
        let texts: Vec<(Grade, String)> =
            verdicts(&rows, &lines).into_iter().map(|of| (of.grade, of.text)).collect();
        assert_eq!(texts[0].0, Grade::Good);
        assert!(texts[0].1.starts_with("x: ours ends 20.5 ± "), "{texts:?}");
        assert_eq!(texts[1].0, Grade::Bad);
        assert_eq!(texts[2], (Grade::Bad, "x: 1 flows of stuck did not finish.".into()));
        let same = "1 schemes end when the first one of their case does.";
        assert_eq!(texts[3], (Grade::Note, same.into()));
    }
}
