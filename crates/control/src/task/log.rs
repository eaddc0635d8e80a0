//! Logs what a publication changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tables::VniSource;

use crate::eligibility::ineligible::{LeftToKernel, NoNetdev};
use crate::publish::bypass::{NoBypass, PortDecision};
use crate::publish::update::Update;
use crate::task::status::ByDefault;

/// Logs the differences between two publications: VNIs taken over or left to the kernel, host ports
/// and uplinks.
pub(crate) fn log(before: &Update, after: &Update) {
    for vni in after.missing.difference(&before.missing) {
        tracing::warn!("{}", NoNetdev(*vni));
    }
    if !Arc::ptr_eq(&before.by_default, &after.by_default) {
        let new = after.by_default.difference(&before.by_default).copied().collect();
        if let Some(warning) = ByDefault::of(&new) {
            tracing::warn!("{warning}");
        }
    }
    if !Arc::ptr_eq(&before.left, &after.left) {
        let known: BTreeMap<VniSource, &LeftToKernel> =
            before.left.iter().map(|left| (left.source, left)).collect();
        for left in after.left.iter().filter(|left| known.get(&left.source) != Some(left)) {
            tracing::info!(vni = left.vni_text(), netdev = left.name, slug = left.reason.slug(), reason = %left.reason, "stays with the kernel");
        }
    }
    if !Arc::ptr_eq(&before.ports, &after.ports) {
        let known: BTreeMap<u32, &PortDecision> =
            before.ports.iter().map(|port| (port.ifindex, port)).collect();
        for port in after.ports.iter().filter(|port| known.get(&port.ifindex) != Some(port)) {
            match port.reason {
                Some(NoBypass::Off) => {}
                Some(reason) => {
                    tracing::info!(port = port.name, vni = %port.vni, %reason, "no bypass")
                }
                None => tracing::info!(port = port.name, vni = %port.vni, "a port with the bypass"),
            }
        }
    }
    if Arc::ptr_eq(&before.plan, &after.plan) {
        return;
    }
    for (ifindex, vni) in &after.plan.vnis {
        if !before.plan.vnis.contains_key(ifindex) {
            tracing::info!(vni = %vni.vni, netdev = vni.name, "taken over");
        }
    }
    for (ifindex, vni) in &before.plan.vnis {
        if !after.plan.vnis.contains_key(ifindex) {
            tracing::info!(vni = %vni.vni, netdev = vni.name, "no longer taken over");
        }
    }
    for uplink in after.plan.uplinks.difference(&before.plan.uplinks) {
        tracing::info!(uplink = uplink.name, "an uplink");
    }
    for uplink in before.plan.uplinks.difference(&after.plan.uplinks) {
        tracing::info!(uplink = uplink.name, "no longer an uplink");
    }
}
