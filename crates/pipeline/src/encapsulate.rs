//! Encapsulation: lookup, source port and outer headers (RFC 7348 section 5).

use core::ops::Range;
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use frame::{Batch, Checksum, DropReason, Frame, Offload, PUNT_TPID, Payload, Queue, TxBatch};
use path::{Choice, Flow, Remote};
use tables::{Slot, Snapshot, VtepIndex};
use wire::Udp;
use wire::outer::{Address, OuterHeaders};

use crate::Pipeline;
use crate::cursor::Cursor;
use crate::dropped::Origin;
use crate::encap_cache::{HEADERS, Key, Sending, Versions, Way};
use crate::gso::Segmenter;
use crate::identification::Block;
use crate::lookup::{Decision, Path, uplink};
use crate::outer::{Inherited, UDP_CHECKSUM};
use crate::policies::Policies;
use crate::run::{Output, Run};
use crate::steps::Step;

pub use crate::outer::OVERHEAD;

impl Pipeline {
    /// Encapsulates a whole batch from the bridge punt pair and appends the result to `out`, which
    /// is neither bounded nor finished; see [`Self::encapsulate_part`].
    pub fn encapsulate(
        &mut self,
        batch: &Batch<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        self.process((batch, snapshot, now, out), Self::encapsulate_all);
    }

    /// Encapsulates frames of a batch from the bridge punt pair, until `out` holds at least
    /// [`PART`](frame::PART) frames, and finishes `out`. Returns where to continue once these are
    /// sent, or `None` at the end of the batch.
    pub fn encapsulate_part(
        &mut self,
        batch: &Batch<'_>,
        from: Cursor,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Option<Cursor> {
        let next = self.process((batch, snapshot, now, out), |pipeline, run| {
            pipeline.encapsulate_frames(from, run)
        });
        self.finish(out, &[Queue::Uplinks]);
        next
    }

    /// As [`Self::encapsulate`], with policies that are not those of the snapshot.
    pub fn encapsulate_by<P: Policies>(
        &mut self,
        policies: &mut P,
        batch: &Batch<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        self.encapsulate_all(&mut Run { batch, snapshot, now, policies, out });
    }

    fn encapsulate_all<P: Policies>(&mut self, run: &mut Run<'_, '_, P, TxBatch>) {
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            next = self.encapsulate_frames(from, run);
        }
    }

    /// Encapsulates frames of the batch until a part is full, and returns where to continue.
    pub(crate) fn encapsulate_frames<P: Policies, O: Output>(
        &mut self,
        from: Cursor,
        run: &mut Run<'_, '_, P, O>,
    ) -> Option<Cursor> {
        let batch = run.batch;
        if from == Cursor::default() {
            self.begin(batch);
        }
        let epoch = self.encap_cache.epoch(run.snapshot, run.policies.version());
        let mut at = from;
        loop {
            let received = (batch.frames_from(at.frame), at.frame);
            let sending = sending(&mut self.identifications, run);
            let known = self.encap_cache.send_all(received, epoch, sending);
            if known > 0 {
                self.counters.flow_cache.hits.add(known as u64);
                at = Cursor::at(at.frame + known as u32);
            }
            // Frames after one of an unknown flow are likely of unknown flows too.
            loop {
                let frame = batch.frames_from(at.frame).first()?;
                let key = Key::of_roce(frame, epoch);
                if let Some(key) = &key
                    && self.send_confirmed(key, (at.frame, frame), run)
                {
                    self.counters.flow_cache.hits.add(1);
                    at = Cursor::at(at.frame + 1);
                    break;
                }
                self.counters.flow_cache.misses.add(u64::from(key.is_some()));
                match self.encapsulate_one((at, frame), key.as_ref(), run) {
                    Ok(None) => {}
                    Ok(next) => return next,
                    Err((reason, vni_index)) => {
                        run.out.record(|| Step::Dropped(reason));
                        let dropped = (frame.data, Origin::Hosts, run.now);
                        self.drop_rest(at, reason, vni_index, dropped);
                    }
                }
                at = Cursor::at(at.frame + 1);
                if run.out.frames().is_part() && (at.frame as usize) < batch.len() {
                    return Some(at);
                }
            }
        }
    }

    /// Sends a frame if its flow is known, perhaps from an earlier epoch, and still holds.
    #[inline]
    fn send_confirmed<P: Policies, O: Output>(
        &mut self,
        key: &Key,
        (index, frame): (u32, &Frame<'_>),
        run: &mut Run<'_, '_, P, O>,
    ) -> bool {
        if !self.encap_cache.confirm(key, run.snapshot, run.policies.version()) {
            return false;
        }
        let (frames, sending) =
            (std::slice::from_ref(frame), sending(&mut self.identifications, run));
        self.encap_cache.send_all((frames, index), key.epoch(), sending) > 0
    }

    /// Counts a frame as dropped. If some of its segments were sent, the rest counts as one copy.
    #[cold]
    pub(crate) fn drop_rest(
        &self,
        at: Cursor,
        reason: DropReason,
        vni_index: u16,
        dropped: (&[u8], Origin, Instant),
    ) {
        self.counters.copies.add(u64::from(at.segment > 0));
        self.counters.drop_frame(reason, vni_index, dropped);
    }

    /// Counts the batch and prefetches the headers of its frames.
    fn begin(&self, batch: &Batch<'_>) {
        self.counters.bridge_received.add(batch.len() as u64);
        // Reading all headers in a row lets the cache misses overlap.
        let touch =
            |sum: u8, frame: &Frame<'_>| sum ^ frame.data.get(HEADERS - 1).copied().unwrap_or(0);
        black_box(batch.frames().fold(0, touch));
    }

    /// Encapsulates one frame. An error applies to the whole frame, or to the rest of it; copies
    /// and segments are accounted for here. Returns the segment to continue with if `out` is full
    /// before the frame is done.
    #[inline(never)]
    fn encapsulate_one<P: Policies, O: Output>(
        &mut self,
        (at, frame): (Cursor, &Frame<'_>),
        key: Option<&Key>,
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<Option<Cursor>, (DropReason, u16)> {
        if frame.data.is_empty() {
            return Err((DropReason::ReceiveUnreadable, 0));
        }
        let vni_index = match frame.vlan {
            Some(tag) if tag.tpid == PUNT_TPID => Slot::from_tci(tag.tci).get(),
            _ => 0,
        };
        let vni = run.snapshot.vni(vni_index).ok_or((DropReason::UnknownSlot, 0))?;
        let whole = |reason| (reason, vni_index);
        let dissection = wire::dissect(frame.data);
        let dissection = dissection.as_ref().ok_or((DropReason::Truncated, vni_index))?;
        let decision = Decision::of(frame, dissection, vni).map_err(whole)?;
        if dissection.roce.is_some_and(|roce| roce.destination.get() <= 1) {
            observe(&decision, frame, run);
        }
        let Tunnelled { next, choice } = self.tunnel(at, &decision, run).map_err(whole)?;
        if let (false, [remote], Some(choice)) = (decision.flooded, decision.remotes, choice)
            && choice.is_cacheable
            && let Some(key) = key.filter(|_| Key::is_of(dissection))
            && let Some(of) =
                Versions::of(decision.vni.index, *remote, run.snapshot, run.policies.version())
            && let Some(sent) = run.out.frames().last()
        {
            let evicts = self.encap_cache.remember(key, of, (sent, &choice), run.now);
            self.counters.flow_cache.evictions.add(u64::from(evicts));
        }
        Ok(next)
    }

    /// Sends a copy of the frame to each VTEP, in as many pieces as it has. An error applies to the
    /// whole frame.
    #[inline(always)]
    pub(crate) fn tunnel<'a, P: Policies, O: Output>(
        &mut self,
        at: Cursor,
        decision: &Decision<'_>,
        run: &mut Run<'a, '_, P, O>,
    ) -> Result<Tunnelled<'a>, DropReason> {
        run.out.record(|| {
            Step::addressed(decision.vni, decision.dissection.destination, decision.flooded)
        });
        if decision.flooded && at.segment == 0 {
            self.counters.vni(decision.vni.index.get()).inspect(|counters| counters.flooded.add(1));
        }
        if !decision.is_finished() {
            let next = self.tunnel_pieces(at, *decision, run)?;
            return Ok(Tunnelled { next, choice: None });
        }
        // The path of almost all frames, without the code for offloads.
        self.counters.copies.add(decision.remotes.len() as u64 - 1);
        self.inner.clear();
        let flow = decision.flow(run.policies.of(decision.vni).0, None);
        let choice = self.send_copies(decision, &flow, (at, decision.whole()), run);
        Ok(Tunnelled { next: None, choice })
    }

    /// As [`Self::tunnel`], for a frame with a checksum or segmentation left to be done. Returns the
    /// segment to continue with if `out` is full before the last one.
    #[inline(never)]
    fn tunnel_pieces<P: Policies, O: Output>(
        &mut self,
        at: Cursor,
        decision: Decision<'_>,
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<Option<Cursor>, DropReason> {
        let segmenter = decision.segmenter()?;
        let (index, first) = (at.frame, at.segment as usize);
        let (segments, copies) =
            (segmenter.as_ref().map_or(1, Segmenter::count), decision.remotes.len());
        for segment in first..segments {
            if segment > first && run.out.frames().is_part() {
                return Ok(Some(Cursor { frame: index, segment: segment as u32 }));
            }
            // The first copy of the first segment is the received frame, not an addition to it.
            self.counters.copies.add((copies - usize::from(segment == 0)) as u64);
            let at = Cursor { frame: index, segment: segment as u32 };
            let piece = decision.piece(segmenter.as_ref(), segment, &mut self.inner);
            let flow = decision.flow(run.policies.of(decision.vni).0, piece.as_ref().ok());
            match piece {
                Ok(piece) => _ = self.send_copies(&decision, &flow, (at, piece.body), run),
                Err(reason) => {
                    for remote in decision.remotes {
                        let to = (segment, *remote);
                        run.out
                            .record(|| Step::copy(&decision, to, &flow, Err(reason), run.snapshot));
                    }
                    self.counters.drop_frames(reason, decision.vni.index.get(), copies as u64);
                }
            }
        }
        Ok(None)
    }

    /// Sends one piece to each remote VTEP. Its rewritten headers are in `self.inner`. Returns the
    /// choice of the last copy, as [`Tunnelled::choice`].
    #[inline(always)]
    fn send_copies<'a, P: Policies, O: Output>(
        &mut self,
        decision: &Decision<'_>,
        flow: &Flow,
        (at, range): (Cursor, Range<usize>),
        run: &mut Run<'a, '_, P, O>,
    ) -> Option<Choice<'a>> {
        let body = (at.frame, range.start as u32..range.end as u32);
        let mut last = None;
        for &remote in decision.remotes {
            let to = (at.segment as usize, remote);
            let sent = self.send_copy::<Ipv4Addr, _, _>(decision, flow, (to, &body), run);
            last = sent.unwrap_or_else(|reason| {
                self.send_otherwise(decision, flow, (to, &body), reason, run);
                None
            });
        }
        last
    }

    /// Sends one piece that could not be sent over IPv4 for this reason: over IPv6 if that is the
    /// underlay of the VNI, or counts it as dropped. It is apart, so that the code for IPv4 stays
    /// short.
    #[inline(never)]
    fn send_otherwise<P: Policies, O: Output>(
        &mut self,
        decision: &Decision<'_>,
        flow: &Flow,
        (to, body): ((usize, VtepIndex), &(u32, Range<u32>)),
        reason: DropReason,
        run: &mut Run<'_, '_, P, O>,
    ) {
        let sent = if decision.vni.tunnel.local.is_ipv6() {
            self.send_copy::<Ipv6Addr, _, _>(decision, flow, (to, body), run)
        } else {
            Err(reason)
        };
        if let Err(reason) = sent {
            let snapshot = run.snapshot;
            run.out.record(|| Step::copy(decision, to, flow, Err(reason), snapshot));
            self.counters.drop_frames(reason, decision.vni.index.get(), 1);
        }
    }

    /// Sends one piece to one remote VTEP. Its rewritten headers are in `self.inner`. Returns its
    /// choice, or `None` if it is held.
    #[inline(always)]
    fn send_copy<'a, A: Address, P: Policies, O: Output>(
        &mut self,
        decision: &Decision<'_>,
        flow: &Flow,
        (to, (index, range)): ((usize, VtepIndex), &(u32, Range<u32>)),
        run: &mut Run<'a, '_, P, O>,
    ) -> Result<Option<Choice<'a>>, DropReason> {
        let (_, remote) = to;
        let (vni, inner) = (decision.vni, self.inner.as_slice());
        let length = inner.len() + range.len();
        let (path, ends) =
            Path::over::<A, P>((vni, remote), flow, length, run.snapshot, run.policies)?;
        let Path { choice, l3_length, .. } = path;
        if let Some(counter) = choice.counter {
            let packet = decision.packet(inner, range);
            run.policies.counting(run.now).count(counter, length, packet);
        }
        let inherited = Inherited::of(&vni.tunnel, &decision.inner);
        let Inherited { tos, ttl, dont_fragment } = inherited;
        let (tunnel, hop) = (&vni.tunnel, choice.hop);
        let (identification, flow_label) = if A::IS_IPV4 {
            (self.identifications.next(), 0)
        } else {
            (0, tunnel.flow_label.of(choice.source_port))
        };
        let outer = OuterHeaders {
            // An unresolved next hop gets the MAC address 00:00:00:00:00:00 for the time being.
            macs: (hop.source_mac, hop.destination_mac.unwrap_or_default()),
            ends,
            ports: (choice.source_port, tunnel.destination_port),
            tos,
            ttl,
            identification,
            dont_fragment,
            flow_label,
            l3_length,
            udp_checksum: tunnel.udp_checksum,
            vni: tunnel.vni,
        };
        let mut offload = Offload::default();
        if tunnel.udp_checksum {
            offload.checksum = Checksum::Partial { start: A::UDP_AT as u16, offset: UDP_CHECKSUM };
        }
        let body = Payload::Received { frame: *index, range: range.clone() };
        let (out, egress) = (run.out.frames(), uplink(hop));
        // Written in place, because moving a whole `TxFrame` is expensive.
        let Some(transmit) = out.append(egress, vni.index.get(), body, offload) else {
            return Err(DropReason::TooBig);
        };
        transmit.vtep = Some(path.id);
        transmit.outer_length = A::OUTER as u16;
        let mut fits = false;
        if let Some(headers) = transmit.append_head(A::OUTER) {
            outer.write(headers);
            fits = inner.is_empty() || transmit.extend_head(inner);
        }
        let is_held = !fits || hop.destination_mac.is_none();
        if is_held {
            self.hold_last(fits, (path, remote), run)?;
        }
        let snapshot = run.snapshot;
        run.out.record(|| Step::copy(decision, to, flow, Ok((path, inherited)), snapshot));
        Ok((!is_held).then_some(choice))
    }

    /// Removes the last frame from `out` and holds it until its next hop is resolved. It is dropped
    /// if its headers did not fit.
    #[cold]
    pub(crate) fn hold_last<P: Policies, O: Output>(
        &mut self,
        fits: bool,
        (path, remote): (Path<'_>, VtepIndex),
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<(), DropReason> {
        let Some(transmit) = run.out.frames().pop().filter(|_| fits) else {
            return Err(DropReason::TooBig);
        };
        self.unresolved.push(transmit, run.batch, (&path, remote), run.now)?;
        self.counters.held.add(1);
        Ok(())
    }
}

/// What became of a frame for remote VTEPs.
pub(crate) struct Tunnelled<'a> {
    /// The segment to continue with, if `out` is full before the last one.
    pub(crate) next: Option<Cursor>,
    /// The choice of the last copy, which is the last frame of `out`. `None` if it was not sent whole
    /// and over IPv4.
    pub(crate) choice: Option<Choice<'a>>,
}

/// What frames of known flows are sent with.
#[inline(always)]
fn sending<'r, P: Policies, O: Output>(
    identifications: &'r mut Block,
    run: &'r mut Run<'_, '_, P, O>,
) -> Sending<'r> {
    let (counting, sprays) = run.policies.sending(run.now);
    let (out, snapshot) = (run.out.frames(), run.snapshot);
    Sending { out, identifications, snapshot, counting, sprays, last: Way::NONE }
}

/// Shows a frame for a management queue pair to the policy.
#[cold]
fn observe<P: Policies, O: Output>(
    decision: &Decision<'_>,
    frame: &Frame<'_>,
    run: &Run<'_, '_, P, O>,
) {
    let (&[remote], false) = (decision.remotes, decision.flooded) else { return };
    let (Some(vtep), Some(hosts)) =
        (run.snapshot.vtep(remote), decision.dissection.network.addresses())
    else {
        return;
    };
    let header =
        decision.dissection.transport.map_or(0, |udp| usize::from(udp.offset) + Udp::LENGTH);
    let tunnel = &decision.vni.tunnel;
    let to = Remote {
        vni: tunnel.vni,
        local: tunnel.local,
        address: vtep.address,
        destination_port: tunnel.destination_port,
        group: &vtep.paths,
    };
    let packet = frame.data.get(header..).unwrap_or_default();
    run.policies.observe(decision.vni, hosts, &to, packet);
}
