//! What is done regularly, in steps: between two of them, others can use the placement.

use std::ops::Range;
use std::time::Duration;

use path::CounterId;

use super::plans::{NewPlan, Unplanned};
use super::rebalance::Search;
use super::{Moves, Placer, Reading, STEP};
use crate::load::AGE;
use crate::next_multiple;

/// How often loads are measured.
const MEASURE: Duration = Duration::from_millis(500);
/// How often the load is made more even.
const REBALANCE: Duration = Duration::from_millis(50);
/// Loads are rounded to this part of the mean load, so that measuring errors move nothing.
const STEPS: u64 = 8;
/// Pauses are looked for with every rebalancing if there are at most this many queue pairs, and
/// otherwise with every measurement.
const MOST_PAUSES: usize = 4096;
/// With more queue pairs, moves are looked for among this many, others each time.
const WINDOW: u32 = 8192;
/// A queue pair that is idle for this time makes room for others that the table, or the share of its
/// host or VNI, has none for.
const FULL_IDLE: Duration = Duration::from_secs(1);

/// A part of what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Looks which queue pairs send.
    Pauses,
    /// Measures rates, and forgets idle queue pairs.
    Measure,
    /// Rounds the loads.
    Round,
    /// Forgets what others have not reported again.
    Expire,
    /// Pairs the directions of connections.
    Follow,
    /// Looks for queue pairs that may move, for moves, and decides these.
    Gather,
    Decide,
    /// Makes plans.
    Plan,
    /// Has workers ask again for queue pairs that may move now.
    Release,
}

/// What is left to do of a tick.
#[derive(Debug, Default)]
pub struct Tick {
    now: Duration,
    /// The time since the last measurement.
    passed: Duration,
    /// The last one comes first.
    phases: Vec<Phase>,
    /// The next counter in this phase.
    next: u32,
    /// The counters among which moves are looked for.
    window: Range<u32>,
    /// The mean rate.
    mean: u64,
    /// Whether any load has changed.
    has_changed: bool,
    search: Search,
    unplanned: Option<Unplanned>,
    plan: Option<NewPlan>,
}

impl Tick {
    /// Does what needs no access to the placement. To be called before each step.
    pub fn compute(&mut self) {
        match self.phases.last() {
            Some(Phase::Decide) => self.search.look(),
            Some(Phase::Plan) => self.plan.iter_mut().for_each(NewPlan::make),
            _ => {}
        }
    }

    /// The counters of this step. Sets whether there are more.
    fn counters(
        &mut self,
        all: Range<u32>,
        more: &mut bool,
    ) -> impl Iterator<Item = CounterId> + use<> {
        let from = self.next.max(all.start);
        self.next = (from + STEP as u32).min(all.end);
        *more = self.next < all.end;
        (from..self.next).filter_map(CounterId::new)
    }
}

impl Placer {
    /// Measures, forgets idle queue pairs, and decides moves. `read` returns what is counted of a queue pair.
    /// To be called every 50 ms, and every few milliseconds while [`Self::awaits_gaps`].
    pub fn tick(&mut self, read: impl Fn(CounterId) -> Reading, now: Duration) {
        let mut tick = self.begin_tick(now);
        loop {
            tick.compute();
            if !self.step(&mut tick, &read) {
                return;
            }
        }
    }

    /// Begins what [`Self::tick`] does.
    pub fn begin_tick(&mut self, now: Duration) -> Tick {
        // After a late call, too little time has passed at the next multiple.
        let measures = now >= next_multiple(self.measured + MEASURE / 2, MEASURE);
        let rebalances = now >= next_multiple(self.rebalanced, REBALANCE);
        let passed = now.saturating_sub(self.measured);
        let all = self.flows.numbers();
        let mut window = all.clone();
        let mut phases = vec![Phase::Release];
        if rebalances {
            self.rebalanced = now;
            if all.end > WINDOW {
                let start = if self.window < all.end { self.window } else { all.start };
                window = start..all.end.min(start + WINDOW);
                self.window = window.end;
            }
            phases.push(Phase::Plan);
            if self.options.moves == Moves::AfterPause {
                phases.extend([Phase::Decide, Phase::Gather]);
            }
            phases.push(Phase::Follow);
        }
        if measures {
            self.measured = now;
            phases.extend([Phase::Expire, Phase::Round, Phase::Measure]);
        }
        if measures || rebalances && self.flows.len() <= MOST_PAUSES {
            phases.push(Phase::Pauses);
        }
        Tick { now, passed, phases, window, ..Tick::default() }
    }

    /// Takes a step of a tick. Returns whether there are more.
    pub fn step(&mut self, tick: &mut Tick, read: &impl Fn(CounterId) -> Reading) -> bool {
        let mut more = false;
        match tick.phases.last() {
            Some(Phase::Pauses) => {
                let counters = tick.counters(self.flows.numbers(), &mut more);
                tick.has_changed |= self.note_pauses(counters, read, tick.now);
            }
            Some(Phase::Measure) => {
                let counters = tick.counters(self.flows.numbers(), &mut more);
                tick.has_changed |= self.measure(counters, read, (tick.passed, tick.now));
            }
            Some(Phase::Round) => {
                if tick.next == 0 {
                    tick.mean = self.sums.means().0.max(STEPS);
                }
                let counters = tick.counters(self.flows.numbers(), &mut more);
                tick.has_changed |= self.round(counters, tick.mean);
            }
            Some(Phase::Expire) => {
                more = self.pairing.expire(tick.now, STEP);
                tick.has_changed |= !more && self.expire(tick.now);
            }
            Some(Phase::Follow) => {
                let counters = tick.counters(tick.window.clone(), &mut more);
                more &= self.follow(counters, tick.now);
            }
            Some(Phase::Gather) => {
                if tick.next == 0 {
                    tick.search = self.begin_search();
                }
                let counters = tick.counters(tick.window.clone(), &mut more);
                self.gather(&mut tick.search, counters, tick.now);
                if !more {
                    self.copy_loads(&mut tick.search);
                }
            }
            Some(Phase::Decide) => more = self.decide_moves(&mut tick.search, tick.now),
            Some(Phase::Plan) => {
                tick.plan.take().into_iter().for_each(|plan| self.take_plan(plan));
                let unplanned = tick.unplanned.get_or_insert_with(|| self.unplanned());
                tick.plan = self.next_plan(unplanned);
                more = tick.plan.is_some();
            }
            Some(Phase::Release) => more = self.release(tick, read),
            None => {}
        }
        if !more {
            tick.phases.pop();
            tick.next = 0;
            let is_renewed =
                !matches!(tick.phases.last(), Some(Phase::Measure | Phase::Round | Phase::Expire));
            if is_renewed && std::mem::take(&mut tick.has_changed) {
                self.renew_plans();
            }
        }
        !tick.phases.is_empty()
    }

    /// Has workers ask again for queue pairs that may move now. Returns whether there are more.
    fn release(&mut self, tick: &mut Tick, read: &impl Fn(CounterId) -> Reading) -> bool {
        let next = CounterId::new(tick.next).unwrap_or(CounterId::FIRST);
        let counters: Vec<CounterId> =
            self.sums.waiting.range(next..).take(STEP).copied().collect();
        for counter in &counters {
            let Some((id, flow)) = self.flows.at(*counter) else { continue };
            // Programs look for pauses themselves where the kernel encapsulates.
            if id.target.by_kernel {
                continue;
            }
            let may_move = self.may_move(id, flow, |counter| read(counter).last, tick.now);
            if may_move != flow.is_released {
                self.unwritten.insert(*counter);
            }
            if may_move {
                self.recall(*counter);
            }
            if let Some((_, flow)) = self.flows.at_mut(*counter) {
                flow.is_released = may_move;
            }
        }
        tick.next = counters.last().map_or(0, |last| last.get() + 1);
        counters.len() == STEP
    }

    /// Looks which queue pairs send. Returns whether that changed.
    fn note_pauses(
        &mut self,
        counters: impl Iterator<Item = CounterId>,
        read: &impl Fn(CounterId) -> Reading,
        now: Duration,
    ) -> bool {
        let mut changed = false;
        for counter in counters {
            let Some((id, flow)) = self.flows.at_mut(counter) else { continue };
            let was_idle = flow.is_idle();
            if !flow.note_last(read(counter).last, now) {
                continue;
            }
            changed = true;
            match (was_idle, flow.is_idle()) {
                // Nobody asks for a queue pair that the kernel encapsulates.
                (true, false) => self.wake(id, now),
                (_, is_idle) => {
                    self.account(&id);
                    if is_idle {
                        // Workers ask for it when it sends again.
                        self.recall(counter);
                    }
                }
            }
        }
        changed
    }

    /// Measures queue pairs. Returns whether any was forgotten.
    fn measure(
        &mut self,
        counters: impl Iterator<Item = CounterId>,
        read: &impl Fn(CounterId) -> Reading,
        (passed, now): (Duration, Duration),
    ) -> bool {
        let mut changed = false;
        for counter in counters {
            let Some((id, flow)) = self.flows.at_mut(counter) else { continue };
            flow.measure(&read(counter), passed, now);
            let silent = now.saturating_sub(flow.active);
            let mut idle = self.options.idle;
            if self.shares.are_short(&id, now) {
                idle = idle.min(FULL_IDLE);
            }
            if silent >= idle {
                self.forget(&id, now);
                changed = true;
            } else {
                self.account(&id);
            }
        }
        changed
    }

    /// Rounds the loads of queue pairs. Returns whether any changed.
    fn round(&mut self, counters: impl Iterator<Item = CounterId>, mean: u64) -> bool {
        let mut changed = false;
        for counter in counters {
            let Some((id, flow)) = self.flows.at_mut(counter) else { continue };
            if flow.round(mean, STEPS) {
                self.account(&id);
                changed = true;
            }
        }
        changed
    }

    /// Forgets loads that others do not report any more. Returns whether loads may have changed.
    fn expire(&mut self, now: Duration) -> bool {
        self.sums.emptied.retain(|_, at| now.saturating_sub(*at) < AGE * 2);
        self.peers.expire(now) || !self.peers.is_empty()
    }
}
