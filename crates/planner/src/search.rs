//! The search for the fastest plans.
//!
//! Every plan of a space gets a lower bound: what its busiest stage computes, and what occupies the
//! link between sites. Plans are evaluated from the lowest bound on, until no bound is below the
//! times that are found. So the result is that of trying all. Threads take the next plan each, and
//! share what they found.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::cost;
use crate::iteration::{Evaluator, Iteration};
use crate::job::Job;
use crate::model::Attention;
use crate::network::{Balance, Technology};
use crate::placement::Infeasible;
use crate::plan::{Boundary, Exchange, Plan, Recompute, Schedule, Sharding};
use crate::prepared::Orders;

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
    /// Whether exchanges between parts of a matrix go on beside its products.
    pub async_tensor: bool,
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
            async_tensor: false,
            sharding: vec![Sharding::Ddp, Sharding::Hsdp, Sharding::Fsdp],
            recompute: vec![Recompute::None, Recompute::Attention, Recompute::Full],
            boundary: vec![Boundary::Data, Boundary::Pipeline],
            technology: Vec::new(),
        }
    }
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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

/// The technologies of a space.
fn technologies<'a>(job: &'a Job, space: &Space) -> Vec<&'a Balance> {
    let is_wanted = |balance: &&Balance| {
        space.technology.is_empty() || space.technology.contains(&balance.technology)
    };
    job.balance.iter().filter(is_wanted).collect()
}

/// The technology that leaves a plan most of the link. With less, no plan gets faster.
fn technology(job: &Job, plan: &Plan, known: &[&Balance]) -> Technology {
    let rates = known.iter().map(|one| (one.technology, job.wire_with(one, plan).bandwidth));
    let best = rates.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    best.map_or(plan.technology, |(best, _)| best)
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

/// Whether a combination computes what another one of the space does, with another name, or does
/// more for nothing.
fn is_redundant(job: &Job, space: &Space, plan: &Plan) -> bool {
    let one_site = job.sites.gpus.len() < 2;
    let other_boundary = one_site && space.boundary.first() != Some(&plan.boundary);
    let (replicas, sites) = (plan.data * plan.context, cost::replica_sites(job, plan));
    let is_whole = match plan.sharding {
        Sharding::Ddp => false,
        // Each site has one replica.
        Sharding::Hsdp => replicas == sites,
        Sharding::Fsdp => replicas == 1,
    };
    let same_as_ddp = is_whole && space.sharding.contains(&Sharding::Ddp);
    // Where all replicas are at one site, HSDP is FSDP.
    let hybrid =
        plan.sharding == Sharding::Hsdp && sites == 1 && space.sharding.contains(&Sharding::Fsdp);
    // The fused kernel keeps no scores.
    let no_scores = plan.recompute == Recompute::Attention
        && job.model.attention == Attention::Flash
        && space.recompute.contains(&Recompute::None);
    // All micro-batches fit into the activations of a schedule that may hold less.
    let micro_batches = job.batch / plan.data.max(1) / plan.micro_batch.max(1);
    let is_enough = |memory: u32| memory.saturating_mul(plan.pipeline) > micro_batches;
    let never_full = space.schedule.iter().any(|other| match (other, plan.schedule) {
        (Schedule::UpDown(less), Schedule::UpDown(memory))
        | (Schedule::Wave(less), Schedule::Wave(memory)) => *less < memory && is_enough(*less),
        _ => false,
    });
    other_boundary || same_as_ddp || hybrid || no_scores || never_full
}

/// All plans of a space.
#[must_use]
pub fn plans(job: &Job, space: &Space) -> Vec<Plan> {
    let known = technologies(job, space);
    let Some(first) = known.first() else { return Vec::new() };
    let mut found = Vec::new();
    for [tensor, context, pipeline, data, expert, micro_batch] in degrees(job, space) {
        for schedule in space.schedule.iter().copied() {
            for sharding in space.sharding.iter().copied() {
                for recompute in space.recompute.iter().copied() {
                    for boundary in space.boundary.iter().copied() {
                        let dynamic = schedule.is_dynamic();
                        let exchange = if dynamic { Exchange::Background } else { space.exchange };
                        let mut plan = Plan {
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
                            technology: first.technology,
                            sequence_parallel: true,
                            async_tensor: space.async_tensor,
                            layers: Vec::new(),
                        };
                        if !is_redundant(job, space, &plan) {
                            plan.technology = technology(job, &plan, &known);
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

    /// Takes the result of a plan.
    fn take(&mut self, plan: &Plan, result: Result<Option<f64>, Infeasible>) {
        match result {
            Ok(Some(seconds)) if seconds <= self.limit() => {
                self.add(seconds, plan.to_string(), plan.clone());
            }
            Err(Infeasible::Memory { missing }) => self.missing = self.missing.min(missing),
            Ok(_) | Err(_) => {}
        }
    }
}

/// The plans that can be laid out, each with its bound, from the lowest on.
fn bounded<'a>(job: &Job, plans: &'a [Plan], threads: usize) -> Vec<(f64, &'a Plan)> {
    let evaluator = &Evaluator::new(job);
    let size = plans.len().div_ceil(threads).max(1);
    let mut all: Vec<(f64, &Plan)> = std::thread::scope(|scope| {
        let bound = |part: &'a [Plan]| {
            let with_bound = |plan| Some((evaluator.bound(plan)?, plan));
            scope.spawn(move || part.iter().filter_map(with_bound).collect::<Vec<_>>())
        };
        let running: Vec<_> = plans.chunks(size).map(bound).collect();
        let done = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        done.flat_map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// The `top` fastest plans of a space. The number of threads does not change the result.
#[must_use]
pub fn search(job: &Job, space: &Space, top: usize, threads: usize) -> Found {
    search_watched(job, space, top, threads, &|_, _| true).unwrap_or_default()
}

/// Searches as [`search`] does. `watch` is called with the number of plans that are tried and that
/// of all, and says whether the search goes on. `None` if it does not.
pub fn search_watched(
    job: &Job,
    space: &Space,
    top: usize,
    threads: usize,
    watch: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Option<Found> {
    let threads = threads.max(1);
    let plans = plans(job, space);
    let bounded = bounded(job, &plans, threads);
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let best = Mutex::new(Best::new(top));
    let lock = || best.lock().unwrap_or_else(PoisonError::into_inner);
    let orders = Arc::<Orders>::default();
    let work = || {
        let evaluator = Evaluator::sharing(job, Arc::clone(&orders));
        while !stopped.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((bound, plan)) = bounded.get(at) else { break };
            let limit = lock().limit();
            if *bound > limit {
                break;
            }
            let result = evaluator.seconds_within(plan, limit);
            lock().take(plan, result);
            if !watch(at, bounded.len()) {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    if stopped.into_inner() {
        return None;
    }
    let best = best.into_inner().unwrap_or_else(PoisonError::into_inner);
    let missing = (best.plans.is_empty() && best.missing.is_finite()).then_some(best.missing);
    let evaluator = Evaluator::sharing(job, orders);
    let ranked = best.plans.into_iter().filter_map(|(_, _, plan)| {
        Some(Ranked { iteration: evaluator.evaluate(&plan).ok()?, plan })
    });
    Some(Found { plans: ranked.collect(), considered: bounded.len(), missing })
}
