//! Runs benchmarks and reports their figures.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use serde_json::Value;
use vtepd_benches::rows::{Better, Report, Row};

const EXAMPLE: &str = "Example:\n  benches/run micro --quick --json micro.json";

/// Measures what vtepd costs.
#[derive(Debug, Parser)]
#[command(name = "benches/run", bin_name = "benches/run", after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// What one frame costs inside the worker, in memory.
    #[command(after_help = EXAMPLE)]
    Micro {
        /// Half a second for each figure instead of eight: rough figures.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What knowing a large fabric costs, and how fast its changes are followed. Needs root, for network namespaces.
    #[command(after_help = "Example:\n  sudo benches/run state --json state.json")]
    State {
        /// Repeat less; the sizes stay.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} could not be read or written: {1}")]
    File(PathBuf, std::io::Error),
    #[error("{0} is not what criterion writes")]
    Form(PathBuf),
    #[error("cargo could not be started: {0}")]
    Cargo(std::io::Error),
    #[error("cargo bench failed")]
    Failed,
    #[error("{0}")]
    State(Box<dyn std::error::Error>),
}

fn main() -> ExitCode {
    let (rows, json) = match Arguments::parse().bench {
        Bench::Micro { quick, json } => (micro(quick), json),
        Bench::State { quick, json } => (vtepd_benches::state::run(quick).map_err(Error::State), json),
    };
    match rows.and_then(|rows| report(rows, json.as_deref())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benches/run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn micro(quick: bool) -> Result<Vec<Row>, Error> {
    let results = std::env::temp_dir().join(format!("vtepd-benches-{}", std::process::id()));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["bench", "--quiet", "--package", "vtepd-benches", "--bench", "micro", "--", "--noplot"]);
    if quick {
        command.args(["--warm-up-time", "0.2", "--measurement-time", "0.3"]);
    }
    let ran = command.env("CRITERION_HOME", &results).status().map_err(Error::Cargo);
    let rows = match ran {
        Ok(status) if status.success() => rows(&results),
        Ok(_) => Err(Error::Failed),
        Err(error) => Err(error),
    };
    // Whatever remains of it is in the way of nobody.
    let _ = std::fs::remove_dir_all(&results);
    rows
}

/// Prints the figures, and writes them where that was asked for.
fn report(rows: Vec<Row>, json: Option<&Path>) -> Result<(), Error> {
    let report = Report { machine: machine(), rows };
    print!("\n{}", report.table());
    if let Some(path) = json {
        let mut text = serde_json::to_string_pretty(&report).unwrap_or_default();
        text.push('\n');
        std::fs::write(path, text).map_err(|error| Error::File(path.to_owned(), error))?;
    }
    Ok(())
}

/// Reads what criterion has left: `GROUP/CASE/new/{benchmark,estimates}.json`.
fn rows(results: &Path) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for group in ["dissect", "decide", "lookup", "encapsulate", "decapsulate"] {
        let path = results.join(group);
        let cases = std::fs::read_dir(&path).map_err(|error| Error::File(path.clone(), error))?;
        let mut of_group = Vec::new();
        for case in cases {
            let path = case.map_err(|error| Error::File(path.clone(), error))?.path().join("new");
            if path.is_dir() {
                of_group.push(row(&path)?);
            }
        }
        // By length where there is one, then by name.
        of_group.sort_by_key(|row| {
            let length = row.case.split(' ').next().and_then(|word| word.parse::<u32>().ok());
            (length, row.case.clone())
        });
        rows.extend(of_group);
    }
    Ok(rows)
}

fn row(path: &Path) -> Result<Row, Error> {
    let read = |name: &str| {
        let path = path.join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| Error::File(path.clone(), error))?;
        serde_json::from_str::<Value>(&text).map_err(|_| Error::Form(path))
    };
    let form = || Error::Form(path.to_owned());
    let (benchmark, estimates) = (read("benchmark.json")?, read("estimates.json")?);
    let text = |pointer: &str| benchmark.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let number = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
    let bench = text("/group_id").ok_or_else(form)?;
    let case = text("/function_id").or_else(|| text("/value_str")).ok_or_else(form)?;
    let nanoseconds = number(&estimates, "/median/point_estimate").ok_or_else(form)?;
    let frames = number(&benchmark, "/throughput/Elements").ok_or_else(form)?;
    let target = match (bench.as_str(), case.as_str()) {
        ("encapsulate", "64 B" | "1082 B") => Some(8.0),
        ("encapsulate", "64 B cold") => Some(20.0),
        _ => None,
    };
    Ok(Row {
        bench,
        case,
        unit: "ns/frame".to_owned(),
        vtepd: nanoseconds / frames,
        kernel: None,
        ratio: None,
        target,
        better: Better::Lower,
    })
}

/// Processor, number of CPUs and kernel.
fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = nix::sys::utsname::uname();
    let release = kernel.as_ref().map_or("?".into(), |kernel| kernel.release().to_string_lossy());
    format!("{}, {count} CPUs, Linux {release}", model.unwrap_or("unknown processor"))
}
