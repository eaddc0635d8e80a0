//! Sprayed packets from other VTEPs: they are counted by path, and hosts get them in their order.
//!
//! The order is that of the requests of each queue pair ([`spray::resequence`]). A frame that must
//! wait is copied, because the ring of a port needs its slot back.

use std::hash::BuildHasher as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::{
    Destination, DropReason, MACS, Offload, PUNT_TPID, Payload, Queue, TxBatch, TxFrame, VtepId,
};
use path::{Arrivals, Counted, Ends, Secret, Spraying, Version, is_request, is_sprayed};
use spray::resequence::{Delivery, Limits, Outcome, Packet, Resequencer};
use tables::{Snapshot, VniTable};
use wire::ecn::Egress;
use wire::roce::opcode;
use wire::{Dissection, as_ipv6};

use crate::Pipeline;
use crate::counters::Counters;
use crate::decap_cache::Known;
use crate::decapsulate::{Piece, congestion};
use crate::dropped::Origin;
use crate::host_delivery::HostDelivery;
use crate::received::Outer;
use crate::run::{Output, Run};
use crate::steps::Step;

mod plain;

pub(crate) use plain::Admission;
use plain::{Places, Plain};

/// ECN codepoints "congestion experienced" and ECT(0) (RFC 3168 section 5).
const CE: u8 = 3;
const ECT_0: u8 = 2;

/// A queue pair of a VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QueuePair {
    /// The number of the queue pair, and the slot of the VNI above it.
    number: u64,
    /// The inner addresses. Those of IPv4 are as in IPv6 (RFC 4291 section 2.5.5.2).
    source: u128,
    destination: u128,
}

impl QueuePair {
    #[inline]
    fn new(slot: u16, number: wire::QueuePair, [source, destination]: [IpAddr; 2]) -> Self {
        let bits = |address| as_ipv6(address).to_bits();
        let number = u64::from(number.get()) | u64::from(slot) << 32;
        Self { number, source: bits(source), destination: bits(destination) }
    }

    /// The slot of its VNI.
    const fn slot(&self) -> u16 {
        (self.number >> 32) as u16
    }
}

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
    /// In the order of their ends.
    arrivals: Vec<(Ends, Arc<Arrivals>)>,
    /// Unused if hosts get packets as they arrive.
    order: Resequencer<QueuePair, Held, Secret>,
    /// Nanoseconds since the start.
    now: u64,
    /// Packets that came one after the other by one path, and are yet to be counted.
    uncounted: Uncounted,
    /// Where queue pairs are in `order`.
    places: Places,
}

/// Packets that came one after the other by one path.
#[derive(Debug, Default)]
struct Uncounted {
    /// The number of their VTEPs.
    from: u16,
    arrived: path::Arrived,
    bytes: u64,
}

/// A packet of a request, as it arrived.
pub(crate) struct Arrived {
    /// The number of its VTEPs ([`Sprayed::number`]).
    pub(crate) from: Option<u16>,
    /// Its outer source port.
    pub(crate) port: u16,
    /// Whether the outer header has the ECN mark "congestion experienced".
    pub(crate) is_marked: bool,
    /// Bytes of the inner frame.
    pub(crate) bytes: usize,
    pub(crate) request: Request,
}

/// A packet that has a place in the order of requests.
pub(crate) struct Request {
    queue_pair: QueuePair,
    opcode: u8,
    psn: u32,
}

impl Request {
    /// The request of a frame, if it is one.
    fn of(dissection: &Dissection, slot: u16) -> Option<Self> {
        let roce = dissection.roce.filter(|roce| is_request(roce.opcode))?;
        let (source, destination) = dissection.network.addresses()?;
        let queue_pair = QueuePair::new(slot, roce.destination, [source, destination]);
        Some(Self { queue_pair, opcode: roce.opcode, psn: roce.sequence })
    }

    fn of_plain(plain: &Plain) -> Self {
        let Plain { hosts: [s0, s1, s2, s3, d0, d1, d2, d3], number, slot, opcode, psn } = *plain;
        let number = u64::from(number) | u64::from(slot) << 32;
        let bits = |address: [u8; 4]| Ipv4Addr::from(address).to_ipv6_mapped().to_bits();
        let (source, destination) = (bits([s0, s1, s2, s3]), bits([d0, d1, d2, d3]));
        Self { queue_pair: QueuePair { number, source, destination }, opcode, psn }
    }
}

impl Sprayed {
    pub(crate) fn new(shared: Arc<Spraying>) -> Self {
        let secret = Secret::new(shared.seed());
        let host = |secret: &Secret, of: &QueuePair| secret.hash_one((of.slot(), of.source));
        let unused = Limits { queue_pairs: 0, packets: 0, ..Limits::default() };
        let limits = if shared.options.restores_order { Limits::default() } else { unused };
        let order = Resequencer::new(limits, 0, secret).with_shares(host);
        let (seen, arrivals, now, uncounted) = Default::default();
        Self { shared, seen, arrivals, order, now, uncounted, places: Places::default() }
    }

    /// Begins a batch at this time. Returns whether VTEPs have other numbers than before.
    #[inline(never)]
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        self.now = self.shared.nanoseconds(now);
        let Some(arrivals) = self.shared.newer_arrivals(&mut self.seen) else { return false };
        self.arrivals = arrivals.iter().map(|(ends, of)| (*ends, Arc::clone(of))).collect();
        true
    }

    /// The number of the VTEPs of a packet. `None` if they have not agreed about spraying.
    pub(crate) fn number(&self, outer: &Outer) -> Option<u16> {
        let ends = (outer.destination, outer.source, outer.port);
        let number = self.arrivals.binary_search_by_key(&ends, |(ends, _)| *ends).ok()?;
        u16::try_from(number).ok()
    }

    fn arrivals(&self, from: Option<u16>) -> Option<&Arrivals> {
        self.arrivals.get(usize::from(from?)).map(|(_, arrivals)| &**arrivals)
    }

    /// The outer headers, without a mark if that is one of few paths.
    fn as_host_sees(&self, outer: &Outer, from: Option<u16>) -> Outer {
        let hides = self.shared.options.hides_marks
            && outer.tos & CE == CE
            && self.arrivals(from).is_some_and(|arrivals| !arrivals.is_congested());
        Outer { tos: if hides { outer.tos ^ CE ^ ECT_0 } else { outer.tos }, ..*outer }
    }

    /// Counts a packet that came from these VTEPs by this outer source port.
    #[inline(always)]
    fn count_packet(&mut self, from: u16, port: u16, (is_marked, bytes): (bool, usize)) {
        if self.uncounted.from != from || self.uncounted.arrived.port != port {
            return self.begin_bundle(from, port, (is_marked, bytes));
        }
        let Uncounted { arrived: new, bytes: all, .. } = &mut self.uncounted;
        // Totals are modulo 2¹⁶, too.
        new.received = new.received.wrapping_add(1);
        if is_marked {
            new.marked = new.marked.wrapping_add(1);
        }
        *all += bytes as u64;
    }

    /// What to do with a frame of a known VTEP that sprays, and that has this number.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        Known { inner, sender, .. }: &Known<'_>,
        from: u16,
        outer: &Outer,
    ) -> Admission {
        let plain = match Plain::of(inner, sender.slot) {
            Ok(plain) => plain,
            Err(admission) => return admission,
        };
        if !is_sprayed(plain.opcode) {
            let is_ordered = is_request(plain.opcode);
            return if is_ordered { Admission::Ordered } else { Admission::Passes };
        }
        if let Some(at) = self.places.find(&plain)
            && self.order.is_next(self.now, at, plain.psn)
        {
            self.count_packet(from, outer.source_port, (outer.tos & CE == CE, inner.len()));
            return Admission::Passes;
        }
        Admission::Ordered
    }

    /// A packet of a request arrived. `copy` is called if it must wait, `deliver` for each frame that
    /// the host gets now.
    pub(crate) fn receive(
        &mut self,
        arrived: &Arrived,
        copy: impl FnOnce() -> Held,
        mut deliver: impl FnMut(Delivery<Held>),
    ) -> Outcome {
        let request = &arrived.request;
        // Only a VTEP with which this one has agreed sprays.
        let Some(from) = arrived.from else {
            deliver(Delivery::Arrived);
            return Outcome::Delivered;
        };
        if is_sprayed(request.opcode) {
            self.count_packet(from, arrived.port, (arrived.is_marked, arrived.bytes));
        }
        if !self.shared.options.restores_order {
            deliver(Delivery::Arrived);
            return Outcome::Delivered;
        }
        if let Some((_, of)) = self.arrivals.get(usize::from(from)) {
            self.order.set_times(of.timer(), of.timer() / 2);
        }
        let uses = (request.opcode != opcode::RC_READ_REQUEST).then_some(1);
        let packet = Packet { psn: request.psn, uses };
        self.order.receive(self.now, request.queue_pair, packet, copy, deliver)
    }

    /// Remembers where a queue pair is.
    fn remember(&mut self, plain: &Plain, queue_pair: &QueuePair) {
        if let Some(at) = self.order.find(queue_pair) {
            self.places.remember(plain, at);
        }
    }

    /// Begins to count packets from other VTEPs, or by another path.
    #[inline(never)]
    fn begin_bundle(&mut self, from: u16, port: u16, (is_marked, bytes): (bool, usize)) {
        self.end();
        let arrived = path::Arrived { port, received: 1, marked: is_marked.into() };
        self.uncounted = Uncounted { from, arrived, bytes: bytes as u64 };
    }

    /// Ends a batch: all its packets are counted.
    pub(crate) fn end(&mut self) {
        let Uncounted { from, arrived, bytes } = core::mem::take(&mut self.uncounted);
        if let Some((_, of)) = self.arrivals.get(usize::from(from)).filter(|_| bytes > 0) {
            of.count(arrived, bytes);
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.order.held()
    }

    /// When a frame has waited long enough, as time from the last batch.
    fn deadline(&self) -> Option<Duration> {
        let at = self.order.deadline()?;
        Some(Duration::from_nanos(at.saturating_sub(self.now)))
    }

    /// Shows what happened.
    fn count(&self, counters: &Counters) {
        let counts = self.order.counts();
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
        let request = Request::of(&dissection, slot)?;
        let is_marked = piece.outer.tos & CE == CE;
        let from = sprayed.number(piece.outer);
        let outer = sprayed.as_host_sees(piece.outer, from);
        let piece = &Piece { outer: &outer, ..*piece };
        let ecn = match congestion(outer.tos, inner) {
            Ok(ecn) => ecn,
            Err(reason) => return Some(Err(reason)),
        };
        let arrived =
            Arrived { from, port: outer.source_port, is_marked, bytes: inner.len(), request };
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
                let known = (&dissection, ecn);
                sent = piece.deliver_known((inner, vtep), known, table, to, run.out);
            }
        });
        if outcome == Outcome::Duplicate {
            sent = Err(DropReason::WaitsAlready);
        }
        Some(sent)
    }

    /// Delivers a packet of a request from a known VTEP that sprays, in its order. Returns whether that
    /// was possible.
    #[inline(never)]
    pub(crate) fn pass_sprayed<O: Output>(
        (sprayed, hosts, counters): (&mut Option<Box<Sprayed>>, &mut HostDelivery, &Counters),
        known: Known<'_>,
        outer: &Outer,
        (frame, now): (&[u8], Instant),
        (snapshot, out): (&Snapshot, &mut O),
    ) -> bool {
        let slot = known.sender.slot;
        let (Some(sprayed), Ok(plain)) = (sprayed, Plain::of(known.inner, slot)) else {
            return false;
        };
        let request = Request::of_plain(&plain);
        let queue_pair = request.queue_pair;
        let (from, bytes) = (known.sender.sprays, known.inner.len());
        let (port, is_marked) = (outer.source_port, outer.tos & CE == CE);
        let arrived = Arrived { from, port, is_marked, bytes, request };
        let copy = || Held { bytes: known.inner.into(), vtep: Some(known.sender.vtep) };
        let mut is_sent = true;
        let outcome = sprayed.receive(&arrived, copy, |delivery| match delivery {
            Delivery::Waited(held) => held.deliver(slot, (hosts, counters), snapshot, out.frames()),
            Delivery::Arrived => is_sent = known.deliver(snapshot, (hosts, out.frames())),
        });
        sprayed.remember(&plain, &queue_pair);
        let reason = match outcome {
            Outcome::Duplicate => Some(DropReason::WaitsAlready),
            _ => (!is_sent).then_some(DropReason::TooBig),
        };
        if let Some(reason) = reason {
            out.record(|| Step::Dropped(reason));
            counters.drop_frame(reason, slot, (frame, Origin::Underlay, now));
        }
        true
    }

    /// Received frames that wait for the ones before them.
    pub(crate) fn held_back(&self) -> usize {
        self.sprayed.as_ref().map_or(0, |sprayed| sprayed.held())
    }

    /// Has sprayed packets counted and put in order.
    pub(crate) fn set_spraying(&mut self, shared: Option<Arc<Spraying>>) {
        self.sprayed = shared.map(|shared| Box::new(Sprayed::new(shared)));
        self.decap_cache.forget();
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
            sprayed.order.expire(sprayed.now, |of, held| {
                held.deliver(of.slot(), (host_delivery, counters), snapshot, out);
            });
        }
        self.count_held_back();
        self.finish(out, &[Queue::Hosts, Queue::Bridge]);
    }

    /// Ends a batch of received packets.
    pub(crate) fn end_sprayed(&mut self) {
        if let Some(sprayed) = &mut self.sprayed {
            sprayed.end();
            self.count_held_back();
        }
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
        let Some(sprayed) = sprayed else { return };
        sprayed.order.clear(sprayed.now, |of| counters.drop_frames(reason, of.slot(), 1));
    }
}
