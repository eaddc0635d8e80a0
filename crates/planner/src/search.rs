//! The search for the fastest plans.
//!
//! Every plan of a space gets a lower bound: what its busiest stage computes, and what occupies the
//! link between sites. Plans are evaluated from the lowest bound on, until no bound is below the
//! times that are found. So the result is that of trying all. Threads take the next plan each, and
//! share what they found.

use std::collections::BTreeSet;
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

/// The most plans of a space, which are 100 MB.
pub const MOST_PLANS: u64 = 1_000_000;
/// Plans whose bounds are computed between two looks at whether a search goes on.
const WATCHED: usize = 1024;

/// The plans that are tried: all combinations of these values, each once. An empty list of degrees
/// stands for powers of two.
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

/// The values of a list, each once, in their order.
fn each<T: Copy + Ord>(list: &[T]) -> Vec<T> {
    let mut seen = BTreeSet::new();
    list.iter().copied().filter(|value| seen.insert(*value)).collect()
}

fn or(given: &[u32], default: Vec<u32>) -> Vec<u32> {
    if given.is_empty() { default } else { each(given) }
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

/// Degrees of parallelism that use all GPUs: tensor, context, pipeline, data. They are factors of at
/// most a million GPUs, so there are at most some ten thousand.
fn degrees(job: &Job, space: &Space) -> Vec<[u32; 4]> {
    let gpus = job.sites.total();
    let factors = |given: &[u32], limit: u32| {
        let is_factor = |degree: &u32| *degree > 0 && gpus.is_multiple_of(*degree);
        or(given, powers(limit)).into_iter().filter(is_factor).collect::<Vec<u32>>()
    };
    let (contexts, pipelines) = (factors(&space.context, 16), factors(&space.pipeline, 64));
    let mut found = Vec::new();
    for tensor in factors(&space.tensor, job.machine.gpus) {
        for &context in &contexts {
            for &pipeline in &pipelines {
                let part = u64::from(tensor) * u64::from(context) * u64::from(pipeline);
                if u64::from(gpus).is_multiple_of(part) {
                    let data = (u64::from(gpus) / part) as u32;
                    found.push([tensor, context, pipeline, data]);
                }
            }
        }
    }
    found
}

/// Replicas that share the experts, of so many replicas.
fn experts(job: &Job, space: &Space, data: u32) -> Vec<u32> {
    let experts = job.model.experts.map_or(1, |experts| experts.count);
    or(&space.expert, powers(experts.min(data)))
}

/// Sequences of a micro-batch.
fn micro_batches(space: &Space) -> Vec<u32> {
    or(&space.micro_batch, powers(8))
}

/// The number of all combinations of a space that use all GPUs. [`plans`] has no more.
#[must_use]
pub fn combinations(job: &Job, space: &Space) -> u64 {
    let each_of = [
        micro_batches(space).len(),
        each(&space.schedule).len(),
        each(&space.sharding).len(),
        each(&space.recompute).len(),
        each(&space.boundary).len(),
    ];
    let each_of = each_of.into_iter().fold(1, |all, number| number as u64 * all);
    let given = each(&space.expert).len();
    let number = |[.., data]: [u32; 4]| match given {
        0 => experts(job, space, data).len() as u64,
        given => given as u64,
    };
    degrees(job, space).into_iter().map(number).sum::<u64>().saturating_mul(each_of)
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
    let (micro_batches, schedules) = (micro_batches(space), each(&space.schedule));
    let (shardings, recomputes) = (each(&space.sharding), each(&space.recompute));
    let boundaries = each(&space.boundary);
    let degrees = degrees(job, space).into_iter().flat_map(|degrees| {
        let experts = experts(job, space, degrees[3]).into_iter();
        let micro_batches = &micro_batches;
        experts.flat_map(move |expert| micro_batches.iter().map(move |of| (degrees, expert, *of)))
    });
    let mut found = Vec::new();
    for ([tensor, context, pipeline, data], expert, micro_batch) in degrees {
        for schedule in schedules.iter().copied() {
            for sharding in shardings.iter().copied() {
                for recompute in recomputes.iter().copied() {
                    for boundary in boundaries.iter().copied() {
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

/// The plans that can be laid out, each with its bound, from the lowest on. `None` if `watch` says
/// that the search does not go on.
fn bounded<'a>(
    job: &Job,
    plans: &'a [Plan],
    threads: usize,
    watch: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Option<Vec<(f64, &'a Plan)>> {
    let evaluator = &Evaluator::new(job);
    let size = plans.len().div_ceil(threads).max(1);
    let parts: Option<Vec<Vec<(f64, &Plan)>>> = std::thread::scope(|scope| {
        let bound = |part: &'a [Plan]| {
            let with_bound = |plan| Some((evaluator.bound(plan)?, plan));
            let few = move |few: &'a [Plan]| {
                watch(0, plans.len()).then(|| few.iter().filter_map(with_bound).collect::<Vec<_>>())
            };
            scope.spawn(move || {
                part.chunks(WATCHED).map(few).collect::<Option<Vec<_>>>().map(|all| all.concat())
            })
        };
        let running: Vec<_> = plans.chunks(size).map(bound).collect();
        let done = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        done.map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut all = parts?.concat();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(all)
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
    let bounded = bounded(job, &plans, threads, watch)?;
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
