//! The command line of the program itself.

#![cfg(test)]

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
    let output = vtepd(&["--help"]).stdout(unread()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("panicked"), "{}: {said}", output.status);
}
