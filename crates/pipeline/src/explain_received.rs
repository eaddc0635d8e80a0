//! The same decisions as decapsulation, told instead of done.

use std::net::Ipv4Addr;

use tables::Snapshot;
use wire::ecn::Egress;
use wire::{MacAddr, Vni};

use crate::decapsulate::{Outer, SHORTEST, congestion, sender, station, vxlan};
use crate::drop_reason::DropReason;
use crate::frame::Frame;
use crate::learn::{Heard, judge};

/// What would become of a frame from the underlay. What could not be read is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reception {
    /// The outer addresses and UDP destination port.
    pub outer: Option<Addresses>,
    /// The VNI that its header names.
    pub vni: Option<Vni>,
    /// Name of the vxlan netdev, if that VNI is taken over.
    pub netdev: Option<String>,
    /// Whether any table names the VTEP that it came from.
    pub known_vtep: bool,
    /// Inner source and destination MAC address.
    pub stations: Option<(MacAddr, MacAddr)>,
    /// What the source address means to a netdev that learns.
    pub heard: Option<Heard>,
    /// What becomes of it.
    pub fate: Fate,
}

/// Outer addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The sending VTEP.
    pub source: Ipv4Addr,
    /// The VTEP that it is for.
    pub destination: Ipv4Addr,
    /// UDP destination port.
    pub port: u16,
}

/// Where a frame from the underlay goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The steering program leaves it to the kernel, for this reason.
    Kernel(DropReason),
    /// The worker drops it.
    Dropped(DropReason),
    /// It goes to the netdev's bridge; with what becomes of the inner packet's ECN field, if it has
    /// one.
    Bridge(Option<Egress>),
}

/// Tells what would become of a frame that an uplink receives for its own MAC address.
#[must_use]
pub fn explain_received(frame: &Frame<'_>, snapshot: &Snapshot) -> Reception {
    let mut told = Reception {
        outer: None,
        vni: None,
        netdev: None,
        known_vtep: false,
        stations: None,
        heard: None,
        fate: Fate::Kernel(DropReason::NotVxlan),
    };
    told.fate = told.follow(frame, snapshot).unwrap_or_else(|fate| fate);
    told
}

impl Reception {
    /// Goes the frame's way as far as it goes.
    fn follow(&mut self, frame: &Frame<'_>, snapshot: &Snapshot) -> Result<Fate, Fate> {
        // As far as here the steering program looks as well.
        let outer = Outer::parse(frame).map_err(Fate::Kernel)?;
        self.outer = Some(Addresses {
            source: outer.source,
            destination: outer.destination,
            port: outer.port,
        });
        let (vni, inner) = outer.payload(frame).and_then(vxlan).map_err(Fate::Kernel)?;
        self.vni = Some(vni);
        let table = snapshot
            .terminate(outer.destination, outer.port, vni)
            .ok_or(Fate::Kernel(DropReason::UnknownVni))?;
        self.netdev = Some(table.netdev.clone());
        if inner.len() < SHORTEST {
            return Err(Fate::Kernel(DropReason::InnerTruncated));
        }

        self.known_vtep = snapshot.find_vtep(outer.source).is_some();
        match outer.verify(frame) {
            Err(DropReason::OuterUdpChecksum) if outer.is_unfinished(frame) => {}
            verified => verified.map_err(Fate::Dropped)?,
        }
        sender(&outer, table, snapshot).map_err(Fate::Dropped)?;
        let source = station(inner, table).map_err(Fate::Dropped)?;
        let dissection = wire::dissect(inner).ok_or(Fate::Dropped(DropReason::InnerTruncated))?;
        self.stations = Some((source, dissection.destination));
        if let Some(learning) = &table.learning {
            let heard = judge((source, outer.source), (table, learning), snapshot);
            self.heard = Some(heard.map_err(Fate::Dropped)?);
        }
        congestion(outer.tos, inner).map(Fate::Bridge).map_err(Fate::Dropped)
    }
}
