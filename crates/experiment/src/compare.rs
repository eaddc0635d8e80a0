//! Compares two directories of results: what changed, and whether that is more than noise.

use std::fmt;

use serde::Serialize;

use crate::file::Experiment;
use crate::plan::Point;
use crate::record::{Manifest, Role, Run};
use crate::statistics::Statistics;
use crate::summary::Summary;
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

/// The mean MMR of one tier in both directories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The fabric.
    pub fabric: String,
    /// The varied values.
    pub point: Point,
    /// The label of the dataplane.
    pub dataplane: String,
    /// The links.
    pub tier: Role,
    /// The MMR in the first directory.
    pub before: Statistics,
    /// The MMR in the second directory.
    pub after: Statistics,
    /// The difference of the means that noise explains.
    pub noise: f64,
    /// Whether the difference is larger.
    pub changed: bool,
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
    /// Lost and reordered frames per million, before and after.
    pub disturbed: [f64; 2],
}

/// Compares two directories.
#[must_use]
pub fn compare(mut before: Results, mut after: Results) -> Comparison {
    let rows = Summary::new(&before.experiment, &before.runs).rows;
    let figures: usize = rows.iter().map(|row| row.tiers.len()).sum();
    // Bonferroni: each comparison may be wrong with its share of the probability.
    let confidence = Share::try_from(1.0 - FALSE_ALARM / figures.max(1) as f64);
    let confidence = confidence.unwrap_or(Share::NINETY_FIVE_PERCENT);
    let summarise = |results: &mut Results| {
        results.experiment.repetitions.confidence = confidence;
        Summary::new(&results.experiment, &results.runs)
    };
    let (old, new) = (summarise(&mut before), summarise(&mut after));
    let mut figures = Vec::new();
    let mut matched = 0;
    for row in &old.rows {
        let same = |other: &&crate::summary::Row| {
            (&other.fabric, &other.point, &other.dataplane)
                == (&row.fabric, &row.point, &row.dataplane)
        };
        let Some(other) = new.rows.iter().find(same) else { continue };
        matched += 1;
        for (before, after) in row.tiers.iter().zip(&other.tiers) {
            let noise = before.mmr.half_width.hypot(after.mmr.half_width).max(ROUTING);
            figures.push(Change {
                fabric: row.fabric.clone(),
                point: row.point.clone(),
                dataplane: row.dataplane.clone(),
                tier: before.role,
                before: before.mmr,
                after: after.mmr,
                noise,
                changed: (after.mmr.mean - before.mmr.mean).abs() > noise,
            });
        }
    }
    let disturbed = [&old, &new].map(|summary| {
        let sum = |of: fn(&crate::summary::Row) -> u64| summary.rows.iter().map(of).sum::<u64>();
        sum(|row| row.lost + row.reordered) as f64 * 1e6 / sum(|row| row.sent).max(1) as f64
    });
    Comparison {
        conditions: before.manifest.differences(&after.manifest),
        unmatched: old.rows.len() + new.rows.len() - 2 * matched,
        figures,
        disturbed,
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
                "{:<14} {:>5} {:<15} {:<12} {:<9} {:>8} {:>8} {:>8} {:>8}",
                "fabric",
                "pairs",
                "inner port",
                "dataplane",
                "tier",
                "MMR",
                "now",
                "change",
                "noise"
            )?;
        }
        for Change { fabric, point, dataplane, tier, before, after, noise, .. } in &changed {
            writeln!(
                f,
                "{fabric:<14} {:>5} {:<15} {dataplane:<12} {:<9} {:>8.2} {:>8.2} {:>+8.2} {noise:>8.2}",
                point.queue_pairs.get(),
                point.inner_port,
                tier.name(),
                before.mean,
                after.mean,
                after.mean - before.mean
            )?;
        }
        if self.unmatched > 0 {
            writeln!(f, "{} points are in one directory only.", self.unmatched)?;
        }
        let [before, after] = self.disturbed;
        if before + after > 0.0 {
            writeln!(f, "Lost or reordered frames per million: {before:.1}, now {after:.1}.")?;
        }
        write!(
            f,
            "{} of {} mean MMRs changed by more than noise. Noise alone changes any of them with a \
             probability of at most {:.0} %.",
            changed.len(),
            self.figures.len(),
            FALSE_ALARM * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{manifest, run};

    fn results(loads: impl Fn(u32) -> [u64; 4]) -> Results {
        let text = "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['scaleacross.clab.yml']
            dataplane = [{policy = 'kernel'}]\n[sweep]\nqueue-pairs = [8]";
        Results {
            experiment: Experiment::parse("x.toml".as_ref(), text).unwrap(),
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
        assert!(same.to_string().starts_with("0 of 2 mean MMRs changed"), "{same}");
        let mut other = noisy(0);
        other.manifest.commit = "def".into();
        let changed = compare(results(|_| [400, 200, 100, 100]), other);
        let text = changed.to_string();
        assert!(text.starts_with("commit: \"abc\" there, \"def\" now\nfabric "), "{text}");
        assert!(text.contains("2 of 2 mean MMRs changed"), "{text}");
        let less = Results { runs: Vec::new(), ..noisy(0) };
        assert_eq!(compare(noisy(0), less).unmatched, 1);
    }
}
