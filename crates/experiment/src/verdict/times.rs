//! The times of a workload: with one dataplane, which has no other to be compared with, and beside other
//! jobs.

use std::collections::BTreeSet;

use super::words::{Grade, Verdict, milliseconds, range, title};
use crate::file::Experiment;
use crate::summary::{Row, Summary};
use crate::units::Name;

/// A sentence for each variant: the time of an iteration by number of queue pairs.
pub(super) fn times(summary: &Summary) -> Vec<Verdict> {
    let variants: BTreeSet<_> = summary.rows.iter().map(|row| &row.point.variant).collect();
    let verdict = |variant: &Option<(usize, Name)>| {
        let rows = summary.rows.iter().filter(|row| row.point.variant == *variant);
        let time = |row: &Row| {
            let time = milliseconds(row.workload.as_ref()?.completion.mean);
            let plural = if row.point.queue_pairs.get() == 1 { "" } else { "s" };
            Some(format!("{time} with {} queue pair{plural}", row.point.queue_pairs.get()))
        };
        let times: Vec<String> = rows.filter_map(time).collect();
        let name = variant.as_ref().map_or(String::new(), |(_, name)| format!("{name}: "));
        (!times.is_empty()).then(|| Verdict {
            grade: Grade::Note,
            text: format!("{name}an iteration takes {}.", times.join(", ")),
        })
    };
    variants.into_iter().filter_map(verdict).collect()
}

/// How much longer an iteration takes while other jobs run, if there are variants with and without them.
pub(super) fn beside(experiment: &Experiment, label: &str, rows: &[&Row]) -> Option<Verdict> {
    let has_jobs = |row: &Row| {
        let variant = row.point.variant.as_ref().map(|(_, name)| name);
        experiment.jobs.iter().any(|job| job.get_ref().is_in(variant))
    };
    let place = |row: &Row| (row.fabric.clone(), row.point.queue_pairs, row.point.inner_port);
    let time = |row: &Row| Some(row.workload.as_ref()?.completion.mean);
    let ratio = |row: &&&Row| {
        let alone = rows.iter().find(|other| !has_jobs(other) && place(other) == place(row))?;
        Some(time(row)? / time(alone).filter(|time| *time > 0.0)?)
    };
    let ratios: Vec<f64> =
        rows.iter().filter(|row| has_jobs(row)).filter_map(|row| ratio(&row)).collect();
    let (least, most) = range(&ratios)?;
    let times = match most - least < 0.05 {
        true => format!("{most:.1}"),
        false => format!("{least:.1} to {most:.1}"),
    };
    Some(Verdict {
        grade: Grade::Note,
        text: format!(
            "{}: beside other jobs, an iteration takes {times} times as long as without them.",
            title(label)
        ),
    })
}
