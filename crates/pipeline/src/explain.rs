//! Explains what encapsulation does with a frame: it is encapsulated, and the steps are recorded.

use std::sync::Arc;
use std::time::Instant;

use frame::{Batch, DropReason, Frame, PUNT_TPID, TxBatch, VlanTag};
use path::Pins;
use tables::{Slot, Snapshot, VniIndex, VniTable};
use wire::Vni;

use crate::Pipeline;
use crate::bridge::{Bridge, Location, Station};
use crate::counters::Counters;
use crate::cursor::Cursor;
use crate::policies::Configured;
use crate::run::{Output, Run};
use crate::steps::Step;

pub use crate::steps::{CopyFate, Forwarded, Route};

/// What would happen to a frame from the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// The frame is dropped.
    Dropped(DropReason),
    /// The frame is sent.
    Forwarded(Forwarded),
}

/// An output that records the steps of the datapath.
#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) frames: TxBatch,
    pub(crate) steps: Vec<Step>,
}

impl Output for Recording {
    fn frames(&mut self) -> &mut TxBatch {
        &mut self.frames
    }

    fn record(&mut self, step: impl FnOnce() -> Step) {
        self.steps.push(step());
    }
}

/// Runs a part of the datapath for one frame and returns the recorded steps.
pub(crate) fn recorded(
    frame: Frame<'_>,
    snapshot: &Snapshot,
    (now, pins): (Instant, &Pins),
    datapath: impl FnOnce(&mut Run<'_, '_, Configured, Recording>),
) -> Vec<Step> {
    let mut batch = Batch::new(1);
    batch.push(frame);
    let (mut policies, mut out) = (Configured::pinned(pins.clone()), Recording::default());
    datapath(&mut Run { batch: &batch, snapshot, now, policies: &mut policies, out: &mut out });
    out.steps
}

/// A pipeline that counts nothing, to explain one frame.
pub(crate) fn observer() -> Pipeline {
    Pipeline::new(Arc::new(Counters::none()))
}

/// Explains what encapsulation does at the time `now` with a frame from the bridge of the VNI with
/// this index. `pins` must not change by being asked.
#[must_use]
pub fn explain(
    frame: &Frame<'_>,
    index: VniIndex,
    snapshot: &Snapshot,
    now: Instant,
    pins: &Pins,
) -> Explanation {
    let tag = VlanTag { tpid: PUNT_TPID, tci: Slot::of(index).get() };
    let frame = Frame { vlan: Some(tag), ..*frame };
    let steps = recorded(frame, snapshot, (now, pins), |run| {
        let (mut pipeline, mut next) = (observer(), Some(Cursor::default()));
        while let Some(from) = next {
            next = pipeline.encapsulate_frames(from, run);
            run.out.frames.clear();
        }
    });
    Explanation::of(steps)
}

/// Explains what the bridge of standalone mode does with a frame. `access` are the VNIs of all
/// access ports, by their numbers, and `stations` are known. The frame comes from the port of its
/// source address, or from no known port.
#[must_use]
pub fn explain_switched(
    frame: &Frame<'_>,
    table: &VniTable,
    (access, stations): (impl Iterator<Item = Vni>, &[Station]),
    snapshot: &Snapshot,
    (now, pins): (Instant, &Pins),
) -> Explanation {
    let source = wire::dissect(frame.data).map(|dissection| dissection.source);
    let of = |station: &&Station| station.vni == table.tunnel.vni && Some(station.mac) == source;
    let from = match stations.iter().find(of).map(|station| station.location) {
        Some(Location::Port(port)) => port,
        _ => u16::MAX,
    };
    let mut bridge = Bridge::with_stations(access, stations);
    let steps = recorded(*frame, snapshot, (now, pins), |run| {
        let (mut pipeline, mut next) = (observer(), Some(Cursor::default()));
        while let Some(at) = next {
            let switched = pipeline.switch_one(&mut bridge, (at, frame, from), table, run);
            next = switched.unwrap_or_else(|reason| {
                run.out.record(|| Step::Dropped(reason));
                None
            });
            run.out.frames.clear();
        }
    });
    Explanation::of(steps)
}

impl Explanation {
    fn of(steps: Vec<Step>) -> Self {
        let mut forwarded: Option<Forwarded> = None;
        for step in steps {
            match (step, &mut forwarded) {
                (Step::Dropped(reason), _) => return Self::Dropped(reason),
                (Step::Addressed(to), None) => forwarded = Some(to),
                (Step::Copy(copy), Some(forwarded)) => forwarded.copies.push(copy),
                (Step::Port(port), Some(forwarded)) => forwarded.ports.push(port),
                _ => {}
            }
        }
        forwarded.map_or(Self::Dropped(DropReason::ReceiveUnreadable), Self::Forwarded)
    }
}
