//! Plans: the routes of the next queue pairs to each target, made before these begin.
//!
//! A plan keeps every tier even after each of its queue pairs, which taking the cheapest route for
//! one after the other does not ([`crate::routes::Routes::sequence`]).

use std::collections::VecDeque;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use path::PathId;
use spray::Random;

use super::types::{LENGTH, Paths, Plan};
use super::{Placer, Target};
use crate::routes::Routes;

/// Routes for which plans are made at once, and more only for a single target. That takes half a
/// millisecond.
const ROUTES: usize = 16;

impl Placer {
    /// The path of the next queue pair to this target. It is `current`, if that route would be used
    /// soon.
    pub(super) fn next_path(
        &mut self,
        target: Target,
        load: u64,
        current: Option<PathId>,
    ) -> Option<PathId> {
        let paths = self.targets.get_mut(&target)?;
        let current = current.and_then(|path| Some((path, *paths.of_path.get(&path)?)));
        let route = match paths.plan.take(paths.routes.len(), current.map(|(_, route)| route)) {
            Some(route) => route,
            None => {
                let paths = self.targets.get(&target)?;
                let loads = self.loads(&paths.routes, &self.sums.own_for_new);
                paths.routes.cheapest(&loads, load, &mut self.random)?
            }
        };
        match current {
            Some((path, own)) if own == route => Some(path),
            _ => self.path_of(target, route),
        }
    }

    /// Has plans made anew, because loads have changed.
    pub(super) const fn renew_plans(&mut self) {
        self.loads_version += 1;
    }

    /// The targets whose plans are short, or for whose plans loads have changed.
    pub(super) fn unplanned(&self) -> Unplanned {
        let after = self.planned.map_or(Unbounded, Excluded);
        let needs = |paths: &Paths| {
            let is_stale = paths.plan.version != self.loads_version;
            paths.routes.len() > 1 && (paths.plan.is_short() || is_stale)
        };
        let from_there = self.targets.range((after, Unbounded)).chain(&self.targets);
        let turn = from_there.filter(|(_, paths)| needs(paths)).map(|(target, _)| *target);
        Unplanned { turn: turn.collect(), routes: 0 }
    }

    /// What the next plan is to be made of. `None` if there is none to make now: [`Self::unplanned`]
    /// finds the others again in the next tick.
    pub(super) fn next_plan(&mut self, unplanned: &mut Unplanned) -> Option<NewPlan> {
        let load = self.typical_load();
        while let Some(target) = unplanned.turn.pop_front() {
            let Some(paths) = self.targets.get(&target) else { continue };
            let made_for = (load, self.loads(&paths.routes, &self.sums.own_for_new));
            let routes = Arc::clone(&paths.routes);
            if paths.plan.made_for.as_ref() == Some(&made_for) {
                if let Some(paths) = self.targets.get_mut(&target) {
                    paths.plan.version = self.loads_version;
                }
                continue;
            }
            let is_first = unplanned.routes == 0;
            unplanned.routes += routes.len();
            if unplanned.routes > ROUTES && !is_first {
                return None;
            }
            let random = Random::new(self.random.next());
            let made = Vec::new();
            let version = self.loads_version;
            if let Some(paths) = self.targets.get_mut(&target) {
                paths.plan.placed = 0;
            }
            return Some(NewPlan { target, routes, made_for, version, random, made });
        }
        None
    }

    /// Takes a plan that was made. Queue pairs that were placed meanwhile have had its first routes.
    pub(super) fn take_plan(&mut self, new: NewPlan) {
        let NewPlan { target, routes, made_for, version, made, .. } = new;
        self.planned = Some(target);
        // There may be other paths by now.
        let paths = self.targets.get_mut(&target);
        if let Some(paths) = paths.filter(|paths| Arc::ptr_eq(&paths.routes, &routes)) {
            let placed = paths.plan.placed;
            let made_for = (placed == 0).then_some(made_for);
            let routes = made.into_iter().skip(placed).collect();
            paths.plan = Plan { routes, made_for, version, placed: 0 };
        }
    }
}

/// Targets that need a plan, and the number of routes for which plans were made.
#[derive(Debug, Default)]
pub(super) struct Unplanned {
    turn: VecDeque<Target>,
    routes: usize,
}

/// A plan that is made apart from the placement.
#[derive(Debug)]
pub(super) struct NewPlan {
    target: Target,
    routes: Arc<Routes>,
    made_for: (u64, Vec<u64>),
    version: u64,
    random: Random,
    made: Vec<usize>,
}

impl NewPlan {
    pub(super) fn make(&mut self) {
        let (load, loads) = &self.made_for;
        self.made = self.routes.sequence(loads, *load, LENGTH, &mut self.random);
    }
}
