//! Measures the queue pairs, forgets idle ones, and decides moves.

use std::time::Duration;

use super::{Flow, FlowId, Moves, NOMINAL, Placer, Reading, Target};
use crate::placer::types::Paths;

/// How often loads are measured.
const MEASURE: Duration = Duration::from_millis(500);
/// How often the load is made more even.
const REBALANCE: Duration = Duration::from_millis(100);
/// How long a queue pair stays after a move for balance.
const HOLD: Duration = Duration::from_secs(1);
/// Loads are rounded to this part of the mean load, so that measuring errors move nothing.
const STEPS: u64 = 8;
/// Queue pairs that a plan is made for.
const PLAN: usize = 64;
/// Moves that are decided at once where no other leaf decides.
const MOVES: usize = 8;
/// Of this many chances, leaves that share links take one at least.
const TURNS: usize = 8;
/// A queue pair that is idle for this time makes room for another one in a full table.
const FULL_IDLE: Duration = Duration::from_secs(1);

impl Placer {
    /// Measures, forgets idle queue pairs, and decides moves. `read` returns the counts of a slot.
    /// To be called every few milliseconds.
    pub fn tick(&mut self, read: impl Fn(u32) -> Reading, now: Duration) {
        if now.saturating_sub(self.measured) >= MEASURE {
            self.measure(&read, now);
            self.measured = now;
        }
        if now.saturating_sub(self.rebalanced) >= REBALANCE {
            self.rebalanced = now;
            if self.options.moves == Moves::AfterGap {
                self.rebalance(now);
            }
            self.make_plans();
        }
        self.release_moves(&read, now);
    }

    /// Has workers ask again for queue pairs that may move now.
    fn release_moves(&mut self, read: &impl Fn(u32) -> Reading, now: Duration) {
        let may_move = |(id, flow): (&FlowId, &Flow)| {
            let (Some(wanted), Some(paths)) = (flow.wanted, self.targets.get(&id.target)) else {
                return false;
            };
            let gap = paths.gap(flow.pair, wanted);
            read(flow.slot).last.is_none_or(|last| now.saturating_sub(last) >= gap)
        };
        if self.flows.iter().any(may_move) {
            self.version += 1;
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
        let measured = self.flows.values().filter(|flow| flow.rate > 0);
        let (sum, number) = measured.fold((0, 0), |(sum, n), flow| (sum + flow.rate, n + 1));
        let mean = u64::checked_div(sum, number).unwrap_or(NOMINAL).max(STEPS);
        let mut changed = !gone.is_empty();
        for flow in self.flows.values_mut() {
            changed |= flow.round(mean, STEPS);
        }
        changed |= self.foreign.expire(now) || !self.foreign.is_empty();
        if changed {
            self.recount();
            self.forget_plans();
        }
    }

    pub(super) fn forget(&mut self, gone: &[FlowId]) {
        for id in gone {
            if let Some(flow) = self.flows.remove(id) {
                self.free.push(flow.slot);
            }
        }
        if !gone.is_empty() {
            self.recount();
            self.version += 1;
        }
    }

    fn make_plans(&mut self) {
        let load = self.typical_load();
        let short =
            |(_, paths): &(&Target, &Paths)| paths.plan.len() < PLAN / 2 && paths.routes.len() > 1;
        let targets: Vec<Target> =
            self.targets.iter().filter(short).map(|(target, _)| *target).take(1).collect();
        for target in targets {
            let Some(paths) = self.targets.get(&target) else { continue };
            let loads = self.loads(&paths.routes);
            let plan = paths.routes.sequence(&loads, load, PLAN, &mut self.random);
            if let Some(paths) = self.targets.get_mut(&target) {
                paths.plan = plan.into();
            }
        }
    }

    /// Decides moves that make the load more even.
    fn rebalance(&mut self, now: Duration) {
        let shared = !self.foreign.is_empty();
        // Leaves that share links take turns by chance.
        let turns = (self.foreign.peers() + 1).min(TURNS);
        if shared && self.random.below(turns) > 0 {
            return;
        }
        let targets: Vec<Target> = self.targets.keys().copied().collect();
        for target in targets {
            for _ in 0..if shared { 1 } else { MOVES } {
                if !self.improve(target, now) {
                    break;
                }
            }
        }
    }

    fn improve(&mut self, target: Target, now: Duration) -> bool {
        let Some(paths) = self.targets.get(&target).filter(|paths| !paths.routes.is_empty()) else {
            return false;
        };
        let route = |flow: &Flow| Some((paths.route_of(flow.goal())?, flow.load));
        let mut movable: Vec<(u32, FlowId, (usize, u64))> = self
            .flows
            .iter()
            .filter(|(id, flow)| id.target == target && flow.may_move(now, HOLD))
            .filter_map(|(id, flow)| Some((flow.slot, *id, route(flow)?)))
            .collect();
        movable.sort_unstable_by_key(|(slot, ..)| *slot);
        let flows: Vec<(usize, u64)> = movable.iter().map(|(.., flow)| *flow).collect();
        let loads = self.loads(&paths.routes);
        let Some(moves) = paths.routes.improve(&loads, &flows) else { return false };
        for (index, to) in moves {
            let (Some((_, id, _)), Some(pair)) = (movable.get(index), self.pair_of(target, to))
            else {
                continue;
            };
            if let Some(flow) = self.flows.get_mut(id) {
                flow.wanted = Some(pair);
                flow.decided = Some(now);
            }
        }
        self.recount();
        self.forget_plans();
        true
    }
}
