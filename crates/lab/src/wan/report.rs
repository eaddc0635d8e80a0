//! What became of the frames.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Of one direction of a circuit. `frames` are all of `sent`, `lost`, `queue_full`, `buffer_full`,
/// `refused` and `waiting`; `unreadable` and `overruns` never became frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames that came in; a TCP super-frame is one, but one of UDP or inside of VXLAN is cut into
    /// its segments before.
    pub frames: u64,
    /// Their bytes, as on a wire: super-frames as their segments, without preamble and FCS.
    pub bytes: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames that were lost as asked for (`--loss`).
    pub lost: u64,
    /// Frames that found the queue for the rate full.
    pub queue_full: u64,
    /// Frames that found 64 MiB on their way already.
    pub buffer_full: u64,
    /// Frames that the interface on the other side did not take: down, gone, or with a smaller MTU.
    pub refused: u64,
    /// Frames on their way.
    pub waiting: u64,
    /// Frames that the kernel could not hand over with their offloads, or that are longer than 64
    /// KiB.
    pub unreadable: u64,
    /// Frames that the kernel dropped because they were not fetched in time.
    pub overruns: u64,
}

/// How much later than it should have a frame went out, over all frames of a direction.
#[derive(Debug, Clone)]
pub(super) struct Lateness(Vec<u64>);

/// Of one count of [`Lateness`], and how many there are.
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

    /// In microseconds, rounded up to 25: what this share of the frames did not exceed. 10,000
    /// stands for that and more.
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

/// One direction of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectionReport {
    /// The interface that frames come from.
    pub from: String,
    /// The interface that they go to.
    pub to: String,
    /// What became of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// How much later than meant frames went out, µs: half of them at most so much.
    pub late_median_us: u64,
    /// 99 of 100 at most so much.
    pub late_p99_us: u64,
}

/// All directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report(pub Vec<DirectionReport>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<33} {:>10} {:>10} {:>8} {:>10} {:>8} {:>8} {:>10} {:>8} {:>13}",
            "circuit",
            "frames",
            "sent",
            "lost",
            "queue full",
            "refused",
            "waiting",
            "unreadable",
            "overruns",
            "late 50/99 %"
        )?;
        for DirectionReport { from, to, counts, late_median_us, late_p99_us } in &self.0 {
            write!(
                f,
                "\n{:<33} {:>10} {:>10} {:>8} {:>10} {:>8} {:>8} {:>10} {:>8} {:>13}",
                format!("{from} -> {to}"),
                counts.frames,
                counts.sent,
                counts.lost,
                counts.queue_full + counts.buffer_full,
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
