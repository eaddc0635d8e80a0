//! Experiments on load balance: the file that describes one, the plan of its runs, statistics, and
//! the report. Nothing here uses namespaces, processes or a clock; `lab run` does.
//!
//! - [`mod@file`]: the experiment file, with [`failure`] and [`circuits`]; [`units`]: its values
//! - [`plan`]: the order of the runs
//! - [`record`]: what is known about a run, and about the machine and the programs
//! - [`balance`], [`statistics`], [`random`]: measures, their expected values, and random numbers
//! - [`summary`]: the runs of each point; [`verdict`]: what follows from them
//! - [`compare`]: what changed between two directories of results
//! - [`table`]: CSV; [`plot`]: SVG; [`report`]: one HTML page

pub mod balance;
pub mod circuits;
pub mod compare;
pub mod failure;
pub mod file;
pub mod job;
pub mod plan;
pub mod plot;
pub mod random;
pub mod record;
pub mod report;
pub mod role;
pub mod statistics;
pub mod summary;
pub mod table;
pub mod units;
pub mod verdict;

pub use file::{Experiment, FileError};
pub use plan::Plan;
pub use record::Run;
pub use summary::Summary;
