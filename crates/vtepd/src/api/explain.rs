//! Explains what happens to a given frame. The pipeline makes the decision; this module converts it
//! to messages.

use std::collections::BTreeMap;
use std::time::Instant;

use api::v1;
use configuration::PortSummary;
use control::{Datapath, LeftToKernel};
use path::{Entropy, Key, Policy};
use pathmap::placer::FlowId;
use pipeline::explain::{CopyFate, Route};
use pipeline::explain_received::Fate;
use pipeline::learn::SourceState;
use pipeline::{DropReason, Explanation, Frame, Offload, Pins, Station};
use tables::{BypassPort, OpenPort, PortChoice, Snapshot, VniTable};
use tonic::Status;
use wire::ecn::Egress;
use wire::{Dissection, Ethernet, MacAddr, Vni};

use crate::api::pinned::Names;
use crate::api::placement::{placement, placement_by_kernel};
use crate::api::show::Uplinks;
use crate::api::status;
use crate::pinning::{Shared, target_by_kernel};

/// What a leaf forwards by.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    /// The forwarding tables.
    pub snapshot: &'a Snapshot,
    /// Names of the uplinks.
    pub uplinks: &'a Uplinks,
    /// The paths of known queue pairs.
    pub pins: &'a Pins,
    /// The placement of queue pairs, if paths are probed.
    pub shared: Option<&'a Shared>,
}

/// Explains a frame from the bridge of this VNI.
pub(super) fn explain(frame: &[u8], table: &VniTable, leaf: Leaf<'_>) -> v1::Explanation {
    let Leaf { snapshot, pins, .. } = leaf;
    let explanation = pipeline::explain(&plain(frame), table.index, snapshot, Instant::now(), pins);
    message(explanation, table, leaf, &[])
}

/// A frame without metadata of the kernel.
fn plain(data: &[u8]) -> Frame<'_> {
    Frame { data, vlan: None, offload: Offload::default() }
}

fn message(
    explanation: Explanation,
    table: &VniTable,
    leaf: Leaf<'_>,
    ports: &[PortSummary],
) -> v1::Explanation {
    let vni = table.tunnel.vni.get();
    let names = Names::of(leaf.snapshot, leaf.uplinks);
    let copy = |fate: &CopyFate| v1::Copy {
        placement: placement(leaf.shared, &names, vni, fate),
        ..copy(fate, leaf.uplinks)
    };
    let mut message = v1::Explanation {
        vni,
        netdev: table.netdev.clone(),
        datapath: status::datapath(table).name().to_owned(),
        ..v1::Explanation::default()
    };
    match explanation {
        Explanation::Dropped(reason) => message.dropped = Some(dropped(reason)),
        Explanation::Forwarded(forwarded) => {
            let name = |port: &u16| ports.get(usize::from(*port)).map(|port| port.name.clone());
            message.destination = forwarded.destination.to_string();
            message.flooded = forwarded.flooded;
            message.copies = forwarded.copies.iter().map(copy).collect();
            message.ports = forwarded.ports.iter().filter_map(name).collect();
        }
    }
    message
}

/// The destination of a frame, if it is unicast and the table has no VTEP for it.
pub(super) fn unknown(frame: &[u8], table: &VniTable) -> Option<MacAddr> {
    let mac = Ethernet::parse(frame).ok()?.0.destination();
    (!mac.is_group() && table.fdb.get(&mac).is_none()).then_some(mac)
}

/// Explains a frame whose destination the kernel bridge has on one of its own ports. vtepd never
/// receives such a frame.
pub(super) fn local(mac: MacAddr, port: String, table: &VniTable) -> v1::Explanation {
    v1::Explanation {
        vni: table.tunnel.vni.get(),
        netdev: table.netdev.clone(),
        datapath: status::datapath(table).name().to_owned(),
        destination: mac.to_string(),
        ports: vec![port],
        ..v1::Explanation::default()
    }
}

/// Explains a frame from an access port of this VNI, as vtepd's own bridge forwards it. `ports` are
/// all access ports, by their numbers.
pub(super) fn switched(
    frame: &[u8],
    table: &VniTable,
    leaf: Leaf<'_>,
    stations: &[Station],
    ports: &[PortSummary],
) -> v1::Explanation {
    let (frame, vnis) = (plain(frame), ports.iter().map(|port| port.vni));
    let explanation = pipeline::explain_switched(
        &frame,
        table,
        (vnis, stations),
        leaf.snapshot,
        (Instant::now(), leaf.pins),
    );
    message(explanation, table, leaf, ports)
}

/// Explains a frame that kernel VXLAN encapsulates for this VNI. With `choice`, vtepd chooses the
/// source port; otherwise the kernel's own hash does.
///
/// # Errors
/// When the frame is shorter than an Ethernet header.
pub(super) fn encapsulated_by_kernel(
    frame: &[u8],
    vni: u32,
    left: &LeftToKernel,
    choice: Option<&PortChoice>,
    leaf: Leaf<'_>,
) -> Result<v1::Explanation, Status> {
    let frame = wire::dissect(frame)
        .ok_or_else(|| Status::invalid_argument("the frame is shorter than an Ethernet header"))?;
    let entropy = choice.map(|choice| {
        let own = Vni::try_from(vni).ok().and_then(|vni| choice.vnis.get(&vni));
        own.unwrap_or(&choice.entropy)
    });
    let decided = |entropy: &Entropy| {
        let explanation = entropy.explain(&frame);
        let path::Explanation { policy, key, decision, .. } = explanation;
        let by_kernel = policy == Policy::FiveTuple || matches!(key, Key::Macs { .. });
        let id = choice.and_then(|choice| queue_pair(&frame, key, choice.ifindex, leaf.snapshot));
        let flow = id.zip(leaf.shared);
        let known = flow.and_then(|(id, shared)| shared.read(|placer| placer.peek(&id)));
        let names = Names::of(leaf.snapshot, leaf.uplinks);
        let port = known.map_or(decision.source_port, |known| known.path.source_port);
        v1::Copy {
            vtep: id.map_or_else(String::new, |id| id.target.address.to_string()),
            placement: flow.and_then(|(id, shared)| placement_by_kernel(shared, &names, id)),
            source_port: if by_kernel { 0 } else { port.into() },
            ..decided_by(&explanation)
        }
    };
    Ok(v1::Explanation {
        vni,
        netdev: left.name.clone(),
        destination: frame.destination.to_string(),
        copies: entropy.map(decided).into_iter().collect(),
        datapath: Datapath::Kernel.name().to_owned(),
        ..v1::Explanation::default()
    })
}

/// The queue pair of a frame that kernel VXLAN sends in this netdev to a known VTEP. `None` if it is
/// not placed.
fn queue_pair(frame: &Dissection, key: Key, ifindex: u32, snapshot: &Snapshot) -> Option<FlowId> {
    let vni = snapshot.kernel_vnis().get(&ifindex)?;
    let target = target_by_kernel(snapshot, vni, frame.destination)?;
    Some(FlowId { vni: vni.tunnel.vni.get(), key, target })
}

/// Explains a packet from the underlay. `host_ports` are the ports for which workers bypass the
/// bridge, and `names` those of all host ports.
pub(super) fn received(
    frame: &[u8],
    snapshot: &Snapshot,
    host_ports: &[OpenPort],
    names: &BTreeMap<u32, BypassPort>,
) -> v1::ReceivedExplanation {
    let reception = pipeline::explain_received(&plain(frame), snapshot, host_ports, Instant::now());
    let (fate, reason, ecn, port) = match reception.fate {
        Fate::Bridge(ecn) => ("bridge", None, ecn, None),
        Fate::Host { port, ecn } => ("host", None, ecn, Some(port)),
        Fate::Kernel(reason) => ("kernel", Some(dropped(reason)), None, None),
        Fate::Dropped(reason) => ("dropped", Some(dropped(reason)), None, None),
    };
    let ecn = match ecn {
        Some(Egress::Set(codepoint)) => Some(codepoint.to_string()),
        _ => None,
    };
    let name =
        |port: u32| names.get(&port).map_or_else(|| port.to_string(), |port| port.name.clone());
    let (learning, previous_vtep) = match reception.source_state {
        None => (None, None),
        Some(SourceState::New) => (Some("new"), None),
        Some(SourceState::Moved(from)) => (Some("moved"), Some(from.to_string())),
        Some(SourceState::Known) => (Some("known"), None),
        Some(SourceState::Static) => (Some("static"), None),
    };
    v1::ReceivedExplanation {
        fate: fate.to_owned(),
        reason,
        vtep: reception.outer.map(|outer| outer.source.to_string()),
        local: reception.outer.map(|outer| outer.destination.to_string()),
        destination_port: reception.outer.map(|outer| outer.port.into()),
        vni: reception.vni.map(wire::Vni::get),
        netdev: reception.netdev,
        known_vtep: reception.known_vtep,
        source: reception.stations.map(|(source, _)| source.to_string()),
        destination: reception.stations.map(|(_, destination)| destination.to_string()),
        learning: learning.map(str::to_owned),
        previous_vtep,
        ecn,
        port: port.map(name),
    }
}

fn copy(fate: &CopyFate, uplinks: &Uplinks) -> v1::Copy {
    v1::Copy {
        vtep: fate.remote.map_or_else(String::new, |vtep| vtep.to_string()),
        dropped: fate.route.as_ref().err().map(|reason| dropped(*reason)),
        route: fate.route.as_ref().ok().map(|way| route(way, uplinks)),
        ..decided_by(&fate.entropy)
    }
}

/// What a policy has decided about a copy.
fn decided_by(explanation: &path::Explanation) -> v1::Copy {
    let path::Explanation { policy, key, reason, range, decision } = explanation;
    v1::Copy {
        policy: policy.to_string(),
        key: key.to_string(),
        reason: reason.to_string(),
        hash: hexadecimal(decision.hash),
        bin: decision.bin.map(Into::into),
        source_ports: range.to_string(),
        source_port: decision.source_port.into(),
        ..v1::Copy::default()
    }
}

fn route(route: &Route, uplinks: &Uplinks) -> v1::CopyRoute {
    v1::CopyRoute {
        local: route.local.to_string(),
        destination_port: route.destination_port.into(),
        tos: route.tos.into(),
        ttl: route.ttl.into(),
        dont_fragment: route.dont_fragment,
        length: route.length.into(),
        path_hash: hexadecimal(route.hash),
        choices: u32::try_from(route.choices).unwrap_or(u32::MAX),
        uplink: uplinks.name(route.uplink),
        gateway: route.gateway.to_string(),
        source_mac: route.source_mac.to_string(),
        destination_mac: route.destination_mac.map(|mac| mac.to_string()),
        default_route: route.by_default,
        bucket: route.bucket.and_then(|bucket| u32::try_from(bucket).ok()),
        weight: route.weights.0,
        weights: route.weights.1,
        flow_label: route.flow_label,
    }
}

fn hexadecimal(hash: u64) -> String {
    format!("{hash:#018x}")
}

/// A reason with a count of zero: an explained frame is not counted.
fn dropped(reason: DropReason) -> v1::Drop {
    status::drop(reason, 0)
}
