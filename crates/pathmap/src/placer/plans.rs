//! Plans: the routes of the next queue pairs to each target, made before these begin.
//!
//! A plan keeps every tier even after each of its queue pairs, which taking the cheapest route for
//! one after the other does not ([`crate::plan::Routes::sequence`]).

use std::collections::VecDeque;
use std::ops::Bound::{Excluded, Unbounded};

use super::types::Paths;
use super::{Placer, Target};
use crate::prober::Pair;

/// Queue pairs that a plan is made for.
const LENGTH: usize = 64;
/// Routes for which plans are made at once, and more only for a single target. That takes half a
/// millisecond.
const ROUTES: usize = 16;

/// The routes of the next queue pairs to a target.
#[derive(Debug, Default)]
pub(super) struct Plan {
    routes: VecDeque<usize>,
    /// The load of a queue pair and those of the links for which it was made. `None` after a part of
    /// it was used.
    made_for: Option<(u64, Vec<u64>)>,
    /// Whether loads may have changed since. It is used until there is a new one.
    is_stale: bool,
}

impl Plan {
    fn is_short(&self) -> bool {
        self.routes.len() < LENGTH / 2
    }

    /// Takes the next route out of the plan; `current`, if its turn comes in this round, in which each
    /// of the `number` routes has one.
    fn take(&mut self, number: usize, current: Option<usize>) -> Option<usize> {
        self.made_for = None;
        let rest = number - (LENGTH - self.routes.len()).checked_rem(number)?;
        let mut round = self.routes.iter().take(rest);
        let place = current.and_then(|current| round.position(|route| *route == current));
        self.routes.remove(place.unwrap_or(0))
    }
}

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
