//! `lab graph`: a picture of the fabric with the load on its links.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lab::graph::{self, short_rate};

use super::open::open;
use crate::arguments::Output;
use crate::fabric_arguments::Graph;
use crate::output::{Outcome, interrupt, print, print_json, write};

/// The file if neither `--out` nor a redirection names another.
const FILE: &str = "graph.svg";

pub(super) fn run(arguments: &Graph, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let time = Duration::from_secs(arguments.seconds);
    let graph = graph::measure(fabric.name(), &fabric.deployed(), time, interrupt())?;
    let file = match (&arguments.out, output) {
        (Some(file), _) => Some(file.clone()),
        (None, Output::Json) => None,
        (None, Output::Table) => std::io::stdout().is_terminal().then(|| PathBuf::from(FILE)),
    };
    if let Some(file) = &file {
        write(file, graph.svg().as_bytes())?;
    }
    if output == Output::Json {
        return print_json(&graph);
    }
    let Some(file) = file else {
        // It is no error if the reader has closed the pipe.
        return match std::io::stdout().write_all(graph.svg().as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(ExitCode::SUCCESS),
        };
    };
    table(&graph)?;
    print(format_args!("wrote {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn table(graph: &graph::Graph) -> std::io::Result<()> {
    let width = graph.links.iter().flat_map(|link| [link.a.len(), link.b.len()]).max();
    let width = width.unwrap_or_default().max(4);
    print(format_args!("{:<width$}  {:<width$}  {:>10} {:>10}", "a", "b", "a to b", "b to a"))?;
    for link in &graph.links {
        let [there, back] =
            [&link.a_to_b, &link.b_to_a].map(|load| short_rate(load.sent_bits_per_second));
        let state = if link.up { "" } else { "  down" };
        let circuit = link.circuit.as_ref().map(|name| format!("  circuit {name}"));
        let circuit = circuit.unwrap_or_default();
        print(format_args!(
            "{:<width$}  {:<width$}  {there:>10} {back:>10}{state}{circuit}",
            link.a, link.b
        ))?;
    }
    print(format_args!("bits per second, over {} s", graph.seconds))
}
