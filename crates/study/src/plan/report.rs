//! The text and the page of `lab plan`.

use std::fmt::Write as _;

use experiment::report::document;
use maud::{Markup, html};
use planner::iteration::Span;
use planner::search::Ranked;
use planner::{Iteration, Job, traffic};

use super::measured::{Measured, Source};
use super::{Outcome, PlanFile, draw};

/// The parts of an iteration, with their names.
pub(super) fn parts(iteration: &Iteration) -> [(&'static str, f64); 6] {
    [
        ("compute", iteration.compute),
        ("recompute", iteration.recompute),
        ("inside", iteration.inside),
        ("across", iteration.across),
        ("bubble", iteration.bubble),
        ("optimizer", iteration.optimizer),
    ]
}

fn speed_up(outcome: &Outcome, ranked: &Ranked) -> Option<f64> {
    outcome.baseline.as_ref().map(|baseline| baseline.seconds / ranked.iteration.seconds)
}

/// A number in tenths, without a negative zero.
fn tenth(number: f64) -> f64 {
    (10.0 * number).round() / 10.0 + 0.0
}

/// The found plans as a table.
#[must_use]
pub fn table(outcome: &Outcome) -> String {
    let mut text = String::from("    time");
    if let Some(first) = outcome.found.plans.first() {
        for (name, _) in parts(&first.iteration) {
            let _ = write!(text, " {name:>9}");
        }
    }
    text += "  memory  speed-up  plan\n";
    for ranked in &outcome.found.plans {
        let Ranked { plan, iteration } = ranked;
        let _ = write!(text, "{:6.2} s", iteration.seconds);
        for (_, seconds) in parts(iteration) {
            let _ = write!(text, " {:7.1} %", 100.0 * seconds / iteration.seconds);
        }
        let _ = write!(text, " {:4.0} GB", iteration.memory.total() / 1e9);
        match speed_up(outcome, ranked) {
            Some(factor) => {
                let _ = write!(text, "  {factor:7.2}x");
            }
            None => text += "         -",
        }
        let _ = writeln!(text, "  {plan}");
    }
    let _ = write!(text, "{} plans can be laid out", outcome.found.considered);
    if let Some(baseline) = &outcome.baseline {
        let _ = write!(text, "; the baseline takes {:.2} s", baseline.seconds);
    }
    for line in measured(outcome) {
        let _ = write!(text, "\n{line}");
    }
    text
}

/// What was measured or simulated, beside the prediction.
fn measured(outcome: &Outcome) -> Vec<String> {
    let line = |one: &Measured| {
        let Measured { source, what, seconds, half_width, predicted, .. } = one;
        let width = half_width.map_or(String::new(), |width| format!(" ± {width:.3} s"));
        format!(
            "{what}, {source}: {seconds:.3} s{width} with {}; predicted: {predicted:.3} s, {:+.1} %",
            conditions(one),
            tenth(100.0 * one.error())
        )
    };
    outcome.measured.iter().map(line).collect()
}

/// Under which conditions something was measured.
fn conditions(one: &Measured) -> String {
    let Measured { source, variant, dataplane, queue_pairs, runs, .. } = one;
    let queue_pairs = queue_pairs.map(|number| format!(", {number} queue pairs"));
    let variant = Some(variant).filter(|name| !name.is_empty()).map(|name| format!(", {name}"));
    let runs = match source {
        Source::Run => format!(" ({runs} runs)"),
        Source::Simulation => format!(" ({runs} seeds)"),
    };
    [Some(dataplane.clone()), queue_pairs, variant, Some(runs)].into_iter().flatten().collect()
}

/// The same as a table.
fn measured_rows(outcome: &Outcome) -> Markup {
    html! {
        table {
            tr {
                th { "time of" } th { "by" } th { "with" } th { "s" } th { "predicted, s" }
                th { "difference" }
            }
            @for one in &outcome.measured {
                tr {
                    td { (one.what) }
                    td { (one.source) }
                    td { (conditions(one)) }
                    td {
                        (format!("{:.3}", one.seconds))
                        @if let Some(width) = one.half_width { (format!(" ± {width:.3}")) }
                    }
                    td { (format!("{:.3}", one.predicted)) }
                    td { (format!("{:+.1} %", tenth(100.0 * one.error()))) }
                }
            }
        }
    }
}

/// Bytes with a unit.
fn bytes(number: f64) -> String {
    if number < 1e8 { format!("{:.1} MB", number / 1e6) } else { format!("{:.1} GB", number / 1e9) }
}

/// Why the fastest plan is the fastest.
#[must_use]
pub fn explanation(job: &Job, outcome: &Outcome) -> String {
    let Some(Ranked { plan, iteration }) = outcome.found.plans.first() else {
        return String::new();
    };
    let mut text = format!("Fastest: {plan}\n");
    let gigabytes = |bytes: f64| bytes / 1e9;
    let memory = &iteration.memory;
    let _ = writeln!(
        text,
        "  memory: {:.1} of {:.1} GB, {:.1} GB are reserved: parameters {:.1}, gradients {:.1}, optimizer \
         {:.1}, activations {:.1}, working {:.1}",
        gigabytes(memory.total()),
        gigabytes(job.machine.memory),
        gigabytes(job.machine.reserved),
        gigabytes(memory.parameters),
        gigabytes(memory.gradients),
        gigabytes(memory.optimizer),
        gigabytes(memory.activations),
        gigabytes(memory.working)
    );
    if let Some(wire) = job.wire(plan).filter(|_| job.sites.gpus.len() > 1) {
        let _ = writeln!(
            text,
            "  link between sites: {} of {} a second with {}, {:.1} ms",
            bytes(wire.bandwidth),
            bytes(job.sites.link.bandwidth),
            plan.technology,
            1e3 * wire.latency
        );
        let flows = traffic::flows(job, plan).unwrap_or_default();
        let seconds = traffic::seconds(job, plan, &flows).unwrap_or_default();
        let sent: f64 = flows.iter().map(|flow| flow.bytes as f64 * f64::from(flow.messages)).sum();
        let _ = writeln!(
            text,
            "  sent between sites in an iteration: {} in {} flows, {seconds:.3} s if all start at once",
            bytes(sent),
            flows.len()
        );
    }
    text += "The fastest plan of each placement and sharding:\n";
    for alternative in &outcome.alternatives {
        let Ranked { plan, iteration: other } = &alternative.best;
        let _ = writeln!(
            text,
            "  {:<18} {:8.2} s, {:+5.1} %, across {:4.1} %: {plan}",
            alternative.name,
            other.seconds,
            tenth(100.0 * (other.seconds / iteration.seconds - 1.0)),
            100.0 * other.across / other.seconds
        );
    }
    text.trim_end().to_owned()
}

fn rows(outcome: &Outcome) -> Markup {
    html! {
        table {
            tr {
                th { "plan" } th { "s" } th { "tokens/s/GPU" } th { "memory, GB" } th { "speed-up" }
            }
            @for ranked in &outcome.found.plans {
                tr {
                    td { (ranked.plan) }
                    td { (format!("{:.3}", ranked.iteration.seconds)) }
                    td { (format!("{:.0}", ranked.iteration.tokens_per_gpu)) }
                    td { (format!("{:.1}", ranked.iteration.memory.total() / 1e9)) }
                    td { (speed_up(outcome, ranked).map_or("-".into(), |x| format!("{x:.2}"))) }
                }
            }
        }
    }
}

/// The report: one page that needs no other file.
#[must_use]
pub fn page(file: &PlanFile, job: &Job, outcome: &Outcome, spans: &[Span]) -> String {
    let body = html! {
        h1 { (file.title) }
        p { "Predicted by a model, not measured. " (job.machine.description) ", "
            (job.sites.total()) " GPUs at " (job.sites.gpus.len()) " sites." }
        h2 { "The fastest plans" }
        (draw::parts(outcome))
        (rows(outcome))
        @if !outcome.measured.is_empty() {
            h2 { "Predicted and measured" }
            p { "An iteration computes and sends. Traffic alone: all that it sends between sites, \
                 from the first byte to the last." }
            (measured_rows(outcome))
        }
        h2 { "What is fastest, and why" }
        pre { (explanation(job, outcome)) }
        h2 { "Timeline of the fastest plan" }
        p { "Without what follows the last operation: exchanges of gradients and the optimizer." }
        (draw::timeline(spans))
        @if let Some(sweep) = &file.sweep {
            h2 { "Which placement is fastest" }
            (draw::heat_map(&sweep.names(), &outcome.sweep))
        }
    };
    document(&file.title, &[draw::STYLE], &body)
}
