//! What the commands print: progress, results, and files for the user. Also the interruption by a
//! signal.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fabric::owner::write_for_user;
use fabric::progress::Interrupted;
pub(crate) use fabric::progress::note;
use indicatif::ProgressBar;
use serde::Serialize;
use terminal::{escape, escape_lines};

use crate::arguments::Output;

/// The result of a command.
pub(crate) type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Set on SIGINT, SIGTERM and SIGHUP. Long operations check it.
pub(crate) fn interrupt() -> &'static Arc<AtomicBool> {
    static INTERRUPT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    INTERRUPT.get_or_init(Arc::default)
}

pub(crate) fn interrupted() -> bool {
    interrupt().load(Ordering::Relaxed)
}

/// Reports progress: one changing line on a terminal, separate lines otherwise.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// The text that was reported last.
    last: Mutex<String>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, start: Instant::now(), last: Mutex::default() }
    }

    pub(crate) fn report(&self, text: &str) -> Result<(), Interrupted> {
        let (seconds, text) = (self.start.elapsed().as_secs(), &*escape(text));
        if std::io::stderr().is_terminal() {
            self.bar.set_message(format!("{seconds:>3} s  {text}"));
        } else if self.is_new(text) {
            // A closed standard error must not stop the work.
            let _ = writeln!(io::stderr(), "{seconds:>3} s  {text}");
        }
        if interrupted() { Err(Interrupted) } else { Ok(()) }
    }

    /// Whether the text differs from the last one.
    fn is_new(&self, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, text.to_owned()) != text
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a line. It is no error if the reader has closed the pipe (`lab list | head -1`).
pub(crate) fn print(line: impl fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{}", escape_lines(&line.to_string())) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

pub(crate) fn print_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string_pretty(value)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a result as JSON or as text.
pub(crate) fn show(result: &(impl Serialize + fmt::Display), output: Output) -> Outcome {
    if output == Output::Json {
        return print_json(result);
    }
    print(result)?;
    Ok(ExitCode::SUCCESS)
}

/// The exit status of a command whose result is good or not.
pub(crate) fn status(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a file for the user who called `sudo`.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    write_for_user(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The path of vtepd: the one that is named, or the one in the folder of lab.
pub(crate) fn vtepd(named: Option<&PathBuf>) -> io::Result<PathBuf> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("vtepd"));
    std::path::absolute(named.cloned().map_or_else(beside, Ok)?)
}

/// The same, if it is there.
pub(crate) fn built_vtepd(named: Option<&PathBuf>) -> Result<PathBuf, Box<dyn Error>> {
    let path = vtepd(named)?;
    if path.exists() {
        return Ok(path);
    }
    let missing = "is missing: build it with 'cargo build --release -p vtepd', or name it with";
    Err(format!("{} {missing} --vtepd", path.display()).into())
}

/// A path as a word of a shell's command.
pub(crate) fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_can_be_copied_into_a_shell() {
        let of = |text: &str| word(Path::new(text));
        assert_eq!(of("a/b-c.clab.yml"), "a/b-c.clab.yml");
        assert_eq!(of("d ir/ü.yml"), "'d ir/ü.yml'");
        assert_eq!(of("it's"), "'it'\\''s'");
        assert_eq!(of(""), "''");
    }
}
