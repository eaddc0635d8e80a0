//! Reverse path filters (`rp_filter`): the VTEPs whose packets certainly pass the filter of an
//! uplink.
//!
//! The kernel looks up the route to the source of a received packet (`__fib_validate_source()`,
//! `net/ipv4/fib_frontend.c`). Strict or loose, it accepts the packet if this route has the
//! receiving interface as a next hop. The BPF program redirects such packets. All others at an
//! uplink with a filter stay with kernel VXLAN. It drops or delivers them, depending on the
//! filter's mode, the interface's addresses and routes that vtepd does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use tables::steering::Uplink;

use crate::stores::Stores;

/// The uplinks with a reverse path filter, each with the VTEPs whose packets certainly pass it.
pub(crate) fn checked_sources(
    stores: &Stores,
    uplinks: &BTreeSet<Uplink>,
    standalone: bool,
) -> BTreeMap<u32, BTreeSet<Ipv4Addr>> {
    // Without netdevs there is no kernel VXLAN with which packets could stay.
    if standalone {
        return BTreeMap::new();
    }
    let on = uplinks
        .iter()
        .map(|uplink| uplink.ifindex)
        .filter(|ifindex| stores.reverse_paths.is_on(*ifindex));
    let mut checked: BTreeMap<u32, BTreeSet<Ipv4Addr>> =
        on.map(|ifindex| (ifindex, BTreeSet::new())).collect();
    // Rules may change the reverse route, and it may depend on the TOS.
    if checked.is_empty() || !stores.policies.has_default_rules() {
        return checked;
    }
    for (_, known) in stores.vteps.taken() {
        let Some(route) =
            known.route.as_ref().filter(|route| !route.selective && route.obstacle.is_none())
        else {
            continue;
        };
        // IPv6 has no such filter.
        let IpAddr::V4(source) = known.address else { continue };
        for hop in route.hops.iter().filter(|hop| !stores.links.is_in_vrf(hop.ifindex)) {
            if let Some(sources) = checked.get_mut(&hop.ifindex) {
                sources.insert(source);
            }
        }
    }
    checked
}
