//! The order in which answers take paths.

use std::collections::BTreeSet;

use crate::load::Link;
use crate::placer::Found;
use crate::prober::Pair;

/// One pair for each route, so that a route has as few links as possible in common with the two before
/// it. A dead link then loses few answers one after the other.
#[must_use]
pub fn diverse(found: &[Found]) -> Vec<Pair> {
    let mut routes: Vec<(&[Link], Pair)> = Vec::new();
    let mut seen = BTreeSet::new();
    for path in found.iter().filter(|path| seen.insert(path.links.as_slice())) {
        routes.push((&path.links, path.pair));
    }
    let common = |one: &[Link], other: Option<&(&[Link], Pair)>| {
        other.map_or(0, |(links, _)| one.iter().filter(|link| links.contains(link)).count())
    };
    let mut ordered: Vec<(&[Link], Pair)> = Vec::new();
    while !routes.is_empty() {
        let before = |number| ordered.len().checked_sub(number).and_then(|at| ordered.get(at));
        let cost =
            |(links, _): &(&[Link], Pair)| (common(links, before(1)), common(links, before(2)));
        let best = routes.iter().enumerate().min_by_key(|(_, route)| cost(route));
        let Some((at, _)) = best else { break };
        ordered.push(routes.remove(at));
    }
    ordered.into_iter().map(|(_, pair)| pair).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::way::Way;

    #[test]
    fn neighbours_have_few_links_in_common() {
        let router = |tier: u8, number: u16| Link::Router(Ipv4Addr::new(10, tier, 0, number as u8));
        for tiers in [[2, 2, 2], [2, 4, 2], [4, 4, 2], [2, 1, 2]] {
            let [hops, spines, wans] = tiers;
            let mut found = Vec::new();
            for port in 0..256 {
                let [hop, spine, wan] = [port % hops, port / 4 % spines, port / 16 % wans];
                let links = vec![Link::Uplink(hop.into()), router(1, spine), router(2, wan)];
                let pair = Pair { hop: hop.into(), port };
                found.push(Found { pair, links, way: Way::default(), delay: Duration::ZERO });
            }
            let order = diverse(&found);
            assert_eq!(order.len(), usize::from(hops * spines * wans));
            let links = |pair: &Pair| &found[usize::from(pair.port)].links;
            for (tier, number) in tiers.into_iter().enumerate().filter(|(_, number)| *number > 1) {
                let repeated = order.windows(3).filter(|three| {
                    let [a, b, c] = [0, 1, 2].map(|at| links(&three[at])[tier]);
                    a == b && b == c
                });
                // Among the last ones, which are what is left.
                assert!(
                    repeated.count() * 8 <= order.len(),
                    "{tiers:?}, tier {tier} with {number}: {order:?}"
                );
            }
        }
    }
}
