//! Encapsulation: lookup, source port and outer headers (RFC 7348 section 5).

use core::ops::Range;
use std::hint::black_box;
use std::time::Instant;

use frame::{Batch, Checksum, DropReason, ETHERNET, Frame, MACS, Offload, Payload, TxBatch};
use tables::{Snapshot, Tunnel, VtepIndex};

use crate::Pipeline;
use crate::cursor::Cursor;
use crate::encap_cache::{HEADERS, Key};
use crate::gso::Segmenter;
use crate::lookup::{Decision, L3_OVERHEAD, Path, uplink};
use crate::outer::{Inherited, Outer, UDP_AT, UDP_CHECKSUM};

pub use crate::outer::OVERHEAD;

/// Tag protocol identifier of the 802.1ad tag that numbers VNIs on the bridge punt pair.
pub(crate) const TPID: u16 = wire::number::ETHERTYPE_SERVICE_VLAN;

impl Pipeline {
    /// Encapsulates a whole batch from the bridge punt pair and appends the result to `out`. The
    /// length of `out` is not bounded; see [`Self::encapsulate_part`].
    pub fn encapsulate(
        &mut self,
        batch: &Batch<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        let mut next = self.encapsulate_part(batch, Cursor::default(), snapshot, now, out);
        while let Some(from) = next {
            next = self.encapsulate_part(batch, from, snapshot, now, out);
        }
    }

    /// Encapsulates frames of a batch from the bridge punt pair, until `out` holds at least
    /// [`PART`](frame::PART) frames. Returns where to continue once these are sent, or `None` at
    /// the end of the batch.
    pub fn encapsulate_part(
        &mut self,
        batch: &Batch<'_>,
        from: Cursor,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Option<Cursor> {
        if from == Cursor::default() {
            self.begin(batch);
        }
        let mut segment = from.segment;
        for (frame, index) in batch.frames_from(from.frame).iter().zip(from.frame..) {
            let known = Key::of(frame, snapshot).is_some_and(|key| {
                self.encap_cache.send(&key, (index, frame), &mut self.identification, out)
            });
            if known {
                continue;
            }
            let at = Cursor { frame: index, segment: std::mem::take(&mut segment) };
            match self.encapsulate_one(batch, (at, frame), snapshot, now, out) {
                Ok(None) => {}
                Ok(next) => return next,
                Err((reason, slot)) => self.drop_rest(at, reason, slot),
            }
            if out.is_part() && (index as usize) + 1 < batch.len() {
                return Some(Cursor::at(index + 1));
            }
        }
        None
    }

    /// Counts a frame as dropped. If some of its segments were sent, the rest counts as one copy.
    #[cold]
    pub(crate) fn drop_rest(&self, at: Cursor, reason: DropReason, slot: u16) {
        self.counters.copies.add(u64::from(at.segment > 0));
        self.counters.drop_frames(reason, slot, 1);
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
    fn encapsulate_one(
        &mut self,
        batch: &Batch<'_>,
        (at, frame): (Cursor, &Frame<'_>),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Result<Option<Cursor>, (DropReason, u16)> {
        if frame.data.is_empty() {
            return Err((DropReason::ReceiveUnreadable, 0));
        }
        let slot = match frame.vlan {
            Some(tag) if tag.tpid == TPID => tag.tci & 0x0fff,
            _ => 0,
        };
        let vni = snapshot.vni(slot).ok_or((DropReason::UnknownSlot, 0))?;
        let whole = |reason| (reason, slot);
        let dissection = wire::dissect(frame.data);
        let dissection = dissection.as_ref().ok_or((DropReason::Truncated, slot))?;
        let plan = Decision::of(frame, dissection, vni).map_err(whole)?;
        let before = out.len();
        let rest = self.tunnel(batch, at, &plan, snapshot, now, out).map_err(whole)?;
        if let (false, 0, [_], Some([sent])) =
            (plan.flooded, at.segment, plan.remotes, out.get(before..))
            && let Some(key) = Key::of(frame, snapshot)
        {
            self.encap_cache.remember(key, dissection, sent);
        }
        Ok(rest)
    }

    /// Sends a copy of the frame to each VTEP, in as many pieces as it has. An error applies to the
    /// whole frame. Returns the segment to continue with if `out` is full before the last one.
    #[inline(always)]
    pub(crate) fn tunnel(
        &mut self,
        batch: &Batch<'_>,
        at: Cursor,
        plan: &Decision<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Result<Option<Cursor>, DropReason> {
        if plan.flooded && at.segment == 0 {
            self.counters.vni(plan.vni.slot.get()).inspect(|counters| counters.flooded.add(1));
        }
        if !plan.is_finished() {
            return self.tunnel_pieces(batch, at, *plan, snapshot, now, out);
        }
        // The path of almost all frames, without the code for offloads.
        self.counters.copies.add(plan.remotes.len() as u64 - 1);
        self.inner.clear();
        let source_port = plan.source_port(None);
        self.send_copies(batch, plan, (source_port, at.frame, plan.whole()), snapshot, now, out);
        Ok(None)
    }

    /// As [`Self::tunnel`], for a frame with a checksum or segmentation left to be done.
    #[inline(never)]
    fn tunnel_pieces(
        &mut self,
        batch: &Batch<'_>,
        at: Cursor,
        plan: Decision<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Result<Option<Cursor>, DropReason> {
        let segmenter = plan.segmenter()?;
        let (index, first) = (at.frame, at.segment as usize);
        if let Some(segmenter) = segmenter.as_ref().filter(|_| first == 0)
            && self.send_whole(batch, index, &plan, segmenter, snapshot, out).is_some()
        {
            return Ok(None);
        }
        let (segments, copies) =
            (segmenter.as_ref().map_or(1, Segmenter::count), plan.remotes.len());
        for segment in first..segments {
            if segment > first && out.is_part() {
                return Ok(Some(Cursor { frame: index, segment: segment as u32 }));
            }
            // The first copy of the first segment is the received frame, not an addition to it.
            self.counters.copies.add((copies - usize::from(segment == 0)) as u64);
            match plan.piece(segmenter.as_ref(), segment, &mut self.inner) {
                Ok(piece) => {
                    let source_port = plan.source_port(Some(&piece));
                    self.send_copies(
                        batch,
                        &plan,
                        (source_port, index, piece.body),
                        snapshot,
                        now,
                        out,
                    );
                }
                Err(reason) => {
                    self.counters.drop_frames(reason, plan.vni.slot.get(), copies as u64)
                }
            }
        }
        Ok(None)
    }

    /// Sends a TCP super-frame whole to its only VTEP. The program at the uplink must describe the
    /// tunnel to the kernel. `None` if this is not possible; the caller then splits the
    /// super-frame.
    fn send_whole(
        &mut self,
        batch: &Batch<'_>,
        index: u32,
        plan: &Decision<'_>,
        segmenter: &Segmenter<'_>,
        snapshot: &Snapshot,
        out: &mut TxBatch,
    ) -> Option<()> {
        let &[remote] = plan.remotes else { return None };
        let (longest, offload) = plan.in_a_tunnel(segmenter)?;
        let source_port = plan.source_port(None);
        let Path { hop, remote: address, .. } =
            Path::of(plan.vni, remote, source_port, longest, snapshot).ok()?;
        let resolved = hop.destination_mac.is_some() && !hop.impaired;
        if !resolved || !self.tunnel_uplinks.contains(&hop.ifindex) {
            return None;
        }
        let segments = u16::try_from(segmenter.count()).ok()?;
        let whole = plan.whole();
        let l3_length = u16::try_from(whole.len() + L3_OVERHEAD).ok()?;
        let ethertype = plan.dissection.ethertype;
        // The head holds the headers that each segment repeats, because the counters need their
        // length.
        let inner = batch.frame(index as usize)?.data.get(..segmenter.header_length())?;
        let body = Payload::Received { frame: index, range: inner.len() as u32..whole.end as u32 };
        let transmit = out.append(uplink(hop), plan.vni.slot.get(), body, offload)?;
        (transmit.vtep, transmit.segments) = (Some((remote.0, address)), segments);
        let headers = transmit.append_head()?;
        // The kernel cannot compute an outer checksum for each segment.
        let tunnel = &Tunnel { udp_checksum: false, ..plan.vni.tunnel };
        let inherited = Inherited::of(tunnel, &plan.inner);
        let identification = self.identification.wrapping_add(1);
        Outer { tunnel, hop, remote: address, source_port, l3_length, identification, inherited }
            .write(headers);
        // The kernel compares the EtherType with the kind of segmentation
        // (`virtio_net_hdr_match_proto()`, `include/linux/virtio_net.h`). It must be the inner one.
        headers[MACS..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
        if !transmit.extend_head(inner) {
            out.pop();
            return None;
        }
        self.identification = self.identification.wrapping_add(segments);
        self.counters.copies.add(u64::from(segments) - 1);
        Some(())
    }

    /// Sends one piece to each remote VTEP. Its rewritten headers are in `self.inner`.
    #[inline(always)]
    fn send_copies(
        &mut self,
        batch: &Batch<'_>,
        plan: &Decision<'_>,
        (source_port, index, range): (u16, u32, Range<usize>),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        let body = (index, range.start as u32..range.end as u32);
        for &remote in plan.remotes {
            if let Err(reason) =
                self.send_copy(batch, plan, (remote, source_port, &body), snapshot, now, out)
            {
                self.counters.drop_frames(reason, plan.vni.slot.get(), 1);
            }
        }
    }

    #[inline(always)]
    fn send_copy(
        &mut self,
        batch: &Batch<'_>,
        plan: &Decision<'_>,
        (remote, source_port, (index, range)): (VtepIndex, u16, &(u32, Range<u32>)),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let (vni, inner) = (plan.vni, self.inner.as_slice());
        let path = Path::of(vni, remote, source_port, inner.len() + range.len(), snapshot)?;
        let Path { hop, l3_length, .. } = path;
        self.identification = self.identification.wrapping_add(1);
        let outer = Outer {
            tunnel: &vni.tunnel,
            hop,
            remote: path.remote,
            source_port,
            l3_length,
            identification: self.identification,
            inherited: Inherited::of(&vni.tunnel, &plan.inner),
        };
        let mut offload = Offload::default();
        if vni.tunnel.udp_checksum {
            offload.checksum = Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM };
        }
        let to = uplink(hop);
        let body = Payload::Received { frame: *index, range: range.clone() };
        // Written in place, because moving a whole `TxFrame` is expensive.
        let Some(transmit) = out.append(to, vni.slot.get(), body, offload) else {
            return Err(DropReason::TooBig);
        };
        transmit.vtep = Some((remote.0, path.remote));
        let mut fits = false;
        if let Some(headers) = transmit.append_head() {
            outer.write(headers);
            fits = inner.is_empty() || transmit.extend_head(inner);
        }
        if fits && hop.destination_mac.is_some() {
            return Ok(());
        }
        self.hold_last(fits, batch, (path, remote), now, out)
    }

    /// Removes the last frame from `out` and holds it until its next hop is resolved. It is dropped
    /// if its headers did not fit.
    #[cold]
    fn hold_last(
        &mut self,
        fits: bool,
        batch: &Batch<'_>,
        (path, remote): (Path<'_>, VtepIndex),
        now: Instant,
        out: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let Some(transmit) = out.pop().filter(|_| fits) else { return Err(DropReason::TooBig) };
        self.unresolved.push(transmit, batch, (&path, remote), now)?;
        self.counters.held.add(1);
        Ok(())
    }
}
