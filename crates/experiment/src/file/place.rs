//! Places in an experiment file, for errors.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::message;

/// The experiment file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not describe an experiment.
    #[error("{place}: {message}")]
    Invalid {
        /// The file, with line and column if they are known.
        place: Place,
        /// What is wrong, and what is expected.
        message: String,
    },
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The line and the column, from 1.
    pub position: Option<(usize, usize)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.position.map_or(Ok(()), |(line, column)| write!(f, ", line {line}, column {column}"))
    }
}

/// The text of an experiment file.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its text.
    pub text: &'a str,
}

impl Source<'_> {
    /// An error at a byte offset of the text.
    #[must_use]
    pub fn error(&self, offset: Option<usize>, message: impl Into<String>) -> FileError {
        let before = offset.and_then(|offset| self.text.get(..offset));
        let position = before.map(|before| {
            let line = before.rsplit('\n').next().unwrap_or_default();
            (before.matches('\n').count() + 1, line.chars().count() + 1)
        });
        let place = Place { path: self.path.to_owned(), position };
        FileError::Invalid { place, message: message.into() }
    }

    /// An error of the TOML parser.
    #[must_use]
    pub fn parse_error(&self, error: &toml::de::Error) -> FileError {
        let offset = error.span().map(|span| span.start);
        let rest = offset.and_then(|offset| self.text.get(offset..)).unwrap_or_default();
        self.error(offset, message::plain(error.message().trim(), rest))
    }

    /// An error at a value, by its keys and indices, such as `variant.0.workload.bytes`. If there is
    /// no such value, the error is at the value that would hold it.
    #[must_use]
    pub fn error_at(&self, keys: &str, message: impl Into<String>) -> FileError {
        self.error(self.find(keys).map(|(span, _)| span.start), message)
    }

    /// Whether the file has a value with these keys and indices.
    #[must_use]
    pub fn has(&self, keys: &str) -> bool {
        self.span(keys).is_some()
    }

    /// The bytes of a value, by its keys and indices.
    #[must_use]
    pub fn span(&self, keys: &str) -> Option<Range<usize>> {
        self.find(keys).filter(|(_, whole)| *whole).map(|(span, _)| span)
    }

    /// The bytes of a value or of what would hold it, and whether it is the value.
    fn find(&self, keys: &str) -> Option<(Range<usize>, bool)> {
        let table = DeTable::parse(self.text).ok()?;
        let mut keys = keys.split('.');
        let value = table.get_ref().get(keys.next()?)?;
        let (mut span, mut value) = (value.span(), value.get_ref());
        for key in keys {
            let next = match value {
                DeValue::Array(array) => key.parse::<usize>().ok().and_then(|at| array.get(at)),
                DeValue::Table(table) => table.get(key),
                _ => None,
            };
            let Some(next) = next else { return Some((span, false)) };
            (span, value) = (next.span(), next.get_ref());
        }
        Some((span, true))
    }
}
