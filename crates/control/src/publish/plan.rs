//! Builds the steering plan: what the BPF programs redirect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tables::{SteeringPlan, TakenVni, Uplink};

use crate::publish::checked_sources::checked_sources;
use crate::publish::decisions::{Decision, Decisions};
use crate::publish::next_hops::NextHops;
use crate::publish::update::Update;
use crate::settings::Settings;
use crate::stores::Stores;

/// Builds the steering plan of `update`: the uplinks, and also the VNIs if a decision changed.
pub(crate) fn build(
    update: &mut Update,
    stores: &Stores,
    settings: &Settings,
    decisions: &Decisions,
    next_hops: &NextHops,
    decided: bool,
) {
    let uplink = |&ifindex: &u32| Uplink { ifindex, name: stores.links.name(ifindex) };
    let uplinks: BTreeSet<Uplink> = next_hops.uplinks().iter().map(uplink).collect();
    let checked_sources = checked_sources(stores, &uplinks, !settings.standalone.is_empty());
    if !decided {
        if (&update.plan.uplinks, &update.plan.checked_sources) != (&uplinks, &checked_sources) {
            let plan = Arc::make_mut(&mut update.plan);
            (plan.uplinks, plan.checked_sources) = (uplinks, checked_sources);
        }
        return;
    }
    let (vnis, ports) = (BTreeMap::new(), update.plan.ports.clone());
    let choices = decisions.choices().clone();
    let mut plan = SteeringPlan { uplinks, checked_sources, vnis, ports, choices };
    let mut left = Vec::new();
    for (source, decision) in decisions.iter() {
        match decision {
            Decision::Left(netdev) => left.push(netdev.clone()),
            Decision::Taken { index, config, .. } => {
                let taken = TakenVni {
                    vni: config.tunnel.vni,
                    source,
                    name: config.netdev.clone(),
                    index: *index,
                    local: config.tunnel.local,
                    destination_port: config.tunnel.destination_port,
                    frame_limit: config.frame_limit,
                };
                plan.vnis.insert(source, taken);
            }
        }
    }
    if *update.plan != plan {
        update.plan = Arc::new(plan);
    }
    if *update.left != *left {
        update.left = left.into();
    }
}
