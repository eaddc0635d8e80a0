//! Plans: the routes of the next queue pairs to each target, made before these begin.
//!
//! A plan keeps every tier even after each of its queue pairs, which taking the cheapest route for
//! one after the other does not ([`crate::plan::Routes::sequence`]).

use std::ops::Bound::{Excluded, Unbounded};

use super::types::{LENGTH, Paths, Plan};
use super::{Placer, Target};
use crate::prober::Pair;

/// Routes for which plans are made at once, and more only for a single target. That takes half a
/// millisecond.
const ROUTES: usize = 16;

impl Placer {
    /// The pair of the next queue pair to this target. It is `current`, if that route would be used
    /// soon.
    pub(super) fn next_pair(
        &mut self,
        target: Target,
        load: u64,
        current: Option<Pair>,
    ) -> Option<Pair> {
        let paths = self.targets.get_mut(&target)?;
        let current = current.and_then(|pair| Some((pair, *paths.of_pair.get(&pair)?)));
        let route = match paths.plan.take(paths.routes.len(), current.map(|(_, route)| route)) {
            Some(route) => route,
            None => {
                let paths = self.targets.get(&target)?;
                let loads = self.loads(&paths.routes, &self.own_for_new);
                paths.routes.cheapest(&loads, load, &mut self.random)?
            }
        };
        match current {
            Some((pair, own)) if own == route => Some(pair),
            _ => self.pair_of(target, route),
        }
    }

    /// Has plans made anew, because loads have changed.
    pub(super) fn renew_plans(&mut self) {
        self.targets.values_mut().for_each(|paths| paths.plan.is_stale = true);
    }

    /// Makes the plans that are short, or for which loads have changed: some of them, the others with
    /// the next calls.
    pub(super) fn make_plans(&mut self) {
        let load = self.typical_load();
        let after = self.planned.map_or(Unbounded, Excluded);
        let needs = |paths: &Paths| {
            paths.routes.len() > 1 && (paths.plan.is_short() || paths.plan.is_stale)
        };
        let from_there = self.targets.range((after, Unbounded)).chain(&self.targets);
        let turn: Vec<Target> =
            from_there.filter(|(_, paths)| needs(paths)).map(|(target, _)| *target).collect();
        let mut routes = 0;
        for target in turn {
            let Some(paths) = self.targets.get(&target) else { continue };
            let loads = self.loads(&paths.routes, &self.own_for_new);
            let made_for = Some((load, loads));
            if paths.plan.made_for != made_for {
                routes += paths.routes.len();
                if routes > ROUTES && routes > paths.routes.len() {
                    break;
                }
                let Some((load, loads)) = &made_for else { continue };
                let next = paths.routes.sequence(loads, *load, LENGTH, &mut self.random).into();
                let plan = Plan { routes: next, made_for, is_stale: false };
                if let Some(paths) = self.targets.get_mut(&target) {
                    paths.plan = plan;
                }
                self.planned = Some(target);
            } else if let Some(paths) = self.targets.get_mut(&target) {
                paths.plan.is_stale = false;
            }
        }
    }
}
