//! The table of a VNI.

use tables::{Fdb, Learning, VniIndex, VniSource, VniTable, VtepIndex};

use crate::eligibility::VniConfig;
use crate::stores::overlay::Overlay;

/// The table of a VNI that is taken over. `hosts`: the local addresses that use the bypass.
pub(super) fn table(
    index: VniIndex,
    source: VniSource,
    terms: &VniConfig,
    overlay: &Overlay,
    hosts: Fdb<u32>,
) -> VniTable {
    let learning = terms.learning.zip(source.netdev());
    let learning = learning.map(|(ageing, ifindex)| {
        let fixed = overlay.fixed.clone();
        Learning { ifindex, ageing, fixed }
    });
    VniTable {
        index,
        netdev: terms.netdev.clone(),
        mac: terms.mac,
        tunnel: terms.tunnel.clone(),
        entropy: terms.entropy,
        fdb: overlay.fdb.clone(),
        hosts,
        flood: overlay.flooding.values().copied().collect::<Vec<VtepIndex>>(),
        strict_vtep: terms.strict_vtep,
        offload: terms.offload,
        learning,
    }
}
