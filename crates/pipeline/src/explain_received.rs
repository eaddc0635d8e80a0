//! Explains what decapsulation does with a frame: it is decapsulated, and the steps are recorded.

use std::net::IpAddr;
use std::time::Instant;

use frame::{Checksum, Destination, DropReason, Frame, Offload};
use path::Pins;
use tables::{OpenPort, Snapshot};
use wire::ecn::Egress;
use wire::{MacAddr, Vni};

use crate::cursor::Cursor;
use crate::decapsulate::SHORTEST_INNER;
use crate::explain::{observer, recorded};
use crate::learn::SourceState;
use crate::received::{Outer, vxlan};
use crate::steps::{Decapsulation, Step};

/// What would happen to a frame from the underlay. Fields that could not be read are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reception {
    /// The outer addresses and UDP destination port.
    pub outer: Option<Addresses>,
    /// The VNI in the VXLAN header.
    pub vni: Option<Vni>,
    /// Name of the vxlan netdev, if the VNI is taken over.
    pub netdev: Option<String>,
    /// Whether a table has the VTEP that the frame came from.
    pub known_vtep: bool,
    /// Inner source and destination MAC addresses.
    pub stations: Option<(MacAddr, MacAddr)>,
    /// How the source address compares with the tables, if the netdev learns.
    pub source_state: Option<SourceState>,
    /// What would happen to the frame.
    pub fate: Fate,
}

/// Outer addresses and UDP destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The sending VTEP.
    pub source: IpAddr,
    /// The destination VTEP.
    pub destination: IpAddr,
    /// UDP destination port.
    pub port: u16,
}

/// Where a frame from the underlay would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The steering program passes it to the kernel for this reason.
    Kernel(DropReason),
    /// The worker drops it.
    Dropped(DropReason),
    /// It goes to the bridge of the netdev. The value is what happens to the inner packet's ECN
    /// field, if it has one.
    Bridge(Option<Egress>),
    /// It bypasses the bridge.
    Host {
        /// Interface index of the host port.
        port: u32,
        /// As for [`Self::Bridge`].
        ecn: Option<Egress>,
    },
}

/// Explains what would happen at the time `now` to a frame that an uplink receives for its own MAC
/// address: decapsulates it and records the steps. `host_ports` are those of
/// [`Pipeline::open_ports`](crate::Pipeline::open_ports). It is assumed that no earlier frame for the
/// same host is still on its way through the bridge.
#[must_use]
pub fn explain_received(
    frame: &Frame<'_>,
    snapshot: &Snapshot,
    host_ports: &[OpenPort],
    now: Instant,
) -> Reception {
    let mut reception = Reception {
        outer: None,
        vni: None,
        netdev: None,
        known_vtep: false,
        stations: None,
        source_state: None,
        fate: Fate::Kernel(DropReason::NotVxlan),
    };
    match reception.steer(frame, snapshot) {
        Err(reason) => reception.fate = Fate::Kernel(reason),
        Ok(outer) => {
            let mut frame = *frame;
            if frame.offload == Offload::default() && outer.is_unfinished(&frame) {
                frame.offload.checksum = Checksum::Valid;
            }
            let steps = recorded(frame, snapshot, (now, &Pins::default()), |run| {
                let mut pipeline = observer();
                pipeline.open_ports(host_ports);
                pipeline.decapsulate_frames(Cursor::default(), run);
            });
            steps.into_iter().for_each(|step| reception.follow(step));
        }
    }
    reception
}

impl Reception {
    /// The checks of the steering program, which decides whether a worker gets the packet.
    fn steer(&mut self, frame: &Frame<'_>, snapshot: &Snapshot) -> Result<Outer, DropReason> {
        let outer = Outer::parse(frame)?;
        let Outer { source, destination, port, .. } = outer;
        self.outer = Some(Addresses { source, destination, port });
        let (vni, inner) = outer.payload(frame).and_then(vxlan)?;
        self.vni = Some(vni);
        let table = snapshot.terminate(destination, port, vni).ok_or(DropReason::UnknownVni)?;
        self.netdev = Some(table.netdev.clone());
        if inner.len() < SHORTEST_INNER {
            return Err(DropReason::InnerTruncated);
        }
        self.known_vtep = snapshot.find_vtep(source).is_some();
        Ok(outer)
    }

    /// Takes over what a step of the worker shows.
    fn follow(&mut self, step: Step) {
        match step {
            Step::Dropped(reason) => self.fate = Fate::Dropped(reason),
            Step::Decapsulation(Decapsulation::Stations(source, destination)) => {
                self.stations = Some((source, destination));
            }
            Step::Decapsulation(Decapsulation::Source(state)) => self.source_state = Some(state),
            Step::Decapsulation(Decapsulation::Delivered { to, ecn }) => {
                self.fate = match to {
                    Destination::Host(port) => Fate::Host { port, ecn },
                    _ => Fate::Bridge(ecn),
                };
            }
            _ => {}
        }
    }
}
