//! A simulator of packets in a fabric of switches, in integer picoseconds.
//!
//! It does no I/O and reads no clock, and the same seed gives the same outcome on every machine. The
//! schemes that choose paths are those of `spray`.
//!
//! - [`scenario`]: what a run needs; [`run`]; [`outcome`]: what it gives
//! - [`topology`]: hosts, switches and links, `links`: from a list; [`traffic`]: flows; [`matrix`]: htsim's files of them
//! - `calendar`, `engine`: events; `port`: queues, ECN and trimming; `routes`: next hops
//! - [`mod@reference`]: cases that another simulator ran, and its figures
//! - `sender`, `receiver`: the transport; its window is [`roce::nscc`]
//! - [`vtep`]: real VTEPs, which handle frames
//! - [`mod@file`]: the file of a simulation
//! - [`result`]: the line of a run in a file of results
//! - [`time`]: picoseconds and rates

pub mod arrivals;
mod calendar;
mod engine;
pub mod file;
mod links;
pub mod matrix;
pub mod outcome;
mod packet;
mod port;
mod receiver;
pub mod reference;
pub mod result;
mod routes;
pub mod scenario;
mod sender;
mod table;
pub mod time;
pub mod topology;
pub mod traffic;
pub mod vtep;

pub use engine::{run, run_watched, run_with};
pub use outcome::Outcome;
pub use port::{Counters, Limits};
pub use routes::Choice;
pub use scenario::Scenario;
pub use sender::Feedback;
pub use vtep::Vteps;
