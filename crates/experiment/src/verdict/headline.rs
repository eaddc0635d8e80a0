//! The one sentence at the beginning of a report.

use std::collections::BTreeSet;

use super::compared;
use super::words::{ROUTING, TIMED_OUT, milliseconds, outage, queue_pairs, title};
use crate::file::Experiment;
use crate::plan::Point;
use crate::statistics::Statistics;
use crate::summary::{Row, Summary};

/// The value of a dataplane at a point.
type Shown<'a> = (Statistics, &'a Row);

/// What the experiment shows, in one sentence: the best and the worst dataplane, at the point where they
/// differ most, if they differ beyond noise anywhere. `None` without runs.
#[must_use]
pub fn headline(experiment: &Experiment, summary: &Summary) -> Option<String> {
    let of_times = experiment.has_failures() || experiment.workload.is_some();
    if of_times && summary.machine_is_the_limit() {
        return Some("No conclusion: the machine was the limit, not the fabric.".to_owned());
    }
    let summary = compared(experiment, summary);
    let value = |row: &Row| match () {
        () if experiment.has_failures() => row.outage,
        () if experiment.workload.is_some() => Some(row.workload.as_ref()?.completion),
        () => Some(row.paths()?.mmr),
    };
    // Dataplanes are compared at one point. A single one is shown at its worst point.
    let points: BTreeSet<(&str, &Point)> =
        summary.rows.iter().map(|row| (row.fabric.as_str(), &row.point)).collect();
    let at = |(fabric, point): &(&str, &Point)| {
        let own = summary.rows.iter().filter(|row| row.fabric == *fabric && row.point == **point);
        let mut all: Vec<Shown<'_>> = own.filter_map(|row| Some((value(row)?, row))).collect();
        all.sort_by(|(a, _), (b, _)| a.mean.total_cmp(&b.mean));
        all
    };
    let several = experiment.dataplanes.len() > 1;
    let rank = |all: &Vec<Shown<'_>>| match (all.first(), all.last()) {
        (Some((least, _)), Some((most, _))) if several => {
            (differ(least, most), most.mean / least.mean.max(f64::MIN_POSITIVE))
        }
        (_, most) => (true, most.map_or(0.0, |(most, _)| most.mean)),
    };
    let shown = points.iter().map(at).reduce(|a, b| if rank(&b) > rank(&a) { b } else { a })?;
    let text = |(value, row): &Shown<'_>| match () {
        () if experiment.has_failures() => outage(row, value.mean),
        () if experiment.workload.is_some() => milliseconds(value.mean),
        () => format!("{:.2}", value.mean),
    };
    let first = text(shown.first()?);
    let (best, others): (Vec<_>, Vec<_>) = shown.iter().partition(|one| text(one) == first);
    let names: Vec<String> = best.iter().map(|(_, row)| named(row)).collect();
    let mut range = format!("{first} with {}", names.join(" and "));
    if let Some(last) = others.last() {
        range = format!("{range}, {} with {}", text(last), named(last.1));
    }
    let place = place(&summary, shown.first()?.1);
    let what = match () {
        () if experiment.has_failures() => "Traffic that a failure hits stops for",
        () if experiment.workload.is_some() => "An iteration takes",
        () => "The most loaded path carries this multiple of the mean:",
    };
    let why = match (points.len() > 1, several) {
        (false, _) => "",
        (true, true) => ", where they differ most",
        (true, false) => ", the worst point",
    };
    let beyond = rank(&shown).0 || others.is_empty();
    let no = if beyond { "" } else { "No dataplane differs from another beyond noise. " };
    Some(format!("{no}{what} {range}{place}{why}."))
}

/// Whether two values differ beyond noise.
fn differ(least: &Statistics, most: &Statistics) -> bool {
    let noise = least.difference(most).max(ROUTING * most.mean);
    most.mean - least.mean > noise
}

/// The title of a dataplane, and whether timeouts are in its time.
fn named(row: &Row) -> String {
    let timed_out = row.workload.as_ref().is_some_and(|of| of.timed_out > TIMED_OUT);
    format!("{}{}", title(&row.dataplane), if timed_out { ", with timeouts" } else { "" })
}

/// Where a row is, in words: what is varied.
fn place(summary: &Summary, row: &Row) -> String {
    let varied = |of: &dyn Fn(&Row) -> String| {
        let all: BTreeSet<String> = summary.rows.iter().map(of).collect();
        (all.len() > 1).then(|| of(row))
    };
    let parts = [
        varied(&|row| row.fabric.clone()),
        varied(&|row| row.point.variant().to_owned()),
        varied(&|row| queue_pairs(row.point.queue_pairs)),
        varied(&|row| row.point.inner_port.title().to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}
