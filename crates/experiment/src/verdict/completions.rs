//! How soon a workload completes, compared with another dataplane.

use super::words::{Grade, TIMED_OUT, Verdict, beyond_noise, change, range, title, within_noise};
use crate::summary::{Row, Summary, WorkloadRow};

/// How much sooner the workload completes than with the baseline.
pub(super) fn completions(
    label: &str,
    baseline: &str,
    rows: &[&Row],
    summary: &Summary,
) -> Option<Verdict> {
    let mut pairs: Vec<(&WorkloadRow, &WorkloadRow)> = Vec::new();
    for row in rows {
        let same = |other: &&Row| {
            other.dataplane == baseline
                && (&other.fabric, &other.point) == (&row.fabric, &row.point)
        };
        let base = summary.rows.iter().find(same)?.workload.as_ref()?;
        pairs.push((row.workload.as_ref()?, base));
    }
    let gain =
        |(own, base): &(&WorkloadRow, &WorkloadRow)| own.completion.gain_over(&base.completion);
    let gains: Vec<(f64, f64)> = pairs.iter().filter_map(gain).collect();
    if gains.is_empty() {
        return None;
    }
    let (what, grade, timeouts) = match beyond_noise(&gains, 0.0) {
        None => (within_noise(&gains), Grade::Note, None),
        Some(((least, most), beyond)) => {
            let what = format!(
                "{} (beyond noise at {beyond} of {} points)",
                change(least, most),
                gains.len()
            );
            let timeouts = timeouts((label, baseline), &pairs);
            let grade = match least > 0.0 {
                // It may be the timer's.
                true if timeouts.is_some() => Grade::Note,
                true => Grade::Good,
                false => Grade::Bad,
            };
            (what, grade, timeouts)
        }
    };
    let text = format!(
        "{label}: compared with {}, the completion time is {what}.{}",
        title(baseline),
        timeouts.unwrap_or_default()
    );
    Some(grade.says(text))
}

/// What timeouts did to the difference, if there were any.
fn timeouts(
    (label, baseline): (&str, &str),
    pairs: &[(&WorkloadRow, &WorkloadRow)],
) -> Option<String> {
    let share = |of: &WorkloadRow| of.timed_out;
    let most = pairs.iter().flat_map(|(own, base)| [share(own), share(base)]).fold(0.0, f64::max);
    if most <= TIMED_OUT {
        return None;
    }
    let of = |timeouts: &dyn Fn(&(&WorkloadRow, &WorkloadRow)) -> Option<f64>| {
        let values: Vec<f64> = pairs.iter().filter_map(timeouts).collect();
        match range(&values) {
            Some((least, most)) if most - least >= 0.05 => format!("{least:.1} to {most:.1}"),
            of => format!("{:.1}", of.map_or(0.0, |(_, most)| most)),
        }
    };
    let counted = format!(
        " Timeouts are in these times: {} in an iteration with {}, {} with {}.",
        of(&|(own, _)| Some(own.timeouts?.mean)),
        title(label),
        of(&|(_, base)| Some(base.timeouts?.mean)),
        title(baseline)
    );
    let without = |(own, base): &(&WorkloadRow, &WorkloadRow)| {
        Some(1.0 - own.untimed?.mean / base.untimed?.mean)
    };
    let without: Vec<f64> = pairs.iter().filter_map(without).collect();
    let rest = match range(&without) {
        Some((least, most)) if without.len() == pairs.len() => {
            format!(" In iterations without them, the time is {}.", change(least, most))
        }
        _ => " Too few iterations are without them to tell the difference that remains.".to_owned(),
    };
    Some(counted + &rest)
}
