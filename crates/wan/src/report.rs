//! Counters of the frames.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The counters of one direction of a circuit. `frames` is the sum of `sent`, `lost`, `queue_full`,
/// `buffer_full`, `refused` and `waiting`. It does not include `unreadable` and `overruns`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Received frames. A TCP super-frame is one frame. UDP super-frames and those inside VXLAN are
    /// split first.
    pub frames: u64,
    /// Bytes of these frames on the wire, without preamble and FCS. Super-frames count as their
    /// segments.
    pub bytes: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were dropped by `--loss`.
    pub lost: u64,
    /// Frames that were dropped because the rate limiter's queue was full.
    pub queue_full: u64,
    /// Frames that got an ECN mark, of those that left or wait.
    pub marked: u64,
    /// Frames that were dropped because 64 MiB were in transit.
    pub buffer_full: u64,
    /// Frames that the outgoing interface refused: it is down or deleted, or its MTU is smaller.
    pub refused: u64,
    /// Frames in transit.
    pub waiting: u64,
    /// Frames that are longer than 64 KiB, or whose offloads the kernel cannot describe.
    pub unreadable: u64,
    /// Frames that the kernel dropped because the socket buffer was full.
    pub overruns: u64,
}

/// The report on one direction of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// The interface where frames arrive.
    pub from: String,
    /// The interface where frames are sent.
    pub to: String,
    /// The counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// The median of how late frames were sent, in µs, rounded up by at most 1/64 and to whole ones.
    pub late_median_us: u64,
    /// The 99th percentile of the same.
    pub late_p99_us: u64,
}

/// The report on all directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Report(pub Vec<DirectionReport>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<33} {:>10} {:>10} {:>8} {:>10} {:>8} {:>8} {:>8} {:>10} {:>8} {:>13}",
            "circuit",
            "frames",
            "sent",
            "lost",
            "queue full",
            "marked",
            "refused",
            "waiting",
            "unreadable",
            "overruns",
            "late 50/99 %"
        )?;
        for DirectionReport { from, to, counts, late_median_us, late_p99_us } in &self.0 {
            write!(
                f,
                "\n{:<33} {:>10} {:>10} {:>8} {:>10} {:>8} {:>8} {:>8} {:>10} {:>8} {:>13}",
                format!("{from} -> {to}"),
                counts.frames,
                counts.sent,
                counts.lost,
                counts.queue_full + counts.buffer_full,
                counts.marked,
                counts.refused,
                counts.waiting,
                counts.unreadable,
                counts.overruns,
                format!("{late_median_us}/{late_p99_us} µs")
            )?;
        }
        Ok(())
    }
}
