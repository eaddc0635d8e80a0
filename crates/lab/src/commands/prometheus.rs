//! `lab prometheus`.

use std::fs;
use std::process::ExitCode;

use lab::prometheus::Server;

use super::open::open;
use super::web::{runtime, signal};
use crate::fabric_arguments::Prometheus;
use crate::output::{Outcome, note, print};

/// Serves until an interruption.
pub(super) fn run(arguments: &Prometheus) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let server = Server::open(&fabric, arguments.port)?;
    let targets = server.targets()?;
    match &arguments.out {
        Some(path) => fabric::owner::write_for_user(path, targets.as_bytes())?,
        None => print(&targets)?,
    }
    note(format_args!("serving at http://{}, until Ctrl-C", server.address()));
    runtime()?.block_on(server.run(signal()))?;
    if let Some(path) = &arguments.out {
        // Nobody answers any more.
        let _ = fs::remove_file(path);
    }
    Ok(ExitCode::SUCCESS)
}
