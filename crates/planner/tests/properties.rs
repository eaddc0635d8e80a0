//! What holds for every job: better links never make the best plan slower, the parts of an
//! iteration add up, and the search finds what trying all plans finds.
#![cfg(test)]

use planner::job::Job;
use planner::machine::{Machine, SHIPPED};
use planner::model::{Attention, Experts, Model, Precision};
use planner::network::{Balance, Link, Policy, Recovery, Sites, Technology};
use planner::plan::{Boundary, Plan, Recompute, Schedule, Sharding};
use planner::search::{self, Found};
use planner::traffic;
use planner::{Evaluator, Infeasible, Space, search as find};
use proptest::prelude::*;

fn machine(name: &str) -> Machine {
    let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name).unwrap();
    toml::from_str(text).unwrap()
}

fn balance() -> Vec<Balance> {
    let one = |policy, queue_pairs, imbalance| Balance {
        technology: Technology { policy, queue_pairs },
        imbalance,
    };
    vec![
        one(Policy::Ecmp, 1, 4.0),
        one(Policy::Ecmp, 8, 1.9),
        one(Policy::QpPin, 8, 1.0),
        one(Policy::Spray, 1, 1.0),
    ]
}

fn job(gpus: u32) -> Job {
    let model = Model {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: Some(8),
        feed_forward: Some(14_336),
        gated: true,
        vocabulary: 128_256,
        sequence: 4096,
        attention: Attention::Flash,
        precision: Precision::Half,
        gradient_bytes: 2,
        experts: None,
    };
    let link = Link {
        bandwidth: 5e9,
        oversubscription: 1.0,
        latency: 5e-3,
        loss: 1e-4,
        recovery: Recovery::GoBackN,
    };
    Job {
        model,
        machine: machine("h100"),
        sites: Sites { gpus: vec![gpus / 2, gpus / 2], link },
        batch: 64,
        overlap: true,
        balance: balance(),
    }
}

/// A space that is small enough to try all of it.
fn small() -> Space {
    Space {
        micro_batch: vec![1, 2],
        pipeline: vec![1, 2, 4],
        tensor: vec![1, 2],
        ..Space::default()
    }
}

fn seconds(found: &Found) -> Vec<f64> {
    found.plans.iter().map(|ranked| ranked.iteration.seconds).collect()
}

#[test]
fn the_search_finds_what_trying_all_finds() {
    let job = job(16);
    let space = small();
    let mut evaluator = Evaluator::new(&job);
    // Of every technology: the search itself takes only the best one.
    let technologies: Vec<Technology> = job.balance.iter().map(|one| one.technology).collect();
    let mut all: Vec<(f64, String)> = Vec::new();
    for technology in technologies {
        for plan in search::plans(&job, &space) {
            let plan = Plan { technology, ..plan };
            all.extend(evaluator.seconds(&plan).ok().map(|seconds| (seconds, plan.to_string())));
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    assert!(all.len() > 200, "{}", all.len());
    let found = find(&job, &space, 1, 1);
    assert_eq!(found.plans[0].iteration.seconds, all[0].0);
    assert_eq!(found.plans[0].plan.to_string(), all[0].1);
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let job = job(16);
    let space = Space { pipeline: vec![1, 2], tensor: vec![1], micro_batch: vec![1], ..small() };
    // With so many plans nothing is pruned, so that each one counts.
    for top in [5, 1000] {
        let one = find(&job, &space, top, 1);
        assert!(one.plans.len() >= 5);
        for threads in [2, 3, 8] {
            assert_eq!(find(&job, &space, top, threads), one, "{threads} threads");
        }
    }
}

/// A plan that does not fit says by how much, and the search says so if none fits.
#[test]
fn what_does_not_fit_says_by_how_much() {
    let mut job = job(16);
    job.machine.memory = 10e9;
    let found = find(&job, &small(), 3, 1);
    assert!(found.plans.is_empty());
    let missing = found.missing.unwrap();
    let mut evaluator = Evaluator::new(&job);
    let least = search::plans(&job, &small()).iter().fold(f64::INFINITY, |least, plan| {
        match evaluator.seconds(plan) {
            Err(Infeasible::Memory { missing }) => least.min(missing),
            _ => least,
        }
    });
    assert_eq!(missing, least);
    job.machine.memory += missing * 1.001;
    assert!(!find(&job, &small(), 3, 1).plans.is_empty());
}

fn best(job: &Job, boundary: Boundary, sharding: Sharding) -> f64 {
    // With more stages, a site has one replica of each, and HSDP and FSDP are the same.
    let pipeline = if boundary == Boundary::Data { vec![1, 2] } else { vec![2, 4] };
    let space = Space {
        boundary: vec![boundary],
        sharding: vec![sharding],
        pipeline,
        tensor: vec![1],
        ..small()
    };
    find(job, &space, 1, 1).plans.first().map_or(f64::INFINITY, |best| best.iteration.seconds)
}

/// Rules of ScaleAcross Explorer (arXiv 2605.24326): HSDP before FSDP across sites; PP-out gains
/// where bandwidth is scarce, and with experts, whose gradients are many and activations few.
#[test]
fn rules_between_sites_hold() {
    let mut job = job(16);
    assert!(
        best(&job, Boundary::Data, Sharding::Hsdp) < best(&job, Boundary::Data, Sharding::Fsdp)
    );
    let ratio = |job: &Job| {
        best(job, Boundary::Data, Sharding::Hsdp) / best(job, Boundary::Pipeline, Sharding::Hsdp)
    };
    let plenty = {
        job.sites.link.bandwidth = 400e9;
        ratio(&job)
    };
    job.sites.link.bandwidth = 2e9;
    let scarce = ratio(&job);
    assert!(plenty <= 1.0 + 1e-9 && scarce > 1.0, "plenty {plenty}, scarce {scarce}");
    // A quarter of the network for each expert: the same computation, four times the parameters.
    job.machine.memory = 400e9;
    let dense = ratio(&job);
    job.model.feed_forward = Some(14_336 / 2);
    job.model.experts = Some(Experts { count: 8, active: 2 });
    let mixture = ratio(&job);
    assert!(mixture > dense, "dense {dense}, with experts {mixture}");
}

#[test]
fn an_even_technology_moves_the_border_between_placements() {
    let mut job = job(16);
    job.sites.link.loss = 0.0;
    let mut border = |technology: Technology| {
        let rates = (0..80).map(|step| 1e9 * 1.1_f64.powi(step));
        rates.into_iter().find(|rate| {
            job.sites.link.bandwidth = *rate;
            let at = |boundary| {
                let space = Space {
                    boundary: vec![boundary],
                    technology: vec![technology],
                    sharding: vec![Sharding::Hsdp],
                    ..small()
                };
                find(&job, &space, 1, 1).plans[0].iteration.seconds
            };
            at(Boundary::Data) <= at(Boundary::Pipeline)
        })
    };
    let ecmp = border(Technology { policy: Policy::Ecmp, queue_pairs: 1 }).unwrap();
    let pinned = border(Technology { policy: Policy::QpPin, queue_pairs: 8 }).unwrap();
    assert!(pinned < ecmp, "{pinned} {ecmp}");
}

fn plan_of(at: usize) -> Plan {
    let schedules = [
        Schedule::OneForwardOneBackward,
        Schedule::Interleaved(2),
        Schedule::ZbH1,
        Schedule::Zbv,
        Schedule::VHalf,
        Schedule::UpDown(1),
        Schedule::Wave(1),
    ];
    let space = Space {
        schedule: schedules.to_vec(),
        pipeline: vec![2, 4],
        recompute: vec![Recompute::Full],
        ..small()
    };
    let plans = search::plans(&job(16), &space);
    plans[at % plans.len()].clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For each plan, so also for the best one.
    #[test]
    fn better_links_never_make_a_plan_slower(
        at in 0_usize..10_000,
        rate in 1e8..1e11_f64,
        latency in 0.0..0.05_f64,
        loss in 0.0..0.01_f64,
        better in (1.0..4.0_f64, 0.0..1.0_f64, 0.0..1.0_f64),
    ) {
        let mut worse = job(16);
        (worse.sites.link.bandwidth, worse.sites.link.latency) = (rate, latency);
        worse.sites.link.loss = loss;
        let mut improved = worse.clone();
        improved.sites.link.bandwidth *= better.0;
        improved.sites.link.latency *= better.1;
        improved.sites.link.loss *= better.2;
        let plan = plan_of(at);
        let before = Evaluator::new(&worse).seconds(&plan);
        let after = Evaluator::new(&improved).seconds(&plan);
        if let (Ok(before), Ok(after)) = (before, after) {
            prop_assert!(after <= before * (1.0 + 1e-12), "{plan}: {before} {after}");
        }
    }

    #[test]
    fn parts_add_up(at in 0_usize..10_000, rate in 1e8..1e11_f64, latency in 0.0..0.05_f64) {
        let mut job = job(16);
        (job.sites.link.bandwidth, job.sites.link.latency) = (rate, latency);
        let plan = plan_of(at);
        if let Ok(iteration) = Evaluator::new(&job).evaluate(&plan) {
            let parts = [
                iteration.compute, iteration.recompute, iteration.inside, iteration.across,
                iteration.bubble, iteration.optimizer,
            ];
            let sum: f64 = parts.iter().sum();
            prop_assert!((sum / iteration.seconds - 1.0).abs() < 1e-9, "{plan}: {iteration:?}");
            prop_assert!(parts.iter().all(|part| *part >= -1e-9), "{plan}: {iteration:?}");
        }
    }
}

#[test]
fn plans_are_found_at_all() {
    let found = find(&job(16), &small(), 3, 1);
    assert_eq!(seconds(&found).len(), 3);
    assert!(seconds(&found).is_sorted());
    for schedule in ["1f1b", "interleaved-4", "zb-h1", "zbv", "v-half", "up-down", "wave-2"] {
        assert_eq!(schedule.parse::<Schedule>().unwrap().to_string(), schedule);
    }
    assert!("interleaved-1".parse::<Schedule>().is_err());
}

/// Flows carry what the formulas say: between replicas all gradients once in each direction,
/// between stages every token once.
#[test]
fn traffic_has_the_volumes_of_the_formulas() {
    let job = job(16);
    let half = job.sites.gpus[0];
    let space = Space { sharding: vec![Sharding::Ddp], ..small() };
    let mut seen = [0, 0];
    for plan in search::plans(&job, &space) {
        let Ok(flows) = traffic::flows(&job, &plan) else { continue };
        let sent = |flow: &traffic::Flow| flow.bytes as f64 * f64::from(flow.messages);
        let total: f64 = flows.iter().map(sent).sum();
        let expected = match plan.boundary {
            Boundary::Data => 2.0 * job.model.parameters() * f64::from(job.model.gradient_bytes),
            _ => {
                let tokens = f64::from(job.batch) * f64::from(job.model.sequence);
                let crossings = f64::from(if plan.schedule.chunks() == 1 {
                    1
                } else if ["zbv", "v-half", "wave"].contains(&plan.schedule.to_string().as_str()) {
                    2
                } else {
                    2 * plan.schedule.chunks() - 1
                });
                2.0 * crossings * tokens * f64::from(job.model.hidden) * 2.0
            }
        };
        seen[usize::from(plan.boundary == Boundary::Pipeline)] += 1;
        assert!((total / expected - 1.0).abs() < 1e-6, "{plan}: {total} instead of {expected}");
        assert!(flows.iter().all(|flow| flow.from < 2 * half && flow.to < 2 * half), "{plan}");
        let matrix = traffic::connection_matrix(&job, &flows);
        assert!(matrix.starts_with(&format!("Nodes 16\nConnections {}\n", flows.len())));
        assert_eq!(matrix.lines().count(), 2 + flows.len());
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
