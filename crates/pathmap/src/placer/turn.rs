//! Whose turn it is to move queue pairs.

use std::time::Duration;

use crate::load::MOST_YIELDED;

/// Whose turn it is to move.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// As [`crate::Report::gain`].
    pub(super) gain: u32,
    /// When the gain became greater last.
    risen: Duration,
    /// Since when it is not 0.
    since: Duration,
    /// Counts the VTEPs for which moves were looked for.
    pub(super) next: usize,
}

impl Turn {
    pub(super) fn claim(&mut self, gain: f64, now: Duration) {
        // The order of gains is what counts, so their logarithm is enough.
        let announced = if gain > 0.0 { (1e6 * (1.0 + gain.max(1.0).log2())) as u32 } else { 0 };
        if announced > self.gain {
            self.risen = now;
        }
        if self.gain == 0 {
            self.since = now;
        }
        self.gain = announced;
    }

    /// Whether all had the time to hear of the claim. One that rises again and again, because of what
    /// others report, is not waited for any longer.
    pub(super) fn is_heard(&self, settle: Duration, now: Duration) -> bool {
        now.saturating_sub(self.risen) >= settle || now.saturating_sub(self.since) >= MOST_YIELDED
    }
}
