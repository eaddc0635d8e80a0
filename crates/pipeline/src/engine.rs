//! One worker's forwarding engine, and the accounts it keeps.

use std::sync::Arc;
use std::time::Instant;

use tables::{Learned, Snapshot};

use crate::batch::{Destination, Transmit};
use crate::bridge::Bridge;
use crate::counters::Counters;
use crate::decapsulate::TAG_LENGTH;
use crate::drop_reason::DropReason;
use crate::hold::{Adjacency, Hold};
use crate::learn::Learner;
use crate::outer::OVERHEAD;
use crate::partial::InnerHead;

/// One worker's forwarding engine.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) counters: Arc<Counters>,
    pub(crate) hold: Hold,
    pub(crate) learner: Learner,
    /// Where there is no kernel bridge.
    pub(crate) bridge: Option<Box<Bridge>>,
    /// IPv4 identification of the last outer packet.
    pub(crate) identification: u16,
    /// Where inner headers are rewritten, one frame at a time.
    pub(crate) inner: InnerHead,
}

impl Pipeline {
    /// A pipeline that counts into `counters`, of which it must be the only writer.
    #[must_use]
    pub fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            hold: Hold::default(),
            learner: Learner::default(),
            bridge: None,
            identification: 0,
            inner: InnerHead::default(),
        }
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
        self.hold.clear(|slot| counters.drop_frames(DropReason::Shutdown, slot, 1));
        self.update_held();
    }

    /// Next hops that the kernel should be asked to resolve.
    pub fn resolve_requests(&mut self) -> impl Iterator<Item = Adjacency> + '_ {
        self.hold.requests()
    }

    /// What control should learn from the frames decapsulated since the last call.
    pub fn learned(&mut self) -> impl Iterator<Item = Learned> + '_ {
        self.learner.reports()
    }

    /// Accounts for a frame that a port took, or for the reason why it did not.
    pub fn account(&self, transmit: &Transmit, outcome: Result<(), DropReason>) {
        let bytes = transmit.len() as u64;
        if let Err(reason) = outcome {
            return self.counters.drop_frames(reason, transmit.slot, 1);
        }
        self.counters.sent.add(1);
        let segments = u64::from(transmit.segments);
        let peer = transmit.vtep.and_then(|(index, vtep)| Some(self.counters.peer_at(index.0)?.of(vtep)));
        match transmit.to {
            Destination::Uplink { path, by_default, .. } => {
                self.counters.path(path).inspect(|path| path.add(segments, bytes));
                let inner = bytes.saturating_sub(OVERHEAD as u64);
                self.counters.vni(transmit.slot).inspect(|vni| vni.encapsulated.add(segments, inner));
                peer.inspect(|peer| peer.sent.add(segments, inner));
                if by_default {
                    self.counters.by_default.add(segments);
                    peer.inspect(|peer| peer.by_default.add(segments));
                }
            }
            Destination::Port(_) if transmit.vtep.is_none() => {
                self.counters.vni(transmit.slot).inspect(|vni| vni.switched.add(segments, bytes));
            }
            Destination::Bridge | Destination::Port(_) => {
                let tag = if transmit.to == Destination::Bridge { TAG_LENGTH as u64 } else { 0 };
                let inner = bytes.saturating_sub(tag);
                self.counters.vni(transmit.slot).inspect(|vni| vni.decapsulated.add(segments, inner));
                peer.inspect(|peer| peer.received.add(segments, inner));
            }
        }
    }

    fn update_held(&self) {
        let held = &self.counters.held;
        held.subtract(held.get());
        held.add(self.hold.len() as u64);
    }
}
