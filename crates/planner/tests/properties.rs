//! What holds for every job: better links never make the best plan slower, the parts of an
//! iteration add up, and the search finds what trying all plans finds.
#![cfg(test)]

use planner::check;
use planner::job::Job;
use planner::machine::{Machine, SHIPPED};
use planner::model::{Experts, Precision};
use planner::network::{Balance, Link, Policy, Recovery, Sites, Technology};
use planner::plan::{Boundary, Exchange, Plan, Recompute, Schedule, Sharding};
use planner::search::{self, Found};
use planner::traffic;
use planner::{Evaluator, Infeasible, Iteration, Space, search as find};
use proptest::prelude::*;
use serde_json::json;

fn machine(name: &str) -> Machine {
    let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name).unwrap();
    toml::from_str(text).unwrap()
}

fn balance() -> Vec<Balance> {
    let one = |policy, queue_pairs| Balance {
        technology: Technology { policy, queue_pairs },
        imbalance: None,
    };
    vec![one(Policy::Ecmp, 1), one(Policy::Ecmp, 8), one(Policy::QpPin, 8), one(Policy::Spray, 1)]
}

fn job(gpus: u32) -> Job {
    let model = json!({
        "layers": 32, "hidden": 4096, "heads": 32, "kv-heads": 8, "feed-forward": 14_336,
        "gated": true, "vocabulary": 128_256, "sequence": 4096,
    });
    let link = json!({ "bandwidth": 5e9, "latency": 5e-3, "loss": 1e-4 });
    let link = serde_json::from_value(link).unwrap();
    Job {
        model: serde_json::from_value(model).unwrap(),
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
fn a_space_has_a_bound_and_each_value_counts_once() {
    let (job, small) = (job(16), small());
    let repeated = Space {
        micro_batch: small.micro_batch.repeat(3),
        pipeline: small.pipeline.repeat(3),
        schedule: small.schedule.repeat(3),
        recompute: small.recompute.repeat(3),
        boundary: small.boundary.repeat(3),
        ..small.clone()
    };
    let plans = search::plans(&job, &small);
    assert_eq!(search::plans(&job, &repeated), plans);
    let number = search::combinations(&job, &small);
    assert_eq!(number, search::combinations(&job, &repeated));
    assert!(plans.len() as u64 <= number && number < 20_000, "{number}");
    let many: Vec<u32> = (1..=1024).collect();
    let error = check::space(&job, &Space { expert: many.clone(), micro_batch: many, ..small });
    let expected = error.unwrap_err().to_string();
    assert!(expected.starts_with("search: expected at most 1000000 plans"), "{expected}");
    assert_eq!(check::space(&job, &Space::default()), Ok(()));
    let stopped = |tried: usize, _: usize| tried > 0;
    assert_eq!(search::search_watched(&job, &Space::default(), 1, 2, &stopped), None);
}

#[test]
fn the_search_finds_what_trying_all_finds() {
    let job = job(16);
    let space = small();
    let evaluator = Evaluator::new(&job);
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
    let evaluator = Evaluator::new(&job);
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

/// A plan of every schedule, exchange, sharding and boundary, by its number.
fn plan_of(job: &Job, at: usize) -> Plan {
    let schedules = [
        Schedule::OneForwardOneBackward,
        Schedule::Interleaved(2),
        Schedule::ZbH1,
        Schedule::Zbv,
        Schedule::VHalf,
        Schedule::UpDown(1),
        Schedule::UpDown(2),
        Schedule::Wave(1),
    ];
    let pick = |from: usize| at / from;
    let boundaries =
        [Boundary::Pipeline, Boundary::Data, Boundary::Context, Boundary::Tensor, Boundary::Expert];
    let boundary = boundaries[pick(1) % 5];
    let least = |own| if boundary == own { 2 } else { 1 };
    let pipeline = [2, 4, 8, 1][pick(5) % 4].max(least(Boundary::Pipeline));
    let (tensor, context) = (least(Boundary::Tensor), least(Boundary::Context));
    let data = job.sites.total() / (pipeline * tensor * context);
    let schedule =
        if pipeline == 1 { Schedule::OneForwardOneBackward } else { schedules[pick(20) % 8] };
    Plan {
        tensor,
        pipeline,
        data,
        context,
        expert: if boundary == Boundary::Expert { 2 } else { 1 },
        micro_batch: 1,
        schedule,
        exchange: [Exchange::Background, Exchange::Blocking][pick(160) % 2],
        sharding: [Sharding::Ddp, Sharding::Hsdp, Sharding::Fsdp][pick(320) % 3],
        recompute: [Recompute::Full, Recompute::None][pick(960) % 2],
        sequence_parallel: true,
        async_tensor: false,
        boundary,
        technology: job.balance[pick(1920) % job.balance.len()].technology,
        layers: Vec::new(),
    }
}

/// A job with experts or without, and memory for any plan.
fn any_job(experts: bool, batch: u32) -> Job {
    let mut job = job(16);
    (job.batch, job.machine.memory) = (batch, 1e15);
    if experts {
        (job.model.feed_forward, job.model.experts) =
            (Some(14_336 / 4), Some(Experts { count: 8, active: 2 }));
    }
    job
}

/// A link, and a better one.
fn links() -> impl Strategy<Value = [Link; 2]> {
    let better = (
        prop_oneof![Just(1.0), 1.0..1.3_f64, 1.0..8.0_f64],
        prop_oneof![Just(1.0), 0.0..1.0_f64],
        prop_oneof![Just(1.0), 0.0..1.0_f64],
    );
    let recovery = prop_oneof![Just(Recovery::GoBackN), Just(Recovery::Selective)];
    let worse = (-1.0..2.5_f64, 0.0..0.05_f64, 0.0..0.01_f64, recovery);
    (worse, better).prop_map(|((exponent, latency, loss, recovery), better)| {
        let bandwidth = 1e9 * 10_f64.powf(exponent);
        let worse = Link { bandwidth, latency, loss, recovery, ..job(16).sites.link };
        let improved = Link {
            bandwidth: worse.bandwidth * better.0,
            latency: worse.latency * better.1,
            loss: worse.loss * better.2,
            ..worse.clone()
        };
        [worse, improved]
    })
}

fn parts(iteration: &Iteration) -> [f64; 6] {
    [
        iteration.compute,
        iteration.recompute,
        iteration.inside,
        iteration.across,
        iteration.bubble,
        iteration.optimizer,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// For each plan, so also for the best one.
    #[test]
    fn better_links_never_make_a_plan_slower_and_parts_add_up(
        at in 0_usize..7680,
        experts in any::<bool>(),
        batch in prop_oneof![Just(64_u32), Just(16), Just(32)],
        [worse, improved] in links(),
    ) {
        let mut job = any_job(experts, batch);
        let plan = plan_of(&job, at);
        let mut seconds = [0.0; 2];
        for (link, seconds) in [worse, improved].into_iter().zip(&mut seconds) {
            job.sites.link = link;
            let Ok(iteration) = Evaluator::new(&job).evaluate(&plan) else { return Ok(()) };
            let sum: f64 = parts(&iteration).iter().sum();
            prop_assert!((sum / iteration.seconds - 1.0).abs() < 1e-9, "{plan}: {iteration:?}");
            prop_assert!(
                parts(&iteration).iter().all(|part| *part >= 0.0 && part.is_sign_positive()),
                "{plan}: {iteration:?}"
            );
            *seconds = iteration.seconds;
        }
        prop_assert!(seconds[1] <= seconds[0] * (1.0 + 1e-12), "{plan}: {seconds:?}");
    }
}

/// Schedules that are made for a slow border, over rates close to each other: what transfers take from
/// computation changes how long stages compute, which must not change the orders that are tried.
#[test]
fn times_fall_with_each_step_of_bandwidth() {
    let mut job = any_job(false, 32);
    for at in (0..7680).filter(|at| at % 5 == 0 && at / 5 % 4 < 3 && at / 160 % 2 == 0) {
        let plan = plan_of(&job, at);
        if !matches!(plan.schedule, Schedule::UpDown(_) | Schedule::Wave(_)) || plan.pipeline < 4 {
            continue;
        }
        let mut before = f64::INFINITY;
        for step in 0..60 {
            job.sites.link.bandwidth = 1e9 * 1.08_f64.powi(step);
            let Ok(seconds) = Evaluator::new(&job).seconds(&plan) else { break };
            assert!(seconds <= before * (1.0 + 1e-12), "{plan}: {before} {seconds} at step {step}");
            before = seconds;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn better_links_never_make_the_best_plan_slower(
        experts in any::<bool>(),
        [worse, improved] in links(),
    ) {
        let mut job = any_job(experts, 32);
        let space = Space {
            tensor: vec![1],
            pipeline: vec![1, 4, 8],
            micro_batch: vec![1],
            expert: vec![1, 2],
            recompute: vec![Recompute::None],
            boundary: vec![Boundary::Data, Boundary::Pipeline, Boundary::Expert],
            ..Space::default()
        };
        let [before, after] = [worse, improved].map(|link| {
            job.sites.link = link;
            find(&job, &space, 1, 1).plans.remove(0)
        });
        let slower = after.iteration.seconds / before.iteration.seconds - 1.0;
        prop_assert!(slower <= 1e-12, "{slower}: {} {}", before.plan, after.plan);
    }
}

/// Layers of a plan are those of the model, and degrees that nobody can have are errors.
#[test]
fn plans_that_make_no_sense_are_errors() {
    let job = any_job(false, 32);
    let plan = Plan { layers: vec![16, 16], ..plan_of(&job, 0) };
    assert!(Evaluator::new(&job).seconds(&plan).is_ok(), "{plan}");
    for layers in [vec![16, 15], vec![32], vec![u32::MAX, 16]] {
        let wrong = Plan { layers, ..plan.clone() };
        let error = Evaluator::new(&job).seconds(&wrong).unwrap_err();
        assert!(matches!(error, Infeasible::Layers { .. }), "{error}");
        assert!(error.to_string().contains("not 32 in 2"), "{error}");
    }
    let many = u32::MAX;
    let wrong = Plan { tensor: many, pipeline: many, data: many, context: many, ..plan };
    let error = Evaluator::new(&job).seconds(&wrong).unwrap_err();
    assert!(matches!(error, Infeasible::Gpus { .. }), "{error}");
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
        // All replicas and stages share the link: half of the bytes in each direction.
        let wire = job.wire(&plan).unwrap();
        let link = total / 2.0 / wire.bandwidth + wire.latency;
        let alone = traffic::seconds(&job, &plan, &flows).unwrap();
        assert!((alone / link - 1.0).abs() < 1e-9, "{plan}: {alone} instead of {link}");
        assert_eq!(traffic::seconds(&job, &plan, &[]), Ok(0.0));
        let matrix = traffic::connection_matrix(&job, &plan, &flows);
        assert!(matrix.starts_with(&format!("Nodes 16\nConnections {}\n", flows.len())));
        assert_eq!(matrix.lines().count(), 2 + flows.len());
        // Hosts of the first site come first, so each flow goes to the other half.
        for line in matrix.lines().skip(2) {
            let (from, to) = line.split_once(' ').unwrap().0.split_once("->").unwrap();
            let [from, to] = [from, to].map(|host| host.parse::<u32>().unwrap() < half);
            assert_ne!(from, to, "{plan}: {line}");
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// FSDP gathers layers in as many bytes as the model says, embedding and output in two, and scatters
/// gradients of two bytes.
#[test]
fn gathers_in_fp8_send_half_as_much() {
    let mut job = job(16);
    (job.model.precision, job.model.gather_bytes) = (Precision::Fp8, 1);
    let plan = Plan { sharding: Sharding::Fsdp, ..plan_of(&job, 1) };
    let plan = Plan { pipeline: 1, data: 16, ..plan };
    let flows = traffic::flows(&job, &plan).unwrap();
    let ends = 2.0 * f64::from(job.model.hidden) * f64::from(job.model.vocabulary);
    let layers = job.model.parameters() - ends;
    // Each of four micro-batches: two gathers, one scatter.
    let moved = 4.0 * (2.0 * (layers + 2.0 * ends) + 2.0 * (layers + ends)) * 15.0 / 16.0;
    assert_eq!(flows.len(), 2);
    for flow in flows {
        assert!((flow.bytes as f64 / moved - 1.0).abs() < 1e-9, "{flow:?} {moved}");
    }
    let seconds = |job: &planner::Job| Evaluator::new(job).evaluate(&plan).unwrap();
    let fp8 = seconds(&job);
    job.model.gather_bytes = 2;
    let half = seconds(&job);
    // Nothing but the exchanges is different, and the link is what the time depends on.
    let share = (4.0 * layers + 6.0 * ends) / (6.0 * layers + 6.0 * ends);
    assert_eq!(fp8.compute, half.compute);
    assert!((0.6..0.75).contains(&share) && fp8.across < 0.75 * half.across, "{fp8:?} {half:?}");
}
