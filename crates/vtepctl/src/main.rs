//! vtepctl: queries and controls a running vtepd. It knows only what the API reports.
//!
//! - [`arguments`]: the command line
//! - [`commands`]: the request of each command
//! - [`session`]: the connection to vtepd, and the output of its answers
//! - [`tables`], [`counters`]: answers as tables
//! - [`status`], [`explain_text`]: text output that is not a table
//! - [`events`]: one line for each event; [`drops`]: one for each dropped frame, by its [`headers`]
//! - [`capture`]: packets as lines, or as a file for Wireshark
//! - [`explain`]: the frame to explain, from a description or from [`pcap`] (a capture)
//! - [`top`]: figures and events on a terminal
//! - [`output`]: tables, JSON and errors

mod arguments;
mod capture;
mod commands;
mod counters;
mod drops;
mod events;
mod explain;
mod explain_text;
mod headers;
mod output;
mod pcap;
mod pinned;
mod session;
mod status;
mod tables;
mod top;

use std::process::ExitCode;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = manual::parse::<Arguments>();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("vtepctl: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(commands::run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        // `vtepctl fdb | head` closes the pipe early, which is not an error.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vtepctl: {}", terminal::escape_lines(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
