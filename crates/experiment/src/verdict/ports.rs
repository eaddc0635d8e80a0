//! What inner source ports change.

use std::collections::BTreeSet;

use super::words::{Grade, ROUTING, SAME, Verdict, beyond_noise, change, title, within_noise};
use crate::summary::Row;
use crate::units::InnerPort;

/// A sentence about a dataplane, if there are runs with several choices of inner source ports: how
/// its peak load differs from that with the first of them.
pub(super) fn ports(label: &str, rows: &[&Row]) -> Vec<Verdict> {
    let all: BTreeSet<InnerPort> = rows.iter().map(|row| row.point.inner_port).collect();
    let Some(first) = all.first() else { return Vec::new() };
    let mut verdicts = Vec::new();
    for port in all.iter().skip(1) {
        let of = |port: InnerPort| rows.iter().filter(move |row| row.point.inner_port == port);
        let pairs = of(*port).filter_map(|row| {
            let same = |other: &&&Row| {
                let place =
                    |row: &Row| (row.fabric.clone(), row.point.queue_pairs, row.point.index());
                place(other) == place(row)
            };
            Some((row.paths()?.mmr, of(*first).find(same)?.paths()?.mmr))
        });
        let gains: Vec<(f64, f64)> = pairs.filter_map(|(own, base)| own.gain_over(&base)).collect();
        if gains.is_empty() {
            continue;
        }
        let (what, grade) = match beyond_noise(&gains, ROUTING) {
            None if gains.iter().all(|(_, half)| *half <= SAME) => {
                (within_noise(&gains), Grade::Good)
            }
            None => (within_noise(&gains), Grade::Note),
            Some(((least, most), beyond)) => {
                let change = change(least, most);
                let of = gains.len();
                (format!("{change} (beyond noise at {beyond} of {of} points)"), Grade::Note)
            }
        };
        verdicts.push(grade.says(format!(
            "{}: with {} instead of {}, the peak load is {what}.",
            title(label),
            port.title(),
            first.title()
        )));
    }
    verdicts
}
