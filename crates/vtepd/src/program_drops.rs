//! The last frames that the steering programs dropped.

use std::time::{Duration, Instant};

use bpf::{DropCause, ProgramDrop, Sender, Untold};
use nix::time::{ClockId, clock_gettime};
use pipeline::DropReason;
use pipeline::dropped::{DroppedFrame, DroppedFrames, Origin};

/// The frames that are remembered, and how many are not.
#[derive(Debug)]
pub(crate) struct ProgramDrops {
    /// The last frames of each reason.
    pub frames: DroppedFrames,
    untold: Untold,
}

impl ProgramDrops {
    /// Nothing is remembered yet.
    pub(crate) fn new(untold: Untold) -> Self {
        Self { frames: DroppedFrames::default(), untold }
    }

    /// Remembers frames that were just dropped.
    pub(crate) fn remember(&self, drops: impl Iterator<Item = ProgramDrop>) {
        let (now, clock) = (Instant::now(), monotonic());
        for ProgramDrop { time, cause, sender, slot, length, headers } in drops {
            let reason = match cause {
                DropCause::Failed => DropReason::ProgramFailed,
                DropCause::UnknownSlot => DropReason::UnknownSlot,
            };
            let origin = match sender {
                Sender::Uplink => Origin::Decapsulated,
                Sender::Host => Origin::Hosts,
                Sender::Worker => Origin::Worker,
            };
            let time = now.checked_sub(clock.saturating_sub(time)).unwrap_or(now);
            let frame = DroppedFrame::of_headers(&headers, length, origin, slot, time);
            self.frames.remember(reason, frame);
        }
    }

    /// How many frames of all reasons were not remembered.
    pub(crate) fn missed(&self) -> u64 {
        self.frames.missed() + self.untold.get()
    }
}

/// The clock of the programs, which is that of [`Instant`] on Linux.
fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
