//! What differs between two steering plans.
//!
//! The BPF maps, the log and the events of a publication all follow from this one comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::bypass::{BypassPort, MacLocationChange};
use crate::steering::{PortChoice, SteeringPlan, TakenVni, Uplink};

/// What differs between two sets of values with keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<T> {
    /// Values whose keys are gone.
    pub removed: Vec<T>,
    /// Values that differ for one key: the old and the new one.
    pub changed: Vec<(T, T)>,
    /// Values with new keys.
    pub added: Vec<T>,
}

impl<T> Default for Difference<T> {
    fn default() -> Self {
        Self { removed: Vec::new(), changed: Vec::new(), added: Vec::new() }
    }
}

impl<T: Clone + PartialEq> Difference<T> {
    /// Compares two maps.
    #[must_use]
    pub fn between<K: Ord>(before: &BTreeMap<K, T>, after: &BTreeMap<K, T>) -> Self {
        let mut difference = Self::default();
        for (key, old) in before {
            match after.get(key) {
                None => difference.removed.push(old.clone()),
                Some(new) if new != old => difference.changed.push((old.clone(), new.clone())),
                Some(_) => {}
            }
        }
        let new = after.iter().filter(|(key, _)| !before.contains_key(key));
        difference.added.extend(new.map(|(_, new)| new.clone()));
        difference
    }

    /// Compares two sets. Nothing counts as changed.
    #[must_use]
    pub fn of_sets(before: &BTreeSet<T>, after: &BTreeSet<T>) -> Self
    where
        T: Ord,
    {
        Self {
            removed: before.difference(after).cloned().collect(),
            changed: Vec::new(),
            added: after.difference(before).cloned().collect(),
        }
    }

    /// The values that are new or have changed.
    pub fn set(&self) -> impl Iterator<Item = &T> {
        self.changed.iter().map(|(_, new)| new).chain(&self.added)
    }

    /// Whether there is no difference.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.changed.is_empty() && self.added.is_empty()
    }
}

/// What differs between two steering plans, and the addresses that have moved between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SteeringDiff {
    /// Uplinks. Those that change have another name.
    pub uplinks: Difference<Uplink>,
    /// The new sources that are redirected at uplinks with a reverse path filter, if they differ.
    pub checked_sources: Option<BTreeMap<u32, BTreeSet<Ipv4Addr>>>,
    /// VNIs taken over.
    pub vnis: Difference<TakenVni>,
    /// Ports of the bridge bypass.
    pub ports: Difference<BypassPort>,
    /// Source port policies for frames that the kernel encapsulates.
    pub choices: Difference<PortChoice>,
    /// Vxlan netdevs that need a program at their egress no longer.
    pub unhooked: BTreeSet<u32>,
    /// Addresses that appeared at a location or left one.
    pub mac_locations: Arc<[MacLocationChange]>,
}

impl SteeringDiff {
    /// Compares two plans. `mac_locations`: the addresses that have moved between them.
    #[must_use]
    pub fn between(
        before: &SteeringPlan,
        after: &SteeringPlan,
        mac_locations: Arc<[MacLocationChange]>,
    ) -> Self {
        let checked = &after.checked_sources;
        Self {
            uplinks: Difference::between(&by_index(&before.uplinks), &by_index(&after.uplinks)),
            checked_sources: (before.checked_sources != *checked).then(|| checked.clone()),
            vnis: Difference::between(&before.vnis, &after.vnis),
            ports: Difference::between(&before.ports, &after.ports),
            choices: Difference::between(&before.choices, &after.choices),
            unhooked: before.hooked().filter(|ifindex| !after.is_hooked(*ifindex)).collect(),
            mac_locations,
        }
    }

    /// The difference between two equal plans.
    #[must_use]
    pub fn only_mac_locations(mac_locations: Arc<[MacLocationChange]>) -> Self {
        Self { mac_locations, ..Self::default() }
    }

    /// Whether only addresses of the bypass differ.
    #[must_use]
    pub fn has_only_mac_locations(&self) -> bool {
        self.uplinks.is_empty()
            && self.checked_sources.is_none()
            && self.vnis.is_empty()
            && self.ports.is_empty()
            && self.choices.is_empty()
            && self.unhooked.is_empty()
    }

    /// The VNIs that are given back before workers get the new tables: they are gone, or have
    /// another index or address.
    pub fn released_vnis(&self) -> impl Iterator<Item = &TakenVni> {
        let moved = self.vnis.changed.iter().filter(|(old, new)| !old.is_same_place(new));
        self.vnis.removed.iter().chain(moved.map(|(old, _)| old))
    }
}

fn by_index(uplinks: &BTreeSet<Uplink>) -> BTreeMap<u32, Uplink> {
    uplinks.iter().map(|uplink| (uplink.ifindex, uplink.clone())).collect()
}

#[cfg(test)]
mod tests {
    use wire::Vni;

    use super::*;
    use crate::snapshot::VniIndex;
    use crate::steering::VniSource;

    fn taken(ifindex: u32, index: u16, frame_limit: u32) -> (VniSource, TakenVni) {
        let source = VniSource::Netdev(ifindex);
        let vni = TakenVni {
            vni: Vni::try_from(ifindex).unwrap(),
            source,
            name: format!("vx{ifindex}"),
            index: VniIndex::new(index).unwrap(),
            local: [10, 0, 0, 1].into(),
            destination_port: 4789,
            frame_limit,
        };
        (source, vni)
    }

    fn plan(vnis: impl IntoIterator<Item = (VniSource, TakenVni)>) -> SteeringPlan {
        SteeringPlan { vnis: vnis.into_iter().collect(), ..SteeringPlan::default() }
    }

    #[test]
    fn equal_plans_differ_in_nothing() {
        let plan = plan([taken(5, 1, 1500)]);
        let diff = SteeringDiff::between(&plan, &plan, Arc::default());
        assert_eq!(diff, SteeringDiff::default());
        assert!(diff.has_only_mac_locations());
    }

    #[test]
    fn a_vni_with_another_index_is_given_back_and_one_with_another_limit_is_not() {
        let before = plan([taken(5, 1, 1500), taken(6, 2, 1500), taken(7, 3, 1500)]);
        let after = plan([taken(5, 4, 1500), taken(6, 2, 1400), taken(8, 5, 1500)]);
        let diff = SteeringDiff::between(&before, &after, Arc::default());
        let released: Vec<&str> = diff.released_vnis().map(|vni| vni.name.as_str()).collect();
        assert_eq!(released, ["vx7", "vx5"]);
        let set: Vec<&str> = diff.vnis.set().map(|vni| vni.name.as_str()).collect();
        assert_eq!(set, ["vx5", "vx6", "vx8"]);
        assert_eq!(diff.unhooked, BTreeSet::from([7]), "the others keep their programs");
        assert!(!diff.has_only_mac_locations());
    }
}
