//! The table of a VNI.

use tables::{Fdb, Learning, Slot, VniTable, VtepIndex};

use crate::eligibility::VniConfig;
use crate::stores::overlay::Overlay;

/// The table of a VNI that is taken over. `hosts`: the local addresses that use the bypass.
pub(super) fn table(
    slot: Slot,
    ifindex: u32,
    terms: &VniConfig,
    overlay: &Overlay,
    hosts: Fdb<u32>,
) -> VniTable {
    let learning =
        terms.learning.map(|ageing| Learning { ifindex, ageing, fixed: overlay.fixed.clone() });
    VniTable {
        slot,
        netdev: terms.netdev.clone(),
        mac: terms.mac,
        tunnel: terms.tunnel.clone(),
        entropy: terms.entropy,
        fdb: overlay.fdb.clone(),
        hosts,
        flood: overlay.flooding.values().copied().collect::<Vec<VtepIndex>>(),
        strict_vtep: terms.strict_vtep,
        learning,
    }
}
