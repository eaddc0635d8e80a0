//! The next hops of VNIs that are taken over.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tables::hash::TableHasher;
use tables::{NextHop, Paths, Rebalance};

use crate::publish::ids::PathNumbers;
use crate::resolve::neighbour_requests::{STALE, UNRESOLVED};
use crate::stores::Stores;
use crate::stores::neighbours::{Adjacency, Neighbours};
use crate::stores::resolved_route::Hop;
use crate::stores::vteps::Vteps;

/// `NUD_STALE` (`include/uapi/linux/neighbour.h`).
const NUD_STALE: u16 = 0x04;

/// The next hops of VNIs that are taken over, and their path numbers.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    numbers: PathNumbers,
    adjacencies: BTreeSet<Adjacency>,
    /// The interfaces of all their next hops.
    uplinks: BTreeSet<u32>,
}

const fn adjacency(hop: &Hop) -> Adjacency {
    Adjacency { ifindex: hop.ifindex, address: hop.gateway }
}

impl NextHops {
    /// Whether frames may leave through this neighbour.
    pub(crate) fn contains(&self, neighbour: Adjacency) -> bool {
        self.adjacencies.contains(&neighbour)
    }

    /// The interfaces of all next hops.
    pub(crate) const fn uplinks(&self) -> &BTreeSet<u32> {
        &self.uplinks
    }

    /// Whether the MAC addresses of all next hops are known.
    pub(crate) fn are_resolved(&self, neighbours: &Neighbours) -> bool {
        self.adjacencies.iter().all(|adjacency| neighbours.is_resolved(*adjacency))
    }

    /// Next hops without a MAC address, or with a stale one, and how often to ask for each.
    pub(crate) fn unresolved(
        &self,
        neighbours: &Neighbours,
    ) -> impl Iterator<Item = (Adjacency, Duration)> {
        self.adjacencies.iter().filter_map(|adjacency| match neighbours.get(*adjacency) {
            Some(adjacent) if adjacent.mac.is_none() => Some((*adjacency, UNRESOLVED)),
            Some(adjacent) if adjacent.state & NUD_STALE != 0 => Some((*adjacency, STALE)),
            Some(_) => None,
            None => Some((*adjacency, UNRESOLVED)),
        })
    }

    /// Collects the next hops of all VTEPs of VNIs taken over, and assigns path numbers to them.
    pub(crate) fn collect(&mut self, vteps: &Vteps) {
        let (mut adjacencies, mut uplinks) = (BTreeSet::new(), BTreeSet::new());
        let mut seen: HashSet<_, BuildHasherDefault<TableHasher>> = HashSet::default();
        for route in vteps.taken().filter_map(|(_, known)| known.route.as_ref()) {
            if seen.insert(Arc::as_ptr(route)) {
                adjacencies.extend(route.hops.iter().map(adjacency));
                uplinks.extend(&route.uplinks);
            }
        }
        if self.adjacencies != adjacencies {
            self.numbers.assign(&adjacencies);
        }
        self.adjacencies = adjacencies;
        self.uplinks = uplinks;
    }

    /// Updates the paths of VTEPs to their routes. VTEPs with the same route and the same previous
    /// paths share them again. `all`: also if the next hops have not changed.
    pub(crate) fn build_paths(&self, stores: &mut Stores, rebalance: Rebalance, all: bool) {
        let mut built: HashMap<_, Arc<Paths>, BuildHasherDefault<TableHasher>> = HashMap::default();
        let mut shared = HashSet::new();
        let mut changed = Vec::new();
        for (index, known) in stores.vteps.taken() {
            let Some(route) = &known.route else { continue };
            let before = known.paths.as_ref();
            let paths = match built.entry((before.map(Arc::as_ptr), Arc::as_ptr(route))) {
                Entry::Occupied(entry) => Arc::clone(entry.get()),
                Entry::Vacant(entry) => {
                    let next_hops = self.live(stores, &route.hops);
                    let paths = match before {
                        Some(before) if !all && before.next_hops() == next_hops => {
                            Arc::clone(before)
                        }
                        Some(before) => Arc::new(before.follow(next_hops, rebalance)),
                        None => Arc::new(Paths::new(next_hops)),
                    };
                    let paths = shared.get(&paths).cloned().unwrap_or(paths);
                    shared.insert(Arc::clone(&paths));
                    Arc::clone(entry.insert(paths))
                }
            };
            if before.is_none_or(|before| !Arc::ptr_eq(before, &paths)) {
                changed.push((index, paths));
            }
        }
        for (index, paths) in changed {
            if let Some(known) = stores.vteps.get_mut(index) {
                known.paths = Some(paths);
            }
        }
    }

    /// The live next hops, without those that do not answer while others do (as the kernel's
    /// `fib_multipath_use_neigh`).
    fn live(&self, stores: &Stores, hops: &[Hop]) -> Vec<NextHop> {
        let neighbour = |hop: &Hop| stores.neighbours.get(adjacency(hop));
        let failed = |hop: &Hop| neighbour(hop).is_some_and(|adjacent| adjacent.failed);
        let all_failed = hops.iter().all(failed);
        let alive = hops.iter().filter(|hop| all_failed || !failed(hop));
        let next_hop = |hop: &Hop| {
            Some(NextHop {
                ifindex: hop.ifindex,
                gateway: hop.gateway,
                identity: identity(&stores.links.name(hop.ifindex), hop.gateway),
                source_mac: stores.links.get(hop.ifindex)?.mac?,
                destination_mac: neighbour(hop).and_then(|adjacent| adjacent.mac),
                mtu: hop.mtu,
                weight: hop.weight,
                path: self.numbers.get(adjacency(hop)),
                by_default: hop.by_default,
                impaired: hop.impaired,
            })
        };
        alive.filter_map(next_hop).collect()
    }
}

/// The identity of a next hop for the assignment of buckets. Link-local gateways are ignored: they
/// depend on a MAC address, or are zebra's 169.254.0.1, and may change while the topology stays the
/// same.
fn identity(interface: &str, gateway: IpAddr) -> u64 {
    let number = match gateway {
        IpAddr::V4(address) if address.is_link_local() => 0,
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) if address.is_unicast_link_local() => 0,
        IpAddr::V6(address) => address.to_bits(),
    };
    tables::placement::identity(interface, number)
}
