//! Explains what encapsulation would do with a frame, by the same code.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr};

use frame::{DropReason, Frame};
use tables::{Slot, Snapshot};
use wire::{MacAddr, Vni};

use crate::csum_offload::InnerHead;
use crate::gso::Segmenter;
use crate::lookup::{Decision, Path};
use crate::outer::Inherited;

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
}

/// What would happen to one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFate {
    /// Number of the segment within a super-frame, from 0.
    pub segment: usize,
    /// Address of the destination VTEP; `None` if the VTEP is gone.
    pub remote: Option<Ipv4Addr>,
    /// How the outer source port was chosen.
    pub entropy: path::Explanation,
    /// The route of the copy, or the reason for its drop.
    pub route: Result<Route, DropReason>,
}

/// The outer headers and the next hop of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Outer source address: the local VTEP.
    pub local: Ipv4Addr,
    /// Outer destination address.
    pub remote: Ipv4Addr,
    /// Outer UDP source port.
    pub source_port: u16,
    /// Outer UDP destination port.
    pub destination_port: u16,
    /// Outer type of service.
    pub tos: u8,
    /// Outer time to live.
    pub ttl: u8,
    /// Outer don't-fragment bit.
    pub dont_fragment: bool,
    /// Length of the outer IPv4 packet in bytes.
    pub length: u16,
    /// The hash of outer addresses and ports that selected the next hop.
    pub hash: u64,
    /// Number of available next hops, at least one.
    pub choices: usize,
    /// The bucket that the hash selects ([`tables::paths::BUCKETS`]); `None` if there is only one
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

/// Explains what encapsulation would do with a frame from the bridge of the VNI in `slot`.
#[must_use]
pub fn explain(frame: &Frame<'_>, slot: Slot, snapshot: &Snapshot) -> Explanation {
    if frame.data.is_empty() {
        return Explanation::Dropped(DropReason::ReceiveUnreadable);
    }
    let Some(vni) = snapshot.vni(slot.get()) else {
        return Explanation::Dropped(DropReason::UnknownSlot);
    };
    let Some(dissection) = wire::dissect(frame.data) else {
        return Explanation::Dropped(DropReason::Truncated);
    };
    let plan = Decision::of(frame, &dissection, vni).and_then(|plan| Ok((plan.segmenter()?, plan)));
    let (segmenter, plan) = match plan {
        Ok(plan) => plan,
        Err(reason) => return Explanation::Dropped(reason),
    };
    let mut inner = InnerHead::default();
    let mut copies = Vec::new();
    for segment in 0..segmenter.as_ref().map_or(1, Segmenter::count) {
        let piece = plan.piece(segmenter.as_ref(), segment, &mut inner);
        let entropy = plan.explain_source_port(piece.as_ref().ok());
        let source_port = entropy.decision.source_port;
        for &remote in plan.remotes {
            let route = piece.as_ref().map_err(|&reason| reason).and_then(|piece| {
                let length = inner.as_slice().len() + piece.body.len();
                let path = Path::of(vni, remote, source_port, length, snapshot)?;
                Ok(Route::of(&plan, &path, source_port))
            });
            let remote = snapshot.vtep(remote).map(|vtep| vtep.address);
            copies.push(CopyFate { segment, remote, entropy, route });
        }
    }
    Explanation::Forwarded(Forwarded {
        vni: vni.tunnel.vni,
        netdev: vni.netdev.clone(),
        destination: plan.dissection.destination,
        flooded: plan.flooded,
        copies,
    })
}

impl Route {
    fn of(plan: &Decision<'_>, path: &Path<'_>, source_port: u16) -> Self {
        let tunnel = &plan.vni.tunnel;
        let Inherited { tos, ttl, dont_fragment } = Inherited::of(tunnel, &plan.inner);
        Self {
            local: tunnel.local,
            remote: path.remote,
            source_port,
            destination_port: tunnel.destination_port,
            tos,
            ttl,
            dont_fragment,
            length: path.l3_length,
            hash: path.hash,
            choices: path.paths.next_hops().len(),
            bucket: (path.paths.next_hops().len() > 1).then(|| tables::paths::bucket(path.hash)),
            weights: (
                path.hop.weight.into(),
                path.paths.next_hops().iter().map(|hop| u32::from(hop.weight)).sum(),
            ),
            uplink: path.hop.ifindex,
            gateway: path.hop.gateway,
            source_mac: path.hop.source_mac,
            destination_mac: path.hop.destination_mac,
            by_default: path.hop.by_default,
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
        let Self { vni, netdev, destination, flooded, copies } = self;
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
