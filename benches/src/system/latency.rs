//! Round trips and TCP between hosts through the leaf, and the CPU time of an idle vtepd.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use testbed::echo::Echo;
use testbed::sender::Input;
use testbed::stream::{Towards, throughput};
use testbed::{Daemon, Datapath, Sender, Testbed, Traffic};

use super::{Failure, Options};
use crate::table::{Better, Figure, Row};

const DATAPATHS: [Datapath; 7] = [
    Datapath::Kernel,
    Datapath::KernelWithoutNf,
    Datapath::USERSPACE,
    Datapath::NO_BYPASS,
    Datapath::NO_GSO,
    Datapath::Offload,
    Datapath::CHOSEN_PORT,
];
const TOWARDS: [(Towards, &str); 2] =
    [(Towards::Far, "encapsulated"), (Towards::Host, "decapsulated")];
/// From the leaf to a peer with the same datapath.
const BETWEEN: &str = "between two that forward alike";
/// The policy that probes.
const PROBING: Datapath = Datapath::Pinned { programs: true };
/// How long to wait before vtepd counts as idle, and how long to measure it then.
const SETTLE: Duration = Duration::from_secs(2);
/// How often a frame is sent so that a queue pair stays in use.
const KEEP: Duration = Duration::from_millis(50);
/// The length in bytes of such a frame, and with the outer headers.
const LENGTH: usize = 64;
const ENCAPSULATED: u64 = LENGTH as u64 + 50;
/// How long vtepd may take to find its paths.
const PROBED: Duration = Duration::from_secs(10);

/// Figures by datapath and name.
type Measurements = BTreeMap<(Datapath, String), Vec<f64>>;

pub(super) fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let testbed = Testbed::new("")?;
    let time = Duration::from_millis(if options.quick { 300 } else { 2000 });
    let mut measurements = Measurements::new();
    let has_switch = testbed.set_bridge_nf(true)?;
    let datapaths: Vec<Datapath> = DATAPATHS
        .into_iter()
        .filter(|datapath| options.includes(*datapath))
        .filter(|datapath| has_switch || *datapath != Datapath::KernelWithoutNf)
        .collect();
    let mut quiet = Vec::new();
    for round in 1..=options.rounds {
        for &datapath in &datapaths {
            eprintln!("round {round} of {}: {datapath}, round trips and TCP", options.rounds);
            let daemon = datapath.start(&testbed, &options.vtepd)?;
            let mut note = |what: String, figure: f64| {
                measurements.entry((datapath, what)).or_default().push(figure)
            };
            for (cores, on) in [(1, "all on 1 core"), (2, "2 cores")] {
                options.check_interrupt()?;
                let echo = Echo::take(&testbed, time, cores, daemon.as_ref())?;
                note_echo(&mut note, on, echo);
            }
            for (towards, name) in TOWARDS {
                note(name.to_owned(), throughput(&testbed, towards, time, daemon.as_ref())?);
            }
            let peer = datapath.start_at_peer(&testbed, &options.vtepd)?;
            note(BETWEEN.to_owned(), throughput(&testbed, Towards::Far, time, daemon.as_ref())?);
            let echo = Echo::take(&testbed, time, 1, daemon.as_ref())?;
            note_echo(&mut note, &format!("{BETWEEN}, all on 1 core"), echo);
            peer.map(testbed::Daemon::stop).transpose()?;
            if let Some(daemon) = &daemon
                && datapath == Datapath::USERSPACE
            {
                std::thread::sleep(SETTLE);
                let before = daemon.cpu()?;
                std::thread::sleep(SETTLE);
                quiet
                    .push(daemon.cpu()?.saturating_sub(before) as f64 / 1e3 / SETTLE.as_secs_f64());
            }
            daemon.map(testbed::Daemon::stop).transpose()?;
        }
    }
    let mut rows = Vec::new();
    let of = |datapath: Datapath, what: &String| {
        Figure::of(measurements.get(&(datapath, what.clone())).into_iter().flatten().copied())
    };
    let names: Vec<&String> = measurements
        .keys()
        .filter(|(datapath, _)| *datapath == Datapath::Kernel)
        .map(|(_, what)| what)
        .collect();
    for what in names {
        for &datapath in datapaths.iter().filter(|datapath| **datapath != Datapath::Kernel) {
            let tcp = what == BETWEEN || TOWARDS.iter().any(|(_, name)| name == what);
            let (bench, unit, better) = match what.as_str() {
                _ if tcp => ("TCP, MTU 1500", "Gbit/s", Better::Higher),
                lost if lost.ends_with("lost") => ("round trip", "datagrams", Better::Lower),
                _ => ("round trip", "µs", Better::Lower),
            };
            let case = format!("{what}, {datapath}");
            let whole = Row::beside(
                bench,
                case,
                unit,
                of(datapath, what),
                Some(of(Datapath::Kernel, what)),
                better,
            );
            let ratio = whole.ratio.filter(|ratio| ratio.is_finite());
            rows.push(Row { ratio, target: target(datapath, what), ..whole });
        }
    }
    if !quiet.is_empty() {
        let case = "CPU of a quiet vtepd, userspace".to_owned();
        rows.push(Row::beside("idle", case, "µs/s", Figure::of(quiet), None, Better::Lower));
    }
    if options.includes(PROBING) {
        rows.extend(probing(options, &testbed, "64 queue pairs to a VTEP that does not answer")?);
        testbed.move_stations()?;
        for (paths, name) in [(1, "1 path in use"), (4, "4 paths in use")] {
            testbed.set_uplinks(paths)?;
            rows.extend(probing(options, &testbed, name)?);
        }
    }
    Ok(rows)
}

/// What probing costs: with `qp-pin`, which probes the paths in use every 50 ms, and without. Both
/// times a few frames of 64 queue pairs are sent, so that these are in use.
fn probing(options: &Options, testbed: &Testbed, name: &str) -> Result<Vec<Row>, Failure> {
    let mut costs: [Vec<[f64; 2]>; 2] = Default::default();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}: probing, {name}", options.rounds);
        for (datapath, costs) in [Datapath::Offload, PROBING].into_iter().zip(&mut costs) {
            options.check_interrupt()?;
            let daemon = datapath.start(testbed, &options.vtepd)?.ok_or("vtepd does not run")?;
            let peer = datapath.start_at_peer(testbed, &options.vtepd)?;
            if datapath == PROBING {
                // Queue pairs that come earlier have the ports of `qp-hash`.
                await_paths(&daemon)?;
            }
            let traffic =
                Traffic { input: Input::Host, length: LENGTH, queue_pairs: 64, bursts: false };
            let mut sender = Sender::new(testbed, traffic, true)?;
            keep_in_use(&mut sender);
            let before = (daemon.cpu()?, testbed.sent_bytes()?);
            let began = Instant::now();
            let frames = keep_in_use(&mut sender);
            let spent = daemon.cpu()?.saturating_sub(before.0) as f64 / 1e3;
            let bytes = (testbed.sent_bytes()? - before.1).saturating_sub(frames * ENCAPSULATED);
            let bits = bytes as f64 * 8.0 / 1e3;
            costs.push([spent, bits].map(|figure| figure / began.elapsed().as_secs_f64()));
            peer.map(testbed::Daemon::stop).transpose()?;
            daemon.stop()?;
        }
    }
    let [without, with] = costs;
    let row = |what: &str, unit: &'static str, pick: fn([f64; 2]) -> f64| {
        let case = format!("probing, {name}: {what}");
        let more = with.iter().zip(&without).map(|(with, without)| pick(*with) - pick(*without));
        Row::beside("idle", case, unit, Figure::of(more), None, Better::Lower)
    };
    Ok(vec![row("CPU", "µs/s", |[cpu, _]| cpu), row("sent", "kbit/s", |[_, sent]| sent)])
}

/// Sends a few frames for [`SETTLE`], so that their queue pairs stay in use. Returns their number.
fn keep_in_use(sender: &mut Sender) -> u64 {
    let (began, mut frames) = (Instant::now(), 0);
    while began.elapsed() < SETTLE {
        frames += sender.send_some(0);
        std::thread::sleep(KEEP);
    }
    frames
}

/// Waits until all ports are probed.
fn await_paths(daemon: &Daemon) -> Result<(), Failure> {
    let start = Instant::now();
    while daemon.metric_sum("vtepd_probing_ready{")? < 1.0
        || daemon.metric_sum("vtepd_probed_path_ids{")? < 1.0
    {
        if start.elapsed() > PROBED {
            return Err("vtepd finds no path to the peer".into());
        }
        std::thread::sleep(KEEP);
    }
    Ok(())
}

/// Notes round trips under a name.
fn note_echo(note: &mut impl FnMut(String, f64), on: &str, echo: Echo) {
    note(format!("{on}: p50"), echo.p50);
    note(format!("{on}: p99"), echo.p99);
    note(format!("{on}: lost"), echo.lost as f64);
}

/// The target for the ratio to the kernel's figure.
fn target(datapath: Datapath, what: &str) -> Option<f64> {
    let (_, figure) = what.split_once(": ").unwrap_or(("", what));
    match (datapath, figure) {
        (Datapath::Offload, "p50") => Some(0.70),
        (Datapath::Offload, "p99") => Some(1.00),
        (Datapath::Offload, BETWEEN) => Some(1.05),
        (Datapath::ChosenPort { .. }, "p50" | "p99") => Some(1.05),
        (Datapath::ChosenPort { .. }, BETWEEN) => Some(0.97),
        _ => None,
    }
}
