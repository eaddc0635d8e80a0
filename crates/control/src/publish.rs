//! Builds an [`Update`]: the snapshot for the workers and the plan for steering.
//!
//! Only what changed is built again: the table of an overlay after a change of that overlay, and
//! next hops after a change of the underlay. Everything else is shared with the previous
//! publication.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use tables::hash::TableHasher;
use tables::{
    BypassPort, Fdb, NextHop, Paths, PlaceChange, PortChoice, Slot, Snapshot, SnapshotBuilder,
    SteeringPlan, TakenVni, Tunnel, Uplink, VniTable, Vtep,
};
use wire::Vni;

pub mod bypass;
pub(crate) mod ids;
mod parts;

use parts::{by_default, identity, table};

use crate::eligibility::ineligible::{KernelOnlyReason, LeftToKernel};
use crate::eligibility::{EligibilityCheck, VniConfig};
use crate::publish::bypass::PortDecision;
use crate::publish::ids::{PathNumbers, Slots};
use crate::resolve::resolver::{Adjacency, STALE, UNRESOLVED};
use crate::resolve::underlay::{Hop, LinkLocal, RouteResolver};
use crate::settings::Settings;
use crate::state::State;
use crate::stores::vteps::Known;

/// `NUD_STALE` (`include/uapi/linux/neighbour.h`).
const NUD_STALE: u16 = 0x04;

/// A publication. Parts that did not change are the same `Arc` as before.
///
/// The consumer first removes steering that is no longer wanted, then hands the snapshot to the
/// workers, then adds new steering.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// The tables of the workers.
    pub snapshot: Arc<Snapshot>,
    /// The frames that are redirected to workers.
    pub plan: Arc<SteeringPlan>,
    /// The vxlan netdevs that stay with the kernel.
    pub left: Arc<[LeftToKernel]>,
    /// VNIs that the settings name and that no vxlan netdev has.
    pub missing: Arc<BTreeSet<Vni>>,
    /// VTEPs of VNIs taken over that only a default route leads to.
    pub by_default: Arc<BTreeSet<Ipv4Addr>>,
    /// The host ports of bridges with VNIs taken over, and whether they have the bridge bypass.
    pub ports: Arc<[PortDecision]>,
    /// Addresses of the bridge bypass that appeared or left since the previous publication.
    pub places: Arc<[PlaceChange]>,
}

/// The last publication, and the numbers that have to stay the same.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    decisions: BTreeMap<u32, Decision>,
    /// Those of `decisions` that found no free slot.
    waiting: BTreeSet<u32>,
    /// Source port policies for frames that the kernel encapsulates.
    choices: BTreeMap<u32, PortChoice>,
    slots: Slots,
    /// Slots whose tables changed since the last publication.
    changed: BTreeSet<Slot>,
    paths: PathNumbers,
    /// The next hops of VNIs that are taken over.
    pub(crate) adjacencies: BTreeSet<Adjacency>,
    /// The interfaces of all their next hops.
    uplinks: BTreeSet<u32>,
    last: Update,
}

impl Publication {
    /// Whether frames may leave through this next hop.
    pub(crate) fn uses(&self, ifindex: u32, address: IpAddr) -> bool {
        self.adjacencies.contains(&Adjacency { ifindex, address })
    }

    /// Whether the VNI of this netdev is taken over.
    pub(crate) fn takes(&self, ifindex: u32) -> bool {
        matches!(self.decisions.get(&ifindex), Some(Decision::Taken { .. }))
    }

    /// Slot and configuration of a netdev that is taken over.
    pub(crate) fn taken(&self, ifindex: u32) -> Option<(Slot, &VniConfig)> {
        match self.decisions.get(&ifindex)? {
            Decision::Taken { slot, terms, .. } => Some((*slot, terms)),
            Decision::Left(_) => None,
        }
    }

    /// Sets the ports of the bridge bypass, and the decisions about all host ports.
    pub(crate) fn set_ports(
        &mut self,
        ports: BTreeMap<u32, BypassPort>,
        decided: Arc<[PortDecision]>,
    ) {
        if self.last.plan.ports != ports {
            Arc::make_mut(&mut self.last.plan).ports = ports;
        }
        if self.last.ports != decided {
            self.last.ports = decided;
        }
    }

    /// Sets the local addresses that use the bypass, if this netdev is taken over.
    pub(crate) fn set_hosts(&mut self, ifindex: u32, hosts: Fdb<u32>) {
        if let Some(Decision::Taken { slot, table, .. }) = self.decisions.get_mut(&ifindex)
            && !(table.hosts.is_empty() && hosts.is_empty())
        {
            Arc::make_mut(table).hosts = hosts;
            self.changed.insert(*slot);
        }
    }

    /// Sets the source port policy of a netdev for frames that the kernel encapsulates. Returns
    /// whether it changed.
    fn choose(&mut self, ifindex: u32, choice: Option<PortChoice>) -> bool {
        if self.choices.get(&ifindex) == choice.as_ref() {
            return false;
        }
        match choice {
            Some(choice) => self.choices.insert(ifindex, choice),
            None => self.choices.remove(&ifindex),
        };
        true
    }

    /// The last publication.
    pub(crate) const fn last(&self) -> &Update {
        &self.last
    }
}

/// Number of changed prefixes above which the routes to all VTEPs are looked up.
const MANY: usize = 256;

/// What a lookup of routes to VTEPs has changed.
#[derive(Debug, Clone, Copy, Default)]
struct Ways {
    /// The route to a VTEP of a VNI that is taken over.
    changed: bool,
    /// Properties of a route on which eligibility depends.
    terms: bool,
    /// Whether there is more than one next hop.
    multipath: bool,
    /// The uplinks of any VTEP.
    uplinks: bool,
}

/// Whether a prefix contains an address.
fn contains(network: Ipv4Addr, length: u8, address: Ipv4Addr) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
    (network.to_bits() ^ address.to_bits()) & mask == 0
}

/// The decision about a vxlan netdev.
#[derive(Debug)]
enum Decision {
    Taken { slot: Slot, terms: VniConfig, table: Arc<VniTable> },
    Left(LeftToKernel),
}

impl Publication {
    /// The tunnel settings of VNIs taken over, by netdev.
    pub(crate) fn tunnels(&self) -> impl Iterator<Item = (u32, &Tunnel)> {
        self.decisions.iter().filter_map(|(ifindex, decision)| match decision {
            Decision::Taken { terms, .. } => Some((*ifindex, &terms.tunnel)),
            Decision::Left { .. } => None,
        })
    }
}

impl State {
    /// Whether anything changed that [`State::build`] has not applied yet.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let dirty = &self.dirty;
        let lists = dirty.overlays.is_empty() && dirty.prefixes.is_empty();
        let flags = dirty.decisions || dirty.all;
        !lists || !dirty.bypass.is_empty() || flags || dirty.underlay || dirty.adjacencies
    }

    /// Builds a publication if anything changed, or if there is none yet.
    pub fn build_what_follows(&mut self) {
        if self.is_dirty() || self.published().snapshot.generation() == 0 {
            self.build();
        }
    }

    /// Whether all next hops of VNIs taken over have a MAC address.
    #[must_use]
    pub fn next_hops_resolved(&self) -> bool {
        self.publication.adjacencies.iter().all(|adjacency| self.is_resolved(*adjacency))
    }

    /// Whether the kernel knows the neighbour's MAC address.
    fn is_resolved(&self, Adjacency { ifindex, address }: Adjacency) -> bool {
        self.neighbours.get(&(ifindex, address)).is_some_and(|adjacent| adjacent.mac.is_some())
    }

    /// The last publication.
    #[must_use]
    pub const fn published(&self) -> &Update {
        self.publication.last()
    }

    /// Builds a publication from everything reported so far.
    pub fn build(&mut self) -> Update {
        let dirty = std::mem::take(&mut self.dirty);
        self.mac_changes.clear();
        self.learned = None;
        let mut overlays = dirty.overlays;
        let mut entries_changed = BTreeSet::new();
        for ifindex in &overlays {
            if self.settle(*ifindex).entries {
                entries_changed.insert(*ifindex);
            }
        }
        let ways = self.find_ways(dirty.underlay, &dirty.prefixes);
        let routed = dirty.underlay || !dirty.prefixes.is_empty();
        let locals = routed && self.check_locals();
        // Packet filter rules may match by uplink.
        let filtered = (ways.uplinks || dirty.underlay) && !self.packet_filters.is_empty();
        if ways.terms || locals || filtered || dirty.all || dirty.decisions {
            overlays.extend(self.links.vxlans());
            overlays.extend(self.publication.decisions.keys());
        }
        if ways.multipath {
            let left = |decision: &Decision| matches!(decision, Decision::Left(_));
            let decisions =
                self.publication.decisions.iter().filter(|(_, decision)| left(decision));
            overlays.extend(decisions.map(|(ifindex, _)| ifindex));
        }
        let decided = self.decide(&overlays, &entries_changed);
        if decided || dirty.all || self.publication.last.snapshot.generation() == 0 {
            self.find_missing();
        }
        let renumber = std::mem::take(&mut self.vteps.taken_changed) || ways.changed;
        if renumber {
            self.number_paths();
        }
        // The resolved route does not contain a link's name, MAC address and MTU.
        if renumber || dirty.all || dirty.underlay || dirty.adjacencies {
            self.build_paths(dirty.all);
        }
        if renumber || decided || dirty.underlay || dirty.decisions {
            self.build_plan(decided);
        }
        self.follow_bypass(dirty.bypass, dirty.all);
        self.build_snapshot();
        self.publication.last.clone()
    }

    /// Applies changes of bridges, and of decisions made in this build, to the bridge bypass.
    fn follow_bypass(&mut self, said: bypass::Dirty, all: bool) {
        let mut dirty = std::mem::take(&mut self.dirty.bypass);
        dirty.bridges.extend(said.bridges);
        dirty.addresses.extend(said.addresses);
        if all {
            dirty.bridges.extend(self.links.bridges_with_vxlan());
        }
        self.build_bypass(dirty);
    }

    fn find_missing(&mut self) {
        let Settings { include, exclude, vnis, .. } = &self.settings;
        // VNIs with settings of their own are expected to exist as well, unless they stay with the
        // kernel in any case.
        let settled = vnis.keys().filter(|vni| include.is_none() && !exclude.contains(vni));
        let named = include.iter().flatten().chain(settled);
        let missing =
            named.filter(|vni| self.links.vxlans_of(vni.get()).next().is_none()).copied().collect();
        if *self.publication.last.missing != missing {
            self.publication.last.missing = Arc::new(missing);
        }
    }

    /// Looks up the routes to new VTEPs, to those in these prefixes, or to all.
    fn find_ways(&mut self, all: bool, prefixes: &BTreeSet<(Ipv4Addr, u8)>) -> Ways {
        let mut wanted = std::mem::take(&mut self.vteps.new);
        if all || prefixes.len() > MANY {
            wanted = self.vteps.indices();
        } else if !prefixes.is_empty() {
            let concerned = |known: &Known| {
                known.reach.as_ref().is_none_or(|reach| reach.recursive)
                    || prefixes
                        .iter()
                        .any(|(network, length)| contains(*network, *length, known.address))
            };
            wanted.extend(
                self.vteps.iter().filter(|(_, known)| concerned(known)).map(|(index, _)| index),
            );
        }
        let mut ways = Ways::default();
        let mut vteps = std::mem::take(&mut self.vteps);
        let link_local = LinkLocal::new(&self.kernel, &self.neighbours);
        let mut survey = RouteResolver::new(self.underlay(&link_local));
        for index in wanted {
            let Some(address) = vteps.get(index).map(|known| known.address) else { continue };
            let reach = survey.reach(address, &mut vteps.ways);
            let Some(known) = vteps.get_mut(index) else { continue };
            if let Some(before) = &known.reach {
                if Arc::ptr_eq(before, &reach) {
                    continue;
                }
                ways.changed |= known.is_taken();
                ways.terms |= before.terms() != reach.terms();
                ways.multipath |= before.is_multipath() != reach.is_multipath();
            }
            let before = known.reach.as_ref().map(|before| &before.uplinks);
            ways.uplinks |= before != Some(&reach.uplinks);
            known.reach = Some(reach);
        }
        self.vteps = vteps;
        ways
    }

    /// The uplinks to all remote VTEPs with their names; empty without packet filters. Received
    /// packets of a VNI may arrive at any of them.
    fn named_uplinks(&self) -> BTreeMap<u32, String> {
        if self.packet_filters.is_empty() {
            return BTreeMap::new();
        }
        let reached = self.vteps.iter().filter_map(|(_, known)| known.reach.as_ref());
        let uplinks: BTreeSet<u32> =
            reached.flat_map(|reach| reach.uplinks.iter().copied()).collect();
        uplinks.into_iter().map(|ifindex| (ifindex, self.links.name(ifindex))).collect()
    }

    /// Decides again about these netdevs, and rebuilds the tables of VNIs taken over whose entries
    /// or configuration changed. Returns whether any decision or source port policy changed.
    fn decide(&mut self, netdevs: &BTreeSet<u32>, entries_changed: &BTreeSet<u32>) -> bool {
        let mut changed = false;
        let mut taken = Vec::new();
        let mut choices = Vec::new();
        let named = self.named_uplinks();
        // Slots are freed before new ones are allocated.
        for &ifindex in netdevs {
            let local_is_present = self.has_local_of(ifindex);
            let terms = match (
                self.links.get(ifindex),
                self.links.vxlan(ifindex),
                self.overlays.get(&ifindex),
            ) {
                (Some(link), Some(vxlan), Some(overlay)) => {
                    let discovery = EligibilityCheck {
                        settings: &self.settings,
                        namespace: &self.namespace,
                        links: &self.links,
                        vteps: &self.vteps,
                        policies: &self.policies,
                        local_is_present,
                        multicast: &self.multicast,
                        packet_filters: &self.packet_filters,
                        uplinks: &named,
                    };
                    let decision = discovery.decide(link, vxlan, overlay);
                    let reason = decision.as_ref().err();
                    choices.push((ifindex, discovery.port_choice(link, vxlan, overlay, reason)));
                    Some(decision.map_err(|reason| LeftToKernel {
                        ifindex,
                        name: link.name.clone(),
                        vni: vxlan.id,
                        reason,
                    }))
                }
                _ => {
                    choices.push((ifindex, None));
                    None
                }
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
        for (ifindex, choice) in choices {
            changed |= self.publication.choose(ifindex, choice);
        }
        self.take_exhausted() | changed
    }

    fn forget(&mut self, ifindex: u32) -> bool {
        self.publication.waiting.remove(&ifindex);
        self.dirty.bypass.bridges.extend(self.links.get(ifindex).and_then(|link| link.master));
        if let Some(overlay) = self.overlays.get_mut(&ifindex) {
            overlay.take(&mut self.vteps, false);
        }
        match self.publication.decisions.remove(&ifindex) {
            Some(Decision::Taken { slot, .. }) => {
                self.publication.slots.give_back(slot);
                self.publication.changed.insert(slot);
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
        if left.reason == KernelOnlyReason::SlotsExhausted {
            self.publication.waiting.insert(left.ifindex);
        }
        self.publication.decisions.insert(left.ifindex, Decision::Left(left));
        true
    }

    fn take(&mut self, ifindex: u32, terms: VniConfig, entries_changed: bool) -> bool {
        let Some(overlay) = self.overlays.get_mut(&ifindex) else { return false };
        let publication = &mut self.publication;
        let held = match publication.decisions.get(&ifindex) {
            Some(Decision::Taken { slot, terms: before, table }) => {
                if *before == terms && !entries_changed {
                    return false;
                }
                Some((*slot, *before != terms, table.hosts.clone()))
            }
            _ => None,
        };
        let (slot, changed, hosts) = match held {
            Some(held) => held,
            None => match publication.slots.take() {
                Some(slot) => (slot, true, Fdb::default()),
                None => {
                    let reason = KernelOnlyReason::SlotsExhausted;
                    let (name, vni) = (terms.netdev, terms.tunnel.vni.get());
                    return self.leave(LeftToKernel { ifindex, name, vni, reason });
                }
            },
        };
        overlay.take(&mut self.vteps, true);
        if changed {
            self.dirty.bypass.bridges.extend(self.links.get(ifindex).and_then(|link| link.master));
        }
        let table = Arc::new(table(slot, ifindex, &terms, overlay, hosts));
        publication.changed.insert(slot);
        publication.waiting.remove(&ifindex);
        publication.decisions.insert(ifindex, Decision::Taken { slot, terms, table });
        changed
    }

    /// Decides again about netdevs that found no slot, if one is free now.
    fn take_exhausted(&mut self) -> bool {
        let waiting = self.publication.waiting.clone();
        self.publication.slots.any_free()
            && !waiting.is_empty()
            && self.decide(&waiting, &BTreeSet::new())
    }

    /// Assigns path numbers to the next hops of VNIs that are taken over.
    fn number_paths(&mut self) {
        let (mut adjacencies, mut uplinks) = (BTreeSet::new(), BTreeSet::new());
        let mut seen: HashSet<_, BuildHasherDefault<TableHasher>> = HashSet::default();
        for reach in self.vteps.taken().filter_map(|(_, known)| known.reach.as_ref()) {
            if seen.insert(Arc::as_ptr(reach)) {
                let of = |hop: &Hop| Adjacency { ifindex: hop.ifindex, address: hop.gateway };
                adjacencies.extend(reach.hops.iter().map(of));
                uplinks.extend(&reach.uplinks);
            }
        }
        if self.publication.adjacencies != adjacencies {
            self.publication.paths.assign(&adjacencies);
        }
        self.publication.adjacencies = adjacencies;
        self.publication.uplinks = uplinks;
    }

    /// Updates the next hops of VTEPs to their routes. VTEPs with the same route and the same
    /// previous `Paths` share one again.
    fn build_paths(&mut self, rebalanced: bool) {
        let mut built: HashMap<_, Arc<Paths>, BuildHasherDefault<TableHasher>> = HashMap::default();
        let mut shared = HashSet::new();
        let mut changed = Vec::new();
        for (index, known) in self.vteps.taken() {
            let Some(reach) = &known.reach else { continue };
            let before = known.paths.as_ref();
            let paths = match built.entry((before.map(Arc::as_ptr), Arc::as_ptr(reach))) {
                Entry::Occupied(entry) => Arc::clone(entry.get()),
                Entry::Vacant(entry) => {
                    let next_hops = self.next_hops(&reach.hops);
                    let paths = match before {
                        Some(before) if !rebalanced && before.next_hops() == next_hops => {
                            Arc::clone(before)
                        }
                        Some(before) => Arc::new(before.follow(next_hops, self.settings.rebalance)),
                        None => Arc::new(Paths::new(next_hops)),
                    };
                    let paths = shared.get(&paths).cloned().unwrap_or(paths);
                    shared.insert(Arc::clone(&paths));
                    Arc::clone(entry.insert(paths))
                }
            };
            if before.is_none_or(|before| !Arc::ptr_eq(before, &paths)) {
                changed.push((index, paths));
            }
        }
        for (index, paths) in changed {
            if let Some(known) = self.vteps.get_mut(index) {
                known.paths = Some(paths);
            }
        }
    }

    /// The live next hops, without those that do not answer while others do (as the kernel's
    /// `fib_multipath_use_neigh`).
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
                identity: identity(&self.links.name(hop.ifindex), hop.gateway),
                source_mac: self.links.get(hop.ifindex)?.mac?,
                destination_mac: neighbour.and_then(|adjacent| adjacent.mac),
                mtu: hop.mtu,
                weight: hop.weight,
                path: self.publication.paths.get(adjacency),
                by_default: hop.by_default,
                impaired: hop.impaired,
            })
        };
        alive.filter_map(next_hop).collect()
    }

    /// Builds the steering plan: the uplinks, and also the VNIs if a decision changed.
    fn build_plan(&mut self, decided: bool) {
        let uplink = |&ifindex: &u32| Uplink { ifindex, name: self.links.name(ifindex) };
        let uplinks: BTreeSet<Uplink> = self.publication.uplinks.iter().map(uplink).collect();
        let checked_sources = self.checked_sources(&uplinks);
        let last = &mut self.publication.last;
        if !decided {
            if (&last.plan.uplinks, &last.plan.checked_sources) != (&uplinks, &checked_sources) {
                let plan = Arc::make_mut(&mut last.plan);
                (plan.uplinks, plan.checked_sources) = (uplinks, checked_sources);
            }
            return;
        }
        let (vnis, ports) = (BTreeMap::new(), last.plan.ports.clone());
        let choices = self.publication.choices.clone();
        let mut plan = SteeringPlan { uplinks, checked_sources, vnis, ports, choices };
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
        if *last.plan != plan {
            last.plan = Arc::new(plan);
        }
        if *last.left != *left {
            last.left = left.into();
        }
    }

    /// Builds the snapshot from the previous one and all changes since.
    fn build_snapshot(&mut self) {
        let publication = &mut self.publication;
        let before = Arc::clone(&publication.last.snapshot);
        let mut snapshot = SnapshotBuilder::after(&before);
        let mut tables: BTreeMap<Slot, Option<&Arc<VniTable>>> =
            publication.changed.iter().map(|slot| (*slot, None)).collect();
        if !tables.is_empty() {
            for decision in publication.decisions.values() {
                if let Decision::Taken { slot, table, .. } = decision
                    && let Some(place) = tables.get_mut(slot)
                {
                    *place = Some(table);
                }
            }
        }
        for (slot, table) in tables {
            match table {
                Some(table) => snapshot.vni(Arc::clone(table)),
                None => snapshot.remove_vni(slot),
            }
        }
        publication.changed.clear();
        snapshot.own(self.own.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        }));
        let mut news = Vec::new();
        for (index, known) in self.vteps.places() {
            let published = before.vtep(index);
            let was = || {
                published.filter(|vtep| vtep.paths.by_default()).map(|vtep| (vtep.address, false))
            };
            match known.filter(|known| known.is_taken()) {
                Some(Known { address, paths, .. }) => {
                    let same = published.is_some_and(|vtep| {
                        vtep.address == *address
                            && paths.as_ref().is_some_and(|paths| Arc::ptr_eq(paths, &vtep.paths))
                    });
                    if !same {
                        let paths = paths.clone().unwrap_or_default();
                        news.extend(
                            was().into_iter().chain(paths.by_default().then_some((*address, true))),
                        );
                        snapshot.vtep(index, Vtep { address: *address, paths });
                    }
                }
                None if published.is_some() => {
                    news.extend(was());
                    snapshot.remove_vtep(index);
                }
                None => {}
            }
        }
        by_default(&mut publication.last.by_default, &news);
        publication.last.snapshot = Arc::new(snapshot.build());
    }

    /// The neighbours that are to be resolved now. They are recorded as asked for.
    pub fn resolve_due(&mut self, now: Instant) -> Vec<Adjacency> {
        let wanted: Vec<_> = self.unresolved().collect();
        let ask = |(adjacency, interval)| {
            self.resolver.ask(adjacency, interval, now).then_some(adjacency)
        };
        wanted.into_iter().filter_map(ask).collect()
    }

    /// A worker needs this neighbour. Returns whether to ask the kernel now, which is then
    /// recorded.
    pub fn resolve(&mut self, adjacency: Adjacency, now: Instant) -> bool {
        !self.is_resolved(adjacency) && self.resolver.ask(adjacency, UNRESOLVED, now)
    }

    /// When [`State::tick`] or [`State::resolve_due`] have something to do next, if there is no
    /// event before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let asks = self
            .unresolved()
            .filter_map(|(adjacency, interval)| self.resolver.due(adjacency, interval));
        asks.chain(self.fpm_sweep_at()).chain(self.confirm_at).chain(self.flapping.ends()).min()
    }

    /// Next hops without a MAC address, or with a stale one, and how often to ask for each.
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
