//! Places queue pairs on known paths, and moves them if they must or may.
//!
//! A new queue pair goes to the path that is next in the plan of its VTEP ([`Routes::sequence`]). It
//! stays there until the path dies. It moves for balance only after a pause in its traffic that is
//! longer than the difference of both paths' delays, so that no frame overtakes another one. While
//! no path is known, queue pairs keep the path of `qp-hash`. Where both ends of a connection have a
//! placer, both directions use the same links.
//!
//! Forwarding threads ask [`Placer::place`], which does the same work however many queue pairs there
//! are. All other work is done in steps, between which they can ask: [`Placer::step`],
//! [`Placer::clean`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use path::{CounterId, PathId, Policy, Version};
use spray::Random;

use crate::load::{Link, PeerLoads};
use crate::pairing::Pairing;
use crate::routes::Routes;

mod flow;
mod follow;
mod gone;
mod kernel;
mod plans;
mod rebalance;
mod shares;
mod sums;
mod table;
mod tell;
mod telling;
mod tick;
mod turn;
mod types;
mod view;

pub use flow::{Flow, Partner, Reading};
pub use gone::Gone;
pub use kernel::Course;
pub use shares::Beyond;
pub use tick::Tick;
pub use types::{Counts, FlowId, Found, Moves, Options, Placement, Target};
pub use view::{PathView, TierView};

use gone::Remembered;
use shares::Shares;
use sums::Sums;
use table::Table;
use telling::Telling;
use turn::Turn;
use types::{Paths, level};

/// Queue pairs that are handled in a step.
const STEP: usize = 64;

/// The queue pairs and their paths.
#[derive(Debug)]
pub struct Placer {
    options: Options,
    random: Random,
    targets: BTreeMap<Target, Paths>,
    flows: Table,
    shares: Shares,
    sums: Sums,
    /// Dead paths that queue pairs are to leave: all up to this one have.
    leaving: BTreeMap<(Target, PathId), Option<CounterId>>,
    /// Targets that are gone, but whose queue pairs are not yet forgotten.
    gone: BTreeSet<Target>,
    gone_pairs: Remembered,
    /// The counters of queue pairs about which programs and workers are to be told.
    unwritten: BTreeSet<CounterId>,
    recalled: Vec<CounterId>,
    turn: Turn,
    peers: PeerLoads,
    pairing: Pairing,
    /// The VNIs whose packets are sprayed, by target.
    sprayed: BTreeMap<Target, BTreeSet<u32>>,
    /// What is to be reported to each VTEP.
    telling: BTreeMap<Target, Telling>,
    measured: Duration,
    rebalanced: Duration,
    /// The first counter that the next tick looks at, if it does not look at all.
    window: u32,
    /// For which target a plan was made last.
    planned: Option<Target>,
    /// The version of the loads for which plans are to be made.
    loads_version: u64,
    version: Version<Policy>,
    revision: Version<Self>,
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
            flows: Table::new(options.most),
            shares: Shares::new(&options),
            sums: Sums::default(),
            leaving: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_pairs: Remembered::default(),
            unwritten: BTreeSet::new(),
            recalled: Vec::new(),
            turn: Turn::default(),
            peers: PeerLoads::default(),
            pairing: Pairing::default(),
            sprayed: BTreeMap::new(),
            telling: BTreeMap::new(),
            measured: Duration::ZERO,
            rebalanced: Duration::ZERO,
            window: 1,
            planned: None,
            loads_version: 0,
            version: Version::NONE.next(),
            revision: Version::NONE.next(),
            counts: Counts::default(),
        }
    }

    /// A number that changes when one of the [counters that were recalled](Self::recalled) does.
    #[must_use]
    pub const fn version(&self) -> Version<Policy> {
        self.version
    }

    /// Takes the counters of queue pairs about which workers are to ask again: their paths have changed,
    /// or may change now.
    pub fn recalled(&mut self) -> Vec<CounterId> {
        std::mem::take(&mut self.recalled)
    }

    fn recall(&mut self, counter: CounterId) {
        self.version = self.version.next();
        self.recalled.push(counter);
    }

    /// The path of a queue pair that is sent from the inner source port `port`. `hashed` is that of
    /// `qp-hash`. `None`: use that one, because the table is full, or the share of the host or VNI.
    /// `read` returns what is counted of a queue pair.
    pub fn place(
        &mut self,
        id: FlowId,
        port: u16,
        hashed: PathId,
        read: impl FnOnce(CounterId) -> Reading,
        now: Duration,
    ) -> Option<Placement> {
        // Kernel VXLAN has sent the first frame.
        let has_begun = id.target.by_kernel;
        self.place_begun((id, port), (hashed, has_begun), read, now)
    }

    /// As [`Self::place`]. If it `has_begun`, its first frames have left by the path of `qp-hash`, and
    /// it leaves that one after a pause.
    pub fn place_begun(
        &mut self,
        (id, port): (FlowId, u16),
        (hashed, has_begun): (PathId, bool),
        read: impl FnOnce(CounterId) -> Reading,
        now: Duration,
    ) -> Option<Placement> {
        if let Some(flow) = self.flows.get(&id) {
            if flow.is_idle() {
                self.wake(id, now);
            }
            return self.place_again(id, port, |counter| read(counter).last, now);
        }
        let free = self.flows.next_counter();
        let counter = match self
            .shares
            .take(&id, free.is_some(), now)
            .and(free.ok_or(Beyond::Table))
        {
            Ok(counter) => counter,
            Err(beyond) => {
                self.counts.beyond.iter_mut().skip(beyond as usize).take(1).for_each(|n| *n += 1);
                return None;
            }
        };
        let load = self.typical_load();
        let path = self.opposite_path(&id, port).or_else(|| self.next_path(id.target, load, None));
        let first = path.filter(|_| !has_begun).unwrap_or(hashed);
        let mut flow = Flow::new((first, path != Some(first)), (counter, read(counter)), load, now);
        flow.wanted = path.filter(|path| *path != first);
        self.flows.insert(id, flow);
        self.account(&id);
        self.set_port(&id, port);
        self.tell(&id);
        self.counts.placed += 1;
        Some(Placement { path: first, counter })
    }

    /// Changes a queue pair, and then the sums.
    fn edit<T>(&mut self, id: &FlowId, change: impl FnOnce(&mut Flow) -> T) -> Option<T> {
        let changed = change(self.flows.get_mut(id)?);
        self.account(id);
        Some(changed)
    }

    /// Brings the sums up to date with a queue pair.
    fn account(&mut self, id: &FlowId) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let (counter, mut now) = (flow.counter, flow.to_count());
        if self.sprayed.get(&id.target).is_some_and(|vnis| vnis.contains(&id.vni)) {
            now.load = now.load.sprayed();
        }
        let before = flow.counted.replace(now);
        if before == Some(now) {
            return;
        }
        if before.is_none_or(|before| before.position != now.position) {
            self.revision = self.revision.next();
            self.unwritten.insert(counter);
        }
        let paths = self.targets.get(&id.target);
        self.sums.change((id.target, counter), (before, Some(now)), paths, self.measured);
    }

    /// Places a queue pair that was idle like a new one: others have changed their load since. It
    /// stays on its path if that is as good.
    fn wake(&mut self, id: FlowId, now: Duration) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.note_last(Some(now), now);
        flow.decided = Some(now);
        let (path, load, follows) = (flow.goal(), flow.load, flow.follows);
        let moves = self.options.moves == Moves::AfterPause && !follows;
        let wanted = moves.then(|| self.next_path(id.target, load, Some(path))).flatten();
        self.edit(&id, |flow| {
            if wanted.is_some() {
                flow.wanted = wanted.filter(|wanted| *wanted != flow.path);
            }
        });
    }

    /// The path of a known queue pair. It moves now if it is to move and may.
    fn place_again(
        &mut self,
        id: FlowId,
        port: u16,
        last: impl FnOnce(CounterId) -> Option<Duration>,
        now: Duration,
    ) -> Option<Placement> {
        self.set_port(&id, port);
        let may_move = self.flows.get(&id).is_some_and(|flow| self.may_move(&id, flow, last, now));
        let flow = self.flows.get(&id)?;
        let mut placement = Placement { path: flow.path, counter: flow.counter };
        if let Some(wanted) = flow.wanted.filter(|_| may_move) {
            self.edit(&id, |flow| flow.settle(wanted));
            placement.path = wanted;
            self.counts.moved_balance += 1;
            self.tell(&id);
        }
        Some(placement)
    }

    /// The path of a known queue pair.
    #[must_use]
    pub fn peek(&self, id: &FlowId) -> Option<Placement> {
        self.flows.get(id).map(|flow| Placement { path: flow.path, counter: flow.counter })
    }

    /// A number that changes when any placement does, or when a queue pair is placed, becomes idle,
    /// wakes or is forgotten.
    #[must_use]
    pub const fn revision(&self) -> Version<Self> {
        self.revision
    }

    /// Takes the counters of up to `most` queue pairs about which programs are to be told ([`Self::settled`]).
    pub fn unwritten(&mut self, most: usize) -> Vec<CounterId> {
        std::iter::from_fn(|| self.unwritten.pop_first()).take(most).collect()
    }

    /// Programs are to be told about these queue pairs.
    pub fn rewrite(&mut self, counters: impl Iterator<Item = CounterId>) {
        self.unwritten.extend(counters);
    }

    /// The path of the queue pair with these counters, if it may be used without asking [`Self::place`]: not if
    /// it is idle or may move now, or if the kernel encapsulates it. `last` tells when the last frame
    /// of the queue pair was sent.
    pub fn settled(
        &self,
        counter: CounterId,
        last: impl FnOnce(CounterId) -> Option<Duration>,
        now: Duration,
    ) -> Option<(FlowId, Placement)> {
        let (id, flow) = self.flows.at(counter)?;
        let stays = !id.target.by_kernel && !flow.is_idle() && !self.may_move(id, flow, last, now);
        stays.then_some((*id, Placement { path: flow.path, counter }))
    }

    /// Whether a queue pair is to move at its next pause.
    #[must_use]
    pub fn awaits_gaps(&self) -> bool {
        !self.sums.waiting.is_empty()
    }

    /// Whether a queue pair is to move, and has been idle for long enough.
    fn may_move(
        &self,
        id: &FlowId,
        flow: &Flow,
        last: impl FnOnce(CounterId) -> Option<Duration>,
        now: Duration,
    ) -> bool {
        let (Some(wanted), Some(paths)) = (flow.wanted, self.targets.get(&id.target)) else {
            return false;
        };
        let pause = paths.pause(flow.path, wanted);
        last(flow.counter).is_none_or(|last| now.saturating_sub(last) >= pause)
    }

    /// The mean load of the measured queue pairs.
    fn typical_load(&self) -> u64 {
        self.sums.means().1.max(1)
    }

    /// The load of each link, by queue pairs of this leaf (`own`) and by other VTEPs.
    fn loads(&self, routes: &Routes, own: &BTreeMap<Link, u64>) -> Vec<u64> {
        let load = |link: &Link| own.get(link).copied().unwrap_or(0) + self.peers.of(*link);
        routes.links().iter().map(load).collect()
    }

    /// The path for a route: one that is in use, so that few paths must be watched.
    fn path_of(&self, target: Target, route: usize) -> Option<PathId> {
        self.targets.get(&target)?.of_route.get(route)?.first().map(|(path, _)| *path)
    }

    /// Sets what is known of the paths to a target: the weights of its next hops, the paths found
    /// by probes, and the paths that are dead. Queue pairs on dead paths move at once.
    pub fn update(
        &mut self,
        target: Target,
        weights: &BTreeMap<u64, u16>,
        found: &[Found],
        lost: &BTreeSet<PathId>,
    ) {
        self.learn(target, weights, found, lost);
        while self.clean() {}
    }

    /// As [`Self::update`], but queue pairs on dead paths move with the next calls of
    /// [`Self::clean`].
    pub fn learn(
        &mut self,
        target: Target,
        weights: &BTreeMap<u64, u16>,
        found: &[Found],
        lost: &BTreeSet<PathId>,
    ) {
        let used: BTreeSet<PathId> = self.used(target);
        let found: Vec<&Found> = found.iter().filter(|path| !lost.contains(&path.path)).collect();
        let mut grouped = BTreeMap::<&[Link], Vec<(PathId, Duration)>>::new();
        for path in &found {
            grouped.entry(&path.links).or_default().push((path.path, path.delay));
        }
        let links: Vec<Vec<Link>> = grouped.keys().map(|links| links.to_vec()).collect();
        let capacity = |link| match link {
            Link::Uplink(hop) => weights.get(&hop).copied().unwrap_or(1),
            _ => 1,
        };
        let mut of_route: Vec<Vec<(PathId, Duration)>> = grouped.into_values().collect();
        for (links, paths) in links.iter().zip(&mut of_route) {
            level(links, paths);
        }
        let mut of_path = BTreeMap::new();
        for (route, paths) in of_route.iter_mut().enumerate() {
            paths.sort_by_key(|(path, _)| (!used.contains(path), *path));
            of_path.extend(paths.iter().map(|(path, _)| (*path, route)));
        }
        let routes = Arc::new(Routes::new(&links, capacity));
        let weights = weights.clone();
        let gain = self.targets.get(&target).map_or(0.0, |paths| paths.gain);
        let mut paths = Paths { routes, of_route, of_path, weights, gain, ..Paths::default() };
        paths.set_ways(&found, |path| used.contains(path));
        self.set_paths(target, Some(paths));
        self.gone.remove(&target);
        self.tell_all(target);
        let paths = self.targets.get(&target);
        let is_dead = |path: &PathId| {
            let has_hop = paths.is_some_and(|paths| paths.weights.contains_key(&path.hop));
            lost.contains(path) || !has_hop
        };
        let dead = self.sums.paths_of(target).filter(is_dead);
        self.leaving.extend(dead.map(|path| ((target, path), None)));
        self.renew_plans();
    }

    fn set_paths(&mut self, target: Target, paths: Option<Paths>) {
        self.sums.link(target, self.targets.get(&target), false, self.measured);
        match paths {
            Some(paths) => _ = self.targets.insert(target, paths),
            None => _ = self.targets.remove(&target),
        }
        self.sums.link(target, self.targets.get(&target), true, self.measured);
    }

    /// Sets the delays of known paths. A move waits for a pause that follows from them. They change
    /// without a change of routes: the first probes may have waited in queues.
    pub fn set_delays(&mut self, target: Target, delays: impl Iterator<Item = (PathId, Duration)>) {
        if let Some(paths) = self.targets.get_mut(&target) {
            paths.set_delays(delays);
        }
    }

    /// Forgets a target, for example because its VTEP is gone. Its queue pairs are forgotten with the
    /// next calls of [`Self::clean`].
    pub fn remove(&mut self, target: Target) {
        self.set_paths(target, None);
        self.telling.remove(&target);
        self.sprayed.remove(&target);
        self.gone.insert(target);
    }

    /// Sets the VNIs whose packets are sprayed, by target. Their queue pairs load no path more than
    /// others, which counts from the next measurement of each.
    pub fn set_sprayed(&mut self, vnis: BTreeMap<Target, BTreeSet<u32>>) {
        self.sprayed = vnis;
    }

    /// Whether sends and writes of a queue pair are sprayed.
    #[must_use]
    pub fn is_sprayed(&self, id: &FlowId) -> bool {
        self.sprayed.get(&id.target).is_some_and(|vnis| vnis.contains(&id.vni))
    }

    /// Takes a step of what is left to do: has queue pairs leave dead paths, and forgets those of
    /// targets that are gone. Returns whether there may be more.
    pub fn clean(&mut self) -> bool {
        if let Some(target) = self.gone.first().copied() {
            let some = self.ids(&self.sums.of_target(target, None, STEP));
            some.iter().for_each(|id| self.forget(id, self.measured));
            if some.is_empty() {
                self.gone.remove(&target);
            }
            return true;
        }
        let Some((dead, after)) = self.leaving.first_key_value() else { return false };
        let (dead, after) = (*dead, *after);
        let coming = self.ids(&self.sums.coming(dead, STEP));
        coming.iter().for_each(|id| _ = self.edit(id, |flow| flow.wanted = None));
        let here = if coming.is_empty() { self.sums.here(dead, after, STEP) } else { Vec::new() };
        self.ids(&here).iter().for_each(|id| self.leave(id));
        match here.last() {
            Some(last) => _ = self.leaving.insert(dead, Some(*last)),
            None if coming.is_empty() => _ = self.leaving.remove(&dead),
            None => {}
        }
        true
    }

    fn ids(&self, counters: &[CounterId]) -> Vec<FlowId> {
        counters.iter().filter_map(|counter| self.flows.at(*counter).map(|(id, _)| *id)).collect()
    }

    /// Has a queue pair leave the dead path where it is.
    fn leave(&mut self, id: &FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        let (port, load, counter) = (flow.port, flow.load, flow.counter);
        self.edit(id, |flow| flow.wanted = None);
        let target = id.target;
        let path = self.opposite_path(id, port).or_else(|| self.next_path(target, load, None));
        let Some(path) = path else { return };
        self.edit(id, |flow| flow.settle(path));
        self.counts.moved_dead += 1;
        self.tell(id);
        self.recall(counter);
    }

    /// The paths to watch: those that pinned queue pairs use or are to use, and some of those that
    /// `qp-hash` chose. Idle queue pairs use none.
    #[must_use]
    pub fn used(&self, target: Target) -> BTreeSet<PathId> {
        self.sums.used(target)
    }
}
