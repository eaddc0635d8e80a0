//! Forwards frames between ports: receives a batch, has the pipeline process it, transmits the
//! result, and has the pipeline count the outcomes.

use std::io;
use std::time::Instant;

use bpf::PuntSide;
use frame::{Batch, Destination, DropReason, Queue, TxBatch};
use pipeline::{Counters, Cursor, Pipeline};
use ports::Port;
use tables::Snapshot;

/// The ports of a worker, except its access ports.
#[derive(Debug)]
pub struct Ports<P> {
    /// Far end of the underlay punt pair.
    pub underlay: P,
    /// Far end of the bridge punt pair.
    pub bridge: P,
    /// Sends to the uplinks.
    pub uplinks: P,
    /// Sends to host ports past the bridge. It is a port of its own, so that a congested host port
    /// does not delay frames to the uplinks.
    pub hosts: P,
}

/// Ports, and the pipeline between them. `P` is the type of the punt pairs and uplinks, `A` that of
/// access ports.
#[derive(Debug)]
pub struct Forwarder<P, A> {
    pub(crate) ports: Ports<P>,
    /// Access ports (standalone).
    pub(crate) access: Vec<A>,
    pub(crate) pipeline: Pipeline,
    out: TxBatch,
    pending: Pending,
}

/// Batches that are sent in parts, because their frames have many copies. A cursor is where the
/// next part begins.
#[derive(Debug, Default)]
struct Pending {
    underlay: Option<Cursor>,
    bridge: Option<Cursor>,
    /// Index of the access port, and the cursor of its batch.
    port: Option<(usize, Cursor)>,
}

impl<P: Port, A: Port> Forwarder<P, A> {
    /// A forwarder between these ports. With access ports, the pipeline must have a bridge.
    #[must_use]
    pub fn new(ports: Ports<P>, access: Vec<A>, pipeline: Pipeline) -> Self {
        Self { ports, access, pipeline, out: TxBatch::new(), pending: Pending::default() }
    }

    /// The ports.
    pub const fn ports_mut(&mut self) -> &mut Ports<P> {
        &mut self.ports
    }

    /// Whether no batch is sent in parts.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.pending.underlay.is_none() && self.pending.bridge.is_none() && !self.is_port_pending()
    }

    /// Whether a batch of an access port is sent in parts. The port must be kept until it is sent.
    #[must_use]
    pub const fn is_port_pending(&self) -> bool {
        self.pending.port.is_some()
    }

    /// Sends held frames whose next hop is resolved now. To be called after each new snapshot, and
    /// regularly while the pipeline holds frames.
    pub fn release(&mut self, snapshot: &Snapshot, now: Instant) {
        self.pipeline.release(snapshot, now, &mut self.out);
        flush(&mut self.ports.uplinks, &Batch::none(), &mut self.out, &self.pipeline);
    }

    /// Whether the last batch from the underlay had all that had arrived.
    pub(crate) fn has_read_underlay(&self) -> bool {
        self.pending.underlay.is_none() && !self.ports.underlay.batch().is_full()
    }

    /// Sends the received frames that have waited long enough for the ones before them.
    pub fn expire(&mut self, snapshot: &Snapshot, now: Instant) {
        let Self { ports, pipeline, out, .. } = self;
        pipeline.expire(snapshot, now, out);
        let batch = Batch::none();
        ports.hosts.transmit_queue(&batch, out, Queue::Hosts);
        ports.bridge.transmit_queue(&batch, out, Queue::Bridge);
        pipeline.account(out);
        out.clear();
    }

    /// Decapsulates one batch from the underlay, or one part of a batch whose frames have many
    /// copies. Calls `begin` with the number of frames before they are sent. Returns how many
    /// frames there were.
    ///
    /// # Errors
    /// As [`Port::receive`].
    pub fn from_underlay(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        begin: impl FnOnce(usize),
    ) -> io::Result<usize> {
        let Self { ports, access, pipeline, out, pending } = self;
        let (from, moved) = next(&mut ports.underlay, pending.underlay)?;
        let batch = ports.underlay.batch();
        pending.underlay = pipeline.decapsulate_part(batch, from, snapshot, now, out);
        begin(out.len());
        if access.is_empty() {
            // The order matters: within a batch, a frame of a flow that passes the bridge may
            // follow one past the bridge, but not the reverse.
            ports.hosts.transmit_queue(batch, out, Queue::Hosts);
            ports.bridge.transmit_queue(batch, out, Queue::Bridge);
        } else {
            transmit_to_access((access, &mut []), batch, out);
        }
        pipeline.account(out);
        out.clear();
        Ok(moved)
    }

    /// Encapsulates one batch from the bridge, or one part of it. As [`Self::from_underlay`].
    ///
    /// # Errors
    /// As [`Port::receive`].
    pub fn from_bridge(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        begin: impl FnOnce(usize),
    ) -> io::Result<usize> {
        let Self { ports, pipeline, out, pending, .. } = self;
        let (from, moved) = next(&mut ports.bridge, pending.bridge)?;
        let batch = ports.bridge.batch();
        pending.bridge = pipeline.encapsulate_part(batch, from, snapshot, now, out);
        begin(out.len());
        flush(&mut ports.uplinks, batch, out, pipeline);
        Ok(moved)
    }

    /// Switches one batch of each access port, or one part of a batch whose frames have many
    /// copies. Calls `begin` with the number of frames before they are sent. Returns how many
    /// frames there were.
    pub fn from_access_ports(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        mut begin: impl FnMut(usize),
    ) -> usize {
        let Self { ports, access, pipeline, out, pending } = self;
        let mut moved = 0;
        // Continues with the port that has a pending batch, then with those behind it.
        let rest = pending.port.take();
        for number in rest.map_or(0, |(number, _)| number)..access.len() {
            let (before, others) = access.split_at_mut(number);
            let Some((port, behind)) = others.split_first_mut() else { break };
            let from = rest.filter(|(of, _)| *of == number).map(|(_, from)| from);
            if from.is_none()
                && let Err(error) = port.receive()
            {
                tracing::warn!("an access port is gone, and the others forward on: {error}");
            }
            let batch = port.batch();
            if batch.is_empty() {
                continue;
            }
            moved += if from.is_none() { batch.len() } else { 1 };
            let part = (batch, from.unwrap_or_default());
            let rest = pipeline.switch_part(part, number as u16, snapshot, now, out);
            begin(out.len());
            transmit_to_access((before, behind), batch, out);
            flush(&mut ports.uplinks, batch, out, pipeline);
            if let Some(rest) = rest {
                pending.port = Some((number, rest));
                break;
            }
        }
        moved
    }

    /// Drops everything that waits at a punt pair. Returns the number of frames, which are counted
    /// as received but not as dropped.
    ///
    /// # Errors
    /// As [`Port::receive`].
    pub(crate) fn discard(&mut self, side: PuntSide, counters: &Counters) -> io::Result<u64> {
        let Self { ports, pending, .. } = self;
        let (port, received, rest) = match side {
            PuntSide::Underlay => {
                (&mut ports.underlay, &counters.underlay_received, &mut pending.underlay)
            }
            PuntSide::Bridge => (&mut ports.bridge, &counters.bridge_received, &mut pending.bridge),
        };
        // The frames of a pending batch have been counted as received.
        let mut dropped = rest.take().map_or(0, |rest| rest.untouched(port.batch().len()) as u64);
        loop {
            let frames = port.receive()?.len() as u64;
            if frames == 0 {
                return Ok(dropped);
            }
            received.add(frames);
            dropped += frames;
        }
    }

    /// Whether frames are known to be lost that [`Self::count_overruns`] has not counted.
    pub(crate) fn has_overruns(&self) -> bool {
        self.ports.underlay.has_overruns()
            || self.ports.bridge.has_overruns()
            || self.access.iter().any(Port::has_overruns)
    }

    /// Counts frames that found no room in the rings. Must not be called while a batch is sent in
    /// parts, because it may replace a ring.
    pub(crate) fn count_overruns(&mut self, counters: &Counters) -> io::Result<()> {
        let punts = [
            (self.ports.underlay.overruns(), &counters.underlay_received),
            (self.ports.bridge.overruns(), &counters.bridge_received),
        ];
        let ports = self.access.iter_mut().map(|port| (port.overruns(), &counters.bridge_received));
        for (lost, received) in punts.into_iter().chain(ports) {
            let lost = lost?;
            if lost > 0 {
                received.add(lost);
                counters.drop_frames(DropReason::ReceiveOverrun, 0, lost);
            }
        }
        Ok(())
    }
}

/// The start of a port's next batch or of the rest of its pending one, and how many frames count as
/// moved.
fn next(port: &mut impl Port, pending: Option<Cursor>) -> io::Result<(Cursor, usize)> {
    match pending {
        Some(from) => Ok((from, 1)),
        None => Ok((Cursor::default(), port.receive()?.len())),
    }
}

/// Sends the pipeline's output to the uplinks, and accounts for all of it.
fn flush(uplinks: &mut impl Port, batch: &Batch<'_>, out: &mut TxBatch, pipeline: &Pipeline) {
    uplinks.transmit_queue(batch, out, Queue::Uplinks);
    pipeline.account(out);
    out.clear();
}

/// Sends frames to access ports, each run of frames for the same port together. `before` and
/// `behind` are all ports except the one that the frames came from: no frame is sent back there.
fn transmit_to_access<A: Port>(
    (before, behind): (&mut [A], &mut [A]),
    batch: &Batch<'_>,
    out: &mut TxBatch,
) {
    let mut groups = out.groups().of(Queue::Ports);
    while let Some(number) = port_of(out, groups.start).filter(|_| !groups.is_empty()) {
        let run = groups.clone().take_while(|index| port_of(out, *index) == Some(number)).count();
        let run = groups.start..groups.start + run;
        groups.start = run.end;
        let later = number.checked_sub(before.len() + 1);
        if let Some(port) = before.get_mut(number).or_else(|| behind.get_mut(later?)) {
            port.transmit(batch, out, run);
        }
    }
}

/// The number of the access port that a group is for.
fn port_of(out: &TxBatch, group: usize) -> Option<usize> {
    match out.first(out.groups().list.get(group)?)?.to {
        Destination::Port(number) => Some(usize::from(number)),
        _ => None,
    }
}
