//! Converts status and counters to messages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use api::v1;
use configuration::PortSummary;
use control::{
    ByDefault, Datapath, FlowLabelSource, LeftToKernel, MoveCounts, NoNetdev, SourceState, Status,
};
use path::Entropy;
use pipeline::dropped::{DroppedFrame, Origin};
use pipeline::{Counters, DropReason, Location, Station};
use tables::{FlowLabel, PortChoice, Tunnel, VniTable};
use telemetry::{PortFrames, PortView};
use wire::Vni;
use worker::Features;

use crate::api::events;
use crate::api::show::{self, Uplinks};
use crate::handle::Handle;
use crate::metrics_view;

/// The answer to `GetStatus`. `stations` are those that vtepd's own bridge has learned.
pub(super) fn status(handle: &Handle, stations: &[Station]) -> v1::Status {
    let (status, counters) = (handle.status.borrow(), handle.counters());
    let (taken, left) = vnis(handle, stations).into_iter().partition(|vni| vni.left.is_none());
    let (learning, moves) = addresses(&status, &counters);
    let missing = status.missing.iter().map(|vni| NoNetdev(*vni).to_string());
    let by_default = ByDefault::of(&status.by_default).map(|warning| warning.to_string());
    v1::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: handle.start.elapsed().as_secs(),
        ready: handle.is_ready(),
        generation: status.generation,
        configuration: handle.configurations(),
        steering: Some(v1::Steering {
            hook: handle.hook.to_string(),
            uplinks: status.plan.uplinks.iter().map(|uplink| uplink.name.clone()).collect(),
            lacks: handle.features.lacks(),
        }),
        sources: sources(&status),
        taken,
        left,
        bypass: Some(bypass(handle)),
        warnings: handle
            .not_configured()
            .into_iter()
            .chain(handle.not_served())
            .chain(missing)
            .chain(by_default)
            .chain(lost_lines())
            .chain(refused(status.fpm_refused))
            .chain(status.warnings.iter().map(ToString::to_string))
            .collect(),
        learning: Some(learning),
        moves: Some(moves),
        worker_stalls: counters.stalls.get(),
        super_frames: super_frames(handle.gso, handle.features).to_owned(),
        impaired_uplinks: show::impaired(&handle.snapshot(), &Uplinks::of(&status)),
    }
}

/// A warning if FPM connections were refused.
fn refused(connections: u64) -> Option<String> {
    let text =
        "FPM connection(s) of users who may not connect were refused; the log names the users";
    (connections > 0).then(|| format!("{connections} {text}"))
}

/// A warning if log lines were lost.
fn lost_lines() -> Option<String> {
    let lost = crate::log::lost();
    (lost > 0).then(|| format!("{lost} log line(s) were lost: the log was not read in time"))
}

/// Whether super-frames are used, as a word of the API.
const fn super_frames(wanted: bool, features: Features) -> &'static str {
    match (wanted, features.udp_super_frames) {
        (false, _) => "off",
        (true, false) => "unsupported",
        (true, true) => "on",
    }
}

fn bypass(handle: &Handle) -> v1::Bypass {
    let state = handle.bypass();
    let ports = handle.status.borrow().ports.len();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    v1::Bypass {
        ports: number(state.ports.len()),
        other_ports: number(ports.saturating_sub(state.ports.len())),
        addresses: state.addresses as u64,
        capacity: state.capacity as u64,
        no_room: state.waiting as u64,
        no_room_total: state.no_room,
    }
}

/// Bridge ports and access ports, by VNI and name.
pub(super) fn ports(handle: &Handle) -> Vec<v1::Port> {
    let port = |port: PortView| v1::Port {
        port: port.port,
        bridge: port.bridge,
        vni: port.vni.get(),
        bypass: port.reason.is_none(),
        reason: port.reason,
        frames: port.frames.map(|PortFrames { bypass, refreshed, passed, stalled }| {
            v1::PortFrames { bypass, refreshed, passed, stalled }
        }),
    };
    let views = metrics_view::ports(&handle.status.borrow(), &handle.bypass());
    let access = handle.access.iter().zip(0..).map(|(port, number)| v1::Port {
        port: port.name.clone(),
        vni: port.vni.get(),
        reason: Some(
            match handle.is_port_gone(number) {
                true => "its interface is gone: it forwards nothing until there is one of its name",
                false => "it needs none: vtepd reads the port itself",
            }
            .to_owned(),
        ),
        ..v1::Port::default()
    });
    let mut ports: Vec<v1::Port> = views.into_iter().map(port).chain(access).collect();
    ports.sort_by(|a, b| (a.vni, &a.port).cmp(&(b.vni, &b.port)));
    ports
}

fn sources(status: &Status) -> Vec<v1::Source> {
    let source = |name: &str, state: SourceState, overruns, resyncs| v1::Source {
        name: name.to_owned(),
        state: state.to_string(),
        stale_seconds: match state {
            SourceState::Stale { since } => Some(since.elapsed().as_secs()),
            _ => None,
        },
        overruns,
        resyncs,
    };
    let dump = |(what, resync): (&&str, &control::Resync)| v1::Resync {
        what: (*what).to_owned(),
        dumped: Some(resync.dumped as u64),
        swept: resync.swept as u64,
    };
    let replayed = status.fpm == SourceState::Live;
    let replay =
        v1::Resync { what: "replay".to_owned(), dumped: None, swept: status.fpm_swept as u64 };
    vec![
        source(
            "kernel",
            status.kernel,
            Some(status.overruns),
            status.dumps.iter().map(dump).collect(),
        ),
        source("fpm", status.fpm, None, replayed.then_some(replay).into_iter().collect()),
    ]
}

/// All vxlan netdevs, whether taken over or not, by VNI and name. `stations` are those that vtepd's
/// own bridge has learned.
pub(super) fn vnis(handle: &Handle, stations: &[Station]) -> Vec<v1::Vni> {
    let status = handle.status.borrow();
    let snapshot = handle.snapshot();
    let limits: BTreeMap<_, u32> =
        status.plan.vnis.values().map(|taken| (taken.index, taken.frame_limit)).collect();
    let taken =
        snapshot.vnis().map(|table| taken(table, limits.get(&table.index).copied().unwrap_or(0)));
    let taken = taken.map(|row| learning(row, &handle.access, stations));
    let left = status.left.iter().map(|row| left(row, status.plan.choice_of(row.source)));
    let mut vnis: Vec<v1::Vni> = taken.chain(left).collect();
    vnis.sort_by(|a, b| (a.vni, &a.netdev).cmp(&(b.vni, &b.netdev)));
    vnis
}

/// Completes the row of a standalone VNI, whose own bridge always learns.
fn learning(mut row: v1::Vni, ports: &[PortSummary], stations: &[Station]) -> v1::Vni {
    let port = ports.iter().find(|port| port.vni.get() == row.vni);
    row.standalone = port.is_some();
    if let (Some(port), Some(taken)) = (port, &mut row.taken) {
        taken.learning = true;
        taken.ageing_seconds = port.ageing.map(|ageing| ageing.as_secs());
        let remote = |station: &&Station| {
            station.vni == port.vni && matches!(station.location, Location::Vtep(..))
        };
        taken.remote_macs += stations.iter().filter(remote).count() as u64;
    }
    row
}

fn taken(table: &VniTable, frame_limit: u32) -> v1::Vni {
    let taken = v1::Taken {
        local: table.tunnel.local.to_string(),
        destination_port: table.tunnel.destination_port.into(),
        policy: Some(policy(&table.entropy)),
        strict_vtep: table.strict_vtep,
        remote_macs: table.fdb.len() as u64,
        flood_vteps: table.flood.len() as u64,
        frame_limit,
        learning: table.learning.is_some(),
        ageing_seconds: table
            .learning
            .as_ref()
            .and_then(|learning| Some(learning.ageing?.as_secs())),
        flow_label: flow_label(&table.tunnel),
    };
    v1::Vni {
        vni: table.tunnel.vni.get(),
        netdev: table.netdev.clone(),
        taken: Some(taken),
        datapath: datapath(table).name().to_owned(),
        datapath_reason: Some(why(table).to_owned()),
        ..v1::Vni::default()
    }
}

/// Where the outer flow label comes from; `None` over IPv4.
fn flow_label(tunnel: &Tunnel) -> Option<String> {
    let of = || match tunnel.flow_label {
        FlowLabel::SourcePort => FlowLabelSource::SourcePort.name().to_owned(),
        FlowLabel::Fixed(label) => format!("{label:#07x}"),
    };
    tunnel.local.is_ipv6().then(of)
}

/// The datapath of a VNI that is taken over.
pub(super) const fn datapath(table: &VniTable) -> Datapath {
    if table.offload { Datapath::Offload } else { Datapath::Userspace }
}

/// Why a VNI that is taken over has its datapath.
const fn why(table: &VniTable) -> &'static str {
    match datapath(table) {
        Datapath::Offload => "the fastest that forwards as the kernel would",
        _ => "configured, or a standalone VNI",
    }
}

fn policy(entropy: &Entropy) -> v1::Policy {
    v1::Policy {
        name: entropy.policy().to_string(),
        bins: entropy.bins().map(|bins| bins.get().into()),
        source_ports: entropy.range().to_string(),
        seed: entropy.seed(),
    }
}

fn chosen_port(choice: &PortChoice) -> v1::ChosenPort {
    let own = |(vni, entropy): (&Vni, &Entropy)| v1::ChosenVni {
        vni: vni.get(),
        policy: Some(policy(entropy)),
    };
    v1::ChosenPort {
        policy: Some(policy(&choice.entropy)),
        route_per_frame: choice.route_per_frame,
        vnis: choice.vnis.iter().map(own).collect(),
    }
}

fn left(left: &LeftToKernel, choice: Option<&PortChoice>) -> v1::Vni {
    v1::Vni {
        vni: left.vni,
        netdev: left.name.clone(),
        taken: None,
        left: Some(left.reason.to_string()),
        external: left.reason.is_external(),
        standalone: left.is_standalone(),
        reason_slug: Some(left.reason.slug().to_owned()),
        datapath: Datapath::Kernel.name().to_owned(),
        datapath_reason: None,
        chosen_port: choice.map(chosen_port),
    }
}

/// A drop reason with its count.
pub(super) fn drop(reason: DropReason, frames: u64) -> v1::Drop {
    v1::Drop {
        reason: reason.label().to_owned(),
        frames,
        sentence: reason.sentence().trim().to_owned(),
    }
}

/// The last frames that workers and programs dropped for one reason or for any, the oldest first.
pub(super) fn dropped_frames(handle: &Handle, wanted: Option<DropReason>) -> Vec<v1::DroppedFrame> {
    let reasons = DropReason::ALL.iter().copied();
    let reasons = reasons.filter(|reason| wanted.is_none_or(|wanted| wanted == *reason));
    let of = |reason: DropReason| {
        let workers = handle.workers().iter().map(|worker| &worker.dropped_frames);
        let all = workers.chain([&handle.program_drops.frames]);
        let frames = all.flat_map(move |one| one.of(reason));
        frames.map(move |frame| (reason, frame))
    };
    let mut frames: Vec<_> = reasons.flat_map(of).collect();
    frames.sort_by_key(|(_, frame)| frame.time);
    let snapshot = handle.snapshot();
    let (now, clock) = (Instant::now(), SystemTime::now());
    let shown = |(reason, frame): (DropReason, DroppedFrame)| {
        let vni = snapshot.vnis().find(|table| table.index.get() == frame.slot);
        let ago = now.saturating_duration_since(frame.time);
        v1::DroppedFrame {
            reason: reason.label().to_owned(),
            time: events::rfc3339(clock.checked_sub(ago).unwrap_or(clock)),
            from: match frame.origin {
                Origin::Underlay => "underlay",
                Origin::Hosts => "hosts",
                Origin::Decapsulated => "decapsulated",
                Origin::Worker => "worker",
            }
            .to_owned(),
            vni: vni.map(|table| table.tunnel.vni.get()),
            netdev: vni.map(|table| table.netdev.clone()).filter(|name| !name.is_empty()),
            length: u32::try_from(frame.length).unwrap_or(u32::MAX),
            headers: hexadecimal(frame.headers()),
        }
    };
    frames.into_iter().map(shown).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The counters of learning and of moves.
fn addresses(status: &Status, counters: &Counters) -> (v1::LearningCounters, v1::MoveCounters) {
    let (learning, moves) = (status.learning, status.moves);
    let learning = v1::LearningCounters {
        new: learning.new + counters.stations.new.get(),
        moved: learning.moved + counters.stations.moved.get(),
        refreshed: learning.refreshed,
        too_many_addresses: learning.too_many_addresses + counters.stations.too_many.get(),
        too_many_vteps: learning.too_many_vteps,
        unreachable: learning.unreachable,
        refused: learning.refused,
        rate: counters.learn_limited.get(),
        flapping: learning.flapping + counters.stations.flapping.get(),
    };
    let MoveCounts { followed, coalesced, flapping } = moves;
    (learning, v1::MoveCounters { followed, coalesced, flapping })
}

/// All counters.
pub(super) fn counters(handle: &Handle) -> v1::Counters {
    let counters = handle.counters();
    let snapshot = handle.snapshot();
    let uplinks = Uplinks::of(&handle.status.borrow());
    let vnis = snapshot.vnis().filter_map(|table| {
        let counted = counters.vni(table.index.get())?;
        Some(v1::VniCounters {
            vni: table.tunnel.vni.get(),
            netdev: table.netdev.clone(),
            encapsulated_frames: counted.encapsulated.frames.get(),
            encapsulated_bytes: counted.encapsulated.bytes.get(),
            decapsulated_frames: counted.decapsulated.frames.get(),
            decapsulated_bytes: counted.decapsulated.bytes.get(),
            flooded: counted.flooded.get(),
            unknown_vtep: counted.unknown_vtep.get(),
            dropped: counted.dropped.get(),
            switched_frames: counted.switched.frames.get(),
            switched_bytes: counted.switched.bytes.get(),
        })
    });
    let hops = snapshot.vteps().flat_map(|vtep| vtep.paths.next_hops());
    let paths: BTreeMap<u16, (u32, IpAddr)> =
        hops.map(|hop| (hop.path, (hop.ifindex, hop.gateway))).collect();
    let paths = paths.into_iter().filter_map(|(path, (ifindex, gateway))| {
        let counted = counters.path(path)?;
        Some(v1::PathCounters {
            uplink: uplinks.name(ifindex),
            gateway: gateway.to_string(),
            frames: counted.frames.get(),
            bytes: counted.bytes.get(),
        })
    });
    let (learning, moves) = addresses(&handle.status.borrow(), &counters);
    v1::Counters {
        received_underlay: counters.underlay_received.get(),
        received_bridge: counters.bridge_received.get(),
        copied: counters.copies.get(),
        sent: counters.sent.get(),
        dropped: counters.dropped_in_all(),
        held: counters.held.get(),
        vnis: vnis.collect(),
        paths: paths.collect(),
        drops: DropReason::ALL
            .iter()
            .map(|reason| drop(*reason, counters.dropped(*reason)))
            .collect(),
        steering: Some(steering(handle.steering_counts())),
        learning: Some(learning),
        moves: Some(moves),
        worker_stalls: counters.stalls.get(),
        super_frames: counters.super_frames.get(),
        in_super_frames: counters.in_super_frames.get(),
        past_bridge: counters.past_bridge.get(),
        default_route_frames: counters.by_default.get(),
        queue_pairs_beyond: handle
            .pinning
            .iter()
            .flat_map(|shared| shared.beyond())
            .map(beyond)
            .collect(),
        workers: handle
            .workers()
            .iter()
            .map(|worker| v1::WorkerCounters {
                received_underlay: worker.underlay_received.get(),
                received_bridge: worker.bridge_received.get(),
                flow_hits: worker.flow_cache.hits.get(),
                flow_misses: worker.flow_cache.misses.get(),
                flow_evictions: worker.flow_cache.evictions.get(),
            })
            .collect(),
    }
}

fn beyond((limit, count): (&str, u64)) -> v1::LimitCounter {
    v1::LimitCounter { limit: limit.to_owned(), count }
}

const fn steering(counts: bpf::SteeringCounts) -> v1::SteeringCounters {
    v1::SteeringCounters {
        uplink_redirected: counts.uplink_redirected,
        vxlan_redirected: counts.vxlan_redirected,
        vxlan_too_big: counts.vxlan_too_big,
        punt_returned: counts.punt_returned,
        punt_unknown_slot: counts.punt_unknown_slot,
        port_chosen: counts.port_chosen,
        port_kept: counts.port_kept,
        vxlan_offloaded: counts.vxlan_offloaded,
        offload_encapsulated: counts.offload_encapsulated,
        offload_decapsulated: counts.offload_decapsulated,
        offload_failed: counts.offload_failed,
        uplink_stalled: counts.uplink_stalled,
        vxlan_stalled: counts.vxlan_stalled,
        port_bypassed: counts.port_bypassed,
        port_refreshed: counts.port_refreshed,
        port_passed: counts.port_passed,
        port_stalled: counts.port_stalled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_frames_leave_together_is_a_word() {
        let old = Features { udp_super_frames: false, ..Features::ALL };
        assert_eq!(super_frames(true, Features::ALL), "on");
        assert_eq!([super_frames(false, Features::ALL), super_frames(false, old)], ["off", "off"]);
        assert_eq!(super_frames(true, old), "unsupported");
    }
}
