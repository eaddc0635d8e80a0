//! `lab web`: the live page of a fabric.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fabric::Fabric;
use tokio::runtime::{Builder, Runtime};
use web::{Access, Server};

use super::open::open;
use crate::fabric_arguments::Web;
use crate::output::{Outcome, interrupted, print};

/// The interval at which a signal is noticed.
const POLL: Duration = Duration::from_millis(50);

pub(super) fn run(arguments: &Web) -> Outcome {
    match &arguments.replay {
        Some(file) => replay(file, arguments.port),
        None => serve(&open(arguments.name.as_ref())?, arguments.access(), arguments.port),
    }
}

/// Serves the page of a fabric until a signal.
pub(super) fn serve(fabric: &Fabric, access: Access, port: u16) -> Outcome {
    let program = std::env::current_exe()?;
    let described = lab::web::describe(fabric, program)?;
    let runtime = runtime()?;
    let server = runtime.block_on(Server::bind(described, access, port))?;
    until_signal(&runtime, server)
}

fn replay(file: &Path, port: u16) -> Outcome {
    let unreadable = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    let saved = serde_json::from_str(&text).map_err(|error| unreadable(&error))?;
    let runtime = runtime()?;
    let server =
        runtime.block_on(Server::replay(saved, port)).map_err(|error| unreadable(&error))?;
    until_signal(&runtime, server)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn until_signal(runtime: &Runtime, server: Server) -> Outcome {
    print(server.address())?;
    let end = async {
        while !interrupted() {
            tokio::time::sleep(POLL).await;
        }
    };
    runtime.block_on(server.run(end))?;
    Ok(ExitCode::SUCCESS)
}
