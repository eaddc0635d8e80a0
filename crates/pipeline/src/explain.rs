//! Explains what encapsulation does with a frame: it is encapsulated, and the steps are recorded.

use core::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use frame::{Batch, DropReason, Frame, TxBatch, VlanTag};
use path::{Choice, Flow};
use tables::{Slot, Snapshot, VniIndex, VniTable, VtepIndex};
use wire::{MacAddr, Vni};

use crate::Pipeline;
use crate::bridge::{Bridge, Place, Station};
use crate::counters::Counters;
use crate::cursor::Cursor;
use crate::encapsulate::TPID;
use crate::explain_received::Arrival;
use crate::lookup::{Decision, Path};
use crate::outer::Inherited;
use crate::policies::Configured;
use crate::run::{Output, Run};

/// What would happen to a frame from the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// The frame is dropped.
    Dropped(DropReason),
    /// The frame is sent.
    Forwarded(Forwarded),
}

/// Where a frame would be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// The VNI of the frame.
    pub vni: Vni,
    /// Name of the vxlan netdev.
    pub netdev: String,
    /// Destination MAC address of the frame.
    pub destination: MacAddr,
    /// Whether the frame goes to the whole flood list because its destination is in no table.
    pub flooded: bool,
    /// Every copy of every segment, in the order of transmission.
    pub copies: Vec<CopyFate>,
    /// Numbers of the access ports that get a copy (standalone).
    pub ports: Vec<u16>,
}

/// What would happen to one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFate {
    /// Number of the segment within a super-frame, from 0.
    pub segment: usize,
    /// Address of the destination VTEP; `None` if the VTEP is gone.
    pub remote: Option<IpAddr>,
    /// How the outer source port was chosen.
    pub entropy: path::Explanation,
    /// The route of the copy, or the reason for its drop.
    pub route: Result<Route, DropReason>,
}

/// The outer headers and the next hop of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Outer source address: the local VTEP.
    pub local: IpAddr,
    /// Outer destination address.
    pub remote: IpAddr,
    /// Outer UDP source port.
    pub source_port: u16,
    /// Outer UDP destination port.
    pub destination_port: u16,
    /// Outer type of service.
    pub tos: u8,
    /// Outer time to live.
    pub ttl: u8,
    /// Outer don't-fragment bit; not set over IPv6, which has none.
    pub dont_fragment: bool,
    /// Length of the outer IP packet in bytes.
    pub length: u16,
    /// The hash of outer addresses and ports that selected the next hop.
    pub hash: u64,
    /// Number of available next hops, at least one.
    pub choices: usize,
    /// The bucket that the hash selects ([`path::BUCKETS`]); `None` if there is only one
    /// next hop.
    pub bucket: Option<usize>,
    /// Weight of the next hop, and the sum of all weights.
    pub weights: (u32, u32),
    /// Interface index of the uplink.
    pub uplink: u32,
    /// The gateway, or the VTEP itself if it is on-link.
    pub gateway: IpAddr,
    /// The uplink's MAC address.
    pub source_mac: MacAddr,
    /// The gateway's MAC address; `None` while it is not resolved and the frame would wait.
    pub destination_mac: Option<MacAddr>,
    /// Whether the route to the VTEP is a default route.
    pub by_default: bool,
}

/// A step of the datapath on the way of a frame.
pub(crate) enum Step {
    /// The whole frame is dropped.
    Dropped(DropReason),
    /// The destination is looked up. Copies follow.
    Addressed(Forwarded),
    /// A copy to a VTEP is sent, held, or dropped.
    Copy(CopyFate),
    /// A copy for an access port.
    Port(u16),
    /// A step of decapsulation.
    Arrival(Arrival),
}

impl Step {
    /// The step in which the destination of a frame is looked up.
    pub(crate) fn addressed(vni: &VniTable, destination: MacAddr, flooded: bool) -> Self {
        Self::Addressed(Forwarded {
            vni: vni.tunnel.vni,
            netdev: vni.netdev.clone(),
            destination,
            flooded,
            copies: Vec::new(),
            ports: Vec::new(),
        })
    }

    /// The step in which a copy is sent.
    pub(crate) fn copy(
        plan: &Decision<'_>,
        (segment, remote): (usize, VtepIndex),
        flow: &Flow,
        sent: Result<(Path<'_>, Inherited), DropReason>,
        snapshot: &Snapshot,
    ) -> Self {
        let remote = snapshot.vtep(remote).map(|vtep| vtep.address);
        let source_port = sent.ok().map(|(path, _)| path.choice.source_port);
        let entropy = plan.vni.entropy.explanation(flow, source_port);
        let route = sent.map(|(path, inherited)| Route::of(plan, &path, inherited));
        Self::Copy(CopyFate { segment, remote, entropy, route })
    }
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
    now: Instant,
    datapath: impl FnOnce(&mut Run<'_, '_, Configured, Recording>),
) -> Vec<Step> {
    let mut batch = Batch::new(1);
    batch.push(frame);
    let (mut policies, mut out) = (Configured::default(), Recording::default());
    datapath(&mut Run {
        batch: &batch,
        snapshot,
        now,
        policies: &mut policies,
        out: &mut out,
        is_cacheable: false,
    });
    out.steps
}

/// A pipeline that counts nothing, to explain one frame.
pub(crate) fn observer() -> Pipeline {
    Pipeline::new(Arc::new(Counters::none()))
}

/// Explains what encapsulation does at the time `now` with a frame from the bridge of the VNI with
/// this index.
#[must_use]
pub fn explain(
    frame: &Frame<'_>,
    index: VniIndex,
    snapshot: &Snapshot,
    now: Instant,
) -> Explanation {
    let tag = VlanTag { tpid: TPID, tci: Slot::of(index).get() };
    let frame = Frame { vlan: Some(tag), ..*frame };
    let steps = recorded(frame, snapshot, now, |run| {
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
    now: Instant,
) -> Explanation {
    let source = wire::dissect(frame.data).map(|dissection| dissection.source);
    let of = |station: &&Station| station.vni == table.tunnel.vni && Some(station.mac) == source;
    let from = match stations.iter().find(of).map(|station| station.place) {
        Some(Place::Port(port)) => port,
        _ => u16::MAX,
    };
    let mut bridge = Bridge::with_stations(access, stations);
    let steps = recorded(*frame, snapshot, now, |run| {
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

impl Route {
    fn of(plan: &Decision<'_>, path: &Path<'_>, inherited: Inherited) -> Self {
        let tunnel = &plan.vni.tunnel;
        let Inherited { tos, ttl, dont_fragment } = inherited;
        let Choice { source_port, hop, hash, .. } = path.choice;
        let hops = path.vtep.paths.next_hops();
        Self {
            local: tunnel.local,
            remote: path.vtep.address,
            source_port,
            destination_port: tunnel.destination_port,
            tos,
            ttl,
            dont_fragment: dont_fragment && tunnel.local.is_ipv4(),
            length: path.l3_length,
            hash,
            choices: hops.len(),
            bucket: (hops.len() > 1).then(|| path::bucket(hash)),
            weights: (hop.weight.into(), hops.iter().map(|hop| u32::from(hop.weight)).sum()),
            uplink: hop.ifindex,
            gateway: hop.gateway,
            source_mac: hop.source_mac,
            destination_mac: hop.destination_mac,
            by_default: hop.by_default,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped(reason) => write_drop(f, *reason),
            Self::Forwarded(forwarded) => forwarded.fmt(f),
        }
    }
}

impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vni, netdev, destination, flooded, copies, ports: _ } = self;
        write!(f, "VNI {vni} ({netdev}): {destination} ")?;
        f.write_str(if *flooded {
            "is in no table: a copy for each VTEP of the flood list"
        } else {
            "is behind a known VTEP"
        })?;
        let mut before = None;
        for copy in copies {
            // Most segments have the same result. Only those that differ get a line.
            if before != Some(copy.entropy) {
                write_entropy(f, copy)?;
            }
            if copy.segment == 0 || before != Some(copy.entropy) || copy.route.is_err() {
                copy.fmt(f)?;
            }
            before = Some(copy.entropy);
        }
        Ok(())
    }
}

fn write_entropy(f: &mut fmt::Formatter<'_>, copy: &CopyFate) -> fmt::Result {
    let path::Explanation { policy, key, reason, range, decision } = copy.entropy;
    write!(f, "\n  ")?;
    if copy.segment > 0 {
        write!(f, "from segment {} on, ", copy.segment)?;
    }
    write!(f, "{policy} looks at {key} ({reason}); hash {:#018x} ", decision.hash)?;
    if let Some(bin) = decision.bin {
        write!(f, "is bin {bin}, ")?;
    }
    write!(f, "gives outer source port {} of {range}", decision.source_port)
}

impl fmt::Display for CopyFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remote {
            Some(remote) => write!(f, "\n    to VTEP {remote}: ")?,
            None => write!(f, "\n    to a VTEP that is gone: ")?,
        }
        let route = match &self.route {
            Ok(route) => route,
            Err(reason) => return write_drop(f, *reason),
        };
        write!(f, "uplink {} by {} ", route.uplink, route.gateway)?;
        match route.destination_mac {
            Some(mac) => write!(f, "({mac})")?,
            None => write!(f, "(MAC address not known yet: it waits)")?,
        }
        match route.choices {
            1 => write!(f, ", the only next hop")?,
            choices => write!(f, ", one of {choices} next hops by path hash {:#018x}", route.hash)?,
        }
        if route.by_default { f.write_str("; by the default route") } else { Ok(()) }
    }
}

fn write_drop(f: &mut fmt::Formatter<'_>, reason: DropReason) -> fmt::Result {
    write!(f, "dropped, {}: {}", reason.label(), reason.sentence().trim())
}
