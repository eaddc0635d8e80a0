//! Converts known paths and placed queue pairs to messages.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use api::v1;
use path::{Key, PathId};
use pathmap::Placer;
use pathmap::load::Link;
use pathmap::placer::{Flow, FlowId, Gone, PathView, Target, TierView};
use tables::Snapshot;

use super::show::Uplinks;
use crate::pinning::{Probed, Shared, SprayedTo};

/// Names of uplinks, by the identities of next hops.
pub(super) struct Names(BTreeMap<u64, String>);

impl Names {
    /// The names of the uplinks of all next hops.
    pub(super) fn of(snapshot: &Snapshot, uplinks: &Uplinks) -> Self {
        let hops = snapshot.vteps().flat_map(|vtep| vtep.paths.next_hops());
        Self(hops.map(|hop| (hop.identity, uplinks.name(hop.ifindex))).collect())
    }

    /// Whether a path's next hop is there.
    pub(super) fn has(&self, path: PathId) -> bool {
        self.0.contains_key(&path.hop)
    }

    /// The name of a path's uplink; empty if its next hop is gone.
    pub(super) fn of_path(&self, path: PathId) -> String {
        self.0.get(&path.hop).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
impl<const N: usize> From<[(u64, String); N]> for Names {
    fn from(names: [(u64, String); N]) -> Self {
        Self(names.into())
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The addresses of the routers on a path.
pub(super) fn routers(links: &[Link]) -> Vec<String> {
    let router = |link: &Link| match link {
        Link::Router(address) => Some(address.to_string()),
        Link::Between(address, _) => Some(address.to_string()),
        Link::Uplink(_) | Link::Arrival(..) => None,
    };
    links.iter().filter_map(router).collect()
}

/// A path, and the load that other leaves report on that of its links where it is most. `None` if
/// they have no name for its links.
pub(super) type LoadedPath = (PathView, Option<u64>);

/// The known paths to a target.
pub(super) fn loaded_paths(placer: &Placer, target: Target) -> Vec<LoadedPath> {
    let others = |view: &PathView| {
        let recorded = view.links.iter().filter(|link| matches!(link, Link::Router(_)));
        recorded.map(|link| placer.load(*link).1).max()
    };
    let loaded = |view: PathView| {
        let others = others(&view);
        (view, others)
    };
    placer.paths(target).into_iter().map(loaded).collect()
}

/// Converts a path. `counts` are the fewest and the most routers on the known paths to its VTEP.
pub(super) fn path(names: &Names, (view, others): &LoadedPath, counts: (u8, u8)) -> v1::Path {
    let routers = routers(&view.links);
    // Recorded addresses are complete. Traces leave out routers that do not answer.
    let is_recorded = view.links.iter().any(|link| matches!(link, Link::Router(_)));
    let router_count = match counts {
        _ if is_recorded => Some(routers.len() as u32),
        (fewest, most) => (fewest == most).then_some(most.into()),
    };
    v1::Path {
        uplink: view.paths.first().map(|path| names.of_path(*path)).unwrap_or_default(),
        routers,
        router_count,
        arrival: view.links.iter().find_map(|link| match link {
            Link::Arrival(_, uplink) => Some(*uplink),
            Link::Uplink(_) | Link::Router(_) | Link::Between(..) => None,
        }),
        source_ports: view.paths.iter().map(|path| u32::from(path.source_port)).collect(),
        delay_us: u64::try_from(view.delay.as_micros()).unwrap_or(u64::MAX),
        queue_pairs: view.flows as u32,
        kilobytes: view.kilobytes,
        others_kilobytes: *others,
    }
}

/// The paths to each remote VTEP, or to one.
pub(super) fn paths(
    shared: &Shared,
    snapshot: &Snapshot,
    uplinks: &Uplinks,
    vtep: Option<IpAddr>,
) -> Vec<v1::VtepPaths> {
    let names = Names::of(snapshot, uplinks);
    let now = shared.now();
    let wanted = |probed: &Probed| vtep.is_none_or(|vtep| vtep == probed.target.address);
    let probed = shared.probed().into_iter().filter(wanted);
    probed.map(|probed| of_vtep(shared, &names, &probed, now)).collect()
}

fn of_vtep(shared: &Shared, names: &Names, probed: &Probed, now: Duration) -> v1::VtepPaths {
    let target = probed.target;
    let (paths, tiers) =
        shared.read(|placer| (loaded_paths(placer, target), placer.balance(target)));
    let is_arrival = |tier: usize| {
        let ends = |(path, _): &LoadedPath| matches!(path.links.get(tier), Some(Link::Arrival(..)));
        paths.iter().any(ends)
    };
    let tier = |(number, TierView { links, mmr, jain, floor })| {
        let arrival = is_arrival(number);
        v1::Tier { links: links as u32, mmr, floor, jain, arrival }
    };
    v1::VtepPaths {
        vtep: target.address.to_string(),
        local: target.local.to_string(),
        destination_port: target.port.into(),
        ready: probed.ready,
        path_ids: probed.paths as u32,
        known: probed.known as u32,
        dead: probed.lost as u32,
        routers_min: probed.routers.0.into(),
        routers_max: probed.routers.1.into(),
        complete: probed.recorded && probed.known > 0,
        age_ms: probed.heard.map(|heard| milliseconds(now.saturating_sub(heard))),
        probes: probed.counts[0],
        answers: probed.counts[1],
        tiers: tiers.into_iter().enumerate().map(tier).collect(),
        paths: paths.iter().map(|of| path(names, of, probed.routers)).collect(),
        traced: probed.traced,
        sprayed: sprayed(names, &probed.sprayed),
        sprayed_vnis: probed.sprayed.vnis.clone(),
    }
}

/// The paths over which packets are sprayed. Empty while the VTEP does not agree.
fn sprayed(names: &Names, to: &SprayedTo) -> Vec<v1::SprayedPath> {
    let agreed = to.paths.iter().filter(|_| !to.vnis.is_empty());
    let paths = agreed.zip(&to.waits).map(|((path, sent, fate), wait)| v1::SprayedPath {
        uplink: names.of_path(*path),
        source_port: path.source_port.into(),
        sent: *sent,
        unmarked: fate.good,
        marked: fate.marked,
        lost: fate.lost,
        wait_us: wait.map(|(nanoseconds, _)| nanoseconds / 1000),
        passed_over: wait.is_none_or(|(_, passed_over)| passed_over),
    });
    paths.collect()
}

/// The queue pairs that are wanted, with those that are gone last of each number.
pub(super) fn queue_pairs(
    shared: &Shared,
    snapshot: &Snapshot,
    uplinks: &Uplinks,
    wanted: v1::ListQueuePairsRequest,
) -> Vec<v1::QueuePair> {
    let names = Names::of(snapshot, uplinks);
    let now = shared.now();
    let probed = shared.probed().into_iter();
    let sprayed: BTreeMap<Target, SprayedTo> =
        probed.map(|probed| (probed.target, probed.sprayed)).collect();
    let mut rows = shared.read_all(|placer, (id, flow)| {
        let row = || {
            let links = placer.links(id.target, flow.path);
            let row = queue_pair(id, flow, names.of_path(flow.path), routers(&links), now);
            match sprayed.get(&id.target).filter(|to| to.vnis.contains(&id.vni)) {
                Some(to) => v1::QueuePair { state: SPRAYED.to_owned(), paths: to.up as u32, ..row },
                None => row,
            }
        };
        is_wanted(id, wanted).then(row)
    });
    if wanted.gone {
        let row = |Gone { id, flow, links, .. }: &Gone| {
            let row = queue_pair(id, flow, names.of_path(flow.path), routers(links), now);
            is_wanted(id, wanted).then(|| v1::QueuePair { state: GONE.to_owned(), ..row })
        };
        rows.extend(shared.gone().iter().filter_map(row));
    }
    let order = |row: &v1::QueuePair| {
        (row.vni, row.source.clone(), row.destination.clone(), row.queue_pair)
    };
    rows.sort_by_cached_key(order);
    rows
}

/// Whether a queue pair has the VNI and the number that are wanted.
fn is_wanted(id: &FlowId, wanted: v1::ListQueuePairsRequest) -> bool {
    let has_number =
        |number| matches!(id.key, Key::QueuePair { queue_pair, .. } if queue_pair.get() == number);
    wanted.vni.is_none_or(|vni| vni == id.vni) && wanted.queue_pair.is_none_or(has_number)
}

fn queue_pair(
    id: &FlowId,
    flow: &Flow,
    uplink: String,
    routers: Vec<String>,
    now: Duration,
) -> v1::QueuePair {
    let (source, destination, queue_pair) = match id.key {
        Key::QueuePair { source, destination, queue_pair } => {
            (source.to_string(), destination.to_string(), queue_pair.get())
        }
        // Other flows are not placed.
        _ => Default::default(),
    };
    v1::QueuePair {
        vni: id.vni,
        source,
        destination,
        queue_pair,
        vtep: id.target.address.to_string(),
        uplink,
        source_port: flow.path.source_port.into(),
        state: state(flow).to_owned(),
        paths: 0,
        routers,
        frames: flow.frames,
        bytes: flow.bytes,
        kilobytes: flow.rate_now,
        moves: flow.moves,
        age_ms: milliseconds(now.saturating_sub(flow.first)),
        idle_ms: milliseconds(now.saturating_sub(flow.active)),
        partner: flow.partner.map(|partner| partner.queue_pair.get()),
        same_links: same_links(flow).to_owned(),
        psn_gaps: flow.counts.gaps,
        psn_repeats: flow.counts.repeats,
        naks: flow.counts.naks,
        cnps: flow.counts.cnps,
        ecn_marks: flow.counts.marks,
        exact: flow.is_exact,
    }
}

/// The state of a queue pair whose sends and writes take all paths.
pub(super) const SPRAYED: &str = "sprayed";

/// The state of a queue pair that was forgotten.
const GONE: &str = "gone";

/// The state of a queue pair that is not sprayed.
pub(super) const fn state(flow: &Flow) -> &'static str {
    match (flow.wanted, flow.hashed) {
        (Some(_), _) => "moving",
        (None, true) => "hashed",
        (None, false) => "pinned",
    }
}

/// Whether both directions of a connection use the same links, as text.
fn same_links(flow: &Flow) -> &'static str {
    match flow.partner.and_then(|partner| partner.same_links) {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}
