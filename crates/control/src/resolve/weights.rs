//! The next hops of a route with their weights.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink::{NextHopKind, RouteNextHop, RouteTarget};

use crate::stores::resolved_route::Hop;
use crate::stores::routes::Routes;

/// How deep groups of next-hop objects may contain groups.
const NESTING: usize = 4;
/// The most objects of a route, with those of groups in groups. The kernel refuses such groups, but FPM
/// does not, and a group may be in itself.
const MOST: usize = 4096;
/// The largest weight of a next hop (`rtnh_hops` has eight bits and counts from 0).
const WEIGHT: u64 = 256;

/// The next hops of a route of `source`, each with its weight; `None` for a blackhole.
pub(crate) fn next_hops<'a>(
    source: &'a Routes,
    via: &'a RouteTarget,
) -> Option<Vec<(&'a RouteNextHop, u32)>> {
    match via {
        RouteTarget::NextHops(hops) => {
            Some(hops.iter().map(|hop| (hop, u32::from(hop.weight))).collect())
        }
        RouteTarget::Object(id) => {
            let (mut hops, mut left) = (Vec::new(), MOST);
            let other = expand(source, (*id, 1), NESTING, &mut left, &mut hops);
            (other != Some(NextHopKind::Blackhole)).then_some(hops)
        }
    }
}

/// Collects the next hops of an object with their weights, while objects are `left`. Returns what it is
/// instead if it has none. A group may have a blackhole as its only member (`valid_group_nh()` in
/// net/ipv4/nexthop.c).
fn expand<'a>(
    source: &'a Routes,
    (id, weight): (u32, u32),
    depth: usize,
    left: &mut usize,
    into: &mut Vec<(&'a RouteNextHop, u32)>,
) -> Option<NextHopKind> {
    *left = left.checked_sub(1)?;
    match source.next_hops.get(&id)? {
        NextHopKind::Single(hop) => into.push((hop, weight)),
        NextHopKind::Group(members) => {
            let depth = depth.checked_sub(1)?;
            let mut other = None;
            for (member, share) in members {
                let weight = weight.saturating_mul(u32::from(*share));
                other = expand(source, (*member, weight), depth, left, into).or(other);
            }
            return other.filter(|_| into.is_empty());
        }
        other => return Some(other.clone()),
    }
    None
}

/// Adds up the weights of equal next hops and scales them to 1 to 256. Proportions are kept as far
/// as that allows.
pub(crate) fn balance(weighted: Vec<(u32, Hop)>) -> Vec<Hop> {
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
