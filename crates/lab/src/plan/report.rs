//! The text and the page of `lab plan`.

use std::fmt::Write as _;

use experiment::report::document;
use maud::{Markup, html};
use planner::iteration::Span;
use planner::search::Ranked;
use planner::{Iteration, Job, traffic};

use super::{Measured, Outcome, PlanFile, draw};

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

/// What was measured, beside the prediction.
fn measured(outcome: &Outcome) -> Vec<String> {
    let Some(best) = outcome.found.plans.first() else { return Vec::new() };
    let predicted = best.iteration.seconds;
    let line = |one: &Measured| {
        let Measured { variant, dataplane, queue_pairs, runs, seconds, half_width } = one;
        let width = half_width.map_or(String::new(), |width| format!(" ± {width:.3} s"));
        let variant = if variant.is_empty() { String::new() } else { format!(", {variant}") };
        format!(
            "measured: {seconds:.3} s{width} with {dataplane}, {queue_pairs} queue pairs{variant} \
             ({runs} runs); predicted: {predicted:.3} s, {:+.1} %",
            tenth(100.0 * (predicted / seconds - 1.0))
        )
    };
    outcome.measured.iter().map(line).collect()
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
            "  link between sites: {:.1} of {:.1} GB/s with {}, {:.1} ms",
            gigabytes(wire.bandwidth),
            gigabytes(job.sites.link.bandwidth),
            plan.technology,
            1e3 * wire.latency
        );
        let flows = traffic::flows(job, plan).unwrap_or_default();
        let sent: f64 = flows.iter().map(|flow| flow.bytes as f64 * f64::from(flow.messages)).sum();
        let _ = writeln!(
            text,
            "  sent between sites in an iteration: {:.1} GB in {} flows",
            gigabytes(sent),
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
            pre { (measured(outcome).join("\n")) }
        }
        h2 { "What is fastest, and why" }
        pre { (explanation(job, outcome)) }
        h2 { "Timeline of the fastest plan" }
        (draw::timeline(spans))
        @if let Some(sweep) = &file.sweep {
            h2 { "Which placement is fastest" }
            (draw::heat_map(&sweep.names(), &outcome.sweep))
        }
    };
    document(&file.title, &[draw::STYLE], &body)
}
