//! The bridge of standalone mode, for VNIs without a kernel bridge. It has access ports, and learns
//! and ages stations.
//!
//! It follows IEEE 802.1Q-2022 clauses 8.7 and 8.8, without VLANs. It learns each source address at
//! the port or VTEP that the frame came from. Frames for a known address go there. All others go to
//! every other port and to all remote VTEPs. Frames from a VTEP never go to a VTEP (split horizon),
//! because VTEPs form a full mesh (RFC 7348 section 4.2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use frame::{
    Batch, Checksum, Destination, DropReason, Frame, Offload, Payload, Queue, TxBatch, TxFrame,
};
use tables::{Snapshot, VniTable, VtepIndex};
use wire::{MacAddr, Vni};

use crate::Pipeline;
use crate::counters::Counters;
use crate::csum_offload::{Completed, is_sctp};
use crate::cursor::Cursor;
use crate::decap_cache::DecapCache;
use crate::decapsulate::{segments, station};
use crate::explain::Step;
use crate::lookup::Decision;
use crate::policies::Policies;
use crate::run::{Output, Run};

/// Aged stations are removed only when a limit is reached, and at most this often. Until then,
/// lookups ignore them.
const SWEEP: Duration = Duration::from_secs(1);
/// The interval over which the moves of a station are counted, in milliseconds.
const SECOND: u64 = 1000;
/// Prefix of 01-80-C2-00-00-00 to -0F, which bridges do not forward (IEEE 802.1Q-2022 table 8-1).
const RESERVED: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];

/// The settings of an access port: its VNI, and the limits of that VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessTerms {
    /// The VNI.
    pub vni: Vni,
    /// The VNI's local VTEP address.
    pub local: Ipv4Addr,
    /// The VNI's UDP port.
    pub destination_port: u16,
    /// Limit of learned stations in the VNI.
    pub stations: usize,
    /// Ageing time of the VNI's stations; `None` if they do not age.
    pub ageing: Option<Duration>,
}

/// Limits that apply to all VNIs together, and to each station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeLimits {
    /// Limit of learned stations in all VNIs, and in all bridges that share the limit.
    pub total: usize,
    /// Limit of moves of one station within a second. Further moves are ignored.
    pub moves: u32,
}

/// The location of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An access port, by its number.
    Port(u16),
    /// A remote VTEP. The address is needed because an index can be reused for another VTEP.
    Vtep(VtepIndex, Ipv4Addr),
}

/// A learned station, as shown by the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Its VNI.
    pub vni: Vni,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its location.
    pub place: Place,
    /// Time since its last frame.
    pub silent: Duration,
}

/// A learned station. Times are in milliseconds since the bridge's first frame.
#[derive(Debug, Clone, Copy)]
struct Heard {
    place: Place,
    last: u64,
    /// Start of the interval in which moves are counted; `moves` is their number.
    moving: u64,
    moves: u32,
}

/// The stations and ports of one VNI.
#[derive(Debug)]
struct Segment {
    vni: Vni,
    /// Numbers of its access ports.
    ports: Vec<u16>,
    /// Limit of learned stations.
    limit: usize,
    ageing: Option<Duration>,
    /// The hash is randomly keyed, because the senders of frames choose the keys.
    stations: HashMap<MacAddr, Heard>,
}

/// The bridge of standalone mode: its access ports and learned stations.
#[derive(Debug)]
pub struct Bridge {
    ports: Vec<AccessTerms>,
    segments: Vec<Segment>,
    limits: BridgeLimits,
    /// Number of stations in all bridges that share the limit.
    all: Arc<AtomicUsize>,
    start: Option<Instant>,
    now: u64,
    swept: u64,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    To(Place),
    /// All ports and remote VTEPs.
    Flood,
}

impl Bridge {
    /// A bridge with these access ports, numbered from 0. All ports of one VNI must have the same
    /// settings.
    #[must_use]
    pub fn new(ports: Vec<AccessTerms>, limits: BridgeLimits) -> Self {
        let mut segments: Vec<Segment> = Vec::new();
        for (terms, number) in ports.iter().zip(0u16..) {
            let place = segments.iter().position(|segment| segment.vni == terms.vni);
            let place = place.unwrap_or_else(|| {
                let AccessTerms { vni, stations: limit, ageing, .. } = *terms;
                segments.push(Segment {
                    vni,
                    ports: Vec::new(),
                    limit,
                    ageing,
                    stations: HashMap::new(),
                });
                segments.len() - 1
            });
            if let Some(segment) = segments.get_mut(place) {
                segment.ports.push(number);
            }
        }
        Self { ports, segments, limits, all: Arc::default(), start: None, now: 0, swept: 0 }
    }

    /// A bridge without limits, with ports of these VNIs and these stations, to explain a frame.
    pub(crate) fn with_stations(vnis: impl Iterator<Item = Vni>, stations: &[Station]) -> Self {
        let terms = |vni| AccessTerms {
            vni,
            local: Ipv4Addr::UNSPECIFIED,
            destination_port: 0,
            stations: usize::MAX,
            ageing: None,
        };
        let limits = BridgeLimits { total: usize::MAX, moves: u32::MAX };
        let mut bridge = Self::new(vnis.map(terms).collect(), limits);
        for Segment { vni, stations: known, .. } in &mut bridge.segments {
            let own = stations.iter().filter(|station| station.vni == *vni);
            let heard = |place| Heard { place, last: 0, moving: 0, moves: 0 };
            known.extend(own.map(|station| (station.mac, heard(station.place))));
        }
        bridge
    }

    /// Shares the limit of stations with other bridges. Must be called before anything is learned.
    /// `all` counts the stations of all these bridges.
    #[must_use]
    pub fn sharing(self, all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), ..self }
    }

    /// All stations that have not aged out.
    pub fn stations(&mut self, now: Instant) -> impl Iterator<Item = Station> + '_ {
        self.set_time(now);
        let now = self.now;
        self.segments.iter().flat_map(move |segment| {
            let alive = segment
                .stations
                .iter()
                .filter(move |(_, heard)| !heard.is_aged(now, segment.ageing));
            alive.map(move |(mac, heard)| Station {
                vni: segment.vni,
                mac: *mac,
                place: heard.place,
                silent: Duration::from_millis(now.saturating_sub(heard.last)),
            })
        })
    }

    pub(crate) fn set_time(&mut self, now: Instant) {
        let start = *self.start.get_or_insert(now);
        self.now =
            u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX);
    }

    /// Numbers of the access ports of a VNI.
    pub(crate) fn ports_of(&self, vni: Vni) -> &[u16] {
        self.segments
            .iter()
            .find(|segment| segment.vni == vni)
            .map_or(&[], |segment| &segment.ports)
    }

    /// Learns that a frame from `mac` came from `place`.
    ///
    /// # Errors
    /// [`DropReason::StaticSource`] if the tables have the address elsewhere.
    pub(crate) fn learn(
        &mut self,
        table: &VniTable,
        mac: MacAddr,
        place: Place,
        counters: &Counters,
    ) -> Result<(), DropReason> {
        if let Some(owner) = table.fdb.get(&mac) {
            // The tables hold the static entries of the configuration.
            return match place {
                Place::Vtep(index, _) if index == *owner => Ok(()),
                _ => Err(DropReason::StaticSource),
            };
        }
        let (now, limits) = (self.now, self.limits);
        let full = self.all.load(Ordering::Relaxed) >= limits.total;
        let Some(segment) =
            self.segments.iter_mut().find(|segment| segment.vni == table.tunnel.vni)
        else {
            return Ok(());
        };
        let full = full || segment.stations.len() >= segment.limit;
        let ageing = segment.ageing;
        match segment.stations.entry(mac) {
            Entry::Occupied(mut entry) => {
                let heard = entry.get_mut();
                if heard.place != place {
                    if now.saturating_sub(heard.moving) >= SECOND {
                        (heard.moving, heard.moves) = (now, 0);
                    }
                    if heard.moves >= limits.moves && !heard.is_aged(now, ageing) {
                        counters.stations.flapping.add(1);
                        return Ok(());
                    }
                    heard.moves += 1;
                    heard.place = place;
                    counters.stations.moved.add(1);
                }
                heard.last = now;
            }
            Entry::Vacant(_) if full => {
                if self.sweep() {
                    return self.learn(table, mac, place, counters);
                }
                counters.stations.too_many.add(1);
            }
            Entry::Vacant(entry) => {
                entry.insert(Heard { place, last: now, moving: now, moves: 0 });
                self.all.fetch_add(1, Ordering::Relaxed);
                counters.stations.new.add(1);
            }
        }
        Ok(())
    }

    /// Removes aged stations. Returns whether there were any.
    fn sweep(&mut self) -> bool {
        let now = self.now;
        if self.swept != 0 && now.saturating_sub(self.swept) < SWEEP.as_millis() as u64 {
            return false;
        }
        self.swept = now.max(1);
        let mut aged = 0;
        for Segment { stations, ageing, .. } in &mut self.segments {
            let before = stations.len();
            stations.retain(|_, heard| !heard.is_aged(now, *ageing));
            aged += before - stations.len();
        }
        self.all.fetch_sub(aged, Ordering::Relaxed);
        aged > 0
    }

    /// Looks up the destination address `to`.
    pub(crate) fn way(&self, table: &VniTable, to: MacAddr, snapshot: &Snapshot) -> Way {
        let fixed =
            table.fdb.get(&to).and_then(|index| Some((*index, snapshot.vtep(*index)?.address)));
        if let Some((index, address)) = fixed {
            return Way::To(Place::Vtep(index, address));
        }
        let segment = self.segments.iter().find(|segment| segment.vni == table.tunnel.vni);
        let heard = segment.and_then(|segment| Some((segment.stations.get(&to)?, segment.ageing)));
        match heard
            .filter(|(heard, ageing)| !heard.is_aged(self.now, *ageing))
            .map(|(heard, _)| heard.place)
        {
            Some(Place::Vtep(index, address))
                if snapshot.vtep(index).is_none_or(|vtep| vtep.address != address) =>
            {
                Way::Flood
            }
            Some(place) => Way::To(place),
            None => Way::Flood,
        }
    }
}

impl Heard {
    fn is_aged(&self, now: u64, ageing: Option<Duration>) -> bool {
        ageing.is_some_and(|ageing| u128::from(now.saturating_sub(self.last)) >= ageing.as_millis())
    }
}

impl Pipeline {
    /// Makes the pipeline forward between access ports and VTEPs through this bridge.
    pub fn set_bridge(&mut self, bridge: Bridge) {
        self.bridge = Some(Box::new(bridge));
        self.decap_cache = DecapCache::default();
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
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            next = self.switch_some((batch, from), port, snapshot, now, out);
        }
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
        let next = self.switch_some((batch, from), port, snapshot, now, out);
        self.finish(batch, out, &[Queue::Ports, Queue::Uplinks]);
        next
    }

    fn switch_some(
        &mut self,
        (batch, from): (&Batch<'_>, Cursor),
        port: u16,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
    ) -> Option<Cursor> {
        let mut own = std::mem::take(&mut self.policies);
        let policies = &mut own;
        let mut run = Run { batch, snapshot, now, policies, out, is_cacheable: false };
        let next = self.switch_frames(from, port, &mut run);
        self.policies = own;
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
        let terms = bridge.ports.get(usize::from(port)).copied();
        let table = terms.and_then(|t| snapshot.terminate(t.local, t.destination_port, t.vni));
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
                    self.drop_rest(at, reason, slot);
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
            bridge.learn(table, source, Place::Port(port), &self.counters)?;
        }
        let way = bridge.way(table, to, run.snapshot);
        run.out.record(|| Step::addressed(table, to, way == Way::Flood));
        let (ports, remotes): (&[u16], &[VtepIndex]) = match &way {
            Way::To(Place::Port(other)) if *other == port => return Err(DropReason::SamePort),
            Way::To(Place::Port(other)) => (&[*other], &[]),
            Way::To(Place::Vtep(vtep, _)) => (&[], &[*vtep]),
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
                Err(reason) => self.counters.drop_frames(reason, slot, 1),
            }
        }
        if remotes.is_empty() {
            return Ok(None);
        }
        let flooded = ports.len() + remotes.len() > 1;
        let plan = Decision::to(frame, dissection, table, remotes, flooded);
        self.tunnel(at, &plan, run)
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
