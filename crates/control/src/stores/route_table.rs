//! The routes of one source, looked up as the kernel does: tables local, main and default,
//! longest prefix first.
//!
//! There is one hash map for each prefix length instead of a trie. A lookup needs *all* matching
//! prefixes, from the longest to the shortest and from two sources, because routes with dead next
//! hops are skipped. That is 33 probes for a VTEP whose route changed, and none for a frame.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::Arc;

use netlink::{Route, RouteNextHop, RouteTarget, network};
use tables::hash::{TableHasher, TableMap};

use crate::stores::epoch_map::Epoch;
use crate::stores::intern::Shared;

/// `RT_TABLE_LOCAL`, `RT_TABLE_MAIN` and `RT_TABLE_DEFAULT`, in the order of the kernel's default
/// rules (`fib_default_rules_init()`, `net/ipv4/fib_rules.c`).
pub(crate) const TABLES: [u32; 3] = [255, 254, 253];
/// `RT_TABLE_LOCAL`.
pub(crate) const LOCAL: u32 = 255;
/// Added to the number of a table for routes that match a certain TOS, or a source prefix, only.
pub(crate) const SELECTIVE: u32 = 1 << 31;

/// `RTN_UNICAST` and `RTN_BLACKHOLE` (`include/uapi/linux/rtnetlink.h`).
pub(crate) const RTN_UNICAST: u8 = 1;
pub(crate) const RTN_BLACKHOLE: u8 = 6;

/// What identifies a route among those to the same prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The kernel has several routes to a prefix, with different metrics, and even with the same
    /// one (`ip route append`).
    Metric,
    /// zebra reports only the route that it selected. An update replaces it, whatever its metric
    /// is.
    Prefix,
}

/// The attributes of a route that forwarding needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FibRoute {
    pub(crate) priority: u32,
    pub(crate) route_type: u8,
    pub(crate) mtu: Option<u32>,
    pub(crate) mtu_locked: bool,
    pub(crate) hop_limit: Option<u32>,
    tos: u8,
    source: Option<(IpAddr, u8)>,
    /// Shared by all routes with the same next hops.
    pub(crate) via: Arc<RouteTarget>,
    epoch: Epoch,
}

type Length = HashMap<IpAddr, Vec<FibRoute>, BuildHasherDefault<TableHasher>>;

/// The routes of one source.
#[derive(Debug)]
pub(crate) struct RouteTable {
    identity: Identity,
    /// By table, whether it is IPv6, and prefix length. Lengths without routes are absent.
    lengths: BTreeMap<(u32, bool, u8), Length>,
    targets: Shared<RouteTarget>,
}

/// Table, network and prefix length of a route.
pub(crate) type Prefix = (u32, IpAddr, u8);

/// Table and prefix of a route; `None` for routes that are not used. Used are routes in the tables
/// of the default rules. Routes for a certain TOS, or from a source prefix, are stored in tables of
/// their own ([`SELECTIVE`]).
fn prefix_of(route: &Route) -> Option<Prefix> {
    let (destination, length) = (route.destination, route.prefix_length);
    let bits = if destination.is_ipv4() { 32 } else { 128 };
    if route.cloned || !TABLES.contains(&route.table) || length > bits {
        return None;
    }
    let is_selective = route.tos != 0 || route.source.is_some();
    let table = if is_selective { route.table | SELECTIVE } else { route.table };
    Some((table, network(destination, length), length))
}

impl RouteTable {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity, lengths: BTreeMap::new(), targets: Shared::default() }
    }

    /// Number of prefixes with routes.
    pub(crate) fn prefixes(&self) -> usize {
        self.lengths.values().map(HashMap::len).sum()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lengths.values().flat_map(HashMap::values).map(Vec::len).sum()
    }

    /// Inserts, replaces or confirms a route. Returns whether anything changed.
    pub(crate) fn insert(&mut self, route: &Route, epoch: Epoch) -> bool {
        let Some((table, destination, length)) = prefix_of(route) else { return false };
        let routes = self
            .lengths
            .entry((table, destination.is_ipv6(), length))
            .or_default()
            .entry(destination)
            .or_default();
        let new = FibRoute {
            priority: route.priority,
            // A blackhole by an object may be replaced by another kind of object.
            route_type: match (&route.via, route.route_type) {
                (RouteTarget::Object(_), RTN_BLACKHOLE) => RTN_UNICAST,
                (_, other) => other,
            },
            mtu: route.mtu,
            mtu_locked: route.mtu_locked,
            hop_limit: route.hop_limit,
            tos: route.tos,
            source: route.source,
            via: self.targets.share(&route.via),
            epoch,
        };
        if self.identity == Identity::Prefix {
            let changed = !matches!(routes.as_slice(), [old] if old.same_as(&new));
            *routes = vec![new];
            return changed;
        }
        if let Some(known) = routes.iter_mut().find(|old| old.same_as(&new)) {
            known.epoch = epoch;
            return false;
        }
        // A second route of the same metric is an additional one. It replaces an existing one in
        // two cases: the message has the replace flag, or a dump has not confirmed the existing
        // one.
        let replaced = routes
            .iter_mut()
            .find(|old| old.is_beside(&new) && (route.replace || old.epoch != epoch));
        match replaced {
            Some(old) => *old = new,
            None => {
                let is_before =
                    |old: &FibRoute| (old.priority, route.prepend) < (new.priority, true);
                let place = routes.partition_point(is_before);
                routes.insert(place, new);
            }
        }
        true
    }

    /// Whether a message about an IPv6 route of the kernel does not show what the routes are then:
    /// there is another route of the same prefix and metric. An IPv6 route gains and loses next hops
    /// one by one.
    pub(crate) fn is_ambiguous(&self, route: &Route) -> bool {
        let Some((table, destination @ IpAddr::V6(_), length)) = prefix_of(route) else {
            return false;
        };
        let at = self.lengths.get(&(table, true, length)).and_then(|at| at.get(&destination));
        let other = |old: &FibRoute| {
            (old.priority, old.source) == (route.priority, route.source) && *old.via != route.via
        };
        at.is_some_and(|routes| routes.iter().any(other))
    }

    /// Removes a route. Returns whether there was one. Of IPv6 routes of the kernel, only one with
    /// the same next hops.
    pub(crate) fn remove(&mut self, route: &Route) -> bool {
        let Some((table, destination, length)) = prefix_of(route) else { return false };
        let identity = self.identity;
        let only_equal = identity == Identity::Metric && destination.is_ipv6();
        self.edit((table, destination, length), |routes| {
            if identity == Identity::Prefix {
                routes.clear();
                return;
            }
            let key = (route.priority, route.tos, route.source);
            let of_metric = |old: &FibRoute| (old.priority, old.tos, old.source) == key;
            let place = routes
                .iter()
                .position(|old| of_metric(old) && *old.via == route.via)
                .or_else(|| routes.iter().position(of_metric).filter(|_| !only_equal));
            if let Some(place) = place {
                routes.remove(place);
            }
        })
    }

    /// Removes all routes of a prefix. Returns whether there were any.
    pub(crate) fn remove_prefix(&mut self, prefix: Prefix) -> bool {
        self.edit(prefix, Vec::clear)
    }

    /// The prefix of this route, if it has no route any more.
    pub(crate) fn prefix_without_route(&self, route: &Route) -> Option<Prefix> {
        let (table, destination, length) = prefix_of(route)?;
        let held = self
            .lengths
            .get(&(table, destination.is_ipv6(), length))
            .is_some_and(|at| at.contains_key(&destination));
        (!held).then_some((table, destination, length))
    }

    /// Removes the next hops of an interface that went down or was deleted from all routes. Routes
    /// without next hops are removed: the kernel flushes those of IPv4 without a notification
    /// (`fib_sync_down_dev()`). Returns the prefixes that have no route any more.
    pub(crate) fn interface_down(&mut self, ifindex: u32) -> Vec<Prefix> {
        let mut pruned = Vec::new();
        // Targets that no route uses are skipped. The others stay allocated, so their addresses
        // identify them below.
        for target in self.targets.iter().filter(|target| Arc::strong_count(target) > 1) {
            if let RouteTarget::NextHops(hops) = &**target
                && hops.iter().any(|hop| hop.ifindex == ifindex)
            {
                let left: Vec<_> =
                    hops.iter().filter(|hop| hop.ifindex != ifindex).cloned().collect();
                pruned.push((Arc::as_ptr(target), left));
            }
        }
        let mut left = |hops: Vec<_>| {
            (!hops.is_empty()).then(|| self.targets.share(&RouteTarget::NextHops(hops)))
        };
        let pruned: TableMap<_, _> =
            pruned.into_iter().map(|(target, hops)| (target, left(hops))).collect();
        if pruned.is_empty() {
            return Vec::new();
        }
        self.retain(|route| match pruned.get(&Arc::as_ptr(&route.via)) {
            None => true,
            Some(None) => false,
            Some(Some(left)) => {
                route.via = Arc::clone(left);
                true
            }
        })
    }

    /// Removes the routes with this next-hop object. Returns whether there were any, and the prefixes
    /// that have no route any more.
    pub(crate) fn object_gone(&mut self, id: u32) -> (bool, Vec<Prefix>) {
        let gone = RouteTarget::Object(id);
        let is_used = |target: &Arc<_>| **target == gone && Arc::strong_count(target) > 1;
        if !self.targets.iter().any(is_used) {
            return (false, Vec::new());
        }
        let mut removed = false;
        let emptied = self.retain(|route| {
            removed |= *route.via == gone;
            *route.via != gone
        });
        (removed, emptied)
    }

    /// Removes the routes that `epoch` has not confirmed. Returns their number, and the prefixes
    /// that have no route any more.
    pub(crate) fn sweep(&mut self, epoch: Epoch) -> (usize, Vec<Prefix>) {
        let mut swept = 0;
        let emptied = self.retain(|route| {
            swept += usize::from(route.epoch != epoch);
            route.epoch == epoch
        });
        (swept, emptied)
    }

    /// All routes of a table that match an address: longest prefix first, then lowest metric.
    pub(crate) fn matching(
        &self,
        table: u32,
        address: IpAddr,
    ) -> impl Iterator<Item = (u8, &[FibRoute])> + '_ {
        let is_ipv6 = address.is_ipv6();
        let lengths = self.lengths.range((table, is_ipv6, 0)..=(table, is_ipv6, u8::MAX));
        lengths.rev().filter_map(move |((.., length), routes)| {
            Some((*length, routes.get(&network(address, *length))?.as_slice()))
        })
    }

    /// The next hops in the routes themselves, without those of next-hop objects.
    pub(crate) fn next_hops(&self) -> impl Iterator<Item = &RouteNextHop> {
        // Targets that no route uses any more are kept for a while.
        let used = self.targets.iter().filter(|target| Arc::strong_count(target) > 1);
        used.flat_map(|target| match &**target {
            RouteTarget::NextHops(hops) => hops.as_slice(),
            RouteTarget::Object(_) => &[],
        })
    }

    fn edit(
        &mut self,
        (table, destination, length): Prefix,
        change: impl FnOnce(&mut Vec<FibRoute>),
    ) -> bool {
        let key = (table, destination.is_ipv6(), length);
        let Some(at) = self.lengths.get_mut(&key) else { return false };
        let Some(routes) = at.get_mut(&destination) else { return false };
        let before = routes.len();
        change(routes);
        let changed = routes.len() != before;
        if routes.is_empty() {
            at.remove(&destination);
        }
        if at.is_empty() {
            self.lengths.remove(&key);
        }
        changed
    }

    /// Keeps the routes for which `keep` returns true; it may change them. Returns the prefixes
    /// that have no route any more.
    fn retain(&mut self, mut keep: impl FnMut(&mut FibRoute) -> bool) -> Vec<Prefix> {
        let mut emptied = Vec::new();
        self.lengths.retain(|(table, _, length), at| {
            at.retain(|destination, routes| {
                routes.retain_mut(&mut keep);
                if routes.is_empty() {
                    emptied.push((*table, *destination, *length));
                }
                !routes.is_empty()
            });
            !at.is_empty()
        });
        emptied
    }
}

impl FibRoute {
    fn same_as(&self, other: &Self) -> bool {
        let metrics = |route: &Self| (route.mtu, route.mtu_locked, route.hop_limit);
        self.is_beside(other)
            && metrics(self) == metrics(other)
            && (self.route_type, &self.via) == (other.route_type, &other.via)
    }

    /// Whether both have the same metric, TOS and source, so that one can replace the other.
    fn is_beside(&self, other: &Self) -> bool {
        (self.priority, self.tos, self.source) == (other.priority, other.tos, other.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_link(ifindex: u32) -> RouteNextHop {
        RouteNextHop { ifindex, gateway: None, weight: 1, flags: 0, vni: None, encapsulation: None }
    }

    fn route(destination: &str, length: u8, priority: u32, ifindex: u32) -> Route {
        let via = RouteTarget::NextHops(vec![on_link(ifindex)]);
        Route { priority, ..Route::new(destination.parse().unwrap(), length, via) }
    }

    fn interfaces(fib: &RouteTable, address: &str) -> Vec<(u8, Vec<u32>)> {
        fib.matching(254, address.parse().unwrap())
            .map(|(length, routes)| {
                let of = |route: &FibRoute| match &*route.via {
                    RouteTarget::NextHops(hops) => hops[0].ifindex,
                    RouteTarget::Object(id) => *id,
                };
                (length, routes.iter().map(of).collect())
            })
            .collect()
    }

    #[test]
    fn longest_prefix_first_then_the_lowest_metric() {
        let epoch = Epoch::default();
        let mut fib = RouteTable::new(Identity::Metric);
        for (destination, length, priority, ifindex) in [
            ("0.0.0.0", 0, 0, 1),
            ("10.0.0.0", 8, 20, 2),
            ("10.0.0.0", 8, 10, 3),
            ("10.0.0.1", 32, 0, 4),
            ("10.0.0.0", 31, 0, 5),
            ("11.0.0.0", 8, 0, 6),
        ] {
            assert!(fib.insert(&route(destination, length, priority, ifindex), epoch));
        }
        assert_eq!(
            interfaces(&fib, "10.0.0.1"),
            [(32, vec![4]), (31, vec![5]), (8, vec![3, 2]), (0, vec![1])]
        );
        assert_eq!(interfaces(&fib, "192.0.2.1"), [(0, vec![1])]);
        assert!(fib.remove(&route("10.0.0.1", 32, 0, 4)));
        assert!(!fib.remove(&route("10.0.0.1", 32, 0, 4)));
        assert_eq!(interfaces(&fib, "10.0.0.1").first().unwrap().0, 31);
    }

    #[test]
    fn the_kernel_appends_and_replaces_but_zebra_only_replaces() {
        let epoch = Epoch::default();
        let mut kernel = RouteTable::new(Identity::Metric);
        kernel.insert(&route("10.0.0.0", 8, 20, 1), epoch);
        kernel.insert(&route("10.0.0.0", 8, 20, 2), epoch);
        assert_eq!(interfaces(&kernel, "10.0.0.1"), [(8, vec![1, 2])]);
        let prepended = Route { prepend: true, ..route("10.0.0.0", 8, 20, 4) };
        kernel.insert(&prepended, epoch);
        assert_eq!(interfaces(&kernel, "10.0.0.1"), [(8, vec![4, 1, 2])]);
        kernel.remove(&prepended);
        let replacing = Route { replace: true, ..route("10.0.0.0", 8, 20, 3) };
        kernel.insert(&replacing, epoch);
        assert_eq!(interfaces(&kernel, "10.0.0.1"), [(8, vec![3, 2])]);
        assert!(kernel.remove(&route("10.0.0.0", 8, 20, 2)));
        assert_eq!(interfaces(&kernel, "10.0.0.1"), [(8, vec![3])]);

        let mut zebra = RouteTable::new(Identity::Prefix);
        zebra.insert(&route("10.0.0.0", 8, 20, 1), epoch);
        assert!(zebra.insert(&route("10.0.0.0", 8, 30, 2), epoch));
        assert!(!zebra.insert(&route("10.0.0.0", 8, 30, 2), epoch));
        assert_eq!(interfaces(&zebra, "10.0.0.1"), [(8, vec![2])]);
        // The legacy encoding deletes a route without its metric.
        assert!(zebra.remove(&route("10.0.0.0", 8, 0, 9)));
        assert_eq!(zebra.len(), 0);
    }

    #[test]
    fn a_dump_replaces_what_changed_unheard_and_sweeps_the_rest() {
        let mut epoch = Epoch::default();
        let mut fib = RouteTable::new(Identity::Metric);
        fib.insert(&route("10.0.0.0", 8, 20, 1), epoch);
        fib.insert(&route("10.1.0.0", 16, 20, 1), epoch);
        epoch.advance();
        fib.insert(&route("10.0.0.0", 8, 20, 2), epoch);
        assert_eq!(fib.sweep(epoch), (1, vec![(254, IpAddr::from([10, 1, 0, 0]), 16)]));
        assert_eq!(interfaces(&fib, "10.1.0.1"), [(8, vec![2])]);
    }

    #[test]
    fn ipv6_routes_are_apart_and_lose_next_hops_one_by_one() {
        let epoch = Epoch::default();
        let mut fib = RouteTable::new(Identity::Metric);
        let both = RouteTarget::NextHops(vec![on_link(1), on_link(2)]);
        let whole = Route { via: both, ..route("2001:db8::", 32, 1024, 0) };
        assert!(fib.insert(&route("2001:db8::", 16, 0, 3), epoch));
        assert!(fib.insert(&whole, epoch));
        assert!(fib.insert(&route("::", 0, 0, 4), epoch));
        let lengths = |fib: &RouteTable| {
            fib.matching(254, "2001:db8::1".parse().unwrap())
                .map(|(length, _)| length)
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(&fib), [32, 16, 0]);
        assert_eq!(interfaces(&fib, "32.1.13.184"), [], "another family");
        // The kernel says which next hop is gone, and not which are left.
        let one = route("2001:db8::", 32, 1024, 1);
        assert!(fib.is_ambiguous(&one) && !fib.remove(&one));
        assert!(!fib.is_ambiguous(&whole) && fib.remove(&whole));
        assert_eq!(lengths(&fib), [16, 0]);
    }

    #[test]
    fn an_interface_that_goes_down_takes_its_routes_along() {
        let epoch = Epoch::default();
        let mut fib = RouteTable::new(Identity::Metric);
        fib.insert(&route("10.0.0.0", 8, 0, 1), epoch);
        let both = RouteTarget::NextHops(vec![on_link(1), on_link(2)]);
        fib.insert(&Route { via: both, ..route("10.1.0.0", 16, 0, 0) }, epoch);
        assert_eq!(fib.interface_down(1), [(254, IpAddr::from([10, 0, 0, 0]), 8)]);
        assert!(fib.interface_down(1).is_empty());
        assert_eq!(interfaces(&fib, "10.1.0.1"), [(16, vec![2])]);
    }

    #[test]
    fn other_tables_are_not_known_and_routes_by_tos_apart() {
        let epoch = Epoch::default();
        let mut fib = RouteTable::new(Identity::Metric);
        let base = route("10.0.0.0", 8, 0, 1);
        for ignored in
            [Route { table: 100, ..base.clone() }, Route { cloned: true, ..base.clone() }]
        {
            assert!(!fib.insert(&ignored, epoch));
        }
        assert_eq!(fib.len(), 0);
        let address = IpAddr::from([10, 0, 0, 1]);
        for tos in [4, 8] {
            assert!(fib.insert(&Route { tos, ..base.clone() }, epoch));
        }
        assert_eq!(
            (fib.matching(254, address).count(), fib.matching(254 | SELECTIVE, address).count()),
            (0, 1)
        );
        assert!(fib.remove(&Route { tos: 4, ..base.clone() }));
        assert_eq!(
            fib.matching(254 | SELECTIVE, address).count(),
            1,
            "the other one is still there"
        );
        assert!(fib.remove(&Route { tos: 8, ..base }));
        assert_eq!(fib.len(), 0);
    }
}
