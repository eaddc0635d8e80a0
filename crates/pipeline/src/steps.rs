//! What the datapath reports about a frame on its way, for [`crate::explain()`] and
//! [`crate::explain_received()`].

use std::net::IpAddr;

use frame::{Destination, DropReason};
use path::{Choice, Flow};
use tables::{Snapshot, VniTable, VtepIndex};
use wire::ecn::Egress;
use wire::{MacAddr, Vni};

use crate::learn::SourceState;
use crate::lookup::{Decision, Path};
use crate::outer::Inherited;

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
    Decapsulation(Decapsulation),
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
        decision: &Decision<'_>,
        (segment, remote): (usize, VtepIndex),
        flow: &Flow,
        sent: Result<(Path<'_>, Inherited), DropReason>,
        snapshot: &Snapshot,
    ) -> Self {
        let remote = snapshot.vtep(remote).map(|vtep| vtep.address);
        let source_port = sent.ok().map(|(path, _)| path.choice.source_port);
        let entropy = decision.vni.entropy.explanation(flow, source_port);
        let route = sent.map(|(path, inherited)| Route::of(decision, &path, inherited));
        Self::Copy(CopyFate { segment, remote, entropy, route })
    }
}

/// A step of decapsulation.
pub(crate) enum Decapsulation {
    /// The inner source and destination address are read.
    Stations(MacAddr, MacAddr),
    /// The source address is looked up, because the netdev learns.
    Source(SourceState),
    /// The frame is sent.
    Delivered { to: Destination, ecn: Option<Egress> },
}

impl Decapsulation {
    /// The step in which the addresses of the inner frame are read.
    pub(crate) fn stations(inner: &[u8]) -> Self {
        let address = |at: usize| inner.get(at..).and_then(<[u8]>::first_chunk).copied();
        let [source, destination] = [6, 0].map(|at| MacAddr(address(at).unwrap_or_default()));
        Self::Stations(source, destination)
    }
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
    /// Outer flow label, 20 bits; `None` over IPv4.
    pub flow_label: Option<u32>,
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

impl Route {
    fn of(decision: &Decision<'_>, path: &Path<'_>, inherited: Inherited) -> Self {
        let tunnel = &decision.vni.tunnel;
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
            flow_label: tunnel.local.is_ipv6().then(|| tunnel.flow_label.of(source_port)),
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
