//! `lab link`: changes of links, for good or for a time.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use fabric::deployed::Deployed;
use fabric::topology::Wire;
use lab::link::{self, Properties, Undo};
use wan::Change;

use super::open::open;
use crate::arguments::Output;
use crate::fabric_arguments::{Impair, Link, LinkState};
use crate::output::{Outcome, interrupted, print, print_json};

/// The interval at which a signal is noticed.
const POLL: Duration = Duration::from_millis(20);

pub(super) fn run(arguments: &Link, output: Output) -> Outcome {
    match arguments {
        Link::Down(state) => set(state, false),
        Link::Up(state) => set(state, true),
        Link::Impair(arguments) => impair(arguments, output),
    }
}

fn set(arguments: &LinkState, up: bool) -> Outcome {
    let deployed = open(arguments.which.name.as_ref())?.deployed();
    hold(link::set(&deployed, &arguments.link, up)?, arguments.time)
}

fn impair(arguments: &Impair, output: Output) -> Outcome {
    let place = &arguments.place;
    let deployed = open(place.which.name.as_ref())?.deployed();
    let wire = link::find(&deployed, &place.link)?;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let change = Change {
        from: None,
        delay: arguments.delay.map(nanoseconds),
        jitter: arguments.jitter.map(nanoseconds),
        loss: arguments.loss,
        rate: arguments.rate,
        queue: arguments.queue,
        time: place.time.map(nanoseconds),
    };
    let undo = link::impair(&deployed, &wire, arguments.direction, &change)?;
    // The change is undone also if it cannot be shown.
    let shown = show(&deployed, &wire, output);
    let held = hold(undo, place.time);
    shown.and(held)
}

/// Prints the properties of a circuit.
fn show(deployed: &Deployed, wire: &Wire, output: Output) -> Outcome {
    let properties = link::properties(deployed, wire)?;
    if output == Output::Json {
        let [a_to_b, b_to_a]: [Properties; 2] = properties;
        return print_json(&serde_json::json!({
            "ends": wire.ends.each_ref().map(ToString::to_string),
            "circuit": wire.circuit_name(),
            "a_to_b": a_to_b,
            "b_to_a": b_to_a,
        }));
    }
    print(wire)?;
    let [a, b] = &wire.ends;
    for (from, to, properties) in [(a, b, properties[0]), (b, a, properties[1])] {
        print(format_args!("  {} to {}: {properties}", from.node, to.node))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for this time or until a signal, and undoes the change. Without a time, it stays.
fn hold(undo: Undo, time: Option<Duration>) -> Outcome {
    let Some(time) = time else { return Ok(ExitCode::SUCCESS) };
    let start = Instant::now();
    while !interrupted() && start.elapsed() < time {
        std::thread::sleep(POLL.min(time.saturating_sub(start.elapsed())));
    }
    undo.run()?;
    Ok(if interrupted() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}
