//! `lab compare`: what changed between two directories of results, or whether an experiment and its
//! simulation agree.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use experiment::compare::compare;
use experiment::figure::Csv;
use experiment::reference;
use study::{run, simulation};

use crate::arguments::Output;
use crate::output::{Outcome, print, print_json, show, status};
use crate::results_arguments::Compare;

const UNRELATED: &str = "the two results have no point in common: compare two of one experiment";

pub(super) fn run(arguments: &Compare, output: Output) -> Outcome {
    if let Some(changes) = simulation::compare(&arguments.before, &arguments.after)? {
        if output == Output::Json {
            return print_json(&changes);
        }
        changes.iter().try_for_each(print)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(agreement) = simulation::agreement(&arguments.before, &arguments.after)? {
        show(&agreement, output)?;
        return Ok(status(agreement.holds()));
    }
    if let Some(reference) = summary(&arguments.before, true)? {
        let here =
            summary(&arguments.after, false)?.ok_or("the later results have no summary.csv")?;
        let comparison = reference::compare(&reference, &here);
        if comparison.compared == 0 {
            return Err(UNRELATED.into());
        }
        show(&comparison, output)?;
        let same = comparison.differences.is_empty() && comparison.missing.is_empty();
        return Ok(status(same));
    }
    let comparison = compare(run::load(&arguments.before)?, run::load(&arguments.after)?);
    if comparison.figures.is_empty() {
        return Err(UNRELATED.into());
    }
    show(&comparison, output)
}

/// The summary of a directory; `None` without one. `only`: also `None` if it has the runs, too.
fn summary(directory: &Path, only: bool) -> Result<Option<Csv>, Box<dyn Error>> {
    let path = directory.join("summary.csv");
    if only && directory.join("runs.jsonl").exists() || !path.exists() {
        return Ok(None);
    }
    let text =
        experiment::input::read_text(&path).map_err(|of| format!("{}: {of}", path.display()))?;
    let table = Csv::parse("summary.csv", &text);
    Ok(Some(table.ok_or_else(|| format!("{} is no table", path.display()))?))
}
