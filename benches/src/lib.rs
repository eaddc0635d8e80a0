//! The benchmarks, and their reports.

pub mod htsim;
pub mod micro;
pub mod planner;
pub mod plot;
pub mod roce;
pub mod scale;
pub mod sim;
pub mod state;
pub mod system;

pub use frames::{clock, leaf};
pub use testbed::table;
