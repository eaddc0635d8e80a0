//! A table as CSV (RFC 4180) has it.

use std::fmt;

use crate::swept;

/// The column with the names of variants.
const VARIANT: &str = "variant";

/// A table with a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csv {
    name: String,
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Csv {
    /// Parses the text of the file `name`. `None` if it has no header, or a line with another number
    /// of fields.
    #[must_use]
    pub fn parse(name: &str, text: &str) -> Option<Self> {
        let mut lines = records(text).into_iter();
        let columns = lines.next()?;
        let lines: Vec<Vec<String>> = lines.collect();
        let whole = lines.iter().all(|line| line.len() == columns.len());
        whole.then_some(Self { name: name.to_owned(), columns, lines })
    }

    /// The name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether there is such a column. A key of `[sweep]` is one if a variant has it.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let swept = || self.lines.iter().any(|line| self.swept(line, name).is_some());
        self.columns.iter().any(|column| column == name) || swept()
    }

    /// The lines after the header.
    #[must_use]
    pub fn lines(&self) -> &[Vec<String>] {
        &self.lines
    }

    /// The field of a line; `None` if there is no such column.
    #[must_use]
    pub fn field(&self, line: &[String], name: &str) -> Option<String> {
        let column = self.columns.iter().position(|column| column == name);
        column.and_then(|at| line.get(at).cloned()).or_else(|| self.swept(line, name))
    }

    /// The number of a key of `[sweep]` in the name of the variant.
    fn swept(&self, line: &[String], name: &str) -> Option<String> {
        let (key, _) = swept::KEYS.iter().find(|(key, _)| *key == name)?;
        let column = self.columns.iter().position(|column| column == VARIANT)?;
        Some(swept::value(line.get(column)?, key)?.to_string())
    }
}

impl fmt::Display for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.columns.join(", "))
    }
}

/// The records of a text, each with its fields.
fn records(text: &str) -> Vec<Vec<String>> {
    let (mut all, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut letters) = (false, text.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut field)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                record.push(std::mem::take(&mut field));
                all.push(std::mem::take(&mut record));
            }
            letter => field.push(letter),
        }
    }
    if !field.is_empty() || !record.is_empty() {
        record.push(field);
        all.push(record);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_and_lines_come_back() {
        let csv = Csv::parse("x.csv", "a,b\r\n\"1,\"\"2\"\"\n3\",4\n5,6").unwrap();
        assert_eq!(csv.lines(), [["1,\"2\"\n3", "4"], ["5", "6"]]);
        assert_eq!(csv.field(&csv.lines()[1], "b").as_deref(), Some("6"));
        assert!(csv.has("a") && !csv.has("delay"));
        assert_eq!(Csv::parse("x.csv", "a,b\n1\n"), None);
        assert_eq!(Csv::parse("x.csv", ""), None);
    }
}
