//! Plans of training between data centres: the job file, the search, and its report.

pub mod balance;
mod draw;
mod emulation;
mod file;
mod measured;
mod report;

use std::path::{Path, PathBuf};

use planner::plan::{Boundary, Plan};
use planner::search::{Found, Ranked};
use planner::{Evaluator, Infeasible, Iteration, Job, Space, search, traffic};
use serde::Serialize;

pub use file::{PlanFile, Sweep};
pub use measured::Measured;
pub use report::{explanation, page, table};

/// The plan could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The job file cannot be used.
    #[error(transparent)]
    File(#[from] experiment::FileError),
    /// A file could not be read or written.
    #[error("cannot read or write {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The results have no balance of a policy that the planner knows.
    #[error(
        "{} has no row of kernel, qp-pin or spray: name the results of an experiment with these \
         dataplanes", .0.display()
    )]
    NoBalance(PathBuf),
    /// The results have no iterations of a workload.
    #[error("{} has no iterations: name the results of an experiment with [workload]", .0.display())]
    NoIterations(PathBuf),
    /// A plan cannot be run.
    #[error(transparent)]
    Plan(#[from] Infeasible),
    /// Hosts of the lab cannot do it.
    #[error(
        "{0} cannot be emulated, only 1f1b across sites, and ddp or hsdp: give [search]          schedule = [\"1f1b\"] with boundary = [\"pipeline\"], or boundary = [\"data\"]"
    )]
    Emulation(String),
    /// The baseline cannot be run.
    #[error("the baseline cannot be run")]
    Baseline(#[source] Infeasible),
    /// No plan fits into memory.
    #[error(
        "no plan fits: {:.1} GB are missing on each GPU for the one that needs least; use more \
         GPUs, or add \"fsdp\" to 'sharding' and \"full\" to 'recompute' in [search]",
        .0 / 1e9
    )]
    Memory(f64),
    /// No plan can be laid out.
    #[error(
        "no plan can be laid out on these GPUs: give [search] other degrees of parallelism, or \
         'batch' more divisors"
    )]
    Nothing,
}

/// A point of a sweep, and what is fastest there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Point {
    /// The value of the first quantity.
    pub x: String,
    /// The value of the second quantity.
    pub y: String,
    /// The fastest plan; `None` if none fits.
    pub best: Option<Ranked>,
    /// The time of the fastest plan of each placement that fits.
    pub placements: Vec<(Boundary, f64)>,
}

/// The fastest plan of a placement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Alternative {
    /// What is fixed.
    pub name: String,
    /// The fastest plan with it.
    pub best: Ranked,
}

/// What `lab plan` found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// The fastest plans.
    #[serde(flatten)]
    pub found: Found,
    /// The plan that they are compared with.
    pub baseline: Option<Iteration>,
    /// The fastest plan of each placement and sharding.
    pub alternatives: Vec<Alternative>,
    /// The sweep of the file.
    pub sweep: Vec<Point>,
    /// What was measured of the fastest plan.
    pub measured: Vec<Measured>,
}

/// Settings of the search.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many plans are named.
    pub top: usize,
    /// Threads.
    pub threads: usize,
    /// Whether alternatives are searched.
    pub explain: bool,
    /// Whether the sweep of the file is searched.
    pub sweep: bool,
    /// Results of `lab run`, measured with the fastest plan.
    pub measured: Option<PathBuf>,
}

/// Searches the plans of a job.
///
/// # Errors
/// [`PlanError`].
pub fn plan(file: &PlanFile, job: &Job, settings: &Settings) -> Result<Outcome, PlanError> {
    let Settings { top, threads, explain, sweep, ref measured } = *settings;
    if let Some(unknown) = file.search.technology.iter().find(|one| job.wire(**one).is_none()) {
        return Err(Infeasible::Technology(*unknown).into());
    }
    let found = search(job, &file.search, top, threads);
    if found.plans.is_empty() {
        return Err(found.missing.map_or(PlanError::Nothing, PlanError::Memory));
    }
    let baseline = file.baseline.as_ref().map(|plan| Evaluator::new(job).evaluate(plan));
    let baseline = baseline.transpose().map_err(PlanError::Baseline)?;
    let alternatives = if explain { alternatives(job, &file.search, threads) } else { Vec::new() };
    let sweep = file.sweep.as_ref().filter(|_| sweep);
    let sweep = sweep.map(|sweep| sweep.points(job, &file.search, threads));
    let measured = match (measured, found.plans.first()) {
        (Some(directory), Some(best)) => measured::read(directory, &best.plan)?,
        _ => Vec::new(),
    };
    Ok(Outcome { found, baseline, alternatives, sweep: sweep.unwrap_or_default(), measured })
}

fn fastest(job: &Job, space: &Space, threads: usize) -> Option<Ranked> {
    search(job, space, 1, threads).plans.into_iter().next()
}

/// The fastest plan of each placement with each sharding.
fn alternatives(job: &Job, space: &Space, threads: usize) -> Vec<Alternative> {
    let both = space
        .boundary
        .iter()
        .flat_map(|boundary| space.sharding.iter().map(move |sharding| (*boundary, *sharding)));
    both.filter_map(|(boundary, sharding)| {
        let space = Space { boundary: vec![boundary], sharding: vec![sharding], ..space.clone() };
        let best = fastest(job, &space, threads)?;
        Some(Alternative { name: format!("{boundary}-out, {sharding}"), best })
    })
    .collect()
}

/// The text of a traffic file: JSON, a connection matrix for a name that ends in `.cm`, or the
/// `[workload]` of an experiment file for one that ends in `.toml`.
///
/// # Errors
/// [`PlanError`].
pub fn traffic_file(path: &Path, job: &Job, plan: &Plan) -> Result<String, PlanError> {
    let flows = traffic::flows(job, plan)?;
    if path.extension().is_some_and(|end| end == "cm") {
        return Ok(traffic::connection_matrix(job, &flows));
    }
    if path.extension().is_some_and(|end| end == "toml") {
        return emulation::workload(job, plan, &flows);
    }
    let text = serde_json::to_string_pretty(&flows);
    text.map_err(|source| PlanError::Io { path: path.to_owned(), source: source.into() })
}

#[cfg(test)]
mod tests;
