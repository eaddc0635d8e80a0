//! The time of an iteration, and its parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::cost::{self, Cost};
use crate::dispatch::{self, Nominal};
use crate::gradients::Replicas;
use crate::job::Job;
use crate::memory::{self, Memory, Parameters};
use crate::model::HALF;
use crate::network::Wire;
use crate::order::{Kind, Operation, Order};
use crate::placement::{Infeasible, Placement};
use crate::plan::{Plan, Schedule};
use crate::timeline::{self, ChunkTimes, Hop, Times};

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

/// An order, and the most chunks times micro-batches under way on each stage.
#[derive(Debug)]
struct Prepared {
    order: Order,
    held: Vec<usize>,
}

impl Prepared {
    fn new(order: Order) -> Self {
        let last = if order.stages.iter().flatten().any(|operation| operation.kind == Kind::Weight)
        {
            Kind::Weight
        } else {
            Kind::Backward
        };
        let held = |operations: &Vec<Operation>| {
            let (mut held, mut most) = (0_usize, 0);
            for operation in operations {
                if operation.kind == Kind::Forward {
                    held += 1;
                    most = most.max(held);
                } else if operation.kind == last {
                    held = held.saturating_sub(1);
                }
            }
            most
        };
        let held = order.stages.iter().map(held).collect();
        Self { order, held }
    }
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

/// What orders depend on: schedule, site of each stage, micro-batches, and how long backward passes
/// and gradients of weights take, in quarters of a forward pass.
type Key = (Schedule, Vec<usize>, u32, [u32; 2]);

/// Evaluates plans of a job. It keeps the orders of schedules.
#[derive(Debug)]
pub struct Evaluator<'a> {
    job: &'a Job,
    orders: BTreeMap<Key, Arc<[Prepared]>>,
    /// Operations of all orders.
    kept: usize,
}

/// Operations of orders that are kept at most: 8 bytes each.
const KEPT: usize = 2_000_000;

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
        let start = replicas.start(job, plan, wire, of_layer, most, layer.whole_forward());
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
                let (inside, link) = (all.inside / count, all.link / count);
                free = free.max(ready + inside) + all.link;
                let last = end + inside + link;
                let done =
                    last.max(ready + all.inside + link).max(if link > 0.0 { free } else { 0.0 });
                done + all.latency
            })
            .collect();
        done.reverse();
        done
    }

    /// When each stage has finished, behind its optimizer.
    fn finished(&self, job: &Job, plan: &Plan, order: &Order) -> Option<Vec<f64>> {
        let ends = timeline::run(order, &self.times, |_, _, _, _| ())?;
        let done = self.synchronised(job, plan, &ends);
        let optimizer =
            |(parameters, _): &(Parameters, u32)| self.optimizer(job, plan, *parameters);
        let optimizers = self.stages.iter().map(optimizer);
        Some(
            done.iter()
                .zip(optimizers)
                .map(|(done, optimizer)| done + optimizer + self.start)
                .collect(),
        )
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

/// The longest of some times.
fn longest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

impl<'a> Evaluator<'a> {
    /// Evaluates plans of a job.
    #[must_use]
    pub fn new(job: &'a Job) -> Self {
        Self { job, orders: BTreeMap::new(), kept: 0 }
    }

    fn prepared(&mut self, plan: &Plan, placement: &Placement, times: &Times) -> Arc<[Prepared]> {
        // Orders that a simulation finds depend on where the border is and on how long operations
        // take; the others do not.
        let dynamic = plan.schedule.is_dynamic();
        let sites =
            if dynamic { placement.stages.clone() } else { vec![0; plan.pipeline as usize] };
        let sum = |time: fn(&ChunkTimes) -> f64| times.chunks.iter().map(time).sum::<f64>();
        let forward = sum(|chunk| chunk.forward);
        let quarters = |time: f64| (4.0 * time / forward).round().clamp(1.0, 64.0) as u32;
        let ratios = if dynamic {
            [quarters(sum(|chunk| chunk.backward)), quarters(sum(|chunk| chunk.weight))]
        } else {
            [4, 4]
        };
        let key = (plan.schedule, sites, placement.micro_batches, ratios);
        if let Some(known) = self.orders.get(&key) {
            return Arc::clone(known);
        }
        let nominal: Nominal = [1.0, f64::from(ratios[0]) / 4.0, f64::from(ratios[1]) / 4.0];
        let micro_batches = placement.micro_batches as usize;
        let stages = plan.pipeline as usize;
        let made = dispatch::orders(plan.schedule, stages, micro_batches, &key.1, nominal);
        let prepared: Arc<[Prepared]> = made.into_iter().map(Prepared::new).collect();
        let operations = prepared.iter().flat_map(|one| &one.order.stages).map(Vec::len);
        let count = operations.sum::<usize>();
        if self.kept + count > KEPT {
            self.orders.clear();
            self.kept = 0;
        }
        self.kept += count;
        self.orders.insert(key, Arc::clone(&prepared));
        prepared
    }

    fn memory(
        &self,
        plan: &Plan,
        placement: &Placement,
        costs: &Costs,
        prepared: &Prepared,
    ) -> Memory {
        let layers = placement.layers.iter().copied().max().unwrap_or_default();
        let shape = prepared.order.shape;
        let last = shape.stage(shape.total().saturating_sub(1));
        let each = costs.stages.iter().zip(&prepared.held).enumerate();
        each.map(|(stage, ((parameters, _), held))| {
            let held = *held as f64 * f64::from(layers);
            memory::of(self.job, plan, *parameters, held, stage == last)
        })
        .max_by(|a, b| a.total().total_cmp(&b.total()))
        .unwrap_or_default()
    }

    /// The fastest order of a plan that fits.
    fn fastest(
        &mut self,
        plan: &Plan,
        placement: &Placement,
        costs: &Costs,
    ) -> Result<Fastest, Infeasible> {
        let prepared = self.prepared(plan, placement, &costs.times);
        let mut best: Option<Fastest> = None;
        let mut missing = f64::INFINITY;
        for (at, one) in prepared.iter().enumerate() {
            let memory = self.memory(plan, placement, costs, one);
            if memory.missing() > 0.0 {
                missing = missing.min(memory.missing());
                continue;
            }
            let Some(finished) = costs.finished(self.job, plan, &one.order) else { continue };
            let seconds = longest(&finished);
            if best.as_ref().is_none_or(|best| seconds < best.seconds) {
                best =
                    Some(Fastest { orders: Arc::clone(&prepared), at, finished, seconds, memory });
            }
        }
        best.ok_or(if missing.is_finite() {
            Infeasible::Memory { missing }
        } else {
            let micro_batches = placement.micro_batches;
            Infeasible::Order { schedule: plan.schedule, micro_batches }
        })
    }

    /// The seconds of an iteration alone. Cheaper than [`Evaluator::evaluate`].
    ///
    /// # Errors
    ///
    /// If the plan cannot be run.
    pub fn seconds(&mut self, plan: &Plan) -> Result<f64, Infeasible> {
        let wire = self.job.wire(plan.technology).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(self.job, plan)?;
        let costs = Costs::new(self.job, plan, &placement, wire);
        self.fastest(plan, &placement, &costs).map(|best| best.seconds)
    }

    /// A time below which no iteration of a plan is, and that costs little to find. `None` if the
    /// plan cannot be laid out.
    pub(crate) fn bound(&self, plan: &Plan) -> Option<f64> {
        let job = self.job;
        let wire = job.wire(plan.technology)?;
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
    pub fn evaluate(&mut self, plan: &Plan) -> Result<Iteration, Infeasible> {
        let job = self.job;
        let wire = job.wire(plan.technology).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(job, plan)?;
        let real = Costs::new(job, plan, &placement, wire);
        let Fastest { seconds, memory, .. } = self.fastest(plan, &placement, &real)?;
        let ideal = Costs::new(job, plan, &placement, Wire::IDEAL);
        let without = self.fastest(plan, &placement, &ideal)?;
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
            across: seconds - alone,
            bubble: rest - outside,
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
    pub fn spans(&mut self, plan: &Plan) -> Result<Vec<Span>, Infeasible> {
        let wire = self.job.wire(plan.technology).ok_or(Infeasible::Technology(plan.technology))?;
        let placement = Placement::new(self.job, plan)?;
        let costs = Costs::new(self.job, plan, &placement, wire);
        let best = self.fastest(plan, &placement, &costs)?;
        let mut spans = Vec::new();
        if let Some(one) = best.orders.get(best.at) {
            timeline::run(&one.order, &costs.times, |stage, operation, start, end| {
                spans.push(Span { stage, operation, start, end });
            });
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
