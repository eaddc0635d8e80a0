//! What it costs to know a large fabric and to follow its changes.
//!
//! - [`attach`]: many VNIs taken over and given back
//! - [`daemon`]: vtepd as a child
//! - [`fabric`]: a leaf of a large fabric, in messages
//! - [`live`]: vtepd under a stream of frames: its start, its reactions, its gaps
//! - [`memory`]: what one MAC address takes
//! - [`publication`]: from an event to a snapshot
//! - [`ingest`]: zebra's stream through a real socket, and a dump of the kernel
//! - [`messages`]: rtnetlink messages byte by byte
//! - [`probe`]: numbered frames, and when they arrive
//! - [`site`]: a leaf in namespaces

pub mod attach;
pub mod fabric;
pub mod ingest;
pub mod live;
pub mod memory;
pub mod messages;
pub mod probe;
pub mod publication;
pub mod site;

use std::error::Error;
use std::time::Duration;

use crate::rows::{Better, Row};

/// Measures everything. `quick` repeats less and keeps the sizes.
///
/// # Errors
/// When namespaces or sockets cannot be had.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    // Memory first, in a process that has not used any yet.
    let mut rows = memory::measure();
    rows.extend(publication::measure(quick));
    rows.extend(ingest::measure(quick)?);
    rows.extend(live::measure(quick)?);
    rows.extend(attach::measure(quick)?);
    Ok(rows)
}

/// A figure without a kernel's beside it.
pub(crate) fn row(case: &str, unit: &str, vtepd: f64, target: Option<f64>, better: Better) -> Row {
    let (bench, case, unit) = ("state".to_owned(), case.to_owned(), unit.to_owned());
    Row { bench, case, unit, vtepd, target, better, ..Row::default() }
}

/// The median and the largest of some times, in microseconds.
pub(crate) fn median_and_worst(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |place: usize| times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
