//! Moves that make the load more even.
//!
//! Leaves that share links take turns: in every answer to a probe, a leaf tells how much its best
//! move would gain. It moves if no other leaf has told more, and if all had the time to hear of it.
//! Every move therefore lowers the potential that all leaves share, and moves come to an end
//! (maximum gain messages: Maheswaran, Pearce, Tambe 2004).
//!
//! Moves are looked for in a copy of loads and routes, while others use the placement.

use std::sync::Arc;
use std::time::Duration;

use path::CounterId;

use super::{Flow, Moves, Placer, Target};
use crate::routes::{self, Routes};

/// How long a queue pair stays after a move for balance.
pub(super) const HOLD: Duration = Duration::from_secs(1);
/// Moves that are decided at once.
const MOVES: usize = 8;
/// VTEPs for which moves are looked for at once.
const EXAMINED: usize = 8;

/// A queue pair that may move: its counter, and its route and load.
type Movable = (CounterId, (usize, u64));

/// A move: the queue pair, and its new route.
type Move = (Movable, usize);

/// The paths to a VTEP, and the queue pairs that may move between them.
#[derive(Debug)]
struct Candidate {
    target: Target,
    routes: Arc<Routes>,
    loads: Vec<u64>,
    flows: Vec<Movable>,
    /// What the best moves would gain.
    gain: f64,
}

impl Candidate {
    fn best(&self) -> Option<routes::Moves> {
        let flows: Vec<(usize, u64)> = self.flows.iter().map(|(_, flow)| *flow).collect();
        self.routes.improve(&self.loads, &flows)
    }

    fn examine(&mut self) {
        self.gain = self.best().map_or(0.0, |(gain, _)| gain);
    }

    /// The best moves, one after the other.
    fn improve(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        for _ in 0..MOVES {
            let Some((_, best)) = self.best() else { break };
            let of = |(index, to)| Some((*self.flows.get(index)?, to));
            let best: Vec<Move> = best.into_iter().filter_map(of).collect();
            for ((_, (from, load)), to) in &best {
                self.routes.change(&mut self.loads, *from, |now| now.saturating_sub(*load));
                self.routes.change(&mut self.loads, *to, |now| now + load);
            }
            self.flows.retain(|flow| !best.iter().any(|(moved, _)| moved == flow));
            moves.extend(best);
        }
        self.examine();
        moves
    }
}

/// A search for moves.
#[derive(Debug, Default)]
pub(super) struct Search {
    candidates: Vec<Candidate>,
    /// The one to improve, and its moves.
    best: Option<(usize, Vec<Move>)>,
}

impl Search {
    /// Looks for moves: for what they would gain, or for those of the best VTEP.
    pub(super) fn look(&mut self) {
        match &mut self.best {
            None => self.candidates.iter_mut().for_each(Candidate::examine),
            Some((index, moves)) => {
                *moves = self.candidates.get_mut(*index).map_or(Vec::new(), Candidate::improve);
            }
        }
    }
}

impl Placer {
    /// Whether the reports of other VTEPs are to arrive as often as from those with queue pairs:
    /// while this leaf or another one wants to move. They then agree whose turn it is.
    #[must_use]
    pub fn wants_reports(&self, now: Duration) -> bool {
        self.options.moves == Moves::AfterPause
            && (self.turn.gain > 0 || self.peers.has_claims(now))
    }

    fn gain(&self, target: &Target) -> f64 {
        self.targets.get(target).map_or(0.0, |paths| paths.gain)
    }

    /// The VTEP for which moves gain most.
    fn most_gaining(&self) -> Option<Target> {
        let targets = self.targets.keys().copied();
        targets.max_by(|a, b| self.gain(a).total_cmp(&self.gain(b)))
    }

    /// Begins a search: for moves to some VTEPs, and to the one for which they gained most.
    pub(super) fn begin_search(&mut self) -> Search {
        let targets: Vec<Target> = self.targets.keys().copied().collect();
        let mut examined: Vec<Target> = self.most_gaining().into_iter().collect();
        for _ in 0..EXAMINED.min(targets.len()) {
            self.turn.next = self.turn.next.wrapping_add(1);
            examined.extend(targets.get(self.turn.next % targets.len()));
        }
        examined.sort_unstable();
        examined.dedup();
        let candidate = |target| {
            let routes = Arc::clone(&self.targets.get(&target)?.routes);
            let loads = Vec::new();
            Some(Candidate { target, routes, loads, flows: Vec::new(), gain: 0.0 })
        };
        Search { candidates: examined.into_iter().filter_map(candidate).collect(), best: None }
    }

    /// Adds the queue pairs with these counters that may move.
    pub(super) fn gather(
        &self,
        search: &mut Search,
        counters: impl Iterator<Item = CounterId>,
        now: Duration,
    ) {
        for (id, flow) in counters.filter_map(|counter| self.flows.at(counter)) {
            let index = search.candidates.binary_search_by_key(&id.target, |of| of.target);
            let Some(candidate) = index.ok().and_then(|at| search.candidates.get_mut(at)) else {
                continue;
            };
            if flow.follows || self.is_sprayed(id) || !flow.may_balance(now, HOLD) {
                continue;
            }
            candidate.flows.extend(self.movable(id.target, flow));
        }
    }

    fn movable(&self, target: Target, flow: &Flow) -> Option<Movable> {
        let route = self.targets.get(&target)?.route_of(flow.goal())?;
        Some((flow.counter, (route, flow.load_for_moves())))
    }

    /// Copies the loads, when all queue pairs are there.
    pub(super) fn copy_loads(&self, search: &mut Search) {
        for candidate in &mut search.candidates {
            candidate.loads = self.loads(&candidate.routes, &self.sums.own);
        }
    }

    /// Notes what was found, and decides moves if it is this leaf's turn. Returns whether the moves
    /// are to be looked for.
    pub(super) fn decide_moves(&mut self, search: &mut Search, now: Duration) -> bool {
        if let Some((index, moves)) = search.best.take() {
            if let Some(candidate) = search.candidates.get(index) {
                self.decide_all(candidate, moves, now);
                self.note_gain(candidate);
                self.turn.claim(candidate.gain, now);
            }
            return false;
        }
        search.candidates.iter().for_each(|candidate| self.note_gain(candidate));
        let Some(best) = self.most_gaining() else { return false };
        self.turn.claim(self.gain(&best), now);
        if self.turn.gain == 0 {
            return false;
        }
        if !self.peers.is_empty() {
            let is_heard = self.turn.is_heard(self.options.settle, now);
            let yields = self.peers.yields((self.turn.gain, best.local), now);
            if yields || !is_heard {
                return false;
            }
        }
        let index = search.candidates.iter().position(|candidate| candidate.target == best);
        search.best = index.map(|index| (index, Vec::new()));
        search.best.is_some()
    }

    fn note_gain(&mut self, candidate: &Candidate) {
        if let Some(paths) = self.targets.get_mut(&candidate.target) {
            paths.gain = candidate.gain;
        }
    }

    /// Decides the moves of queue pairs that are as they were when the moves were looked for.
    fn decide_all(&mut self, of: &Candidate, moves: Vec<Move>, now: Duration) {
        let target = of.target;
        let is_same = |paths: &super::Paths| Arc::ptr_eq(&paths.routes, &of.routes);
        if moves.is_empty() || !self.targets.get(&target).is_some_and(is_same) {
            return;
        }
        for (movable, to) in moves {
            let (counter, _) = movable;
            let Some((id, flow)) = self.flows.at(counter) else { continue };
            let stays_movable = id.target == target
                && flow.may_balance(now, HOLD)
                && self.movable(target, flow) == Some(movable);
            let (id, path) = (*id, self.path_of(target, to));
            if let Some(path) = path.filter(|_| stays_movable) {
                self.edit(&id, |flow| (flow.wanted, flow.decided) = (Some(path), Some(now)));
            }
        }
        self.renew_plans();
    }
}
