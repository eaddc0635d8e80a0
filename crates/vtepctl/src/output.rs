//! Tables, JSON and errors.

use std::io::{self, Write};

use serde::Serialize;

/// An error, with text for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There is no daemon to talk to.
    #[error(transparent)]
    Connect(#[from] api::ConnectError),
    /// The daemon refused the request or did not answer.
    #[error("{}", said(.0))]
    Refused(#[from] tonic::Status),
    /// The answer cannot be written.
    #[error("the answer cannot be written: {0}")]
    Output(#[from] io::Error),
    /// The user's input is invalid.
    #[error("{0}")]
    Input(String),
}

impl Failure {
    /// Whether the reader of the output has closed the pipe, which is not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The text for a status of the API.
fn said(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::Unimplemented => {
            "this vtepd is older than vtepctl and does not know that request".to_owned()
        }
        tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
            format!("vtepd does not answer ({}): look at its log", status.message())
        }
        tonic::Code::Unavailable | tonic::Code::Unknown => {
            format!(
                "the connection to vtepd is gone ({}): it was stopped, or it is being",
                status.message()
            )
        }
        _ => status.message().to_owned(),
    }
}

/// These cells, and empty ones behind them.
pub(crate) fn filled<T: Default, const N: usize>(mut cells: impl Iterator<Item = T>) -> [T; N] {
    let filled = std::array::from_fn(|_| cells.next().unwrap_or_default());
    debug_assert!(cells.next().is_none(), "more than {N} cells");
    filled
}

/// Rows under headings. Columns are two spaces apart, and columns of numbers are right-aligned.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    headings: [&'static str; N],
    rows: Vec<[String; N]>,
    /// Columns that are left out.
    hidden: [bool; N],
}

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub(crate) const fn new(headings: [&'static str; N]) -> Self {
        Self { headings, rows: Vec::new(), hidden: [false; N] }
    }

    /// A table without rows, whose headings are between bars.
    pub(crate) fn of(headings: &'static str) -> Self {
        debug_assert_eq!(headings.split('|').count(), N, "columns of {headings}");
        Self::new(filled(headings.split('|')))
    }

    /// Whether it has no rows.
    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Leaves out the columns that say nothing of any row: those with these headings and nothing but
    /// the cell that is named with each. Comma-separated values keep them.
    pub(crate) fn leave_out(&mut self, empty: &[(&'static str, &str)]) {
        for (hidden, (at, heading)) in self.hidden.iter_mut().zip(self.headings.iter().enumerate())
        {
            let nothing = empty.iter().find(|(name, _)| name == heading).map(|(_, cell)| *cell);
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            *hidden = nothing.is_some_and(|nothing| cells.into_iter().all(|cell| cell == nothing));
        }
    }

    /// Adds a row. Empty cells are shown as `-`.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| match cell.as_str() {
            "" => "-".to_owned(),
            // Before its width is known.
            cell => terminal::escape(cell).into_owned(),
        }));
    }

    /// Writes the table as comma-separated values (RFC 4180). No cell needs quotes unless it has a
    /// comma. Names of columns are words for programs: `age_s`, `kB_per_s`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(crate) fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        let name = |heading: &str| {
            let words = heading.replace('%', "percent").replace("/s", "_per_s");
            words.replace(' ', "_")
        };
        writeln!(out, "{}", self.headings.map(name).join(","))?;
        for row in &self.rows {
            let cell = |cell: &String| match cell.as_str() {
                "-" => String::new(),
                text if text.contains(',') => format!("\"{text}\""),
                text => text.to_owned(),
            };
            writeln!(out, "{}", row.iter().map(cell).collect::<Vec<_>>().join(","))?;
        }
        Ok(())
    }

    /// Writes the table, each line after `indent`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(crate) fn write(&self, out: &mut impl Write, indent: &str) -> io::Result<()> {
        let mut widths = self.headings.map(|heading| heading.chars().count());
        let mut numeric = [true; N];
        for row in &self.rows {
            for ((cell, width), numeric) in row.iter().zip(&mut widths).zip(&mut numeric) {
                *width = (*width).max(cell.chars().count());
                *numeric &= cell == "-" || cell.bytes().all(|byte| byte.is_ascii_digit());
            }
        }
        let headings = self.headings.map(str::to_owned);
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = indent.to_owned();
            let cells = row.iter().zip(widths).zip(numeric).zip(self.hidden);
            for ((cell, width), numeric) in cells.filter(|(_, hidden)| !hidden).map(|(of, _)| of) {
                line += &if numeric {
                    format!("{cell:>width$}  ")
                } else {
                    format!("{cell:<width$}  ")
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Writes a value as JSON.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_blanks_are_shown() {
        let mut table = Table::new(["vni", "netdev", "mac"]);
        table.row(["10".to_owned(), "vx10".to_owned(), String::new()]);
        table.row(["10010".to_owned(), "v".to_owned(), "02:00:00:00:00:01".to_owned()]);
        let mut text = Vec::new();
        table.write(&mut text, " ").unwrap();
        let expected =
            "   vni  netdev  mac\n    10  vx10    -\n 10010  v       02:00:00:00:00:01\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let mut csv = Vec::new();
        table.write_csv(&mut csv).unwrap();
        assert_eq!(csv, b"vni,netdev,mac\n10,vx10,\n10010,v,02:00:00:00:00:01\n");
        let mut hostile = Table::new(["port", "vni"]);
        hostile.row(["p\u{1b}[31mX".to_owned(), "10".to_owned()]);
        let mut text = Vec::new();
        hostile.write(&mut text, "").unwrap();
        assert_eq!(text, b"port          vni\np\\u001b[31mX   10\n");
        let mut nothing = Vec::new();
        Table::new(["vni", "mac"]).write(&mut nothing, "").unwrap();
        assert_eq!(nothing, b"vni  mac\n");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = |kind| Failure::Output(io::Error::from(kind)).is_closed_pipe();
        assert!(closed(io::ErrorKind::BrokenPipe) && !closed(io::ErrorKind::StorageFull));
        // serde_json wraps the error of the writer.
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(Failure::Output(json(&mut Closed, &[1, 2]).unwrap_err()).is_closed_pipe());
    }
}
