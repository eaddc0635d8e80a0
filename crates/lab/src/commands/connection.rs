//! `lab roce serve` and `lab roce connect`: reliable connections between two hosts.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use traffic::completions::Kind;
use traffic::endpoint::{self, ControlError, Requests, Session, SessionError, Side};

use super::open::{open, teller};
use crate::arguments::Output;
use crate::output::{Outcome, interrupt, note, print, print_json};
use crate::workload_arguments::{Connect, Place, Serve, Transport};

/// Runs `f` in the namespace of the given node, or in the current one.
fn at<T: Send>(place: &Place, f: impl FnOnce() -> T + Send) -> Result<T, Box<dyn Error>> {
    let Some(node) = &place.node else { return Ok(f()) };
    Ok(open(place.name.as_ref())?.node(node)?.namespace()?.enter(f)?)
}

fn side(place: &Place, transport: &Transport) -> Side {
    Side {
        interface: place.interface.clone(),
        settings: transport.settings(),
        source_port: transport.source_port(),
        seed: transport.seed,
    }
}

pub(super) fn serve(arguments: &Serve, output: Output) -> Outcome {
    let side = side(&arguments.place, &arguments.transport);
    let port = arguments.place.port;
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let listener = at(&arguments.place, bind)?
        .map_err(|error| format!("cannot listen on TCP port {port}: {error}"))?;
    note(format_args!("waiting for a peer on TCP port {port}"));
    loop {
        let served = at(&arguments.place, || endpoint::serve(&listener, &side, interrupt()))?;
        match served {
            Ok(Some(session)) => show(&session, output)?,
            Ok(None) | Err(SessionError::Control(ControlError::Interrupted)) => break,
            Err(error) if arguments.once => return Err(error.into()),
            Err(error) => note(error),
        }
        if arguments.once {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn connect(arguments: &Connect, output: Output) -> Outcome {
    let side = side(&arguments.place, &arguments.transport);
    let requests = Requests {
        kind: arguments.operation,
        message: u32::try_from(arguments.message)?,
        count: arguments.count,
        depth: arguments.depth,
        queue_pairs: arguments.transport.queue_pairs,
    };
    let to = (arguments.to, arguments.place.port);
    let run = || endpoint::connect(to, &side, requests, interrupt());
    let session = at(&arguments.place, run)??;
    let Place { name, node, .. } = &arguments.place;
    if let (Some(node), Some(teller)) = (node, teller(node.as_ref(), name.as_ref())) {
        let operation = arguments.operation.to_possible_value();
        let operation = operation.as_ref().map_or("requests", PossibleValue::get_name);
        let series = format!("{operation}, {node} to {}", arguments.to);
        let took = Duration::try_from_secs_f64(session.seconds).unwrap_or_default();
        teller.tell(Kind::Stream, &series, took);
    }
    show(&session, output)?;
    Ok(ExitCode::SUCCESS)
}

fn show(session: &Session, output: Output) -> Result<(), Box<dyn Error>> {
    if output == Output::Json {
        print_json(session)?;
        return Ok(());
    }
    let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let Session { peer, queue_pairs, mtu, messages, latencies, counters, .. } = session;
    print(format_args!(
        "{peer}: {queue_pairs} queue pairs, path MTU {mtu}, {} packets sent, {} received, {} sent \
         again, {} timeouts",
        counters.tx_packets,
        counters.rx_packets,
        counters.retransmitted_packets,
        counters.local_ack_timeout_err
    ))?;
    if latencies.count > 0 {
        print(format_args!(
            "  {messages} messages, {:.3} Gbit/s, completion time p50 {:.1} us, p99 {:.1} us, p99.9 \
             {:.1} us, max {:.1} us",
            session.goodput / 1e9,
            us(latencies.p50),
            us(latencies.p99),
            us(latencies.p999),
            us(latencies.max)
        ))?;
    }
    Ok(())
}
