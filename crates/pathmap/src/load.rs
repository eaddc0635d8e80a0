//! Links, and their load.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::message::{LinkLoad, MOST_LOADS, Report};

/// How long a load that another VTEP reported counts.
pub(crate) const AGE: Duration = Duration::from_secs(3);
/// The most links of other VTEPs that are remembered.
const MOST_FOREIGN: usize = 65_536;

/// A link on the way to a remote VTEP, by what sends on it or receives from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// A next hop of this leaf, by its identity.
    Uplink(u64),
    /// The outgoing interface of a router.
    Router(Ipv4Addr),
    /// From a router to the next one or to the VTEP, where only the routers are known.
    Between(Ipv4Addr, Ipv4Addr),
    /// An uplink of a remote VTEP, by its interface index, where the last router is not known.
    Arrival(Ipv4Addr, u32),
}

/// How long the wish of a VTEP keeps others from moving that does not move itself.
const WISH_HOLD: Duration = Duration::from_secs(3);
/// How long a wish counts that is not reported again.
const WISH_AGE: Duration = Duration::from_secs(1);
/// The most VTEPs whose wishes are remembered.
const MOST_PEERS: usize = 4096;

/// What other VTEPs send over links, as they report it, and which of them want to move.
#[derive(Debug, Default)]
pub struct Foreign {
    links: BTreeMap<(Ipv4Addr, Ipv4Addr), (u64, Duration)>,
    wishes: BTreeMap<Ipv4Addr, Wish>,
}

/// What a VTEP wants.
#[derive(Debug)]
struct Wish {
    /// As [`Report::wish`].
    gain: u32,
    /// Since when it wants to move.
    since: Duration,
    heard: Duration,
}

impl Foreign {
    /// Takes the loads that a VTEP reports. Reports above the limit are ignored.
    pub fn report(&mut self, from: Ipv4Addr, report: &Report, now: Duration) {
        self.wish(from, report.wish, now);
        for load in &report.loads {
            let key = (load.link, from);
            if self.links.len() < MOST_FOREIGN || self.links.contains_key(&key) {
                self.links.insert(key, (u64::from(load.kilobytes), now));
            }
        }
    }

    fn wish(&mut self, from: Ipv4Addr, gain: u32, now: Duration) {
        if self.wishes.len() >= MOST_PEERS && !self.wishes.contains_key(&from) {
            return;
        }
        let wish = self.wishes.entry(from).or_insert(Wish { gain: 0, since: now, heard: now });
        if wish.gain == 0 {
            wish.since = now;
        }
        (wish.gain, wish.heard) = (gain, now);
    }

    /// Whether a VTEP with this address and this wish moves before all others. One that wants to
    /// move for a long time and does not keeps nobody from it.
    #[must_use]
    pub fn is_first(&self, own: (u32, Ipv4Addr), now: Duration) -> bool {
        let counts = |wish: &Wish| {
            now.saturating_sub(wish.heard) < WISH_AGE && now.saturating_sub(wish.since) < WISH_HOLD
        };
        let before = |(address, wish): (&Ipv4Addr, &Wish)| {
            // The lower address comes first among equal ones.
            (wish.gain, std::cmp::Reverse(*address)) > (own.0, std::cmp::Reverse(own.1))
        };
        !self.wishes.iter().any(|(address, wish)| counts(wish) && before((address, wish)))
    }

    /// Forgets what was not reported again. Returns whether anything was.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.links.len();
        self.links.retain(|_, (_, at)| now.saturating_sub(*at) < AGE);
        self.wishes.retain(|_, wish| now.saturating_sub(wish.heard) < AGE);
        self.links.len() != before
    }

    /// The load of a link by all other VTEPs, in 1000 bytes a second.
    #[must_use]
    pub fn of(&self, link: Link) -> u64 {
        let Link::Router(address) = link else { return 0 };
        let range = (address, Ipv4Addr::UNSPECIFIED)..=(address, Ipv4Addr::BROADCAST);
        self.links.range(range).map(|(_, (load, _))| load).sum()
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

/// The loads to report next, also of links that are `emptied`. With more than fit an answer, each
/// answer has the next part.
#[must_use]
pub fn report(
    own: &BTreeMap<Link, u64>,
    emptied: &BTreeMap<Link, Duration>,
    part: usize,
) -> Vec<LinkLoad> {
    let load = |(link, load): (&Link, &u64)| match link {
        Link::Router(address) => {
            let kilobytes = u32::try_from(*load).unwrap_or(u32::MAX);
            Some(LinkLoad { link: *address, kilobytes })
        }
        Link::Uplink(_) | Link::Between(..) | Link::Arrival(..) => None,
    };
    let emptied = emptied.keys().map(|link| (link, &0));
    let all: Vec<LinkLoad> = own.iter().chain(emptied).filter_map(load).collect();
    let parts = all.len().div_ceil(MOST_LOADS).max(1);
    all.chunks(MOST_LOADS).nth(part % parts).map(<[_]>::to_vec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up_replace_and_expire() {
        let (a, b, link) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 1, 0, 1].into());
        let load =
            |kilobytes| Report { loads: vec![LinkLoad { link, kilobytes }], ..Report::default() };
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
    fn the_greatest_wish_moves_first_but_keeps_nobody_for_long() {
        let [a, b, c] = [1, 2, 3].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let wish = |wish| Report { wish, ..Report::default() };
        let ms = Duration::from_millis;
        let mut foreign = Foreign::default();
        assert!(foreign.is_first((1, b), ms(0)));
        foreign.report(a, &wish(5), ms(0));
        foreign.report(c, &wish(7), ms(0));
        assert!(!foreign.is_first((6, b), ms(10)) && foreign.is_first((7, b), ms(10)));
        foreign.report(c, &wish(0), ms(20));
        assert!(foreign.is_first((6, b), ms(30)) && !foreign.is_first((5, b), ms(30)));
        for at in 0..40 {
            foreign.report(a, &wish(100), ms(at * 100));
        }
        assert!(foreign.is_first((1, b), ms(3950)), "it never moves");
        foreign.report(a, &wish(0), ms(4000));
        foreign.report(a, &wish(9), ms(4100));
        assert!(!foreign.is_first((1, b), ms(4200)) && foreign.is_first((1, b), ms(5200)));
    }

    #[test]
    fn a_peer_cannot_fill_the_memory() {
        let mut foreign = Foreign::default();
        for n in 0..70_000u32 {
            let link = LinkLoad { link: Ipv4Addr::from_bits(n), kilobytes: 1 };
            let report = Report { wish: 1, loads: vec![link], ..Report::default() };
            foreign.report(Ipv4Addr::from_bits(n), &report, Duration::ZERO);
        }
        assert_eq!((foreign.len(), foreign.wishes.len()), (MOST_FOREIGN, MOST_PEERS));
    }

    #[test]
    fn all_loads_are_reported_in_turns() {
        let own: BTreeMap<Link, u64> =
            (0..100).map(|n| (Link::Router(Ipv4Addr::from_bits(n)), u64::from(n))).collect();
        let none = BTreeMap::new();
        let parts: Vec<usize> = (0..3).map(|part| report(&own, &none, part).len()).collect();
        assert_eq!(parts, [64, 36, 64]);
        assert!(report(&BTreeMap::new(), &none, 5).is_empty());
        let emptied = BTreeMap::from([(Link::Router([10, 0, 0, 1].into()), Duration::ZERO)]);
        let reported = report(&BTreeMap::new(), &emptied, 0);
        assert_eq!((reported.len(), reported[0].kilobytes), (1, 0));
    }
}
