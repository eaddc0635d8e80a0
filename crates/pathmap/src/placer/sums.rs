//! What the queue pairs add up to. Each change of a queue pair changes the sums, so that no sum is
//! computed over all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Duration;

use path::{CounterId, PathId};

use super::types::{Paths, Target};
use crate::load::Link;

/// The load of a queue pair while no load is measured, in 1000 bytes a second.
const NOMINAL: u64 = 1000;
/// Ports of `qp-hash` in use that are probed like pinned ones.
const WATCHED_HASHED: usize = 64;

/// The links of a path. If its route is not known, only its uplink is.
pub(super) fn links_of(paths: Option<&Paths>, path: PathId) -> Vec<Link> {
    let known = paths.and_then(|paths| Some(paths.routes.route(paths.route_of(path)?).collect()));
    known.unwrap_or_else(|| vec![Link::Uplink(path.hop)])
}

/// What the sums include of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) position: Position,
    pub(super) load: Load,
    /// Whether both directions of the connection use the same links, if that is known.
    pub(super) same_links: Option<bool>,
}

/// Where a queue pair is, and where it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) path: PathId,
    pub(super) wanted: Option<PathId>,
    pub(super) is_idle: bool,
    /// As [`super::Flow::hashed`], and [`super::Flow::stays_hashed`].
    pub(super) is_hashed: bool,
    pub(super) stays_hashed: bool,
}

impl Position {
    fn goal(&self) -> PathId {
        self.wanted.unwrap_or(self.path)
    }
}

/// What a queue pair sends, in 1000 bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) for_moves: u64,
    pub(super) for_new: u64,
    pub(super) rate_now: u64,
    /// Rate and load; `None` while the rate is not measured.
    pub(super) measured: Option<(u64, u64)>,
}

impl Load {
    /// The load on its path of a queue pair whose packets take all paths. New ones are still dealt by
    /// it, so that the packets that are not sprayed do not share one path.
    pub(super) const fn sprayed(self) -> Self {
        Self { for_moves: 0, rate_now: 0, ..self }
    }
}

/// The queue pairs on a path.
#[derive(Debug, Default)]
struct OnPath {
    /// The counters of those that are there, and of those that are to move there.
    here: BTreeSet<CounterId>,
    coming: BTreeSet<CounterId>,
    /// The numbers of those that send: placed there, there by `qp-hash` and to stay, and coming.
    pinned: usize,
    hashed: usize,
    wanted: usize,
    /// The loads of those that are to be there.
    for_moves: u64,
    for_new: u64,
    /// The rate of those that are there.
    rate_now: u64,
}

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Sums {
    on: BTreeMap<(Target, PathId), OnPath>,
    of_target: BTreeMap<Target, BTreeSet<CounterId>>,
    /// The counters of queue pairs that are to move and are not idle.
    pub(super) waiting: BTreeSet<CounterId>,
    /// The load by own queue pairs, in 1000 bytes a second.
    pub(super) own: BTreeMap<Link, u64>,
    /// The same as new queue pairs see it: those that have paused hardly count. Queue pairs that
    /// begin together are then even among themselves, whatever others did before.
    pub(super) own_for_new: BTreeMap<Link, u64>,
    /// Links that had load, and when they lost it. Others are told.
    pub(super) emptied: BTreeMap<Link, Duration>,
    /// The number of measured queue pairs, and the sums of their rates and of their loads.
    measured: (u64, u64, u64),
    /// As [`super::Placer::same_links`].
    pub(super) same_links: [u64; 3],
}

/// Adds to a sum, or takes away from it.
fn change(sum: &mut u64, by: u64, adds: bool) {
    *sum = if adds { sum.saturating_add(by) } else { sum.saturating_sub(by) };
}

fn change_number(number: &mut usize, changes: bool, adds: bool) {
    let by = usize::from(changes);
    *number = if adds { *number + by } else { number.saturating_sub(by) };
}

fn change_set(set: &mut BTreeSet<CounterId>, counter: CounterId, adds: bool) {
    if adds {
        set.insert(counter);
    } else {
        set.remove(&counter);
    }
}

/// The least and the greatest path.
const LEAST: PathId = PathId { hop: 0, source_port: 0 };
const GREATEST: PathId = PathId { hop: u64::MAX, source_port: u16::MAX };

impl Sums {
    /// A queue pair of a target has changed. `None`: it was not there before, or is not any more.
    pub(super) fn change(
        &mut self,
        (target, counter): (Target, CounterId),
        (before, now): (Option<Counted>, Option<Counted>),
        paths: Option<&Paths>,
        at: Duration,
    ) {
        let has_moved = before.map(|of| of.position) != now.map(|of| of.position);
        for (of, adds) in [(before, false), (now, true)] {
            let Some(Counted { position, load, same_links }) = of else { continue };
            if has_moved {
                self.count((target, counter), &position, adds);
            }
            if has_moved || before.map(|of| of.load) != now.map(|of| of.load) {
                self.load(target, (&position, &load), adds);
                self.links(&links_of(paths, position.goal()), (&load, adds), at);
            }
            let [yes, no, unknown] = &mut self.same_links;
            let same = match same_links {
                Some(true) => yes,
                Some(false) => no,
                None => unknown,
            };
            change(same, 1, adds);
        }
        if before.is_some() != now.is_some() {
            let counters = self.of_target.entry(target).or_default();
            change_set(counters, counter, now.is_some());
            if counters.is_empty() {
                self.of_target.remove(&target);
            }
        }
        for position in [before, now].into_iter().flatten().map(|of| of.position) {
            self.tidy(target, position.path);
            self.tidy(target, position.goal());
        }
    }

    fn count(&mut self, (target, counter): (Target, CounterId), position: &Position, adds: bool) {
        let Position { path, wanted, is_idle, is_hashed, stays_hashed } = *position;
        let on = self.on.entry((target, path)).or_default();
        change_set(&mut on.here, counter, adds);
        change_number(&mut on.pinned, !is_idle && !is_hashed, adds);
        change_number(&mut on.hashed, !is_idle && stays_hashed, adds);
        let Some(wanted) = wanted else { return };
        let on = self.on.entry((target, wanted)).or_default();
        change_set(&mut on.coming, counter, adds);
        change_number(&mut on.wanted, !is_idle, adds);
        if !is_idle {
            change_set(&mut self.waiting, counter, adds);
        }
    }

    fn load(&mut self, target: Target, (position, load): (&Position, &Load), adds: bool) {
        let on = self.on.entry((target, position.goal())).or_default();
        change(&mut on.for_moves, load.for_moves, adds);
        change(&mut on.for_new, load.for_new, adds);
        let on = self.on.entry((target, position.path)).or_default();
        change(&mut on.rate_now, load.rate_now, adds);
        if let Some((rate, load)) = load.measured {
            let (number, rates, loads) = &mut self.measured;
            change(number, 1, adds);
            change(rates, rate, adds);
            change(loads, load, adds);
        }
    }

    /// Forgets a path without queue pairs.
    fn tidy(&mut self, target: Target, path: PathId) {
        let key = (target, path);
        if self.on.get(&key).is_some_and(|on| on.here.is_empty() && on.coming.is_empty()) {
            self.on.remove(&key);
        }
    }

    /// Adds a load to links, or takes it away.
    fn links(&mut self, links: &[Link], (load, adds): (&Load, bool), at: Duration) {
        for link in links {
            for (loads, load) in
                [(&mut self.own, load.for_moves), (&mut self.own_for_new, load.for_new)]
            {
                if load == 0 {
                    continue;
                }
                let sum = loads.entry(*link).or_default();
                change(sum, load, adds);
                if *sum == 0 {
                    loads.remove(link);
                }
            }
            if self.own.contains_key(link) {
                self.emptied.remove(link);
            } else if !adds && load.for_moves > 0 {
                self.emptied.insert(*link, at);
            }
        }
    }

    /// Adds the load of all queue pairs to a target to the links of its paths, or takes it away. To be
    /// called when the paths change.
    pub(super) fn link(&mut self, target: Target, paths: Option<&Paths>, adds: bool, at: Duration) {
        let loads: Vec<(PathId, Load)> = self
            .paths(target)
            .map(|(path, on)| {
                let (for_moves, for_new) = (on.for_moves, on.for_new);
                (path, Load { for_moves, for_new, rate_now: 0, measured: None })
            })
            .collect();
        for (path, load) in loads {
            self.links(&links_of(paths, path), (&load, adds), at);
        }
    }

    fn paths(&self, target: Target) -> impl Iterator<Item = (PathId, &OnPath)> {
        let all = (Included((target, LEAST)), Included((target, GREATEST)));
        self.on.range(all).map(|((_, path), on)| (*path, on))
    }

    /// The paths on which queue pairs to a target are or are to be.
    pub(super) fn paths_of(&self, target: Target) -> impl Iterator<Item = PathId> {
        self.paths(target).map(|(path, _)| path)
    }

    /// For each path with queue pairs to a target: their number, and their rate now.
    pub(super) fn traffic(&self, target: Target) -> impl Iterator<Item = (PathId, usize, u64)> {
        self.paths(target).map(|(path, on)| (path, on.here.len(), on.rate_now))
    }

    /// The counters of up to `most` queue pairs that are to move to a path.
    pub(super) fn coming(&self, on: (Target, PathId), most: usize) -> Vec<CounterId> {
        let counters = self.on.get(&on).into_iter().flat_map(|on| &on.coming);
        counters.take(most).copied().collect()
    }

    /// The counters of up to `most` queue pairs on a path, behind `after`.
    pub(super) fn here(
        &self,
        on: (Target, PathId),
        after: Option<CounterId>,
        most: usize,
    ) -> Vec<CounterId> {
        let on = self.on.get(&on).into_iter();
        let counters =
            on.flat_map(|on| on.here.range((after.map_or(Unbounded, Excluded), Unbounded)));
        counters.take(most).copied().collect()
    }

    /// The counters of up to `most` queue pairs to a target behind `after`.
    pub(super) fn of_target(
        &self,
        target: Target,
        after: Option<CounterId>,
        most: usize,
    ) -> Vec<CounterId> {
        let counters = self.of_target.get(&target);
        let counters = counters
            .into_iter()
            .flat_map(|of| of.range((after.map_or(Unbounded, Excluded), Unbounded)));
        counters.take(most).copied().collect()
    }

    /// The number of queue pairs to a target.
    pub(super) fn number(&self, target: Target) -> usize {
        self.of_target.get(&target).map_or(0, BTreeSet::len)
    }

    /// The mean rate and the mean load of the measured queue pairs, if there are any.
    pub(super) fn means(&self) -> (u64, u64) {
        let (number, rates, loads) = self.measured;
        let mean = |sum| u64::checked_div(sum, number).unwrap_or(NOMINAL);
        (mean(rates), mean(loads))
    }

    /// The paths to watch: as [`super::Placer::used`].
    pub(super) fn used(&self, target: Target) -> BTreeSet<PathId> {
        let with = |is: fn(&OnPath) -> bool| {
            self.paths(target).filter(move |(_, on)| is(on)).map(|(path, _)| path)
        };
        let mut used: BTreeSet<PathId> = with(|on| on.pinned + on.wanted > 0).collect();
        used.extend(with(|on| on.hashed > 0).take(WATCHED_HASHED));
        used
    }
}
