//! vtepctl: asks a running vtepd. It knows nothing but what the API tells.
//!
//! - [`arguments`]: the command line
//! - [`commands`]: what each command asks, and its table
//! - [`status`], [`explain_text`]: the two answers that are no table
//! - [`events`]: one line for each event
//! - [`explain`]: which frame is asked about, from [`flow`] (a description) or [`pcap`] (a capture)
//! - [`bench`]: the one that asks nobody: what vtepd costs on this machine
//! - [`bench_report`]: its figures, and what is said of them
//! - [`output`]: tables, JSON, and readers that go away

mod arguments;
mod bench;
mod bench_report;
mod commands;
mod events;
mod explain;
mod explain_text;
mod flow;
mod output;
mod pcap;
mod status;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("vtepctl: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(commands::run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        // `vtepctl fdb | head`: the reader has what it wanted.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtepctl: {error}");
            ExitCode::FAILURE
        }
    }
}
