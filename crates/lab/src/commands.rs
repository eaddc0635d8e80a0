//! Implements the subcommands: calls the library and prints the results.

mod allreduce;
mod bench;
mod capture;
mod compare;
mod connection;
mod demo;
mod doctor;
mod graph;
mod leaves;
mod link;
mod new;
mod open;
mod path;
mod plan;
mod plot;
mod roce;
mod run;
mod sim;
mod verify;
mod wan;
mod web;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fabric::counters;
use fabric::topology::Topology;
use fabric::{Fabric, FabricError};
use serde::Serialize;

use crate::arguments::{Cli, Command, Counters, Down, Exec, Output, Roce, Up, Which};
use crate::output::{Outcome, Progress, interrupt, note, print, print_json, vtepd};
use open::open;

pub(crate) fn run(cli: Cli) -> Outcome {
    if !matches!(cli.command, Command::Exec(_)) {
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(interrupt()))?;
        }
    }
    // What uses no namespace needs no privileges.
    let reads = match &cli.command {
        Command::Run(run) => run.schema || run.plan,
        Command::Compare(_) | Command::New(_) | Command::Plan(_) | Command::Plot(_) => true,
        Command::Sim(_) | Command::Merge(_) => true,
        Command::Web(web) => web.replay.is_some(),
        _ => false,
    };
    if !reads && !nix::unistd::geteuid().is_root() {
        return Err("lab needs root for network namespaces: run it with sudo".into());
    }
    match cli.command {
        Command::New(arguments) => new::run(&arguments, cli.output),
        Command::Up(arguments) => up(&arguments, cli.output),
        Command::Down(arguments) => down(&arguments),
        Command::List => list(cli.output),
        Command::Inspect(which) => inspect(&which, cli.output),
        Command::Exec(arguments) => exec(&arguments),
        Command::Init { proc } => match fabric::node_init::run(&proc)? {},
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

fn up(arguments: &Up, output: Output) -> Outcome {
    let topology = Topology::load(&arguments.file)?;
    let name = arguments.name.as_ref().unwrap_or(&topology.name);
    if Fabric::is_kept(name) && arguments.rebuild {
        Fabric::open(name)?.down()?;
    }
    let vtepd = sidecar_program(arguments, &topology)?;
    topology.notes.iter().for_each(note);
    let progress = Progress::new();
    let report = |text: &str| progress.report(text);
    let fabric = Fabric::up(topology, arguments.name.as_ref(), &report)?;
    let mut started = 0;
    let mut start = || {
        let Some(program) = &vtepd else { return Ok(()) };
        started = study::leaves::start_sidecars(&fabric, program, !arguments.no_wait, &report)?;
        Ok::<_, study::RunError>(())
    };
    match arguments.no_wait {
        true => start()?,
        false => {
            fabric.converge_with(Duration::from_secs(arguments.timeout), &report, start)?;
        }
    }
    drop(progress);
    let fabric = fabric.keep()?;
    if !fabric.hash_seeds() {
        note(
            "this kernel lacks net.ipv4.fib_multipath_hash_seed (Linux 6.11): all routers compute \
             the same hash, so each tier repeats the choice of the previous one and some paths stay \
             unused",
        );
    }
    match output {
        Output::Json => inspect_fabric(&fabric, output),
        Output::Table => {
            print(format_args!(
                "fabric '{}' is running, {}: 'lab exec NODE -- COMMAND' runs a command, 'lab down {0}' \
                 stops the fabric",
                fabric.name(),
                match started {
                    0 => "kernel VXLAN forwards".to_owned(),
                    number => format!("vtepd on {number} leaves"),
                }
            ))?;
            if arguments.web {
                return web::serve(&fabric, ::web::Access::Full, 0);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The path of vtepd, if nodes of the topology run it beside leaves.
fn sidecar_program(
    arguments: &Up,
    topology: &Topology,
) -> Result<Option<PathBuf>, Box<dyn std::error::Error>> {
    if arguments.no_vtepd || topology.nodes.values().all(|node| node.vtepd.is_none()) {
        return Ok(None);
    }
    let path = vtepd(arguments.vtepd.as_ref())?;
    if !path.exists() {
        return Err(format!(
            "{} is missing, which the file's nodes with `network-mode: container:LEAF` run: build \
             it with 'cargo build -p vtepd', name it with --vtepd, or leave them out with --no-vtepd",
            path.display()
        )
        .into());
    }
    Ok(Some(path))
}

fn down(arguments: &Down) -> Outcome {
    if arguments.all {
        // Continue with the other fabrics after an error.
        let mut first = Ok(ExitCode::SUCCESS);
        for name in Fabric::list() {
            if let Err(error) = Fabric::open(&name).and_then(Fabric::down) {
                first = first.and(Err(error.into()));
            }
        }
        return first;
    }
    open(arguments.name.as_ref())?.down()?;
    Ok(ExitCode::SUCCESS)
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

fn exec(arguments: &Exec) -> Outcome {
    let node = open(arguments.which.name.as_ref())?.node(&arguments.node)?;
    let status = node.status(&arguments.command)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn show_counters(arguments: &Counters, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let mut all = BTreeMap::new();
    for node in fabric.nodes() {
        let own = fabric
            .topology()
            .nodes
            .get(node.name())
            .is_none_or(|settings| settings.shares.is_none());
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
