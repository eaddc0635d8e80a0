//! A connection to vtepd, and the output of its answers.

use std::io::{self, Write};

use api::Client;
use serde::Serialize;
use tonic::Streaming;

use crate::arguments::Output;
use crate::output::{Failure, json};

/// A connection to vtepd, with the format and the destination of the output.
pub(crate) struct Session<'a, W> {
    pub client: Client,
    pub output: Output,
    pub out: &'a mut W,
}

impl<W: Write> Session<'_, W> {
    /// Writes an answer in the requested format.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(crate) fn print(
        &mut self,
        answer: &impl Serialize,
        table: impl FnOnce(&mut W) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let written = match self.output {
            Output::Table => table(self.out),
            Output::Json => json(self.out, answer),
        };
        Ok(written?)
    }
}

/// Collects all rows of a list.
///
/// # Errors
/// When the daemon ends before the list is complete.
pub(crate) async fn all<T>(answer: tonic::Response<Streaming<T>>) -> Result<Vec<T>, tonic::Status> {
    let mut stream = answer.into_inner();
    let mut rows = Vec::new();
    while let Some(row) = stream.message().await? {
        rows.push(row);
    }
    Ok(rows)
}
