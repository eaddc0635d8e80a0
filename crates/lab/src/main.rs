//! The `lab` command: fabrics in network namespaces, traffic through them, and the demo.

mod arguments;
mod commands;
mod fabric_arguments;
mod output;
mod plan_arguments;
mod quantities;
mod results_arguments;
mod simulation_arguments;
mod stream_arguments;
mod workload_arguments;

use std::io::Write as _;
use std::process::ExitCode;

use arguments::Cli;

fn main() -> ExitCode {
    let cli = manual::parse::<Cli>();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            let mut text = format!("lab: {error}\n");
            let mut cause = error.source();
            while let Some(error) = cause {
                text += &format!("  because: {error}\n");
                cause = error.source();
            }
            // A closed standard error is no error.
            let _ = std::io::stderr().write_all(terminal::escape_lines(&text).as_bytes());
            ExitCode::from(if output::interrupted() { 130 } else { 1 })
        }
    }
}
