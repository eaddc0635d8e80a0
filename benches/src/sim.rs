//! The simulator: the cases that htsim ran, with its figures beside ours, and the CPU time of runs.

use std::error::Error;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sim::Outcome;
use sim::reference::{rows, scenario, spraying};

use crate::table::{Better, Figure, Row};

/// Packets of a kind.
type Count = fn(&Outcome) -> f64;

/// PRIME-like and others on known paths, which the reference does not have.
const OWN: [&str; 6] = [
    "known-oblivious-16",
    "known-bitmap-16-log",
    "known-prime-like-16-log",
    "reps-64-log",
    "bitmap-64-log",
    "prime-like-64-log",
];
const OWN_CASES: [&str; 4] =
    ["permutation-2M", "permutation-2M-degraded-4", "dead-link-1", "ordered-25%"];

/// Runs all cases, and then the fabrics of several sizes. `quick`: no fabric of 8,192 hosts.
///
/// # Errors
/// If a flow does not finish.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut all = Vec::new();
    for row in rows() {
        eprintln!("sim: {}, {}", row.case, row.scheme);
        let outcomes = outcomes(&row.case, &row.scheme, row.seeds)?;
        let [mean, least, most] = row.completion;
        let theirs = Figure { median: mean, range: [least, most] };
        all.push(beside(&row.case, &row.scheme, "last flow, µs", &outcomes, completion, theirs));
        if let Some(sprayed) = row.sprayed {
            let theirs = Figure::of([sprayed]);
            let unit = "last sprayed flow, µs";
            all.push(beside(&row.case, &row.scheme, unit, &outcomes, last_sprayed, theirs));
        }
        let counts: [(&str, f64, Count); 3] = [
            ("resent", row.retransmitted, |outcome| outcome.retransmitted as f64),
            ("ACKs", row.acks, |outcome| outcome.acks as f64),
            ("NACKs", row.nacks, |outcome| outcome.nacks as f64),
        ];
        for (unit, theirs, ours) in counts.into_iter().filter(|(_, theirs, _)| *theirs > 100.0) {
            let theirs = Figure::of([theirs]);
            all.push(beside(&row.case, &row.scheme, unit, &outcomes, ours, theirs));
        }
    }
    for (case, scheme) in OWN_CASES.into_iter().flat_map(|case| OWN.map(|scheme| (case, scheme))) {
        eprintln!("sim: {case}, {scheme}");
        let outcomes = outcomes(case, scheme, 5)?;
        all.push(alone(case, scheme, "last sprayed flow, µs", means(&outcomes, last_sprayed)));
    }
    for hosts in [128, 1024, 8192].into_iter().filter(|hosts| !quick || *hosts < 8192) {
        for scheme in ["bitmap-64", "reps-64"] {
            eprintln!("sim: {hosts} hosts, {scheme}");
            all.extend(cost(hosts, scheme)?);
        }
    }
    Ok(all)
}

/// Runs a case with the seeds from 1.
fn outcomes(case: &str, scheme: &str, seeds: u64) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let spraying = spraying(scheme).ok_or_else(|| format!("{scheme} is no scheme"))?;
    let one = |seed| {
        let outcome = sim::run(&scenario(case, spraying, 128, seed), seed);
        match outcome.unfinished.first() {
            Some(waiting) => Err(format!("{case}, {scheme}, seed {seed}: {waiting}").into()),
            None => Ok(outcome),
        }
    };
    (1..=seeds).map(one).collect()
}

fn completion(outcome: &Outcome) -> f64 {
    outcome.completion().unwrap_or_default()
}

fn last_sprayed(outcome: &Outcome) -> f64 {
    let sprayed = outcome.flows.iter().filter(|flow| !flow.ordered);
    sprayed.filter_map(sim::outcome::FlowOutcome::time).fold(0.0, f64::max)
}

/// The mean, least and most over the seeds.
fn means(outcomes: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> Figure {
    let figures: Vec<f64> = outcomes.iter().map(figure).collect();
    let mean = figures.iter().sum::<f64>() / figures.len() as f64;
    Figure { median: mean, ..Figure::of(figures) }
}

fn beside(
    case: &str,
    scheme: &str,
    unit: &str,
    outcomes: &[Outcome],
    ours: impl Fn(&Outcome) -> f64,
    theirs: Figure,
) -> Row {
    let name = format!("{case}, {scheme}");
    Row::beside("simulation", name, unit, means(outcomes, ours), Some(theirs), Better::Lower)
}

fn alone(case: &str, scheme: &str, unit: &str, ours: Figure) -> Row {
    let name = format!("{case}, {scheme}");
    Row::beside("simulation", name, unit, ours, None, Better::Lower)
}

/// The CPU time of a permutation of 2 MB a host: the least of three runs, one with many hosts.
fn cost(hosts: u32, scheme: &str) -> Result<[Row; 3], Box<dyn Error>> {
    let spraying = spraying(scheme).ok_or_else(|| format!("{scheme} is no scheme"))?;
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..if hosts > 1024 { 1 } else { 3 } {
        let start = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        let outcome = sim::run(&scenario("permutation-2M", spraying, hosts, 1), 1);
        let time: Duration = (clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)? - start).into();
        times.push(time.as_secs_f64());
        last = Some(outcome);
    }
    let outcome = last.ok_or("there was no run")?;
    let Figure { range, .. } = Figure::of(times);
    let least = Figure { median: range[0], range };
    let case = format!("permutation-2M, {hosts} hosts");
    let steps = Figure::of([outcome.events as f64 / range[0] / 1e6]);
    let rate = alone(&case, scheme, "million events/s", steps);
    Ok([
        alone(&case, scheme, "CPU, s", least),
        Row { better: Better::Higher, ..rate },
        alone(&case, scheme, "last flow, µs", Figure::of([completion(&outcome)])),
    ])
}
