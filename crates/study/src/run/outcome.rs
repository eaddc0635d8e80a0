//! What an experiment found.

use std::path::PathBuf;

use experiment::Summary;
use experiment::verdict::Verdict;

/// The result of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The runs, summarised.
    pub summary: Summary,
    /// It in one sentence.
    pub headline: Option<String>,
    /// What follows.
    pub verdicts: Vec<Verdict>,
    /// The page with the results.
    pub report: PathBuf,
}
