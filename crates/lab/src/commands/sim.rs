//! `lab sim`.

use std::path::Path;

use study::simulation::{self, Settings};

use crate::arguments::Output;
use crate::output::{Outcome, Progress, interrupt, note, print, print_json, status};
use crate::simulation_arguments::Sim;

pub(super) fn run(arguments: &Sim, output: Output) -> Outcome {
    if arguments.schema {
        return print_json(&sim::file::schema());
    }
    let file = arguments.file.clone().ok_or("the file of the simulation is missing")?;
    let out = arguments.out.clone().ok_or("the directory for the results is missing: --out DIR")?;
    let threads = arguments.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, Into::into),
        |threads| threads.get().into(),
    );
    let settings = Settings {
        command: format!("lab sim {} --out DIR", file.display()),
        file,
        out,
        threads,
        shard: arguments.shard,
    };
    let progress = Progress::new();
    let outcome = simulation::run(&settings, &|text| progress.report(text), interrupt());
    drop(progress);
    show(&outcome?, output)
}

/// Joins the parts of a simulation.
pub(super) fn merge(directory: &Path, output: Output) -> Outcome {
    let command = format!("lab sim {} --out DIR", directory.join("simulation.toml").display());
    show(&simulation::merge(directory, &command)?, output)
}

/// Prints the results. The exit status is 1 if flows did not finish.
fn show(outcome: &simulation::Outcome, output: Output) -> Outcome {
    if output == Output::Json {
        print_json(outcome)?;
    } else {
        outcome.verdicts.iter().try_for_each(print)?;
        if let Some(report) = &outcome.report {
            print(format_args!("Report: {}", report.display()))?;
        }
    }
    outcome.unfinished.iter().for_each(note);
    Ok(status(outcome.unfinished.is_empty()))
}
