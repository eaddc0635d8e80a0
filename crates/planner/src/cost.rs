//! What a layer costs on one GPU: computation, memory traffic, and exchanges inside the layer.
//!
//! Operations and bytes are those of Korthikanti et al. (arXiv 2205.05198, sections 4 and 5), with
//! the memory traffic of operations on single elements counted by us.

use crate::collective::Group;
use crate::job::Job;
use crate::model::{Attention, HALF, Precision};
use crate::network::Wire;
use crate::normal;
use crate::plan::{Boundary, Plan, Recompute, Sharding};

/// Bytes of memory traffic for each score of attention: three operations read and write it.
const SCORE_TRAFFIC: f64 = 12.0;
/// Bytes for each element of the stream between layers: two norms, two residual additions.
const STREAM_TRAFFIC: f64 = 24.0;
/// Bytes for each element inside the feed-forward network, and of its input and output.
const NETWORK_TRAFFIC: f64 = 4.0;
const EDGE_TRAFFIC: f64 = 8.0;
/// Bytes for each element that is converted to FP8: read for its maximum, read, written.
const FP8_TRAFFIC: f64 = 5.0;
/// Bytes for each logit.
const LOGIT_TRAFFIC: f64 = 8.0;

/// The standard deviation of the speed of GPUs of one kind. In Sinha et al. (arXiv 2208.11035) 8 %
/// lie between the slow and the fast ones of a cluster, outliers left out: 5.4 standard deviations.
const VARIATION: f64 = 0.08 / 5.4;

/// How much longer the slowest of so many GPUs computes: all wait for it.
fn slowest(gpus: u32) -> f64 {
    1.0 + VARIATION * normal::maximum(f64::from(gpus))
}

/// Seconds of a layer for a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Cost {
    /// The output.
    pub forward: f64,
    /// The gradient of the input.
    pub backward: f64,
    /// The gradient of the weights.
    pub weight: f64,
    /// What is computed again before the backward pass, with its exchanges.
    pub recompute: f64,
    /// Exchanges of the forward pass that nothing hides.
    pub exchange_forward: f64,
    /// Exchanges of the backward pass that nothing hides.
    pub exchange_backward: f64,
}

impl Cost {
    /// The forward pass with its exchanges.
    pub(crate) fn whole_forward(&self) -> f64 {
        self.forward + self.exchange_forward
    }

    /// The backward pass with its exchanges and what is computed again, without the gradient of
    /// the weights.
    pub(crate) fn whole_backward(&self) -> f64 {
        self.backward + self.exchange_backward + self.recompute
    }
}

/// The sites that a dimension spans.
pub(crate) fn spanned(job: &Job, plan: &Plan, dimension: Boundary) -> u32 {
    if plan.boundary == dimension { (job.sites.gpus.len() as u32).max(1) } else { 1 }
}

/// The sites that have a copy of the parameters which all replicas share.
pub(crate) fn replica_sites(job: &Job, plan: &Plan) -> u32 {
    let dimensions = [Boundary::Data, Boundary::Context, Boundary::Expert];
    dimensions.into_iter().map(|one| spanned(job, plan, one)).max().unwrap_or(1)
}

/// Pairs of GPUs that send from a site to another at a time. Stages exchange gradients one after
/// another.
pub(crate) fn pairs(job: &Job, plan: &Plan) -> f64 {
    let sites = (job.sites.gpus.len() as f64).max(1.0);
    let [tensor, data, context, pipeline, expert] =
        [plan.tensor, plan.data, plan.context, plan.pipeline, plan.expert].map(f64::from);
    let stage = tensor * data * context;
    match plan.boundary {
        Boundary::Pipeline => stage,
        // One ring over all replicas.
        Boundary::Data if plan.sharding == Sharding::Fsdp => tensor,
        Boundary::Data => stage / sites,
        // A ring of each group.
        Boundary::Context => pipeline * data * tensor,
        Boundary::Tensor => pipeline * stage / sites,
        // Each of a group at one site sends to each of it at the other.
        Boundary::Expert => pipeline * stage * expert / sites.powi(2),
    }
}

/// Tokens of a micro-batch on a GPU.
pub(crate) fn tokens(job: &Job, plan: &Plan) -> f64 {
    f64::from(plan.micro_batch) * f64::from(job.model.sequence) / f64::from(plan.context)
}

/// Seconds of the exchanges in one pass through a layer. Keys and values of other parts of the
/// sequence arrive beside `scores`; parts of tensors, if that is wanted, beside `products`.
fn exchange(job: &Job, plan: &Plan, wire: Wire, scores: f64, products: f64) -> f64 {
    let Job { model, machine, .. } = job;
    let tokens = tokens(job, plan);
    let stream = tokens * f64::from(model.hidden) * HALF;
    let replicas = plan.pipeline * plan.data;
    let mut seconds = 0.0;
    if plan.tensor > 1 {
        let sites = spanned(job, plan, Boundary::Tensor);
        let group = Group::new(machine, plan.tensor, 1, sites, replicas * plan.context);
        let all = if plan.sequence_parallel {
            let gathered = stream / HALF * f64::from(model.gather_bytes);
            let half = |bytes| group.half(machine, wire, bytes).total();
            2.0 * (half(gathered) + half(stream))
        } else {
            2.0 * group.all_reduce(machine, wire, stream).total()
        };
        // The first of as many steps as there are parts has no product beside it.
        let steps = f64::from(plan.tensor);
        let beside = if plan.async_tensor { all * (steps - 1.0) / steps } else { 0.0 };
        seconds += all - beside.min(products);
    }
    if plan.context > 1 {
        let sites = spanned(job, plan, Boundary::Context);
        let group = Group::new(machine, plan.context, plan.tensor, sites, replicas * plan.tensor);
        let parts = f64::from(plan.context);
        let bytes = 2.0 * tokens * model.kv_width() * HALF / f64::from(plan.tensor) * parts;
        seconds += (group.flat(machine, wire, bytes).total() - scores).max(0.0);
    }
    if let Some(experts) = model.experts.filter(|_| plan.expert > 1) {
        let sites = spanned(job, plan, Boundary::Expert);
        let stride = plan.tensor * plan.context;
        let groups = replicas / plan.expert * stride;
        let group = Group::new(machine, plan.expert, stride, sites, groups);
        let bytes = stream * f64::from(experts.active) / f64::from(plan.tensor);
        seconds += 2.0 * group.all_to_all(machine, wire, bytes).total();
    }
    seconds
}

/// The cost of a layer.
pub(crate) fn layer(job: &Job, plan: &Plan, wire: Wire) -> Cost {
    let Job { model, machine, .. } = job;
    let (tokens, tensor) = (tokens(job, plan), f64::from(plan.tensor));
    let (hidden, sequence) = (f64::from(model.hidden), f64::from(model.sequence));
    let width = model.feed_forward() * model.active_networks();
    let active = model.attention_weights() + model.active_networks() * model.network_weights();
    let linear = 2.0 * tokens * active / tensor;
    let linear = match model.precision {
        Precision::Half => machine.products(linear),
        Precision::Fp8 => {
            let inputs = tokens * (3.0 * hidden + width / tensor) + active / tensor;
            machine.products_fp8(linear) + machine.memory(FP8_TRAFFIC * inputs)
        }
    };
    let all_scores = 4.0 * tokens * sequence * hidden / tensor;
    // The fused kernel computes only the lower half, and its backward pass computes scores again.
    let (scores, again, traffic) = match model.attention {
        Attention::Flash => (machine.attention(0.5 * all_scores), 2.5, 0.0),
        Attention::Unfused => {
            let heads = f64::from(model.heads) / tensor;
            let traffic = machine.memory(SCORE_TRAFFIC * tokens * sequence * heads);
            (machine.products(all_scores), 2.0, traffic)
        }
    };
    let cut = if plan.sequence_parallel { tensor } else { 1.0 };
    let gate = if model.gated { 1.5 } else { 1.0 };
    let elements = machine.memory(
        STREAM_TRAFFIC * tokens * hidden / cut
            + NETWORK_TRAFFIC * gate * tokens * width / tensor
            + EDGE_TRAFFIC * tokens * hidden / tensor,
    );
    let overhead = machine.efficiency.layer_overhead;
    let exchanged = exchange(job, plan, wire, scores, linear);
    let slow = slowest(job.sites.total());
    let forward = slow * (linear + scores + traffic + elements + overhead);
    let backward = linear + again * scores + 1.5 * (traffic + elements + overhead);
    let recompute = match plan.recompute {
        Recompute::None => 0.0,
        Recompute::Attention => slow * (scores + traffic),
        Recompute::Half => slow * 0.5 * linear,
        Recompute::Full => forward + exchanged,
    };
    Cost {
        forward,
        backward: slow * backward,
        weight: slow * (linear + 0.5 * overhead),
        recompute,
        exchange_forward: exchanged,
        exchange_backward: exchanged,
    }
}

/// The cost of the output layer and the loss.
pub(crate) fn output(job: &Job, plan: &Plan) -> Cost {
    let Job { model, machine, .. } = job;
    let (tokens, tensor) = (tokens(job, plan), f64::from(plan.tensor));
    let products = machine.products(2.0 * tokens * model.vocabulary_weights() / tensor);
    let logits = machine.memory(LOGIT_TRAFFIC * tokens * f64::from(model.vocabulary) / tensor);
    let (once, slow) = (products + logits, slowest(job.sites.total()));
    let [forward, backward, weight] = [once, once, products].map(|seconds| slow * seconds);
    Cost { forward, backward, weight, ..Cost::default() }
}
