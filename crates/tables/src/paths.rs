//! The live next hops towards a VTEP, and the choice among them.
//!
//! As in Linux's resilient next-hop groups (`net/ipv4/nexthop.c`), a flow's hash names one of a fixed number of
//! buckets, and each bucket belongs to a next hop. When a next hop is lost, its buckets are dealt to the others, and
//! no other flow moves. Unlike the kernel, which waits until a bucket is idle, a next hop that comes back gets its own
//! buckets back at once, if so wished: flows of RoCE queue pairs are long, and the worker keeps no clock per bucket.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use wire::MacAddr;

/// Buckets of every group. A next hop's share is its weight's to one bucket; with 16 equal ones each has 64.
pub const BUCKETS: usize = 1024;

/// One adjacency on an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The uplink's interface index.
    pub ifindex: u32,
    /// The gateway, or the VTEP itself where it is on-link.
    pub gateway: IpAddr,
    /// The uplink's own MAC address.
    pub source_mac: MacAddr,
    /// The gateway's MAC address; `None` until the kernel has resolved it.
    pub destination_mac: Option<MacAddr>,
    /// The uplink's MTU in bytes, layer 3.
    pub mtu: u32,
    /// Weight, 1 to 256.
    pub weight: u16,
    /// Index of this adjacency's counters, stable while the adjacency lives.
    pub path: u16,
    /// Whether nothing better than a default route (`0.0.0.0/0`) leads here: what leaves by it is counted.
    pub by_default: bool,
    /// Whether the uplink has a queueing discipline that does something to single packets (netem, tbf): frames leave one by one.
    pub impaired: bool,
}

/// What tells next hops apart, whatever else changes about them.
type Key = (u32, IpAddr);

impl NextHop {
    const fn key(&self) -> Key {
        (self.ifindex, self.gateway)
    }
}

/// Whether buckets move although their next hop lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rebalance {
    /// Those that a next hop had before it was lost come back to it, and else as few as bring every one its share.
    /// So when all are back, every flow is where it was.
    #[default]
    On,
    /// None: a next hop that is new or came back gets nothing until another one is lost.
    Off,
}

/// The live next hops towards one VTEP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Paths {
    next_hops: Vec<NextHop>,
    /// [`BUCKETS`] indices into `next_hops`; none without next hops.
    buckets: Box<[u16]>,
    /// The buckets that are not with the next hop that they were with at first, and which one that was.
    displaced: BTreeMap<u16, Key>,
}

impl Paths {
    /// Paths over the given next hops, in the given order.
    ///
    /// Order matters: the same hops in the same order give every flow the same choice, so callers sort.
    #[must_use]
    pub fn new(next_hops: Vec<NextHop>) -> Self {
        Self::default().follow(next_hops, Rebalance::On)
    }

    /// What becomes of these paths when the next hops are these from now on.
    #[must_use]
    pub fn follow(&self, next_hops: Vec<NextHop>, rebalance: Rebalance) -> Self {
        let places: HashMap<Key, u16> = next_hops.iter().map(NextHop::key).zip(0..).collect();
        let place = |key: Key| places.get(&key).copied();
        let before: Vec<Option<Key>> = if self.buckets.is_empty() {
            vec![None; BUCKETS]
        } else {
            let key = |bucket: &u16| self.next_hops.get(usize::from(*bucket)).map(NextHop::key);
            self.buckets.iter().map(key).collect()
        };
        let mut deal = Deal { missing: shares(&next_hops), buckets: Vec::with_capacity(BUCKETS) };
        for owner in &before {
            let owner = owner.and_then(place);
            deal.buckets.push(owner);
            deal.count(owner, -1);
        }
        for (bucket, home) in &self.displaced {
            if let Some(home) = place(*home) {
                deal.give_back(usize::from(*bucket), home, rebalance);
            }
        }
        if rebalance == Rebalance::On {
            // What a next hop has of others goes before what was always its own.
            deal.take_surplus(self.displaced.keys().copied());
            deal.take_surplus(0..BUCKETS as u16);
        }
        deal.rest();

        let mut displaced = self.displaced.clone();
        for ((bucket, now), before) in (0..).zip(&deal.buckets).zip(before) {
            let now = now.and_then(|now| next_hops.get(usize::from(now))).map(NextHop::key);
            let home = displaced.get(&bucket).copied().or(before);
            // One that gives up a bucket although it lives does not get it back.
            match home.filter(|home| rebalance == Rebalance::Off || place(*home).is_none()) {
                Some(home) if now != Some(home) => drop(displaced.insert(bucket, home)),
                _ => drop(displaced.remove(&bucket)),
            }
        }
        let buckets = deal.buckets.into_iter().flatten().collect();
        Self { next_hops, buckets, displaced }
    }

    /// The next hop for a flow whose outer headers have this hash (see [`entropy::path_hash`]).
    #[must_use]
    pub fn choose(&self, hash: u64) -> Option<&NextHop> {
        match self.next_hops.as_slice() {
            [] => None,
            [only] => Some(only),
            next_hops => next_hops.get(usize::from(*self.buckets.get(bucket(hash))?)),
        }
    }

    /// All next hops.
    #[must_use]
    pub fn next_hops(&self) -> &[NextHop] {
        &self.next_hops
    }

    /// Whether a default route leads here.
    #[must_use]
    pub fn by_default(&self) -> bool {
        self.next_hops.iter().any(|hop| hop.by_default)
    }
}

/// The bucket that a flow's hash names.
#[must_use]
pub fn bucket(hash: u64) -> usize {
    entropy::choose(hash, BUCKETS)
}

/// How many buckets each next hop is due: the bounds of the shares are rounded, so that they add up
/// (`nh_res_group_rebalance()`, `net/ipv4/nexthop.c`).
fn shares(next_hops: &[NextHop]) -> Vec<i32> {
    let weight = |hop: &NextHop| u64::from(hop.weight.max(1));
    let total: u64 = next_hops.iter().map(weight).sum();
    let (mut sum, mut bound) = (0, 0);
    let share = |hop: &NextHop| {
        sum += weight(hop);
        let upper = (sum * BUCKETS as u64 + total / 2) / total;
        let share = upper - bound;
        bound = upper;
        share as i32
    };
    next_hops.iter().map(share).collect()
}

/// The dealing of buckets to next hops.
struct Deal {
    /// How many buckets each next hop has too few; less than 0 is too many.
    missing: Vec<i32>,
    buckets: Vec<Option<u16>>,
}

impl Deal {
    /// Gives a bucket to the next hop that had it at first, if that one has too few.
    fn give_back(&mut self, bucket: usize, home: u16, rebalance: Rebalance) {
        let Some(place) = self.buckets.get_mut(bucket) else { return };
        let stays = place.is_some() && rebalance == Rebalance::Off;
        if stays || self.missing.get(usize::from(home)).is_none_or(|missing| *missing <= 0) {
            return;
        }
        let owner = place.replace(home);
        self.count(owner, 1);
        self.count(Some(home), -1);
    }

    /// Takes these buckets from next hops that have too many.
    fn take_surplus(&mut self, buckets: impl Iterator<Item = u16>) {
        for bucket in buckets {
            let Some(place) = self.buckets.get_mut(usize::from(bucket)) else { continue };
            let Some(owner) = *place else { continue };
            if self.missing.get(usize::from(owner)).is_some_and(|missing| *missing < 0) {
                *place = None;
                self.count(Some(owner), 1);
            }
        }
    }

    fn count(&mut self, owner: Option<u16>, missing: i32) {
        if let Some(of_owner) = owner.and_then(|owner| self.missing.get_mut(usize::from(owner))) {
            *of_owner += missing;
        }
    }

    /// Deals the buckets that nobody has, in order, to the next hops that have too few, in order.
    fn rest(&mut self) {
        let mut due = (0u16..)
            .zip(&self.missing)
            .flat_map(|(hop, missing)| std::iter::repeat_n(hop, usize::try_from(*missing).unwrap_or(0)));
        for place in self.buckets.iter_mut().filter(|place| place.is_none()) {
            *place = due.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hop(ifindex: u32, weight: u16) -> NextHop {
        NextHop {
            ifindex,
            gateway: IpAddr::from([10, 0, 0, 1]),
            source_mac: MacAddr([2; 6]),
            destination_mac: None,
            mtu: 1500,
            weight,
            path: 0,
            by_default: false,
            impaired: false,
        }
    }

    fn hops(of: impl IntoIterator<Item = u32>) -> Vec<NextHop> {
        of.into_iter().map(|ifindex| hop(ifindex, 1)).collect()
    }

    /// The interface of each bucket.
    fn owners(paths: &Paths) -> Vec<u32> {
        let owner = |bucket: &u16| paths.next_hops[usize::from(*bucket)].ifindex;
        paths.buckets.iter().map(owner).collect()
    }

    fn count(paths: &Paths, ifindex: u32) -> usize {
        owners(paths).into_iter().filter(|owner| *owner == ifindex).count()
    }

    /// Hashes of 20,000 flows that differ in their source port and address alone.
    fn hashes() -> impl Iterator<Item = u64> {
        let local = IpAddr::from([10, 0, 0, 11]);
        (0..20_000u16)
            .map(move |n| entropy::path_hash(1, local, IpAddr::from([10, 0, 0, 12]), 40_000 + n, 4789))
    }

    #[test]
    fn no_next_hop_is_no_choice_and_one_is_every_choice() {
        assert_eq!(Paths::default().choose(7), None);
        assert_eq!(Paths::new(Vec::new()).choose(7), None);
        let one = Paths::new(vec![hop(3, 256)]);
        assert!(hashes().all(|hash| one.choose(hash).is_some_and(|hop| hop.ifindex == 3)));
    }

    #[test]
    fn flows_are_dealt_by_weight() {
        let weights = [1u16, 3, 12];
        let paths =
            Paths::new(weights.iter().zip(0..).map(|(weight, ifindex)| hop(ifindex, *weight)).collect());
        let mut dealt = [0u32; 3];
        for hash in hashes() {
            dealt[paths.choose(hash).unwrap().ifindex as usize] += 1;
        }
        let chi_squared: f64 = weights
            .iter()
            .zip(dealt)
            .map(|(weight, dealt)| {
                let expected = 20_000.0 * f64::from(*weight) / 16.0;
                (f64::from(dealt) - expected).powi(2) / expected
            })
            .sum();
        // p = 0.001 at two degrees of freedom.
        assert!(chi_squared < 13.82, "{dealt:?}: {chi_squared}");
    }

    #[test]
    fn equal_paths_choose_equally_and_a_weight_of_nothing_counts_as_one() {
        let (a, b) = (Paths::new(vec![hop(1, 1), hop(2, 1)]), Paths::new(vec![hop(1, 0), hop(2, 0)]));
        for hash in hashes() {
            assert_eq!(a.choose(hash).map(|hop| hop.ifindex), b.choose(hash).map(|hop| hop.ifindex));
        }
    }

    #[test]
    fn losing_a_next_hop_moves_only_its_buckets_and_evenly() {
        let before = Paths::new(hops(0..16));
        let after = before.follow(hops((0..16).filter(|n| *n != 5)), Rebalance::On);
        for (before, after) in owners(&before).into_iter().zip(owners(&after)) {
            assert!(before == after || (before == 5 && after != 5), "{before} to {after}");
        }
        for ifindex in (0..16).filter(|n| *n != 5) {
            assert!((68..=69).contains(&count(&after, ifindex)), "{ifindex}: {}", count(&after, ifindex));
        }
    }

    #[test]
    fn a_next_hop_that_returns_gets_its_own_buckets_back() {
        let before = Paths::new(hops(0..4));
        // Also when others went and came in the meantime, in another order.
        for losses in [&[1][..], &[1, 3], &[3, 1, 0], &[0, 1, 2, 3]] {
            let mut alive: Vec<u32> = (0..4).collect();
            let mut paths = before.clone();
            for lost in losses {
                alive.retain(|n| n != lost);
                paths = paths.follow(hops(alive.iter().copied()), Rebalance::On);
            }
            for back in losses {
                alive.push(*back);
                alive.sort_unstable();
                paths = paths.follow(hops(alive.iter().copied()), Rebalance::On);
            }
            assert!(paths == before, "after losing {losses:?}");
        }
    }

    #[test]
    fn without_rebalancing_a_flow_moves_only_when_its_next_hop_is_lost() {
        let before = Paths::new(hops(0..4));
        let lost = before.follow(hops([0, 2, 3]), Rebalance::Off);
        let back = lost.follow(hops(0..4), Rebalance::Off);
        assert!(owners(&back) == owners(&lost));
        // What another one loses, the returned one gets, its own buckets first.
        let next = back.follow(hops([1, 2, 3]), Rebalance::Off);
        for ((home, back), next) in owners(&before).into_iter().zip(owners(&back)).zip(owners(&next)) {
            assert!(next == back || back == 0, "{back} to {next}");
            assert!(home != 1 || back != 0 || next == 1, "its own");
        }
        assert!(next.follow(hops(0..4), Rebalance::On) == before, "turned on later");
        // After all were lost, nothing is left to keep but the memory.
        assert!(before.follow(Vec::new(), Rebalance::Off).follow(hops(0..4), Rebalance::Off) == before);
    }

    #[test]
    fn a_new_next_hop_takes_no_more_than_its_share() {
        let before = Paths::new(hops(0..3));
        let after = before.follow(hops(0..4), Rebalance::On);
        let moved = owners(&before).into_iter().zip(owners(&after)).filter(|(from, to)| from != to);
        assert_eq!(moved.filter(|(_, to)| *to == 3).count(), BUCKETS / 4);
        assert_eq!([0, 1, 2, 3].map(|n| count(&after, n)), [BUCKETS / 4; 4]);
    }

    #[test]
    fn another_mac_address_of_a_gateway_moves_nothing() {
        let before = Paths::new(hops(0..3)).follow(hops([0, 2]), Rebalance::On);
        let changed = hops([0, 2]).into_iter().map(|hop| NextHop { mtu: 9000, ..hop }).collect();
        let after = before.follow(changed, Rebalance::On);
        assert!(owners(&after) == owners(&before));
        assert!(after.next_hops().iter().all(|hop| hop.mtu == 9000));
    }

    proptest! {
        /// Whatever comes and goes: every next hop has exactly its share, and nothing moves but to bring that about, or
        /// to go back where it was.
        #[test]
        fn shares_are_exact_and_moves_are_few(groups in prop::collection::vec(
            prop::collection::btree_map(0u32..12, 1u16..=256, 0..12), 1..6)
        ) {
            let mut paths = Paths::default();
            for group in groups {
                let next: Vec<_> = group.into_iter().map(|(ifindex, weight)| hop(ifindex, weight)).collect();
                let due = shares(&next);
                let after = paths.follow(next.clone(), Rebalance::On);
                prop_assert_eq!(after.buckets.len(), if next.is_empty() { 0 } else { BUCKETS });
                for (hop, due) in next.iter().zip(&due) {
                    prop_assert_eq!(count(&after, hop.ifindex), *due as usize);
                }
                let total: u32 = next.iter().map(|hop| u32::from(hop.weight)).sum();
                for (hop, due) in next.iter().zip(&due) {
                    let exact = f64::from(hop.weight) * BUCKETS as f64 / f64::from(total);
                    prop_assert!((f64::from(*due) - exact).abs() <= 1.0, "{} of {}", due, exact);
                }
                let returns = |key: &Key| next.iter().any(|hop| hop.key() == *key);
                if !paths.next_hops.is_empty() && !next.is_empty() && !paths.displaced.values().any(returns) {
                    let moved = owners(&paths).into_iter().zip(owners(&after)).filter(|(from, to)| from != to);
                    let must = paths.next_hops.iter().map(|hop| {
                        let kept = next.iter().position(|other| other.ifindex == hop.ifindex);
                        let due = kept.map_or(0, |place| due[place] as usize);
                        count(&paths, hop.ifindex).saturating_sub(due)
                    });
                    prop_assert_eq!(moved.count(), must.sum::<usize>());
                }
                let off = paths.follow(next.clone(), Rebalance::Off);
                for (before, after) in owners(&paths).into_iter().zip(owners(&off)) {
                    prop_assert!(before == after || next.iter().all(|hop| hop.ifindex != before));
                }
                paths = after;
            }
        }
    }
}
