//! The live next hops of a remote VTEP, and the choice of one for a flow.
//!
//! As in Linux's resilient next-hop groups (`net/ipv4/nexthop.c`), the hash of a flow selects one
//! of a fixed number of buckets. Each bucket belongs to a next hop. The assignment depends on the
//! next hops alone, see [`crate::placement`].
//!
//! If a next hop is lost, its buckets are given to the others, and no other flow moves. If it
//! returns, it gets the same buckets again. The kernel moves a bucket only when it is idle. Here it
//! moves immediately: flows of RoCE queue pairs are long-lived, and workers keep no timestamp for
//! each bucket.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use wire::MacAddr;

use crate::placement::{Member, deal, is_part_of, next_identity, reduced, shares};
use crate::version::Version;

/// Number of buckets of every group. With 16 next hops of equal weight each has 64 buckets.
pub const BUCKETS: usize = 1024;

/// A next hop: an adjacency on an uplink.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The uplink's interface index.
    pub ifindex: u32,
    /// The gateway, or the VTEP itself if it is on-link.
    pub gateway: IpAddr,
    /// Identifies the next hop within its group and decides which flows it gets
    /// ([`crate::placement::identity`]).
    pub identity: u64,
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
    /// Whether only the default route (`0.0.0.0/0`) leads here. Frames that use it are counted.
    pub by_default: bool,
    /// Whether the uplink's queueing discipline shapes or impairs packets (netem, tbf). If so,
    /// frames are sent without GSO.
    pub impaired: bool,
}

/// Whether buckets may move from a live next hop to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rebalance {
    /// As many buckets move as are needed to give every next hop its share. The assignment depends
    /// on the next hops alone: when all are back, every flow is where it was.
    #[default]
    On,
    /// None move. A next hop that is new or has returned gets no buckets until another one is lost.
    /// The assignment therefore depends on the order of events since the daemon started.
    Off,
}

/// The live next hops of one VTEP, with their buckets.
///
/// Two groups are equal if they forward equally; their versions may differ.
#[derive(Debug, Clone, Default)]
pub struct Paths {
    next_hops: Vec<NextHop>,
    /// [`BUCKETS`] indices into `next_hops`. Empty without next hops.
    buckets: Box<[u16]>,
    /// The complete group, sorted: the live next hops, and those lost since the group was last
    /// complete.
    group: Box<[Member]>,
    /// Whether [`Rebalance::Off`] kept buckets away from the next hop that `group` assigns them to.
    kept: bool,
    /// See [`Self::version`].
    version: Version<Self>,
}

impl PartialEq for Paths {
    fn eq(&self, other: &Self) -> bool {
        let Self { next_hops, buckets, group, kept, version: _ } = self;
        (next_hops, buckets, group, kept)
            == (&other.next_hops, &other.buckets, &other.group, &other.kept)
    }
}

impl Eq for Paths {}

impl Hash for Paths {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { next_hops, buckets, group, kept, version: _ } = self;
        (next_hops, buckets, group, kept).hash(state);
    }
}

/// The next hops as sorted members, and for each member the index of its next hop.
fn members(next_hops: &[NextHop]) -> (Vec<Member>, Vec<u16>) {
    let mut places: Vec<(u64, IpAddr, u16)> =
        next_hops.iter().zip(0..).map(|(hop, place)| (hop.identity, hop.gateway, place)).collect();
    places.sort_unstable();
    let mut before = None;
    for (identity, ..) in &mut places {
        let own = *identity;
        if let Some((same, used)) = before.filter(|(same, _)| *same == own) {
            *identity = next_identity(used);
            before = Some((same, *identity));
        } else {
            before = Some((own, own));
        }
    }
    places.sort_unstable();
    let weight = |place: u16| next_hops.get(usize::from(place)).map_or(1, |hop| hop.weight);
    let member = |(identity, _, place): &(u64, IpAddr, u16)| Member {
        identity: *identity,
        weight: weight(*place),
    };
    (places.iter().map(member).collect(), places.iter().map(|(.., place)| *place).collect())
}

impl Paths {
    /// Paths over these next hops. Their order does not matter.
    #[must_use]
    pub fn new(next_hops: Vec<NextHop>) -> Self {
        Self::default().follow(next_hops, Rebalance::On)
    }

    /// The paths after the next hops have changed to these.
    #[must_use]
    pub fn follow(&self, next_hops: Vec<NextHop>, rebalance: Rebalance) -> Self {
        let (alive, places) = members(&next_hops);
        let group = if is_part_of(&alive, &self.group) {
            self.group.clone()
        } else {
            alive.as_slice().into()
        };
        if alive.is_empty() {
            return Self {
                next_hops,
                buckets: Box::default(),
                group,
                kept: false,
                version: Version::unique(),
            };
        }
        let due = reduced(&group, &alive);
        let owners = match rebalance {
            Rebalance::Off if !self.buckets.is_empty() => self.keep(&alive, &due),
            _ => due.clone(),
        };
        let kept = owners != due;
        let buckets =
            owners.iter().filter_map(|owner| places.get(usize::from(*owner)).copied()).collect();
        Self { next_hops, buckets, group, kept, version: Version::unique() }
    }

    /// The owner of each bucket if no bucket leaves a live next hop. The other buckets go to the
    /// owner in `due` as long as it has less than its share, then to any member below its share.
    fn keep(&self, alive: &[Member], due: &[u16]) -> Vec<u16> {
        let place = |identity: u64| {
            let place = alive.binary_search_by_key(&identity, |member| member.identity).ok()?;
            u16::try_from(place).ok()
        };
        let mut owners: Vec<Option<u16>> =
            self.owners().into_iter().map(|owner| place(owner?)).collect();
        let mut missing = shares(alive);
        for owner in owners.iter().flatten() {
            if let Some(missing) = missing.get_mut(usize::from(*owner)) {
                *missing = missing.saturating_sub(1);
            }
        }
        for (owner, due) in owners.iter_mut().zip(due).filter(|(owner, _)| owner.is_none()) {
            if let Some(missing) =
                missing.get_mut(usize::from(*due)).filter(|missing| **missing > 0)
            {
                *owner = Some(*due);
                *missing -= 1;
            }
        }
        deal(&mut owners, alive);
        owners.into_iter().flatten().collect()
    }

    /// The identity of each bucket's owner. Empty without next hops.
    fn owners(&self) -> Vec<Option<u64>> {
        let (members, places) = members(&self.next_hops);
        let mut identities = vec![None; self.next_hops.len()];
        for (member, place) in members.iter().zip(places) {
            if let Some(identity) = identities.get_mut(usize::from(place)) {
                *identity = Some(member.identity);
            }
        }
        let owner = |bucket: &u16| identities.get(usize::from(*bucket)).copied().flatten();
        self.buckets.iter().map(owner).collect()
    }

    /// Number of buckets whose next hop differs from the one in `before`.
    #[must_use]
    pub fn moved_since(&self, before: &Self) -> usize {
        before.owners().iter().zip(self.owners()).filter(|(from, to)| **from != *to).count()
    }

    /// Whether next hops are missing that the group had when it was last complete.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.next_hops.len() < self.group.len()
    }

    /// The version of the group. Clones have the same.
    #[must_use]
    pub const fn version(&self) -> Version<Self> {
        self.version
    }

    /// The live next hop with this [`NextHop::identity`].
    #[must_use]
    pub fn find(&self, identity: u64) -> Option<&NextHop> {
        self.next_hops.iter().find(|hop| hop.identity == identity)
    }

    /// The next hop for a flow with this hash of its outer headers ([`crate::path_hash()`]).
    #[must_use]
    pub fn choose(&self, hash: u64) -> Option<&NextHop> {
        match self.next_hops.as_slice() {
            [] => None,
            [only] => Some(only),
            next_hops => next_hops.get(usize::from(*self.buckets.get(bucket(hash))?)),
        }
    }

    /// The owner of each bucket as an index into [`Self::next_hops`]: [`BUCKETS`] numbers, or none
    /// without next hops.
    #[must_use]
    pub fn buckets(&self) -> &[u16] {
        &self.buckets
    }

    /// All next hops.
    #[must_use]
    pub fn next_hops(&self) -> &[NextHop] {
        &self.next_hops
    }

    /// Whether one of the next hops is reached by the default route only.
    #[must_use]
    pub fn by_default(&self) -> bool {
        self.next_hops.iter().any(|hop| hop.by_default)
    }
}

/// The bucket that a flow's hash selects.
#[must_use]
pub fn bucket(hash: u64) -> usize {
    crate::choose(hash, BUCKETS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::identity;

    fn hop(ifindex: u32, weight: u16) -> NextHop {
        NextHop {
            ifindex,
            gateway: IpAddr::from([10, 0, 0, 1]),
            identity: identity(&format!("up{ifindex}"), 0),
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

    /// The interface index of each bucket's next hop.
    fn owners(paths: &Paths) -> Vec<u32> {
        let owner = |bucket: &u16| paths.next_hops[usize::from(*bucket)].ifindex;
        paths.buckets.iter().map(owner).collect()
    }

    fn count(paths: &Paths, ifindex: u32) -> usize {
        owners(paths).into_iter().filter(|owner| *owner == ifindex).count()
    }

    /// Hashes of 20,000 flows that differ in source port and address only.
    fn hashes() -> impl Iterator<Item = u64> {
        let local = IpAddr::from([10, 0, 0, 11]);
        (0..20_000u16).map(move |n| {
            crate::path_hash(1, local, IpAddr::from([10, 0, 0, 12]), 40_000 + n, 4789)
        })
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
        let paths = Paths::new(
            weights.iter().zip(0..).map(|(weight, ifindex)| hop(ifindex, *weight)).collect(),
        );
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
        let (a, b) =
            (Paths::new(vec![hop(1, 1), hop(2, 1)]), Paths::new(vec![hop(1, 0), hop(2, 0)]));
        for hash in hashes() {
            assert_eq!(
                a.choose(hash).map(|hop| hop.ifindex),
                b.choose(hash).map(|hop| hop.ifindex)
            );
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
            assert!(
                (68..=69).contains(&count(&after, ifindex)),
                "{ifindex}: {}",
                count(&after, ifindex)
            );
        }
    }

    #[test]
    fn a_next_hop_that_returns_gets_its_own_buckets_back() {
        let before = Paths::new(hops(0..4));
        // Also if several were lost and returned, in another order.
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
        // The buckets of the lost next hop go to the returned one, its original buckets first.
        let next = back.follow(hops([1, 2, 3]), Rebalance::Off);
        for ((home, back), next) in
            owners(&before).into_iter().zip(owners(&back)).zip(owners(&next))
        {
            assert!(next == back || back == 0, "{back} to {next}");
            assert!(home != 1 || back != 0 || next == 1, "its own");
        }
        assert!(next.follow(hops(0..4), Rebalance::On) == before, "turned on later");
        // After all next hops were lost, only the complete group is remembered.
        assert!(
            before.follow(Vec::new(), Rebalance::Off).follow(hops(0..4), Rebalance::Off) == before
        );
    }

    #[test]
    fn a_new_next_hop_takes_no_more_than_its_share() {
        let before = Paths::new(hops(0..3));
        let after = before.follow(hops(0..4), Rebalance::On);
        let moved = owners(&before).into_iter().zip(owners(&after)).filter(|(from, to)| from != to);
        assert_eq!(moved.filter(|(_, to)| *to == 3).count(), BUCKETS / 4);
        assert_eq!(
            after.moved_since(&before),
            owners(&before).iter().zip(owners(&after)).filter(|(a, b)| *a != b).count()
        );
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

    #[test]
    fn the_order_the_index_and_a_link_local_gateway_change_nothing() {
        let before = Paths::new(hops(0..5));
        let renamed = |hop: NextHop| NextHop {
            gateway: "fe80::1".parse().unwrap(),
            ifindex: hop.ifindex + 100,
            ..hop
        };
        let after =
            before.follow(hops((0..5).rev()).into_iter().map(renamed).collect(), Rebalance::On);
        assert_eq!(after.moved_since(&before), 0);
        let renumbered: Vec<u32> =
            owners(&after).into_iter().map(|ifindex| ifindex - 100).collect();
        assert!(renumbered == owners(&before));
    }

    #[test]
    fn two_next_hops_of_one_identity_have_a_share_each() {
        let gateways = |order: [u8; 3]| {
            let hop = |last| NextHop {
                gateway: IpAddr::from([10, 0, 0, last]),
                ifindex: last.into(),
                ..hop(7, 1)
            };
            Paths::new(order.map(hop).into())
        };
        let paths = gateways([1, 2, 3]);
        assert!(
            [1, 2, 3].iter().all(|n| (341..=342).contains(&count(&paths, *n))),
            "{:?}",
            owners(&paths)
        );
        assert!(owners(&gateways([3, 1, 2])) == owners(&paths));
    }

    proptest! {
        /// The assignment is that of a new start in two cases: the new next hops are not a subset
        /// of the group before, or all next hops of the group are back.
        #[test]
        fn history_does_not_matter(groups in prop::collection::vec(
            prop::collection::btree_map(0u32..12, 1u16..=256, 0..12), 1..6)
        ) {
            let mut paths = Paths::default();
            for group in groups {
                let next = |keep: u32| -> Vec<NextHop> {
                    group.iter().filter(|(n, _)| *n % keep != 1).map(|(n, weight)| hop(*n, *weight)).collect()
                };
                let reduced = is_part_of(&members(&next(99)).0, &paths.group);
                paths = paths.follow(next(99), Rebalance::On);
                let new = Paths::new(next(99));
                prop_assert!(reduced || paths == new);
                // Some are lost, in one step or in two, and come back.
                for lost in [2, 3] {
                    let less = new.follow(next(lost), Rebalance::On);
                    let in_two_steps = new.follow(next(5), Rebalance::On).follow(next(lost), Rebalance::On);
                    prop_assert!(owners(&less) == owners(&in_two_steps));
                    prop_assert!(less.follow(next(99), Rebalance::On) == new);
                    let off = new.follow(next(lost), Rebalance::Off);
                    prop_assert!(off == less, "a loss is the same without rebalancing");
                    let back = off.follow(next(99), Rebalance::Off);
                    prop_assert!(less.next_hops.is_empty() || back.moved_since(&off) == 0);
                    prop_assert!(back.follow(next(99), Rebalance::On) == new);
                }
            }
        }
    }
}
