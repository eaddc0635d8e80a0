//! What follows from the figures, in sentences.

mod completions;
mod gains;
mod headline;
mod ports;
mod published;
mod times;
mod words;

use crate::file::{Dataplane, Experiment, KERNEL, Measured, Quantity};
use crate::record::Arrival;
use crate::role::Role;
use crate::statistics::Statistics;
use crate::summary::{RandomTest, Row, Summary};

use words::{ROUTING, change, outage};

pub use headline::headline;
pub use words::{Grade, Verdict, milliseconds, title};

/// How many differences verdicts may judge, at most: the peak load of two tiers and the time of each
/// row, beside one baseline or two, and its peak load beside another inner source port. Of a single
/// dataplane, its rows are compared.
#[must_use]
pub fn comparisons(experiment: &Experiment, summary: &Summary) -> usize {
    let (rows, baseline) = (&summary.rows, experiment.baseline());
    if experiment.dataplanes.len() == 1 {
        return rows.len();
    }
    let has = |label: &str| experiment.dataplanes.iter().any(|of| of.label() == label);
    let baselines = 1 + usize::from(baseline == KERNEL && has(gains::PLAIN));
    let times = usize::from(experiment.workload.is_some());
    let others = rows.iter().filter(|row| row.dataplane != baseline).count();
    let first = rows.iter().map(|row| row.point.inner_port).min();
    let ports = rows.iter().filter(|row| Some(row.point.inner_port) != first).count();
    others * (gains::ROLES.len() * baselines + times) + ports
}

/// The summary with intervals that hold for all comparisons at once.
fn compared(experiment: &Experiment, summary: &Summary) -> Summary {
    summary.among(comparisons(experiment, summary))
}

/// What follows from the figures.
#[must_use]
pub fn verdicts(experiment: &Experiment, summary: &Summary) -> Vec<Verdict> {
    let compared = compared(experiment, summary);
    let limited = summary.machine_is_the_limit();
    let mut verdicts = if limited { Vec::new() } else { outages(summary) };
    let baseline = experiment.baseline();
    let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
    let has_plain = labels.iter().any(|label| label == gains::PLAIN);
    for label in &labels {
        let rows: Vec<&Row> = compared.rows.iter().filter(|row| row.dataplane == *label).collect();
        if experiment.has_failures() {
            continue;
        }
        if experiment.workload.is_some() && *label != baseline && !limited {
            verdicts.extend(completions::completions(label, &baseline, &rows, &compared));
        }
        if !limited {
            verdicts.extend(times::beside(experiment, label, &rows));
        }
        if *label != baseline {
            verdicts.extend(gains::gains(label, &baseline, &rows, &compared));
        }
        if baseline == KERNEL && has_plain && ![KERNEL, gains::PLAIN].contains(&label.as_str()) {
            verdicts.extend(gains::gains(label, gains::PLAIN, &rows, &compared));
        }
        verdicts.extend(placement(label, &rows));
        verdicts.extend(ports::ports(label, &rows));
    }
    if !experiment.has_failures() {
        verdicts.extend(gains::route_cache(&labels, summary));
    }
    if !experiment.has_failures() && experiment.workload.is_none() {
        verdicts.extend(frames(summary));
    }
    verdicts.extend(published::published(&experiment.published, summary));
    verdicts.extend(failed(summary));
    if experiment.dataplanes.len() == 1 && !limited {
        verdicts.extend(times::times(&compared));
    }
    let of_times = experiment.has_failures() || experiment.workload.is_some();
    if !(limited && of_times) {
        verdicts.push(precision(experiment, summary));
    }
    if limited {
        let loads = match experiment.has_failures() {
            true => "",
            false => " The loads of the links do not depend on times.",
        };
        verdicts.push(Grade::Note.says(format!(
            "The machine was the limit: {:.0} % of the CPUs were busy, {:.0} % of the runs were \
                 slower than required, and {:.0} % filled a circuit. No conclusion from times is \
                 drawn.{loads}",
            summary.busy * 100.0,
            summary.slow * 100.0,
            summary.full * 100.0
        )));
    }
    verdicts
}

/// The figures that are shown beside a published one, in words.
#[must_use]
pub fn measured(wanted: &Measured, summary: &Summary) -> String {
    let Measured { tier, quantity, .. } = wanted;
    if quantity.is_time() && summary.machine_is_the_limit() {
        return "– (the machine was the limit)".to_owned();
    }
    let is_wanted = |row: &&Row| is_wanted(wanted, row);
    let value = |row: &Row| figure(row, wanted).map(|(value, _)| value);
    let values: Vec<f64> = summary.rows.iter().filter(is_wanted).filter_map(value).collect();
    let Some(least) = values.iter().copied().reduce(f64::min) else { return "–".to_owned() };
    let most = values.into_iter().fold(least, f64::max);
    let shortest = summary.rows.iter().filter(is_wanted).map(Row::shortest_outage);
    let shortest = shortest.fold(0.0, f64::max);
    match quantity {
        Quantity::Outage if least < shortest => {
            format!("less than {}", milliseconds(most.max(shortest)))
        }
        Quantity::PeakGain => {
            gain_of(&summary.rows.iter().filter(is_wanted).collect::<Vec<_>>(), *tier)
        }
        Quantity::BusBandwidth if most - least < 0.5 => format!("{most:.0} Mbit/s"),
        Quantity::BusBandwidth => format!("{least:.0} to {most:.0} Mbit/s"),
        Quantity::Outage | Quantity::HitCompletion | Quantity::Completion if most - least < 0.5 => {
            milliseconds(most)
        }
        Quantity::Outage | Quantity::HitCompletion | Quantity::Completion => {
            format!("{} to {}", milliseconds(least), milliseconds(most))
        }
        Quantity::Mmr if most - least < 0.005 => format!("{most:.2}"),
        Quantity::Mmr => format!("{least:.2} to {most:.2}"),
    }
}

/// A figure of a row with half of its interval: a share, a ratio, milliseconds or Mbit/s.
fn figure(row: &Row, wanted: &Measured) -> Option<(f64, f64)> {
    let of = |statistics: Statistics| (statistics.mean, statistics.half_width);
    let tier = row.tiers.iter().find(|tier| tier.role == wanted.tier);
    Some(match wanted.quantity {
        Quantity::Mmr => of(tier?.mmr),
        Quantity::PeakGain => tier?.gain?,
        Quantity::Outage => of(row.outage?),
        Quantity::HitCompletion => of(row.hit?),
        Quantity::Completion => of(row.workload.as_ref()?.completion),
        Quantity::BusBandwidth => of(row.workload.as_ref()?.bus_bandwidth),
    })
}

/// Whether the figures of a row are those that are shown beside a published one.
fn is_wanted(wanted: &Measured, row: &Row) -> bool {
    let Measured { dataplane, inner_port, variant, queue_pairs, .. } = wanted;
    row.dataplane == dataplane.as_str()
        && inner_port.is_none_or(|port| port == row.point.inner_port)
        && variant.as_ref().is_none_or(|name| name.as_str() == row.point.variant())
        && queue_pairs.is_none_or(|number| number == row.point.queue_pairs)
}

/// How much lower the peak loads of rows are, with the interval, in words.
fn gain_of(rows: &[&Row], role: Role) -> String {
    let tier = |row: &&Row| row.tiers.iter().find(|tier| tier.role == role)?.gain;
    let gains: Vec<(f64, f64)> = rows.iter().filter_map(tier).collect();
    let least = gains.iter().map(|(gain, _)| *gain).fold(f64::INFINITY, f64::min);
    let most = gains.iter().map(|(gain, _)| *gain).fold(f64::NEG_INFINITY, f64::max);
    let widest = gains.iter().map(|(_, half)| *half).fold(0.0, f64::max);
    let interval = match widest.is_finite() {
        true => format!(" (±{:.1} %)", widest * 100.0),
        false => String::new(),
    };
    let beyond = gains.iter().any(|(gain, half)| gain.abs() > half.max(ROUTING));
    let same = if beyond { "" } else { "the same within noise: " };
    format!("{same}{}{interval}", change(least, most))
}

/// How long traffic stops after the failure: a sentence for each point, with all dataplanes.
fn outages(summary: &Summary) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for rows in summary.rows.chunk_by(|a, b| (&a.fabric, &a.point) == (&b.fabric, &b.point)) {
        let with = |of: fn(&Row) -> Option<String>| {
            let times = rows
                .iter()
                .filter_map(|row| Some(format!("{} with {}", of(row)?, title(&row.dataplane))));
            times.collect::<Vec<_>>().join(", ")
        };
        let outages = with(|row| Some(outage(row, row.outage?.mean)));
        if outages.is_empty() {
            continue;
        }
        let variant = rows.first().map_or("", |row| row.point.variant());
        let variant = if variant.is_empty() { String::new() } else { format!("{variant}: ") };
        let runs = rows.iter().filter_map(|row| row.outage).map(|outage| outage.count).max();
        let runs = match runs {
            Some(0 | 1) | None => "one run each".to_owned(),
            Some(count) => format!("means of up to {count} runs"),
        };
        let resolution = rows.iter().filter_map(|row| row.outage_resolution).reduce(f64::max);
        let resolution = resolution.map(|time| format!("; resolution {}", milliseconds(time)));
        let usual: Vec<f64> = rows.iter().filter_map(|row| Some(row.hit_usual?.mean)).collect();
        let hit = (!usual.is_empty()).then(|| {
            let hit = with(|row| Some(milliseconds(row.hit?.mean)));
            let usual = usual.iter().sum::<f64>() / usual.len() as f64;
            format!(" The iteration that it hits takes {hit}, instead of {}.", milliseconds(usual))
        });
        verdicts.push(Grade::Note.says(format!(
            "{variant}traffic that the failure hits stops for {outages} ({runs}{}).{}",
            resolution.unwrap_or_default(),
            hit.unwrap_or_default()
        )));
    }
    verdicts
}

/// How a dataplane places queue pairs: at random, or as evenly as possible.
fn placement(label: &str, rows: &[&Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    // A policy that does not look at inner source ports places the same with all of them: one sample.
    let mut tests: Vec<RandomTest> = Vec::new();
    for test in rows.iter().filter_map(|row| row.random) {
        if !tests.contains(&test) {
            tests.push(test);
        }
    }
    let chances = tests.iter().map(|test| test.fullest_chance.min(test.links_chance));
    if let Some(least) = chances.reduce(f64::min) {
        let fits = tests.iter().all(RandomTest::fits);
        let grade = if fits { Grade::Good } else { Grade::Bad };
        verdicts.push(grade.says(format!(
            "{label} {} queue pairs as a random hash does (χ² tests of {} sample{} of {} runs or \
                 more; the smallest probability of such a deviation by chance is {least:.3}).",
            if fits { "places" } else { "does NOT place" },
            tests.len(),
            if tests.len() == 1 { "" } else { "s" },
            tests.iter().map(|test| test.runs).min().unwrap_or(0)
        )));
    }
    let even = |row: &Row| {
        let floor = row.floor.unwrap_or(1.0);
        row.paths().is_some_and(|tier| tier.links > 1 && tier.mmr.mean <= floor * 1.01)
    };
    // The floor is that of whole queue pairs. One of them has one path, wherever it is placed.
    let several = || rows.iter().copied().filter(|row| row.point.queue_pairs.get() > 1);
    let above: Vec<&Row> = several().filter(|row| !even(row)).collect();
    if label.starts_with("qp-pin") && above.iter().any(|row| row.floor.is_some()) {
        let over = |row: &&Row| Some((row.paths()?.mmr, row.floor?));
        let all = || above.iter().filter_map(over);
        let is_sure = all().any(|(mmr, floor)| mmr.mean - mmr.half_width > floor * 1.01);
        let most = all().map(|(mmr, floor)| mmr.mean / floor).fold(1.0, f64::max);
        let grade = if is_sure { Grade::Bad } else { Grade::Note };
        verdicts.push(grade.says(format!(
            "{label} is above the floor of whole queue pairs at {} of {} points, by up to {:.0} %.",
            all().count(),
            several().count(),
            100.0 * (most - 1.0)
        )));
    }
    if several().next().is_some() && !label.starts_with("spray") && above.is_empty() {
        verdicts.push(Grade::Good.says(format!(
                "{label} is at the floor at every point: no placement of whole queue pairs is more even."
            )));
    }
    verdicts
}

/// How the frames arrived; `None` if a run does not say.
fn frames(summary: &Summary) -> Option<Verdict> {
    let arrival = summary.rows.iter().map(|row| row.arrival).sum::<Option<Arrival>>()?;
    let Arrival { lost, reordered, .. } = arrival;
    let sent: u64 = summary.rows.iter().map(|row| row.sent).sum();
    if lost + reordered == 0 {
        let text = format!("None of {sent} frames was lost or reordered.");
        return Some(Grade::Good.says(text));
    }
    let text = format!("Of {sent} frames, {lost} were lost and {reordered} were reordered.");
    Some(Grade::Bad.says(text))
}

/// That a program under test did not last, which no other figure shows: such runs do not count.
fn failed(summary: &Summary) -> Option<Verdict> {
    let failed = summary.discarded.iter().filter(|(of, _)| of.failed);
    let reasons: Vec<String> =
        failed.map(|(of, number)| format!("{} ({number} of the runs)", of.reason)).collect();
    (!reasons.is_empty()).then(|| {
        Grade::Bad.says(format!("Runs did not count and were repeated: {}.", reasons.join("; ")))
    })
}

fn precision(experiment: &Experiment, summary: &Summary) -> Verdict {
    let share = experiment.repetitions.precision.get();
    let percent = share * 100.0;
    let confidence = experiment.repetitions.confidence.get() * 100.0;
    let is_time = experiment.has_failures() || experiment.workload.is_some();
    let what = if is_time { "time" } else { "MMR" };
    let means: Vec<Statistics> = summary.rows.iter().flat_map(Row::means).collect();
    let wide = means.iter().filter(|mean| !mean.is_precise(share)).count();
    let all = means.len();
    if wide == 0 {
        let text = format!(
            "Every mean {what} is known to ±{percent:.0} % or better ({confidence:.0} % confidence)."
        );
        return Grade::Good.says(text);
    }
    let text = format!(
        "{wide} of {all} mean {what}s are less certain than ±{percent:.0} % ({confidence:.0} % \
         confidence): more repetitions are needed."
    );
    Grade::Note.says(text)
}

#[cfg(test)]
mod tests;
