//! vtepd beside kernel VXLAN, Open vSwitch and testpmd, over veth links, in turns within one run.
//!
//! On one core, the time between two frames that arrive, less what the sender alone needs for one,
//! is what forwarding costs (*net*): in the kernel, in softirqs and in vtepd alike.
//!
//! - [`forwarding`]: senders that send all they can, encapsulation and decapsulation
//! - [`profile`]: where a frame's time goes; only when it is named
//! - [`standalone`]: vtepd without a kernel bridge, both directions at once; not when it has to be
//!   quick
//! - [`talk`]: round trips, TCP, and what a quiet vtepd costs

mod forwarding;
mod profile;
mod standalone;
mod talk;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rig::Way;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::rows::Row;

type Failure = Box<dyn Error>;
/// What could not be measured, and why, or what to do.
type LeftOut = BTreeMap<Way, String>;

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Encapsulation and decapsulation, all that goes
    Forwarding,
    /// Round trips, TCP, and a quiet vtepd
    Talk,
    /// Without a kernel bridge, both directions at once
    Standalone,
    /// Where a frame's time goes, by perf; only when it is named
    Profile,
}

/// How much is measured.
#[derive(Debug, Clone)]
struct Terms {
    /// Fewer cases, fewer and shorter turns.
    quick: bool,
    /// Turns of each way and case.
    rounds: usize,
    /// The program.
    vtepd: PathBuf,
    /// Set by whoever interrupts.
    stop: Arc<AtomicBool>,
}

impl Terms {
    /// To be asked between turns, so that nothing is left behind.
    fn go_on(&self) -> Result<(), Failure> {
        if self.stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }
}

/// Measures these parts, each turn so often; all if none is named, but for the last where it has to
/// be quick.
///
/// # Errors
/// When namespaces or sockets cannot be had, or frames have not gone the way that they should.
pub fn run(quick: bool, rounds: usize, parts: &[Part]) -> Result<Vec<Row>, Failure> {
    let stop = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let terms = Terms { quick, rounds, vtepd: rig::daemon::beside_this_program()?, stop };
    if rig::cpu::count() < 2 {
        return Err("this needs two cores".into());
    }
    let (mut rows, mut left_out) = (Vec::new(), LeftOut::new());
    let left_unless_named =
        |part: Part| part == Part::Profile || (quick && part == Part::Standalone);
    let wanted =
        |part: Part| parts.contains(&part) || (parts.is_empty() && !left_unless_named(part));
    if wanted(Part::Forwarding) {
        rows.extend(forwarding::measure(&terms, &mut left_out)?);
    }
    if wanted(Part::Talk) {
        rows.extend(talk::measure(&terms)?);
    }
    if wanted(Part::Standalone) {
        rows.extend(standalone::measure(&terms)?);
    }
    if wanted(Part::Profile) {
        rows.extend(profile::measure(&terms)?);
    }
    for (way, why) in left_out {
        eprintln!("left out: {way}: {}", why.trim_end());
    }
    Ok(rows)
}
