//! `lab compare`: what changed between two directories of results.

use std::process::ExitCode;

use experiment::compare::compare;
use lab::run;

use crate::arguments::{Compare, Output};
use crate::output::{Outcome, print, print_json};

pub(super) fn run(arguments: &Compare, output: Output) -> Outcome {
    let comparison = compare(run::load(&arguments.before)?, run::load(&arguments.after)?);
    if output == Output::Json {
        return print_json(&comparison);
    }
    print(comparison)?;
    Ok(ExitCode::SUCCESS)
}
