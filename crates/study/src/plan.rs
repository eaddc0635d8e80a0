//! Plans of training between data centres: the job file, the search, and its report.

pub mod balance;
mod draw;
mod emulation;
mod file;
mod measured;
mod report;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use planner::network::Technology;
use planner::plan::{Boundary, Plan};
use planner::search::{Found, Ranked};
use planner::{Evaluator, Infeasible, Iteration, Job, Space, search_watched, traffic};
use serde::Serialize;

use fabric::progress::{Interrupted, OnProgress};

pub use file::{PlanFile, Sweep};
pub use measured::{Measured, Source, What};
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
    /// A measured balance is no number that it can be.
    #[error(
        "{}: the MMR of {technology} is {imbalance}, not a number from 1 to 4096: measure again",
        .path.display()
    )]
    Balance {
        /// The results.
        path: PathBuf,
        /// The technology.
        technology: Technology,
        /// Its MMR.
        imbalance: f64,
    },
    /// The results are those of another job.
    #[error(
        "{}: '{key}' of the workload is {found}, and {planned} in the fastest plan: run the workload \
         that lab plan --traffic FILE.toml writes",
        .path.display()
    )]
    OtherJob {
        /// The results.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value in the results.
        found: String,
        /// Its value in the plan.
        planned: String,
    },
    /// The simulation sends something else.
    #[error(
        "{}: no case sends what the fastest plan does: simulate the matrix that lab plan --traffic \
         FILE.cm writes, as the one [[traffic]]",
        .0.display()
    )]
    OtherTraffic(PathBuf),
    /// The results cannot be read.
    #[error(transparent)]
    Results(#[from] crate::error::RunError),
    /// The results of a simulation cannot be read.
    #[error(transparent)]
    Simulation(#[from] crate::simulation::SimulationError),
    /// The user stopped the search.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A plan cannot be run.
    #[error(transparent)]
    Plan(#[from] Infeasible),
    /// Hosts of the lab cannot do it.
    #[error(
        "{0} cannot be emulated, only 1f1b across sites, and ddp or hsdp: give [search] schedule = \
         [\"1f1b\"] with boundary = [\"pipeline\"], or boundary = [\"data\"]"
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
    /// Results of `lab run` or `lab sim` with the fastest plan.
    pub measured: Vec<PathBuf>,
}

/// Searches, and says how far it is.
struct Searcher<'a> {
    threads: usize,
    progress: OnProgress<'a>,
    start: Instant,
    /// Searches that are done.
    done: Cell<usize>,
}

impl Searcher<'_> {
    fn search(&self, job: &Job, space: &Space, top: usize) -> Result<Found, Interrupted> {
        let done = self.done.replace(self.done.get() + 1);
        let (start, seconds) = (self.start, AtomicU64::new(self.start.elapsed().as_secs()));
        let progress = self.progress;
        let watch = |tried: usize, of: usize| {
            let now = start.elapsed().as_secs();
            // Once in a second.
            seconds.swap(now, Ordering::Relaxed) == now
                || progress(&format!("search {}: {tried} of {of} plans", done + 1)).is_ok()
        };
        search_watched(job, space, top, self.threads, &watch).ok_or(Interrupted)
    }

    fn fastest(&self, job: &Job, space: &Space) -> Result<Option<Ranked>, PlanError> {
        Ok(self.search(job, space, 1)?.plans.into_iter().next())
    }
}

/// Searches the plans of a job.
///
/// # Errors
/// [`PlanError`].
pub fn plan(
    file: &PlanFile,
    job: &Job,
    settings: &Settings,
    progress: OnProgress<'_>,
) -> Result<Outcome, PlanError> {
    let Settings { top, threads, explain, sweep, ref measured } = *settings;
    let is_known = |one: &&Technology| job.balance.iter().any(|known| known.technology == **one);
    if let Some(unknown) = file.search.technology.iter().find(|one| !is_known(one)) {
        return Err(Infeasible::Technology(*unknown).into());
    }
    let searcher = Searcher { threads, progress, start: Instant::now(), done: Cell::new(0) };
    let found = searcher.search(job, &file.search, top)?;
    if found.plans.is_empty() {
        return Err(found.missing.map_or(PlanError::Nothing, PlanError::Memory));
    }
    let baseline = file.baseline.as_ref().map(|plan| Evaluator::new(job).evaluate(plan));
    let baseline = baseline.transpose().map_err(PlanError::Baseline)?;
    let alternatives =
        if explain { alternatives(&searcher, job, &file.search)? } else { Vec::new() };
    let sweep = file.sweep.as_ref().filter(|_| sweep);
    let sweep = sweep.map(|sweep| sweep.points(&searcher, job, &file.search)).transpose()?;
    let measured = match found.plans.first() {
        Some(best) => measured::read_all(measured, job, best)?,
        None => Vec::new(),
    };
    let sweep = sweep.unwrap_or_default();
    Ok(Outcome { found, baseline, alternatives, sweep, measured })
}

/// The fastest plan of each placement with each sharding.
fn alternatives(
    searcher: &Searcher<'_>,
    job: &Job,
    space: &Space,
) -> Result<Vec<Alternative>, PlanError> {
    let mut found = Vec::new();
    for boundary in space.boundary.iter().copied() {
        for sharding in space.sharding.iter().copied() {
            let space =
                Space { boundary: vec![boundary], sharding: vec![sharding], ..space.clone() };
            let name = format!("{boundary}-out, {sharding}");
            found.extend(searcher.fastest(job, &space)?.map(|best| Alternative { name, best }));
        }
    }
    Ok(found)
}

/// The text of a traffic file: JSON, a connection matrix for a name that ends in `.cm`, or the
/// `[workload]` of an experiment file for one that ends in `.toml`.
///
/// # Errors
/// [`PlanError`].
pub fn traffic_file(path: &Path, job: &Job, plan: &Plan) -> Result<String, PlanError> {
    let flows = traffic::flows(job, plan)?;
    if path.extension().is_some_and(|end| end == "cm") {
        return Ok(traffic::connection_matrix(job, plan, &flows));
    }
    if path.extension().is_some_and(|end| end == "toml") {
        return emulation::workload(job, plan, &flows);
    }
    let text = serde_json::to_string_pretty(&flows);
    text.map_err(|source| PlanError::Io { path: path.to_owned(), source: source.into() })
}

#[cfg(test)]
mod tests;
