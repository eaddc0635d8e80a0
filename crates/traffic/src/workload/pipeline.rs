//! Stages of a model on ranks: who computes what in which order, and sends it on.

use core::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schedule::{Computation, Schedule, Transfer};

/// What the stages of a pipeline compute. Only for the collective `pipeline`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pipeline {
    /// Micro-batches of an iteration.
    #[schemars(range(min = 1, max = 65536))]
    pub micro_batches: u32,
    /// Seconds of the forward pass of a micro-batch through a stage, or a time with its unit.
    #[serde(deserialize_with = "quantity::seconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub forward: f64,
    /// Seconds of its backward pass, or a time with its unit.
    #[serde(deserialize_with = "quantity::seconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub backward: f64,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self { micro_batches: 8, forward: 0.01, backward: 0.02 }
    }
}

/// One forward, one backward (PipeDream-Flush, arXiv 2006.09503): a stage is a rank, and does its
/// operations in a fixed order, each as soon as its input has arrived. While a message is on its way,
/// its sender computes on. `bytes`: those of an activation, and of its gradient on the way back.
pub(super) fn schedule(stages: usize, bytes: u64, pipeline: Pipeline) -> Schedule {
    let count = pipeline.micro_batches as usize;
    let seconds = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let (forward, backward) = (seconds(pipeline.forward), seconds(pipeline.backward));
    // The number of a stage's operation, among those of all stages.
    let number = |stage: usize, is_forward: bool, micro_batch: usize| {
        let ahead = (stages - stage).min(count);
        let before = match (is_forward, micro_batch < ahead) {
            (true, true) => micro_batch,
            // Between two forward passes is the backward pass of an earlier micro-batch.
            (true, false) => 2 * micro_batch - ahead + 1,
            (false, _) => (ahead + 2 * micro_batch).min(count + micro_batch),
        };
        stage * 2 * count + before
    };
    let mut operations = vec![Computation::default(); stages * 2 * count];
    let mut steps = vec![Vec::new(); operations.len()];
    let mut add = |at: usize, operation: Computation, transfer: Option<Transfer>| {
        if let (Some(place), Some(step)) = (operations.get_mut(at), steps.get_mut(at)) {
            *place = operation;
            step.extend(transfer);
        }
    };
    for stage in 0..stages {
        for micro_batch in 0..count {
            let range = bytes * micro_batch as u64..bytes * (micro_batch as u64 + 1);
            let send = |to| Transfer { from: stage, to, bytes: range.clone(), reduce: false };
            let before = stage.checked_sub(1);
            let next = Some(stage + 1).filter(|next| *next < stages);
            let after = before.map(|before| number(before, true, micro_batch));
            let operation = Computation { rank: stage, after, compute: forward };
            add(number(stage, true, micro_batch), operation, next.map(send));
            let after = next.map(|next| number(next, false, micro_batch));
            let operation = Computation { rank: stage, after, compute: backward };
            add(number(stage, false, micro_batch), operation, before.map(send));
        }
    }
    Schedule { ranks: stages, steps, operations, bus_factor: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stages: usize, micro_batches: u32) -> Schedule {
        schedule(stages, 100, Pipeline { micro_batches, ..Pipeline::default() })
    }

    /// The operations of a stage as text: `F0 B0`.
    fn order(schedule: &Schedule, rank: usize) -> String {
        let (mut forward, mut backward) = (0, 0);
        let of_rank = schedule.operations.iter().filter(|operation| operation.rank == rank);
        let names = of_rank.map(|operation| {
            let is_forward = operation.compute == Duration::from_millis(10);
            let (letter, number) =
                if is_forward { ('F', &mut forward) } else { ('B', &mut backward) };
            *number += 1;
            format!("{letter}{}", *number - 1)
        });
        names.collect::<Vec<_>>().join(" ")
    }

    /// As in the figures of the paper.
    #[test]
    fn stages_do_one_forward_and_one_backward_pass() {
        let three = of(3, 4);
        assert_eq!(order(&three, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(order(&three, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(order(&three, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
        // Fewer micro-batches than stages.
        assert_eq!(order(&of(3, 1), 0), "F0 B0");
        assert_eq!(order(&of(4, 2), 0), "F0 F1 B0 B1");
        assert_eq!(order(&of(2, 1), 1), "F0 B0");
    }

    /// Each operation waits for the one that sends to it, and every message is waited for once.
    #[test]
    fn each_message_is_waited_for() {
        for (stages, micro_batches) in [(2, 1), (2, 8), (3, 2), (4, 9), (5, 3)] {
            let all = of(stages, micro_batches);
            assert_eq!(all.total_bytes(), 200 * (stages as u64 - 1) * u64::from(micro_batches));
            let mut waited = vec![0; all.steps.len()];
            for operation in &all.operations {
                let Some(after) = operation.after else { continue };
                waited[after] += 1;
                let [transfer] = &all.steps[after][..] else { panic!("{after} sends nothing") };
                assert_eq!(transfer.to, operation.rank);
                assert_eq!(transfer.from, all.operations[after].rank);
            }
            let sent: Vec<usize> = all.steps.iter().map(Vec::len).collect();
            assert_eq!(waited, sent);
        }
    }

    /// Of two stages, one sends as much as it receives.
    #[test]
    fn the_busiest_stage_sends_and_receives_at_once() {
        assert_eq!(of(2, 8).critical_bytes(), 800);
        assert_eq!(of(3, 8).critical_bytes(), 1600);
    }
}
