//! What the metrics show in addition to the workers' counters.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use bpf::{BypassState, PortCounts, SteeringCounts};
use control::{Datapath, PortDecision, SourceState, Status};
use path::Policy;
use pathmap::Placer;
use pipeline::counters::{StationCounters, vtep_id};
use tables::Snapshot;
use telemetry::{
    LeftView, PathView, PortFrames, PortView, ProbedView, ProbingView, SourceView, TierView, View,
    VniView,
};

use crate::pinning::{Messages, Probed, Shared, SprayedTo};

/// The bridge ports: the decision of the control task, errors of steering, and its counters.
pub(crate) fn ports(status: &Status, bypass: &BypassState) -> Vec<PortView> {
    let view = |port: &PortDecision| {
        let refused = || bypass.refused.get(&port.ifindex).cloned();
        let counts = bypass.ports.get(&port.ifindex);
        // The control task has decided, but steering has not attached the programs yet.
        let missing = || counts.is_none().then(|| "it is not attached yet".to_owned());
        let reason = port.reason.map(|reason| reason.to_string()).or_else(refused).or_else(missing);
        PortView {
            port: port.name.clone(),
            bridge: port.bridge.clone(),
            vni: port.vni,
            frames: counts.filter(|_| reason.is_none()).map(|counts| {
                let PortCounts { bypass, refreshed, passed, stalled } = *counts;
                PortFrames { bypass, refreshed, passed, stalled }
            }),
            reason,
        }
    };
    status.ports.iter().map(view).collect()
}

/// Known paths and placed queue pairs.
pub(crate) fn probing(shared: &Shared) -> ProbingView {
    let probed = shared.probed();
    let Messages { probes: [sent, answered, unexpected], responded, refused } = shared.messages();
    let vtep = |of: &Probed| {
        let tiers = shared.read(|placer| placer.balance(of.target));
        let tier = |tier: &pathmap::placer::TierView| TierView {
            mmr: tier.mmr,
            floor: tier.floor,
            jain: tier.jain,
        };
        ProbedView {
            address: of.target.address,
            ready: of.ready,
            traced: of.traced,
            known: of.known as u64,
            dead: of.lost as u64,
            unknown: of.paths.saturating_sub(of.known + of.lost) as u64,
            tiers: tiers.iter().map(tier).collect(),
            spray_paths: if of.sprayed.vnis.is_empty() { 0 } else { of.sprayed.up as u64 },
            sprayed: sprayed(&of.sprayed),
        }
    };
    let mut vteps = BTreeMap::<IpAddr, ProbedView>::new();
    for of in probed.iter().map(vtep) {
        match vteps.entry(of.address) {
            Entry::Vacant(place) => _ = place.insert(of),
            Entry::Occupied(known) => known.into_mut().join(of),
        }
    }
    let (counts, queue_pairs) = shared.read(|placer| (placer.counts, placer.len() as u64));
    let same = shared.read(Placer::same_links);
    ProbingView {
        vteps: vteps.into_values().collect(),
        queue_pairs,
        same_links: [("yes", same[0]), ("no", same[1]), ("unknown", same[2])],
        moves: vec![("dead", counts.moved_dead), ("balance", counts.moved_balance)],
        forgotten: counts.forgotten,
        beyond: shared.beyond().to_vec(),
        messages: vec![
            ("sent", sent),
            ("answered", answered),
            ("unexpected", unexpected),
            ("opened", responded.opened),
            ("refused", responded.refused),
            ("replayed", responded.replayed),
            ("limited", responded.limited),
            ("not_from_uplink", refused.not_from_uplink),
            ("not_from_vtep", refused.not_from_vtep),
            ("over_limit", refused.over_limit),
        ],
    }
}

/// Packets that were sprayed to a VTEP, and what became of them.
fn sprayed(to: &SprayedTo) -> [(&'static str, u64); 4] {
    let paths = || to.paths.iter();
    [
        ("sent", paths().map(|(_, sent, _)| sent).sum()),
        ("unmarked", paths().map(|(.., fate)| fate.good).sum()),
        ("marked", paths().map(|(.., fate)| fate.marked).sum()),
        ("lost", paths().map(|(.., fate)| fate.lost).sum()),
    ]
}

/// Combines the status of the control task with the snapshot and the counters.
pub(crate) fn view(
    status: &Status,
    snapshot: &Snapshot,
    counts: SteeringCounts,
    bypass: &BypassState,
    stations: &StationCounters,
) -> View {
    let vnis = snapshot.vnis().map(|table| VniView {
        slot: table.index.get(),
        vni: table.tunnel.vni,
        netdev: table.netdev.clone(),
        policy: table.entropy.policy().to_string(),
        datapath: if table.offload { Datapath::Offload } else { Datapath::Userspace }.name(),
        remote_macs: table.fdb.len(),
        flood_vteps: table.flood.len(),
    });
    let names: BTreeMap<u32, &str> =
        status.plan.uplinks.iter().map(|u| (u.ifindex, u.name.as_str())).collect();
    let mut paths: BTreeMap<u16, (u32, IpAddr)> = BTreeMap::new();
    for hop in snapshot.vteps().flat_map(|vtep| vtep.paths.next_hops()) {
        paths.insert(hop.path, (hop.ifindex, hop.gateway));
    }
    let paths = paths.into_iter().map(|(path, (ifindex, gateway))| PathView {
        path,
        uplink: names.get(&ifindex).map_or_else(|| ifindex.to_string(), |name| (*name).to_owned()),
        gateway,
    });
    let left = status.left.iter().map(|left| LeftView {
        netdev: left.name.clone(),
        vni: left.vni_text(),
        reason: left.reason.slug(),
        policy: status.plan.choice_of(left.source).map_or_else(
            || Policy::FiveTuple.to_string(),
            |choice| choice.entropy.policy().to_string(),
        ),
    });
    let learning = status.learning;
    let source =
        |name, state: SourceState, swept| SourceView { name, state: state.to_string(), swept };
    View {
        generation: snapshot.generation(),
        vnis: vnis.collect(),
        paths: paths.collect(),
        peers: snapshot
            .vteps()
            .filter_map(|vtep| {
                Some((vtep_id(snapshot.find_vtep(vtep.address)?, snapshot), vtep.address))
            })
            .collect(),
        by_default: status.by_default.len(),
        left: left.collect(),
        ports: ports(status, bypass),
        bypass_addresses: [bypass.addresses, bypass.waiting],
        sources: vec![
            source("kernel", status.kernel, status.swept.kernel),
            source("fpm", status.fpm, status.swept.fpm),
        ],
        overruns: status.overruns,
        fpm_refused: status.fpm_refused,
        bypass_no_room: bypass.no_room,
        steering: steering(counts),
        learned: vec![
            ("new", learning.new + stations.new.get()),
            ("moved", learning.moved + stations.moved.get()),
            ("refreshed", learning.refreshed),
        ],
        not_learned: vec![
            ("too_many_addresses", learning.too_many_addresses + stations.too_many.get()),
            ("too_many_vteps", learning.too_many_vteps),
            ("unreachable", learning.unreachable),
            ("refused", learning.refused),
            ("flapping", learning.flapping + stations.flapping.get()),
        ],
        moves: vec![("followed", status.moves.followed), ("coalesced", status.moves.coalesced)],
        flapping: status.moves.flapping,
        ..View::default()
    }
}

/// Other metrics have the rest.
fn steering(counts: SteeringCounts) -> Vec<(&'static str, u64)> {
    let elsewhere = ["offload_copies", "offload_by_default", "offload_past_bridge"];
    counts.named().into_iter().filter(|(name, _)| !elsewhere.contains(name)).collect()
}
