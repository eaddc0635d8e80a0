//! What runs as one process.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::Outcome;

/// A test, the tests of a target, or a command.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The target with the name of the test, or the name of the command.
    pub(crate) name: String,
    /// How it runs.
    pub(crate) kind: Kind,
    /// Whether it runs only when a core is idle: `SCHED_IDLE`.
    is_idle: bool,
    words: Vec<String>,
    folder: PathBuf,
}

/// How a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A command that the command line names.
    Command,
    /// One root test.
    Root,
    /// One root test that nothing runs beside.
    Alone,
    /// All tests of a target with the harness of rustc.
    Others,
}

impl Job {
    /// A shell command, which runs where this program does.
    pub(crate) fn command(name: &str, command: &str) -> Self {
        let words = ["bash", "-c", command].map(str::to_owned).to_vec();
        let (name, folder) = (name.to_owned(), PathBuf::from("."));
        Self { name, kind: Kind::Command, is_idle: false, words, folder }
    }

    /// The same, only when a core is idle.
    pub(crate) fn when_idle(self) -> Self {
        Self { is_idle: true, ..self }
    }

    /// Tests of a program.
    pub(crate) fn test(
        name: String,
        kind: Kind,
        program: &Path,
        arguments: &[&str],
        folder: &Path,
    ) -> Self {
        let mut words = vec![program.to_string_lossy().into_owned()];
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Self { name, kind, is_idle: false, words, folder: folder.to_owned() }
    }

    /// The time after which it is ended, in seconds: longer than any wait of a test, so that the test
    /// says what it waited for, and than what runs when a core is idle waits for one.
    fn limit(&self) -> u32 {
        if self.kind == Kind::Command || self.is_idle { 1800 } else { 600 }
    }

    /// The process. timeout(1) ends its whole group, at the limit and on a signal. `may_idle`: one that
    /// runs when a core is idle does so; otherwise it has an ordinary priority.
    pub(crate) fn process(&self, may_idle: bool) -> Command {
        let mut words: Vec<String> = Vec::new();
        // Commands ask for the privilege themselves.
        if self.kind != Kind::Command && !nix::unistd::geteuid().is_root() {
            words.extend(["sudo", "-E"].map(str::to_owned));
        }
        let limit = self.limit().to_string();
        words.extend(["timeout", "--signal=INT", "--kill-after=20", &limit].map(str::to_owned));
        if self.is_idle && may_idle {
            words.extend(["chrt", "--idle", "0"].map(str::to_owned));
        }
        words.extend(self.words.iter().cloned());
        let mut command = Command::new(words.remove(0));
        command.args(words).current_dir(&self.folder);
        if self.kind != Kind::Command {
            command.env("CARGO_MANIFEST_DIR", &self.folder);
        }
        if self.kind == Kind::Others {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    /// What the process printed, understood.
    pub(crate) fn outcome(&self, is_success: bool, log: &str, seconds: f64) -> Outcome {
        match self.kind {
            Kind::Root | Kind::Alone => Outcome::of_test(&self.name, is_success, log, seconds),
            Kind::Others => Outcome::of_tests(&format!("{} ", self.name), is_success, log, seconds),
            Kind::Command => Outcome::of_tests("", is_success, log, seconds),
        }
    }
}
