//! From the bridge to the underlay: lookup, entropy, outer headers (RFC 7348 section 5).

use core::ops::Range;
use std::hint::black_box;
use std::time::Instant;

use tables::{Snapshot, Tunnel, VtepIndex};

use crate::Pipeline;
use crate::batch::{Batch, Body, Destination};
use crate::decide::{L3_OVERHEAD, Path, Plan};
use crate::drop_reason::DropReason;
use crate::flows::{HEADERS, Key};
use crate::frame::{Checksum, ETHERNET, Frame, MACS, Offload};
use crate::outer::{Inherited, Outer, UDP_AT, UDP_CHECKSUM};
use crate::outgoing::Outgoing;
use crate::segment::Segmenter;

pub use crate::outer::OVERHEAD;

/// Tag protocol identifier of the 802.1ad tag that numbers VNIs on the bridge splice.
pub(crate) const TPID: u16 = wire::number::ETHERTYPE_SERVICE_VLAN;

impl Pipeline {
    /// Encapsulates a batch that came from the bridge splice; what is to be sent is appended to `out`.
    pub fn encapsulate(&mut self, batch: &Batch<'_>, snapshot: &Snapshot, now: Instant, out: &mut Outgoing) {
        self.counters.bridge_received.add(batch.len() as u64);
        // Frames that are in no cache come together so; one after another, between all else, 1,082 bytes took 60 ns instead of 37.
        let touch = |sum: u8, frame: &Frame<'_>| sum ^ frame.data.get(HEADERS - 1).copied().unwrap_or(0);
        black_box(batch.frames().fold(0, touch));
        for (frame, index) in batch.frames().zip(0u32..) {
            let known = Key::of(frame, snapshot)
                .is_some_and(|key| self.flows.send(&key, (index, frame), &mut self.identification, out));
            if known {
                continue;
            }
            if let Err((reason, slot)) = self.encapsulate_one(batch, (index, frame), snapshot, now, out) {
                self.counters.drop_frames(reason, slot, 1);
            }
        }
    }

    /// An error is the fate of the whole frame; copies and segments are accounted for on the way.
    #[inline(never)]
    fn encapsulate_one(
        &mut self,
        batch: &Batch<'_>,
        (index, frame): (u32, &Frame<'_>),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Outgoing,
    ) -> Result<(), (DropReason, u16)> {
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
        let plan = Plan::of(frame, dissection, vni).map_err(whole)?;
        let before = out.len();
        self.tunnel(batch, index, &plan, snapshot, now, out).map_err(whole)?;
        if let (false, [_], Some([sent])) = (plan.flooded, plan.remotes, out.get(before..))
            && let Some(key) = Key::of(frame, snapshot)
        {
            self.flows.remember(key, dissection, sent);
        }
        Ok(())
    }

    /// Sends each VTEP its copy of the frame at this index, in as many pieces as it has. An error is the fate of the whole frame.
    #[inline(always)]
    pub(crate) fn tunnel(
        &mut self,
        batch: &Batch<'_>,
        index: u32,
        plan: &Plan<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Outgoing,
    ) -> Result<(), DropReason> {
        if plan.flooded {
            self.counters.vni(plan.vni.slot.get()).inspect(|counters| counters.flooded.add(1));
        }
        if !plan.is_finished() {
            return self.tunnel_pieces(batch, index, *plan, snapshot, now, out);
        }
        // Almost all frames: on a way of their own, without what the others need, they take a tenth fewer instructions.
        self.counters.copies.add(plan.remotes.len() as u64 - 1);
        self.inner.clear();
        let source_port = plan.source_port(None);
        self.send_copies(batch, plan, (source_port, index, plan.whole()), snapshot, now, out);
        Ok(())
    }

    /// The same for a frame whose sender left its checksum or its segmentation to somebody below.
    #[inline(never)]
    fn tunnel_pieces(
        &mut self,
        batch: &Batch<'_>,
        index: u32,
        plan: Plan<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Outgoing,
    ) -> Result<(), DropReason> {
        let segmenter = plan.segmenter()?;
        if let Some(segmenter) = &segmenter
            && self.send_whole(batch, index, &plan, segmenter, snapshot, out).is_some()
        {
            return Ok(());
        }
        let (segments, copies) = (segmenter.as_ref().map_or(1, Segmenter::count), plan.remotes.len());
        self.counters.copies.add((segments * copies - 1) as u64);
        for segment in 0..segments {
            match plan.piece(segmenter.as_ref(), segment, &mut self.inner) {
                Ok(piece) => {
                    let source_port = plan.source_port(Some(&piece));
                    self.send_copies(batch, &plan, (source_port, index, piece.body), snapshot, now, out);
                }
                Err(reason) => self.counters.drop_frames(reason, plan.vni.slot.get(), copies as u64),
            }
        }
        Ok(())
    }

    /// Sends a TCP super-frame as it is to the one VTEP that it is for, if the uplink's program tells the kernel of the tunnel. Everything else,
    /// and what cannot be sent at all, is `None`, and cut.
    fn send_whole(
        &mut self,
        batch: &Batch<'_>,
        index: u32,
        plan: &Plan<'_>,
        segmenter: &Segmenter<'_>,
        snapshot: &Snapshot,
        out: &mut Outgoing,
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
        // The headers that each segment repeats are in the head: for those who count.
        let inner = batch.frame(index as usize)?.data.get(..segmenter.header_length())?;
        let body = Body::Received { frame: index, range: inner.len() as u32..whole.end as u32 };
        let transmit = out.append(Destination::uplink(hop), plan.vni.slot.get(), body, offload)?;
        (transmit.vtep, transmit.segments) = (Some((remote, address)), segments);
        let headers = transmit.append_head()?;
        // Nobody could finish a checksum for each segment.
        let tunnel = &Tunnel { udp_checksum: false, ..plan.vni.tunnel };
        let inherited = Inherited::of(tunnel, &plan.inner);
        let identification = self.identification.wrapping_add(1);
        Outer { tunnel, hop, remote: address, source_port, l3_length, identification, inherited }
            .write(headers);
        // What the kernel holds the kind of segmentation against (`virtio_net_hdr_match_proto()`, `include/linux/virtio_net.h`).
        headers[MACS..ETHERNET].copy_from_slice(&ethertype.to_be_bytes());
        if !transmit.extend_head(inner) {
            out.pop();
            return None;
        }
        self.identification = self.identification.wrapping_add(segments);
        self.counters.copies.add(u64::from(segments) - 1);
        Some(())
    }

    /// Sends one piece, whose rewritten headers are in `inner`, to each remote VTEP.
    #[inline(always)]
    fn send_copies(
        &mut self,
        batch: &Batch<'_>,
        plan: &Plan<'_>,
        (source_port, index, range): (u16, u32, Range<usize>),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Outgoing,
    ) {
        let body = (index, range.start as u32..range.end as u32);
        for &remote in plan.remotes {
            if let Err(reason) = self.send_copy(batch, plan, (remote, source_port, &body), snapshot, now, out)
            {
                self.counters.drop_frames(reason, plan.vni.slot.get(), 1);
            }
        }
    }

    #[inline(always)]
    fn send_copy(
        &mut self,
        batch: &Batch<'_>,
        plan: &Plan<'_>,
        (remote, source_port, (index, range)): (VtepIndex, u16, &(u32, Range<u32>)),
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Outgoing,
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
        let to = Destination::uplink(hop);
        let body = Body::Received { frame: *index, range: range.clone() };
        // Built where it stays: moving it costs more than all of the rest.
        let Some(transmit) = out.append(to, vni.slot.get(), body, offload) else {
            return Err(DropReason::TooBig);
        };
        transmit.vtep = Some((remote, path.remote));
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

    /// Takes back the frame that was appended last: it waits for its next hop, if its headers fit.
    #[cold]
    fn hold_last(
        &mut self,
        fits: bool,
        batch: &Batch<'_>,
        (path, remote): (Path<'_>, VtepIndex),
        now: Instant,
        out: &mut Outgoing,
    ) -> Result<(), DropReason> {
        let Some(transmit) = out.pop().filter(|_| fits) else { return Err(DropReason::TooBig) };
        self.hold.push(transmit, batch, (&path, remote), now)?;
        self.counters.held.add(1);
        Ok(())
    }
}
