//! Runs benchmarks and reports their figures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use frames::counting::Counting;
use vtepd_benches::plot;
use vtepd_benches::system::Part;
use vtepd_benches::table::{Report, Row, machine};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
        /// Repeat less: rough figures.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What one frame costs inside the worker as tables grow, in memory.
    #[command(after_help = "Example:\n  benches/run scale --json scale.json")]
    Scale {
        /// Repeat less; the sizes stay.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// What knowing a large fabric costs, and how fast its changes are followed. Needs root, for
    /// network namespaces.
    #[command(after_help = "Example:\n  sudo benches/run state --json state.json")]
    State {
        /// Repeat less; the sizes stay.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// How many frames a second RoCE endpoints of `lab` send and receive on one CPU. Needs root, for
    /// network namespaces.
    #[command(after_help = "Example:\n  sudo benches/run roce --json roce.json")]
    Roce {
        /// Fewer and shorter turns.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// The simulator of `lab sim`: the cases that htsim ran, with its figures beside ours, and the CPU
    /// time of runs.
    #[command(after_help = "Example:\n  benches/run sim --json sim.json")]
    Sim {
        /// No fabric of 8,192 hosts.
        #[arg(long)]
        quick: bool,
        /// A program `htsim_uec` of yours: also run it on the same traffic, in turns with `lab sim`.
        #[arg(long, value_name = "PATH")]
        htsim: Option<PathBuf>,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// The planner of `lab plan`: an evaluation of a plan, and a search.
    #[command(after_help = "Example:\n  benches/run planner --json planner.json")]
    Planner {
        /// Every tenth plan.
        #[arg(long)]
        quick: bool,
        /// Also write the figures to this file, and a drawing of them beside it.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// vtepd beside kernel VXLAN, and Open vSwitch and testpmd where they are installed, over veth
    /// links, in turns. Needs root, for network namespaces.
    #[command(after_help = "Example:\n  sudo benches/run system --quick")]
    System {
        /// Fewer and shorter turns.
        #[arg(long)]
        quick: bool,
        /// How often each is measured, in turns: more narrow the figures down [default: 5, with
        /// --quick 3]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
        rounds: Option<u8>,
        /// Only datapaths whose name contains this, beside kernel VXLAN; may be repeated
        #[arg(long, value_name = "NAME")]
        datapath: Vec<String>,
        /// Only this part; may be repeated [default: all but profile, with --quick nor standalone]
        #[arg(long, value_enum, value_name = "PART")]
        part: Vec<Part>,
        /// Also write the figures to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// A benchmark failed, or its figures could not be written.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} could not be written: {1}")]
    File(PathBuf, std::io::Error),
    #[error("{0}")]
    Bench(Box<dyn std::error::Error>),
}

/// The simulator, first beside a program of the user, if there is one.
fn simulator(quick: bool, htsim: Option<&Path>) -> Result<Vec<Row>, Error> {
    let beside = htsim.map(|program| vtepd_benches::htsim::run(program, quick));
    let mut rows = beside.transpose().map_err(Error::Bench)?.unwrap_or_default();
    rows.extend(vtepd_benches::sim::run(quick).map_err(Error::Bench)?);
    Ok(rows)
}

fn main() -> ExitCode {
    let (rows, json) = match Arguments::parse().bench {
        Bench::Micro { quick, json } => {
            (vtepd_benches::micro::run(quick).map_err(Error::Bench), json)
        }
        Bench::Scale { quick, json } => {
            (vtepd_benches::scale::run(quick).map_err(Error::Bench), json)
        }
        Bench::State { quick, json } => {
            (vtepd_benches::state::run(quick).map_err(Error::Bench), json)
        }
        Bench::Roce { quick, json } => {
            (vtepd_benches::roce::run(quick).map_err(Error::Bench), json)
        }
        Bench::Sim { quick, htsim, json } => (simulator(quick, htsim.as_deref()), json),
        Bench::Planner { quick, json } => {
            (vtepd_benches::planner::run(quick).map_err(Error::Bench), json)
        }
        Bench::System { quick, rounds, part, datapath, json } => {
            let rounds = rounds.unwrap_or(if quick { 3 } else { 5 }).into();
            (vtepd_benches::system::run(quick, rounds, &part, datapath).map_err(Error::Bench), json)
        }
    };
    match rows.and_then(|rows| report(rows, json.as_deref())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benches/run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The commit of the checkout, with the suffix `-dirty` if files were changed. `None` outside a
/// checkout.
fn commit() -> Option<String> {
    let output = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output()
        .ok()?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}

/// Prints the figures, and writes them to files if requested.
fn report(rows: Vec<Row>, json: Option<&Path>) -> Result<(), Error> {
    let report = Report { machine: machine(), commit: commit(), rows };
    print!("\n{}", report.table());
    if let Some(path) = json {
        let mut text = serde_json::to_string_pretty(&report).unwrap_or_default();
        text.push('\n');
        for (path, text) in
            [(path.to_owned(), text), (path.with_extension("svg"), plot::svg(&report))]
        {
            std::fs::write(&path, text).map_err(|error| Error::File(path, error))?;
        }
    }
    Ok(())
}
