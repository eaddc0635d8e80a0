//! Progress reports of long operations, which also let the user interrupt them.

/// The user interrupted the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A callback that reports progress as a short text. If it returns an error, the work stops.
pub type OnProgress<'a> = &'a (dyn Fn(&str) -> Result<(), Interrupted> + Sync);
