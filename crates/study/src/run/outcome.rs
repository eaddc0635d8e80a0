//! What an experiment found.

use std::path::PathBuf;

use experiment::Summary;
use experiment::verdict::Verdict;

/// The result of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The runs, summarised.
    pub summary: Summary,
    /// The best and the worst dataplane in one sentence; `None` without runs.
    pub headline: Option<String>,
    /// What the runs show, each with whether it is beyond noise.
    pub verdicts: Vec<Verdict>,
    /// The page with the results.
    pub report: PathBuf,
}
