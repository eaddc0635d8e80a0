//! The planner: an evaluation of a plan by its schedule, and of the rows that vTrain measured; a search.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use planner::plan::Plan;
use planner::search::{plans, search};
use planner::{Evaluator, Job, Space};
use study::plan::PlanFile;

use crate::table::{Better, Figure, Row};

/// GPT-3 with 175 billion parameters on 512 GPUs at two sites.
const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/plans/gpt3-two-sites.toml");
const VTRAIN: &str = include_str!("../../crates/planner/tests/data/vtrain.csv");
const GPT3: &str = "plans of GPT-3 175B on 512 GPUs";

/// Evaluates all plans of the job, and searches. `quick`: every tenth plan.
///
/// # Errors
/// If the job cannot be read, or threads change what is found.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let (_, job) = PlanFile::load(Path::new(JOB))?;
    let space = Space::default();
    let vtrain = vtrain(&job)?;
    let mut rows = vec![row("vTrain", "its measured rows", EVALUATION, Figure::of(vtrain))];
    let mut times = BTreeMap::<String, Vec<f64>>::new();
    let evaluator = Evaluator::new(&job);
    for plan in plans(&job, &space).iter().step_by(if quick { 10 } else { 1 }) {
        if let Some(time) = evaluation(&evaluator, plan)? {
            times.entry(plan.schedule.to_string()).or_default().push(time);
        }
    }
    let all: Vec<f64> = times.values().flatten().copied().collect();
    rows.extend(evaluations("all", &all));
    for (schedule, times) in times {
        rows.extend(evaluations(&schedule, &times));
    }
    let mut found = None;
    for threads in [1, 2] {
        let mut seconds = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            let best = search(&job, &space, 5, threads);
            seconds.push(start.elapsed().as_secs_f64());
            if *found.get_or_insert_with(|| best.clone()) != best {
                return Err("the number of threads changes the result".into());
            }
        }
        let name = format!("search, {threads} threads");
        rows.push(row(GPT3, &name, "seconds", Figure::of(seconds)));
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|most| most.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    let most = Figure::of([most.ok_or("no VmHWM")? / 1024.0]);
    rows.push(row(GPT3, "search", "most memory, MB", most));
    Ok(rows)
}

const EVALUATION: &str = "CPU of an evaluation, µs";
/// In microseconds: an evaluation should take no longer.
const WANTED: f64 = 50.0;

/// The times of the evaluations with a schedule, and how many are too long.
fn evaluations(schedule: &str, times: &[f64]) -> [Row; 2] {
    let long = times.iter().filter(|time| **time > WANTED).count();
    let share = Figure::of([100.0 * long as f64 / times.len().max(1) as f64]);
    [
        row(GPT3, schedule, EVALUATION, Figure::of(times.iter().copied())),
        row(GPT3, schedule, "evaluations above 50 µs, %", share),
    ]
}

/// The CPU time of an evaluation in microseconds. `None` if the plan cannot be laid out.
fn evaluation(evaluator: &Evaluator<'_>, plan: &Plan) -> Result<Option<f64>, Box<dyn Error>> {
    // Once without the clock: orders of operations are kept between evaluations.
    if evaluator.seconds(plan).is_err() {
        return Ok(None);
    }
    let start = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    let _ = evaluator.seconds(plan);
    let time: Duration = (clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)? - start).into();
    Ok(Some(1e6 * time.as_secs_f64()))
}

/// The same of each row that vTrain measured: one site, 1F1B. `like`: a job on the same machines.
fn vtrain(like: &Job) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut lines = VTRAIN.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap_or_default();
    let mut times = Vec::new();
    for line in lines {
        let number = |name: &str| -> Result<u32, Box<dyn Error>> {
            let at = header.iter().position(|known| *known == name).ok_or("no such column")?;
            Ok(line.get(at).ok_or("a short line")?.parse()?)
        };
        let mut job = like.clone();
        job.model.hidden = number("hidden")?;
        job.model.heads = number("heads")?;
        job.model.layers = number("layers")?;
        job.sites.gpus = vec![number("gpus")?];
        job.batch = number("global_batch")?;
        // Whether a row fits is not the question: it was measured.
        job.machine.memory = f64::INFINITY;
        let technology = job.balance.first().ok_or("no technology")?.technology;
        let plan = serde_json::from_value(serde_json::json!({
            "tensor": number("tensor")?, "pipeline": number("pipeline")?, "data": number("data")?,
            "micro-batch": number("micro_batch")?, "schedule": "1f1b", "sharding": "ddp",
            "recompute": "full", "sequence-parallel": false, "boundary": "data",
            "technology": technology,
        }))?;
        times.extend(evaluation(&Evaluator::new(&job), &plan)?);
    }
    Ok(times)
}

fn row(bench: &str, case: &str, unit: &str, figure: Figure) -> Row {
    Row::beside(bench, case.to_owned(), unit, figure, None, Better::Lower)
}
