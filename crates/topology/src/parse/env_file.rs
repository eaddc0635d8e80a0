//! Environment files, with the rules of ContainerLab's parser (joho/godotenv).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::value::{Result, expected};
use crate::error::TopologyError;

/// What a line of an environment file must be.
const FORM: &str = "lines of NAME=value, quotes closed";

/// The variables of files; later files win.
///
/// # Errors
/// [`TopologyError::Read`], or [`TopologyError::Expected`] with the file.
pub(super) fn read(files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for path in files {
        let text = experiment::input::read_text(path)
            .map_err(|source| TopologyError::Read { path: path.clone(), source })?;
        let own = parse(&text).ok_or_else(|| expected(&path.display().to_string(), FORM))?;
        all.extend(own);
    }
    Ok(all)
}

/// Parses a file:
///
/// - `NAME=value`, `export NAME=value`, `NAME: value`; white space around the value is not part of it
/// - the last ` #` of a line begins a comment, and so does `#` at its beginning
/// - `'value'` is taken as it is; `"value"` has `\n`, `\r` and `\"`; both may have several lines
/// - outside of `'`, `$NAME` and `${NAME}` are variables of this file, with names of capital letters,
///   digits and `_`; one that is not set is empty
///
/// Returns `None` if a line has another form.
fn parse(text: &str) -> Option<BTreeMap<String, String>> {
    let text = text.replace("\r\n", "\n");
    let mut variables = BTreeMap::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            continue;
        }
        let (name, value) = name(rest)?;
        let (value, after) = match value.chars().next() {
            Some(quote @ ('\'' | '"')) => quoted(value, quote, &variables)?,
            _ => plain(value, &variables),
        };
        variables.insert(name.to_owned(), value);
        rest = after.trim_start();
    }
    Some(variables)
}

/// The name at the beginning of a line, and what is behind `=` or `:`.
fn name(line: &str) -> Option<(&str, &str)> {
    let exported = line.strip_prefix("export").filter(|rest| rest.starts_with([' ', '\t']));
    let line = exported.unwrap_or(line).trim_start();
    let (name, value) = line.split_once(['=', ':'])?;
    let name = name.trim_matches([' ', '\t']);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    (!name.is_empty() && name.chars().all(fits))
        .then(|| (name, value.trim_start_matches([' ', '\t'])))
}

/// A value without quotes, up to the end of its line.
fn plain<'a>(text: &'a str, variables: &BTreeMap<String, String>) -> (String, &'a str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    let comment = line.rmatch_indices('#').map(|(at, _)| at);
    let comment = comment
        .into_iter()
        .find(|at| line.get(..*at).is_some_and(|before| before.ends_with(char::is_whitespace)));
    let value = comment.and_then(|at| line.get(..at)).unwrap_or(line);
    (expand(value.trim(), variables), rest)
}

/// A value in quotes. `None` if they are not closed.
fn quoted<'a>(
    text: &'a str,
    quote: char,
    variables: &BTreeMap<String, String>,
) -> Option<(String, &'a str)> {
    let inner = text.strip_prefix(quote)?;
    let is_end = |at: &usize| !inner.get(..*at).is_some_and(|before| before.ends_with('\\'));
    let end = inner.match_indices(quote).map(|(at, _)| at).find(is_end)?;
    let (value, rest) = (inner.get(..end)?, inner.get(end + 1..)?);
    Some((if quote == '"' { expand(&unescape(value), variables) } else { value.to_owned() }, rest))
}

/// Replaces `\n` and `\r`, and removes other backslashes but those before `$`.
fn unescape(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match characters.next() {
            Some('n') => result.push('\n'),
            Some('r') => result.push('\r'),
            Some('$') => result.push_str("\\$"),
            Some(other) => result.push(other),
            None => result.push('\\'),
        }
    }
    result
}

/// Replaces `$NAME` and `${NAME}`. `\$` is `$`.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        if let Some(before) = before.strip_suffix('\\') {
            result.extend([before, "$"]);
            rest = after;
            continue;
        }
        result.push_str(before);
        let inner = after.strip_prefix('{').unwrap_or(after);
        let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let end = inner.find(|c| !fits(c)).unwrap_or(inner.len());
        let (name, behind) = inner.split_at(end);
        if name.is_empty() {
            result.push('$');
            rest = after;
        } else {
            result.push_str(variables.get(name).map_or("", String::as_str));
            rest = behind.strip_prefix('}').unwrap_or(behind);
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_containerlab() {
        let text = "# a comment\n\nA=plain text # remark\n  export B=\"with spaces\" # remark\nC='$A # x'\n\
                    D: yaml\nE=${A}/$B.$NONE|\nF=\"line\\nnext \\\"$D\\\" \\$D\"\nG=\nH=a#b\nI=\"two\nlines\"\n\
                    J=$(date) $x\r\nK.L = 5 \n";
        let variables = parse(text).unwrap();
        for (name, value) in [
            ("A", "plain text"),
            ("B", "with spaces"),
            ("C", "$A # x"),
            ("D", "yaml"),
            ("E", "plain text/with spaces.|"),
            ("F", "line\nnext \"yaml\" $D"),
            ("G", ""),
            ("H", "a#b"),
            ("I", "two\nlines"),
            ("J", "$(date) $x"),
            ("K.L", "5"),
        ] {
            assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(variables.len(), 11);
        for wrong in ["NAME", "=x", "A B=1", "A='open", "A=\"open\\\"", "A=1\nNAME\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
