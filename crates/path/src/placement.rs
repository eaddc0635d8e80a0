//! The assignment of buckets to next hops, as a function of the next hops alone.
//!
//! [`whole`] assigns the buckets of a complete group, [`reduced`] those of a group that has lost
//! members. Both depend on the identities and weights of the members only. The order of the next
//! hops, interface indices and earlier assignments do not matter. When a group is complete again
//! after any number of flaps, it has its first assignment again. A vtepd that was started in the
//! meantime computes the same.
//!
//! Each pair of a bucket and a member has a score, a hash of both (rendezvous hashing). Pairs are
//! processed in the order of their scores. A bucket goes to the member of its first pair whose
//! member is still below its share. Without this limit, shares would be right only on average. The
//! limit moves a few more buckets when a *complete* group changes, that is when a member is added
//! or its weight changes: some buckets move between members that were there before. The test
//! `adding_a_member_moves_few_buckets_beside_its_own` bounds their number.
//!
//! If a member is lost, only its buckets move: [`reduced`] keeps the other assignments of the
//! complete group. A vtepd that starts while a member is lost does not know the complete group, and
//! treats the smaller one as complete. With two uplinks the result is the same. With more, some
//! flows use another next hop until the member is back;
//! `a_start_while_a_member_is_lost_differs_little` bounds their number.

use crate::group::BUCKETS;
use crate::hash::hash;

/// Domain separator for scores.
const SCORE: u64 = 0x706c_6163_6500_0001;
/// Domain separator for identities.
const IDENTITY: u64 = 0x706c_6163_6500_0002;

/// The identity of a next hop: the name of its interface and its gateway, or 0 instead of a
/// link-local gateway.
///
/// Interface indices and link-local gateways, which depend on MAC addresses, do not identify a next
/// hop: both may change when interfaces are created again.
#[must_use]
pub fn identity(interface: &str, gateway: u128) -> u64 {
    let name = interface.bytes().fold(0, |state, byte| hash(IDENTITY, [state, u64::from(byte)]));
    hash(IDENTITY, [name, (gateway >> 64) as u64, gateway as u64])
}

/// One next hop of a group: the facts that decide which buckets it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Member {
    pub(crate) identity: u64,
    pub(crate) weight: u16,
}

impl Member {
    fn weight(self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// The next identity to try if this one is already used.
pub(crate) fn next_identity(identity: u64) -> u64 {
    hash(IDENTITY, [identity])
}

/// The number of buckets for each member. Cumulative sums are rounded, so that the shares add up to
/// [`BUCKETS`] (`nh_res_group_rebalance()`, `net/ipv4/nexthop.c`).
pub(crate) fn shares(members: &[Member]) -> Vec<usize> {
    let total: u64 = members.iter().map(|member| member.weight()).sum();
    let (mut sum, mut bound) = (0, 0);
    let share = |member: &Member| {
        sum += member.weight();
        let upper = (sum * BUCKETS as u64 + total / 2) / total;
        let share = upper - bound;
        bound = upper;
        usize::try_from(share).unwrap_or(BUCKETS)
    };
    members.iter().map(share).collect()
}

/// Whether `part` is a subset of `group` with weights in the same proportion.
pub(crate) fn is_part_of(part: &[Member], group: &[Member]) -> bool {
    let mut factor = None;
    part.iter().all(|member| {
        let found = group.binary_search_by_key(&member.identity, |other| other.identity);
        let Some(other) = found.ok().and_then(|place| group.get(place)) else { return false };
        let (here, there) = *factor.get_or_insert((member.weight(), other.weight()));
        member.weight() * there == other.weight() * here
    })
}

/// The owner of each bucket in a complete group, as an index into `members`, which are sorted.
/// Empty without members.
pub(crate) fn whole(members: &[Member]) -> Vec<u16> {
    let mut owners = vec![None; BUCKETS];
    deal(&mut owners, members);
    owners.into_iter().flatten().collect()
}

/// The owner of each bucket, as an index into `alive`, if only these members of `group` are left.
/// Both are sorted.
pub(crate) fn reduced(group: &[Member], alive: &[Member]) -> Vec<u16> {
    let place = |owner: u16| {
        let identity = group.get(usize::from(owner))?.identity;
        let place = alive.binary_search_by_key(&identity, |member| member.identity).ok()?;
        u16::try_from(place).ok()
    };
    let mut owners: Vec<Option<u16>> = whole(group).into_iter().map(place).collect();
    deal(&mut owners, alive);
    owners.into_iter().flatten().collect()
}

/// Assigns buckets without owner to members below their share, in the order of the scores.
pub(crate) fn deal(owners: &mut [Option<u16>], members: &[Member]) {
    if members.len() == 1 {
        return owners.fill(Some(0));
    }
    let mut due = shares(members);
    for owner in owners.iter().flatten() {
        if let Some(due) = due.get_mut(usize::from(*owner)) {
            *due = due.saturating_sub(1);
        }
    }
    let free = || {
        (0u16..).zip(owners.iter()).filter(|(_, owner)| owner.is_none()).map(|(bucket, _)| bucket)
    };
    let mut pairs = Vec::with_capacity(free().count() * members.len());
    for (place, member) in (0u16..).zip(members) {
        let score = |bucket| (hash(SCORE, [member.identity, u64::from(bucket)]), bucket, place);
        pairs.extend(free().map(score));
    }
    pairs.sort_unstable();
    for (_, bucket, place) in pairs {
        let Some(owner) = owners.get_mut(usize::from(bucket)) else { continue };
        let Some(due) = due.get_mut(usize::from(place)) else { continue };
        if owner.is_none() && *due > 0 {
            *owner = Some(place);
            *due -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Interfaces `up0`, `up1` and so on, with weight 1.
    fn members(of: impl IntoIterator<Item = u32>) -> Vec<Member> {
        sorted(of.into_iter().map(|number| (number, 1)))
    }

    fn sorted(of: impl IntoIterator<Item = (u32, u16)>) -> Vec<Member> {
        let member =
            |(number, weight)| Member { identity: identity(&format!("up{number}"), 0), weight };
        let mut members: Vec<Member> = of.into_iter().map(member).collect();
        members.sort_unstable();
        members
    }

    /// The identity of each bucket's owner.
    fn identities(owners: &[u16], members: &[Member]) -> Vec<u64> {
        owners.iter().map(|owner| members[usize::from(*owner)].identity).collect()
    }

    fn counts(owners: &[u16], members: &[Member]) -> Vec<usize> {
        (0..members.len())
            .map(|place| owners.iter().filter(|owner| usize::from(**owner) == place).count())
            .collect()
    }

    fn moved(before: &[u64], after: &[u64]) -> Vec<(u64, u64)> {
        before.iter().copied().zip(after.iter().copied()).filter(|(from, to)| from != to).collect()
    }

    #[test]
    fn an_identity_is_the_name_and_the_gateway() {
        let all = [identity("up1", 0), identity("up2", 0), identity("up1", 1), identity("up11", 0)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        // The same in every release and on every machine. Another value would move flows when vtepd
        // is upgraded.
        assert_eq!(identity("up1", 0), 82_722_809_212_278_125);
    }

    #[test]
    fn adding_a_member_moves_few_buckets_beside_its_own() {
        for count in 1..16 {
            let (before, after) = (members(0..count), members(0..=count));
            let new = identity(&format!("up{count}"), 0);
            let owners = [&before, &after].map(|group| identities(&whole(group), group));
            let beside = moved(&owners[0], &owners[1]).iter().filter(|(_, to)| *to != new).count();
            println!("{count} and one more: {beside} of {BUCKETS} beside");
            assert!(beside <= BUCKETS / 16, "{count}: {beside}");
        }
    }

    #[test]
    fn a_start_while_a_member_is_lost_differs_little() {
        for count in 2..=16 {
            let group = members(0..count);
            for lost in 0..count {
                let alive = members((0..count).filter(|number| *number != lost));
                let (kept, started) = (reduced(&group, &alive), whole(&alive));
                let differ = moved(&identities(&kept, &alive), &identities(&started, &alive)).len();
                println!("{count} without up{lost}: {differ} of {BUCKETS} differ");
                assert!(differ == 0 || count > 2);
                assert!(differ <= BUCKETS / 8, "{count} without {lost}: {differ}");
            }
        }
    }

    #[test]
    fn a_part_has_the_weights_in_proportion() {
        let group = sorted([(0, 2), (1, 2), (2, 4)]);
        assert!(is_part_of(&sorted([(0, 1), (1, 1)]), &group), "what is left is divided by two");
        assert!(is_part_of(&group, &group));
        assert!(is_part_of(&[], &group));
        assert!(!is_part_of(&sorted([(0, 1), (1, 2)]), &group), "another proportion");
        assert!(!is_part_of(&sorted([(0, 2), (3, 2)]), &group), "another member");
    }

    proptest! {
        /// Shares are exact. A loss moves the buckets of lost members only, in one step or in
        /// several.
        #[test]
        fn shares_are_exact_and_a_loss_moves_only_the_lost(
            group in prop::collection::btree_map(0u32..24, (1u16..=256, any::<bool>()), 1..16),
        ) {
            let all = sorted(group.iter().map(|(number, (weight, _))| (*number, *weight)));
            let owners = whole(&all);
            prop_assert_eq!(owners.len(), BUCKETS);
            prop_assert_eq!(counts(&owners, &all), shares(&all));
            let total: u64 = all.iter().map(|member| member.weight()).sum();
            for (member, share) in all.iter().zip(shares(&all)) {
                let exact = member.weight() as f64 * BUCKETS as f64 / total as f64;
                prop_assert!((share as f64 - exact).abs() <= 1.0, "{} of {}", share, exact);
            }
            prop_assert_eq!(&reduced(&all, &all), &owners);
            let alive = sorted(group.iter().filter(|(_, (_, alive))| *alive).map(|(n, (weight, _))| (*n, *weight)));
            let left = reduced(&all, &alive);
            if alive.is_empty() {
                prop_assert!(left.is_empty());
            } else {
                prop_assert_eq!(left.len(), BUCKETS);
                for (count, share) in counts(&left, &alive).into_iter().zip(shares(&alive)) {
                    // After rounding, a share may be one bucket smaller than before. No flow moves
                    // for that.
                    prop_assert!(count.abs_diff(share) <= alive.len(), "{} of {}", count, share);
                }
                for (from, to) in moved(&identities(&owners, &all), &identities(&left, &alive)) {
                    prop_assert!(alive.iter().all(|member| member.identity != from), "{} to {}", from, to);
                }
            }
        }
    }
}
