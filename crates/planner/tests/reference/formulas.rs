//! Bubbles of schedules and volumes of collective operations.

use planner::collective::{ddp, fsdp, hsdp};
use planner::dispatch;
use planner::order::Kind;
use planner::plan::{Exchange, Schedule};
use planner::sequence::Sequence;
use planner::timeline::{self, ChunkTimes, Times};

/// The share of a stage's time, from its first operation to its last, in which it is idle: the
/// largest of all stages.
fn bubble(schedule: Schedule, stages: usize, micro_batches: usize) -> f64 {
    let orders = dispatch::orders(schedule, stages, micro_batches, &vec![0; stages], [1.0; 3]);
    let order = &orders[0];
    let has_weights = order.stages[0].iter().any(|operation| operation.kind == Kind::Weight);
    let part = 1.0 / order.shape.chunks as f64;
    let chunk = ChunkTimes {
        forward: part,
        backward: if has_weights { part } else { 2.0 * part },
        weight: if has_weights { part } else { 0.0 },
        ..ChunkTimes::default()
    };
    let times = Times { chunks: vec![chunk; order.shape.total()], exchange: Exchange::Background };
    let mut first = vec![f64::INFINITY; stages];
    let ends = timeline::run(
        &Sequence::new(order).unwrap(),
        &times,
        f64::INFINITY,
        |stage, _, start, _| {
            first[stage] = first[stage].min(start);
        },
    )
    .unwrap();
    let spans = ends.iter().zip(&first).map(|(end, start)| end - start);
    1.0 - 3.0 * micro_batches as f64 / spans.fold(0.0, f64::max)
}

/// sail-sg/zero-bubble-pipeline-parallelism@39f2c186, table of schedules.
#[test]
fn bubbles_are_those_of_the_zero_bubble_table() {
    for (stages, micro_batches, one, v_half) in [
        (4, 8, 0.272_727, 0.136_363),
        (8, 16, 0.304_348, 0.152_174),
        (8, 32, 0.179_487, 0.089_744),
        (16, 64, 0.189_873, 0.094_936),
    ] {
        let found = |schedule| bubble(schedule, stages, micro_batches);
        let classic = found(Schedule::OneForwardOneBackward);
        assert!((classic - one).abs() < 0.01, "1f1b {stages} {micro_batches}: {classic}");
        for (schedule, expected) in
            [(Schedule::ZbH1, one / 3.0), (Schedule::Zbv, 0.0), (Schedule::VHalf, v_half)]
        {
            let value = found(schedule);
            assert!(
                (-0.01..=0.03).contains(&(value - expected)),
                "{schedule} {stages} {micro_batches}: {value} instead of {expected}"
            );
        }
    }
}

/// Bytes that a GPU sends, computed from nccl-tests' factors and PyTorch's FSDP documentation.
#[test]
fn volumes_are_exact() {
    for (parameters, data, sites, all) in [
        (
            3_164_062_500_f64,
            64.0,
            2.0,
            [12_458_496_094_f64, 18_687_744_141.0, 18_391_113_281.0, 197_753_906.0],
        ),
        (8e9, 128.0, 2.0, [31_750_000_000.0, 47_625_000_000.0, 47_250_000_000.0, 250_000_000.0]),
        (
            15_625_000_000.0,
            16.0,
            2.0,
            [58_593_750_000.0, 87_890_625_000.0, 82_031_250_000.0, 3_906_250_000.0],
        ),
    ] {
        let bytes = 2.0 * parameters;
        let hybrid = hsdp(data, sites, bytes);
        let found =
            [ddp(data, bytes).inside, fsdp(data, bytes).inside, hybrid.inside, hybrid.across];
        for (found, expected) in found.iter().zip(all) {
            assert!((found - expected).abs() <= 0.5, "{found} instead of {expected}");
        }
    }
}
