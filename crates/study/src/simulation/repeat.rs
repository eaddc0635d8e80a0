//! Runs of a simulation again, for what their results do not hold: the load of each link.

use std::collections::BTreeSet;
use std::path::Path;

use experiment::input;
use serde_json::{Value, json};
use sim::Outcome;
use sim::file::Traffic;
use sim::matrix::{Matrix, MatrixError};
use sim::result::Line;

use super::directory::{self, FILE, RESULTS};
use super::{Plan, Row, SimulationError, name, summary};
use fabric::progress::OnProgress;

/// A run that was repeated.
#[derive(Debug)]
pub struct Repeated {
    /// Its line in the results.
    pub line: Line,
    /// What the simulator says of it.
    pub outcome: Outcome,
}

/// Runs of a directory.
#[derive(Debug)]
pub struct Recorded {
    /// The first seed of each case and scheme, with one fabric.
    pub runs: Vec<Repeated>,
    /// The cases with other fabrics.
    pub others: Vec<String>,
    /// The title of the file.
    pub title: String,
    /// All results, summarised, for the page.
    pub rows: Vec<Value>,
}

/// Whether a directory has the results of a simulation.
pub fn is_directory(path: &Path) -> bool {
    path.join(FILE).is_file() && path.join(RESULTS).is_file()
}

/// The cases with results, in the order of the file.
///
/// # Errors
///
/// The results cannot be read.
pub fn recorded_cases(path: &Path) -> Result<Vec<String>, SimulationError> {
    let have: BTreeSet<String> =
        directory::results(path)?.into_iter().map(|line| line.case).collect();
    let cases = Plan::read(&path.join(FILE))?.cases.into_iter().map(|case| case.name);
    Ok(cases.filter(|name| have.contains(name)).collect())
}

/// The rows of cases that send a traffic matrix and nothing else, each with its matrix.
pub(crate) fn recorded_matrices(path: &Path) -> Result<Vec<(Row, Matrix)>, SimulationError> {
    let plan = Plan::read(&path.join(FILE))?;
    let mut found = Vec::new();
    for row in summary::rows(&directory::results(path)?) {
        let of = plan.cases.iter().find(|case| case.name == row.case);
        let Some([Traffic::Matrix { file }]) = of.map(|case| &case.file.traffic[..]) else {
            continue;
        };
        let place = path.join(file);
        let text = input::read_text(&place)
            .map_err(|source| SimulationError::File { path: place, source })?;
        let wrong = |error: MatrixError| SimulationError::Case {
            case: row.case.clone(),
            problem: error.to_string(),
        };
        let matrix = Matrix::parse(&text).map_err(wrong)?;
        found.push((row, matrix));
    }
    Ok(found)
}

/// Runs the first seed of each case and scheme again whose fabric is that of this case. The results
/// must be those of the directory.
///
/// # Errors
///
/// A file cannot be read, or a result differs.
pub fn repeat(path: &Path, case: &str, report: OnProgress) -> Result<Recorded, SimulationError> {
    let plan = Plan::read(&path.join(FILE))?;
    let lines = directory::results(path)?;
    let of = plan.cases.iter().find(|of| of.name == case);
    let fabric = of.map(|of| format!("{:?}", of.file.fabric)).unwrap_or_default();
    let mut others = BTreeSet::new();
    let mut runs = Vec::new();
    let wanted: Vec<_> = plan.runs().filter(|(.., key)| key.seed == 1).collect();
    for (number, (case, variant, key)) in (1..).zip(&wanted) {
        if format!("{:?}", case.file.fabric) != fabric {
            others.insert(case.name.clone());
            continue;
        }
        let Some(line) = lines.iter().find(|line| super::Key::of(line) == *key) else { continue };
        report(&format!("{}: repeating run {number} of {}", name(key), wanted.len()))?;
        let scenario = plan.scenario(case, variant, key.seed)?;
        let outcome = super::outcome(case, &scenario, key.seed, &|| true)?;
        let again = Line::new(&key.case, &key.scheme, key.seed, &scenario, &outcome);
        if !line.agrees(&again) {
            return Err(SimulationError::Changed { run: name(key) });
        }
        runs.push(Repeated { line: again, outcome });
    }
    let rows = summary::rows(&lines).into_iter().map(|row| {
        json!({
            "fabric": "", "point": row.case, "dataplane": row.scheme, "runs": row.seeds,
            "mean": row.completion_us.map(|time| time.mean),
            "half": row.completion_us.map(|time| time.half_width),
        })
    });
    let title = of.map(|of| of.file.title.clone()).unwrap_or_default();
    Ok(Recorded { runs, others: others.into_iter().collect(), title, rows: rows.collect() })
}
