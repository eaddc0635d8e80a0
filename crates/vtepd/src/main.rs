//! The daemon: reads the configuration, starts all parts in order, and stops them in reverse.

mod access_ports;
mod api;
mod applier;
mod daemon;
mod dry_run;
mod filter_watch;
mod guard;
mod handle;
mod holder;
mod instance;
mod link_watch;
mod listeners;
mod log;
mod metrics_view;
mod own_links;
mod packet_rules;
mod pinning;
mod privilege;
mod probing;
mod program_drops;
mod takeover;
mod wakeups;

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use clap::CommandFactory;
use configuration::Arguments;
use tracing_subscriber::EnvFilter;

use log::Log;

fn main() -> ExitCode {
    let arguments = manual::parse::<Arguments>();
    if let Some(folder) = &arguments.manual {
        return match manual::write(Arguments::command(), folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&format!("{}: {error}", folder.display())),
        };
    }
    // Signals must be blocked before the first thread starts. A dry run keeps the default actions,
    // so a signal ends it.
    if !arguments.dry_run
        && let Err(error) = guard::block_signals()
    {
        return failed(&format!("signals cannot be blocked: {error}"));
    }
    let mut log = match Log::start() {
        Ok(log) => log,
        Err(error) => return failed(&format!("no thread for the log: {error}")),
    };
    start_log(&arguments, log.clone());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    let ended = runtime.block_on(daemon::run(&arguments));
    if let Err(error) = &ended {
        // This cannot fail: lines that do not fit are counted.
        let _ = writeln!(log, "vtepd: {}", terminal::escape_lines(&error.to_string()));
    }
    // A blocking thread may still wait for an answer of the kernel. The result is no longer needed.
    runtime.shutdown_background();
    log.finish();
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(reason: &str) -> ExitCode {
    // An error is ignored: standard error may be closed.
    let _ = writeln!(std::io::stderr(), "vtepd: {}", terminal::escape_lines(reason));
    ExitCode::FAILURE
}

/// Logs go to standard error. The default level shows warnings, and which VNIs are taken over or
/// stay with the kernel.
fn start_log(arguments: &Arguments, writer: Log) {
    let default = match arguments.verbose {
        0 => "warn,control=info,vtepd=info",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let log = log.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false);
    if arguments.log_json { log.json().init() } else { log.with_target(false).init() }
}
