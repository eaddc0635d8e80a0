//! The `lab` program, and fabrics that `lab new` writes.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use vtepd_tests::daemon::lab_program;

/// A folder for a fabric's files. Drop stops the fabric and deletes the folder.
pub(super) struct NewFabric {
    name: &'static str,
    folder: PathBuf,
}

impl NewFabric {
    /// Writes the files with these options of `lab new`.
    pub(super) fn new(name: &'static str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let files = Self { name, folder };
        let folder = files.folder.to_str().unwrap();
        let made = lab(&[&["new", folder, "--name", name], options].concat());
        assert!(made.status.success(), "{}", said(&made));
        files
    }

    pub(super) fn topology(&self) -> String {
        self.folder.join(format!("{}.clab.yml", self.name)).to_str().unwrap().to_owned()
    }
}

impl Drop for NewFabric {
    fn drop(&mut self) {
        let _ = lab(&["down", self.name]);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn lab(arguments: &[&str]) -> Output {
    Command::new(lab_program()).args(arguments).output().unwrap()
}

pub(super) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Runs `lab` with JSON output.
pub(super) fn ask(arguments: &[&str]) -> Value {
    let output = lab(&[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}
