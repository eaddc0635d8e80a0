//! Text for terminals. Names of interfaces, names of hosts and the contents of files come from
//! others. The kernel allows control characters in the name of an interface, for example, and a
//! terminal obeys them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a terminal shows a character, and does nothing else with it. Those that change the
/// direction of the text around them are not shown (Unicode Standard Annex #9).
fn is_shown(character: char) -> bool {
    let directs = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !character.is_control() && !directs
}

fn replaced(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_kept) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_kept(character) {
            escaped.push(character);
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        }
    }
    Cow::Owned(escaped)
}

/// A text within a line. Each character that a terminal does not show becomes `\u001b`, as in a JSON
/// string.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    replaced(text, is_shown)
}

/// As [`escape`], but line breaks and tabs stay.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |character| is_shown(character) || matches!(character, '\n' | '\t'))
}

/// A writer to a terminal that escapes as [`escape_lines`]. JSON stays the same value.
#[derive(Debug)]
pub struct Escaped<W>(
    /// The terminal.
    pub W,
);

impl<W: Write> Write for Escaped<W> {
    /// Takes whole characters, as `write!` gives them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(escape_lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (text, expected) in [
            ("up1", "up1"),
            ("ü ✓ 日本", "ü ✓ 日本"),
            ("p\u{1b}[31mX", "p\\u001b[31mX"),
            ("a\u{7}\u{7f}\u{9b}0m", "a\\u0007\\u007f\\u009b0m"),
            ("a\u{202e}b\u{2066}", "a\\u202eb\\u2066"),
            ("a\nb\tc\r", "a\\u000ab\\u0009c\\u000d"),
        ] {
            assert_eq!(escape(text), expected);
        }
        assert_eq!(escape_lines("a\nb\tc\r"), "a\nb\tc\\u000d");
    }

    #[test]
    fn a_writer_escapes_and_json_keeps_its_value() {
        let mut out = Escaped(Vec::new());
        writeln!(out, "p\u{1b}c").unwrap();
        out.write_all(b"\xff\x9b").unwrap();
        out.write_all("\"\u{9b}\"".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "p\\u001bc\n\u{fffd}\u{fffd}\"\\u009b\"");
    }
}
