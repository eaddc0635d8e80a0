//! The memory of a process and of its BPF maps.

use std::path::Path;

use crate::Error;

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Resident pages of the process, without those of executable files.
    private: u64,
    /// What the kernel accounts for the BPF maps that the process holds (`memlock` in `fdinfo`).
    maps: u64,
}

impl Memory {
    /// Resident pages of the process in megabytes, without those of executable files.
    #[must_use]
    pub fn private_mb(&self) -> f64 {
        self.private as f64 / 1e6
    }

    /// BPF maps in megabytes.
    #[must_use]
    pub fn maps_mb(&self) -> f64 {
        self.maps as f64 / 1e6
    }

    /// The mean of several processes; 0 of none.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let of =
            |what: fn(&Self) -> u64| all.iter().map(what).sum::<u64>() / (all.len().max(1)) as u64;
        Self { private: of(|memory| memory.private), maps: of(|memory| memory.maps) }
    }
}

/// The memory of a process.
///
/// # Errors
/// If the process has ended.
pub fn of(process: u32) -> Result<Memory, Error> {
    let folder = Path::new("/proc").join(process.to_string());
    let (mut private, mut of_file) = (0, false);
    // Each mapping is a line with its name, and lines with its figures (proc_pid_smaps(5)).
    for line in std::fs::read_to_string(folder.join("smaps"))?.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Rss:") if !of_file => {
                private += 1024 * words.next().and_then(|word| word.parse().ok()).unwrap_or(0_u64);
            }
            Some(word) if !word.ends_with(':') => {
                of_file = words
                    .nth(4)
                    .is_some_and(|name| name.starts_with('/') && !name.starts_with("/dev/"));
            }
            _ => {}
        }
    }
    let (mut maps, mut seen) = (0, Vec::new());
    for entry in std::fs::read_dir(folder.join("fdinfo"))? {
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        let number = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field))?;
            line.trim().parse::<u64>().ok()
        };
        if let (Some(_), Some(bytes), Some(id)) =
            (number("map_type:"), number("memlock:"), number("map_id:"))
            && !seen.contains(&id)
        {
            seen.push(id);
            maps += bytes;
        }
    }
    Ok(Memory { private, maps })
}
