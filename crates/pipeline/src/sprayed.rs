//! Sprayed packets from other VTEPs: they are counted by path, and hosts get them in their order.
//!
//! The order is that of the requests of each queue pair ([`spray::resequence`]). A frame that must
//! wait is copied, because the ring of a port needs its slot back.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::{
    Destination, DropReason, MACS, Offload, PUNT_TPID, Payload, Queue, TxBatch, TxFrame, VtepId,
};
use path::{Arrivals, Counted, Ends, Key, Spraying, Version, is_request, is_sprayed};
use spray::resequence::{Delivery, Limits, Outcome, Packet, Resequencer};
use tables::{Snapshot, VniTable};
use wire::ecn::Egress;
use wire::roce::opcode;
use wire::{Dissection, Roce};

use crate::Pipeline;
use crate::counters::Counters;
use crate::decapsulate::{Piece, congestion};
use crate::host_delivery::HostDelivery;
use crate::received::Outer;
use crate::run::{Output, Run};

/// ECN codepoints "congestion experienced" and ECT(0) (RFC 3168 section 5).
const CE: u8 = 3;
const ECT_0: u8 = 2;

/// The hash of queue pairs. Hosts choose their numbers, so it has a secret.
#[derive(Debug, Clone)]
struct Secret(u64);

impl BuildHasher for Secret {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// A queue pair of a VNI, by its slot.
type QueuePair = (u16, Key);

/// A frame that waits: its bytes as the host gets them.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) vtep: Option<VtepId>,
}

/// Sprayed packets that arrive at this worker.
#[derive(Debug)]
pub(crate) struct Sprayed {
    shared: Arc<Spraying>,
    seen: Version<Counted>,
    arrivals: HashMap<Ends, Arc<Arrivals>>,
    /// `None`: hosts get packets as they arrive.
    order: Option<Resequencer<QueuePair, Held, Secret>>,
    /// Nanoseconds since the start.
    now: u64,
}

/// A packet of a request, as it arrived.
pub(crate) struct Arrived {
    /// Its VTEPs.
    pub(crate) ends: Ends,
    /// Its outer source port.
    pub(crate) port: u16,
    /// Whether the outer header has the ECN mark "congestion experienced".
    pub(crate) is_marked: bool,
    /// Bytes of the inner frame.
    pub(crate) bytes: usize,
    pub(crate) roce: Roce,
    pub(crate) queue_pair: QueuePair,
}

impl Arrived {
    /// The queue pair and the header of a frame that has a place in the order of requests.
    pub(crate) fn request(dissection: &Dissection, slot: u16) -> Option<(QueuePair, Roce)> {
        let roce = dissection.roce.filter(|roce| is_request(roce.opcode))?;
        let (source, destination) = dissection.network.addresses()?;
        let queue_pair = roce.destination;
        Some(((slot, Key::QueuePair { source, destination, queue_pair }), roce))
    }
}

impl Sprayed {
    pub(crate) fn new(shared: Arc<Spraying>) -> Self {
        let secret = Secret(shared.seed());
        let host = |secret: &Secret, (slot, key): &QueuePair| match key {
            Key::QueuePair { source, .. } => secret.hash_one((slot, source)),
            _ => 0,
        };
        let new = || Resequencer::new(Limits::default(), 0, secret).with_shares(host);
        let order = shared.options.restores_order.then(new);
        let (seen, arrivals, now) = Default::default();
        Self { shared, seen, arrivals, order, now }
    }

    /// Begins a batch at this time.
    #[inline(never)]
    pub(crate) fn begin(&mut self, now: Instant) {
        self.now = self.shared.nanoseconds(now);
        if let Some(arrivals) = self.shared.newer_arrivals(&mut self.seen) {
            self.arrivals = arrivals.iter().map(|(ends, of)| (*ends, Arc::clone(of))).collect();
        }
    }

    /// The outer headers, without a mark if that is one of few paths.
    fn as_host_sees(&self, outer: &Outer) -> Outer {
        let hides = self.shared.options.hides_marks && outer.tos & CE == CE && {
            let of = self.arrivals.get(&(outer.destination, outer.source, outer.port));
            of.is_some_and(|arrivals| !arrivals.is_congested())
        };
        Outer { tos: if hides { outer.tos ^ CE ^ ECT_0 } else { outer.tos }, ..*outer }
    }

    /// A packet of a request arrived. `copy` is called if it must wait, `deliver` for each frame that
    /// the host gets now.
    pub(crate) fn receive(
        &mut self,
        arrived: &Arrived,
        copy: impl FnOnce() -> Held,
        mut deliver: impl FnMut(Delivery<Held>),
    ) -> Outcome {
        let of = self.arrivals.get(&arrived.ends);
        if let Some(arrivals) = of.filter(|_| is_sprayed(arrived.roce.opcode)) {
            arrivals.count(arrived.port, arrived.is_marked, arrived.bytes);
        }
        // Only a VTEP with which this one has agreed sprays.
        let (Some(order), Some(arrivals)) = (&mut self.order, of) else {
            deliver(Delivery::Arrived);
            return Outcome::Delivered;
        };
        let timer = arrivals.timer();
        order.set_times(timer, timer / 2);
        let uses = (arrived.roce.opcode != opcode::RC_READ_REQUEST).then_some(1);
        let packet = Packet { psn: arrived.roce.sequence, uses };
        order.receive(self.now, arrived.queue_pair, packet, copy, deliver)
    }

    pub(crate) fn held(&self) -> usize {
        self.order.as_ref().map_or(0, Resequencer::held)
    }

    /// When a frame has waited long enough, as time from the last batch.
    fn deadline(&self) -> Option<Duration> {
        let at = self.order.as_ref()?.deadline()?;
        Some(Duration::from_nanos(at.saturating_sub(self.now)))
    }

    /// Shows what happened.
    fn count(&self, counters: &Counters) {
        let Some(order) = &self.order else { return };
        let counts = order.counts();
        let shown = &counters.resequenced;
        for (shown, count) in [
            (&shown.waited, counts.waited),
            (&shown.by_timer, counts.flushed_by_timer),
            (&shown.by_bound, counts.flushed_by_bound),
            (&shown.by_share, counts.flushed_by_share),
            (&shown.crowded, counts.crowded),
            (&shown.longest_wait, counts.longest_wait),
        ] {
            shown.set(count);
        }
    }
}

impl Held {
    /// Sends the frame to its host, in the way that is right now.
    fn deliver(
        self,
        slot: u16,
        (hosts, counters): (&mut HostDelivery, &Counters),
        snapshot: &Snapshot,
        out: &mut TxBatch,
    ) {
        let Self { bytes, vtep } = self;
        if snapshot.vni(slot).is_none() {
            return counters.drop_frames(DropReason::UnknownVni, 0, 1);
        }
        let to = hosts.way(&bytes, slot, snapshot, Offload::default());
        let to = to.unwrap_or(Destination::Bridge);
        let mut transmit = match bytes.split_at_checked(MACS).filter(|_| to == Destination::Bridge)
        {
            None => TxFrame::new(to, slot, Payload::Owned(bytes), Offload::default()),
            Some((addresses, behind)) => {
                let body = Payload::Owned(behind.into());
                let mut transmit = TxFrame::new(to, slot, body, Offload::default());
                let tag = [PUNT_TPID.to_be_bytes(), slot.to_be_bytes()];
                // A head has room for both.
                let _ = transmit.extend_head(addresses) && transmit.extend_head(tag.as_flattened());
                transmit
            }
        };
        transmit.vtep = vtep;
        out.push(transmit);
    }
}

impl Pipeline {
    /// Delivers a packet of a request in its order. `None` if the frame is none, or has no order.
    #[inline(never)]
    pub(crate) fn resequence<P, O: Output>(
        &mut self,
        piece: &Piece<'_>,
        (inner, vtep): (&[u8], Option<VtepId>),
        table: &VniTable,
        run: &mut Run<'_, '_, P, O>,
    ) -> Option<Result<(), DropReason>> {
        let Self { sprayed, host_delivery, counters, .. } = self;
        let sprayed = sprayed.as_mut().filter(|_| piece.offload == Offload::default())?;
        let dissection = wire::dissect(inner)?;
        let slot = table.index.get();
        let (queue_pair, roce) = Arrived::request(&dissection, slot)?;
        let is_marked = piece.outer.tos & CE == CE;
        let outer = sprayed.as_host_sees(piece.outer);
        let piece = &Piece { outer: &outer, ..*piece };
        let ecn = match congestion(outer.tos, inner) {
            Ok(ecn) => ecn,
            Err(reason) => return Some(Err(reason)),
        };
        let arrived = Arrived {
            ends: (outer.destination, outer.source, outer.port),
            port: outer.source_port(run.batch, piece.index)?,
            is_marked,
            bytes: inner.len(),
            roce,
            queue_pair,
        };
        let copy = || {
            let mut bytes: Box<[u8]> = inner.into();
            let packet = bytes.get_mut(usize::from(dissection.l3_offset)..);
            if let (Some(Egress::Set(codepoint)), Some(packet)) = (ecn, packet) {
                wire::ecn::set(packet, codepoint);
            }
            Held { bytes, vtep }
        };
        let mut sent = Ok(());
        let outcome = sprayed.receive(&arrived, copy, |delivery| match delivery {
            Delivery::Waited(held) => {
                held.deliver(slot, (host_delivery, counters), run.snapshot, run.out.frames());
            }
            Delivery::Arrived => {
                let host = host_delivery.way(inner, slot, run.snapshot, piece.offload);
                let to = host.unwrap_or(Destination::Bridge);
                sent = piece.deliver((inner, vtep), table, to, run.out);
            }
        });
        if outcome == Outcome::Duplicate {
            sent = Err(DropReason::WaitsAlready);
        }
        Some(sent)
    }

    /// Received frames that wait for the ones before them.
    pub(crate) fn held_back(&self) -> usize {
        self.sprayed.as_ref().map_or(0, |sprayed| sprayed.held())
    }

    /// Has sprayed packets counted and put in order.
    pub(crate) fn set_spraying(&mut self, shared: Option<Arc<Spraying>>) {
        self.sprayed = shared.map(|shared| Box::new(Sprayed::new(shared)));
    }

    /// When [`Self::expire`] has something to do, as time from the last batch. `None` if no received
    /// frame waits for the one before it.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.sprayed.as_ref()?.deadline()
    }

    /// Sends the received frames that have waited long enough for the ones before them. Finishes `out`.
    pub fn expire(&mut self, snapshot: &Snapshot, now: Instant, out: &mut TxBatch) {
        self.host_delivery.set_time(now);
        let Self { sprayed, host_delivery, counters, .. } = self;
        if let Some(sprayed) = sprayed {
            sprayed.now = sprayed.shared.nanoseconds(now);
            if let Some(order) = &mut sprayed.order {
                order.expire(sprayed.now, |(slot, _), held| {
                    held.deliver(slot, (host_delivery, counters), snapshot, out);
                });
            }
        }
        self.count_held_back();
        self.finish(out, &[Queue::Hosts, Queue::Bridge]);
    }

    /// Shows what the order of received packets has cost.
    #[inline(never)]
    pub(crate) fn count_held_back(&self) {
        if let Some(sprayed) = &self.sprayed {
            sprayed.count(&self.counters);
            self.update_held();
        }
    }

    /// Drops the received frames that wait.
    pub(crate) fn drop_held_back(&mut self, reason: DropReason) {
        let Self { sprayed, counters, .. } = self;
        let order = sprayed.as_mut().and_then(|sprayed| sprayed.order.as_mut());
        let Some(order) = order else { return };
        order.expire(u64::MAX, |(slot, _), _| counters.drop_frames(reason, slot, 1));
    }
}
