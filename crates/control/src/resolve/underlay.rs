//! From the address of a VTEP to its next hops.
//!
//! Routes are selected by the kernel's rules: tables in the order of the default rules, longest
//! prefix, lowest metric; dead next hops are skipped. There are two additions:
//!
//! - While zebra's FPM session is live, its version of a prefix comes before the kernel's. If all
//!   its next hops are dead, the kernel's version is used.
//! - A next hop without carrier is not used. With next-hop groups, zebra 10.3 still reports it. The
//!   kernel also keeps it, unless `ignore_routes_with_linkdown` is set.
//!
//! A default route is followed like any other, as by kernel VXLAN, even if it leads to a management
//! network. [`Hop::by_default`] marks its next hops: their frames are counted and a warning is
//! shown. When a VTEP is reached by the default route:
//!
//! | the VTEP's own route | kernel VXLAN | here |
//! |---|---|---|
//! | there never was one, or zebra removed it | the default route | the same |
//! | its interfaces are down or gone: the kernel flushes it, or marks its next hops dead | the default route | the same |
//! | it exists, and no interface has carrier | sent there and lost, but for ICMP errors about its MTU | `no_route`, and the same errors |
//! | the same, with `ignore_routes_with_linkdown` | the default route | `no_route` |
//!
//! Only the last line differs, on purpose. zebra removes the route a moment later if there is no
//! other path (`fib_lookup_good_nhc()`, `net/ipv4/fib_trie.c`). Until then, a leaf that lost its
//! fabric would send its tunnels into the management network.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use netlink::{Link, RouteNextHop, RouteTarget};
use tables::hash::TableMap;

use crate::eligibility::ineligible::UnusableRoute;
use crate::resolve::link_local::LinkLocal;
use crate::resolve::weights;
use crate::stores::Stores;
use crate::stores::intern::Shared;
use crate::stores::links::{Links, impairs, is_up};
use crate::stores::resolved_route::{Hop, ResolvedRoute};
use crate::stores::route_table::{FibRoute, RTN_BLACKHOLE, RTN_UNICAST, SELECTIVE, TABLES};
use crate::stores::routes::Routes;

/// `RTN_LOCAL` (`include/uapi/linux/rtnetlink.h`), and other types of routes.
const RTN_LOCAL: u8 = 2;
const RTN_PROHIBIT: u8 = 8;
const RTN_THROW: u8 = 9;
/// `RTNH_F_DEAD`.
const RTNH_F_DEAD: u8 = 1;
/// `RTNH_F_LINKDOWN`.
const RTNH_F_LINKDOWN: u8 = 16;
/// How many times in a row the gateway of a route may be looked up in the routes.
const RECURSION: usize = 4;
/// Everything that decides how an address is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Underlay<'a> {
    pub(crate) links: &'a Links,
    /// The leaf's own addresses.
    pub(crate) own: &'a BTreeSet<IpAddr>,
    /// The preferred source first.
    pub(crate) sources: [&'a Routes; 2],
    /// The link-local gateways of the kernel's next hops.
    pub(crate) link_local: &'a LinkLocal<'a>,
}

/// The result of following one route.
enum Verdict {
    /// Use this.
    Reached(ResolvedRoute),
    /// All its next hops are gone: try the next route.
    Dead,
    /// All next hops that are left lack carrier. The smallest of their MTUs.
    Down(u32),
    /// A `throw` route: continue with the next table.
    Throw,
}

/// A route that matches an address.
struct Candidate<'a> {
    /// Index in [`TABLES`].
    table: usize,
    length: u8,
    /// Index in [`Underlay::sources`].
    source: usize,
    route: &'a FibRoute,
}

/// The key of a candidate: equal keys lead to equal results.
type Offer = (usize, u8, usize, u8, ([Option<u32>; 2], bool), *const RouteTarget);

impl Candidate<'_> {
    fn offer(&self) -> Offer {
        let Self { table, length, source, route } = self;
        let metrics = ([route.mtu, route.hop_limit], route.mtu_locked);
        (*table, *length, *source, route.route_type, metrics, Arc::as_ptr(&route.via))
    }
}

/// Resolves the routes to many addresses at one moment. Equal candidates are followed once.
pub(crate) struct RouteResolver<'a> {
    underlay: Underlay<'a>,
    followed: TableMap<(Vec<Offer>, bool), Arc<ResolvedRoute>>,
}

impl<'a> RouteResolver<'a> {
    pub(crate) fn new(underlay: Underlay<'a>) -> Self {
        Self { underlay, followed: TableMap::default() }
    }

    /// The route to `address` as [`Underlay::resolve`] resolves it. Equal routes share one `Arc`.
    pub(crate) fn resolve(
        &mut self,
        address: IpAddr,
        shared: &mut Shared<ResolvedRoute>,
    ) -> Arc<ResolvedRoute> {
        let underlay = self.underlay;
        if underlay.own.contains(&address) {
            return shared.share(&underlay.resolve(address));
        }
        let candidates = underlay.candidates(address);
        let selective = underlay.has_selective_routes(address);
        let key = (candidates.iter().map(Candidate::offer).collect(), selective);
        if let Some(route) = self.followed.get(&key) {
            return Arc::clone(route);
        }
        let route = shared.share(&ResolvedRoute {
            selective,
            ..underlay.try_each(&candidates, address, RECURSION)
        });
        // Otherwise the result is valid for this address only.
        if !route.recursive && route.hops.iter().all(|hop| hop.gateway != address) {
            self.followed.insert(key, Arc::clone(&route));
        }
        route
    }
}

impl<'a> Underlay<'a> {
    pub(crate) fn new(stores: &'a Stores, link_local: &'a LinkLocal<'a>) -> Self {
        Self {
            links: &stores.links,
            own: stores.addresses.own(),
            sources: stores.routes.by_preference(),
            link_local,
        }
    }

    /// Resolves the route to `address`.
    pub(crate) fn resolve(&self, address: IpAddr) -> ResolvedRoute {
        ResolvedRoute {
            selective: self.has_selective_routes(address),
            ..self.lookup(address, RECURSION)
        }
    }

    fn has_selective_routes(&self, address: IpAddr) -> bool {
        let mut tables = TABLES.iter().map(|table| table | SELECTIVE);
        tables.any(|table| {
            self.sources.iter().any(|routes| routes.fib.matching(table, address).next().is_some())
        })
    }

    fn lookup(&self, address: IpAddr, depth: usize) -> ResolvedRoute {
        if self.own.contains(&address) {
            return ResolvedRoute {
                obstacle: Some(UnusableRoute::OwnAddress),
                ..ResolvedRoute::default()
            };
        }
        self.try_each(&self.candidates(address), address, depth)
    }

    /// All matching routes in the order in which they are tried: by table, then by prefix length,
    /// longest first. Within a prefix, sources keep their order.
    fn candidates(&self, address: IpAddr) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::new();
        for (table, number) in TABLES.into_iter().enumerate() {
            for (source, routes) in self.sources.into_iter().enumerate() {
                for (length, routes) in routes.fib.matching(number, address) {
                    candidates.extend(routes.iter().map(|route| Candidate {
                        table,
                        length,
                        source,
                        route,
                    }));
                }
            }
        }
        candidates.sort_by_key(|candidate| {
            (candidate.table, Reverse(candidate.length), candidate.source)
        });
        candidates
    }

    fn try_each(
        &self,
        candidates: &[Candidate<'_>],
        address: IpAddr,
        depth: usize,
    ) -> ResolvedRoute {
        let mut lookup =
            Lookup { underlay: self, address, depth, uplinks: BTreeSet::new(), recursive: false };
        let found = lookup.try_each(candidates);
        ResolvedRoute { uplinks: lookup.uplinks, recursive: lookup.recursive, ..found }
    }

    fn name(&self, ifindex: u32) -> &str {
        self.links.get(ifindex).map_or("", |link| &link.name)
    }
}

/// The lookup of one address.
struct Lookup<'a> {
    underlay: &'a Underlay<'a>,
    address: IpAddr,
    /// How many more times a gateway may be looked up.
    depth: usize,
    /// As in [`ResolvedRoute`], of all routes that were tried.
    uplinks: BTreeSet<u32>,
    recursive: bool,
}

impl Lookup<'_> {
    fn try_each(&mut self, candidates: &[Candidate<'_>]) -> ResolvedRoute {
        let mut thrown = None;
        'prefix: for routes in
            candidates.chunk_by(|a, b| (a.table, a.length) == (b.table, b.length))
        {
            if routes.first().is_some_and(|first| thrown == Some(first.table)) {
                continue;
            }
            let mut down_mtu = None;
            for Candidate { table, length, source, route } in routes {
                let Some(source) = self.underlay.sources.get(*source) else { continue };
                match self.follow(source, route) {
                    Verdict::Reached(mut found) => {
                        found.hops.iter_mut().for_each(|hop| hop.by_default |= *length == 0);
                        return found;
                    }
                    Verdict::Down(mtu) => down_mtu = down_mtu.or(Some(mtu)),
                    Verdict::Dead => {}
                    Verdict::Throw => {
                        thrown = Some(*table);
                        continue 'prefix;
                    }
                }
            }
            if down_mtu.is_some() {
                return ResolvedRoute { down_mtu, ..ResolvedRoute::default() };
            }
        }
        ResolvedRoute::default()
    }

    fn follow(&mut self, source: &Routes, route: &FibRoute) -> Verdict {
        let unusable = |obstacle| {
            let obstacle = Some(obstacle);
            Verdict::Reached(ResolvedRoute { obstacle, ..ResolvedRoute::default() })
        };
        match route.route_type {
            RTN_UNICAST => self.follow_unicast(source, route),
            RTN_LOCAL => unusable(UnusableRoute::OwnAddress),
            // The kernel drops.
            RTN_BLACKHOLE..=RTN_PROHIBIT => Verdict::Reached(ResolvedRoute::default()),
            RTN_THROW => Verdict::Throw,
            other => unusable(UnusableRoute::RouteType(other)),
        }
    }

    fn follow_unicast(&mut self, source: &Routes, route: &FibRoute) -> Verdict {
        let Some(hops) = weights::next_hops(source, &route.via) else {
            return Verdict::Reached(ResolvedRoute::default());
        };
        let FibRoute { hop_limit, mtu_locked, .. } = *route;
        let mut found = ResolvedRoute { hop_limit, mtu_locked, ..ResolvedRoute::default() };
        let mut weighted = Vec::new();
        let mut down_mtu: Option<u32> = None;
        for (hop, weight) in hops {
            if hop.ifindex == 0 {
                let via = self.gateway_route(hop);
                found.obstacle = found.obstacle.or(via.obstacle);
                let scaled = |hop: Hop| (weight.saturating_mul(hop.weight.into()), hop);
                weighted.extend(via.hops.into_iter().map(scaled));
                continue;
            }
            let Some(link) = self.underlay.links.get(hop.ifindex) else { continue };
            let obstacle = self.obstacle(hop, link);
            if obstacle.is_none() {
                self.uplinks.insert(hop.ifindex);
            }
            if !is_up(link) || hop.flags & RTNH_F_DEAD != 0 {
                continue;
            }
            if !link.is_operational() || hop.flags & RTNH_F_LINKDOWN != 0 {
                down_mtu = Some(down_mtu.unwrap_or(u32::MAX).min(mtu(link, route.mtu)));
                continue;
            }
            found.obstacle = found.obstacle.or(obstacle);
            weighted.push((weight, self.live_hop(hop, link, route.mtu)));
        }
        if weighted.is_empty() && found.obstacle.is_none() {
            return down_mtu.map_or(Verdict::Dead, Verdict::Down);
        }
        found.hops = weights::balance(weighted);
        // By name, because indices change when links are created again.
        let order = |hop: &Hop| (self.underlay.name(hop.ifindex), hop.gateway);
        found.hops.sort_by(|a, b| order(a).cmp(&order(b)));
        Verdict::Reached(found)
    }

    /// The route to the gateway of a next hop without an interface.
    fn gateway_route(&mut self, hop: &RouteNextHop) -> ResolvedRoute {
        self.recursive = true;
        let (Some(gateway), Some(depth)) = (hop.gateway, self.depth.checked_sub(1)) else {
            return ResolvedRoute::default();
        };
        if gateway == self.address {
            return ResolvedRoute::default();
        }
        let via = self.underlay.lookup(gateway, depth);
        self.uplinks.extend(&via.uplinks);
        via
    }

    /// Why vtepd cannot send through a next hop; `None` if it can.
    fn obstacle(&self, hop: &RouteNextHop, link: &Link) -> Option<UnusableRoute> {
        let device = || link.name.clone();
        match (hop.vni, hop.encapsulation) {
            // An EVPN type-5 route leads through an overlay.
            (Some(_), _) => Some(UnusableRoute::Tunnel { device: device() }),
            (None, Some(kind)) => Some(UnusableRoute::Encapsulation { device: device(), kind }),
            (None, None) => self.underlay.links.obstacle(link),
        }
    }

    fn live_hop(&self, hop: &RouteNextHop, link: &Link, route_mtu: Option<u32>) -> Hop {
        let gateway = hop.gateway.unwrap_or(self.address);
        Hop {
            ifindex: hop.ifindex,
            gateway: self.underlay.link_local.canonical(hop.ifindex, gateway),
            weight: 1,
            mtu: mtu(link, route_mtu),
            by_default: false,
            impaired: impairs(link),
        }
    }
}

/// The MTU of a next hop: that of its interface, or of the route if it is smaller.
fn mtu(link: &Link, of_route: Option<u32>) -> u32 {
    of_route.unwrap_or(u32::MAX).min(link.mtu)
}

#[cfg(test)]
mod tests {
    use netlink::{Link, LinkKind, Route};
    use proptest::prelude::*;
    use wire::MacAddr;

    use super::*;
    use crate::stores::epoch_map::Epoch;
    use crate::stores::neighbours::Neighbours;
    use crate::stores::route_table::Identity;

    fn link(ifindex: u32, flags: u32) -> Link {
        Link {
            ifindex,
            name: format!("up{ifindex}"),
            hardware_type: 1,
            flags,
            mtu: 1500 + ifindex,
            mac: Some(MacAddr([2; 6])),
            kind: LinkKind::Veth,
            ..Link::default()
        }
    }

    const fn address(last: u8) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last))
    }

    /// Interface 0 means a gateway that has to be looked up.
    fn hop() -> impl Strategy<Value = RouteNextHop> {
        let gateway = prop::option::of((0u8..8).prop_map(address));
        (0u32..4, gateway, 1u16..3).prop_map(|(ifindex, gateway, weight)| RouteNextHop {
            ifindex,
            gateway,
            weight,
            flags: 0,
            vni: None,
            encapsulation: None,
        })
    }

    fn route() -> impl Strategy<Value = Route> {
        let kind = prop_oneof![6 => Just(1u8), 1 => Just(2), 1 => Just(6), 1 => Just(9)];
        let prefix =
            (0u8..8, prop_oneof![3 => Just(32u8), 1 => Just(30), 1 => Just(24), 1 => Just(0)]);
        let table = prop_oneof![5 => Just(254u32), 1 => Just(253), 1 => Just(255)];
        let via = prop::collection::vec(hop(), 0..3);
        (prefix, table, kind, 0u32..2, prop::option::of(1200u32..1203), via).prop_map(
            |((last, length), table, route_type, priority, mtu, via)| Route {
                table,
                priority,
                route_type,
                mtu,
                ..Route::new(address(last), length, RouteTarget::NextHops(via))
            },
        )
    }

    #[test]
    fn next_hops_are_in_the_order_of_their_links_names() {
        let (mut links, epoch) = (Links::default(), Epoch::default());
        for (ifindex, name) in [(5, "up2"), (7, "up1")] {
            links.insert(Link { name: name.into(), ..link(ifindex, 0x1_0001) }, epoch);
        }
        let hops = [5, 7].map(|ifindex| RouteNextHop {
            ifindex,
            gateway: Some(address(9)),
            weight: 1,
            flags: 0,
            vni: None,
            encapsulation: None,
        });
        let mut kernel = Routes::new(Identity::Metric);
        let route = Route::new(address(1), 32, RouteTarget::NextHops(hops.into()));
        kernel.fib.insert(&route, epoch);
        let (own, fpm) = (BTreeSet::new(), Routes::new(Identity::Prefix));
        let neighbours = Neighbours::default();
        let link_local = LinkLocal::new(&kernel, &neighbours);
        let underlay = Underlay {
            links: &links,
            own: &own,
            sources: [&fpm, &kernel],
            link_local: &link_local,
        };
        let route = underlay.resolve(address(1));
        assert_eq!(route.hops.iter().map(|hop| hop.ifindex).collect::<Vec<_>>(), [7, 5]);
    }

    proptest! {
        /// A resolver that shares results gives the same result as a single lookup.
        #[test]
        fn a_resolver_gives_the_result_of_a_single_lookup(
            kernel in prop::collection::vec(route(), 0..12),
            fpm in prop::collection::vec(route(), 0..8),
            flags in prop::array::uniform3(prop_oneof![4 => Just(0x1_0001u32), 1 => Just(1), 1 => Just(0)]),
            own in 0u8..16,
        ) {
            let (mut links, epoch) = (Links::default(), Epoch::default());
            for (ifindex, flags) in (1..).zip(flags) {
                links.insert(link(ifindex, flags), epoch);
            }
            let routes = |identity, routes: &[Route]| {
                let mut all = Routes::new(identity);
                for route in routes {
                    all.fib.insert(route, epoch);
                }
                all
            };
            let (kernel, fpm) = (routes(Identity::Metric, &kernel), routes(Identity::Prefix, &fpm));
            let own = BTreeSet::from([address(own)]);
            let neighbours = Neighbours::default();
        let link_local = LinkLocal::new(&kernel, &neighbours);
            let underlay = Underlay { links: &links, own: &own, sources: [&fpm, &kernel], link_local: &link_local };
            let (mut resolver, mut shared) = (RouteResolver::new(underlay), Shared::default());
            for last in 0..12 {
                let route = resolver.resolve(address(last), &mut shared);
                prop_assert_eq!(&*route, &underlay.resolve(address(last)), "{}", address(last));
            }
        }
    }
}
