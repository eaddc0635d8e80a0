//! Studies: from a file that says what is asked to a directory that answers. An experiment runs on
//! emulated fabrics, a simulation and a plan compute.
//!
//! - [`run`]: experiments, turn by turn, with what each turn measured
//! - [`simulation`]: sweeps of the simulator, in parts if wanted
//! - [`plan`]: plans of training between data centres
//! - [`daemon`]: vtepd on a node; [`leaves`]: on all leaves; [`ask`] sends it requests
//! - [`machine`]: the machine that a result is from; [`RunError`]: why there is none

mod error;

pub mod ask;
pub mod daemon;
pub mod leaves;
pub mod machine;
pub mod plan;
pub mod run;
pub mod simulation;

pub use error::RunError;
