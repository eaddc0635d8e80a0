//! Measures the cost of a large forwarding state and the time to follow its changes.
//!
//! - [`attach`]: takes over many VNIs and gives them back
//! - [`fabric`]: a leaf of a large fabric, as netlink messages
//! - [`convergence`]: vtepd under a stream of frames: start, reaction to changes, gaps
//! - [`memory`]: the memory for one MAC address
//! - [`publication`]: from an event to a snapshot
//! - [`ingest`]: zebra's stream through a socket, and a dump of the kernel's tables
//! - [`messages`]: rtnetlink messages as bytes
//! - [`probe`]: numbered frames, and the times of their arrival
//! - [`fixture`]: a leaf in namespaces

pub mod attach;
pub mod convergence;
pub mod fabric;
pub mod fixture;
pub mod ingest;
pub mod memory;
pub mod messages;
pub mod probe;
pub mod publication;

use std::error::Error;
use std::time::Duration;

use crate::table::{Better, Row};

/// Measures everything. `quick` reduces repetitions, not sizes.
///
/// # Errors
/// If namespaces or sockets cannot be created.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    // Memory is measured first, while the process has allocated little.
    let mut rows = memory::measure();
    rows.extend(publication::measure(quick));
    rows.extend(ingest::measure(quick)?);
    rows.extend(convergence::measure(quick)?);
    rows.extend(attach::measure(quick)?);
    Ok(rows)
}

/// A row without a figure of the kernel.
pub(crate) fn row(case: &str, unit: &str, vtepd: f64, target: Option<f64>, better: Better) -> Row {
    let (bench, case, unit) = ("state".to_owned(), case.to_owned(), unit.to_owned());
    Row { bench, case, unit, vtepd, target, better, ..Row::default() }
}

/// The median and maximum of some times, in microseconds.
pub(crate) fn median_and_worst(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |place: usize| times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
