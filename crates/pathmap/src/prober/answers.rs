//! What follows from answers: where paths lead, and how long answers take.

use std::time::Duration;

use path::PathId;

use super::state::{Outstanding, State};
use super::{Change, Known, Prober, RECENT_ANSWERS, REFRESH, REVIEW, ROUNDS, UNUSED};
use crate::message::Answer;

impl Prober {
    /// Takes an answer. `false` if it fits no probe that waits for one.
    pub fn answer(&mut self, now: Duration, answer: &Answer) -> bool {
        let probe = &answer.probe;
        let fits = |sent: &Outstanding| {
            sent.nonce == probe.nonce
                && sent.path.source_port == probe.port
                && sent.records == probe.records
        };
        let in_time = self.outstanding.contains_key(&probe.id);
        let of = if in_time { &mut self.outstanding } else { &mut self.late };
        let Some(sent) = of.get(&probe.id).copied().filter(fits) else {
            self.counts[2] += 1;
            return false;
        };
        of.remove(&probe.id);
        self.counts[1] += 1;
        self.token = answer.token;
        self.note_answer(&sent);
        let delay = now.saturating_sub(sent.at);
        if std::mem::replace(&mut self.heard, now).is_zero() {
            // Scouts stood for them.
            self.used.clone().into_iter().for_each(|path| self.schedule(path, now, true));
        }
        if sent.explores && in_time {
            self.window.answered(now, delay);
        } else {
            self.window.heard(now, delay);
        }
        let knew_any = self.knows_any();
        let Some(state) = self.paths.get_mut(&sent.path) else { return true };
        let was_lost = state.lost;
        let (before, was_settled) = (state.known.clone(), state.is_settled());
        let missed = if sent.records { 0 } else { state.missed.max(state.tries.min(ROUNDS)) };
        let (changed, moved) = state.answered(answer, &sent, now, delay);
        self.slowest = if delay > self.slowest {
            delay.min(self.slowest * 2 + Duration::from_millis(50))
        } else {
            self.slowest - (self.slowest - delay) / 64
        };
        for lost in (0..missed).map(|_| 1.0).chain([0.0]) {
            self.loss += (lost - self.loss) / 128.0;
        }
        if changed {
            self.version = self.version.next();
        }
        let returned = was_lost && !state.lost;
        if !knew_any {
            self.begin_again(now);
        }
        let is_settled = self.paths.get(&sent.path).is_some_and(State::is_settled);
        if is_settled && !was_settled && !self.used.contains(&sent.path) {
            let next =
                if self.is_watched(sent.path) { UNUSED } else { self.random.around(REFRESH) };
            self.schedule(sent.path, now + next, false);
        }
        if returned {
            self.changes.push(Change::Returned(sent.path));
        } else if moved {
            self.changes.push(Change::Moved(sent.path));
            self.schedule(sent.path, now, true);
            self.follow_move(sent.path.hop, before.as_ref(), now);
        }
        true
    }

    /// A path leads elsewhere: others on the route that it had may, too.
    fn follow_move(&mut self, hop: u64, before: Option<&Known>, now: Duration) {
        let Some(route) = before else { return };
        // Those that are asked now need not be asked again.
        if now.saturating_sub(self.followed) < REVIEW.max(self.slowest * 2) {
            return;
        }
        self.followed = now;
        for path in self.unused_on(hop, route) {
            self.schedule(path, now, true);
        }
    }

    /// The paths on a route that are not in use.
    pub(super) fn unused_on(&self, hop: u64, route: &Known) -> Vec<PathId> {
        let is_on = |(path, state): &(&PathId, &State)| {
            path.hop == hop
                && !self.used.contains(*path)
                && state.known.as_ref().is_some_and(|known| known.is_route_of(route))
        };
        self.paths.iter().filter(is_on).map(|(path, _)| *path).collect()
    }

    fn note_answer(&mut self, sent: &Outstanding) {
        if self.recent_answers.len() >= RECENT_ANSWERS {
            self.recent_answers.pop_front();
        }
        self.recent_answers.push_back((sent.at, sent.path));
    }
}
