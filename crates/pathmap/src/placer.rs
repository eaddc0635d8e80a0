//! Places queue pairs on known paths, and moves them if they must or may.
//!
//! A new queue pair goes to the path that is next in the plan of its VTEP ([`crate::plan`]). It
//! stays there until the path dies. It moves for balance only after a gap in its traffic that is
//! longer than the difference of both paths' delays, so that no frame overtakes another one. While
//! no path is known, queue pairs keep the path of `qp-hash`. Where both ends of a connection have a
//! placer, both directions use the same links.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::load::{Foreign, Link};
use crate::pairing::Pairing;
use crate::plan::Routes;
use crate::prober::Pair;
use crate::random::Random;

mod flow;
mod follow;
mod kernel;
mod plans;
mod rebalance;
mod tell;
mod types;
mod view;

pub use flow::{Flow, Partner, Reading};
pub use kernel::Course;
pub use types::{Counts, FlowId, Found, Moves, Options, Placement, Target};
pub use view::{PathView, TierView};

use rebalance::Turn;
use tell::Telling;
use types::Paths;

/// The load of a queue pair while no load is measured, in 1000 bytes a second.
const NOMINAL: u64 = 1000;
/// Ports of `qp-hash` in use that are probed like pinned ones.
const WATCHED_HASHED: usize = 64;

/// The queue pairs and their paths.
#[derive(Debug)]
pub struct Placer {
    options: Options,
    random: Random,
    targets: BTreeMap<Target, Paths>,
    flows: HashMap<FlowId, Flow>,
    free: Vec<u32>,
    used_slots: u32,
    /// The load by own queue pairs, in 1000 bytes a second.
    own: BTreeMap<Link, u64>,
    /// The same as new queue pairs see it: those that have paused hardly count. Queue pairs that
    /// begin together are then even among themselves, whatever others did before.
    own_for_new: BTreeMap<Link, u64>,
    /// Links that had load, and when they lost it. Others are told.
    emptied: BTreeMap<Link, Duration>,
    turn: Turn,
    foreign: Foreign,
    pairing: Pairing,
    /// What is to be reported to each VTEP.
    telling: BTreeMap<Target, Telling>,
    measured: Duration,
    rebalanced: Duration,
    /// For which target a plan was made last.
    planned: Option<Target>,
    version: u64,
    /// Queue pairs that were idle and send again, so far.
    woken: u64,
    /// What happened so far.
    pub counts: Counts,
}

impl Placer {
    /// A placer that knows neither paths nor queue pairs.
    #[must_use]
    pub fn new(options: Options, random: Random) -> Self {
        Self {
            options,
            random,
            targets: BTreeMap::new(),
            flows: HashMap::new(),
            free: Vec::new(),
            used_slots: 0,
            own: BTreeMap::new(),
            own_for_new: BTreeMap::new(),
            emptied: BTreeMap::new(),
            turn: Turn::default(),
            foreign: Foreign::default(),
            pairing: Pairing::default(),
            telling: BTreeMap::new(),
            measured: Duration::ZERO,
            rebalanced: Duration::ZERO,
            planned: None,
            version: 1,
            woken: 0,
            counts: Counts::default(),
        }
    }

    /// A number that changes when placements do that were already given out.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The path of a queue pair that is sent from the inner source port `port`. `hashed` is that of
    /// `qp-hash`. `None`: use that one, because the table is full. `read` returns the counts of a
    /// slot.
    pub fn place(
        &mut self,
        id: FlowId,
        port: u16,
        hashed: Pair,
        read: impl FnOnce(u32) -> Reading,
        now: Duration,
    ) -> Option<Placement> {
        if let Some(flow) = self.flows.get(&id) {
            if flow.is_idle() {
                self.wake(id, now);
            }
            return self.place_again(id, port, |slot| read(slot).last, now);
        }
        let Some(slot) = self.take_slot() else {
            self.counts.beyond += 1;
            return None;
        };
        let load = self.typical_load();
        let pair = self.opposite_pair(&id, port).or_else(|| self.next_pair(id.target, load, None));
        // Kernel VXLAN has sent the first frame.
        let first = pair.filter(|_| !id.target.by_kernel).unwrap_or(hashed);
        let mut flow = Flow::new((first, pair != Some(first)), (slot, read(slot)), load, now);
        flow.wanted = pair.filter(|pair| *pair != first);
        self.add_load(id.target, flow.goal(), load);
        let pair = flow.pair;
        self.flows.insert(id, flow);
        self.set_port(&id, port);
        self.tell(id);
        self.counts.placed += 1;
        Some(Placement { pair, slot })
    }

    /// Places a queue pair that was idle like a new one: others have changed their load since. It
    /// stays on its path if that is as good.
    fn wake(&mut self, id: FlowId, now: Duration) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.note_last(Some(now), now);
        flow.decided = Some(now);
        self.woken += 1;
        let (pair, load, follows) = (flow.goal(), flow.load, flow.follows);
        let moves = self.options.moves == Moves::AfterGap && !follows;
        let wanted = moves.then(|| self.next_pair(id.target, load, Some(pair))).flatten();
        self.add_load(id.target, wanted.unwrap_or(pair), load);
        if let Some(flow) = self.flows.get_mut(&id).filter(|_| wanted.is_some()) {
            flow.wanted = wanted.filter(|wanted| *wanted != flow.pair);
        }
    }

    /// The path of a known queue pair. It moves now if it is to move and may.
    fn place_again(
        &mut self,
        id: FlowId,
        port: u16,
        last: impl FnOnce(u32) -> Option<Duration>,
        now: Duration,
    ) -> Option<Placement> {
        self.set_port(&id, port);
        let may_move = self.flows.get(&id).is_some_and(|flow| self.may_move(&id, flow, last, now));
        let flow = self.flows.get_mut(&id)?;
        let mut placement = Placement { pair: flow.pair, slot: flow.slot };
        if let Some(wanted) = flow.wanted.filter(|_| may_move) {
            flow.settle(wanted);
            placement.pair = wanted;
            self.counts.moved_balance += 1;
            self.tell(id);
        }
        Some(placement)
    }

    /// The path of a known queue pair.
    #[must_use]
    pub fn peek(&self, id: &FlowId) -> Option<Placement> {
        self.flows.get(id).map(|flow| Placement { pair: flow.pair, slot: flow.slot })
    }

    /// A number that changes when any placement does, or when a queue pair is placed or wakes.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.version + self.counts.placed + self.counts.moved_balance + self.woken
    }

    /// The queue pairs whose paths may be used without asking [`Self::place`]. Those that are idle or
    /// may move now are left out, and those that the kernel encapsulates. `last` tells when the last
    /// frame of a slot was sent.
    pub fn settled(
        &self,
        last: impl Fn(u32) -> Option<Duration>,
        now: Duration,
    ) -> impl Iterator<Item = (&FlowId, Placement)> {
        let stays = move |(id, flow): &(&FlowId, &Flow)| {
            !id.target.by_kernel && !flow.is_idle() && !self.may_move(id, flow, &last, now)
        };
        let placement = |flow: &Flow| Placement { pair: flow.pair, slot: flow.slot };
        self.flows.iter().filter(stays).map(move |(id, flow)| (id, placement(flow)))
    }

    /// Whether a queue pair is to move at its next gap.
    #[must_use]
    pub fn awaits_gaps(&self) -> bool {
        self.flows.values().any(|flow| flow.wanted.is_some() && !flow.is_idle())
    }

    /// Whether a queue pair is to move, and has been idle for long enough.
    fn may_move(
        &self,
        id: &FlowId,
        flow: &Flow,
        last: impl FnOnce(u32) -> Option<Duration>,
        now: Duration,
    ) -> bool {
        let (Some(wanted), Some(paths)) = (flow.wanted, self.targets.get(&id.target)) else {
            return false;
        };
        let gap = paths.gap(flow.pair, wanted);
        last(flow.slot).is_none_or(|last| now.saturating_sub(last) >= gap)
    }

    fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = self.used_slots + 1;
            (next <= self.options.most).then(|| {
                self.used_slots = next;
                next
            })
        })
    }

    /// The mean load of the measured queue pairs.
    fn typical_load(&self) -> u64 {
        let (mut sum, mut number) = (0, 0);
        // A sample is enough: it decides only how much a new queue pair counts for.
        for flow in self.flows.values().filter(|flow| flow.rate > 0).take(256) {
            sum += flow.load;
            number += 1;
        }
        u64::checked_div(sum, number).unwrap_or(NOMINAL).max(1)
    }

    /// The load of each link, by queue pairs of this leaf (`own`) and by other VTEPs.
    fn loads(&self, routes: &Routes, own: &BTreeMap<Link, u64>) -> Vec<u64> {
        let load = |link: &Link| own.get(link).copied().unwrap_or(0) + self.foreign.of(*link);
        routes.links().iter().map(load).collect()
    }

    /// The pair for a route: one that is in use, so that few pairs must be watched.
    fn pair_of(&self, target: Target, route: usize) -> Option<Pair> {
        self.targets.get(&target)?.pairs.get(route)?.first().map(|(pair, _)| *pair)
    }

    fn add_load(&mut self, target: Target, pair: Pair, load: u64) {
        let links = links_of(self.targets.get(&target), pair);
        for link in links {
            *self.own.entry(link).or_default() += load;
            *self.own_for_new.entry(link).or_default() += load;
        }
    }

    /// The load of each link, if each queue pair counts for this much.
    fn own_loads(&self, load: impl Fn(&Flow) -> u64) -> BTreeMap<Link, u64> {
        let mut own = BTreeMap::<Link, u64>::new();
        let loaded = self.flows.iter().map(|(id, flow)| (id, flow, load(flow)));
        for (id, flow, load) in loaded.filter(|(.., load)| *load > 0) {
            for link in links_of(self.targets.get(&id.target), flow.goal()) {
                *own.entry(link).or_default() += load;
            }
        }
        own
    }

    /// Computes the load of all links again.
    fn recount(&mut self) {
        self.own_for_new = self.own_loads(Flow::load_for_new);
        let own = self.own_loads(Flow::load_for_moves);
        for link in std::mem::replace(&mut self.own, own).into_keys() {
            if !self.own.contains_key(&link) {
                self.emptied.insert(link, self.measured);
            }
        }
        self.emptied.retain(|link, _| !self.own.contains_key(link));
    }

    /// Sets what is known of the paths to a target: the weights of its next hops, the paths found
    /// by probes, and the pairs that are dead. Queue pairs on dead pairs move at once.
    pub fn update(
        &mut self,
        target: Target,
        weights: &BTreeMap<u64, u16>,
        found: &[Found],
        lost: &BTreeSet<Pair>,
    ) {
        let mut grouped = BTreeMap::<&[Link], Vec<(Pair, Duration)>>::new();
        for path in found {
            grouped.entry(&path.links).or_default().push((path.pair, path.delay));
        }
        let used: BTreeSet<Pair> = self.used(target);
        let links: Vec<Vec<Link>> = grouped.keys().map(|links| links.to_vec()).collect();
        let capacity = |link| match link {
            Link::Uplink(hop) => weights.get(&hop).copied().unwrap_or(1),
            _ => 1,
        };
        let mut pairs: Vec<Vec<(Pair, Duration)>> = grouped.into_values().collect();
        for (links, pairs) in links.iter().zip(&mut pairs) {
            level(links, pairs);
        }
        let mut of_pair = BTreeMap::new();
        for (route, pairs) in pairs.iter_mut().enumerate() {
            pairs.sort_by_key(|(pair, _)| (!used.contains(pair), *pair));
            of_pair.extend(pairs.iter().map(|(pair, _)| (*pair, route)));
        }
        let routes = Routes::new(&links, capacity);
        let weights = weights.clone();
        let gain = self.targets.get(&target).map_or(0.0, |paths| paths.gain);
        let mut paths = Paths { routes, pairs, of_pair, weights, gain, ..Paths::default() };
        paths.set_ways(found, |pair| used.contains(pair));
        self.targets.insert(target, paths);
        self.tell_all(target);
        self.recount();
        self.leave_dead(target, lost);
        self.renew_plans();
    }

    /// Sets the delays of known pairs. A move waits for a gap that follows from them. They change
    /// without a change of routes: the first probes may have waited in queues.
    pub fn set_delays(&mut self, target: Target, delays: impl Iterator<Item = (Pair, Duration)>) {
        if let Some(paths) = self.targets.get_mut(&target) {
            paths.set_delays(delays);
        }
    }

    /// Forgets a target, for example because its VTEP is gone.
    pub fn remove(&mut self, target: Target) {
        self.targets.remove(&target);
        self.telling.remove(&target);
        let gone: Vec<FlowId> =
            self.flows.keys().filter(|id| id.target == target).copied().collect();
        self.forget(&gone);
    }

    /// Moves queue pairs away from dead pairs and from next hops that are gone.
    fn leave_dead(&mut self, target: Target, lost: &BTreeSet<Pair>) {
        let Some(paths) = self.targets.get(&target) else { return };
        let is_dead = |pair: Pair| lost.contains(&pair) || !paths.weights.contains_key(&pair.hop);
        let wishes = |flow: &Flow| flow.wanted.is_some_and(is_dead);
        let of_target = |(id, flow): &(&FlowId, &Flow)| {
            id.target == target && (is_dead(flow.pair) || wishes(flow))
        };
        let mut concerned: Vec<(FlowId, bool)> = self
            .flows
            .iter()
            .filter(of_target)
            .map(|(id, flow)| (*id, is_dead(flow.pair)))
            .collect();
        if concerned.is_empty() {
            return;
        }
        concerned.sort_by_key(|(id, _)| self.flows.get(id).map(|flow| flow.slot));
        for (id, _) in &concerned {
            if let Some(flow) = self.flows.get_mut(id) {
                flow.wanted = None;
            }
        }
        self.recount();
        for (id, dead) in concerned {
            let Some(load) = self.flows.get(&id).map(|flow| flow.load).filter(|_| dead) else {
                continue;
            };
            let port = self.flows.get(&id).map_or(0, |flow| flow.port);
            let pair = self.opposite_pair(&id, port).or_else(|| self.next_pair(target, load, None));
            let Some(pair) = pair else { continue };
            self.add_load(target, pair, load);
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.settle(pair);
                self.counts.moved_dead += 1;
            }
            self.tell(id);
        }
        self.version += 1;
    }

    /// The pairs to watch: those that pinned queue pairs use or are to use, and some of those that
    /// `qp-hash` chose. Idle queue pairs use none.
    #[must_use]
    pub fn used(&self, target: Target) -> BTreeSet<Pair> {
        let of_target = |(id, flow): &(&FlowId, &Flow)| id.target == target && !flow.is_idle();
        let flows = || self.flows.iter().filter(of_target);
        let pinned = flows().filter(|(_, flow)| !flow.hashed);
        let mut used: BTreeSet<Pair> = pinned.map(|(_, flow)| flow.pair).collect();
        used.extend(flows().filter_map(|(_, flow)| flow.wanted));
        let hashed = flows().filter(|(_, flow)| flow.stays_hashed()).map(|(_, flow)| flow.pair);
        let mut hashed: Vec<Pair> = hashed.collect();
        hashed.sort_unstable();
        used.extend(hashed.into_iter().take(WATCHED_HASHED));
        used
    }
}

/// The links of a pair. If its route is not known, only its uplink is.
fn links_of(paths: Option<&Paths>, pair: Pair) -> Vec<Link> {
    let known = paths.and_then(|paths| Some(paths.routes.route(paths.route_of(pair)?).collect()));
    known.unwrap_or_else(|| vec![Link::Uplink(pair.hop)])
}

/// Sets the delays of the pairs of a route to the least of them, if they have all links in common: the
/// others have waited for a processor at one of the ends.
fn level(links: &[Link], pairs: &mut [(Pair, Duration)]) {
    let is_known = !links.iter().any(|link| matches!(link, Link::Arrival(..)));
    let least = pairs.iter().map(|(_, delay)| *delay).min();
    if let Some(least) = least.filter(|_| is_known) {
        pairs.iter_mut().for_each(|(_, delay)| *delay = least);
    }
}
