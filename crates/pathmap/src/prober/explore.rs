//! Which paths are probed beside those in use: fresh ports, and those of a VTEP that is silent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use path::PathId;

use super::state::State;
use super::{EXPLORE, FRESH, Prober, ROUNDS};

/// Paths in use that are probed until the VTEP answers for the first time.
const USED_SCOUTS: usize = 8;

impl Prober {
    /// Whether a path is probed while nothing is known: until a VTEP answers, two ports on each next
    /// hop and a few paths in use are enough. All of these may lead over a dead path, but that is
    /// unlikely.
    pub(super) fn is_scout(&self, path: PathId) -> bool {
        let every = self.used.len().div_ceil(USED_SCOUTS).max(1);
        self.ports.iter().take(2).any(|port| *port == path.source_port)
            || self.used.iter().step_by(every).any(|used| *used == path)
    }

    /// Probes the paths that were given up, because a VTEP that was silent has answered.
    pub(super) fn begin_again(&mut self, now: Duration) {
        let given_up = |(_, state): &(&PathId, &mut State)| state.tries >= ROUNDS && !state.lost;
        let paths = self.paths.iter_mut().filter(given_up);
        let paths: Vec<PathId> = paths
            .map(|(path, state)| {
                state.tries = 0;
                *path
            })
            .collect();
        paths.into_iter().for_each(|path| self.schedule(path, now, true));
    }

    /// Adds ports where that may find more, ten times a second at most.
    pub(super) fn review(&mut self, now: Duration) {
        let is_new = |state: &State| {
            state.known.is_none() && !state.lost && state.tries < ROUNDS
                || state.wants_record() && state.record_tries < ROUNDS
        };
        let waiting = self.paths.values().filter(|state| is_new(state)).count();
        let began = self.began.unwrap_or(now);
        let late = now.saturating_sub(began) >= Duration::from_millis(500);
        if !self.ready && !self.paths.is_empty() && (waiting == 0 || late) {
            self.ready = true;
            self.version = self.version.next();
        }
        if waiting == 0
            && self.ports.len() < usize::from(self.settings.most_ports)
            && self.is_thin()
        {
            let most = usize::from(self.settings.most_ports) - self.ports.len();
            self.add_ports(now, self.ports.len().min(most));
        }
        let known = self.paths.iter();
        let known = known.filter_map(|(path, state)| Some((*path, state.known.as_ref()?)));
        let is_gone = self.ready && self.routes.is_any_gone(known, self.version, now);
        let is_degraded = is_gone || self.paths.values().any(|state| state.lost);
        if is_degraded && now.saturating_sub(self.explored) >= EXPLORE {
            self.explored = now;
            self.explore(now);
        }
    }

    /// Whether routes may be missing: if a next hop led to one more route than found, and to all
    /// equally, its ports would have missed one of them with a probability of 1 % or more.
    fn is_thin(&self) -> bool {
        let mut found = BTreeMap::<u64, (i32, BTreeSet<_>)>::new();
        for (path, state) in &self.paths {
            if let Some(known) = &state.known {
                let (paths, routes) = found.entry(path.hop).or_default();
                *paths += 1;
                routes.insert((known.arrival, known.routers, known.recorded.clone()));
            }
        }
        let may_miss = |(paths, routes): &(i32, BTreeSet<_>)| {
            let routes = routes.len() as f64 + 1.0;
            routes * (1.0 - 1.0 / routes).powi(*paths) >= 0.01
        };
        found.values().any(may_miss)
    }

    /// Probes fresh ports in place of ports that nothing uses: a router may keep old ports away
    /// from a link that returned.
    fn explore(&mut self, now: Duration) {
        let most = usize::from(self.settings.most_ports);
        for _ in 0..FRESH {
            if self.ports.len() + FRESH <= most {
                break;
            }
            let index = self.random.index(self.ports.len());
            let Some(port) = self.ports.get(index).copied() else { break };
            if self.used.iter().all(|path| path.source_port != port) {
                self.ports.swap_remove(index);
                for hop in self.hops.clone() {
                    self.forget(PathId { hop, source_port: port });
                }
            }
        }
        self.add_ports(now, FRESH.min(most.saturating_sub(self.ports.len())));
    }
}
