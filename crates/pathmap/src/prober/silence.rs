//! What follows from probes without an answer: whether a path is dead, or the VTEP silent.

use std::collections::BTreeSet;
use std::time::Duration;

use path::PathId;

use super::state::{Outstanding, State};
use super::{CONTROLS, Change, ERROR, MISSING, MOST_MISSING, Prober, ROUNDS, SILENT};

impl Prober {
    /// Whether no answer has arrived for a while.
    pub(super) fn is_silent(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) >= SILENT
    }

    /// A probe was not answered in time.
    pub(super) fn missed(&mut self, sent: Outstanding, now: Duration) {
        let is_used = self.used.contains(&sent.path);
        let is_silent = self.is_silent(now);
        let is_known = self.paths.get(&sent.path).is_some_and(|state| state.known.is_some());
        // A VTEP that has told another token since may have refused what had this one.
        let has_token = sent.token == self.token;
        let counts = !is_known || has_token && self.another_answered(sent.path, sent.at);
        let Some(state) = self.paths.get_mut(&sent.path) else { return };
        if !state.miss(&sent, counts) {
            return;
        }
        if state.known.is_none() {
            let (again, is_new) = (now + state.again(), state.tries < ROUNDS);
            if !state.lost {
                self.schedule(sent.path, if is_new { now } else { again }, is_new);
            }
            return;
        }
        let interval = self.settings.interval;
        match (is_used, is_silent) {
            (true, false) => self.schedule(sent.path, now + interval / 4, true),
            (true, true) | (false, false) => self.schedule(sent.path, now + interval, true),
            // The paths in use tell when it answers again.
            (false, true) => {}
        }
    }

    /// Whether a probe of another path was answered that was sent at about this time.
    fn another_answered(&self, path: PathId, at: Duration) -> bool {
        let window = self.settings.interval / 3;
        self.recent_answers.iter().any(|(sent, of)| *of != path && sent.abs_diff(at) <= window)
    }

    /// The number of probes without an answer after which a path is dead.
    fn missing(&self) -> u8 {
        let enough = |number: &u8| self.loss.powi(i32::from(*number)) < ERROR;
        (MISSING..MOST_MISSING).find(enough).unwrap_or(MOST_MISSING)
    }

    /// Probes a few other paths at once: whether they are answered tells a dead path from a silent
    /// VTEP.
    pub(super) fn control(&mut self, path: PathId, now: Duration) {
        let soon = self.settings.interval / 4;
        let others: Vec<PathId> = self
            .paths
            .iter()
            .filter(|(other, state)| **other != path && state.is_control(now, soon))
            .map(|(path, _)| *path)
            .take(64)
            .collect();
        let start = self.random.index(others.len());
        for path in others.iter().cycle().skip(start).take(CONTROLS.min(others.len())) {
            self.schedule(*path, now, true);
        }
    }

    /// Declares paths dead that have missed enough answers while other paths were answered.
    pub(super) fn mark_missing_dead(&mut self, now: Duration) {
        let missing = self.missing();
        let is_dead = |state: &State| state.known.is_some() && state.missed >= missing;
        let dead = |(path, state): (&PathId, &State)| is_dead(state).then_some(*path);
        self.mark_dead(self.paths.iter().filter_map(dead).collect(), now);
    }

    /// Paths are dead.
    fn mark_dead(&mut self, dead: Vec<PathId>, now: Duration) {
        // Paths on the same route are not probed often, and must not be used before they are.
        let route = |path: &PathId| Some((path.hop, self.paths.get(path)?.known.as_ref()?));
        let alike = |(hop, route)| self.unused_on(hop, route);
        let alike: BTreeSet<PathId> = dead.iter().filter_map(route).flat_map(alike).collect();
        let alike: Vec<PathId> = alike.into_iter().filter(|path| !dead.contains(path)).collect();
        for path in dead.into_iter().chain(alike) {
            if let Some(state) = self.paths.get_mut(&path) {
                state.mark_dead();
            }
            self.version = self.version.next();
            self.changes.push(Change::Lost(path));
            self.schedule(path, now, false);
        }
    }
}
