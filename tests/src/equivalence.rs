//! Equivalence of kernel VXLAN and vtepd: one leaf forwards the same frames with kernel VXLAN alone
//! and with vtepd, and the same frames must arrive.
//!
//! ```text
//!        outside                        leaf                        outside
//!   h1 ──────────── hp1 ┐                          ┌ up1 ──────────── u1   VTEP 10.0.0.2
//!                       ├ br10 ── vx10 ── 10.0.0.1 ┤
//!   h2 ──────────── hp2 ┘                          └ up2 ──────────── u2   VTEP 10.0.0.3
//! ```
//!
//! No protocol stack uses the four interfaces of `outside`: the tests write frames to them and read
//! frames from them. So hosts and remote VTEPs send exactly the frames of a test, and the links
//! carry no others.
//!
//! - [`leaf`]: the two namespaces
//! - [`stimulus`]: the frames that are sent, as data
//! - [`wires`]: the four interfaces
//! - [`observation`]: what arrived, in a normal form
//! - [`table`]: what a row is, and how it is tested
//! - [`rows`]: the rows
//! - [`differential`]: random leaves, changes and frames

pub mod differential;
pub mod leaf;
pub mod observation;
pub mod rows;
pub mod stimulus;
pub mod table;
pub mod wires;
