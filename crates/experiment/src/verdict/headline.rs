//! The one sentence at the beginning of a report.

use std::collections::BTreeSet;

use super::words::{milliseconds, outage, title};
use crate::file::Experiment;
use crate::plan::Point;
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
    let text = |row: &Row, value: f64| match () {
        () if experiment.has_failures() => outage(row, value),
        () if experiment.workload.is_some() => milliseconds(value),
        () => format!("{value:.2}"),
    };
    // Dataplanes are compared at one point: that at which they differ most. A single one is shown at
    // its worst point.
    let points: BTreeSet<(&str, &Point)> =
        summary.rows.iter().map(|row| (row.fabric.as_str(), &row.point)).collect();
    let at = |(fabric, point): &(&str, &Point)| {
        let own = summary.rows.iter().filter(|row| row.fabric == *fabric && row.point == **point);
        let mut all: Vec<(f64, &Row)> = own.filter_map(|row| Some((value(row)?, row))).collect();
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        all
    };
    let several = experiment.dataplanes.len() > 1;
    let rank = |all: &Vec<(f64, &Row)>| match (all.first(), all.last()) {
        (Some((least, _)), Some((most, _))) if several => most / least.max(f64::MIN_POSITIVE),
        (_, most) => most.map_or(0.0, |(most, _)| *most),
    };
    let shown = points.iter().map(at).reduce(|a, b| if rank(&b) > rank(&a) { b } else { a })?;
    let name = |(value, row): &(f64, &Row)| {
        format!("{} with {}", text(row, *value), title(&row.dataplane))
    };
    let (best, last) = (name(shown.first()?), shown.last().filter(|_| shown.len() > 1));
    let range = last.map_or_else(|| best.clone(), |last| format!("{best}, {}", name(last)));
    let place = match (points.len() > 1, several) {
        (false, _) => "",
        (true, true) => ", where they differ most",
        (true, false) => ", at the worst point",
    };
    Some(if experiment.has_failures() {
        format!("Traffic that a failure hits stops for {range}{place}.")
    } else if experiment.workload.is_some() {
        format!("An iteration takes {range}{place}.")
    } else {
        format!("The most loaded path carries this multiple of the mean: {range}{place}.")
    })
}
