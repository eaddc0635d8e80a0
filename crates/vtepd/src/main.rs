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
    end_with_any_thread(log.clone());
    start_log(&arguments, log.clone());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = match runtime.enable_all().thread_name(BLOCKING).build() {
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

/// The name of the threads that run what would block the runtime.
const BLOCKING: &str = "blocking";

/// Has a panic of a thread end the process, as if it were killed: the kernel then forwards again.
/// Without one of its threads, vtepd would forward by what nobody keeps up to date. A panic in a task
/// of the runtime only ends the task, so that no request can end vtepd.
fn end_with_any_thread(log: Log) {
    std::panic::set_hook(Box::new(move |panic| {
        // This cannot fail: lines that do not fit are counted.
        let _ = writeln!(log.clone(), "vtepd: {}", terminal::escape_lines(&panic.to_string()));
        // A panic of main ends the process, too, and with it the thread that writes the log.
        log.finish();
        if !matches!(std::thread::current().name(), Some("main" | BLOCKING)) {
            std::process::abort();
        }
    }));
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    /// The variable with the name of the thread that is to panic.
    const PANICS: &str = "VTEPD_TEST_PANICS";

    /// The test runs itself again in a process of its own, in which a thread panics.
    #[test]
    fn a_panic_of_a_thread_ends_the_process_and_one_of_a_task_does_not() {
        if let Some(name) = std::env::var_os(PANICS) {
            end_with_any_thread(Log::start().unwrap());
            let thread = std::thread::Builder::new().name(name.into_string().unwrap());
            let ended = thread.spawn(|| panic!("on purpose")).unwrap().join();
            assert!(ended.is_err());
            return;
        }
        let status = |name: &str| {
            let own = std::env::current_exe().unwrap();
            let test = "tests::a_panic_of_a_thread_ends_the_process_and_one_of_a_task_does_not";
            let mut command = Command::new(own);
            let output = command.args(["--exact", test, "--nocapture"]).env(PANICS, name).output();
            let output = output.unwrap();
            assert!(String::from_utf8_lossy(&output.stderr).contains("on purpose"), "{output:?}");
            output.status
        };
        assert_eq!(status("probing").signal(), Some(nix::libc::SIGABRT));
        assert!(status(BLOCKING).success());
    }
}
