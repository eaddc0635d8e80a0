//! Runs the tests of the workspace. `tests/run` calls it when everything is built.
//!
//! Root tests run in a process each, as many at once as the machine allows: namespaces isolate
//! them. The commands of `--beside` run beside them. Together they keep all cores busy.
//! Then the tests marked `#[root_test(alone)]` run, each alone, and at last the commands of `--after`.
//! These leave half of the time, which what only computes gets: the commands of `--idle` and the other
//! test targets. A test that failed gets a second try with nothing beside it. It counts as passed
//! then, but the end of the output and the history name it.
//!
//! Logs and reports are kept in `target/suite`.

mod backlog;
mod job;
mod outcome;
mod report;
mod schedule;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use job::{Job, Kind};
use outcome::Outcome;

/// More failures than this have a cause that a second try does not mend.
const SECOND_TRIES: usize = 8;

#[derive(Debug, Parser)]
#[command(
    about = "Runs the tests of the workspace, many at once.",
    after_help = "Example: suite q22"
)]
struct Arguments {
    /// Root tests at once [default: three for each CPU, at most one for each GiB of memory]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Only test targets with this name, such as `system`
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Only the tests that are marked `#[ignore]`
    #[arg(long)]
    ignored: bool,
    /// Also run a shell command beside the tests; several run one after another
    #[arg(long, value_name = "NAME=COMMAND")]
    beside: Vec<String>,
    /// Also run a shell command after the tests; several run one after another
    #[arg(long, value_name = "NAME=COMMAND")]
    after: Vec<String>,
    /// Also run a shell command while tests run alone and after them, when a core is idle
    #[arg(long, value_name = "NAME=COMMAND")]
    idle: Vec<String>,
    /// Only tests whose name contains this
    filter: Option<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Error> {
    let start = Instant::now();
    let folder = folder()?;
    let targets = targets::built(&arguments.target)?;
    let command = |text: &String| {
        let (name, command) = text.split_once('=').ok_or(Error::Command)?;
        Ok(Job::command(name, command))
    };
    let commands: Vec<Job> = arguments.beside.iter().map(command).collect::<Result<_, Error>>()?;
    let after: Vec<Job> = arguments.after.iter().map(command).collect::<Result<_, Error>>()?;
    let mut idle: Vec<Job> = arguments.idle.iter().map(command).collect::<Result<_, Error>>()?;
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    for target in &targets {
        for job in target.jobs(arguments.filter.as_deref(), arguments.ignored)? {
            match job.kind {
                Kind::Alone => alone.push(job),
                Kind::Others => idle.push(job),
                Kind::Root | Kind::Command => together.push(job),
            }
        }
    }
    let at_once = arguments.jobs.unwrap_or_else(schedule::at_once);
    let [roots, alones, computing] = [&together, &alone, &idle].map(Vec::len);
    println!("{roots} jobs, {at_once} at once, then {alones} alone and {computing} that compute");
    let signals = schedule::Signals::new()?;
    let _backlog = backlog::Backlog::raise();
    let mut done = std::thread::scope(|scope| {
        let commands = scope.spawn(|| schedule::run(commands, 1, &folder, &signals));
        let mut done = schedule::run(together, at_once, &folder, &signals)?;
        done.extend(commands.join().unwrap_or(Err(Error::Interrupted))?);
        Ok::<_, Error>(done)
    })?;
    let rest = std::thread::scope(|scope| {
        let idle = idle.into_iter().map(Job::when_idle).collect();
        let idle = scope.spawn(|| schedule::run(idle, schedule::half(), &folder, &signals));
        let mut rest = schedule::run(alone, 1, &folder, &signals)?;
        signals.raise()?;
        rest.extend(schedule::run(after, 1, &folder, &signals)?);
        rest.extend(idle.join().unwrap_or(Err(Error::Interrupted))?);
        Ok::<_, Error>(rest)
    })?;
    done.extend(rest);
    try_again(&mut done, &folder, &signals)?;
    let report = report::Report::new(&done, start.elapsed());
    report.print();
    report.write(&folder)?;
    Ok(report.is_passed())
}

/// Repeats what failed, with nothing beside it, if that is not much.
fn try_again(
    done: &mut [(Job, Outcome)],
    folder: &std::path::Path,
    signals: &schedule::Signals,
) -> Result<(), Error> {
    let is_failed = |outcome: &Outcome| !outcome.is_passed();
    if done.iter().filter(|(_, outcome)| is_failed(outcome)).count() > SECOND_TRIES {
        return Ok(());
    }
    for (job, outcome) in done.iter_mut().filter(|(_, outcome)| is_failed(outcome)) {
        println!("once more, alone: {}", job.name);
        let mut again = schedule::run(vec![job.clone()], 1, folder, signals)?;
        if let Some((_, mut second)) = again.pop() {
            second.first = Some(Box::new(std::mem::take(outcome)));
            *outcome = second;
        }
    }
    Ok(())
}

/// `target/suite`, beside the folder of this program.
fn folder() -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or(Error::Folder)?;
    let folder = target.join("suite");
    std::fs::create_dir_all(folder.join("logs"))?;
    Ok(folder)
}

/// Why no tests ran.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// An option of the command line.
    #[error("--beside, --after and --idle need NAME=COMMAND")]
    Command,
    /// The place of the program.
    #[error("this program is in no target folder of cargo")]
    Folder,
    /// A file, process or thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What cargo printed.
    #[error("cargo printed something else than JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The tests do not compile.
    #[error("cargo test --no-run failed: mend what it reports above")]
    Build,
    /// A test program does not tell its tests.
    #[error("{} --list failed", .0.display())]
    List(PathBuf),
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}
