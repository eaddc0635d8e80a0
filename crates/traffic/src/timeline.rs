//! Frames over time.

use std::time::{Duration, Instant};

/// The width of a bin.
pub const BIN: Duration = Duration::from_millis(10);
/// The longest time that is kept: an hour.
const BINS_MAX: usize = 360_000;

/// What a stream sent, and what arrived of it, in bins of [`BIN`].
///
/// Times are those at which the sender handed frames to the kernel, and at which the receiver read
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// When the first bin began.
    pub origin: Instant,
    /// Frames that were sent in each bin. In the first bin, a frame was sent or has arrived.
    pub sent: Vec<u64>,
    /// Frames that arrived in each bin. It may be longer: the last frames arrive later.
    pub arrived: Vec<u64>,
}

impl Timeline {
    /// Joins what both ends have counted since `origin`. Bins before the first frame are left out.
    /// That may be an arrival: the sender reads the time after the kernel has the frame.
    pub(crate) fn new(origin: Instant, sent: Bins, arrived: Bins) -> Self {
        let (mut sent, mut arrived) = (sent.frames, arrived.frames);
        let before = |frames: &[u64]| frames.iter().position(|frames| *frames > 0);
        let empty = before(&sent).into_iter().chain(before(&arrived)).min().unwrap_or_default();
        sent.drain(..empty.min(sent.len()));
        arrived.drain(..empty.min(arrived.len()));
        let skipped = BIN.saturating_mul(u32::try_from(empty).unwrap_or_default());
        Self { origin: origin + skipped, sent, arrived }
    }
}

/// The frames of one end since a time.
#[derive(Debug)]
pub(crate) struct Bins {
    origin: Instant,
    frames: Vec<u64>,
}

impl Bins {
    pub(crate) const fn since(origin: Instant) -> Self {
        Self { origin, frames: Vec::new() }
    }

    /// Counts frames at this time.
    pub(crate) fn add(&mut self, now: Instant, frames: u64) {
        let bin = now.saturating_duration_since(self.origin).as_nanos() / BIN.as_nanos();
        let bin = usize::try_from(bin).unwrap_or(usize::MAX);
        if frames == 0 || bin >= BINS_MAX {
            return;
        }
        if self.frames.len() <= bin {
            self.frames.resize(bin + 1, 0);
        }
        if let Some(place) = self.frames.get_mut(bin) {
            *place += frames;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_in_the_bin_of_their_time() {
        let origin = Instant::now();
        let bins = |frames: &[(u64, u64)]| {
            let mut bins = Bins::since(origin);
            for (milliseconds, frames) in frames {
                bins.add(origin + Duration::from_millis(*milliseconds), *frames);
            }
            bins
        };
        let sent = bins(&[(29, 0), (30, 4), (39, 1), (40, 5), (70, 5)]);
        let arrived = bins(&[(39, 3), (41, 2), (55, 5), (90, 4)]);
        let timeline = Timeline::new(origin, sent, arrived);
        assert_eq!(timeline.origin, origin + Duration::from_millis(30), "ARP took that long");
        assert_eq!(timeline.sent, [5, 5, 0, 0, 5]);
        assert_eq!(timeline.arrived, [3, 2, 5, 0, 0, 0, 4]);
        assert_eq!(Timeline::new(origin, bins(&[]), bins(&[])).sent, [0; 0]);
        let early = Timeline::new(origin, bins(&[(30, 1)]), bins(&[(29, 1)]));
        assert_eq!((early.sent, early.arrived), (vec![0, 1], vec![1]), "the sender was late");
    }
}
