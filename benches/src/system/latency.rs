//! Round trips and TCP between hosts through the leaf, and the CPU time of an idle vtepd.

use std::collections::BTreeMap;
use std::time::Duration;

use testbed::echo::Echo;
use testbed::stream::{Towards, throughput};
use testbed::{Bed, Way};

use super::{Failure, Terms};
use crate::table::{Better, Figure, Row};

const WAYS: [Way; 6] = [
    Way::Kernel,
    Way::KernelWithoutNf,
    Way::PUNT_SINGLE,
    Way::PUNT,
    Way::BYPASS_SINGLE,
    Way::BYPASS,
];
const TOWARDS: [(Towards, &str); 2] =
    [(Towards::Far, "encapsulated"), (Towards::Host, "decapsulated")];
/// TCP from the leaf to a peer with the same datapath.
const BETWEEN: &str = "between two that forward alike";
/// How long to wait before vtepd counts as idle, and how long to measure it then.
const SETTLE: Duration = Duration::from_secs(2);

/// Figures by datapath and name.
type Turns = BTreeMap<(Way, String), Vec<f64>>;

pub(super) fn measure(terms: &Terms) -> Result<Vec<Row>, Failure> {
    let bed = Bed::new("")?;
    let time = Duration::from_millis(if terms.quick { 300 } else { 2000 });
    let mut turns = Turns::new();
    let has_switch = bed.set_bridge_nf(true)?;
    let ways: Vec<Way> =
        WAYS.into_iter().filter(|way| has_switch || *way != Way::KernelWithoutNf).collect();
    let mut quiet = Vec::new();
    for round in 1..=terms.rounds {
        for &way in &ways {
            eprintln!("round {round} of {}: {way}, round trips and TCP", terms.rounds);
            let daemon = way.take(&bed, &terms.vtepd)?;
            let mut note =
                |what: String, figure: f64| turns.entry((way, what)).or_default().push(figure);
            for cores in [1, 2] {
                terms.go_on()?;
                let echo = Echo::take(&bed, time, cores, daemon.as_ref())?;
                let on = if cores == 1 { "all on 1 core" } else { "2 cores" };
                note(format!("{on}: p50"), echo.p50);
                note(format!("{on}: p99"), echo.p99);
                note(format!("{on}: lost"), echo.lost as f64);
            }
            for (towards, name) in TOWARDS {
                note(name.to_owned(), throughput(&bed, towards, time, daemon.as_ref())?);
            }
            let peer = way.take_peer(&bed, &terms.vtepd)?;
            note(BETWEEN.to_owned(), throughput(&bed, Towards::Far, time, daemon.as_ref())?);
            peer.map(testbed::Daemon::stop).transpose()?;
            if let Some(daemon) = &daemon
                && way == Way::PUNT
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
    let of = |way: Way, what: &String| {
        Figure::of(turns.get(&(way, what.clone())).into_iter().flatten().copied())
    };
    let names: Vec<&String> =
        turns.keys().filter(|(way, _)| *way == Way::Kernel).map(|(_, what)| what).collect();
    for what in names {
        for &way in ways.iter().filter(|way| **way != Way::Kernel) {
            let tcp = what == BETWEEN || TOWARDS.iter().any(|(_, name)| name == what);
            let (bench, unit, better) = match what.as_str() {
                _ if tcp => ("TCP, MTU 1500", "Gbit/s", Better::Higher),
                lost if lost.ends_with("lost") => ("round trip", "datagrams", Better::Lower),
                _ => ("round trip", "µs", Better::Lower),
            };
            let case = format!("{what}, {way}");
            let whole =
                Row::beside(bench, case, unit, of(way, what), Some(of(Way::Kernel, what)), better);
            let vtepd = matches!(way, Way::Vtepd { .. });
            rows.push(match what.as_str() {
                _ if tcp => Row { target: vtepd.then_some(0.95), ..whole },
                // These targets are in microseconds, not relative to the kernel.
                "all on 1 core: p50" => Row { target: vtepd.then_some(11.0), ratio: None, ..whole },
                "all on 1 core: p99" => Row { target: vtepd.then_some(25.0), ratio: None, ..whole },
                _ => Row { ratio: whole.ratio.filter(|ratio| ratio.is_finite()), ..whole },
            });
        }
    }
    let case = "CPU of a quiet vtepd, hooks and punts up".to_owned();
    rows.push(Row::beside("idle", case, "µs/s", Figure::of(quiet), None, Better::Lower));
    Ok(rows)
}
