//! The results of an experiment, as the page shows them.

use experiment::plan::{Key, Point};
use experiment::summary::Row;
use experiment::{Experiment, Run, Summary};
use serde_json::{Value, json};

/// An experiment: its results so far, and the run that is next with how many are to go at most.
#[must_use]
pub fn experiment(experiment: &Experiment, runs: &[Run], now: Option<(usize, &Key)>) -> Value {
    let summary = Summary::new(experiment, runs);
    let rows = summary.rows.iter().map(|row| {
        let value = row.value();
        json!({
            "fabric": row.fabric, "point": point(&row.point), "dataplane": row.dataplane,
            "runs": value.map_or(0, |value| value.count),
            "mean": value.map(|value| value.mean),
            // Infinite after one run, which is null in JSON.
            "half": value.map(|value| value.half_width),
        })
    });
    json!({
        "title": experiment.title,
        "measure": measure(&summary),
        "complete": runs.len(),
        "left": now.map_or(0, |(left, _)| left),
        "now": now.map(|(_, key)| name(key)),
        "rows": rows.collect::<Vec<_>>(),
    })
}

/// What the mean of a row is ([`Row::value`]).
fn measure(summary: &Summary) -> &'static str {
    let any = |has: fn(&Row) -> bool| summary.rows.iter().any(has);
    match () {
        () if any(|row| row.outage.is_some()) => "time without traffic, ms",
        () if any(|row| row.workload.is_some()) => "completion time, ms",
        () => "MMR",
    }
}

/// A run in words.
pub(super) fn name(key: &Key) -> String {
    let Key { fabric, dataplane, point: of, repetition, .. } = key;
    format!("{dataplane}, {}, {fabric}, repetition {}", point(of), repetition + 1)
}

fn point(point: &Point) -> String {
    let variant = point.variant();
    let comma = if variant.is_empty() { "" } else { ", " };
    let (number, port) = (point.queue_pairs.get(), point.inner_port);
    format!("{number} queue pairs, inner port {port}{comma}{variant}")
}
