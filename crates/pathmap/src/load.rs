//! Links, and their load.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::message::{LinkLoad, MOST_LOADS};

/// How long a load that another VTEP reported counts.
const AGE: Duration = Duration::from_secs(3);
/// The most links of other VTEPs that are remembered.
const MOST_FOREIGN: usize = 65_536;

/// A link on the way to a remote VTEP, by what sends on it or receives from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// A next hop of this leaf, by its identity.
    Uplink(u64),
    /// The outgoing interface of a router.
    Router(Ipv4Addr),
    /// An uplink of a remote VTEP, by its interface index, where the last router is not known.
    Arrival(Ipv4Addr, u32),
}

/// What other VTEPs send over links, as they report it.
#[derive(Debug, Default)]
pub struct Foreign {
    links: BTreeMap<(Ipv4Addr, Ipv4Addr), (u64, Duration)>,
}

impl Foreign {
    /// Takes the loads that a VTEP reports. Reports above the limit are ignored.
    pub fn report(&mut self, from: Ipv4Addr, loads: &[LinkLoad], now: Duration) {
        for load in loads {
            let key = (load.link, from);
            if self.links.len() < MOST_FOREIGN || self.links.contains_key(&key) {
                self.links.insert(key, (u64::from(load.kilobytes), now));
            }
        }
    }

    /// Forgets what was not reported again. Returns whether anything was.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.links.len();
        self.links.retain(|_, (_, at)| now.saturating_sub(*at) < AGE);
        self.links.len() != before
    }

    /// The load of a link by all other VTEPs, in 1000 bytes a second.
    #[must_use]
    pub fn of(&self, link: Link) -> u64 {
        let Link::Router(address) = link else { return 0 };
        let range = (address, Ipv4Addr::UNSPECIFIED)..=(address, Ipv4Addr::BROADCAST);
        self.links.range(range).map(|(_, (load, _))| load).sum()
    }

    /// The number of VTEPs that report loads.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.links.keys().map(|(_, from)| from).collect::<BTreeSet<_>>().len()
    }

    /// The number of remembered reports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether nothing is reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

/// The loads to report next. With more than fit an answer, each answer has the next part.
#[must_use]
pub fn report(own: &BTreeMap<Link, u64>, part: usize) -> Vec<LinkLoad> {
    let routers = own.iter().filter_map(|(link, load)| match link {
        Link::Router(address) => {
            let kilobytes = u32::try_from(*load).unwrap_or(u32::MAX);
            Some(LinkLoad { link: *address, kilobytes })
        }
        _ => None,
    });
    let all: Vec<LinkLoad> = routers.collect();
    let parts = all.len().div_ceil(MOST_LOADS).max(1);
    all.chunks(MOST_LOADS).nth(part % parts).map(<[_]>::to_vec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up_replace_and_expire() {
        let (a, b, link) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 1, 0, 1].into());
        let load = |kilobytes| [LinkLoad { link, kilobytes }];
        let at = Duration::from_secs;
        let mut foreign = Foreign::default();
        foreign.report(a, &load(5), at(0));
        foreign.report(b, &load(7), at(1));
        foreign.report(a, &load(6), at(2));
        assert_eq!((foreign.of(Link::Router(link)), foreign.of(Link::Uplink(1))), (13, 0));
        assert!(!foreign.expire(at(3)) && foreign.expire(at(4)));
        assert_eq!(foreign.of(Link::Router(link)), 6);
    }

    #[test]
    fn a_peer_cannot_fill_the_memory() {
        let mut foreign = Foreign::default();
        for n in 0..70_000u32 {
            let link = LinkLoad { link: Ipv4Addr::from_bits(n), kilobytes: 1 };
            foreign.report(Ipv4Addr::LOCALHOST, &[link], Duration::ZERO);
        }
        assert_eq!(foreign.len(), MOST_FOREIGN);
    }

    #[test]
    fn all_loads_are_reported_in_turns() {
        let own: BTreeMap<Link, u64> =
            (0..100).map(|n| (Link::Router(Ipv4Addr::from_bits(n)), u64::from(n))).collect();
        let parts: Vec<usize> = (0..3).map(|part| report(&own, part).len()).collect();
        assert_eq!(parts, [64, 36, 64]);
        assert!(report(&BTreeMap::new(), 5).is_empty());
    }
}
