//! Explains what decapsulation would do with a frame, by the same checks. It does not show whether
//! the frame would bypass the bridge.

use std::net::Ipv4Addr;

use frame::{DropReason, Frame};
use tables::Snapshot;
use wire::ecn::Egress;
use wire::{MacAddr, Vni};

use crate::decapsulate::{Outer, SHORTEST, congestion, sender, station, vxlan};
use crate::learn::{Heard, judge};

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
    pub heard: Option<Heard>,
    /// What would happen to the frame.
    pub fate: Fate,
}

/// Outer addresses and UDP destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The sending VTEP.
    pub source: Ipv4Addr,
    /// The destination VTEP.
    pub destination: Ipv4Addr,
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
}

/// Explains what would happen to a frame that an uplink receives for its own MAC address.
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
    /// Follows the frame through decapsulation.
    fn follow(&mut self, frame: &Frame<'_>, snapshot: &Snapshot) -> Result<Fate, Fate> {
        // The steering program makes the checks up to the length of the inner frame as well.
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
