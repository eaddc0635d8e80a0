//! Experiments on load balance: the file that describes one, the plan of its runs, statistics, and
//! the report. Nothing here uses namespaces, processes or a clock; `lab run` does.
//!
//! - [`mod@file`]: the experiment file, with [`failure`] and [`circuits`]; [`units`]: its
//!   values
//! - [`input`]: reading of files that a user names; [`job`]: other jobs of a run
//! - [`plan`]: the order of the runs; [`shard`]: a part of them
//! - [`record`]: what is known about a run, and about the machine and the programs
//! - [`role`]: the tiers of links; [`balance`], [`statistics`], [`random`]: measures, their expected
//!   values, and random numbers
//! - [`summary`]: the runs of each point; [`verdict`]: what follows from them
//! - [`compare`]: what changed between two directories of results; [`reference`](mod@reference): beside a
//!   summary
//! - [`table`]: CSV; [`plot`]: SVG, of columns with [`figure`]; [`report`]: one HTML page
//! - [`swept`]: the numbers in the names of variants

pub mod balance;
pub mod circuits;
pub mod compare;
pub mod failure;
pub mod figure;
pub mod file;
pub mod input;
pub mod job;
pub mod plan;
pub mod plot;
pub mod random;
pub mod record;
pub mod reference;
pub mod report;
pub mod role;
pub mod shard;
pub mod statistics;
pub mod summary;
pub mod swept;
pub mod table;
pub mod units;
pub mod verdict;

pub use file::{Experiment, FileError};
pub use plan::Plan;
pub use record::Run;
pub use summary::Summary;
