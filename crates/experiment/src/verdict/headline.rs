//! The one sentence at the beginning of a report.

use super::words::{milliseconds, outage, title};
use crate::file::{Dataplane, Experiment};
use crate::summary::{Row, Summary};

/// What the experiment shows, in one sentence: the best and the worst dataplane. `None` without runs.
#[must_use]
pub fn headline(experiment: &Experiment, summary: &Summary) -> Option<String> {
    let of_times = experiment.has_failures() || experiment.workload.is_some();
    if of_times && summary.machine_is_the_limit() {
        return Some("No conclusion: the machine was the limit, not the fabric.".to_owned());
    }
    let value = |row: &Row| match () {
        () if experiment.has_failures() => row.outage.map(|of| of.median),
        () if experiment.workload.is_some() => Some(row.workload.as_ref()?.completion.mean),
        () => Some(row.paths()?.mmr.mean),
    };
    // Each dataplane at its worst point, with the value as text.
    let at_worst = |label: String| {
        let own = summary.rows.iter().filter(|row| row.dataplane == label);
        let worst = own
            .max_by(|a, b| value(a).partial_cmp(&value(b)).unwrap_or(std::cmp::Ordering::Equal))?;
        let text = match value(worst)? {
            time if experiment.has_failures() => outage(worst, time),
            time if experiment.workload.is_some() => milliseconds(time),
            mmr => format!("{mmr:.2}"),
        };
        Some((value(worst)?, format!("{text} with {}", title(&label))))
    };
    let labels = experiment.dataplanes.iter().map(Dataplane::label);
    let mut all: Vec<(f64, String)> = labels.filter_map(at_worst).collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (_, best) = all.first()?;
    let points = summary
        .rows
        .iter()
        .any(|row| Some(&row.point) != summary.rows.first().map(|row| &row.point));
    let worst = if points { ", at the worst point of each" } else { "" };
    let last = all.last().filter(|_| all.len() > 1);
    let range = last.map_or_else(|| best.clone(), |(_, last)| format!("{best}, {last}"));
    Some(if experiment.has_failures() {
        format!("Traffic that a failure hits stops for {range}{worst}.")
    } else if experiment.workload.is_some() {
        format!("An iteration takes {range}{worst}.")
    } else {
        format!("The most loaded path carries this multiple of the mean: {range}{worst}.")
    })
}
