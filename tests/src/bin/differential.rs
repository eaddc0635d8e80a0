//! Differential fuzzing of vtepd against kernel VXLAN.
//!
//! Usage: `tests/differential [--runs N] [--seed S] [--plain] [--without PART-OF-A-KNOB'S-NAME]...`

use std::process::ExitCode;
use std::time::Instant;

use vtepd_tests::equivalence::differential::{Limits, run};

fn main() -> ExitCode {
    let (mut runs, mut seed, mut limits) = (100, 1, Limits::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value behind the option");
        match argument.as_str() {
            "--runs" => runs = value().parse().expect("a number of runs"),
            "--seed" => seed = value().parse().expect("a seed"),
            "--without" => limits.without.push(value()),
            "--plain" => limits.plain = true,
            _ => {
                println!(
                    "usage: tests/differential [--runs N] [--seed S] [--plain] [--without PART]..."
                );
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    let summary = run(seed, runs, &limits);
    println!(
        "{runs} runs from seed {seed} on in {} s: {} differ, {} cannot be compared",
        start.elapsed().as_secs(),
        summary.differences.len(),
        summary.unsteady.len()
    );
    if summary.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
