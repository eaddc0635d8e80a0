//! The commands of `lab`: fabrics in network namespaces, traffic through them, and measurements.
//! Fabrics are in the crate `fabric`, traffic in `traffic`, circuits in `wan`, what an experiment
//! file says in `experiment`.
//!
//! - [`hops`]: the path of a flow, router by router
//! - [`link`]: changes of links while the fabric runs
//! - [`capture`]: packets of leaves and links in one file
//! - [`graph`]: a picture of the fabric with the load on its links; [`mod@web`]: the live page
//! - [`daemon`]: vtepd on a node; [`leaves`]: on all leaves; `ask` sends it requests
//! - [`doctor`]: what a machine and a fabric can do for an experiment
//! - [`plan`]: plans of training between data centres
//! - [`simulation`]: `lab sim` and `lab merge`
//! - [`demo`], [`run`], [`verify`]: the commands of the same names; `machine` describes where they
//!   measured; [`RunError`] is why they could not

mod ask;
mod error;
mod machine;

pub mod capture;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod graph;
pub mod hops;
pub mod leaves;
pub mod link;
pub mod plan;
pub mod run;
pub mod simulation;
pub mod verify;
pub mod web;

pub use error::RunError;
