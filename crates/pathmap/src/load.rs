//! Links, and their load.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::message::{LinkLoad, MOST_LOADS, Report};

/// How long a load that another VTEP reported counts.
pub(crate) const AGE: Duration = Duration::from_secs(3);
/// The most links of other VTEPs that are remembered, and the most of one VTEP.
const MOST_FOREIGN: usize = 65_536;
const MOST_OF_ONE: usize = 4096;

/// A link on the way to a remote VTEP, by what sends on it or receives from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// A next hop of this leaf, by its identity.
    Uplink(u64),
    /// The outgoing interface of a router.
    Router(Ipv4Addr),
    /// From a router to the next one or to the VTEP, where only the routers are known.
    Between(IpAddr, IpAddr),
    /// An uplink of a remote VTEP, by its interface index, where the last router is not known.
    Arrival(IpAddr, u32),
}

/// How long this leaf yields to one VTEP's claim in each [`CLAIM_WINDOW`]. Bounded, because a peer may
/// misreport, or be unable to move.
pub(crate) const MOST_YIELDED: Duration = Duration::from_secs(3);
const CLAIM_WINDOW: Duration = Duration::from_secs(30);
/// [`PeerLoads::yields`] is asked at least this often while this leaf wants to move.
const ASKED: Duration = Duration::from_millis(200);
/// How long a claim counts that is not reported again.
const CLAIM_AGE: Duration = Duration::from_secs(1);
/// The most VTEPs whose claims are remembered.
const MOST_PEERS: usize = 4096;
/// The first address in their order.
const LEAST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What other VTEPs send over links, as they report it, and which of them claim to move next.
#[derive(Debug, Default)]
pub struct PeerLoads {
    /// By the link and the VTEP.
    links: BTreeMap<(Ipv4Addr, IpAddr), (u64, Duration)>,
    /// The number of links of each VTEP.
    numbers: BTreeMap<IpAddr, usize>,
    claims: BTreeMap<IpAddr, Claim>,
    /// When [`Self::yields`] was asked last.
    asked: Duration,
}

/// The claim of a VTEP to move next.
#[derive(Debug)]
struct Claim {
    /// As [`Report::gain`].
    gain: u32,
    heard: Duration,
    /// How long this leaf has yielded to it since `began`.
    yielded: Duration,
    began: Duration,
}

impl Claim {
    fn counts(&self, now: Duration) -> bool {
        self.gain > 0 && now.saturating_sub(self.heard) < CLAIM_AGE && self.yielded < MOST_YIELDED
    }
}

impl PeerLoads {
    /// Takes the loads that a VTEP reports. Reports above the limits are ignored.
    pub fn report(&mut self, from: IpAddr, report: &Report, now: Duration) {
        self.claim(from, report.gain, now);
        let mut number = self.numbers.get(&from).copied().unwrap_or(0);
        for load in &report.loads {
            let key = (load.link, from);
            let is_known = self.links.contains_key(&key);
            if is_known || number < MOST_OF_ONE && self.links.len() < MOST_FOREIGN {
                self.links.insert(key, (u64::from(load.kilobytes), now));
                number += usize::from(!is_known);
            }
        }
        if number > 0 {
            self.numbers.insert(from, number);
        }
    }

    fn claim(&mut self, from: IpAddr, gain: u32, now: Duration) {
        if self.claims.len() >= MOST_PEERS && !self.claims.contains_key(&from) {
            return;
        }
        let new = Claim { gain, heard: now, yielded: Duration::ZERO, began: now };
        let claim = self.claims.entry(from).or_insert(new);
        (claim.gain, claim.heard) = (gain, now);
        if now.saturating_sub(claim.began) >= CLAIM_WINDOW {
            (claim.yielded, claim.began) = (Duration::ZERO, now);
        }
    }

    /// Whether a VTEP with this gain and address yields to the claim of another: the greatest gain
    /// has priority. A claim to which this leaf has yielded for three of the last 30 seconds is
    /// ignored, whether its VTEP wanted to move all the time or not.
    #[must_use]
    pub fn yields(&mut self, own: (u32, IpAddr), now: Duration) -> bool {
        let passed = now.saturating_sub(std::mem::replace(&mut self.asked, now)).min(ASKED);
        // The lower address comes first among equal ones.
        let rank = |(address, claim): &(&IpAddr, &mut Claim)| (claim.gain, Reverse(**address));
        let counting = self.claims.iter_mut().filter(|(_, claim)| claim.counts(now));
        let before = counting.filter(|other| rank(other) > (own.0, Reverse(own.1)));
        let Some((_, first)) = before.max_by_key(rank) else { return false };
        first.yielded += passed;
        true
    }

    /// Whether any VTEP claims to move.
    #[must_use]
    pub fn has_claims(&self, now: Duration) -> bool {
        self.claims.values().any(|claim| claim.counts(now))
    }

    /// Forgets what was not reported again. Returns whether anything was.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.links.len();
        let numbers = &mut self.numbers;
        self.links.retain(|(_, from), (_, at)| {
            let stays = now.saturating_sub(*at) < AGE;
            if let Some(number) = numbers.get_mut(from).filter(|_| !stays) {
                *number -= 1;
            }
            stays
        });
        numbers.retain(|_, number| *number > 0);
        // How long others yielded to it is remembered, even if it is silent for a while.
        self.claims.retain(|_, claim| now.saturating_sub(claim.heard) < CLAIM_WINDOW);
        self.links.len() != before
    }

    /// The load of a link by all other VTEPs, in 1000 bytes a second.
    #[must_use]
    pub fn of(&self, link: Link) -> u64 {
        let Link::Router(address) = link else { return 0 };
        let reports = self.links.range((address, LEAST)..);
        reports.take_while(|((link, _), _)| *link == address).map(|(_, (load, _))| load).sum()
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
        let (a, b, link) = ([10, 0, 0, 1].into(), [0xfd; 16].into(), [10, 1, 0, 1].into());
        let load =
            |kilobytes| Report { loads: vec![LinkLoad { link, kilobytes }], ..Report::default() };
        let at = Duration::from_secs;
        let mut peers = PeerLoads::default();
        peers.report(a, &load(5), at(0));
        peers.report(b, &load(7), at(1));
        peers.report(a, &load(6), at(2));
        assert_eq!((peers.of(Link::Router(link)), peers.of(Link::Uplink(1))), (13, 0));
        assert!(!peers.expire(at(3)) && peers.expire(at(4)));
        assert_eq!(peers.of(Link::Router(link)), 6);
    }

    #[test]
    fn others_yield_to_the_greatest_claim_but_not_for_long() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let claim = |gain| Report { gain, ..Report::default() };
        let ms = Duration::from_millis;
        let mut peers = PeerLoads::default();
        assert!(!peers.yields((1, b), ms(0)));
        peers.report(a, &claim(5), ms(0));
        peers.report(c, &claim(7), ms(0));
        assert!(peers.yields((6, b), ms(10)) && !peers.yields((7, b), ms(10)));
        peers.report(c, &claim(0), ms(20));
        assert!(!peers.yields((6, b), ms(30)) && peers.yields((5, b), ms(30)));
        // It never moves, and hides that by wanting nothing in between, or by silence.
        let mut held = 0;
        for at in (1000..30_000).step_by(50) {
            if !(2000..7000).contains(&at) {
                peers.report(a, &claim(0), ms(at));
                peers.report(a, &claim(100), ms(at));
            }
            held += u32::from(peers.yields((1, b), ms(at)));
        }
        assert!((55..=61).contains(&held), "{held}");
        // Later it counts again.
        peers.report(a, &claim(9), ms(31_000));
        assert!(peers.yields((1, b), ms(31_000)));
        assert!(peers.has_claims(ms(31_000)) && !peers.has_claims(ms(32_000)));
    }

    #[test]
    fn a_peer_cannot_fill_the_memory() {
        let mut peers = PeerLoads::default();
        for n in 0..70_000u32 {
            let link = LinkLoad { link: Ipv4Addr::from_bits(n), kilobytes: 1 };
            let report = Report { gain: 1, loads: vec![link], ..Report::default() };
            peers.report(Ipv4Addr::from_bits(n).into(), &report, Duration::ZERO);
        }
        assert_eq!((peers.len(), peers.claims.len()), (MOST_FOREIGN, MOST_PEERS));
        // One alone leaves room for others.
        let mut peers = PeerLoads::default();
        let a = Ipv4Addr::new(10, 0, 0, 1);
        for second in [1, 100] {
            let now = Duration::from_secs(second);
            for n in 0..70_000u32 {
                let link = LinkLoad { link: Ipv4Addr::from_bits(n), kilobytes: 1 };
                peers.report(a.into(), &Report { loads: vec![link], ..Report::default() }, now);
            }
            assert_eq!(peers.len(), MOST_OF_ONE);
            assert!(peers.expire(now + AGE) && peers.numbers.is_empty());
        }
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
