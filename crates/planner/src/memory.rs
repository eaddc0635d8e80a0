//! What a GPU holds.

use serde::Serialize;

use crate::cost;
use crate::job::Job;
use crate::model::{Attention, HALF, Model};
use crate::plan::{Plan, Recompute, Sharding};

/// Bytes of the optimizer's state for each parameter: a master copy, two moments (Adam).
const STATE: f64 = 12.0;
/// Bytes of what a full layer keeps for each token and hidden element, apart from the feed-forward
/// network: norms, residuals and attention (arXiv 2205.05198, equation 1).
const UNCUT: f64 = 10.0;
const CUT: f64 = 8.0;
/// Bytes for each token and element inside the feed-forward network (same equation).
const INNER: f64 = 4.0;
/// Bytes for each score: softmax, its dropout, and the dropout's mask (same equation).
const SCORES: f64 = 5.0;
/// Bytes for each logit: half and single precision.
const LOGITS: f64 = 6.0;

/// Bytes on the GPU that needs most.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Memory {
    /// Parameters.
    pub parameters: f64,
    /// Gradients.
    pub gradients: f64,
    /// The optimizer's state.
    pub optimizer: f64,
    /// Activations of the micro-batches under way.
    pub activations: f64,
    /// What a layer, or the loss, needs while it is computed.
    pub working: f64,
    /// What a GPU has for all of these.
    pub limit: f64,
}

impl Memory {
    /// All that is needed.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.working
    }

    /// Bytes that are missing.
    #[must_use]
    pub fn missing(&self) -> f64 {
        (self.total() - self.limit).max(0.0)
    }
}

/// Parameters on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Parameters {
    /// Those of which each replica has a copy.
    pub shared: f64,
    /// Those of experts.
    pub experts: f64,
}

impl Parameters {
    /// Those of so many layers, and of the embedding and the output if they are there.
    pub(crate) fn new(model: &Model, plan: &Plan, layers: u32, ends: u32) -> Self {
        let (layers, tensor) = (f64::from(layers), f64::from(plan.tensor));
        let networks = layers * model.networks() * model.network_weights() / tensor;
        let ends = f64::from(ends) * model.vocabulary_weights() / tensor;
        let attention = layers * model.attention_weights() / tensor;
        if model.experts.is_some() {
            Self { shared: attention + ends, experts: networks / f64::from(plan.expert) }
        } else {
            Self { shared: attention + networks + ends, experts: 0.0 }
        }
    }

    pub(crate) fn total(&self) -> f64 {
        self.shared + self.experts
    }
}

/// What a layer keeps for the backward pass of a micro-batch, and what it needs at once.
fn activations(job: &Job, plan: &Plan) -> (f64, f64) {
    let model = &job.model;
    let (tokens, tensor) = (cost::tokens(job, plan), f64::from(plan.tensor));
    let uncut = if plan.sequence_parallel { tensor } else { 1.0 };
    let stream = tokens * f64::from(model.hidden);
    let gate = if model.gated { 1.5 } else { 1.0 };
    let network = INNER * gate * tokens * model.feed_forward() * model.active_networks() / tensor;
    let scores = match model.attention {
        Attention::Flash => 0.0,
        Attention::Unfused => {
            SCORES * f64::from(model.heads) * f64::from(model.sequence) * tokens / tensor
        }
    };
    let rest = stream * (UNCUT / uncut + CUT / tensor) + network;
    let kept = match plan.recompute {
        Recompute::None => rest + scores,
        Recompute::Attention => rest,
        Recompute::Half => 0.75 * rest,
        Recompute::Full => HALF * stream / uncut,
    };
    (kept, rest + scores)
}

/// What a GPU of a stage holds. `held` is the number of layers times micro-batches under way.
pub(crate) fn of(
    job: &Job,
    plan: &Plan,
    parameters: Parameters,
    held: f64,
    has_output: bool,
) -> Memory {
    let (model, machine) = (&job.model, &job.machine);
    let replicas = f64::from(plan.data * plan.context);
    let shards = match plan.sharding {
        Sharding::Ddp => 1.0,
        Sharding::Hsdp => replicas / f64::from(cost::replica_sites(job, plan)),
        Sharding::Fsdp => replicas,
    };
    let experts = (shards / f64::from(plan.expert)).max(1.0);
    let sharded = parameters.shared / shards + parameters.experts / experts;
    // Without a pipeline, parameters are gathered for a layer at a time.
    let gathered = plan.sharding != Sharding::Ddp && plan.pipeline == 1;
    let held_parameters = if gathered { sharded } else { parameters.total() };
    let (kept, layer) = activations(job, plan);
    let logits = cost::tokens(job, plan) * f64::from(model.vocabulary) / f64::from(plan.tensor);
    let working = if plan.recompute == Recompute::Full { layer } else { 0.0 };
    let gathered_layers =
        if gathered { 2.0 * HALF * Parameters::new(model, plan, 1, 0).total() } else { 0.0 };
    Memory {
        parameters: HALF * held_parameters,
        gradients: f64::from(model.gradient_bytes) * sharded,
        optimizer: STATE * sharded,
        activations: kept * held,
        working: working.max(if has_output { LOGITS * logits } else { 0.0 }) + gathered_layers,
        limit: machine.memory - machine.reserved,
    }
}
