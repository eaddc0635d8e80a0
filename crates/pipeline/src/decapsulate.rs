//! Decapsulation: checks of the outer headers, ECN, and delivery to the bridge, a host port or an
//! access port.
//!
//! A frame for the bridge gets an 802.1ad tag. It tells the program at the punt pair which vxlan
//! netdev the frame is for.

use core::ops::Range;
use std::time::Instant;

use frame::{
    Batch, Checksum, Destination, DropReason, ETHERNET, Frame, Gso, MACS, Offload, PUNT_TAG,
    PUNT_TPID, Payload, Queue, TxBatch, VtepId,
};
use tables::{Slot, Snapshot, VniTable, VtepIndex};
use wire::ecn::Egress;
use wire::{Dissection, MacAddr, Network};

use crate::Pipeline;
use crate::bridge::{Location, Way};
use crate::counters::vtep_id;
use crate::csum_offload::{Completed, is_sctp};
use crate::cursor::Cursor;
use crate::dropped::Origin;
use crate::outer::{Inner, UDP_AT, UDP_AT_IPV6};
use crate::received::{Outer, Pieces, vxlan};
use crate::run::{Output, Run};
use crate::sprayed::Admission;
use crate::steps::{Decapsulation, Step};

/// Shortest inner frame in bytes that workers take: an Ethernet header, a tag and its EtherType.
/// The steering program passes packets with shorter ones to kernel VXLAN (`SHORTEST_INNER` in
/// `steering.bpf.c`).
pub const SHORTEST_INNER: usize = 14 + 6;

impl Pipeline {
    /// Decapsulates a whole batch from the underlay punt pair and appends the result to `out`, which
    /// is neither bounded nor finished; see [`Self::decapsulate_part`].
    pub fn decapsulate(
        &mut self,
        batch: &Batch<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        let mut run = Run { batch, snapshot, now, policies: &mut (), out };
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            next = self.decapsulate_frames(from, &mut run);
        }
    }

    /// Decapsulates frames of a batch from the underlay punt pair, until `out` holds at least
    /// [`PART`](frame::PART) frames, and finishes `out`. Returns where to continue once these are
    /// sent, or `None` at the end of the batch.
    pub fn decapsulate_part(
        &mut self,
        batch: &Batch<'_>,
        from: Cursor,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Option<Cursor> {
        let mut run = Run { batch, snapshot, now, policies: &mut (), out };
        let next = self.decapsulate_frames(from, &mut run);
        let queues: &[Queue] =
            if self.bridge.is_some() { &[Queue::Ports] } else { &[Queue::Hosts, Queue::Bridge] };
        self.finish(out, queues);
        next
    }

    /// Decapsulates frames of the batch until a part is full, and returns where to continue.
    pub(crate) fn decapsulate_frames<P, O: Output>(
        &mut self,
        from: Cursor,
        run: &mut Run<'_, '_, P, O>,
    ) -> Option<Cursor> {
        let batch = run.batch;
        self.set_time(run.now);
        if let Some(sprayed) = &mut self.sprayed
            && sprayed.begin(run.now)
        {
            self.decap_cache.forget();
        }
        if from == Cursor::default() {
            self.counters.underlay_received.add(batch.len() as u64);
        }
        // Without a bridge, no frame is replicated, so the batch bounds `out`.
        let replicates = self.bridge.is_some();
        for (frame, index) in batch.frames_from(from.frame).iter().zip(from.frame..) {
            if replicates && index > from.frame && run.out.frames().is_part() {
                self.end_sprayed();
                return Some(Cursor::at(index));
            }
            match Outer::parse_ipv4(frame) {
                Err(DropReason::NotVxlan) => self.decapsulate_ipv6((index, frame), run),
                outer => self.decapsulate_packet::<UDP_AT, P, O>((index, frame), outer, run),
            }
        }
        self.end_sprayed();
        None
    }

    /// Sets the time of a batch.
    fn set_time(&mut self, now: Instant) {
        self.learner.set_time(now);
        self.host_delivery.set_time(now);
        if let Some(bridge) = &mut self.bridge {
            bridge.set_time(now);
        }
    }

    /// Decapsulates a frame that is not IPv4.
    #[inline(never)]
    fn decapsulate_ipv6<P, O: Output>(
        &mut self,
        (index, frame): (u32, &Frame<'_>),
        run: &mut Run<'_, '_, P, O>,
    ) {
        let outer = Outer::parse_ipv6(frame);
        self.decapsulate_packet::<UDP_AT_IPV6, P, O>((index, frame), outer, run);
    }

    /// Decapsulates a packet whose UDP header is at this offset.
    #[inline(always)]
    fn decapsulate_packet<const UDP: usize, P, O: Output>(
        &mut self,
        (index, frame): (u32, &Frame<'_>),
        outer: Result<Outer, DropReason>,
        run: &mut Run<'_, '_, P, O>,
    ) {
        let received = outer.and_then(|outer| {
            outer.verify::<UDP>(frame)?;
            let pieces = Pieces::of::<UDP>(&frame.offload, &outer)?;
            Ok((outer, pieces))
        });
        let (outer, pieces) = match received {
            Ok(received) => received,
            Err(reason) => {
                run.out.record(|| Step::Dropped(reason));
                self.counters.drop_frame(reason, 0, (frame.data, Origin::Underlay, run.now));
                return;
            }
        };
        let (snapshot, plain) = (run.snapshot, pieces.offload == Offload::default());
        let mut next = UDP + 8;
        // A loop, because a division costs more.
        while next < outer.end {
            let start = next;
            let end = (start + pieces.size).min(outer.end);
            if start > UDP + 8 {
                self.counters.copies.add(1);
            }
            next = end;
            if plain
                && let Some(packet) = frame.data.get(start..end)
                && let Some(known) =
                    self.decap_cache.find::<UDP>((index, end, packet), &outer, snapshot)
            {
                let Self { host_delivery: hosts, sprayed, counters, .. } = self;
                let admission = match (known.sender.sprays, &mut *sprayed) {
                    (Some(from), Some(sprayed)) => sprayed.admit(&known, from, &outer),
                    _ => Admission::Passes,
                };
                let is_sent = match admission {
                    Admission::Passes => known.deliver(snapshot, (hosts, run.out.frames())),
                    Admission::Ordered => Self::pass_sprayed(
                        (sprayed, hosts, &**counters),
                        known,
                        &outer,
                        (frame.data, run.now),
                        (snapshot, run.out),
                    ),
                    Admission::Unknown => false,
                };
                if is_sent {
                    continue;
                }
            }
            let sent =
                self.decapsulate_piece((index, frame, start..end), &outer, pieces.offload, run);
            if let Err((reason, vni_index)) = sent {
                run.out.record(|| Step::Dropped(reason));
                let dropped = (frame.data, Origin::Underlay, run.now);
                self.counters.drop_frame(reason, vni_index, dropped);
            }
        }
    }

    /// Decapsulates one piece. An error has the index of its VNI, or 0.
    #[inline(never)]
    fn decapsulate_piece<P, O: Output>(
        &mut self,
        (index, frame, range): (u32, &Frame<'_>, Range<usize>),
        outer: &Outer,
        offload: Offload,
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<(), (DropReason, u16)> {
        let end = range.end;
        let data = frame.data.get(range).ok_or((DropReason::Truncated, 0))?;
        let piece = &Piece { index, end, data, outer, offload };
        let (outer, snapshot) = (piece.outer, run.snapshot);
        let (vni, inner) = vxlan(piece.data).map_err(|reason| (reason, 0))?;
        let table = snapshot
            .terminate(outer.destination, outer.port, vni)
            .ok_or((DropReason::UnknownVni, 0))?;
        let vni_index = table.index.get();
        let whole = |reason| (reason, vni_index);
        let vtep = sender(outer, table, snapshot);
        if matches!(vtep, Ok(None) | Err(DropReason::UnknownVtep)) {
            self.counters.vni(vni_index).inspect(|counters| counters.unknown_vtep.add(1));
        }
        let vtep = vtep.map_err(whole)?;
        if let Some(vtep) = vtep
            && table.learning.is_none()
            && self.bridge.is_none()
        {
            let sprayed = self.sprayed.as_ref().filter(|_| table.sprays());
            let sprays = sprayed.and_then(|sprayed| sprayed.number(outer));
            self.decap_cache.remember(outer, (table, vtep_id(vtep, snapshot), sprays), snapshot);
        }
        let source = station(inner, table).map_err(whole)?;
        run.out.record(|| Step::Decapsulation(Decapsulation::stations(inner)));
        if let Some(learning) = &table.learning {
            let limited = &self.counters.learn_limited;
            let station = (source, outer.source);
            let record =
                |state| run.out.record(|| Step::Decapsulation(Decapsulation::Source(state)));
            let learned = self.learner.learn(station, (table, learning), snapshot, limited, record);
            learned.map_err(whole)?;
        }
        let id = vtep.map(|index| vtep_id(index, snapshot));
        if table.sprays()
            && let Some(sent) = self.resequence(piece, (inner, id), table, run)
        {
            return sent.map_err(whole);
        }
        let Some(bridge) = &mut self.bridge else {
            let host = self.host_delivery.way(inner, vni_index, snapshot, piece.offload);
            let to = host.unwrap_or(Destination::Bridge);
            return piece.deliver((inner, id), table, to, run.out).map_err(whole);
        };
        if let Some(index) = vtep {
            bridge
                .learn(table, source, Location::Vtep(index, outer.source), &self.counters)
                .map_err(whole)?;
        }
        let destination = inner.first_chunk().map(|address| MacAddr(*address)).unwrap_or_default();
        let ports: &[u16] = match &bridge.way(table, destination, snapshot) {
            Way::To(Location::Port(port)) => &[*port],
            // Split horizon.
            Way::To(Location::Vtep(..)) => return Err((DropReason::SamePort, vni_index)),
            Way::Flood => bridge.ports_of(table.tunnel.vni),
        };
        self.counters.copies.add((ports.len() as u64).saturating_sub(1));
        for port in ports {
            let to = Destination::Port(*port);
            if let Err(reason) = piece.deliver((inner, id), table, to, run.out) {
                let dropped = (frame.data, Origin::Underlay, run.now);
                self.counters.drop_frame(reason, vni_index, dropped);
            }
        }
        Ok(())
    }
}

/// A VXLAN header of a received frame, and the inner frame behind it.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    /// The number of the received frame.
    pub(crate) index: u32,
    /// The end of the inner frame in it.
    pub(crate) end: usize,
    /// The VXLAN header and the inner frame.
    pub(crate) data: &'a [u8],
    /// The headers before it.
    pub(crate) outer: &'a Outer,
    /// What is left to be done to the inner frame.
    pub(crate) offload: Offload,
}

/// The VTEP that a packet came from; `None` if no table has it. It is an error if `strict_vtep` is
/// set, if the source address can be no VTEP's (`ip_route_input_slow()` and
/// `fib_validate_source()` in the kernel).
pub(crate) fn sender(
    outer: &Outer,
    table: &VniTable,
    snapshot: &Snapshot,
) -> Result<Option<VtepIndex>, DropReason> {
    if snapshot.is_martian_source(outer.source) {
        return Err(DropReason::MartianSource);
    }
    if outer.lacks_checksum && !table.tunnel.accepts_no_checksum {
        return Err(DropReason::OuterUdpChecksum);
    }
    let vtep = snapshot.find_vtep(outer.source);
    if vtep.is_none() && table.strict_vtep { Err(DropReason::UnknownVtep) } else { Ok(vtep) }
}

/// The inner source address, if it is a valid station address (`vxlan_set_mac()` in
/// `drivers/net/vxlan/vxlan_core.c`).
pub(crate) fn station(inner: &[u8], table: &VniTable) -> Result<MacAddr, DropReason> {
    let address =
        inner.get(6..MACS).and_then(<[u8]>::first_chunk).filter(|_| inner.len() >= SHORTEST_INNER);
    let mac = MacAddr(*address.ok_or(DropReason::InnerTruncated)?);
    if mac.is_group() || mac == MacAddr::ZERO || Some(mac) == table.mac {
        return Err(DropReason::InvalidSource);
    }
    Ok(mac)
}

/// What happens to the inner packet's ECN field (RFC 6040 section 4.2). `None` if it has none.
pub(crate) fn congestion(outer_tos: u8, inner: &[u8]) -> Result<Option<Egress>, DropReason> {
    let Some(class) = Inner::of_received(inner)?.tos else { return Ok(None) };
    let ecn = wire::ecn::decapsulate(outer_tos, class);
    let version = inner.get(ETHERNET).map(|first| first >> 4);
    match (ecn, inner.get(MACS..ETHERNET), version) {
        (Egress::Drop, ..) => Err(DropReason::EcnNotCapable),
        // A header whose version contradicts the EtherType is not modified.
        (Egress::Set(_), Some([0x08, 0x00]), version) if version != Some(4) => {
            Ok(Some(Egress::Keep))
        }
        (Egress::Set(_), Some([0x86, 0xdd]), version) if version != Some(6) => {
            Ok(Some(Egress::Keep))
        }
        _ => Ok(Some(ecn)),
    }
}

impl Piece<'_> {
    /// Sends the inner frame to the bridge punt pair (with a tag), a host port or an access port.
    pub(crate) fn deliver<O: Output>(
        &self,
        (inner, vtep): (&[u8], Option<VtepId>),
        table: &VniTable,
        to: Destination,
        out: &mut O,
    ) -> Result<(), DropReason> {
        let dissection = wire::dissect(inner);
        let dissection = dissection.as_ref().ok_or(DropReason::InnerTruncated)?;
        let ecn = congestion(self.outer.tos, inner)?;
        self.deliver_known((inner, vtep), (dissection, ecn), table, to, out)
    }

    /// As [`Self::deliver`], with what is known of the inner frame and its ECN field.
    pub(crate) fn deliver_known<O: Output>(
        &self,
        (inner, vtep): (&[u8], Option<VtepId>),
        (dissection, ecn): (&Dissection, Option<Egress>),
        table: &VniTable,
        to: Destination,
        out: &mut O,
    ) -> Result<(), DropReason> {
        let l3 = usize::from(dissection.l3_offset);
        // The head holds the inner headers up to the last modified byte, or up to the tag.
        let (mut copied, codepoint) = match ecn {
            Some(Egress::Set(codepoint)) => match dissection.network {
                Network::Ipv6(_) => (l3 + 40, Some(codepoint)),
                _ => (l3 + 20, Some(codepoint)),
            },
            _ => (ETHERNET, None),
        };
        let tag = if to == Destination::Bridge { PUNT_TAG } else { 0 };
        let (offload, checksum) = inner_offload(inner, dissection, self.offload, tag)?;
        if let Some(checksum) = &checksum {
            copied = copied.max(checksum.end());
        }
        if tag == 0 && codepoint.is_none() && checksum.is_none() {
            copied = 0;
        }
        let addresses = inner.get(..copied.min(MACS)).ok_or(DropReason::InnerTruncated)?;
        let behind = inner.get(addresses.len()..copied).ok_or(DropReason::InnerTruncated)?;
        let start = self.end - inner.len() + copied;
        let body = Payload::Received { frame: self.index, range: start as u32..self.end as u32 };
        let segments = offload.gso.map_or(Ok(1), |gso| segments(inner, dissection, gso))?;
        // Written in place, because moving a whole `TxFrame` is expensive.
        let written =
            out.frames().append(to, table.index.get(), body, offload).and_then(|transmit| {
                transmit.segments = segments;
                transmit.vtep = vtep;
                let fits = transmit.extend_head(addresses)
                    && (tag == 0
                        || (transmit.extend_head(&PUNT_TPID.to_be_bytes())
                            && transmit.extend_head(&Slot::of(table.index).get().to_be_bytes())))
                    && transmit.extend_head(behind);
                if let Some(codepoint) = codepoint {
                    let ip = transmit.head_mut().get_mut(l3 + tag..)?;
                    wire::ecn::set(ip, codepoint).then_some(())?;
                }
                if let Some(checksum) = checksum {
                    checksum.write(transmit.head_mut().get_mut(tag..)?)?;
                }
                fits.then_some(())
            });
        if written.is_none() {
            out.frames().pop();
            return Err(DropReason::TooBig);
        }
        out.record(|| Step::Decapsulation(Decapsulation::Delivered { to, ecn }));
        Ok(())
    }
}

/// The offloads to leave to the kernel, with offsets that include the tag. A checksum that the
/// kernel could not complete is completed here and returned.
fn inner_offload(
    inner: &[u8],
    dissection: &Dissection,
    offload: Offload,
    tag: usize,
) -> Result<(Offload, Option<Completed>), DropReason> {
    let Checksum::Partial { start, offset } = offload.checksum else { return Ok((offload, None)) };
    if usize::from(start) + usize::from(offset) + 2 > inner.len() {
        return Err(DropReason::BadOffload);
    }
    if is_sctp(dissection, start.into(), offset.into()) {
        // A virtio-net header can only request an Internet checksum.
        let checksum =
            Completed::of(inner, dissection, start, offset).ok_or(DropReason::BadOffload)?;
        return Ok((Offload::default(), Some(checksum)));
    }
    let start = start.checked_add(tag as u16).ok_or(DropReason::BadOffload)?;
    Ok((Offload { checksum: Checksum::Partial { start, offset }, ..offload }, None))
}

/// Number of frames on the wire that a super-frame stands for.
pub(crate) fn segments(inner: &[u8], dissection: &Dissection, gso: Gso) -> Result<u16, DropReason> {
    let headers = dissection.gso_header_length(inner).ok_or(DropReason::BadOffload)?;
    let payload = inner.len() - headers;
    u16::try_from(payload.div_ceil(usize::from(gso.size.max(1))).max(1))
        .map_err(|_| DropReason::BadOffload)
}
