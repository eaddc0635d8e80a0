//! The command line of the program itself.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::io::PipeWriter;
use std::process::{Command, Stdio};

fn vtepd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtepd"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// The writing end of a pipe whose reader is closed.
fn unread() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let arguments: &[&[&str]] = if nix::unistd::geteuid().is_root() {
        &[&["--help"], &["--dry-run"], &["--dry-run", "--output", "json"]]
    } else {
        println!("SKIPPED a_reader_that_has_gone_is_no_error/dry-run: needs root");
        &[&["--help"]]
    };
    for arguments in arguments {
        let output = vtepd(arguments).stdout(unread()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && !said.contains("panicked"),
            "{arguments:?}: {}: {said}",
            output.status
        );
    }
}
