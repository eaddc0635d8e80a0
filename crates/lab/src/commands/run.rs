//! `lab run`: runs an experiment; `lab merge` joins its parts.

use std::process::ExitCode;

use experiment::Plan;
use experiment::plan::Estimate;
use study::run;

use super::web::RunPage;
use crate::arguments::{Output, Run};
use crate::output::{Outcome, Progress, built_vtepd, interrupt, print, print_json, word};
use crate::simulation_arguments::Merge;

pub(super) fn run(arguments: &Run, output: Output) -> Outcome {
    if arguments.schema {
        return print_json(&run::schema());
    }
    let file = arguments.file.clone().ok_or("the experiment file is missing")?;
    if arguments.plan {
        return show_plan(&file, arguments.quick, output);
    }
    let vtepd = built_vtepd(arguments.vtepd.as_ref())?;
    let out = arguments.out.clone().ok_or("the directory for the results is missing: --out DIR")?;
    let quick = if arguments.quick { " --quick" } else { "" };
    let deployed = if arguments.deployed { " --deployed" } else { "" };
    let settings = run::Settings {
        command: arguments
            .command
            .clone()
            .unwrap_or_else(|| format!("lab run {} --out DIR{quick}{deployed}", word(&file))),
        file,
        out,
        quick: arguments.quick,
        deployed: arguments.deployed,
        vtepd,
        fabric: arguments.name.clone(),
        shard: arguments.shard,
    };
    super::doctor::before(&settings.out, settings.fabric.as_ref());
    let page = arguments.web.then(RunPage::start).transpose()?;
    let progress = Progress::new();
    let report = |text: &str| {
        page.iter().for_each(|page| page.progress(text));
        progress.report(text)
    };
    let on_event = |event: run::Event<'_>| page.iter().for_each(|page| page.event(&event));
    let outcome = run::run(&settings, &report, &on_event, interrupt());
    drop(progress);
    page.into_iter().for_each(|page| page.end(&settings.out, &outcome));
    show(&outcome?, output)
}

/// Joins the parts of an experiment, or of a simulation.
pub(super) fn merge(arguments: &Merge, output: Output) -> Outcome {
    let Merge { directories, out } = arguments;
    match (&directories[..], out) {
        ([directory], None) => super::sim::merge(directory, output),
        (_, None) => {
            Err("the directory for the joined results of an experiment is missing: --out DIR"
                .into())
        }
        (_, Some(out)) => show(&run::merge(directories, out)?, output),
    }
}

/// Prints the results.
fn show(outcome: &run::Outcome, output: Output) -> Outcome {
    if output == Output::Json {
        return print_json(&serde_json::json!({
            "summary": outcome.summary,
            "headline": outcome.headline,
            "verdicts": outcome.verdicts,
            "report": outcome.report,
        }));
    }
    if let Some(headline) = &outcome.headline {
        print(headline)?;
    }
    outcome.verdicts.iter().try_for_each(print)?;
    print(format_args!("Report: {}", outcome.report.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints how many runs there are and how long they take, or, as JSON, the runs in their order, one
/// a line.
fn show_plan(file: &std::path::Path, quick: bool, output: Output) -> Outcome {
    let experiment = run::read_to_run(file, quick)?;
    if output == Output::Table {
        print(Estimate::of(&experiment))?;
        return Ok(ExitCode::SUCCESS);
    }
    for key in Plan::new(&experiment).turns.iter().flat_map(|turn| &turn.runs) {
        print(serde_json::to_string(key)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
