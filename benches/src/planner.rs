//! The planner: an evaluation of a plan by its schedule, and a search.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::plan::PlanFile;
use nix::time::{ClockId, clock_gettime};
use planner::search::{plans, search};
use planner::{Evaluator, Space};

use crate::table::{Better, Figure, Row};

/// GPT-3 with 175 billion parameters on 512 GPUs at two sites.
const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/plans/gpt3-two-sites.toml");

/// Evaluates all plans of the job, and searches. `quick`: every tenth plan.
///
/// # Errors
/// If the job cannot be read, or threads change what is found.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let (_, job) = PlanFile::load(Path::new(JOB))?;
    let space = Space::default();
    let mut times = BTreeMap::<String, Vec<f64>>::new();
    let mut evaluator = Evaluator::new(&job);
    for plan in plans(&job, &space).iter().step_by(if quick { 10 } else { 1 }) {
        // Once without the clock: orders of operations are kept between evaluations.
        if evaluator.seconds(plan).is_ok() {
            let start = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
            let _ = evaluator.seconds(plan);
            let time: Duration = (clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)? - start).into();
            times.entry(plan.schedule.to_string()).or_default().push(1e6 * time.as_secs_f64());
        }
    }
    let all = Figure::of(times.values().flatten().copied());
    let mut rows = vec![row("all plans", "CPU of an evaluation, µs", all)];
    for (schedule, times) in times {
        rows.push(row(&schedule, "CPU of an evaluation, µs", Figure::of(times)));
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
        rows.push(row(&name, "seconds", Figure::of(seconds)));
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|most| most.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    rows.push(row("search", "most memory, MB", Figure::of([most.ok_or("no VmHWM")? / 1024.0])));
    Ok(rows)
}

fn row(name: &str, unit: &str, figure: Figure) -> Row {
    Row::beside(
        "plans of GPT-3 175B on 512 GPUs",
        name.to_owned(),
        unit,
        figure,
        None,
        Better::Lower,
    )
}
