//! One worker's forwarding engine, and the accounts it keeps.

use std::sync::Arc;
use std::time::Instant;

use tables::{Learned, OpenPort, Snapshot};

use crate::batch::{Destination, TxFrame};
use crate::bridge::Bridge;
use crate::counters::Counters;
use crate::csum_offload::InnerHead;
use crate::decap_cache::DecapCache;
use crate::decapsulate::TAG_LENGTH;
use crate::drop_reason::DropReason;
use crate::encap_cache::EncapCache;
use crate::host_delivery::HostDelivery;
use crate::learn::Learner;
use crate::outer::OVERHEAD;
use crate::tx_batch::TxBatch;
use crate::unresolved::{Adjacency, Hold};

/// One worker's forwarding engine.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) counters: Arc<Counters>,
    pub(crate) hold: Hold,
    pub(crate) learner: Learner,
    pub(crate) flows: EncapCache,
    pub(crate) senders: DecapCache,
    pub(crate) hosts: HostDelivery,
    /// Uplinks over which TCP super-frames may leave whole, by their interface indices.
    pub(crate) tunnel_uplinks: Vec<u32>,
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
            flows: EncapCache::default(),
            senders: DecapCache::default(),
            hosts: HostDelivery::default(),
            tunnel_uplinks: Vec::new(),
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

    /// Sends what waited and can go now, gives up what waited too long. To be called after each new
    /// snapshot, before the next batch, so that held frames stay ahead of those that follow them.
    pub fn release(&mut self, snapshot: &Snapshot, now: Instant, out: &mut TxBatch) {
        let counters = &self.counters;
        self.hold.release(snapshot, now, out, |reason, slot| counters.drop_frames(reason, slot, 1));
        self.update_held();
    }

    /// Frames for hosts may leave in bundles ([`crate::bundle`]).
    pub const fn bundle(&mut self) {
        self.hosts.bundles = true;
    }

    /// Frames for hosts behind these bridge ports may skip the bridge.
    pub fn open_ports(&mut self, ports: &[OpenPort]) {
        self.hosts.open(ports);
    }

    /// TCP super-frames may leave whole over these uplinks (interface indices), where a program
    /// tells the kernel of the tunnel around them.
    pub fn tunnel_uplinks(&mut self, uplinks: &[u32]) {
        uplinks.clone_into(&mut self.tunnel_uplinks);
    }

    /// The batch that began at the one time was sent by the other.
    pub fn handed_in(&mut self, began: Instant, ended: Instant) {
        self.hosts.handed_in(began, ended);
    }

    /// Somebody else has sent to hosts by the bridge until now.
    pub fn others_sent(&mut self, now: Instant) {
        self.hosts.others_sent(now);
    }

    /// Whether frames have just gone by the bridge only because others for the same host had: after
    /// [`Self::settle`] they will not.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.hosts.is_unsettled()
    }

    /// What was sent to the bridge so far has left it.
    pub const fn settle(&mut self) {
        self.hosts.settle();
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

    /// So many super-frames were sent, with so many frames in all.
    pub fn account_super_frames(&self, super_frames: u64, frames: u64) {
        if super_frames > 0 {
            self.counters.super_frames.add(super_frames);
            self.counters.in_super_frames.add(frames);
        }
    }

    /// Accounts for a frame that a port took, or for the reason why it did not.
    pub fn account(&self, transmit: &TxFrame, outcome: Result<(), DropReason>) {
        let (bytes, segments) = (transmit.len() as u64, u64::from(transmit.segments));
        if let Err(reason) = outcome {
            return self.account_dropped(transmit, reason);
        }
        let peer =
            transmit.vtep.and_then(|(index, vtep)| Some(self.counters.peer_at(index.0)?.of(vtep)));
        match transmit.to {
            Destination::Uplink { path, by_default, .. } => {
                self.counters.sent.add(segments);
                self.counters.path(path).inspect(|path| path.add(segments, bytes));
                let inner = bytes.saturating_sub(OVERHEAD as u64);
                self.counters
                    .vni(transmit.slot)
                    .inspect(|vni| vni.encapsulated.add(segments, inner));
                peer.inspect(|peer| peer.sent.add(segments, inner));
                if by_default {
                    self.counters.by_default.add(segments);
                    peer.inspect(|peer| peer.by_default.add(segments));
                }
                if segments > 1 {
                    self.account_repeated(transmit, path);
                }
            }
            Destination::Port(_) if transmit.vtep.is_none() => {
                self.counters.sent.add(1);
                self.counters.vni(transmit.slot).inspect(|vni| vni.switched.add(segments, bytes));
            }
            Destination::Bridge
            | Destination::Host(_)
            | Destination::BundledHost(_)
            | Destination::Port(_) => {
                self.counters.sent.add(1);
                if matches!(transmit.to, Destination::Host(_) | Destination::BundledHost(_)) {
                    self.counters.past_bridge.add(segments);
                }
                let tag = if transmit.to == Destination::Bridge { TAG_LENGTH as u64 } else { 0 };
                let inner = bytes.saturating_sub(tag);
                self.counters
                    .vni(transmit.slot)
                    .inspect(|vni| vni.decapsulated.add(segments, inner));
                peer.inspect(|peer| peer.received.add(segments, inner));
            }
        }
    }

    /// The headers that the segments of a super-frame repeat: they are its head.
    #[cold]
    fn account_repeated(&self, transmit: &TxFrame, path: u16) {
        let (again, head) = (u64::from(transmit.segments) - 1, transmit.head().len() as u64);
        let (outer, inner) = (again * head, again * head.saturating_sub(OVERHEAD as u64));
        self.counters.path(path).inspect(|path| path.add(0, outer));
        self.counters.vni(transmit.slot).inspect(|vni| vni.encapsulated.add(0, inner));
        if let Some((index, vtep)) = transmit.vtep {
            self.counters.peer_at(index.0).inspect(|peer| peer.of(vtep).sent.add(0, inner));
        }
    }

    #[cold]
    fn account_dropped(&self, transmit: &TxFrame, reason: DropReason) {
        // A super-frame that would have been cut here counts as if it had been; one that came as
        // one frame is one.
        let uplink = matches!(transmit.to, Destination::Uplink { .. });
        let frames = if uplink { u64::from(transmit.segments) } else { 1 };
        self.counters.drop_frames(reason, transmit.slot, frames);
    }

    fn update_held(&self) {
        let held = &self.counters.held;
        held.subtract(held.get());
        held.add(self.hold.len() as u64);
    }
}
