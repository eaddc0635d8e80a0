//! How long an evaluation and a search take: `cargo bench -p planner`.
#![allow(missing_docs, reason = "a program")]

use std::time::Instant;

use planner::job::Job;
use planner::machine::SHIPPED;
use planner::model::{Attention, Model, Precision};
use planner::network::{Balance, Link, Policy, Recovery, Sites, Technology};
use planner::plan::{Boundary, Exchange, Plan, Recompute, Schedule, Sharding};
use planner::{Evaluator, Space, search};

/// GPT-3 175B on 512 A100 at two sites.
fn job() -> Option<Job> {
    let (_, text) = SHIPPED.iter().find(|(name, _)| *name == "a100")?;
    let link = Link {
        bandwidth: 50e9,
        oversubscription: 1.0,
        latency: 5e-3,
        loss: 1e-5,
        recovery: Recovery::GoBackN,
        paths: 4,
        packet: 4096,
        headers: 132,
    };
    let queue_pairs = [1, 2, 4, 8, 16, 32];
    let balance = |policy, queue_pairs| Balance {
        technology: Technology { policy, queue_pairs },
        imbalance: None,
    };
    let each = queue_pairs
        .into_iter()
        .flat_map(|number| [balance(Policy::Ecmp, number), balance(Policy::QpPin, number)]);
    Some(Job {
        model: Model {
            layers: 96,
            hidden: 12_288,
            heads: 96,
            kv_heads: None,
            feed_forward: None,
            gated: false,
            vocabulary: 51_200,
            sequence: 2048,
            attention: Attention::Flash,
            precision: Precision::Half,
            gradient_bytes: 2,
            gather_bytes: 2,
            experts: None,
        },
        machine: toml::from_str(text).ok()?,
        sites: Sites { gpus: vec![256, 256], link },
        batch: 1536,
        overlap: true,
        balance: each.chain([balance(Policy::Spray, 1)]).collect(),
    })
}

fn plan(schedule: Schedule, tensor: u32, pipeline: u32, data: u32) -> Plan {
    Plan {
        tensor,
        pipeline,
        data,
        context: 1,
        expert: 1,
        micro_batch: 1,
        schedule,
        exchange: Exchange::Blocking,
        sharding: Sharding::Ddp,
        recompute: Recompute::Full,
        sequence_parallel: true,
        async_tensor: false,
        boundary: Boundary::Data,
        technology: Technology { policy: Policy::Spray, queue_pairs: 1 },
        layers: Vec::new(),
    }
}

/// The peak of the process's memory in MB, if the system tells it.
fn peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kilobytes| kilobytes / 1e3)
}

fn main() {
    let Some(job) = job() else { return };
    let evaluator = Evaluator::new(&job);
    for (schedule, tensor, pipeline, data) in [
        (Schedule::OneForwardOneBackward, 8, 8, 8),
        (Schedule::Interleaved(2), 8, 8, 8),
        (Schedule::ZbH1, 8, 8, 8),
        (Schedule::Zbv, 8, 8, 8),
        (Schedule::OneForwardOneBackward, 8, 16, 4),
        (Schedule::UpDown(1), 8, 8, 8),
    ] {
        let plan = plan(schedule, tensor, pipeline, data);
        // The first call also makes the order of operations.
        let first = evaluator.seconds(&plan);
        let best = (0..50)
            .map(|_| {
                let start = Instant::now();
                let _ = std::hint::black_box(evaluator.seconds(&plan));
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min);
        println!("evaluation: {:7.1} us  {plan}: {first:.2?}", 1e6 * best);
    }
    for threads in [1, 2] {
        let start = Instant::now();
        let found = search(&job, &Space::default(), 10, threads);
        let seconds = start.elapsed().as_secs_f64();
        let best = found.plans.first().map(|best| (best.iteration.seconds, best.plan.to_string()));
        println!("search, {threads} threads: {seconds:.2} s, {} plans, {best:?}", found.considered);
    }
    println!("peak memory: {:.1?} MB", peak());
}
