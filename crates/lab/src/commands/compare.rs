//! `lab compare`: what changed between two directories of results, or whether an experiment and its
//! simulation agree.

use std::process::ExitCode;

use experiment::compare::compare;
use lab::{run, simulation};

use crate::arguments::{Compare, Output};
use crate::output::{Outcome, print, print_json};

pub(super) fn run(arguments: &Compare, output: Output) -> Outcome {
    if let Some(changes) = simulation::compare(&arguments.before, &arguments.after)? {
        if output == Output::Json {
            return print_json(&changes);
        }
        changes.iter().try_for_each(print)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(agreement) = simulation::agreement(&arguments.before, &arguments.after)? {
        if output == Output::Json {
            print_json(&agreement)?;
        } else {
            print(&agreement)?;
        }
        return Ok(if agreement.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let comparison = compare(run::load(&arguments.before)?, run::load(&arguments.after)?);
    if output == Output::Json {
        return print_json(&comparison);
    }
    print(comparison)?;
    Ok(ExitCode::SUCCESS)
}
