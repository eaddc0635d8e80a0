//! The times of a workload: with one dataplane, which has no other to be compared with, and beside other
//! jobs.

use std::collections::BTreeSet;

use super::words::{Grade, Verdict, milliseconds, queue_pairs, title};
use crate::file::Experiment;
use crate::statistics::Statistics;
use crate::summary::{Row, Summary};
use crate::units::{Name, QueuePairs};

/// A sentence for each variant: the time of an iteration by number of queue pairs, and whether the most
/// queue pairs take less than the fewest.
pub(super) fn times(summary: &Summary) -> Vec<Verdict> {
    let variants: BTreeSet<_> = summary.rows.iter().map(|row| &row.point.variant).collect();
    let verdict = |variant: &Option<(usize, Name)>| {
        let rows = summary.rows.iter().filter(|row| row.point.variant == *variant);
        let time = |row: &Row| Some((row.point.queue_pairs, row.workload.as_ref()?.completion));
        let times: Vec<(QueuePairs, Statistics)> = rows.filter_map(time).collect();
        let (first, last) = (times.first()?, times.last()?);
        let name = variant.as_ref().map_or(String::new(), |(_, name)| format!("{name}: "));
        let text = |(number, time): &(QueuePairs, Statistics)| {
            format!("{} with {}", milliseconds(time.mean), queue_pairs(*number))
        };
        let texts: Vec<String> = times.iter().map(text).collect();
        let (grade, change) = match last.1.gain_over(&first.1) {
            _ if times.len() == 1 => (Grade::Note, String::new()),
            Some((gain, half)) if gain > half => {
                (Grade::Good, format!(": {:.0} ± {:.0} % less", gain * 100.0, half * 100.0))
            }
            Some((gain, half)) if -gain > half => {
                (Grade::Note, format!(": {:.0} ± {:.0} % more", -gain * 100.0, half * 100.0))
            }
            _ => (Grade::Note, ", not told apart".to_owned()),
        };
        Some(grade.says(format!("{name}an iteration takes {}{change}.", texts.join(", "))))
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
    let text = |row: &&Row| {
        let alone = rows.iter().find(|other| !has_jobs(other) && place(other) == place(row))?;
        let time = |row: &Row| Some(row.workload.as_ref()?.completion);
        let (own, alone) = (time(row)?, time(alone)?);
        let (gain, half) = own.gain_over(&alone)?;
        let ratio = match half {
            half if !half.is_finite() => format!("{:.1} times as long", 1.0 - gain),
            half if gain.abs() <= half => format!("not told apart, {:.1} ± {half:.1}", 1.0 - gain),
            half => format!("{:.1} ± {half:.1} times as long", 1.0 - gain),
        };
        let number = queue_pairs(row.point.queue_pairs);
        let [own, alone] = [own, alone].map(|time| milliseconds(time.mean));
        Some(format!("{own} instead of {alone} with {number} ({ratio})"))
    };
    let texts: Vec<String> =
        rows.iter().copied().filter(|row| has_jobs(row)).filter_map(|row| text(&row)).collect();
    (!texts.is_empty()).then(|| {
        Grade::Note.says(format!(
            "{}: beside other jobs, an iteration takes {}.",
            title(label),
            texts.join(", ")
        ))
    })
}
