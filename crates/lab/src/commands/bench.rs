//! `lab bench`: measures the costs of vtepd on this machine, in memory and over veth links, in
//! comparison with kernel VXLAN.

mod report;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fabric::progress::OnProgress;
use frames::clock::{Cold, hot};
use frames::leaf::Leaf;
use frames::stage::Stage;
use testbed::echo::Echo;
use testbed::measurement::Case;
use testbed::sender::Input;
use testbed::stream::{Towards, throughput};
use testbed::table::{Better, Figure, Row, machine};
use testbed::{Daemon, Datapath, Measurement, Testbed, Traffic};

use crate::arguments::{Bench, Output};
use crate::output::{Outcome, Progress, interrupt, print, print_json};
use report::{Compared, Figures, VTEPD, What, check_interrupt};

const LENGTHS: [usize; 2] = [64, 1082];
const QUEUE_PAIRS: u32 = 64;
/// Number of batches whose frames are in no cache when they are processed.
const COLD: usize = 64;
const SAMPLES: usize = 20;
/// Without `--rounds`, rounds are repeated for this time, within the limits below.
const TIME_BUDGET: Duration = Duration::from_secs(50);
const MIN_ROUNDS: u8 = 2;
const MAX_ROUNDS: u8 = 9;

/// Measures, and prints the results. An interrupted run ends after the current measurement and
/// removes everything that it created.
pub(super) fn run(arguments: &Bench, output: Output) -> Outcome {
    let progress = Progress::new();
    let compared = measure(arguments, &|text| progress.report(text))?;
    drop(progress);
    if output == Output::Json {
        return print_json(&compared);
    }
    let text = if arguments.brief { compared.brief() } else { compared.text() };
    print(text?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn measure(bench: &Bench, report: OnProgress) -> Result<Compared, Box<dyn Error>> {
    let began = Instant::now();
    testbed::ready()?;
    let vtepd = program(bench.vtepd.as_deref())?;
    let mut in_memory_rows = Vec::new();
    if !bench.brief {
        report("in memory: what one frame costs inside vtepd")?;
        in_memory_rows = in_memory()?;
    }
    let (figures, rounds) = beside_kernel(bench, &vtepd, began, report)?;
    Ok(Compared::of(machine(), rounds, in_memory_rows, figures)?)
}

/// The path of vtepd.
fn program(named: Option<&Path>) -> Result<PathBuf, String> {
    let missing = |text: String| format!("{text}; say where it is with --vtepd PATH");
    if let Some(path) = named {
        return path
            .is_file()
            .then(|| path.to_owned())
            .ok_or_else(|| missing(format!("there is no vtepd at {}", path.display())));
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("vtepd"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|folder| folder.join("vtepd"));
    beside
        .into_iter()
        .chain(in_path)
        .find(|path| path.is_file())
        .ok_or_else(|| missing("vtepd is neither beside lab nor in $PATH".to_owned()))
}

/// Costs of one frame inside the worker in nanoseconds, with a warm and with a cold cache.
fn in_memory() -> Result<Vec<Row>, Box<dyn Error>> {
    let (leaf, mut cold, mut rows) = (Leaf::default(), Cold::new(), Vec::new());
    for stage in [Stage::Encapsulate, Stage::Decapsulate] {
        for length in LENGTHS {
            let mut run = stage.prepare(&leaf, length, 1 + COLD)?;
            let hot = hot(&mut |_| run(0), SAMPLES);
            let cold = cold.frames(&mut run, 1 + COLD, SAMPLES / 4);
            for (heat, figure) in [("in the cache", hot), ("in no cache", cold)] {
                let case = format!("{} {length} B, {heat}", stage.name());
                let row = Row::beside(
                    "in memory",
                    case,
                    "ns/frame",
                    Figure::of([figure]),
                    None,
                    Better::Lower,
                );
                // The figure is one for all samples, so it has no range.
                rows.push(Row { range: None, ..row });
            }
        }
    }
    Ok(rows)
}

/// Measures vtepd and kernel VXLAN in alternation. Returns the figures and the number of rounds.
fn beside_kernel(
    bench: &Bench,
    vtepd: &Path,
    began: Instant,
    report: OnProgress,
) -> Result<(Figures, u8), Box<dyn Error>> {
    let stop = interrupt();
    let testbed = Testbed::new("bench")?;
    let mut figures = Figures::default();
    let datapaths = [(Datapath::SenderOnly, "nobody"), (Datapath::Kernel, "kernel VXLAN")]
        .into_iter()
        .chain(VTEPD);
    let mut longest = Duration::ZERO;
    for round in 1.. {
        let start = Instant::now();
        for (datapath, name) in datapaths.clone() {
            match bench.rounds {
                Some(rounds) => report(&format!("round {round} of {rounds}: {name}"))?,
                None => report(&format!("round {round}: {name}"))?,
            }
            let daemon = match datapath.start(&testbed, vtepd) {
                Ok(daemon) => daemon,
                Err(error) => {
                    check_interrupt(stop)?;
                    figures.leave_out(datapath, None, &error);
                    continue;
                }
            };
            measure_datapath(bench, &testbed, datapath, daemon.as_ref(), stop, &mut figures)?;
            daemon.map(Daemon::stop).transpose()?;
        }
        longest = longest.max(start.elapsed());
        if is_enough(bench.rounds, round, began.elapsed() + longest) {
            return Ok((figures, round));
        }
    }
    Err("there are no rounds".into())
}

/// Whether this number of rounds is enough. `next` is the time since the start at which one more
/// round would end.
fn is_enough(wanted: Option<u8>, rounds: u8, next: Duration) -> bool {
    let in_time = rounds >= MAX_ROUNDS || (rounds >= MIN_ROUNDS && next > TIME_BUDGET);
    wanted.map_or(in_time, |wanted| rounds >= wanted)
}

fn measure_datapath(
    bench: &Bench,
    testbed: &Testbed,
    datapath: Datapath,
    daemon: Option<&Daemon>,
    stop: &AtomicBool,
    figures: &mut Figures,
) -> Result<(), testbed::Error> {
    let time = Duration::from_millis(bench.time);
    // Without a datapath, only the sender uses a core.
    let is_short = bench.brief || datapath == Datapath::SenderOnly;
    let cores = if is_short { 1 } else { testbed::cpu::count().min(2) };
    for input in [Input::Host, Input::Singles] {
        // The port matters to encapsulation only.
        if input == Input::Singles && datapath == Datapath::CHOSEN_PORT {
            continue;
        }
        let lengths = if bench.brief { &LENGTHS[1..] } else { &LENGTHS[..] };
        for &length in lengths {
            for cores in 1..=cores {
                let traffic = Traffic { input, length, queue_pairs: QUEUE_PAIRS, bursts: false };
                figures.take(stop, datapath, [What::Frames { input, length, cores }], || {
                    let measured = Measurement::take(
                        testbed,
                        Case { traffic, cores, busy: false },
                        time,
                        datapath,
                        daemon,
                    )?;
                    Ok([if datapath == Datapath::SenderOnly {
                        measured.offered
                    } else {
                        measured.rate
                    }])
                })?;
            }
        }
    }
    if datapath == Datapath::SenderOnly {
        return Ok(());
    }
    figures.take(stop, datapath, [What::RoundTrip, What::LongestRoundTrips], || {
        let echo = Echo::take(testbed, time, 1, daemon)?;
        Ok([echo.p50, echo.p99])
    })?;
    if bench.brief {
        return Ok(());
    }
    for (towards, what) in [(Towards::Far, What::Sent), (Towards::Host, What::Received)] {
        figures
            .take(stop, datapath, [what], || Ok([throughput(testbed, towards, time, daemon)?]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_missed() {
        let error = program(Some(Path::new("/no/such/vtepd"))).unwrap_err();
        assert_eq!(error, "there is no vtepd at /no/such/vtepd; say where it is with --vtepd PATH");
    }

    #[test]
    fn there_are_as_many_rounds_as_there_is_time_for() {
        let [soon, late] = [40, 51].map(Duration::from_secs);
        assert!(is_enough(Some(1), 1, soon) && !is_enough(Some(100), 99, late), "as told");
        assert!(!is_enough(None, 1, late) && is_enough(None, 2, late), "two at least");
        assert!(!is_enough(None, 8, soon) && is_enough(None, 9, soon), "nine at most");
    }
}
