//! Forwarding between access ports and VTEPs through the [`crate::bridge`].

use std::time::{Duration, Instant};

use frame::{
    Batch, Checksum, Destination, DropReason, Frame, Offload, Payload, Queue, TxBatch, TxFrame,
};
use tables::{Snapshot, VniTable, VtepIndex};

use crate::Pipeline;
use crate::bridge::{Bridge, Location, Station, Way};
use crate::csum_offload::{Completed, is_sctp};
use crate::cursor::Cursor;
use crate::decap_cache::DecapCache;
use crate::decapsulate::{segments, station};
use crate::dropped::Origin;
use crate::lookup::Decision;
use crate::policies::Policies;
use crate::run::{Output, Run};
use crate::steps::Step;

/// Prefix of 01-80-C2-00-00-00 to -0F, which bridges do not forward (IEEE 802.1Q-2022 table 8-1).
const RESERVED: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];

impl Pipeline {
    /// Makes the pipeline forward between access ports and VTEPs through this bridge.
    pub fn set_bridge(&mut self, bridge: Bridge) {
        self.bridge = Some(Box::new(bridge));
        self.decap_cache = DecapCache::default();
    }

    /// Has the bridge remove stations that have aged out, if that is due. Returns when to call this
    /// again; `None` if the bridge knows no stations.
    pub fn age(&mut self, now: Instant) -> Option<Duration> {
        self.bridge.as_mut()?.age(now)
    }

    /// All stations that the bridge has learned and that have not aged out.
    pub fn stations(&mut self, now: Instant) -> Vec<Station> {
        self.bridge.as_mut().map(|bridge| bridge.stations(now).collect()).unwrap_or_default()
    }

    /// Forwards a whole batch from access port number `port` and appends the result to `out`. The
    /// length of `out` is not bounded; see [`Self::switch_part`]. VLAN tags must be in the frames'
    /// bytes.
    pub fn switch(
        &mut self,
        batch: &Batch<'_>,
        port: u16,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) {
        self.process((batch, snapshot, now, out), |pipeline, run| {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                next = pipeline.switch_frames(from, port, run);
            }
        });
    }

    /// Forwards frames of a batch from access port number `port`, until `out` holds at least
    /// [`PART`](frame::PART) frames, and finishes `out`. Returns where to continue once these are
    /// sent, or `None` at the end of the batch. VLAN tags must be in the frames' bytes.
    pub fn switch_part(
        &mut self,
        (batch, from): (&Batch<'_>, Cursor),
        port: u16,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Option<Cursor> {
        let next = self.process((batch, snapshot, now, out), |pipeline, run| {
            pipeline.switch_frames(from, port, run)
        });
        self.finish(out, &[Queue::Ports, Queue::Uplinks]);
        next
    }

    /// Forwards frames of the batch until a part is full, and returns where to continue.
    pub(crate) fn switch_frames<P: Policies, O: Output>(
        &mut self,
        from: Cursor,
        port: u16,
        run: &mut Run<'_, '_, P, O>,
    ) -> Option<Cursor> {
        let (batch, snapshot) = (run.batch, run.snapshot);
        if from == Cursor::default() {
            self.counters.bridge_received.add(batch.len() as u64);
        }
        let mut bridge = self.bridge.take()?;
        bridge.set_time(run.now);
        let settings = bridge.ports.get(usize::from(port)).copied();
        let table = settings.and_then(|t| snapshot.terminate(t.local, t.destination_port, t.vni));
        let (mut segment, mut next) = (from.segment, None);
        for (frame, index) in batch.frames_from(from.frame).iter().zip(from.frame..) {
            let at = Cursor { frame: index, segment: std::mem::take(&mut segment) };
            let received = (at, frame, port);
            let switched = match table {
                Some(table) => self
                    .switch_one(&mut bridge, received, table, run)
                    .map_err(|reason| (reason, table.index.get())),
                None => Err((DropReason::UnknownVni, 0)),
            };
            match switched {
                Ok(rest) => next = rest,
                Err((reason, slot)) => {
                    run.out.record(|| Step::Dropped(reason));
                    let dropped = (frame.data, Origin::Hosts, run.now);
                    self.drop_rest(at, reason, slot, dropped);
                }
            }
            if next.is_none() && run.out.frames().is_part() && (index as usize) + 1 < batch.len() {
                next = Some(Cursor::at(index + 1));
            }
            if next.is_some() {
                break;
            }
        }
        self.bridge = Some(bridge);
        next
    }

    /// Forwards one frame. An error applies to the whole frame, or to the rest of it.
    pub(crate) fn switch_one<P: Policies, O: Output>(
        &mut self,
        bridge: &mut Bridge,
        (at, frame, port): (Cursor, &Frame<'_>, u16),
        table: &VniTable,
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<Option<Cursor>, DropReason> {
        if frame.data.is_empty() {
            return Err(DropReason::ReceiveUnreadable);
        }
        let dissection = wire::dissect(frame.data);
        let dissection = dissection.as_ref().ok_or(DropReason::Truncated)?;
        let source = station(frame.data, table)?;
        let to = dissection.destination;
        if to.0.starts_with(&RESERVED) && to.0.last().is_some_and(|last| *last < 16) {
            return Err(DropReason::ReservedGroup);
        }
        if at.segment == 0 {
            bridge.learn(table, source, Location::Port(port), &self.counters)?;
        }
        let way = bridge.way(table, to, run.snapshot);
        run.out.record(|| Step::addressed(table, to, way == Way::Flood));
        let (ports, remotes): (&[u16], &[VtepIndex]) = match &way {
            Way::To(Location::Port(other)) if *other == port => return Err(DropReason::SamePort),
            Way::To(Location::Port(other)) => (&[*other], &[]),
            Way::To(Location::Vtep(vtep, _)) => (&[], &[*vtep]),
            Way::Flood => (bridge.ports_of(table.tunnel.vni), table.flood.as_slice()),
        };
        let others = || ports.iter().filter(|other| **other != port);
        let pieces = others().count() + usize::from(!remotes.is_empty());
        if pieces == 0 {
            return Err(DropReason::NoRemote);
        }
        let slot = table.index.get();
        if at.segment == 0 {
            self.counters.copies.add(pieces as u64 - 1);
        }
        // Access ports get the frame whole, together with its first segment for the VTEPs.
        for other in others().filter(|_| at.segment == 0) {
            let sent = local(at.frame, frame, dissection, (*other, slot));
            run.out.record(|| Step::Port(*other));
            match sent {
                Ok(transmit) => run.out.frames().push(transmit),
                Err(reason) => {
                    let dropped = (frame.data, Origin::Hosts, run.now);
                    self.counters.drop_frame(reason, slot, dropped);
                }
            }
        }
        if remotes.is_empty() {
            return Ok(None);
        }
        let flooded = ports.len() + remotes.len() > 1;
        let decision = Decision::to(frame, dissection, table, remotes, flooded);
        Ok(self.tunnel(at, &decision, run)?.next)
    }
}

/// The unmodified frame, super-frame or not, for another access port.
fn local(
    index: u32,
    frame: &Frame<'_>,
    dissection: &wire::Dissection,
    (port, slot): (u16, u16),
) -> Result<TxFrame, DropReason> {
    let length = frame.data.len();
    let body =
        |start: usize| Payload::Received { frame: index, range: start as u32..length as u32 };
    let to = Destination::Port(port);
    if let Checksum::Partial { start, offset } = frame.offload.checksum
        && is_sctp(dissection, start.into(), offset.into())
    {
        // A virtio-net header can only request an Internet checksum.
        let checksum =
            Completed::of(frame.data, dissection, start, offset).ok_or(DropReason::BadOffload)?;
        let mut transmit = TxFrame::new(to, slot, body(checksum.end()), Offload::default());
        let headers = frame.data.get(..checksum.end()).ok_or(DropReason::BadOffload)?;
        let written =
            transmit.extend_head(headers) && checksum.write(transmit.head_mut()).is_some();
        return if written { Ok(transmit) } else { Err(DropReason::TooBig) };
    }
    let mut transmit = TxFrame::new(to, slot, body(0), frame.offload);
    if let Some(gso) = frame.offload.gso {
        transmit.segments = segments(frame.data, dissection, gso)?;
    }
    Ok(transmit)
}
