//! From what is known to what workers and steering go by: the building of an [`Update`].
//!
//! Only what changed is built again: an overlay's table when something was said of that overlay, the ways to the VTEPs
//! when something was said of the underlay. Everything else is shared with the publication before.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tables::{
    Learning, NextHop, Paths, Slot, Snapshot, SnapshotBuilder, SteeringPlan, TakenVni, Uplink, VniTable,
    Vtep, VtepIndex,
};
use wire::Vni;

use crate::discover::{Discovery, Terms};
use crate::leave::{LeaveReason, LeftToKernel};
use crate::overlay::Overlay;
use crate::resolver::{Adjacency, STALE, UNRESOLVED};
use crate::slots::{PathNumbers, Slots};
use crate::state::State;
use crate::underlay::Hop;

/// `NUD_STALE` (`include/uapi/linux/neighbour.h`).
const NUD_STALE: u16 = 0x04;

/// What is published: the same `Arc` as before where nothing changed.
///
/// The consumer takes steering away before it hands the snapshot to workers, and adds steering after.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// What workers forward by.
    pub snapshot: Arc<Snapshot>,
    /// What steering redirects to them.
    pub plan: Arc<SteeringPlan>,
    /// The vxlan netdevs that stay with the kernel.
    pub left: Arc<[LeftToKernel]>,
    /// VNIs that the settings name to be taken over and that no vxlan netdev has.
    pub missing: Arc<BTreeSet<Vni>>,
}

/// What was published last, and the numbers that have to stay.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    generation: u64,
    decisions: BTreeMap<u32, Decision>,
    slots: Slots,
    paths: PathNumbers,
    /// The adjacencies that taken VNIs' frames may leave by.
    pub(crate) adjacencies: BTreeSet<Adjacency>,
    last: Update,
}

impl Publication {
    /// Whether frames may leave by this adjacency.
    pub(crate) fn uses(&self, ifindex: u32, address: IpAddr) -> bool {
        self.adjacencies.contains(&Adjacency { ifindex, address })
    }

    /// Whether frames of this netdev are forwarded here.
    pub(crate) fn takes(&self, ifindex: u32) -> bool {
        matches!(self.decisions.get(&ifindex), Some(Decision::Taken { .. }))
    }

    /// What was published last.
    pub(crate) const fn last(&self) -> &Update {
        &self.last
    }
}

/// What was decided of a vxlan netdev.
#[derive(Debug)]
enum Decision {
    Taken { slot: Slot, terms: Terms, table: Arc<VniTable> },
    Left(LeftToKernel),
}

impl State {
    /// Whether anything was said that [`State::build`] has not looked at.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let dirty = &self.dirty;
        !dirty.overlays.is_empty() || dirty.all || dirty.underlay || dirty.adjacencies
    }

    /// Builds if there is anything new, and the first time in any case.
    pub fn build_what_follows(&mut self) {
        if self.is_dirty() || self.published().snapshot.generation() == 0 {
            self.build();
        }
    }

    /// Whether every next hop that frames may leave by has a MAC address.
    #[must_use]
    pub fn next_hops_resolved(&self) -> bool {
        self.publication.adjacencies.iter().all(|adjacency| {
            let known = self.neighbours.get(&(adjacency.ifindex, adjacency.address));
            known.is_some_and(|adjacent| adjacent.mac.is_some())
        })
    }

    /// What was built last.
    #[must_use]
    pub const fn published(&self) -> &Update {
        self.publication.last()
    }

    /// Builds what follows from everything said so far.
    pub fn build(&mut self) -> Update {
        let dirty = std::mem::take(&mut self.dirty);
        let mut overlays = dirty.overlays;
        let mut entries_changed = BTreeSet::new();
        let mut remotes_changed = false;
        for ifindex in &overlays {
            let settled = self.settle(*ifindex);
            remotes_changed |= settled.remotes;
            if settled.entries {
                entries_changed.insert(*ifindex);
            }
        }
        let ways_changed = self.find_ways(dirty.underlay);
        if ways_changed || dirty.all {
            overlays.extend(self.links.vxlans());
            overlays.extend(self.publication.decisions.keys());
        }
        let decided = self.decide(&overlays, &entries_changed);
        if decided || dirty.all || self.publication.generation == 0 {
            self.find_missing();
        }
        if ways_changed || remotes_changed || decided {
            self.number_paths();
        }
        // A link's name, MAC address or MTU are no part of the way.
        if ways_changed || remotes_changed || decided || dirty.all || dirty.underlay || dirty.adjacencies {
            self.build_paths();
            self.build_plan();
        }
        self.build_snapshot();
        self.publication.last.clone()
    }

    fn find_missing(&mut self) {
        let named = self.settings.include.iter().flatten();
        let missing = named.filter(|vni| self.links.vxlans_of(vni.get()).next().is_none()).copied().collect();
        if *self.publication.last.missing != missing {
            self.publication.last.missing = Arc::new(missing);
        }
    }

    /// Looks up the way to new VTEPs, or to all. Says whether a known one changed.
    fn find_ways(&mut self, all: bool) -> bool {
        let new = std::mem::take(&mut self.vteps.new);
        let wanted = if all { self.vteps.indices() } else { new };
        let mut changed = false;
        for index in wanted {
            let Some(address) = self.vteps.get(index).map(|known| known.address) else { continue };
            let reach = Some(self.underlay().reach(address));
            if let Some(known) = self.vteps.get_mut(index)
                && known.reach != reach
            {
                changed |= known.reach.is_some();
                known.reach = reach;
            }
        }
        changed
    }

    /// Decides again about these netdevs, and builds the tables of those taken whose entries or terms changed. Says
    /// whether any is taken, left or steered otherwise than before.
    fn decide(&mut self, netdevs: &BTreeSet<u32>, entries_changed: &BTreeSet<u32>) -> bool {
        let mut changed = false;
        let mut taken = Vec::new();
        // Slots are given back before others are given away.
        for &ifindex in netdevs {
            let terms =
                match (self.links.get(ifindex), self.links.vxlan(ifindex), self.overlays.get(&ifindex)) {
                    (Some(link), Some(vxlan), Some(overlay)) => {
                        let discovery = Discovery {
                            settings: &self.settings,
                            namespace: &self.namespace,
                            links: &self.links,
                            vteps: &self.vteps,
                        };
                        Some(discovery.decide(link, vxlan, overlay).map_err(|reason| LeftToKernel {
                            ifindex,
                            name: link.name.clone(),
                            vni: vxlan.id,
                            reason,
                        }))
                    }
                    _ => None,
                };
            match terms {
                Some(Ok(terms)) => taken.push((ifindex, terms)),
                Some(Err(left)) => changed |= self.leave(left),
                None => changed |= self.forget(ifindex),
            }
        }
        for (ifindex, terms) in taken {
            changed |= self.take(ifindex, terms, entries_changed.contains(&ifindex));
        }
        self.take_exhausted() | changed
    }

    fn forget(&mut self, ifindex: u32) -> bool {
        match self.publication.decisions.remove(&ifindex) {
            Some(Decision::Taken { slot, .. }) => {
                self.publication.slots.give_back(slot);
                true
            }
            Some(Decision::Left(_)) => true,
            None => false,
        }
    }

    fn leave(&mut self, left: LeftToKernel) -> bool {
        match self.publication.decisions.get(&left.ifindex) {
            Some(Decision::Left(before)) if *before == left => return false,
            _ => {}
        }
        self.forget(left.ifindex);
        self.publication.decisions.insert(left.ifindex, Decision::Left(left));
        true
    }

    fn take(&mut self, ifindex: u32, terms: Terms, entries_changed: bool) -> bool {
        let Some(overlay) = self.overlays.get(&ifindex) else { return false };
        let publication = &mut self.publication;
        let held = match publication.decisions.get(&ifindex) {
            Some(Decision::Taken { slot, terms: before, .. }) => {
                if *before == terms && !entries_changed {
                    return false;
                }
                Some((*slot, *before != terms))
            }
            _ => None,
        };
        let (slot, changed) = match held {
            Some(held) => held,
            None => match publication.slots.take() {
                Some(slot) => (slot, true),
                None => {
                    let reason = LeaveReason::SlotsExhausted;
                    let (name, vni) = (terms.netdev, terms.tunnel.vni.get());
                    return self.leave(LeftToKernel { ifindex, name, vni, reason });
                }
            },
        };
        let table = Arc::new(table(slot, ifindex, &terms, overlay));
        publication.decisions.insert(ifindex, Decision::Taken { slot, terms, table });
        changed
    }

    /// Slots may have become free for those that found none.
    fn take_exhausted(&mut self) -> bool {
        if !self.publication.slots.any_free() {
            return false;
        }
        let waiting: BTreeSet<u32> = self
            .publication
            .decisions
            .iter()
            .filter(|(_, decision)| {
                matches!(decision, Decision::Left(left) if left.reason == LeaveReason::SlotsExhausted)
            })
            .map(|(ifindex, _)| *ifindex)
            .collect();
        !waiting.is_empty() && self.decide(&waiting, &BTreeSet::new())
    }

    /// Marks the VTEPs of taken VNIs, and numbers the adjacencies that lead to them.
    fn number_paths(&mut self) {
        let mut named = BTreeSet::new();
        for (ifindex, decision) in &self.publication.decisions {
            if let (Decision::Taken { .. }, Some(overlay)) = (decision, self.overlays.get(ifindex)) {
                named.extend(overlay.remotes());
            }
        }
        let mut adjacencies = BTreeSet::new();
        for index in self.vteps.indices() {
            let Some(known) = self.vteps.get_mut(index) else { continue };
            known.taken = named.contains(&index);
            let hops = known.reach.iter().filter(|_| known.taken).flat_map(|reach| &reach.hops);
            adjacencies.extend(hops.map(|hop| Adjacency { ifindex: hop.ifindex, address: hop.gateway }));
        }
        self.publication.paths.assign(&adjacencies);
        self.publication.adjacencies = adjacencies;
    }

    /// Follows the ways to VTEPs with the next hops to them. VTEPs that are reached alike, and were before, share theirs.
    fn build_paths(&mut self) {
        let mut built: HashMap<_, Arc<Paths>> = HashMap::new();
        let mut shared = HashSet::new();
        let mut all = Vec::new();
        for (index, known) in self.vteps.iter().filter(|(_, known)| known.taken) {
            let hops = known.reach.as_ref().map_or(&[][..], |reach| &reach.hops);
            let paths = match built.entry((known.paths.as_ref().map(Arc::as_ptr), hops)) {
                Entry::Occupied(entry) => Arc::clone(entry.get()),
                Entry::Vacant(entry) => {
                    let before = known.paths.clone().unwrap_or_default();
                    let paths = before.follow(self.next_hops(hops), self.settings.rebalance);
                    let paths = if *before == paths { before } else { Arc::new(paths) };
                    let paths = shared.get(&paths).cloned().unwrap_or(paths);
                    shared.insert(Arc::clone(&paths));
                    Arc::clone(entry.insert(paths))
                }
            };
            all.push((index, paths));
        }
        for (index, paths) in all {
            if let Some(known) = self.vteps.get_mut(index) {
                known.paths = Some(paths);
            }
        }
    }

    /// The live next hops, without those that do not answer while others do (`fib_multipath_use_neigh` of the kernel).
    fn next_hops(&self, hops: &[Hop]) -> Vec<NextHop> {
        let failed = |hop: &Hop| {
            self.neighbours.get(&(hop.ifindex, hop.gateway)).is_some_and(|adjacent| adjacent.failed)
        };
        let all_failed = hops.iter().all(failed);
        let alive = hops.iter().filter(|hop| all_failed || !failed(hop));
        let next_hop = |hop: &Hop| {
            let adjacency = Adjacency { ifindex: hop.ifindex, address: hop.gateway };
            let neighbour = self.neighbours.get(&(hop.ifindex, hop.gateway));
            Some(NextHop {
                ifindex: hop.ifindex,
                gateway: hop.gateway,
                source_mac: self.links.get(hop.ifindex)?.mac?,
                destination_mac: neighbour.and_then(|adjacent| adjacent.mac),
                mtu: hop.mtu,
                weight: hop.weight,
                path: self.publication.paths.get(adjacency),
            })
        };
        alive.filter_map(next_hop).collect()
    }

    fn build_plan(&mut self) {
        let uplinks =
            self.vteps.iter().filter(|(_, known)| known.taken).filter_map(|(_, known)| known.reach.as_ref());
        let uplinks: BTreeSet<u32> = uplinks.flat_map(|reach| &reach.uplinks).copied().collect();
        let mut plan = SteeringPlan {
            uplinks: uplinks
                .into_iter()
                .map(|ifindex| Uplink { ifindex, name: self.links.name(ifindex) })
                .collect(),
            vnis: BTreeMap::new(),
        };
        let mut left = Vec::new();
        for (&ifindex, decision) in &self.publication.decisions {
            match decision {
                Decision::Left(netdev) => left.push(netdev.clone()),
                Decision::Taken { slot, terms, .. } => {
                    let taken = TakenVni {
                        vni: terms.tunnel.vni,
                        ifindex,
                        name: terms.netdev.clone(),
                        slot: *slot,
                        local: terms.tunnel.local,
                        destination_port: terms.tunnel.destination_port,
                        frame_limit: terms.frame_limit,
                    };
                    plan.vnis.insert(ifindex, taken);
                }
            }
        }
        let last = &mut self.publication.last;
        if *last.plan != plan {
            last.plan = Arc::new(plan);
        }
        if *last.left != *left {
            last.left = left.into();
        }
    }

    fn build_snapshot(&mut self) {
        self.publication.generation += 1;
        let mut snapshot = SnapshotBuilder::new(self.publication.generation);
        for decision in self.publication.decisions.values() {
            if let Decision::Taken { table, .. } = decision {
                snapshot.vni(Arc::clone(table));
            }
        }
        for (index, known) in self.vteps.iter().filter(|(_, known)| known.taken) {
            let paths = known.paths.clone().unwrap_or_default();
            snapshot.vtep(index, Vtep { address: known.address, paths });
        }
        self.publication.last.snapshot = Arc::new(snapshot.build());
    }

    /// The neighbours that the kernel is to be asked for now; each is remembered as asked for.
    pub fn resolve_due(&mut self, now: Instant) -> Vec<Adjacency> {
        let wanted: Vec<_> = self.unresolved().collect();
        let ask = |(adjacency, interval)| self.resolver.ask(adjacency, interval, now).then_some(adjacency);
        wanted.into_iter().filter_map(ask).collect()
    }

    /// A worker misses this neighbour: whether to ask the kernel for it now, which is then remembered.
    pub fn resolve(&mut self, adjacency: Adjacency, now: Instant) -> bool {
        let known = self.neighbours.get(&(adjacency.ifindex, adjacency.address));
        known.is_none_or(|adjacent| adjacent.mac.is_none()) && self.resolver.ask(adjacency, UNRESOLVED, now)
    }

    /// When [`State::tick`] or [`State::resolve_due`] next have something to do, if nothing is said before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let asks =
            self.unresolved().filter_map(|(adjacency, interval)| self.resolver.due(adjacency, interval));
        asks.chain(self.session.quiet_at()).min()
    }

    /// Next hops without a MAC address, or with one that is to be checked; and how often.
    fn unresolved(&self) -> impl Iterator<Item = (Adjacency, std::time::Duration)> + '_ {
        self.publication.adjacencies.iter().filter_map(|adjacency| {
            match self.neighbours.get(&(adjacency.ifindex, adjacency.address)) {
                Some(adjacent) if adjacent.mac.is_none() => Some((*adjacency, UNRESOLVED)),
                Some(adjacent) if adjacent.state & NUD_STALE != 0 => Some((*adjacency, STALE)),
                Some(_) => None,
                None => Some((*adjacency, UNRESOLVED)),
            }
        })
    }
}

fn table(slot: Slot, ifindex: u32, terms: &Terms, overlay: &Overlay) -> VniTable {
    let learning = terms.learning.map(|ageing| Learning { ifindex, ageing, fixed: overlay.fixed.clone() });
    VniTable {
        slot,
        netdev: terms.netdev.clone(),
        mac: terms.mac,
        tunnel: terms.tunnel.clone(),
        entropy: terms.entropy,
        fdb: overlay.fdb.clone(),
        flood: overlay.flooding.values().copied().collect::<Vec<VtepIndex>>(),
        strict_vtep: terms.strict_vtep,
        learning,
    }
}
