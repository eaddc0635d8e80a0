//! What differs between two publications. Log, events and steering follow from it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use tables::{
    Difference, MacLocationChange, Paths, Snapshot, SteeringDiff, VniSource, VniTable, Vtep,
};
use wire::Vni;

use crate::eligibility::ineligible::LeftToKernel;
use crate::publish::bypass::PortDecision;
use crate::publish::update::Update;

/// What differs between two publications.
#[derive(Debug, Default)]
pub struct Diff {
    /// What is steered.
    pub steering: SteeringDiff,
    /// Netdevs that stay with the kernel and did not before, or for another reason.
    pub(crate) left: Vec<LeftToKernel>,
    /// VNIs that the settings name and that no vxlan netdev has any more.
    pub(crate) missing: Vec<Vni>,
    /// Host ports with new decisions about the bridge bypass.
    pub(crate) ports: Vec<PortDecision>,
    /// VTEPs that only a default route leads to.
    pub(crate) by_default: Difference<IpAddr>,
    /// Next hops, as interface index and gateway.
    pub(crate) next_hops: Difference<(u32, IpAddr)>,
    /// Uplinks whose queueing discipline shapes or impairs packets.
    pub(crate) impaired: Difference<u32>,
    /// Buckets that have another next hop.
    pub(crate) placements: Vec<Placement>,
    /// VNIs in both publications whose tables differ: the old and the new one.
    pub(crate) tables: Vec<TableChange>,
}

/// A number of buckets of VTEPs that have another next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) buckets: usize,
    /// Whether next hops are missing, so that others have their buckets.
    pub(crate) reduced: bool,
    /// One of the VTEPs with this number, and how many there are.
    pub(crate) vtep: IpAddr,
    pub(crate) vteps: usize,
}

/// The table of a VNI in two publications.
#[derive(Debug)]
pub(crate) struct TableChange {
    pub(crate) old: Arc<VniTable>,
    pub(crate) new: Arc<VniTable>,
    /// The flood list.
    pub(crate) flood: Difference<IpAddr>,
}

impl Diff {
    /// Compares two publications. `mac_locations`: the addresses of the bridge bypass that have moved
    /// between them.
    #[must_use]
    pub fn between(
        before: &Update,
        after: &Update,
        mac_locations: Arc<[MacLocationChange]>,
    ) -> Self {
        let mut diff = Self {
            steering: if Arc::ptr_eq(&before.plan, &after.plan) {
                SteeringDiff::only_mac_locations(mac_locations)
            } else {
                SteeringDiff::between(&before.plan, &after.plan, mac_locations)
            },
            missing: after.missing.difference(&before.missing).copied().collect(),
            tables: tables(&before.snapshot, &after.snapshot),
            ..Self::default()
        };
        if !Arc::ptr_eq(&before.left, &after.left) {
            let of = |left: &LeftToKernel| left.source;
            diff.left = new_rows::<VniSource, _>(&before.left, &after.left, of);
        }
        if !Arc::ptr_eq(&before.ports, &after.ports) {
            let of = |port: &PortDecision| port.ifindex;
            diff.ports = new_rows::<u32, _>(&before.ports, &after.ports, of);
        }
        if !Arc::ptr_eq(&before.by_default, &after.by_default) {
            diff.by_default = Difference::of_sets(&before.by_default, &after.by_default);
        }
        diff.compare_next_hops(&before.snapshot, &after.snapshot);
        diff
    }

    fn compare_next_hops(&mut self, before: &Snapshot, after: &Snapshot) {
        if after.has_vteps_of(before) {
            return;
        }
        let ((old, old_uplinks), (new, uplinks)) = (next_hops(before), next_hops(after));
        self.next_hops = Difference::of_sets(&old, &new);
        self.placements = placements(before, after);
        // One that is gone is impaired no more.
        let is_gone = |of: &(&u32, &bool)| *of.1 && !uplinks.contains_key(of.0);
        self.impaired
            .removed
            .extend(old_uplinks.iter().filter(is_gone).map(|(ifindex, _)| *ifindex));
        for (ifindex, impaired) in uplinks {
            // An uplink that was not used before counts as not impaired.
            if impaired != old_uplinks.get(&ifindex).copied().unwrap_or_default() {
                let list =
                    if impaired { &mut self.impaired.added } else { &mut self.impaired.removed };
                list.push(ifindex);
            }
        }
    }
}

/// The rows of `after` that `before` does not have.
fn new_rows<K: Ord, T: Clone + PartialEq>(
    before: &[T],
    after: &[T],
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let known: BTreeMap<K, &T> = before.iter().map(|row| (key(row), row)).collect();
    after.iter().filter(|row| known.get(&key(row)) != Some(row)).cloned().collect()
}

/// The next hops of a snapshot, and whether their uplinks are impaired.
fn next_hops(snapshot: &Snapshot) -> (BTreeSet<(u32, IpAddr)>, BTreeMap<u32, bool>) {
    let mut seen = HashSet::new();
    let paths = snapshot.vteps().map(|vtep| &vtep.paths);
    let paths = paths.filter(|paths| seen.insert(Arc::as_ptr(paths)));
    let hops = paths.flat_map(|paths| paths.next_hops());
    hops.map(|hop| ((hop.ifindex, hop.gateway), (hop.ifindex, hop.impaired))).unzip()
}

/// Counts the buckets that have another next hop. VTEPs with equal numbers share one row. VTEPs
/// that had no next hop, or have none now, had no flows to move.
fn placements(before: &Snapshot, after: &Snapshot) -> Vec<Placement> {
    let old: HashMap<IpAddr, &Arc<Paths>> =
        before.vteps().map(|vtep| (vtep.address, &vtep.paths)).collect();
    let mut counted = HashMap::new();
    let mut rows: BTreeMap<(usize, bool), (IpAddr, usize)> = BTreeMap::new();
    for Vtep { address, paths: new } in after.vteps() {
        let Some(old) = old.get(address).filter(|old| !Arc::ptr_eq(old, new)) else { continue };
        if old.next_hops().is_empty() || new.next_hops().is_empty() {
            continue;
        }
        let pair = (Arc::as_ptr(old), Arc::as_ptr(new));
        let buckets = *counted.entry(pair).or_insert_with(|| new.moved_since(old));
        if buckets > 0 {
            let (vtep, vteps) = rows.entry((buckets, new.is_reduced())).or_insert((*address, 0));
            (*vtep, *vteps) = (*address.min(vtep), *vteps + 1);
        }
    }
    let row = |((buckets, reduced), (vtep, vteps))| Placement { buckets, reduced, vtep, vteps };
    rows.into_iter().map(row).collect()
}

fn tables(before: &Snapshot, after: &Snapshot) -> Vec<TableChange> {
    let flood = |table: &VniTable, snapshot: &Snapshot| -> BTreeSet<IpAddr> {
        let vteps = table.flood.iter().filter_map(|index| snapshot.vtep(*index));
        vteps.map(|vtep| vtep.address).collect()
    };
    let mut changes = Vec::new();
    for new in after.vnis() {
        let old = before.vni(new.index.get()).filter(|old| old.tunnel.vni == new.tunnel.vni);
        let Some(old) = old.filter(|old| !Arc::ptr_eq(old, new)) else { continue };
        changes.push(TableChange {
            flood: Difference::of_sets(&flood(old, before), &flood(new, after)),
            old: Arc::clone(old),
            new: Arc::clone(new),
        });
    }
    changes
}
