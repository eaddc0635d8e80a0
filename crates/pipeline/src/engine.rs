//! The forwarding state of one worker, and its counters.

use std::sync::Arc;
use std::time::Instant;

use frame::{Batch, Destination, DropReason, PUNT_TAG, Queue, TxBatch, TxFrame};
use path::Pins;
use tables::{Learned, OpenPort, Snapshot};

use crate::bridge::Bridge;
use crate::counters::Counters;
use crate::csum_offload::InnerHead;
use crate::decap_cache::DecapCache;
use crate::encap_cache::{CachedFlow, EncapCache};
use crate::grouping::Grouper;
use crate::host_delivery::HostDelivery;
use crate::identification::{Block, Identifications};
use crate::learn::Learner;
use crate::policies::{Configured, Policies as _};
use crate::run::Run;
use crate::sprayed::Sprayed;
use crate::unresolved::{Adjacency, Unresolved};

/// The forwarding state of one worker. It is the entry point of both directions.
#[derive(Debug, Default)]
pub struct Pipeline {
    pub(crate) counters: Arc<Counters>,
    pub(crate) unresolved: Unresolved,
    pub(crate) learner: Learner,
    /// The path policies of the snapshot.
    pub(crate) policies: Configured,
    pub(crate) encap_cache: EncapCache,
    pub(crate) decap_cache: DecapCache,
    pub(crate) host_delivery: HostDelivery,
    /// `None` if no packets are sprayed.
    pub(crate) sprayed: Option<Box<Sprayed>>,
    /// The bridge of standalone mode.
    pub(crate) bridge: Option<Box<Bridge>>,
    /// IPv4 identifications of outer packets.
    pub(crate) identifications: Block,
    grouper: Grouper,
    /// Whether encapsulated frames are grouped.
    is_grouping: bool,
    /// Buffer for rewritten inner headers. Each frame reuses it.
    pub(crate) inner: InnerHead,
}

impl Pipeline {
    /// A pipeline that counts into `counters`. It must be the only writer of these counters.
    #[must_use]
    pub fn new(counters: Arc<Counters>) -> Self {
        Self { counters, ..Self::default() }
    }

    /// The flows that are remembered, in no order: at most 4096.
    #[must_use]
    pub fn flows(&self, now: Instant) -> Vec<CachedFlow> {
        self.encap_cache.flows(now).collect()
    }

    /// The counters of this worker.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether frames wait for a next hop, or for the ones before them. If so, [`Self::release`] must
    /// be called regularly.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.unresolved.is_empty() || self.held_back() > 0
    }

    /// Sends the held frames whose next hop is resolved now, and drops those that waited too long.
    /// Finishes `out`. Must be called after each new snapshot and before the next batch. Held frames
    /// then stay ahead of later frames.
    pub fn release(&mut self, snapshot: &Snapshot, now: Instant, out: &mut TxBatch) {
        let counters = &self.counters;
        self.unresolved
            .release(snapshot, now, out, |reason, slot| counters.drop_frames(reason, slot, 1));
        self.update_held();
        self.finish(out, &[Queue::Uplinks]);
    }

    /// Sets what places the queue pairs of `qp-pin`, and over which paths packets are sprayed.
    pub fn set_pins(&mut self, pins: Pins) {
        self.set_spraying(pins.spraying());
        self.policies = Configured::pinned(pins);
    }

    /// Sets the sequence from which outer packets get their identifications. All workers of a leaf
    /// share it.
    pub fn set_identifications(&mut self, all: Identifications) {
        self.identifications.set_sequence(all);
    }

    /// Sets whether encapsulated frames are sent in super-frames. Otherwise each leaves alone.
    pub const fn set_grouping(&mut self, on: bool) {
        self.is_grouping = on;
    }

    /// Divides the frames of these queues into groups.
    pub(crate) fn finish(&mut self, out: &mut TxBatch, queues: &[Queue]) {
        for &queue in queues {
            if queue == Queue::Uplinks && self.is_grouping {
                self.grouper.group(out, self.identifications.sequence());
            } else {
                out.separate(queue);
            }
        }
    }

    /// Sets the host ports to which frames may be sent without passing the bridge.
    pub fn open_ports(&mut self, ports: &[OpenPort]) {
        self.host_delivery.open(ports);
    }

    /// Reports when the decapsulation of a batch began and when its transmission ended. This time
    /// does not count as a pause of a host's traffic ([`crate::PAUSE`]).
    pub fn handed_in(&mut self, began: Instant, ended: Instant) {
        self.host_delivery.handed_in(began, ended);
    }

    /// Reports that the kernel has forwarded frames through the bridge in place of this worker
    /// until `now`.
    pub fn others_sent(&mut self, now: Instant) {
        self.host_delivery.others_sent(now);
    }

    /// Whether frames that could bypass the bridge just went through it because an earlier frame to
    /// the same host did. They bypass it after [`Self::settle`].
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.host_delivery.is_unsettled()
    }

    /// Reports that all frames sent to the bridge so far have left it.
    pub const fn settle(&mut self) {
        self.host_delivery.settle();
    }

    /// Drops all held frames, with [`DropReason::Shutdown`].
    pub fn stop(&mut self) {
        let counters = &self.counters;
        self.unresolved.clear(|slot| counters.drop_frames(DropReason::Shutdown, slot, 1));
        self.drop_held_back(DropReason::Shutdown);
        self.update_held();
    }

    /// Next hops that the kernel should resolve.
    pub fn resolve_requests(&mut self) -> impl Iterator<Item = Adjacency> + '_ {
        self.unresolved.requests()
    }

    /// Source addresses to report to control, from the frames decapsulated since the last call.
    pub fn learned(&mut self) -> impl Iterator<Item = Learned> + '_ {
        self.learner.reports()
    }

    /// Accounts for a finished batch, by the outcome of each group.
    pub fn account(&self, out: &TxBatch) {
        let (mut super_frames, mut in_super_frames) = (0, 0);
        for group in &out.groups().list {
            let sent = group.outcome.is_ok();
            if sent && group.is_super_frame() {
                super_frames += 1;
                in_super_frames += u64::from(group.frames);
            }
            let count = |frame: &TxFrame| self.account_frame(frame, group.outcome);
            if group.frames == 1 {
                out.first(group).into_iter().for_each(count);
            } else {
                out.members(group).for_each(count);
            }
        }
        if super_frames > 0 {
            self.counters.super_frames.add(super_frames);
            self.counters.in_super_frames.add(in_super_frames);
        }
    }

    /// Accounts for a frame that a port accepted or rejected.
    pub fn account_frame(&self, transmit: &TxFrame, outcome: Result<(), DropReason>) {
        let (bytes, segments) = (transmit.len() as u64, u64::from(transmit.segments));
        if let Err(reason) = outcome {
            return self.account_dropped(transmit, reason);
        }
        let peer = transmit.vtep.and_then(|vtep| self.counters.peer_of(vtep));
        match transmit.to {
            Destination::Uplink { path, by_default, .. } => {
                self.counters.sent.add(segments);
                self.counters.path(path).inspect(|path| path.add(segments, bytes));
                let inner = bytes.saturating_sub(u64::from(transmit.outer_length));
                self.counters
                    .vni(transmit.vni)
                    .inspect(|vni| vni.encapsulated.add(segments, inner));
                peer.inspect(|peer| peer.sent.add(segments, inner));
                if by_default {
                    self.counters.by_default.add(segments);
                    peer.inspect(|peer| peer.by_default.add(segments));
                }
            }
            // VNIs with access ports know the VTEP of all that is decapsulated: others are refused.
            Destination::Port(_) if transmit.vtep.is_none() => {
                self.counters.sent.add(1);
                self.counters.vni(transmit.vni).inspect(|vni| vni.switched.add(segments, bytes));
            }
            Destination::Bridge | Destination::Host(_) | Destination::Port(_) => {
                self.counters.sent.add(1);
                if matches!(transmit.to, Destination::Host(_)) {
                    self.counters.past_bridge.add(segments);
                }
                let tag = if transmit.to == Destination::Bridge { PUNT_TAG as u64 } else { 0 };
                let inner = bytes.saturating_sub(tag);
                self.counters
                    .vni(transmit.vni)
                    .inspect(|vni| vni.decapsulated.add(segments, inner));
                peer.inspect(|peer| peer.received.add(segments, inner));
            }
        }
    }

    #[cold]
    fn account_dropped(&self, transmit: &TxFrame, reason: DropReason) {
        // A decapsulated super-frame was received as one frame, and counts as one.
        self.counters.drop_frames(reason, transmit.vni, 1);
    }

    /// Processes a batch with the policies of the snapshot.
    #[inline(always)]
    pub(crate) fn process<T>(
        &mut self,
        (batch, snapshot, now, out): (&Batch<'_>, &Snapshot, Instant, &mut TxBatch),
        frames: impl FnOnce(&mut Self, &mut Run<'_, '_, Configured, TxBatch>) -> T,
    ) -> T {
        self.identifications.renew(now);
        let mut policies = std::mem::take(&mut self.policies);
        policies.begin(now);
        let mut run = Run { batch, snapshot, now, policies: &mut policies, out };
        let result = frames(self, &mut run);
        policies.end();
        self.policies = policies;
        result
    }

    pub(crate) fn update_held(&self) {
        self.counters.held.set((self.unresolved.len() + self.held_back()) as u64);
    }
}
