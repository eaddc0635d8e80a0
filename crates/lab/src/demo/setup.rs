//! What the demo's figures were measured with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Settings;
use crate::random::SEED;
use crate::roce::PAYLOAD;

/// See the module's description. What cannot be found out is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// When the measurement began, in seconds since 1970 (UTC).
    pub unix_time: u64,
    /// The kernel's release.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The CPU's name.
    pub cpu_model: String,
    /// zebra's version.
    pub frr: String,
    /// vtepd's version.
    pub vtepd: String,
    /// The topology file.
    pub topology: PathBuf,
    /// What queue pair numbers are drawn from.
    pub seed: u64,
    /// Queue pairs between the two hosts.
    pub queue_pairs: usize,
    /// Frames per policy.
    pub frames: u64,
    /// Frames per second.
    pub rate: u32,
    /// Payload bytes of each frame.
    pub payload: usize,
}

impl Setup {
    pub(super) fn of(settings: &Settings) -> Self {
        let first_line = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().next().unwrap_or_default().to_owned()
        };
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            unix_time: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            cpus: std::thread::available_parallelism().map_or(0, Into::into),
            cpu_model: model.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            frr: version(Path::new("/usr/lib/frr/zebra")),
            vtepd: version(&settings.vtepd),
            topology: settings.topology.clone(),
            seed: SEED,
            queue_pairs: settings.queue_pairs,
            frames: settings.frames,
            rate: settings.rate,
            payload: PAYLOAD,
        }
    }
}

/// The last word of the first line that a program says of its version: `zebra version 8.4.4`,
/// `vtepd 0.1.0`.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .next()
        .and_then(|line| line.split_whitespace().last())
        .unwrap_or_default()
        .to_owned()
}
