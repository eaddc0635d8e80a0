//! The commands of `lab`: fabrics in network namespaces, traffic through them, and measurements.
//! Fabrics are in the crate `fabric`, traffic in `traffic`, circuits in `wan`, what an experiment
//! file says in `experiment`, and what comes of such a file in `study`.
//!
//! - [`hops`]: the path of a flow, router by router
//! - [`link`]: changes of links while the fabric runs
//! - [`capture`]: packets of leaves and links in one file
//! - [`graph`]: a picture of the fabric with the load on its links; [`mod@web`]: the live page
//! - [`doctor`]: what a machine and a fabric can do for an experiment
//! - [`zebra`]: whether vtepd hears it; [`prometheus`]: metrics of all leaves at one address
//! - [`demo`], [`verify`]: the commands of the same names

pub mod capture;
pub mod demo;
pub mod doctor;
pub mod graph;
pub mod hops;
pub mod link;
pub mod prometheus;
pub mod verify;
pub mod web;
pub mod zebra;
