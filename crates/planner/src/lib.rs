//! Predicts how long an iteration of distributed training takes between data centres, and searches
//! the fastest plan. Nothing here does I/O.
//!
//! - [`job`]: what is planned for: [`model`], [`machine`], [`network`]; [`check`]: its numbers
//! - [`plan`]: degrees of parallelism, schedule, sharding, placement
//! - [`order`], [`sequence`], [`timeline`]: the order of operations, and list scheduling
//! - [`collective`]: bytes and times of collective operations
//! - [`iteration`]: the time of a plan and its parts, with [`memory`]
//! - [`mod@search`]: the fastest plans; [`traffic`]: what they send between sites
//!
//! `docs/design/planner.md` has the formulas and their sources.

pub mod check;
pub mod collective;
mod cost;
pub mod dispatch;
mod gradients;
pub mod iteration;
pub mod job;
pub mod machine;
pub mod memory;
pub mod model;
pub mod network;
mod normal;
pub mod order;
mod placement;
pub mod plan;
mod prepared;
pub mod search;
pub mod sequence;
pub mod timeline;
pub mod traffic;

pub use iteration::{Evaluator, Iteration};
pub use job::Job;
pub use placement::Infeasible;
pub use plan::{Plan, Schedule};
pub use search::{Space, search, search_watched};
