//! Measures the queue pairs, forgets idle ones, and decides moves.
//!
//! Leaves that share links take turns: in every answer to a probe, a leaf tells how much its best
//! move would gain. It moves if no other leaf has told more, and if all had the time to hear of it.
//! Every move therefore lowers the potential that all leaves share, and moves come to an end
//! (maximum gain messages: Maheswaran, Pearce, Tambe 2004).

use std::time::Duration;

use super::{Flow, FlowId, Moves, NOMINAL, Placer, Reading, Target};
use crate::load::{AGE, WISH_HOLD};
use crate::next_multiple;
use crate::prober::Pair;

/// How often loads are measured.
const MEASURE: Duration = Duration::from_millis(500);
/// How often the load is made more even.
const REBALANCE: Duration = Duration::from_millis(50);
/// How long a queue pair stays after a move for balance.
pub(super) const HOLD: Duration = Duration::from_secs(1);
/// Loads are rounded to this part of the mean load, so that measuring errors move nothing.
const STEPS: u64 = 8;
/// Pauses are looked for with every rebalancing if there are at most this many queue pairs, and
/// otherwise with every measurement.
const MOST_PAUSES: usize = 4096;
/// Moves that are decided at once.
const MOVES: usize = 8;
/// VTEPs for which moves are looked for at once.
const EXAMINED: usize = 8;
/// A queue pair that is idle for this time makes room for another one in a full table.
const FULL_IDLE: Duration = Duration::from_secs(1);

/// Whose turn it is to move.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// As [`crate::Report::wish`].
    pub(super) wish: u32,
    /// When the wish became greater last.
    risen: Duration,
    /// Since when it is not 0.
    since: Duration,
    /// Counts the VTEPs for which moves were looked for.
    next: usize,
}

impl Turn {
    fn want(&mut self, gain: f64, now: Duration) {
        // The order of gains is what counts, so their logarithm is enough.
        let wish = if gain > 0.0 { (1e6 * (1.0 + gain.max(1.0).log2())) as u32 } else { 0 };
        if wish > self.wish {
            self.risen = now;
        }
        if self.wish == 0 {
            self.since = now;
        }
        self.wish = wish;
    }

    /// Whether all had the time to hear of the wish. One that rises again and again, because of what
    /// others report, is not waited for any longer.
    fn is_heard(&self, settle: Duration, now: Duration) -> bool {
        now.saturating_sub(self.risen) >= settle || now.saturating_sub(self.since) >= WISH_HOLD
    }
}

impl Placer {
    /// Measures, forgets idle queue pairs, and decides moves. `read` returns the counts of a slot.
    /// To be called every 50 ms, and every few milliseconds while [`Self::awaits_gaps`].
    pub fn tick(&mut self, read: impl Fn(u32) -> Reading, now: Duration) {
        // After a late call, too little time has passed at the next multiple.
        let measures = now >= next_multiple(self.measured + MEASURE / 2, MEASURE);
        let rebalances = now >= next_multiple(self.rebalanced, REBALANCE);
        if measures || rebalances && self.flows.len() <= MOST_PAUSES {
            self.note_pauses(&read, now);
        }
        if measures {
            self.measure(&read, now);
            self.measured = now;
        }
        if rebalances {
            self.rebalanced = now;
            self.follow(now);
            if self.options.moves == Moves::AfterGap {
                self.rebalance(now);
            }
            self.make_plans();
        }
        self.release_moves(&read, now);
    }

    /// Has workers ask again for queue pairs that may move now.
    fn release_moves(&mut self, read: &impl Fn(u32) -> Reading, now: Duration) {
        let last = |slot| read(slot).last;
        // Workers ask for an idle one anyway.
        let is_waiting = |(id, flow): &(&FlowId, &Flow)| !id.target.by_kernel && !flow.is_idle();
        let mut by_workers = self.flows.iter().filter(is_waiting);
        if by_workers.any(|(id, flow)| self.may_move(id, flow, last, now)) {
            self.version += 1;
        }
    }

    /// Looks which queue pairs send. If that changed, new plans are made.
    fn note_pauses(&mut self, read: &impl Fn(u32) -> Reading, now: Duration) {
        let (mut changed, mut idle, mut awake) = (false, false, Vec::new());
        for (id, flow) in &mut self.flows {
            let was_idle = flow.is_idle();
            let has_changed = flow.note_last(read(flow.slot).last, now);
            changed |= has_changed;
            idle |= has_changed && flow.is_idle();
            // Nobody asks for a queue pair that the kernel encapsulates.
            if was_idle && !flow.is_idle() {
                awake.push(*id);
            }
        }
        awake.into_iter().for_each(|id| self.wake(id, now));
        if idle {
            // Workers ask again.
            self.version += 1;
        }
        if changed {
            self.recount();
            self.renew_plans();
        }
    }

    fn measure(&mut self, read: &impl Fn(u32) -> Reading, now: Duration) {
        let passed = now.saturating_sub(self.measured);
        let idle = if self.flows.len() >= self.options.most as usize {
            FULL_IDLE.min(self.options.idle)
        } else {
            self.options.idle
        };
        let mut gone = Vec::new();
        for (id, flow) in &mut self.flows {
            flow.measure(&read(flow.slot), passed, now);
            if now.saturating_sub(flow.active) >= idle {
                gone.push(*id);
            }
        }
        self.forget(&gone);
        self.counts.forgotten += gone.len() as u64;
        self.pairing.expire(now);
        let measured = self.flows.values().filter(|flow| flow.rate > 0);
        let (sum, number) = measured.fold((0, 0), |(sum, n), flow| (sum + flow.rate, n + 1));
        let mean = u64::checked_div(sum, number).unwrap_or(NOMINAL).max(STEPS);
        let mut changed = !gone.is_empty();
        for flow in self.flows.values_mut() {
            changed |= flow.round(mean, STEPS);
        }
        self.emptied.retain(|_, at| now.saturating_sub(*at) < AGE * 2);
        changed |= self.foreign.expire(now) || !self.foreign.is_empty();
        if changed {
            self.recount();
            self.renew_plans();
        }
    }

    pub(super) fn forget(&mut self, gone: &[FlowId]) {
        for id in gone {
            if let Some(flow) = self.flows.remove(id) {
                self.free.push(flow.slot);
                if let Some((channel, queue_pair)) = id.channel() {
                    self.pairing.remove(channel, queue_pair, flow.port);
                }
            }
        }
        if !gone.is_empty() {
            self.recount();
            self.version += 1;
        }
    }

    /// Whether the reports of other VTEPs are to arrive as often as from those with queue pairs:
    /// while this leaf or another one wants to move. They then agree whose turn it is.
    #[must_use]
    pub fn wants_reports(&self, now: Duration) -> bool {
        self.options.moves == Moves::AfterGap && (self.turn.wish > 0 || self.foreign.is_wanted(now))
    }

    /// Decides moves that make the load more even, if it is this leaf's turn.
    fn rebalance(&mut self, now: Duration) {
        let targets: Vec<Target> = self.targets.keys().copied().collect();
        for _ in 0..EXAMINED.min(targets.len()) {
            self.turn.next = self.turn.next.wrapping_add(1);
            if let Some(target) = targets.get(self.turn.next % targets.len()) {
                self.examine(*target, now);
            }
        }
        let gain = |target: &Target| self.targets.get(target).map_or(0.0, |paths| paths.gain);
        let Some(best) = targets.iter().copied().max_by(|a, b| gain(a).total_cmp(&gain(b))) else {
            return;
        };
        self.turn.want(gain(&best), now);
        if self.turn.wish == 0 {
            return;
        }
        if !self.foreign.is_empty() {
            let is_heard = self.turn.is_heard(self.options.settle, now);
            let is_first = self.foreign.is_first((self.turn.wish, best.local), now);
            if !(is_heard && is_first) {
                return;
            }
        }
        for _ in 0..MOVES {
            if !self.improve(best, now) {
                break;
            }
        }
        let gain = self.examine(best, now);
        self.turn.want(gain, now);
    }

    /// Notes what the best moves of queue pairs to this target would gain.
    fn examine(&mut self, target: Target, now: Duration) -> f64 {
        let gain = self.best_moves(target, now).map_or(0.0, |(gain, _)| gain);
        if let Some(paths) = self.targets.get_mut(&target) {
            paths.gain = gain;
        }
        gain
    }

    fn improve(&mut self, target: Target, now: Duration) -> bool {
        let Some((_, moves)) = self.best_moves(target, now) else { return false };
        for (id, pair) in moves {
            if let Some(flow) = self.flows.get_mut(&id) {
                flow.wanted = Some(pair);
                flow.decided = Some(now);
            }
        }
        self.recount();
        self.renew_plans();
        true
    }

    /// The moves that make the load most even, and their gain.
    fn best_moves(&self, target: Target, now: Duration) -> Option<(f64, Vec<(FlowId, Pair)>)> {
        let paths = self.targets.get(&target).filter(|paths| paths.routes.len() > 1)?;
        let route = |flow: &Flow| Some((paths.route_of(flow.goal())?, flow.load_for_moves()));
        let mut movable: Vec<(u32, FlowId, (usize, u64))> = self
            .flows
            .iter()
            .filter(|(id, flow)| {
                id.target == target && !flow.follows && flow.may_balance(now, HOLD)
            })
            .filter_map(|(id, flow)| Some((flow.slot, *id, route(flow)?)))
            .collect();
        movable.sort_unstable_by_key(|(slot, ..)| *slot);
        let flows: Vec<(usize, u64)> = movable.iter().map(|(.., flow)| *flow).collect();
        let (gain, moves) = paths.routes.improve(&self.loads(&paths.routes, &self.own), &flows)?;
        let of = |(index, to): (usize, usize)| {
            let (_, id, _) = movable.get(index)?;
            Some((*id, self.pair_of(target, to)?))
        };
        Some((gain, moves.into_iter().filter_map(of).collect()))
    }
}
