//! Parts of a publication that are pure functions.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tables::{Fdb, Learning, Slot, VniTable, VtepIndex};

use crate::eligibility::VniConfig;
use crate::stores::overlay::Overlay;

/// The identity of a next hop for the assignment of buckets. Link-local gateways are ignored: they
/// depend on a MAC address, or are zebra's 169.254.0.1, and may change while the topology stays the
/// same.
pub(super) fn identity(interface: &str, gateway: IpAddr) -> u64 {
    let number = match gateway {
        IpAddr::V4(address) if address.is_link_local() => 0,
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) if address.is_unicast_link_local() => 0,
        IpAddr::V6(address) => address.to_bits(),
    };
    tables::placement::identity(interface, number)
}

/// Updates the set of VTEPs that only a default route leads to: first removals, then additions.
pub(super) fn by_default(known: &mut Arc<BTreeSet<Ipv4Addr>>, news: &[(Ipv4Addr, bool)]) {
    if news.is_empty() {
        return;
    }
    let mut now = BTreeSet::clone(known);
    for (vtep, _) in news.iter().filter(|(_, is)| !is) {
        now.remove(vtep);
    }
    now.extend(news.iter().filter(|(_, is)| *is).map(|(vtep, _)| *vtep));
    if now != **known {
        *known = Arc::new(now);
    }
}

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
