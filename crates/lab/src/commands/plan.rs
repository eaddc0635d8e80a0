//! `lab plan`: which plan of training is fastest between data centres.

use std::process::ExitCode;

use planner::Evaluator;
use study::plan::{self, PlanFile, Settings};

use crate::arguments::Output;
use crate::output::{Outcome, Progress, note, print, print_json, write};
use crate::plan_arguments::Plan;

pub(super) fn run(arguments: &Plan, output: Output) -> Outcome {
    let (file, mut job) = PlanFile::load(&arguments.file)?;
    if let Some(directory) = &arguments.network {
        plan::balance::measured(&mut job.balance, directory)?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all = arguments.report.is_some() || output == Output::Json;
    let explain = arguments.explain || all;
    let measured = arguments.measured.clone();
    let settings = Settings { top: arguments.top, threads, explain, sweep: all, measured };
    let progress = Progress::new();
    let outcome = plan::plan(&file, &job, &settings, &|text| progress.report(text));
    drop(progress);
    let outcome = outcome?;
    let best = outcome.found.plans.first().ok_or("no plan was found")?;
    if let Some(path) = &arguments.traffic {
        write(path, plan::traffic_file(path, &job, &best.plan)?.as_bytes())?;
        note(format_args!("traffic between the sites: {}", path.display()));
    }
    if let Some(path) = &arguments.report {
        let spans = Evaluator::new(&job).spans(&best.plan)?;
        write(path, plan::page(&file, &job, &outcome, &spans).as_bytes())?;
        note(format_args!("report: {}", path.display()));
    }
    if output == Output::Json {
        return print_json(&outcome);
    }
    print(plan::table(&outcome))?;
    if arguments.explain {
        print(plan::explanation(&job, &outcome))?;
    }
    Ok(ExitCode::SUCCESS)
}
