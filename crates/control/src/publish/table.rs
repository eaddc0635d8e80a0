//! The table of a VNI.

use tables::{Fdb, Learning, VniIndex, VniSource, VniTable, VtepIndex};

use crate::eligibility::VniConfig;
use crate::stores::overlay::Overlay;

/// The table of a VNI that is taken over. `hosts`: the local addresses that use the bypass.
pub(super) fn table(
    index: VniIndex,
    source: VniSource,
    config: &VniConfig,
    overlay: &Overlay,
    hosts: Fdb<u32>,
) -> VniTable {
    let learning = config.learning.zip(source.netdev());
    let learning = learning.map(|(ageing, ifindex)| {
        let fixed = overlay.fixed.clone();
        Learning { ifindex, ageing, fixed }
    });
    VniTable {
        index,
        netdev: config.netdev.clone(),
        mac: config.mac,
        tunnel: config.tunnel.clone(),
        entropy: config.entropy,
        fdb: overlay.fdb.clone(),
        hosts,
        flood: overlay.flooding.values().copied().collect::<Vec<VtepIndex>>(),
        strict_vtep: config.strict_vtep,
        offload: config.offload,
        learning,
    }
}
