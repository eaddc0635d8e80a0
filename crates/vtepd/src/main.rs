//! The daemon: reads the configuration, assembles the rooms, and takes them apart again.

mod api;
mod changes;
mod config;
mod daemon;
mod dry_run;
mod instance;
mod onlookers;
mod shown;
mod standalone;
mod takeover;
mod view;
mod worker;

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

use config::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.manual {
        return match manual::write(Arguments::command(), folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&format!("{}: {error}", folder.display())),
        };
    }
    start_log(&arguments);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    match runtime.block_on(daemon::run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(reason: &str) -> ExitCode {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "vtepd: {reason}");
    ExitCode::FAILURE
}

/// Logs go to standard error: warnings, and what is taken over or left.
fn start_log(arguments: &Arguments) {
    let default = match arguments.verbose {
        0 => "warn,control=info,vtepd=info",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A log that nobody reads any more is no reason to stop forwarding: without this, it would panic.
    let log = log.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false);
    if arguments.log_json { log.json().init() } else { log.with_target(false).init() }
}
