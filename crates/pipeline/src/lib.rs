//! Encapsulate and decapsulate batches of frames against a snapshot: no I/O, no async, no clock.
//!
//! - [`frame`], [`batch`]: what comes in and what goes out
//! - [`encapsulate`], [`decapsulate`]: the two directions
//! - [`segment`]: cutting super-frames
//! - [`hold`]: frames whose next hop is not resolved yet
//! - [`drop_reason`], [`counters`]: what became of every frame

pub mod batch;
pub mod counters;
pub mod decapsulate;
pub mod drop_reason;
pub mod encapsulate;
pub mod frame;
pub mod hold;
pub mod segment;

use std::sync::Arc;
use std::time::Instant;

use tables::Snapshot;

pub use batch::{Batch, Body, Destination, FRAME_CAPACITY, Received, Transmit};
pub use counters::Counters;
pub use drop_reason::DropReason;
pub use frame::{Checksum, Frame, Gso, GsoKind, Offload, VlanTag};
pub use hold::Adjacency;

/// One worker's forwarding engine.
#[derive(Debug)]
pub struct Pipeline {
    counters: Arc<Counters>,
    hold: hold::Hold,
    /// IPv4 identification of the last outer packet.
    identification: u16,
}

impl Pipeline {
    /// A pipeline that counts into `counters`, of which it must be the only writer.
    #[must_use]
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { counters, hold: hold::Hold::default(), identification: 0 }
    }

    /// What was done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether frames wait for a next hop, so that [`Self::release`] is to be called now and then.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.hold.is_empty()
    }

    /// Sends what waited and can go now, gives up what waited too long. To be called after each new snapshot, before
    /// the next batch, so that held frames stay ahead of those that follow them.
    pub fn release(&mut self, snapshot: &Snapshot, now: Instant, out: &mut Vec<Transmit>) {
        let counters = &self.counters;
        self.hold.release(snapshot, now, out, |reason, slot| counters.drop_frames(reason, slot, 1));
        self.update_held();
    }

    /// Gives up what still waits.
    pub fn stop(&mut self) {
        let counters = &self.counters;
        self.hold.clear(DropReason::Shutdown, |reason, slot| counters.drop_frames(reason, slot, 1));
        self.update_held();
    }

    /// Next hops that the kernel should be asked to resolve.
    pub fn resolve_requests(&mut self) -> impl Iterator<Item = Adjacency> + '_ {
        self.hold.requests()
    }

    /// Accounts for a frame that a port took, or for the reason why it did not.
    pub fn account(&self, transmit: &Transmit, outcome: Result<(), DropReason>) {
        let bytes = transmit.len() as u64;
        if let Err(reason) = outcome {
            return self.counters.drop_frames(reason, transmit.slot, 1);
        }
        self.counters.sent.add(1);
        let segments = u64::from(transmit.segments);
        match transmit.to {
            Destination::Uplink { path, .. } => {
                self.counters.path(path).inspect(|path| path.add(segments, bytes));
                let inner = bytes.saturating_sub(encapsulate::OVERHEAD as u64);
                self.counters.vni(transmit.slot).inspect(|vni| vni.encapsulated.add(segments, inner));
            }
            Destination::Bridge => {
                let inner = bytes.saturating_sub(decapsulate::TAG_LENGTH as u64);
                self.counters.vni(transmit.slot).inspect(|vni| vni.decapsulated.add(segments, inner));
            }
        }
    }

    fn update_held(&self) {
        let held = &self.counters.held;
        held.subtract(held.get());
        held.add(self.hold.len() as u64);
    }
}
