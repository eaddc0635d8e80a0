//! From a VTEP's address to the adjacencies that lead there.
//!
//! The kernel's rules: tables in the order of the default rules, the longest prefix, the lowest metric, dead next hops
//! skipped. Two things go beyond them. zebra's version of a prefix comes before the kernel's while zebra is there,
//! and the kernel's before nothing when all next hops of zebra's are dead. And a next hop without carrier is not used:
//! with next-hop groups zebra 10.3 keeps naming one after its carrier went, and so does the kernel unless
//! `ignore_routes_with_linkdown` is set. A prefix whose next hops all lack carrier does not fall through to a shorter
//! one, though, or the tunnels of a leaf that lost its fabric would leave by its management network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::{NextHopKind, RouteNextHop, RouteTarget};

use crate::fib::{Fib, FibRoute, Identity, TABLES};
use crate::leave::Obstacle;
use crate::links::{Links, is_up};
use crate::swept::Swept;

/// `RTNH_F_DEAD` (`include/uapi/linux/rtnetlink.h`).
const RTNH_F_DEAD: u8 = 1;
/// `RTNH_F_LINKDOWN`.
const RTNH_F_LINKDOWN: u8 = 16;
/// How many routes may be asked in turn for the gateway of another one.
const RECURSION: usize = 4;
/// The largest weight of a next hop (`rtnh_hops` has eight bits and counts from 0).
const WEIGHT: u64 = 256;

/// The routes of one source, and the next-hop objects that they name.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) fib: Fib,
    pub(crate) next_hops: Swept<u32, NextHopKind>,
}

impl Routes {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { fib: Fib::new(identity), next_hops: Swept::default() }
    }
}

/// Everything that decides how an address is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Underlay<'a> {
    pub(crate) links: &'a Links,
    /// Own addresses.
    pub(crate) own: &'a BTreeSet<IpAddr>,
    /// Whose version of a prefix comes first, and the other one.
    pub(crate) sources: [&'a Routes; 2],
}

/// How an address is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reach {
    /// The live next hops, sorted by interface and gateway. Empty: no frame gets there, not through the kernel either.
    pub(crate) hops: Vec<Hop>,
    /// The Ethernet interfaces of all next hops, those without carrier too.
    pub(crate) uplinks: BTreeSet<u32>,
    /// Why the way is not one for frames of ours.
    pub(crate) obstacle: Option<Obstacle>,
    /// Whether routes to other addresses decide too: those to gateways.
    pub(crate) recursive: bool,
}

impl Reach {
    /// What VNIs are taken over, and how, depends on: an obstacle, and the smallest MTU of the way.
    pub(crate) fn terms(&self) -> (Option<&Obstacle>, Option<u32>) {
        (self.obstacle.as_ref(), self.hops.iter().map(|hop| hop.mtu).min())
    }
}

/// One live next hop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    pub(crate) ifindex: u32,
    pub(crate) gateway: IpAddr,
    /// 1 to 256.
    pub(crate) weight: u16,
    /// The interface's MTU, or the route's where that is smaller.
    pub(crate) mtu: u32,
}

/// What one route has to offer.
enum Verdict {
    /// Take this.
    Reached(Reach),
    /// All its next hops are gone: the next route is asked.
    Dead,
    /// All its next hops that are left lack carrier.
    Down,
    /// `throw`: the next table is asked.
    Throw,
}

impl Underlay<'_> {
    /// How frames get to `address`.
    pub(crate) fn reach(&self, address: Ipv4Addr) -> Reach {
        self.lookup(address, RECURSION)
    }

    fn lookup(&self, address: Ipv4Addr, depth: usize) -> Reach {
        if self.own.contains(&IpAddr::V4(address)) {
            return Reach { obstacle: Some(Obstacle::OwnAddress), ..Reach::default() };
        }
        let mut uplinks = BTreeSet::new();
        let mut recursive = false;
        for table in TABLES {
            // By prefix length, longest first; the sources keep their order within a prefix.
            let mut prefixes: BTreeMap<u8, Vec<(&Routes, &FibRoute)>> = BTreeMap::new();
            for source in self.sources {
                for (length, routes) in source.fib.matching(table, address) {
                    prefixes.entry(length).or_default().extend(routes.iter().map(|route| (source, route)));
                }
            }
            'table: for routes in prefixes.into_values().rev() {
                let mut down = false;
                for (source, route) in routes {
                    match self.follow(source, route, address, depth, &mut uplinks, &mut recursive) {
                        Verdict::Reached(reach) => return Reach { uplinks, recursive, ..reach },
                        Verdict::Down => down = true,
                        Verdict::Dead => {}
                        Verdict::Throw => break 'table,
                    }
                }
                if down {
                    return Reach { uplinks, recursive, ..Reach::default() };
                }
            }
        }
        Reach { uplinks, recursive, ..Reach::default() }
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
                let obstacle = Some(Obstacle::OwnAddress);
                return Verdict::Reached(Reach { obstacle, ..Reach::default() });
            }
            // Blackhole, unreachable, prohibit: the kernel drops.
            6..=8 => return Verdict::Reached(Reach::default()),
            9 => return Verdict::Throw,
            other => {
                let obstacle = Some(Obstacle::RouteType(other));
                return Verdict::Reached(Reach { obstacle, ..Reach::default() });
            }
        }
        let mut named = Vec::new();
        match &route.via {
            RouteTarget::NextHops(hops) => named.extend(hops.iter().map(|hop| (hop, u32::from(hop.weight)))),
            RouteTarget::Object(id) => {
                if self.expand(source, *id, 1, RECURSION, &mut named) == Some(NextHopKind::Blackhole) {
                    return Verdict::Reached(Reach::default());
                }
            }
        }
        let mut reach = Reach::default();
        let mut weighted = Vec::new();
        let mut down = false;
        for (hop, weight) in named {
            if hop.ifindex == 0 {
                // Recursive: ask the routes for the gateway.
                *recursive = true;
                if let (Some(IpAddr::V4(gateway)), Some(depth)) = (hop.gateway, depth.checked_sub(1))
                    && gateway != address
                {
                    let via = self.lookup(gateway, depth);
                    uplinks.extend(via.uplinks);
                    reach.obstacle = reach.obstacle.or(via.obstacle);
                    weighted.extend(
                        via.hops.into_iter().map(|hop| (weight.saturating_mul(hop.weight.into()), hop)),
                    );
                }
                continue;
            }
            let Some(link) = self.links.get(hop.ifindex) else { continue };
            let obstacle = match hop.vni {
                // An EVPN type-5 route: the way leads through an overlay.
                Some(_) => Some(Obstacle::Tunnel { device: link.name.clone() }),
                None => self.links.obstacle(link),
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
            weighted.push((weight, Hop { ifindex: hop.ifindex, gateway, weight: 1, mtu }));
        }
        if weighted.is_empty() && reach.obstacle.is_none() {
            return if down { Verdict::Down } else { Verdict::Dead };
        }
        reach.hops = balance(weighted);
        Verdict::Reached(reach)
    }

    /// The next hops behind an object, each with its weight; the object itself if there are none.
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
                    self.expand(source, *member, weight.saturating_mul(u32::from(*share)), depth, into);
                }
            }
            other => return Some(other.clone()),
        }
        None
    }
}

/// Adds up the weights of equal adjacencies, brings them into 1 to 256, keeping their proportions as well as that
/// allows, and sorts: equal hops in equal order give every flow the same choice.
fn balance(weighted: Vec<(u32, Hop)>) -> Vec<Hop> {
    let mut sums: BTreeMap<(u32, IpAddr), (u64, u32)> = BTreeMap::new();
    for (weight, hop) in weighted {
        let (sum, mtu) = sums.entry((hop.ifindex, hop.gateway)).or_insert((0, hop.mtu));
        *sum += u64::from(weight);
        *mtu = hop.mtu.min(*mtu);
    }
    let divisor = sums.values().map(|(sum, _)| *sum).fold(0, greatest_common_divisor).max(1);
    let largest = sums.values().map(|(sum, _)| sum / divisor).max().unwrap_or(1);
    let fit = |sum: u64| {
        let weight = sum / divisor;
        let fitting = if largest > WEIGHT { weight.saturating_mul(WEIGHT) / largest } else { weight };
        u16::try_from(fitting.clamp(1, WEIGHT)).unwrap_or(1)
    };
    let hop = |((ifindex, gateway), (sum, mtu))| Hop { ifindex, gateway, weight: fit(sum), mtu };
    sums.into_iter().map(hop).collect()
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
