//! The time of an iteration, and its parts.

use std::sync::Arc;

use serde::Serialize;

use crate::cost::{self, Cost};
use crate::gradients::Replicas;
use crate::job::Job;
use crate::memory::{self, Memory, Parameters};
use crate::model::HALF;
use crate::network::Wire;
use crate::order::Operation;
use crate::placement::{Infeasible, Placement};
use crate::plan::Plan;
use crate::prepared::{Orders, Prepared};
use crate::sequence::Sequence;
use crate::timeline::{self, ChunkTimes, Hop, Late, Times};

/// Bytes that the optimizer reads and writes for each parameter.
const OPTIMIZER_TRAFFIC: f64 = 30.0;

/// An iteration. The parts add up to `seconds`; they are those of the stage that ends last.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Iteration {
    /// From the first operation to the end of the last stage's optimizer.
    pub seconds: f64,
    /// Computing, but for what is computed again.
    pub compute: f64,
    /// Computing again.
    pub recompute: f64,
    /// Exchanges inside a site that computation does not hide.
    pub inside: f64,
    /// Exchanges between sites that computation does not hide: what the time would be less with an
    /// ideal link.
    pub across: f64,
    /// Waiting for other stages, with an ideal link between sites.
    pub bubble: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// The memory of the GPU that needs most.
    pub memory: Memory,
    /// Tokens of the iteration for each second and GPU.
    pub tokens_per_gpu: f64,
    /// Operations of the model, without recomputation, for each second and GPU.
    pub operations_per_gpu: f64,
}

/// An operation on the timeline of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The stage.
    pub stage: usize,
    /// The operation.
    pub operation: Operation,
    /// Seconds from the start of the iteration.
    pub start: f64,
    /// The end.
    pub end: f64,
}

/// The fastest order of a plan.
struct Fastest {
    orders: Arc<[Prepared]>,
    at: usize,
    /// When each stage has finished.
    finished: Vec<f64>,
    seconds: f64,
    memory: Memory,
}

/// Evaluates plans of a job. It keeps the orders of schedules.
#[derive(Debug)]
pub struct Evaluator<'a> {
    job: &'a Job,
    orders: Arc<Orders>,
}

/// What an iteration of a plan costs on a network.
struct Costs {
    layer: Cost,
    times: Times,
    /// Of each stage: parameters, and the number of layers.
    stages: Vec<(Parameters, u32)>,
    replicas: Replicas,
    wire: Wire,
    /// What the gathers at the start add to the iteration.
    start: f64,
}

impl Costs {
    fn new(job: &Job, plan: &Plan, placement: &Placement, wire: Wire) -> Self {
        let replicas = Replicas::new(job, plan);
        let of_layer = Parameters::new(&job.model, plan, 1, 0);
        let mut layer = cost::layer(job, plan, wire);
        replicas.add_each(job, plan, wire, of_layer, &mut layer);
        let output = cost::output(job, plan);
        let (stages, count) = (plan.pipeline as usize, placement.layers.len());
        let shape = crate::order::Shape::new(plan.schedule, stages, 1);
        let site = |chunk| placement.stages.get(shape.stage(chunk)).copied().unwrap_or_default();
        let sites = job.sites.gpus.len();
        let hop = |from: usize, to: usize| {
            if to >= count || shape.stage(from) == shape.stage(to) {
                return Hop::default();
            }
            let (from, to) = (site(from), site(to));
            let crosses = (from != to).then_some(from * sites + to);
            message(job, plan, wire, crosses)
        };
        let splits = plan.schedule.splits_backward();
        let chunk = |(at, layers): (usize, &u32)| {
            let layers = f64::from(*layers);
            let ends = if at + 1 == count { output } else { Cost::default() };
            let weight = layers * layer.weight + ends.weight;
            let backward = layers * layer.whole_backward() + ends.whole_backward();
            ChunkTimes {
                forward: layers * layer.whole_forward() + ends.whole_forward(),
                backward: if splits { backward } else { backward + weight },
                weight: if splits { weight } else { 0.0 },
                to_next: hop(at, at + 1),
                to_previous: at.checked_sub(1).map_or_else(Hop::default, |to| hop(at, to)),
            }
        };
        let chunks: Vec<ChunkTimes> = placement.layers.iter().enumerate().map(chunk).collect();
        let mut times = Times { chunks, exchange: plan.exchange };
        if plan.exchange == crate::plan::Exchange::Background {
            times.interfere(job.machine.efficiency.interference);
        }
        let most = placement.layers.iter().copied().max().unwrap_or_default();
        let start = replicas.start(job, plan, wire, of_layer, most, layer.forward);
        let each = if plan.pipeline == 1 { f64::from(placement.micro_batches) } else { 1.0 };
        let mut of_stage = vec![(0_u32, 0_u32); stages];
        for (at, layers) in placement.layers.iter().enumerate() {
            if let Some((sum, ends)) = of_stage.get_mut(shape.stage(at)) {
                *sum += layers;
                *ends += u32::from(at == 0) + u32::from(at + 1 == count);
            }
        }
        let parameters = |(layers, ends)| (Parameters::new(&job.model, plan, layers, ends), layers);
        let stages = of_stage.into_iter().map(parameters).collect();
        Self { layer, times, stages, replicas, wire, start: start * each }
    }

    /// Seconds of a stage's computation for one micro-batch: all, and the part of each kind of
    /// `parts`: compute, recompute, exchanges.
    fn busy(&self, job: &Job, plan: &Plan, stage: usize) -> [f64; 3] {
        let layers = f64::from(self.stages.get(stage).map_or(0, |stage| stage.1));
        let cost = self.layer;
        let last = crate::order::Shape::new(plan.schedule, plan.pipeline as usize, 1);
        let has_output = last.stage(last.total().saturating_sub(1)) == stage;
        let output = if has_output { cost::output(job, plan) } else { Cost::default() };
        let compute = |cost: Cost| cost.forward + cost.backward + cost.weight;
        [
            layers * compute(cost) + compute(output),
            layers * cost.recompute,
            layers * (cost.exchange_forward + cost.exchange_backward),
        ]
    }

    fn optimizer(&self, job: &Job, plan: &Plan, parameters: Parameters) -> f64 {
        let memory = memory::of(job, plan, parameters, 0.0, false);
        job.machine
            .memory(memory.gradients / f64::from(job.model.gradient_bytes) * OPTIMIZER_TRAFFIC)
    }

    /// When each stage has its gradients. The layers of the last micro-batch are computed one after
    /// another, and the exchange of each layer's gradients begins behind it. The link between
    /// sites serves one stage after another, the last stage first.
    fn synchronised(&self, job: &Job, plan: &Plan, ends: &[f64]) -> Vec<f64> {
        let splits = plan.schedule.splits_backward();
        let whole = if splits { 0.0 } else { self.layer.whole_backward() };
        let of_layer = whole + self.layer.weight;
        let mut free = 0.0_f64;
        let each = self.stages.iter().zip(ends).rev();
        let mut done: Vec<f64> = each
            .map(|((parameters, layers), end)| {
                let all = self.replicas.last(job, plan, self.wire, *parameters);
                let count = f64::from(*layers).max(1.0);
                let ready = if job.overlap { end - (count - 1.0) * of_layer } else { *end };
                let (inside, exchange) = (all.inside / count, all.exchange / count);
                free = free.max(ready + inside) + all.link;
                // Of the last layer; of all, if one of the two phases takes longer than the other.
                let last = (end + inside + exchange)
                    .max(ready + all.inside + exchange)
                    .max(ready + inside + all.exchange);
                last.max(if all.link > 0.0 { free } else { 0.0 }) + all.latency
            })
            .collect();
        done.reverse();
        done
    }

    /// When each stage has finished, behind its optimizer, if all do by `limit`.
    fn finished(
        &self,
        job: &Job,
        plan: &Plan,
        sequence: &Sequence,
        limit: f64,
    ) -> Result<Vec<f64>, Late> {
        let ends = timeline::ends(sequence, &self.times, limit - self.start)?;
        let done = self.synchronised(job, plan, &ends);
        let optimizer =
            |(parameters, _): &(Parameters, u32)| self.optimizer(job, plan, *parameters);
        let optimizers = self.stages.iter().map(optimizer);
        let behind = |(done, optimizer): (&f64, f64)| done + optimizer + self.start;
        Ok(done.iter().zip(optimizers).map(behind).collect())
    }
}

/// The way of an activation, or of its gradient, to another stage. All replicas send at once.
fn message(job: &Job, plan: &Plan, wire: Wire, link: Option<usize>) -> Hop {
    let bytes = cost::tokens(job, plan) * f64::from(job.model.hidden) * HALF;
    // Each GPU sends a part of the activation, as Megatron's scatter and gather does.
    let own = bytes / f64::from(plan.tensor) / job.machine.ring_rate(1.0, false);
    let own_link = Hop { transfer: own, latency: 0.0, link: None };
    let Some(link) = link else { return own_link };
    let all = bytes * f64::from(plan.data * plan.context) / wire.bandwidth;
    Hop { transfer: own.max(all), latency: wire.latency, link: Some(link) }
}

/// A difference that is negative only by rounding.
fn positive(difference: f64) -> f64 {
    if difference > 0.0 { difference } else { 0.0 }
}

/// The longest of some times.
fn longest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

impl<'a> Evaluator<'a> {
    /// Evaluates plans of a job.
    #[must_use]
    pub fn new(job: &'a Job) -> Self {
        Self::sharing(job, Arc::default())
    }

    /// An evaluator that keeps orders together with others.
    pub(crate) fn sharing(job: &'a Job, orders: Arc<Orders>) -> Self {
        Self { job, orders }
    }

    fn memory(
        &self,
        plan: &Plan,
        placement: &Placement,
        costs: &Costs,
        prepared: &Prepared,
    ) -> Memory {
        let layers = placement.layers.iter().copied().max().unwrap_or_default();
        let shape = prepared.sequence.shape;
        let last = shape.stage(shape.total().saturating_sub(1));
        let each = costs.stages.iter().zip(&prepared.held).enumerate();
        each.map(|(stage, ((parameters, _), held))| {
            let held = *held as f64 * f64::from(layers);
            memory::of(self.job, plan, *parameters, held, stage == last)
        })
        .max_by(|a, b| a.total().total_cmp(&b.total()))
        .unwrap_or_default()
    }

    /// The fastest order of a plan that fits, if it ends by `limit`.
    fn fastest(
        &self,
        plan: &Plan,
        placement: &Placement,
        costs: &Costs,
        limit: f64,
    ) -> Result<Option<Fastest>, Infeasible> {
        let prepared = self.orders.of(self.job, plan, placement);
        let mut best: Option<Fastest> = None;
        let (mut missing, mut late) = (f64::INFINITY, false);
        for (at, one) in prepared.iter().enumerate() {
            let memory = self.memory(plan, placement, costs, one);
            if memory.missing() > 0.0 {
                missing = missing.min(memory.missing());
                continue;
            }
            let limit = best.as_ref().map_or(limit, |best| best.seconds);
            let Ok(finished) = costs.finished(self.job, plan, &one.sequence, limit) else {
                late = true;
                continue;
            };
            let seconds = longest(&finished);
            if best.as_ref().is_none_or(|best| seconds < best.seconds) {
                best =
                    Some(Fastest { orders: Arc::clone(&prepared), at, finished, seconds, memory });
            }
        }
        if best.is_some() || late {
            return Ok(best);
        }
        Err(if missing.is_finite() {
            Infeasible::Memory { missing }
        } else {
            let micro_batches = placement.micro_batches;
            Infeasible::Order { schedule: plan.schedule, micro_batches }
        })
    }

    /// The fastest order of a plan that fits.
    fn best(
        &self,
        plan: &Plan,
        placement: &Placement,
        costs: &Costs,
    ) -> Result<Fastest, Infeasible> {
        let micro_batches = placement.micro_batches;
        let none = Infeasible::Order { schedule: plan.schedule, micro_batches };
        self.fastest(plan, placement, costs, f64::INFINITY)?.ok_or(none)
    }

    /// The seconds of an iteration alone. Cheaper than [`Evaluator::evaluate`].
    ///
    /// # Errors
    ///
    /// If the plan cannot be run.
    pub fn seconds(&self, plan: &Plan) -> Result<f64, Infeasible> {
        Ok(self.seconds_within(plan, f64::INFINITY)?.unwrap_or(f64::INFINITY))
    }

    /// The seconds of an iteration. `None` if they are more than `limit`; then it is not known by how
    /// much.
    pub(crate) fn seconds_within(
        &self,
        plan: &Plan,
        limit: f64,
    ) -> Result<Option<f64>, Infeasible> {
        let wire = self.job.wire(plan).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(self.job, plan)?;
        let costs = Costs::new(self.job, plan, &placement, wire);
        Ok(self.fastest(plan, &placement, &costs, limit)?.map(|best| best.seconds))
    }

    /// A time below which no iteration of a plan is, and that costs little to find. `None` if the
    /// plan cannot be laid out.
    pub(crate) fn bound(&self, plan: &Plan) -> Option<f64> {
        let job = self.job;
        let wire = job.wire(plan)?;
        let placement = Placement::new(job, plan).ok()?;
        let costs = Costs::new(job, plan, &placement, wire);
        let count = f64::from(placement.micro_batches);
        let mut links = vec![0.0_f64; job.sites.gpus.len().pow(2)];
        for hop in costs.times.chunks.iter().flat_map(|chunk| [chunk.to_next, chunk.to_previous]) {
            if let Some(link) = hop.link.and_then(|link| links.get_mut(link)) {
                *link += count * hop.transfer;
            }
        }
        let gradients = costs
            .stages
            .iter()
            .map(|(parameters, _)| costs.replicas.last(job, plan, wire, *parameters).link);
        let busy = (0..costs.stages.len())
            .map(|stage| costs.busy(job, plan, stage).iter().sum::<f64>() * count)
            .fold(0.0, f64::max);
        Some(busy.max(longest(&links)).max(gradients.sum()))
    }

    /// An iteration and its parts.
    ///
    /// # Errors
    ///
    /// If the plan cannot be run.
    pub fn evaluate(&self, plan: &Plan) -> Result<Iteration, Infeasible> {
        let job = self.job;
        let wire = job.wire(plan).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(job, plan)?;
        let real = Costs::new(job, plan, &placement, wire);
        let Fastest { seconds, memory, .. } = self.best(plan, &placement, &real)?;
        let ideal = Costs::new(job, plan, &placement, Wire::IDEAL);
        let without = self.best(plan, &placement, &ideal)?;
        let (stage, alone) = without
            .finished
            .iter()
            .copied()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or_default();
        let count = f64::from(placement.micro_batches);
        let [compute, recompute, exchanges] = ideal.busy(job, plan, stage).map(|time| time * count);
        let parameters = ideal.stages.get(stage).map(|stage| stage.0).unwrap_or_default();
        let optimizer = ideal.optimizer(job, plan, parameters);
        let rest = alone - compute - recompute - exchanges - optimizer;
        let outside = ideal.outside(job, plan, &placement, stage).min(rest.max(0.0));
        let tokens = f64::from(job.batch) * f64::from(job.model.sequence);
        let each = seconds * f64::from(job.sites.total());
        Ok(Iteration {
            seconds,
            compute,
            recompute,
            inside: exchanges + outside,
            across: positive(seconds - alone),
            bubble: positive(rest - outside),
            optimizer,
            memory,
            tokens_per_gpu: tokens / each,
            operations_per_gpu: tokens * job.model.operations_of_token() / each,
        })
    }

    /// The operations of a plan on its timeline, stage by stage in their order.
    ///
    /// # Errors
    ///
    /// If the plan cannot be run.
    pub fn spans(&self, plan: &Plan) -> Result<Vec<Span>, Infeasible> {
        let wire = self.job.wire(plan).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(self.job, plan)?;
        let costs = Costs::new(self.job, plan, &placement, wire);
        let best = self.best(plan, &placement, &costs)?;
        let mut spans = Vec::new();
        if let Some(one) = best.orders.get(best.at) {
            let visit = |stage, operation, start, end| {
                spans.push(Span { stage, operation, start, end });
            };
            // It has been run before.
            let _ = timeline::run(&one.sequence, &costs.times, f64::INFINITY, visit);
        }
        spans.sort_by(|a, b| a.stage.cmp(&b.stage).then(a.start.total_cmp(&b.start)));
        Ok(spans)
    }
}

impl Costs {
    /// Exchanges of a stage outside its layers that nothing hides: messages to other stages that
    /// block it, gathers at the start, and gradients behind its last operation.
    fn outside(&self, job: &Job, plan: &Plan, placement: &Placement, stage: usize) -> f64 {
        let shape = crate::order::Shape::new(plan.schedule, plan.pipeline as usize, 1);
        let blocks = plan.exchange == crate::plan::Exchange::Blocking;
        let own = self.times.chunks.iter().enumerate().filter(|(at, _)| shape.stage(*at) == stage);
        let messages = own.map(|(_, chunk)| {
            let wait = |hop: Hop| hop.transfer + hop.latency;
            let to_next = if shape.total() > 1 { wait(chunk.to_next) } else { 0.0 };
            to_next + wait(chunk.to_previous)
        });
        let messages = if blocks { messages.sum::<f64>() } else { 0.0 };
        let zero = vec![0.0; self.stages.len()];
        let behind = self.synchronised(job, plan, &zero).get(stage).copied().unwrap_or_default();
        messages * f64::from(placement.micro_batches) + self.start + behind.max(0.0)
    }
}
