//! Why a simulation failed.

use std::path::PathBuf;

use fabric::progress::Interrupted;

use crate::error::RunError;

/// The simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The file cannot be used.
    #[error(transparent)]
    Simulation(#[from] sim::file::FileError),
    /// The user interrupted the command.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The experiment cannot be used, or its results cannot be read.
    #[error(transparent)]
    Experiment(#[from] Box<RunError>),
    /// An experiment cannot be simulated.
    #[error("{}: {problem}", path.display())]
    Described {
        /// The file.
        path: PathBuf,
        /// What is in the way, and what to do.
        problem: String,
    },
    /// An experiment and a simulation have no case in common.
    #[error(
        "the experiment and the simulation have no case in common: run 'lab sim' with the file of \
         the experiment"
    )]
    NothingInCommon,
    /// A case of the file cannot be used.
    #[error("{case}: {problem}")]
    Case {
        /// The case.
        case: String,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line of a file of results cannot be read.
    #[error("{}, line {line} is damaged: delete it, and run again", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// The directory has the results of another file.
    #[error("{} has the results of another file: use another directory", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
    },
    /// Two lines of the same run differ.
    #[error("{run} has two different results: use the same lab for all shards, in a new directory")]
    Contradiction {
        /// The run.
        run: String,
    },
    /// A run gives another result now.
    #[error("{run} has another result now: run 'lab sim' again with this lab, in a new directory")]
    Changed {
        /// The run.
        run: String,
    },
    /// Runs are missing.
    #[error("{number} runs are missing, first {run}: run their shards again")]
    Missing {
        /// How many.
        number: usize,
        /// The first one.
        run: String,
    },
}
