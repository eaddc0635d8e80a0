//! Builds an [`Update`]: the snapshot for the workers and the plan for steering.
//!
//! Only what changed is built again: the table of an overlay after a change of that overlay, and
//! next hops after a change of the underlay. Everything else is shared with the previous
//! publication.

use std::collections::BTreeSet;
use std::sync::Arc;

use tables::VniSource;

use crate::mac_mobility::MacMobility;
use crate::resolve::resolve_vteps;
use crate::settings::Settings;
use crate::stores::Stores;
use crate::stores::changes::{BypassChanges, Changes};

pub mod bypass;
mod checked_sources;
pub(crate) mod decisions;
pub mod diff;
mod ids;
pub(crate) mod next_hops;
mod plan;
mod snapshot;
mod table;
pub mod update;

use bypass::Bypass;
use decisions::{Configuration, Decision, Decisions};
use next_hops::NextHops;
use update::Update;

/// The last publication, and what the next one follows from beside the stores.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    pub(crate) decisions: Decisions,
    pub(crate) next_hops: NextHops,
    pub(crate) bypass: Bypass,
    pub(crate) last: Update,
}

impl Publication {
    /// Builds the next publication from everything that changed in the stores since the last one.
    pub(crate) fn build(
        &mut self,
        stores: &mut Stores,
        configuration: Configuration<'_>,
        mobility: &mut MacMobility,
    ) {
        let Configuration { settings, .. } = configuration;
        let mut changes = stores.changes.take();
        let entries_changed = self.apply_entries(stores, &mut changes, mobility);
        let routes = resolve_vteps(stores, changes.underlay, &changes.prefixes);
        let routed = changes.underlay || !changes.prefixes.is_empty();
        let locals = routed && self.decisions.locals.check(stores);
        // Packet filters and routing rules may match by uplink.
        let matched = !stores.packet_filters.is_empty() || stores.policies.any();
        let filtered = (routes.uplinks || changes.underlay) && matched;
        let mut sources = changes.overlays;
        if routes.eligibility || locals || filtered || changes.all || changes.decisions {
            sources.extend(stores.sources());
            sources.extend(self.decisions.iter().map(|(source, _)| source));
        }
        if routes.multipath {
            let left =
                |(_, decision): &(VniSource, &Decision)| matches!(decision, Decision::Left(_));
            sources.extend(self.decisions.iter().filter(left).map(|(source, _)| source));
        }
        let decided = self.decisions.decide(stores, configuration, &sources, &entries_changed);
        if decided || changes.all || self.last.snapshot.generation() == 0 {
            find_missing(&mut self.last, settings, stores);
        }
        let recollect = std::mem::take(&mut stores.vteps.taken_changed) || routes.taken;
        if recollect {
            self.next_hops.collect(&stores.vteps);
        }
        // The resolved route does not contain a link's name, MAC address and MTU.
        if recollect || changes.all || changes.underlay || changes.adjacencies {
            self.next_hops.build_paths(stores, settings.rebalance, changes.all);
        }
        if recollect || decided || changes.underlay || changes.decisions {
            let (decisions, next_hops) = (&self.decisions, &self.next_hops);
            plan::build(&mut self.last, stores, settings, decisions, next_hops, decided);
        }
        self.build_bypass(stores, configuration, changes.bypass, changes.all);
        snapshot::build(&mut self.last, stores, configuration, &mut self.decisions);
    }

    /// Applies what was reported for overlays to their tables. Returns those whose FDB or flood
    /// list changed.
    fn apply_entries(
        &self,
        stores: &mut Stores,
        changes: &mut Changes,
        mobility: &mut MacMobility,
    ) -> BTreeSet<VniSource> {
        let Stores { links, bridges, overlays, vteps, .. } = stores;
        let mut changed = BTreeSet::new();
        mobility.clear_changes();
        for &source in &changes.overlays {
            let Some(overlay) = overlays.get_mut(&source) else { continue };
            let link = source.netdev().and_then(|ifindex| links.get(ifindex));
            let bridge = link.and_then(|link| link.master);
            let applied = overlay.apply(vteps, |mac| {
                let port = bridge.and_then(|bridge| bridges.get(bridge, mac));
                port.is_some_and(|port| !port.permanent && !links.leads_to_netdev(port.ifindex))
            });
            if applied.entries {
                changed.insert(source);
            }
            if let Some(bridge) = bridge {
                let macs = applied.changes.iter().map(|change| (bridge, change.mac));
                changes.bypass.addresses.extend(macs);
            }
            mobility.record(source, applied, self.decisions.takes(source));
        }
        changed
    }

    /// Applies changes of bridges, and of decisions made in this build, to the bridge bypass.
    fn build_bypass(
        &mut self,
        stores: &Stores,
        configuration: Configuration<'_>,
        mut changes: BypassChanges,
        all: bool,
    ) {
        changes.bridges.extend(self.decisions.take_changed_bridges());
        if all {
            changes.bridges.extend(stores.links.bridges_with_vxlan());
        }
        if changes.is_empty() {
            return;
        }
        let decided = self.bypass.build(stores, configuration, &mut self.decisions, changes);
        let Some((ports, decided)) = decided else { return };
        if self.last.plan.ports != ports {
            Arc::make_mut(&mut self.last.plan).ports = ports;
        }
        if self.last.ports != decided {
            self.last.ports = decided;
        }
    }
}

/// Updates the VNIs that the settings name and that no vxlan netdev has.
fn find_missing(update: &mut Update, settings: &Settings, stores: &Stores) {
    let Settings { include, exclude, vnis, .. } = settings;
    // VNIs with settings of their own are expected to exist as well, unless they stay with the
    // kernel in any case. A netdev that carries many has those settings, too.
    let has_many = || {
        let mut vxlans = stores.links.vxlans().filter_map(|index| stores.links.vxlan(index));
        vxlans.any(|vxlan| vxlan.external || vxlan.vni_filter)
    };
    let is_expected = include.is_none() && !vnis.is_empty() && !has_many();
    let configured = vnis.keys().filter(|vni| is_expected && !exclude.contains(vni));
    let named = include.iter().flatten().chain(configured);
    let missing = named.filter(|vni| stores.sources_of(vni.get()).next().is_none());
    let missing: BTreeSet<_> = missing.copied().collect();
    if *update.missing != missing {
        update.missing = Arc::new(missing);
    }
}
