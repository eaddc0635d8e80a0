//! Test targets, as cargo builds them, and the tests in them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Error;
use crate::job::{Job, Kind};

/// A test program.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its package, and its own name unless it is the package's library or program.
    name: String,
    program: PathBuf,
    /// The folder of its package, where cargo runs tests.
    folder: PathBuf,
}

/// Cargo's message `compiler-artifact`; the fields that are used here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<MessageTarget>,
    profile: Option<MessageProfile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct MessageTarget {
    name: String,
}

#[derive(Deserialize)]
struct MessageProfile {
    test: bool,
}

/// All test targets of the workspace, or those with one of these names. Builds what is out of date.
pub(crate) fn built(names: &[String]) -> Result<Vec<Target>, Error> {
    let output = Command::new("cargo")
        .args(["test", "--no-run", "--locked", "--quiet"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Error::Build);
    }
    let mut targets = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Message = serde_json::from_str(line)?;
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let parts = (message.target, message.manifest_path, message.executable);
        let (Some(target), Some(manifest), Some(program)) = parts else { continue };
        if message.reason != "compiler-artifact" || !is_test {
            continue;
        }
        if !names.is_empty() && !names.contains(&target.name) {
            continue;
        }
        let folder = manifest.parent().ok_or(Error::Folder)?.to_owned();
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let name = match *package == *target.name {
            true => target.name,
            false => format!("{package}/{}", target.name),
        };
        targets.push(Target { name, program, folder });
    }
    Ok(targets)
}

impl Target {
    /// Its tests as jobs: a job for each root test, one for all others.
    pub(crate) fn jobs(&self, filter: Option<&str>, ignored: bool) -> Result<Vec<Job>, Error> {
        let mut command = Command::new(&self.program);
        command.args(["--list", "--format", "terse"]).current_dir(&self.folder);
        if ignored {
            command.arg("--ignored");
        }
        let output = command.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(Error::List(self.program.clone()));
        }
        let list = String::from_utf8_lossy(&output.stdout);
        let mut jobs = Vec::new();
        let mut has_others = false;
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let (kind, test) = match test.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
                Some(("alone", test)) => (Some(Kind::Alone), test),
                Some((_, test)) => (Some(Kind::Root), test),
                None => (None, test),
            };
            if !filter.is_none_or(|filter| test.contains(filter)) {
                continue;
            }
            let Some(kind) = kind else {
                has_others = true;
                continue;
            };
            let mut arguments = vec!["--exact", test];
            if ignored {
                arguments.push("--ignored");
            }
            let name = format!("{} {test}", self.name);
            jobs.push(Job::test(name, kind, &self.program, &arguments, &self.folder));
        }
        if has_others {
            // The harness of rustc tells times only to those who ask for what is unstable.
            let mut arguments = vec!["-Zunstable-options", "--report-time", "--test-threads=1"];
            arguments.extend(ignored.then_some("--ignored"));
            arguments.extend(filter);
            let name = self.name.clone();
            jobs.push(Job::test(name, Kind::Others, &self.program, &arguments, &self.folder));
        }
        Ok(jobs)
    }
}
