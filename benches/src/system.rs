//! vtepd, kernel VXLAN, Open vSwitch and testpmd over veth links, measured in rounds of one run.
//!
//! On one core, forwarding costs the time between two arriving frames minus the sender's own time
//! for a frame. This net cost includes the kernel, softirqs and vtepd.
//!
//! - [`forwarding`]: encapsulation and decapsulation at the maximum rate
//! - [`profile`]: CPU time of a frame by purpose; only if requested
//! - [`standalone`]: vtepd without a kernel bridge, in both directions; not with `--quick`
//! - [`latency`]: round trips, TCP, and the cost of an idle vtepd
//! - [`leaves`]: many leaves in one machine

mod forwarding;
mod latency;
mod leaves;
mod profile;
mod standalone;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use testbed::Datapath;

use crate::table::Row;

type Failure = Box<dyn Error>;
/// Datapaths that were not measured, with the reason or what to install.
type LeftOut = BTreeMap<Datapath, String>;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Encapsulation and decapsulation, at the maximum rate
    Forwarding,
    /// Round trips, TCP, and the cost of an idle vtepd
    Latency,
    /// CPU and memory of 64 leaves in one machine, and memory of a leaf with 100 VNIs
    Leaves,
    /// Without a kernel bridge, in both directions at once
    Standalone,
    /// CPU time of a frame by purpose, with perf; only if it is named
    Profile,
}

/// The parameters of all parts.
#[derive(Debug, Clone)]
struct Options {
    /// Whether to measure fewer cases, with fewer and shorter measurements.
    quick: bool,
    /// The number of rounds for each datapath and case.
    rounds: usize,
    /// Only datapaths whose name contains one of these, beside the sender alone and the kernel; all
    /// if empty.
    datapaths: Vec<String>,
    /// The vtepd executable.
    vtepd: PathBuf,
    /// Set by signals.
    stop: Arc<AtomicBool>,
}

impl Options {
    /// Whether a datapath is measured.
    fn includes(&self, datapath: testbed::Datapath) -> bool {
        let name = datapath.to_string();
        let is_base =
            [testbed::Datapath::SenderOnly, testbed::Datapath::Kernel].contains(&datapath);
        is_base
            || self.datapaths.is_empty()
            || self.datapaths.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns an error if a signal has arrived. Called between measurements, so that everything is
    /// cleaned up.
    fn check_interrupt(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }
}

/// Measures the given parts. Without any, it measures all but the profile, and with `quick` not
/// standalone.
///
/// # Errors
/// If namespaces or sockets cannot be created, or frames did not take the measured path.
pub fn run(
    quick: bool,
    rounds: usize,
    parts: &[Part],
    datapaths: Vec<String>,
) -> Result<Vec<Row>, Failure> {
    let stop = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let options =
        Options { quick, rounds, datapaths, vtepd: testbed::daemon::beside_this_program()?, stop };
    if testbed::cpu::count() < 2 {
        return Err("this needs two cores".into());
    }
    let (mut rows, mut left_out) = (Vec::new(), LeftOut::new());
    let left_unless_named =
        |part: Part| part == Part::Profile || (quick && part == Part::Standalone);
    let wanted =
        |part: Part| parts.contains(&part) || (parts.is_empty() && !left_unless_named(part));
    if wanted(Part::Forwarding) {
        rows.extend(forwarding::measure(&options, &mut left_out)?);
    }
    if wanted(Part::Latency) {
        rows.extend(latency::measure(&options)?);
    }
    if wanted(Part::Leaves) {
        rows.extend(leaves::measure(&options)?);
    }
    if wanted(Part::Standalone) {
        rows.extend(standalone::measure(&options)?);
    }
    if wanted(Part::Profile) {
        rows.extend(profile::measure(&options)?);
    }
    for (datapath, why) in left_out {
        eprintln!("left out: {datapath}: {}", why.trim_end());
    }
    Ok(rows)
}
