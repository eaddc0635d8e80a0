//! What follows from probes without an answer: whether a path is dead, or the VTEP silent.

use std::collections::BTreeSet;
use std::time::Duration;

use super::state::{Outstanding, State};
use super::{CONTROLS, Change, ERROR, MISSING, MOST_MISSING, Pair, Prober, ROUNDS, SILENT};

impl Prober {
    /// Whether no answer has arrived for a while.
    pub(super) fn is_silent(&self, now: Duration) -> bool {
        now.saturating_sub(self.heard) >= SILENT
    }

    /// A probe was not answered in time.
    pub(super) fn missed(&mut self, sent: Outstanding, now: Duration) {
        let is_used = self.used.contains(&sent.pair);
        let is_silent = self.is_silent(now);
        let is_known = self.pairs.get(&sent.pair).is_some_and(|state| state.known.is_some());
        // A VTEP that has told another token since may have refused what had this one.
        let has_token = sent.token == self.token;
        let counts = !is_known || has_token && self.another_answered(sent.pair, sent.at);
        let Some(state) = self.pairs.get_mut(&sent.pair) else { return };
        if !state.miss(&sent, counts) {
            return;
        }
        if state.known.is_none() {
            let (again, is_new) = (now + state.again(), state.tries < ROUNDS);
            if !state.lost {
                self.schedule(sent.pair, if is_new { now } else { again }, is_new);
            }
            return;
        }
        let interval = self.settings.interval;
        match (is_used, is_silent) {
            (true, false) => self.schedule(sent.pair, now + interval / 4, true),
            (true, true) | (false, false) => self.schedule(sent.pair, now + interval, true),
            // The pairs in use tell when it answers again.
            (false, true) => {}
        }
    }

    /// Whether a probe of another pair was answered that was sent at about this time.
    fn another_answered(&self, pair: Pair, at: Duration) -> bool {
        let window = self.settings.interval / 3;
        self.recent_answers.iter().any(|(sent, of)| *of != pair && sent.abs_diff(at) <= window)
    }

    /// The number of probes without an answer after which a pair is dead.
    fn missing(&self) -> u8 {
        let enough = |number: &u8| self.loss.powi(i32::from(*number)) < ERROR;
        (MISSING..MOST_MISSING).find(enough).unwrap_or(MOST_MISSING)
    }

    /// Probes a few other pairs at once: whether they are answered tells a dead path from a silent
    /// VTEP.
    pub(super) fn control(&mut self, pair: Pair, now: Duration) {
        let soon = self.settings.interval / 4;
        let others: Vec<Pair> = self
            .pairs
            .iter()
            .filter(|(other, state)| **other != pair && state.is_control(now, soon))
            .map(|(pair, _)| *pair)
            .take(64)
            .collect();
        let start = self.random.below(others.len());
        for pair in others.iter().cycle().skip(start).take(CONTROLS.min(others.len())) {
            self.schedule(*pair, now, true);
        }
    }

    /// Declares pairs dead that have missed enough answers while other pairs were answered.
    pub(super) fn mark_missing_dead(&mut self, now: Duration) {
        let missing = self.missing();
        let is_dead = |state: &State| state.known.is_some() && state.missed >= missing;
        let dead = |(pair, state): (&Pair, &State)| is_dead(state).then_some(*pair);
        self.mark_dead(self.pairs.iter().filter_map(dead).collect(), now);
    }

    /// Pairs are dead.
    fn mark_dead(&mut self, dead: Vec<Pair>, now: Duration) {
        // Pairs on the same route are not probed often, and must not be used before they are.
        let route = |pair: &Pair| Some((pair.hop, self.pairs.get(pair)?.known.as_ref()?));
        let alike = |(hop, route)| self.unused_on(hop, route);
        let alike: BTreeSet<Pair> = dead.iter().filter_map(route).flat_map(alike).collect();
        let alike: Vec<Pair> = alike.into_iter().filter(|pair| !dead.contains(pair)).collect();
        for pair in dead.into_iter().chain(alike) {
            if let Some(state) = self.pairs.get_mut(&pair) {
                state.mark_dead();
            }
            self.version += 1;
            self.changes.push(Change::Lost(pair));
            self.schedule(pair, now, false);
        }
    }
}
