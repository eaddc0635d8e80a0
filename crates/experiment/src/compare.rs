//! Compares two directories of results: what changed, and whether that is more than noise.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::file::{Experiment, Quantity};
use crate::plan::Point;
use crate::record::{Manifest, Run};
use crate::statistics::Statistics;
use crate::summary::{Row, Summary};
use crate::units::Share;

/// The probability that noise alone makes any of the figures count as changed.
const FALSE_ALARM: f64 = 0.05;
/// Smaller changes of an MMR do not count. Routing packets use all links.
const ROUTING: f64 = 0.02;

/// The results of one directory.
#[derive(Debug)]
pub struct Results {
    /// The experiment.
    pub experiment: Experiment,
    /// The machine and the programs.
    pub manifest: Manifest,
    /// The runs.
    pub runs: Vec<Run>,
}

/// A figure in both directories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The fabric.
    pub fabric: String,
    /// The varied values.
    pub point: Point,
    /// The label of the dataplane.
    pub dataplane: String,
    /// What was measured.
    pub figure: Quantity,
    /// The tier of links, or the job; empty for the workload and for failures.
    pub of: String,
    /// The value in the first directory.
    pub before: Statistics,
    /// The value in the second directory.
    pub after: Statistics,
    /// The difference of the means that noise explains.
    pub noise: f64,
    /// Whether the difference is larger. Times do not count if the machine was the limit.
    pub changed: bool,
}

/// The name of a figure with its unit.
const fn name(figure: Quantity) -> &'static str {
    match figure {
        Quantity::Mmr => "MMR",
        Quantity::Outage => "outage (ms)",
        Quantity::HitCompletion => "hit iteration (ms)",
        Quantity::Completion => "iteration (ms)",
        Quantity::BusBandwidth => "bus (Mbit/s)",
        Quantity::PeakGain => "gain",
    }
}

/// The figures of a row by what and of what they are.
fn figures(row: &Row) -> BTreeMap<(Quantity, String), Statistics> {
    let mut all = BTreeMap::new();
    for tier in &row.tiers {
        all.insert((Quantity::Mmr, tier.role.name().to_owned()), tier.mmr);
    }
    let failure = [(Quantity::Outage, row.outage), (Quantity::HitCompletion, row.hit)];
    all.extend(failure.into_iter().filter_map(|(of, value)| Some(((of, String::new()), value?))));
    let own = row.workload.iter().map(|of| (String::new(), of));
    for (name, of) in own.chain(row.jobs.iter().map(|(name, of)| (name.clone(), of))) {
        all.insert((Quantity::Completion, name.clone()), of.completion);
        let told = of.told(of.bus_bandwidth);
        all.extend(told.map(|of| ((Quantity::BusBandwidth, name), of)));
    }
    all
}

/// What two directories have in common, and what changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Differences of the conditions: file, commit, programs, machine.
    pub conditions: Vec<String>,
    /// The figures that both have.
    pub figures: Vec<Change>,
    /// The number of rows that only one of them has.
    pub unmatched: usize,
    /// The number of figures of the other rows that only one of them has.
    pub gone: usize,
    /// Lost and reordered frames per million, before and after.
    pub disturbed: [f64; 2],
    /// Whether the machine was the limit in one of them, so that times do not count.
    pub limited: bool,
}

/// Compares two directories.
#[must_use]
pub fn compare(mut before: Results, mut after: Results) -> Comparison {
    let rows = Summary::new(&before.experiment, &before.runs).rows;
    let all: usize = rows.iter().map(|row| figures(row).len()).sum();
    // Bonferroni: each comparison may be wrong with its share of the probability.
    let confidence = Share::try_from(1.0 - FALSE_ALARM / all.max(1) as f64);
    let confidence = confidence.unwrap_or(Share::NINETY_FIVE_PERCENT);
    let summarise = |results: &mut Results| {
        results.experiment.repetitions.confidence = confidence;
        Summary::new(&results.experiment, &results.runs)
    };
    let (old, new) = (summarise(&mut before), summarise(&mut after));
    let limited = old.machine_is_the_limit() || new.machine_is_the_limit();
    let mut changes = Vec::new();
    let (mut matched, mut gone) = (0, 0);
    for row in &old.rows {
        let same = |other: &&Row| {
            (&other.fabric, &other.point, &other.dataplane)
                == (&row.fabric, &row.point, &row.dataplane)
        };
        let Some(other) = new.rows.iter().find(same) else { continue };
        matched += 1;
        let mut others = figures(other);
        for ((figure, of), before) in figures(row) {
            let Some(after) = others.remove(&(figure, of.clone())) else {
                gone += 1;
                continue;
            };
            let least = match figure {
                Quantity::Outage => row.shortest_outage().max(other.shortest_outage()),
                Quantity::Mmr => ROUTING,
                _ => 0.0,
            };
            let noise = before.half_width.hypot(after.half_width).max(least);
            let counts = !(limited && figure.is_time());
            changes.push(Change {
                fabric: row.fabric.clone(),
                point: row.point.clone(),
                dataplane: row.dataplane.clone(),
                figure,
                of,
                before,
                after,
                noise,
                changed: counts && (after.mean - before.mean).abs() > noise,
            });
        }
        gone += others.len();
    }
    let disturbed = [&old, &new].map(|summary| {
        let sum = |of: fn(&Row) -> u64| summary.rows.iter().map(of).sum::<u64>();
        let disturbed = |row: &Row| row.arrival.map_or(0, |of| of.lost + of.reordered);
        let sent = |row: &Row| row.arrival.map_or(0, |_| row.sent);
        sum(disturbed) as f64 * 1e6 / sum(sent).max(1) as f64
    });
    Comparison {
        conditions: before.manifest.differences(&after.manifest),
        unmatched: old.rows.len() + new.rows.len() - 2 * matched,
        gone,
        figures: changes,
        disturbed,
        limited,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.conditions {
            writeln!(f, "{condition}")?;
        }
        let changed: Vec<&Change> = self.figures.iter().filter(|change| change.changed).collect();
        if !changed.is_empty() {
            writeln!(
                f,
                "{:<14} {:<18} {:>5} {:<15} {:<12} {:<18} {:<10} {:>9} {:>9} {:>9} {:>9}",
                "fabric",
                "variant",
                "pairs",
                "inner port",
                "dataplane",
                "figure",
                "of",
                "before",
                "now",
                "change",
                "noise"
            )?;
        }
        for Change { fabric, point, dataplane, figure, of, before, after, noise, .. } in &changed {
            writeln!(
                f,
                "{fabric:<14} {:<18} {:>5} {:<15} {dataplane:<12} {:<18} {of:<10} {:>9.2} {:>9.2} \
                 {:>+9.2} {noise:>9.2}",
                point.variant(),
                point.queue_pairs.get(),
                point.inner_port,
                name(*figure),
                before.mean,
                after.mean,
                after.mean - before.mean
            )?;
        }
        if self.unmatched > 0 {
            writeln!(f, "{} rows are in one directory only.", self.unmatched)?;
        }
        if self.gone > 0 {
            writeln!(f, "{} figures of the other rows are in one directory only.", self.gone)?;
        }
        let single = self.figures.iter().filter(|change| change.noise.is_infinite()).count();
        if single > 0 {
            writeln!(f, "{single} figures are of one run and have no noise to compare with.")?;
        }
        let [before, after] = self.disturbed;
        if before + after > 0.0 {
            writeln!(f, "Lost or reordered frames per million: {before:.1}, now {after:.1}.")?;
        }
        if self.limited && self.figures.iter().any(|change| change.figure.is_time()) {
            writeln!(
                f,
                "The machine was the limit: times and bandwidths do not count as changed."
            )?;
        }
        write!(
            f,
            "{} of {} means changed by more than noise. Noise alone changes any of them with a \
             probability of at most {:.0} %, if the repetitions of a point are independent.",
            changed.len(),
            self.figures.len(),
            FALSE_ALARM * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{experiment, manifest, run};
    use crate::record::{Completion, Hit};

    fn results(loads: impl Fn(u32) -> [u64; 4]) -> Results {
        Results {
            experiment: experiment(&["kernel"], "[sweep]\nqueue-pairs = [8]"),
            manifest: manifest(),
            runs: (0..10).map(|at| run("kernel", 8, at, &loads(at))).collect(),
        }
    }

    #[test]
    fn a_change_is_told_from_noise() {
        let noisy = |shift: u32| {
            results(move |at| {
                let more = u64::from((at + shift) % 3);
                [300 + 10 * more, 200, 200 - 10 * more, 100]
            })
        };
        let same = compare(noisy(0), noisy(1));
        assert_eq!((same.figures.len(), same.unmatched), (2, 0));
        assert!(same.figures.iter().all(|change| !change.changed), "{same}");
        assert!(same.to_string().starts_with("0 of 2 means changed"), "{same}");
        let mut other = noisy(0);
        other.manifest.commit = "def".into();
        let changed = compare(results(|_| [400, 200, 100, 100]), other);
        let text = changed.to_string();
        assert!(text.starts_with("commit: \"abc\" there, \"def\" now\nfabric "), "{text}");
        assert!(text.contains("2 of 2 means changed"), "{text}");
        let less = Results { runs: Vec::new(), ..noisy(0) };
        assert_eq!(compare(noisy(0), less).unmatched, 1);
    }

    #[test]
    fn times_of_workloads_jobs_and_failures_are_compared() {
        let times = |outage: f64, time: f64, job: f64, busy: f64| {
            let of = |milliseconds: f64, at: u32| Completion {
                milliseconds: milliseconds + f64::from(at % 3),
                bus_bandwidth: 5.0,
                busy,
                ..Completion::default()
            };
            let mut results = results(|_| [200, 200, 200, 200]);
            for (run, at) in results.runs.iter_mut().zip(0..) {
                run.key.point.variant = Some((0, "near".to_owned().try_into().unwrap()));
                run.outage = Some(outage + f64::from(at % 2));
                run.hit = Some(Hit { milliseconds: 300.0, usual: 100.0, retransmitted: 0 });
                run.workload = Some(of(time, at));
                run.jobs = [("other".to_owned(), of(job, at))].into();
            }
            results
        };
        let before = || times(100.0, 50.0, 70.0, 0.1);
        let same = compare(before(), before());
        // Two tiers, outage, hit iteration, and time and bandwidth of the workload and the job.
        assert_eq!(same.figures.len(), 2 + 2 + 2 + 2);
        assert!(same.figures.iter().all(|change| !change.changed), "{same}");
        let found = |after: Results| -> Vec<(Quantity, String)> {
            let all = compare(before(), after).figures.into_iter();
            all.filter(|of| of.changed).map(|of| (of.figure, of.of)).collect()
        };
        assert_eq!(found(times(120.0, 50.0, 70.0, 0.1)), [(Quantity::Outage, String::new())]);
        assert_eq!(found(times(100.0, 60.0, 70.0, 0.1)), [(Quantity::Completion, String::new())]);
        assert_eq!(found(times(100.0, 50.0, 80.0, 0.1)), [(Quantity::Completion, "other".into())]);
        let text = compare(before(), times(100.0, 60.0, 70.0, 0.1)).to_string();
        assert!(text.contains("variant ") && text.contains(" near "), "{text}");
        let busy = times(120.0, 60.0, 80.0, 0.99);
        assert_eq!(found(busy), [], "the machine was the limit");
    }
}
