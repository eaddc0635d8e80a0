//! *The kernel delivers N, vtepd delivers N*: one leaf, the same frames with kernel VXLAN alone and
//! with vtepd.
//!
//! ```text
//!        outside                        leaf                        outside
//!   h1 ──────────── hp1 ┐                          ┌ up1 ──────────── u1   VTEP 10.0.0.2
//!                       ├ br10 ── vx10 ── 10.0.0.1 ┤
//!   h2 ──────────── hp2 ┘                          └ up2 ──────────── u2   VTEP 10.0.0.3
//! ```
//!
//! The four interfaces of `outside` belong to no protocol stack: frames are written to them and
//! read from them. So hosts and remote VTEPs send whatever a test wants, and nothing else is on the
//! links.
//!
//! - [`leaf`]: the two namespaces
//! - [`stimulus`]: the frames that are sent, as data
//! - [`wires`]: the four interfaces
//! - [`observation`]: what arrived, in a normal form
//! - [`table`]: what a row is, and what is done with each
//! - [`rows`]: the rows
//! - [`differential`]: leaves, changes and frames drawn at random

pub mod differential;
pub mod leaf;
pub mod observation;
pub mod rows;
pub mod stimulus;
pub mod table;
pub mod wires;
