//! Tests of the `lab` executable.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_is_no_error() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED a_reader_that_has_gone_is_no_error: needs root");
        return;
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    let output = command
        .args(["list", "-o", "json"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
}
