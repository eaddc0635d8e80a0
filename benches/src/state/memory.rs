//! The memory for one MAC address with all its state: two FDB entries of the kernel (netdev and
//! bridge), zebra's entry, and the workers' table.

use super::fabric::LARGE;
use super::row;
use crate::table::{Better, Row};

/// The resident memory of this process in bytes (`VmRSS`).
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) * 1024.0
}

/// Measures the memory of a process with the tables of a leaf, then again after each MAC address
/// has moved.
#[must_use]
pub fn measure() -> Vec<Row> {
    let mut state = LARGE.state();
    drop(state.build());
    let empty = resident();
    LARGE.tell_macs(&mut state);
    let full = resident();
    for number in 0..LARGE.macs {
        let at = (LARGE.home(number) + 1) % LARGE.vteps;
        LARGE.remote(number, at).into_iter().for_each(|message| state.apply_kernel(message));
        if number % 100 == 0 {
            drop(state.build());
        }
    }
    drop(state.build());
    let moved = resident();
    let each = |bytes: f64| (bytes - empty) / f64::from(LARGE.macs);
    let case = |what| format!("memory, {} MACs{what}", LARGE.macs);
    vec![
        row(&case(""), "bytes/MAC", each(full), Some(160.0), Better::Lower),
        row(&case(", each moved"), "bytes/MAC", each(moved), None, Better::Lower),
        row("memory, the rest of the fabric", "MB", empty / 1e6, None, Better::Lower),
    ]
}
