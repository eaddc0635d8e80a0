//! Counters of the frames.

use std::fmt;
use std::time::Duration;

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

/// A histogram of how late frames were sent in one direction.
#[derive(Debug, Clone)]
pub(super) struct Lateness(Vec<u64>);

/// The width of a histogram step, and the number of steps.
const STEP: Duration = Duration::from_micros(25);
const STEPS: usize = 400;

impl Lateness {
    pub(super) fn new() -> Self {
        Self(vec![0; STEPS])
    }

    pub(super) fn see(&mut self, late: Duration) {
        let step =
            usize::try_from(late.as_nanos() / STEP.as_nanos()).unwrap_or(STEPS).min(STEPS - 1);
        if let Some(count) = self.0.get_mut(step) {
            *count += 1;
        }
    }

    /// The lateness in microseconds that this share of the frames did not exceed, rounded up to a
    /// multiple of 25. 10,000 means 10,000 or more.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        let all: u64 = self.0.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        let steps = self.0.iter().take_while(|count| {
            seen += **count;
            seen < wanted
        });
        let step = steps.count() as u64;
        if all == 0 { 0 } else { (step + 1).min(STEPS as u64) * STEP.as_micros() as u64 }
    }
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
    /// The median of how late frames were sent, in µs.
    pub late_median_us: u64,
    /// The 99th percentile of how late frames were sent, in µs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_lateness() {
        let mut lateness = Lateness::new();
        assert_eq!(lateness.quantile(0.5), 0);
        for micros in 0..100 {
            lateness.see(Duration::from_micros(micros));
        }
        lateness.see(Duration::from_secs(3));
        assert_eq!(
            (lateness.quantile(0.5), lateness.quantile(0.99), lateness.quantile(1.0)),
            (75, 100, 10_000)
        );
    }
}
