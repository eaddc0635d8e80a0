//! `lab roce`: sends and receives numbered frames.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use traffic::completions::Kind;
use traffic::roce::{Connection, Limit, Sink, Source, SourcePort, connections};
use wire::QueuePair;

use super::interval::Intervals;
use super::open::{open, teller};
use crate::arguments::{Output, Where};
use crate::output::{Outcome, interrupt, interrupted, note, print, print_json};
use crate::stream_arguments::{Receive, Send};
use crate::workload_arguments::Bench;

/// A sender that sends less than this share of its frames is told of.
const FULL: f64 = 0.98;

/// Runs `f` in the namespace of the given node, or in the current one.
fn at<T: core::marker::Send>(
    place: &Where,
    f: impl FnOnce() -> T + core::marker::Send,
) -> Result<T, Box<dyn Error>> {
    let Some(node) = &place.node else { return Ok(f()) };
    Ok(open(place.which.name.as_ref())?.node(node)?.namespace()?.enter(f)?)
}

pub(super) fn send(arguments: &Send, output: Output) -> Outcome {
    let source = Source {
        interface: arguments.place.interface.clone(),
        destination: arguments.to,
        connections: match arguments.qp.as_slice() {
            [] => connections(arguments.seed, arguments.queue_pairs),
            named => to(named, arguments.seed)?,
        },
        inner_port: arguments.inner_port.map_or(SourcePort::PerQueuePair, SourcePort::Constant),
        payload: usize::try_from(arguments.payload)?,
        rate: arguments.rate,
        mark: arguments.place.mark,
        cpu: arguments.cpu,
    };
    let limit = match arguments.frames {
        Some(frames) => Limit::Frames(frames),
        None => Limit::Time(Duration::from_secs(arguments.seconds)),
    };
    let every = arguments.interval.filter(|_| output == Output::Table);
    let mut rows = every.map(|every| Intervals::start(every, "")).transpose()?;
    let mut frames = 0;
    let show = |more| {
        frames += more;
        // Without a reader of the rows, the frames are sent all the same.
        let _ = rows.as_mut().map(|rows| rows.look(frames, || ""));
    };
    let sent = at(&arguments.place, || source.run(limit, interrupt(), show))??;
    let Where { which, node, .. } = &arguments.place;
    if let (Some(node), Some(teller)) = (node, teller(node.as_ref(), which.name.as_ref())) {
        let series = format!("frames, {node} to {}", arguments.to);
        let took = u64::try_from(sent.nanoseconds).unwrap_or(u64::MAX);
        teller.tell(Kind::Stream, &series, Duration::from_nanos(took));
    }
    if output == Output::Json {
        return print_json(&sent);
    }
    let seconds = sent.nanoseconds as f64 / 1e9;
    print(format_args!(
        "{} frames of {} queue pairs in {seconds:.2} s",
        sent.frames, sent.queue_pairs
    ))?;
    let wanted = f64::from(arguments.rate) * seconds;
    if (sent.frames as f64) < wanted * FULL {
        let share = sent.frames as f64 * 100.0 / wanted;
        note(format_args!("this is {share:.0} % of --rate: the machine was the limit"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Connections to these queue pairs, from random ones.
fn to(numbers: &[u32], seed: u64) -> Result<Vec<Connection>, Box<dyn Error>> {
    let drawn = connections(seed, numbers.len());
    let named = |(drawn, number): (&Connection, &u32)| {
        Ok(Connection { remote: QueuePair::try_from(*number)?, ..*drawn })
    };
    drawn.iter().zip(numbers).map(named).collect()
}

pub(super) fn receive(arguments: &Receive, output: Output) -> Outcome {
    let mut sink =
        at(&arguments.place, || Sink::open(&arguments.place.interface, arguments.place.mark))??;
    let quiet = Duration::from_secs(arguments.quiet_seconds);
    let mut last = Instant::now();
    let mut before = 0;
    let every = arguments.interval.filter(|_| output == Output::Table);
    let mut rows = every.map(|every| Intervals::start(every, "       lost")).transpose()?;
    while !interrupted() && (before == 0 || last.elapsed() < quiet) {
        sink.receive()?;
        if sink.received() > before {
            before = sink.received();
            last = Instant::now();
        }
        if let Some(rows) = &mut rows {
            rows.look(before, || format!(" {:>10}", sink.report().lost()))?;
        }
    }
    let report = sink.report();
    if output == Output::Json {
        return print_json(&report);
    }
    print(format_args!(
        "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
        "queue pair", "received", "lost", "reordered", "duplicated", "corrupted"
    ))?;
    for line in &report.queue_pairs {
        print(format_args!(
            "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
            format!("{:#08x}", line.queue_pair),
            line.received,
            line.lost,
            line.reordered,
            line.duplicated,
            line.corrupted
        ))?;
    }
    print(format_args!(
        "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
        "all",
        report.received(),
        report.lost(),
        report.reordered(),
        report.duplicated(),
        report.corrupted()
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn bench(arguments: &Bench, output: Output) -> Outcome {
    let Bench { message, seconds, cpu, transport } = arguments;
    let time = Duration::try_from_secs_f64(*seconds)?;
    let traffic = (transport.queue_pairs, u32::try_from(*message)?);
    let result = traffic::endpoint::bench(&transport.settings(), traffic, *cpu, time)?;
    if output == Output::Json {
        return print_json(&result);
    }
    print(format_args!(
        "{:.0} frames/s sent and received on CPU {cpu}, {:.2} Gbit/s of payload in {} queue pairs, \
         {} sent again, {} overruns, {} damaged",
        result.frames_per_second,
        result.goodput / 1e9,
        result.queue_pairs,
        result.requester.retransmitted_packets,
        result.overruns,
        result.mismatches
    ))?;
    Ok(ExitCode::SUCCESS)
}
