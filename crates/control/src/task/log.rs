//! Logs what a publication changes.

use crate::eligibility::ineligible::NoNetdev;
use crate::publish::bypass::NoBypass;
use crate::publish::diff::Diff;
use crate::task::status::ByDefault;

/// Logs the differences between two publications: VNIs taken over or left to the kernel, host ports
/// and uplinks.
pub(crate) fn log(diff: &Diff) {
    for vni in &diff.missing {
        tracing::warn!("{}", NoNetdev(*vni));
    }
    if let Some(warning) = ByDefault::of(&diff.by_default.added.iter().copied().collect()) {
        tracing::warn!("{warning}");
    }
    for left in &diff.left {
        tracing::info!(vni = left.vni_text(), netdev = left.name, slug = left.reason.slug(), reason = %left.reason, "stays with the kernel");
    }
    for port in &diff.ports {
        match port.reason {
            Some(NoBypass::Off) => {}
            Some(reason) => {
                tracing::info!(port = port.name, vni = %port.vni, %reason, "no bypass")
            }
            None => tracing::info!(port = port.name, vni = %port.vni, "a port with the bypass"),
        }
    }
    for vni in &diff.steering.vnis.added {
        tracing::info!(vni = %vni.vni, netdev = vni.name, "taken over");
    }
    for vni in &diff.steering.vnis.removed {
        tracing::info!(vni = %vni.vni, netdev = vni.name, "no longer taken over");
    }
    for uplink in &diff.steering.uplinks.added {
        tracing::info!(uplink = uplink.name, "an uplink");
    }
    for uplink in &diff.steering.uplinks.removed {
        tracing::info!(uplink = uplink.name, "no longer an uplink");
    }
}
