//! From the address of a remote VTEP to its next hops.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use netlink::contains;

use crate::stores::Stores;
use crate::stores::vteps::Known;

pub(crate) mod link_local;
pub(crate) mod neighbour_requests;
pub(crate) mod path_mtu;
pub(crate) mod underlay;
mod weights;

use link_local::LinkLocal;
use underlay::{RouteResolver, Underlay};

/// Number of changed prefixes above which the routes to all VTEPs are looked up.
const MANY: usize = 256;

/// What a lookup of routes to VTEPs has changed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RouteChanges {
    /// The route to a VTEP of a VNI that is taken over.
    pub(crate) taken: bool,
    /// Properties of a route on which eligibility depends.
    pub(crate) eligibility: bool,
    /// Whether there is more than one next hop.
    pub(crate) multipath: bool,
    /// The uplinks of any VTEP.
    pub(crate) uplinks: bool,
}

/// Looks up the routes to new VTEPs, to those in these prefixes, or to all.
pub(crate) fn resolve_vteps(
    stores: &mut Stores,
    all: bool,
    prefixes: &BTreeSet<(IpAddr, u8)>,
) -> RouteChanges {
    let mut vteps = std::mem::take(&mut stores.vteps);
    let mut wanted = std::mem::take(&mut vteps.new);
    if all || prefixes.len() > MANY {
        wanted = vteps.indices();
    } else if !prefixes.is_empty() {
        let concerned = |known: &Known| {
            known.route.as_ref().is_none_or(|route| route.recursive)
                || prefixes
                    .iter()
                    .any(|(network, length)| contains((*network, *length), known.address))
        };
        wanted.extend(vteps.iter().filter(|(_, known)| concerned(known)).map(|(index, _)| index));
    }
    let mut changes = RouteChanges::default();
    let link_local = LinkLocal::new(&stores.routes.kernel, &stores.neighbours);
    let mut resolver = RouteResolver::new(Underlay::new(stores, &link_local));
    for index in wanted {
        let Some(address) = vteps.get(index).map(|known| known.address) else { continue };
        let route = resolver.resolve(address, &mut vteps.routes);
        let Some(known) = vteps.get_mut(index) else { continue };
        if let Some(before) = &known.route {
            if Arc::ptr_eq(before, &route) {
                continue;
            }
            changes.taken |= known.is_taken();
            changes.eligibility |= before.eligibility_inputs() != route.eligibility_inputs();
            changes.multipath |= before.is_multipath() != route.is_multipath();
        }
        let before = known.route.as_ref().map(|before| &before.uplinks);
        changes.uplinks |= before != Some(&route.uplinks);
        known.route = Some(route);
    }
    stores.vteps = vteps;
    changes
}
