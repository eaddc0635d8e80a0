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
//! | it exists, and no interface has carrier | sent there and lost | `no_route` |
//! | the same, with `ignore_routes_with_linkdown` | the default route | `no_route` |
//!
//! Only the last line differs, on purpose. zebra removes the route a moment later if there is no
//! other path (`fib_lookup_good_nhc()`, `net/ipv4/fib_trie.c`). Until then, a leaf that lost its
//! fabric would send its tunnels into the management network.
//!
//! For BGP unnumbered, the kernel's next hops have the neighbour's link-local IPv6 address, while
//! zebra's FPM messages have 169.254.0.1. Both are the same next hop. If the kernel has exactly one
//! link-local gateway on an interface, [`LinkLocal`] substitutes it for 169.254.0.1.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use netlink::{NextHopKind, RouteNextHop, RouteTarget};
use tables::hash::TableMap;

use crate::eligibility::ineligible::UnusableRoute;
use crate::state::Adjacent;
use crate::stores::epoch_map::EpochMap;
use crate::stores::intern::Shared;
use crate::stores::links::{Links, impairs, is_up};
use crate::stores::route_table::{BY_TOS, FibRoute, Identity, RouteTable, TABLES};

/// `RTNH_F_DEAD` (`include/uapi/linux/rtnetlink.h`).
const RTNH_F_DEAD: u8 = 1;
/// `RTNH_F_LINKDOWN`.
const RTNH_F_LINKDOWN: u8 = 16;
/// How many times in a row the gateway of a route may be looked up in the routes.
const RECURSION: usize = 4;
/// The largest weight of a next hop (`rtnh_hops` has eight bits and counts from 0).
const WEIGHT: u64 = 256;

/// What zebra reports instead of a link-local IPv6 gateway of IPv4 routes (`ipv4_ll` in FRR's
/// `zebra/rt_netlink.c`).
const ZEBRA_LINK_LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 0, 1));

/// The routes of one source, and the next-hop objects that they refer to.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) fib: RouteTable,
    pub(crate) next_hops: EpochMap<u32, NextHopKind>,
}

impl Routes {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { fib: RouteTable::new(identity), next_hops: EpochMap::default() }
    }
}

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

/// The link-local IPv6 gateway of each interface, collected on first use from the kernel's next
/// hops.
///
/// If they have none on an interface, the neighbour with the MAC address that zebra gives to
/// 169.254.0.1 is used: FRR 8.4.4 does not give the kernel an uplink that has returned. Without
/// next-hop objects the kernel has 169.254.0.1 as well, and no address is substituted.
#[derive(Debug)]
pub(crate) struct LinkLocal<'a> {
    kernel: &'a Routes,
    neighbours: &'a EpochMap<(u32, IpAddr), Adjacent>,
    /// `None` for an interface with several.
    gateways: OnceCell<BTreeMap<u32, Option<IpAddr>>>,
}

impl<'a> LinkLocal<'a> {
    pub(crate) const fn new(
        kernel: &'a Routes,
        neighbours: &'a EpochMap<(u32, IpAddr), Adjacent>,
    ) -> Self {
        Self { kernel, neighbours, gateways: OnceCell::new() }
    }

    /// The gateway to use for one that a source reported.
    fn canonical(&self, ifindex: u32, gateway: IpAddr) -> IpAddr {
        if gateway != ZEBRA_LINK_LOCAL {
            return gateway;
        }
        self.gateways
            .get_or_init(|| self.collect())
            .get(&ifindex)
            .copied()
            .flatten()
            .unwrap_or(gateway)
    }

    fn collect(&self) -> BTreeMap<u32, Option<IpAddr>> {
        let objects = self.kernel.next_hops.iter().filter_map(|(_, kind)| match kind {
            NextHopKind::Single(hop) => Some(hop),
            _ => None,
        });
        let mut named = BTreeMap::new();
        // Interfaces on which the kernel's next hops have 169.254.0.1 like zebra's.
        let mut stands_in = BTreeSet::new();
        for hop in objects.chain(self.kernel.fib.next_hops()) {
            if hop.gateway == Some(ZEBRA_LINK_LOCAL) {
                stands_in.insert(hop.ifindex);
            }
            if let Some(gateway) = hop.gateway.filter(is_link_local) {
                note(&mut named, hop.ifindex, gateway);
            }
        }
        if stands_in.is_empty() {
            let mut neighbours = BTreeMap::new();
            for ((ifindex, address), adjacent) in self.neighbours.iter() {
                let stand_in = || self.neighbours.get(&(ifindex, ZEBRA_LINK_LOCAL))?.mac;
                if is_link_local(&address) && adjacent.mac.is_some() && adjacent.mac == stand_in() {
                    note(&mut neighbours, ifindex, address);
                }
            }
            neighbours.extend(named);
            named = neighbours;
        }
        // There may also be a next-hop object that zebra made before it read `no zebra nexthop
        // kernel enable`.
        named.retain(|ifindex, _| !stands_in.contains(ifindex));
        named
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Records a gateway of an interface; `None` if the interface has another one as well.
fn note(gateways: &mut BTreeMap<u32, Option<IpAddr>>, ifindex: u32, gateway: IpAddr) {
    let known = gateways.entry(ifindex).or_insert(Some(gateway));
    *known = known.filter(|known| *known == gateway);
}

/// The route to an address, resolved to next hops.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ResolvedRoute {
    /// The live next hops, sorted by interface name and gateway. If there are none, frames are
    /// dropped, by the kernel as well.
    pub(crate) hops: Vec<Hop>,
    /// The Ethernet interfaces of all next hops, also of those without carrier.
    pub(crate) uplinks: BTreeSet<u32>,
    /// Why vtepd cannot use this route.
    pub(crate) obstacle: Option<UnusableRoute>,
    /// Whether the routes to gateways matter as well.
    pub(crate) recursive: bool,
    /// The TTL that the route sets.
    pub(crate) hop_limit: Option<u32>,
    /// Whether packets on this route have no DF, regardless of the netdev's setting.
    pub(crate) mtu_locked: bool,
    /// Whether there are also routes to it for certain TOS values only.
    pub(crate) by_tos: bool,
}

impl ResolvedRoute {
    /// Whether there is more than one next hop.
    pub(crate) fn is_multipath(&self) -> bool {
        self.hops.len() > 1
    }

    /// The smallest MTU of the next hops.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.hops.iter().map(|hop| hop.mtu).min()
    }

    /// The part on which eligibility and the configuration of VNIs depend.
    pub(crate) fn terms(&self) -> impl PartialEq + '_ {
        (self.obstacle.as_ref(), self.mtu(), self.hop_limit, self.mtu_locked, self.by_tos)
    }
}

/// One live next hop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    pub(crate) ifindex: u32,
    pub(crate) gateway: IpAddr,
    /// 1 to 256.
    pub(crate) weight: u16,
    /// The MTU of the interface, or that of the route if it is smaller.
    pub(crate) mtu: u32,
    /// Whether only a default route (`0.0.0.0/0`) leads here.
    pub(crate) by_default: bool,
    /// The interface's [`impairs`].
    pub(crate) impaired: bool,
}

/// The result of following one route.
enum Verdict {
    /// Use this.
    Reached(ResolvedRoute),
    /// All its next hops are gone: try the next route.
    Dead,
    /// All next hops that are left lack carrier.
    Down,
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

    /// The route to `address` as [`Underlay::reach`] resolves it. Equal routes share one `Arc`.
    pub(crate) fn reach(
        &mut self,
        address: Ipv4Addr,
        shared: &mut Shared<ResolvedRoute>,
    ) -> Arc<ResolvedRoute> {
        let underlay = self.underlay;
        if underlay.own.contains(&IpAddr::V4(address)) {
            return shared.share(&underlay.reach(address));
        }
        let candidates = underlay.candidates(address);
        let by_tos = underlay.has_routes_by_tos(address);
        let key = (candidates.iter().map(Candidate::offer).collect(), by_tos);
        if let Some(reach) = self.followed.get(&key) {
            return Arc::clone(reach);
        }
        let reach = shared
            .share(&ResolvedRoute { by_tos, ..underlay.try_each(&candidates, address, RECURSION) });
        // Otherwise the result is valid for this address only.
        if !reach.recursive && reach.hops.iter().all(|hop| hop.gateway != IpAddr::V4(address)) {
            self.followed.insert(key, Arc::clone(&reach));
        }
        reach
    }
}

impl Underlay<'_> {
    /// Resolves the route to `address`.
    pub(crate) fn reach(&self, address: Ipv4Addr) -> ResolvedRoute {
        ResolvedRoute { by_tos: self.has_routes_by_tos(address), ..self.lookup(address, RECURSION) }
    }

    fn has_routes_by_tos(&self, address: Ipv4Addr) -> bool {
        let mut tables = TABLES.iter().map(|table| table | BY_TOS);
        tables.any(|table| {
            self.sources.iter().any(|routes| routes.fib.matching(table, address).next().is_some())
        })
    }

    fn lookup(&self, address: Ipv4Addr, depth: usize) -> ResolvedRoute {
        if self.own.contains(&IpAddr::V4(address)) {
            return ResolvedRoute {
                obstacle: Some(UnusableRoute::OwnAddress),
                ..ResolvedRoute::default()
            };
        }
        self.try_each(&self.candidates(address), address, depth)
    }

    /// All matching routes in the order in which they are tried: by table, then by prefix length,
    /// longest first. Within a prefix, sources keep their order.
    fn candidates(&self, address: Ipv4Addr) -> Vec<Candidate<'_>> {
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
        address: Ipv4Addr,
        depth: usize,
    ) -> ResolvedRoute {
        let mut uplinks = BTreeSet::new();
        let mut recursive = false;
        let mut thrown = None;
        'prefix: for routes in
            candidates.chunk_by(|a, b| (a.table, a.length) == (b.table, b.length))
        {
            if routes.first().is_some_and(|first| thrown == Some(first.table)) {
                continue;
            }
            let mut down = false;
            for Candidate { table, length, source, route } in routes {
                let Some(source) = self.sources.get(*source) else { continue };
                match self.follow(source, route, address, depth, &mut uplinks, &mut recursive) {
                    Verdict::Reached(mut reach) => {
                        reach.hops.iter_mut().for_each(|hop| hop.by_default |= *length == 0);
                        return ResolvedRoute { uplinks, recursive, ..reach };
                    }
                    Verdict::Down => down = true,
                    Verdict::Dead => {}
                    Verdict::Throw => {
                        thrown = Some(*table);
                        continue 'prefix;
                    }
                }
            }
            if down {
                break;
            }
        }
        ResolvedRoute { uplinks, recursive, ..ResolvedRoute::default() }
    }

    fn follow(
        &self,
        source: &Routes,
        route: &FibRoute,
        address: Ipv4Addr,
        depth: usize,
        uplinks: &mut BTreeSet<u32>,
        recursive: &mut bool,
    ) -> Verdict {
        match route.route_type {
            1 => {}
            2 => {
                let obstacle = Some(UnusableRoute::OwnAddress);
                return Verdict::Reached(ResolvedRoute { obstacle, ..ResolvedRoute::default() });
            }
            // Blackhole, unreachable, prohibit: the kernel drops.
            6..=8 => return Verdict::Reached(ResolvedRoute::default()),
            9 => return Verdict::Throw,
            other => {
                let obstacle = Some(UnusableRoute::RouteType(other));
                return Verdict::Reached(ResolvedRoute { obstacle, ..ResolvedRoute::default() });
            }
        }
        let mut named = Vec::new();
        match &*route.via {
            RouteTarget::NextHops(hops) => {
                named.extend(hops.iter().map(|hop| (hop, u32::from(hop.weight))))
            }
            RouteTarget::Object(id) => {
                if self.expand(source, *id, 1, RECURSION, &mut named)
                    == Some(NextHopKind::Blackhole)
                {
                    return Verdict::Reached(ResolvedRoute::default());
                }
            }
        }
        let FibRoute { hop_limit, mtu_locked, .. } = *route;
        let mut reach = ResolvedRoute { hop_limit, mtu_locked, ..ResolvedRoute::default() };
        let mut weighted = Vec::new();
        let mut down = false;
        for (hop, weight) in named {
            if hop.ifindex == 0 {
                // Recursive: look up the gateway.
                *recursive = true;
                if let (Some(IpAddr::V4(gateway)), Some(depth)) =
                    (hop.gateway, depth.checked_sub(1))
                    && gateway != address
                {
                    let via = self.lookup(gateway, depth);
                    uplinks.extend(via.uplinks);
                    reach.obstacle = reach.obstacle.or(via.obstacle);
                    weighted.extend(
                        via.hops
                            .into_iter()
                            .map(|hop| (weight.saturating_mul(hop.weight.into()), hop)),
                    );
                }
                continue;
            }
            let Some(link) = self.links.get(hop.ifindex) else { continue };
            let obstacle = match (hop.vni, hop.encapsulation) {
                // An EVPN type-5 route leads through an overlay.
                (Some(_), _) => Some(UnusableRoute::Tunnel { device: link.name.clone() }),
                (None, Some(kind)) => {
                    Some(UnusableRoute::Encapsulation { device: link.name.clone(), kind })
                }
                (None, None) => self.links.obstacle(link),
            };
            if obstacle.is_none() {
                uplinks.insert(hop.ifindex);
            }
            if !is_up(link) || hop.flags & RTNH_F_DEAD != 0 {
                continue;
            }
            if !link.is_operational() || hop.flags & RTNH_F_LINKDOWN != 0 {
                down = true;
                continue;
            }
            reach.obstacle = reach.obstacle.or(obstacle);
            let mtu = route.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
            let gateway = hop.gateway.unwrap_or(IpAddr::V4(address));
            let gateway = self.link_local.canonical(hop.ifindex, gateway);
            let adjacency = Hop {
                ifindex: hop.ifindex,
                gateway,
                weight: 1,
                mtu,
                by_default: false,
                impaired: impairs(link),
            };
            weighted.push((weight, adjacency));
        }
        if weighted.is_empty() && reach.obstacle.is_none() {
            return if down { Verdict::Down } else { Verdict::Dead };
        }
        reach.hops = balance(weighted);
        // By name, because indices change when links are created again.
        let order = |hop: &Hop| (self.name(hop.ifindex), hop.gateway);
        reach.hops.sort_by(|a, b| order(a).cmp(&order(b)));
        Verdict::Reached(reach)
    }

    fn name(&self, ifindex: u32) -> &str {
        self.links.get(ifindex).map_or("", |link| &link.name)
    }

    /// Collects the next hops of an object with their weights. Returns the object itself if it has
    /// none.
    fn expand<'a>(
        &self,
        source: &'a Routes,
        id: u32,
        weight: u32,
        depth: usize,
        into: &mut Vec<(&'a RouteNextHop, u32)>,
    ) -> Option<NextHopKind> {
        match source.next_hops.get(&id)? {
            NextHopKind::Single(hop) => into.push((hop, weight)),
            NextHopKind::Group(members) => {
                let depth = depth.checked_sub(1)?;
                for (member, share) in members {
                    self.expand(
                        source,
                        *member,
                        weight.saturating_mul(u32::from(*share)),
                        depth,
                        into,
                    );
                }
            }
            other => return Some(other.clone()),
        }
        None
    }
}

/// Adds up the weights of equal next hops and scales them to 1 to 256. Proportions are kept as far
/// as that allows.
fn balance(weighted: Vec<(u32, Hop)>) -> Vec<Hop> {
    let mut sums: BTreeMap<(u32, IpAddr), (u64, Hop)> = BTreeMap::new();
    for (weight, hop) in weighted {
        let (sum, all) = sums.entry((hop.ifindex, hop.gateway)).or_insert_with(|| (0, hop.clone()));
        *sum += u64::from(weight);
        all.mtu = hop.mtu.min(all.mtu);
        all.by_default &= hop.by_default;
    }
    let divisor = sums.values().map(|(sum, ..)| *sum).fold(0, greatest_common_divisor).max(1);
    let largest = sums.values().map(|(sum, ..)| sum / divisor).max().unwrap_or(1);
    let fit = |sum: u64| {
        let weight = sum / divisor;
        let fitting =
            if largest > WEIGHT { weight.saturating_mul(WEIGHT) / largest } else { weight };
        u16::try_from(fitting.clamp(1, WEIGHT)).unwrap_or(1)
    };
    sums.into_values().map(|(sum, hop)| Hop { weight: fit(sum), ..hop }).collect()
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use netlink::{Link, LinkKind, Route};
    use proptest::prelude::*;
    use wire::MacAddr;

    use super::*;
    use crate::stores::epoch_map::Epoch;

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

    const fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    /// Interface 0 means a gateway that has to be looked up.
    fn hop() -> impl Strategy<Value = RouteNextHop> {
        let gateway = prop::option::of((0u8..8).prop_map(|last| IpAddr::V4(address(last))));
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
            |((last, prefix_length), table, route_type, priority, mtu, via)| Route {
                table,
                destination: IpAddr::V4(address(last)),
                prefix_length,
                priority,
                tos: 0,
                route_type,
                protocol: 3,
                replace: false,
                cloned: false,
                mtu,
                mtu_locked: false,
                hop_limit: None,
                via: RouteTarget::NextHops(via),
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
            gateway: Some(IpAddr::V4(address(9))),
            weight: 1,
            flags: 0,
            vni: None,
            encapsulation: None,
        });
        let mut kernel = Routes::new(Identity::Metric);
        let route = Route {
            table: 254,
            destination: IpAddr::V4(address(1)),
            prefix_length: 32,
            priority: 0,
            tos: 0,
            route_type: 1,
            protocol: 186,
            replace: false,
            cloned: false,
            mtu: None,
            mtu_locked: false,
            hop_limit: None,
            via: RouteTarget::NextHops(hops.into()),
        };
        kernel.fib.insert(&route, epoch);
        let (own, fpm) = (BTreeSet::new(), Routes::new(Identity::Prefix));
        let neighbours = EpochMap::default();
        let link_local = LinkLocal::new(&kernel, &neighbours);
        let underlay = Underlay {
            links: &links,
            own: &own,
            sources: [&fpm, &kernel],
            link_local: &link_local,
        };
        let reach = underlay.reach(address(1));
        assert_eq!(reach.hops.iter().map(|hop| hop.ifindex).collect::<Vec<_>>(), [7, 5]);
    }

    proptest! {
        /// A resolver that shares results gives the same result as a single lookup.
        #[test]
        fn a_survey_says_what_a_lookup_does(
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
            let own = BTreeSet::from([IpAddr::V4(address(own))]);
            let neighbours = EpochMap::default();
        let link_local = LinkLocal::new(&kernel, &neighbours);
            let underlay = Underlay { links: &links, own: &own, sources: [&fpm, &kernel], link_local: &link_local };
            let (mut survey, mut shared) = (RouteResolver::new(underlay), Shared::default());
            for last in 0..12 {
                let reach = survey.reach(address(last), &mut shared);
                prop_assert_eq!(&*reach, &underlay.reach(address(last)), "{}", address(last));
            }
        }
    }
}
