//! The pipeline of a VTEP, between ports in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use frame::{Frame, Offload, TxBatch, VlanTag};
use path::{Pins, Spraying};
use pipeline::{Counters, Cursor, Pipeline};
use ports::MemoryPort;
use ports::Port as _;
use tables::Snapshot;

/// The slot of the one VNI.
pub(crate) const SLOT: u16 = 7;

/// A VTEP.
#[derive(Debug)]
pub(crate) struct Worker {
    pipeline: Pipeline,
    out: TxBatch,
    snapshot: Snapshot,
    /// The start of the simulation.
    start: Instant,
    pub(crate) spraying: Arc<Spraying>,
}

impl Worker {
    pub(crate) fn new(snapshot: Snapshot, spraying: Spraying) -> Self {
        let spraying = Arc::new(spraying);
        let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
        let now = Instant::now();
        // Times of schemes begin with 0, so that a run is the same again.
        let start = now - Duration::from_nanos(spraying.nanoseconds(now));
        pipeline.set_pins(Pins::only_spraying(Arc::clone(&spraying), start));
        Self { pipeline, out: TxBatch::new(), snapshot, start, spraying }
    }

    /// What the uplink sends when the host sends a frame, so many picoseconds after the start.
    pub(crate) fn encapsulate(&mut self, now: u64, frame: &[u8]) -> Option<Vec<u8>> {
        let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
        self.pass(now, Frame { data: frame, vlan, offload: Offload::default() }, true)
    }

    /// What the host gets when a packet arrives at the uplink.
    pub(crate) fn decapsulate(&mut self, now: u64, packet: &[u8]) -> Option<Vec<u8>> {
        let frame = Frame { data: packet, vlan: None, offload: Offload::default() };
        let tagged = self.pass(now, frame, false)?;
        // The bridge punt pair has the tag of the slot behind the addresses.
        let (addresses, rest) = tagged.split_at_checked(12)?;
        Some([addresses, rest.get(4..)?].concat())
    }

    /// Receives a frame at one port, and returns what the other one sends.
    fn pass(&mut self, now: u64, frame: Frame<'_>, from_host: bool) -> Option<Vec<u8>> {
        let now = self.start + Duration::from_nanos(now / 1000);
        let (mut from, mut to) = (MemoryPort::new([frame]), MemoryPort::new([]));
        self.out.clear();
        let batch = from.receive().ok()?;
        let Self { pipeline, out, snapshot, .. } = self;
        let start = Cursor::default();
        // One frame is less than a part.
        let _ = match from_host {
            true => pipeline.encapsulate_part(batch, start, snapshot, now, out),
            false => pipeline.decapsulate_part(batch, start, snapshot, now, out),
        };
        let groups = 0..out.groups().list.len();
        to.transmit(batch, out, groups);
        pipeline.account(out);
        to.take_sent().pop().map(|sent| sent.data)
    }

    /// Frames that it has dropped, for any reason.
    pub(crate) fn dropped(&self) -> u64 {
        self.pipeline.counters().dropped_in_all()
    }
}
