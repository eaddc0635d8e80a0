//! A plan as a workload of `lab`: each host stands for a stage, or for all replicas of a site.

use std::fmt::Write as _;

use planner::iteration::Span;
use planner::order::Kind;
use planner::plan::{Boundary, Plan, Schedule, Sharding};
use planner::traffic::{Flow, Purpose};
use planner::{Evaluator, Job};

use super::PlanError;

/// The largest message that hosts send at once, as most programs do.
const MESSAGE: u64 = 1 << 20;
/// The smallest window of a queue pair, in bytes.
const WINDOW: f64 = 65536.0;
/// The window of all queue pairs, in multiples of what fills the link.
const WINDOWS: f64 = 32.0;
/// What a retransmission timer needs beside round trips and queues, in nanoseconds.
const TIMEOUT: u64 = 67_108_864;

/// The tables `[workload]` of an experiment file that sends between sites what the plan does.
///
/// # Errors
/// [`PlanError::Emulation`] if the hosts of `lab` cannot do it.
pub(super) fn workload(job: &Job, plan: &Plan, flows: &[Flow]) -> Result<String, PlanError> {
    let evaluator = Evaluator::new(job);
    let iteration = evaluator.evaluate(plan)?;
    let mut text = format!(
        "# {plan}\n# Predicted: {:.3} s for an iteration, {:.3} s of it between sites.\n",
        iteration.seconds, iteration.across
    );
    match (plan.boundary, plan.schedule, plan.sharding) {
        (Boundary::Pipeline, Schedule::OneForwardOneBackward, _) => {
            let spans = evaluator.spans(plan)?;
            let seconds = |kind| slowest(&spans, kind, plan.pipeline as usize);
            // All GPUs of a stage send to those of the next.
            let is_first = |flow: &&Flow| {
                flow.purpose == Purpose::Activation
                    && flows.first().is_some_and(|first| {
                        let size = job.sites.total() / plan.pipeline.max(1);
                        flow.from / size.max(1) == first.from / size.max(1)
                    })
            };
            let bytes: u64 = flows.iter().filter(is_first).map(|flow| flow.bytes).sum();
            let micro_batches = flows.first().map_or(0, |flow| flow.messages);
            let _ = write!(
                text,
                "# Hosts: one for each of the {} stages, in their order.\n\
                 [workload]\ncollective = \"pipeline\"\nbytes = {bytes}\nmessage = {}\n\
                 # A message goes before those that are sent later.\ndealing = \"split\"\n\
                 compute = {{ distribution = \"fixed\", seconds = {:.6} }}\n\
                 [workload.pipeline]\nmicro-batches = {micro_batches}\n\
                 forward = {:.6}\nbackward = {:.6}\n",
                plan.pipeline,
                MESSAGE.min(bytes),
                iteration.optimizer,
                seconds(Kind::Forward),
                seconds(Kind::Backward),
            );
        }
        (Boundary::Data, _, Sharding::Ddp | Sharding::Hsdp) => {
            let sites = job.sites.gpus.len() as u64;
            let sent: u64 = flows.iter().map(|flow| flow.bytes).sum::<u64>() / sites.max(1);
            // A ring of n hosts moves 2 (n - 1) / n of their buffers.
            let bytes = sent * sites / (2 * (sites - 1)).max(1);
            let _ = write!(
                text,
                "# Hosts: one at each of the {sites} sites. They exchange gradients when they have \
                 computed: compare with 'overlap = false'.\n\
                 [workload]\ncollective = \"all-reduce-ring\"\nbytes = {bytes}\nmessage = {}\n\
                 compute = {{ distribution = \"fixed\", seconds = {:.6} }}\n",
                MESSAGE.min(bytes),
                iteration.seconds - iteration.across,
            );
        }
        _ => return Err(PlanError::Emulation(plan.to_string())),
    }
    // Acknowledgements wait behind the data of the other direction. So that nobody waits for them,
    // the window is much larger than what fills the link.
    let link = &job.sites.link;
    let round_trip = 2.0 * link.latency;
    let window = WINDOWS * link.bandwidth * round_trip;
    let queue_pairs = f64::from(plan.technology.queue_pairs.max(1));
    let timeout = 4.0 * round_trip + 2.0 * window / link.bandwidth;
    let _ = write!(
        text,
        "# The queue of the circuit must hold the window of all queue pairs, {window:.0} bytes.\n\
         [workload.transport]\nwindow = {}\ntimeout = {}\n",
        (window / queue_pairs).clamp(WINDOW, f64::from(1 << 30)) as u32,
        TIMEOUT + (timeout * 1e9) as u64,
    );
    Ok(text)
}

/// The mean seconds of an operation on the stage where it takes longest.
fn slowest(spans: &[Span], kind: Kind, stages: usize) -> f64 {
    let mean = |stage: usize| {
        let times: Vec<f64> = spans
            .iter()
            .filter(|span| span.stage == stage && span.operation.kind == kind)
            .map(|span| span.end - span.start)
            .collect();
        times.iter().sum::<f64>() / (times.len() as f64).max(1.0)
    };
    (0..stages).map(mean).fold(0.0, f64::max)
}
