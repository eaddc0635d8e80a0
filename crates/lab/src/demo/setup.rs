//! The conditions of the demo's measurement.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use experiment::units::Name;
use serde::{Deserialize, Serialize};

use experiment::random::SEED;
use study::machine;
use traffic::stream::PAYLOAD;

/// The settings of the demo.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the fabric; usually [`FABRIC`](super::FABRIC).
    pub fabric: Name,
    /// The topology file.
    pub topology: PathBuf,
    /// The vtepd executable.
    pub vtepd: PathBuf,
    /// The number of queue pairs between the two hosts.
    pub queue_pairs: usize,
    /// Frames per second.
    pub rate: u32,
    /// The number of frames for each policy.
    pub frames: u64,
}

/// The hardware, software and settings of a measurement. What cannot be determined is empty or 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The start of the measurement in seconds since 1970 (UTC).
    pub unix_time: u64,
    /// The kernel release.
    pub kernel: String,
    /// The number of CPUs that this process may use.
    pub cpus: usize,
    /// The CPU model.
    pub cpu_model: String,
    /// The version of zebra.
    pub frr: String,
    /// The version of vtepd.
    pub vtepd: String,
    /// The topology file.
    pub topology: PathBuf,
    /// The seed of the queue pair numbers.
    pub seed: u64,
    /// The number of queue pairs between the two hosts.
    pub queue_pairs: usize,
    /// The number of frames for each policy.
    pub frames: u64,
    /// Frames per second.
    pub rate: u32,
    /// The payload of each frame in bytes.
    pub payload: usize,
}

impl Setup {
    pub(super) fn of(settings: &Settings) -> Self {
        Self {
            unix_time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            kernel: machine::kernel(),
            cpus: machine::cpus(),
            cpu_model: machine::cpu_model(),
            frr: machine::frr(),
            vtepd: machine::version(&settings.vtepd),
            topology: settings.topology.clone(),
            seed: SEED,
            queue_pairs: settings.queue_pairs,
            frames: settings.frames,
            rate: settings.rate,
            payload: PAYLOAD,
        }
    }
}
