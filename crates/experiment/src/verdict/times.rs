//! The times of a workload with one dataplane, which has no other to be compared with.

use std::collections::BTreeSet;

use super::words::{Grade, Verdict, milliseconds};
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
