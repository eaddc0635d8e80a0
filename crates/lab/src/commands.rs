//! Implements the subcommands: calls the library and prints the results.

mod allreduce;
mod bench;
mod capture;
mod compare;
mod connection;
mod demo;
mod doctor;
mod graph;
mod interval;
mod leaves;
mod link;
mod new;
mod open;
mod path;
mod plan;
mod plot;
mod prometheus;
mod roce;
mod run;
mod sim;
mod up;
mod verify;
mod wan;
mod web;
mod workload;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::CommandFactory as _;
use fabric::counters;
use fabric::{Fabric, FabricError};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arguments::{Cli, Command, Counters, Down, Exec, Output, Roce, Shell, Which};
use crate::output::{Outcome, interrupt, note, print, print_json};
use open::open;

pub(crate) fn run(cli: Cli) -> Outcome {
    // On a node, Ctrl-C is for the command, and lab waits for its end.
    let is_on_node = matches!(cli.command, Command::Exec(_) | Command::Shell(_));
    let signals: &[_] = if is_on_node { &[SIGINT] } else { &[SIGINT, SIGTERM, SIGHUP] };
    for signal in signals {
        signal_hook::flag::register(*signal, Arc::clone(interrupt()))?;
    }
    // What uses no namespace needs no privileges.
    let reads = match &cli.command {
        Command::Run(run) => run.schema || run.plan,
        Command::Compare(_) | Command::New(_) | Command::Plan(_) | Command::Plot(_) => true,
        Command::Sim(_) | Command::Merge(_) => true,
        Command::Web(web) => web.replay.is_some(),
        Command::Manual { .. } => true,
        _ => false,
    };
    if !reads && !nix::unistd::geteuid().is_root() {
        return Err("lab needs root for network namespaces: run it with sudo".into());
    }
    match cli.command {
        Command::New(arguments) => new::run(&arguments, cli.output),
        Command::Up(arguments) => up::run(&arguments, cli.output),
        Command::Down(arguments) => down(&arguments),
        Command::List => list(cli.output),
        Command::Inspect(which) => inspect(&which, cli.output),
        Command::Exec(Exec { which, node, command }) => exec(&which, &node, &command),
        Command::Shell(arguments) => shell(&arguments),
        Command::Init { procs } => match fabric::node_init::run(&procs)? {},
        Command::Counters(arguments) => show_counters(&arguments, cli.output),
        Command::Roce(Roce::Send(arguments)) => roce::send(&arguments, cli.output),
        Command::Roce(Roce::Receive(arguments)) => roce::receive(&arguments, cli.output),
        Command::Roce(Roce::Bench(arguments)) => roce::bench(&arguments, cli.output),
        Command::Roce(Roce::Serve(arguments)) => connection::serve(&arguments, cli.output),
        Command::Roce(Roce::Connect(arguments)) => connection::connect(&arguments, cli.output),
        Command::Bench(arguments) => bench::run(&arguments, cli.output),
        Command::Demo(arguments) => demo::run(&arguments, cli.output),
        Command::Path(arguments) => path::run(&arguments, cli.output),
        Command::Status(arguments) => leaves::status(&arguments, cli.output),
        Command::Policy(arguments) => leaves::policy(&arguments, cli.output),
        Command::Link(arguments) => link::run(&arguments, cli.output),
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Graph(arguments) => graph::run(&arguments, cli.output),
        Command::Web(arguments) => web::run(&arguments),
        Command::Prometheus(arguments) => prometheus::run(&arguments),
        Command::Manual { folder } => {
            manual::write(Cli::command(), &folder)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Doctor(arguments) => doctor::run(&arguments, cli.output),
        Command::Run(arguments) => run::run(&arguments, cli.output),
        Command::Plan(arguments) => plan::run(&arguments, cli.output),
        Command::Sim(arguments) => sim::run(&arguments, cli.output),
        Command::Merge(arguments) => run::merge(&arguments, cli.output),
        Command::Compare(arguments) => compare::run(&arguments, cli.output),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments, cli.output),
        Command::Wan(arguments) => wan::run(&arguments, cli.output),
        Command::Workload(arguments) => workload::run(&arguments, cli.output),
        Command::AllReduce(arguments) => allreduce::run(&arguments),
    }
}

fn down(arguments: &Down) -> Outcome {
    let names = if arguments.all { Fabric::list() } else { arguments.names.clone() };
    if names.is_empty() && !arguments.all {
        open(None)?.down()?;
    }
    // Continue with the other fabrics after an error.
    let mut first = Ok(ExitCode::SUCCESS);
    for name in names {
        match (Fabric::open(&name).and_then(Fabric::down), &first) {
            (Ok(()), _) => {}
            (Err(error), Ok(_)) => first = Err(error.into()),
            (Err(error), Err(_)) => note(error),
        }
    }
    first
}

fn list(output: Output) -> Outcome {
    let names = Fabric::list();
    if output == Output::Json {
        return print_json(&names);
    }
    names.iter().try_for_each(print)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct NodeLine {
    node: String,
    namespace: String,
    processes: BTreeMap<String, i32>,
}

fn inspect(which: &Which, output: Output) -> Outcome {
    inspect_fabric(&open(which.name.as_ref())?, output)
}

fn inspect_fabric(fabric: &Fabric, output: Output) -> Outcome {
    let processes = fabric.processes()?;
    let lines: Vec<NodeLine> = fabric
        .nodes()
        .iter()
        .map(|node| {
            let own = processes.iter().filter(|process| process.node == node.name());
            Ok::<_, FabricError>(NodeLine {
                node: node.name().to_owned(),
                namespace: node.namespace()?.name().to_owned(),
                processes: own
                    .map(|process| (process.name.clone(), process.identity.pid))
                    .collect(),
            })
        })
        .collect::<Result<_, _>>()?;
    if output == Output::Json {
        return print_json(&lines);
    }
    for line in lines {
        let processes: Vec<String> =
            line.processes.iter().map(|(name, pid)| format!("{name} {pid}")).collect();
        print(format_args!("{:<10} {:<28} {}", line.node, line.namespace, processes.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs bash on a node, or sh where it is missing.
fn shell(Shell { which, node }: &Shell) -> Outcome {
    let found = ["bash", "sh"].into_iter().find(|shell| Path::new("/bin").join(shell).exists());
    exec(which, node, &[found.unwrap_or("sh").to_owned()])
}

fn exec(which: &Which, node: &str, command: &[String]) -> Outcome {
    let node = open(which.name.as_ref())?.node(node)?;
    let status = node.status(command)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn show_counters(arguments: &Counters, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    // An empty table would say that it has no links.
    arguments.node.iter().try_for_each(|name| fabric.node(name).map(|_| ()))?;
    let mut all = BTreeMap::new();
    for node in fabric.nodes() {
        let own = fabric.topology().owner(node.name()) == node.name();
        // Nodes that share a namespace have the interfaces of its owner.
        let wanted = (arguments.node.is_empty() && own)
            || arguments.node.iter().any(|name| name == node.name());
        if wanted {
            all.insert(node.name().to_owned(), counters::read(&node.namespace()?)?);
        }
    }
    if output == Output::Json {
        return print_json(&all);
    }
    print(format_args!(
        "{:<24} {:>14} {:>14} {:>10} {:>10}",
        "link", "sent", "received", "not sent", "dropped"
    ))?;
    for (node, interfaces) in all {
        for (interface, counters) in interfaces {
            print(format_args!(
                "{:<24} {:>14} {:>14} {:>10} {:>10}",
                format!("{node}:{interface}"),
                counters.tx_packets,
                counters.rx_packets,
                counters.tx_dropped,
                counters.rx_dropped
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
