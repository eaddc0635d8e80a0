//! The search for the fastest plans.
//!
//! Every plan of a space gets a lower bound: what its busiest stage computes, and what occupies the
//! link between sites. Plans are evaluated from the lowest bound on, until no bound is below the
//! times that are found. So the result is that of trying all.

use serde::{Deserialize, Serialize};

use crate::iteration::{Evaluator, Iteration};
use crate::job::Job;
use crate::network::{Balance, Technology};
use crate::placement::Infeasible;
use crate::plan::{Boundary, Exchange, Plan, Recompute, Schedule, Sharding};

/// The plans that are tried: all combinations of these values. An empty list of degrees stands for
/// powers of two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Space {
    /// Parts of each matrix. Empty: those that fit into a node.
    pub tensor: Vec<u32>,
    /// Stages. Empty: up to 64.
    pub pipeline: Vec<u32>,
    /// Parts of each sequence.
    pub context: Vec<u32>,
    /// Replicas that share the experts. Empty: up to the number of experts.
    pub expert: Vec<u32>,
    /// Sequences of a micro-batch. Empty: up to 8.
    pub micro_batch: Vec<u32>,
    /// Orders of operations.
    pub schedule: Vec<Schedule>,
    /// What stages do while they send. Schedules made for a slow boundary always compute on.
    pub exchange: Exchange,
    /// Where parameters, gradients and the optimizer's state are.
    pub sharding: Vec<Sharding>,
    /// What the backward pass computes again.
    pub recompute: Vec<Recompute>,
    /// The dimension that the border between sites cuts.
    pub boundary: Vec<Boundary>,
    /// Technologies of the network. Empty: all whose balance is known.
    pub technology: Vec<Technology>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            tensor: Vec::new(),
            pipeline: Vec::new(),
            context: vec![1],
            expert: Vec::new(),
            micro_batch: Vec::new(),
            schedule: vec![
                Schedule::OneForwardOneBackward,
                Schedule::Interleaved(2),
                Schedule::Interleaved(4),
                Schedule::ZbH1,
                Schedule::Zbv,
                Schedule::VHalf,
                Schedule::UpDown(1),
                Schedule::UpDown(2),
                Schedule::Wave(1),
            ],
            exchange: Exchange::Blocking,
            sharding: vec![Sharding::Ddp, Sharding::Hsdp, Sharding::Fsdp],
            recompute: vec![Recompute::None, Recompute::Attention, Recompute::Full],
            boundary: vec![Boundary::Data, Boundary::Pipeline],
            technology: Vec::new(),
        }
    }
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Found {
    /// The fastest plans, the fastest first. Equal times are in the order of the plans' names.
    pub plans: Vec<Ranked>,
    /// Plans of the space that can be laid out.
    pub considered: usize,
    /// Bytes that the plan that needs least lacks, if none fits.
    pub missing: Option<f64>,
}

/// A plan that the search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ranked {
    /// The plan.
    pub plan: Plan,
    /// Its iteration.
    pub iteration: Iteration,
}

/// Powers of two up to a limit.
fn powers(limit: u32) -> Vec<u32> {
    (0..=limit.max(1).ilog2()).map(|exponent| 1 << exponent).collect()
}

fn or(given: &[u32], default: Vec<u32>) -> Vec<u32> {
    if given.is_empty() { default } else { given.to_owned() }
}

/// The technology that leaves most of the link. The rest of a plan does not change that.
fn technology(job: &Job, space: &Space) -> Option<Technology> {
    let wanted = |balance: &&Balance| {
        space.technology.is_empty() || space.technology.contains(&balance.technology)
    };
    let known = job.balance.iter().filter(wanted).map(|balance| balance.technology);
    let with_rate = known.filter_map(|known| Some((known, job.wire(known)?.bandwidth)));
    with_rate.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map(|(best, _)| best)
}

/// Degrees of parallelism and sizes of micro-batches: tensor, context, pipeline, data, expert,
/// micro-batch.
fn degrees(job: &Job, space: &Space) -> Vec<[u32; 6]> {
    let gpus = job.sites.total();
    let experts = job.model.experts.map_or(1, |experts| experts.count);
    let mut found = Vec::new();
    for tensor in or(&space.tensor, powers(job.machine.gpus)) {
        for context in or(&space.context, powers(16)) {
            for pipeline in or(&space.pipeline, powers(64)) {
                let part = u64::from(tensor) * u64::from(context) * u64::from(pipeline);
                if part == 0 || !u64::from(gpus).is_multiple_of(part) {
                    continue;
                }
                let data = (u64::from(gpus) / part) as u32;
                for expert in or(&space.expert, powers(experts.min(data))) {
                    for micro_batch in or(&space.micro_batch, powers(8)) {
                        found.push([tensor, context, pipeline, data, expert, micro_batch]);
                    }
                }
            }
        }
    }
    found
}

/// Whether a combination is another one with another name.
fn is_redundant(job: &Job, space: &Space, plan: &Plan) -> bool {
    let alone = plan.data * plan.context == 1
        && plan.sharding != Sharding::Ddp
        && space.sharding.contains(&Sharding::Ddp);
    let one_site = job.sites.gpus.len() < 2;
    let other_boundary = one_site && space.boundary.first() != Some(&plan.boundary);
    // Where all replicas are at one site, HSDP is FSDP.
    let hybrid = plan.sharding == Sharding::Hsdp
        && crate::cost::replica_sites(job, plan) == 1
        && space.sharding.contains(&Sharding::Fsdp);
    alone || other_boundary || hybrid
}

/// All plans of a space.
#[must_use]
pub fn plans(job: &Job, space: &Space) -> Vec<Plan> {
    let Some(technology) = technology(job, space) else { return Vec::new() };
    let mut found = Vec::new();
    for [tensor, context, pipeline, data, expert, micro_batch] in degrees(job, space) {
        for schedule in space.schedule.iter().copied() {
            for sharding in space.sharding.iter().copied() {
                for recompute in space.recompute.iter().copied() {
                    for boundary in space.boundary.iter().copied() {
                        let dynamic = schedule.is_dynamic();
                        let exchange = if dynamic { Exchange::Background } else { space.exchange };
                        let plan = Plan {
                            tensor,
                            pipeline,
                            data,
                            context,
                            expert,
                            micro_batch,
                            schedule,
                            exchange,
                            sharding,
                            recompute,
                            boundary,
                            technology,
                            sequence_parallel: true,
                            layers: Vec::new(),
                        };
                        if !is_redundant(job, space, &plan) {
                            found.push(plan);
                        }
                    }
                }
            }
        }
    }
    found
}

/// The best plans so far: seconds and plan, the fastest first.
struct Best {
    count: usize,
    plans: Vec<(f64, String, Plan)>,
    missing: f64,
}

impl Best {
    fn new(count: usize) -> Self {
        Self { count, plans: Vec::new(), missing: f64::INFINITY }
    }

    /// What a plan must not exceed.
    fn limit(&self) -> f64 {
        let last = self.plans.last().filter(|_| self.plans.len() >= self.count);
        last.map_or(f64::INFINITY, |(seconds, _, _)| *seconds)
    }

    fn add(&mut self, seconds: f64, name: String, plan: Plan) {
        let before = |(other, other_name, _): &(f64, String, Plan)| {
            other.total_cmp(&seconds).then_with(|| other_name.cmp(&name)).is_lt()
        };
        let at = self.plans.partition_point(before);
        if at < self.count {
            self.plans.insert(at, (seconds, name, plan));
            self.plans.truncate(self.count);
        }
    }

    fn try_all<'a>(&mut self, job: &Job, bounded: impl Iterator<Item = &'a (f64, Plan)>) {
        let mut evaluator = Evaluator::new(job);
        for (bound, plan) in bounded {
            if *bound > self.limit() {
                break;
            }
            match evaluator.seconds(plan) {
                Ok(seconds) if seconds <= self.limit() => {
                    self.add(seconds, plan.to_string(), plan.clone());
                }
                Err(Infeasible::Memory { missing }) => self.missing = self.missing.min(missing),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// The `top` fastest plans of a space. The number of threads does not change the result.
#[must_use]
pub fn search(job: &Job, space: &Space, top: usize, threads: usize) -> Found {
    let evaluator = Evaluator::new(job);
    let with_bound = |plan: Plan| Some((evaluator.bound(&plan)?, plan));
    let mut bounded: Vec<(f64, Plan)> =
        plans(job, space).into_iter().filter_map(with_bound).collect();
    bounded.sort_by(|a, b| a.0.total_cmp(&b.0));
    let threads = threads.max(1);
    let mut best = Best::new(top);
    std::thread::scope(|scope| {
        let work = |first| {
            let part = bounded.iter().skip(first).step_by(threads);
            move || {
                let mut best = Best::new(top);
                best.try_all(job, part);
                best
            }
        };
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(work(first))).collect();
        for one in running.into_iter().filter_map(|thread| thread.join().ok()) {
            best.missing = best.missing.min(one.missing);
            for (seconds, name, plan) in one.plans {
                best.add(seconds, name, plan);
            }
        }
    });
    let missing = (best.plans.is_empty() && best.missing.is_finite()).then_some(best.missing);
    let mut evaluator = Evaluator::new(job);
    let ranked = best.plans.into_iter().filter_map(|(_, _, plan)| {
        Some(Ranked { iteration: evaluator.evaluate(&plan).ok()?, plan })
    });
    Found { plans: ranked.collect(), considered: bounded.len(), missing }
}
