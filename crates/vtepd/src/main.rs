//! The daemon: reads the configuration, assembles the rooms, and takes them apart again.

mod config;
mod daemon;
mod dry_run;
mod instance;
mod takeover;
mod view;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use config::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_log(&arguments);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("vtepd: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(daemon::run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtepd: {error}");
            ExitCode::FAILURE
        }
    }
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
    let log = log.with_ansi(std::io::stderr().is_terminal());
    if arguments.log_json { log.json().init() } else { log.with_target(false).init() }
}
