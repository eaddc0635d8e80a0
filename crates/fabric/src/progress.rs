//! Progress reports of long operations, which also let the user interrupt them, and notes for the
//! user.

use std::fmt;
use std::io::{self, Write as _};

/// The user interrupted the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A callback that reports progress as a short text. If it returns an error, the work stops.
pub type OnProgress<'a> = &'a (dyn Fn(&str) -> Result<(), Interrupted> + Sync);

/// Prints a note for the user on standard error. What a terminal would obey is escaped.
pub fn note(text: impl fmt::Display) {
    // A closed standard error is no error.
    let _ = writeln!(io::stderr(), "lab: {}", terminal::escape_lines(&text.to_string()));
}
