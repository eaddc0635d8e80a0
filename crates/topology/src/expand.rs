//! Replaces variables such as `${NAME}` in a topology file before the YAML is parsed, as
//! ContainerLab does. Every other `$` belongs to a command, and stays.

use super::error::TopologyError;

/// Looks up a variable of the environment.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The most levels of defaults within defaults. Deeper ones stay as they are.
const MOST_LEVELS: usize = 16;
/// The most bytes within brackets. More stay as they are.
const LONGEST: usize = 4096;

/// Replaces variables with the values of `lookup`:
///
/// - `$NAME` and `${NAME}`; they stay as they are if the variable is not set
/// - `${NAME-x}`, `${NAME=x}`: `x` if it is not set; with `:-` and `:=` also if it is empty
/// - `${NAME+x}`: `x` if it is set, otherwise nothing; with `:+` only if it is not empty
/// - `${NAME?x}`: refused with the message `x` if it is not set; with `:?` also if it is empty
/// - `$$NAME` and `$${`: `$NAME` and `${`
///
/// `x` may have variables, too. Comment lines stay.
///
/// # Errors
/// [`TopologyError::Variable`] for `?`.
pub(crate) fn expand(
    text: &str,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, TopologyError> {
    let mut result = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_start().starts_with('#') {
            result.push_str(line);
        } else {
            expand_line(line, &lookup, index + 1, MOST_LEVELS, &mut result)?;
        }
    }
    Ok(result)
}

fn expand_line(
    text: &str,
    lookup: Lookup,
    line: usize,
    levels: usize,
    result: &mut String,
) -> Result<(), TopologyError> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        rest = if let Some(escaped) = after.strip_prefix('$') {
            let is_variable = escaped.starts_with('{') || name_length(escaped) > 0;
            result.push_str(if is_variable { "$" } else { "$$" });
            // The name is text now.
            let name = name_length(escaped).max(usize::from(escaped.starts_with('{')));
            let (name, rest) = escaped.split_at(name);
            result.push_str(name);
            rest
        } else if let Some((expression, rest)) = (levels > 0).then(|| braced(after)).flatten() {
            replace(expression, lookup, line, levels, result)?;
            rest
        } else {
            let (name, rest) = after.split_at(name_length(after));
            match lookup(name).filter(|_| !name.is_empty()) {
                Some(value) => result.push_str(&value),
                None => result.extend(["$", name]),
            }
            rest
        };
    }
    result.push_str(rest);
    Ok(())
}

/// The length in bytes of the name at the beginning of `text`; 0 if it begins with none.
fn name_length(text: &str) -> usize {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return 0;
    }
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Splits the text behind a `$` at the bracket that closes its first one.
fn braced(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('{')?;
    let mut open = 1usize;
    for (at, byte) in inner.bytes().enumerate().take(LONGEST) {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some((inner.get(..at)?, inner.get(at + 1..)?));
        }
    }
    None
}

/// Appends what replaces `${EXPRESSION}`.
fn replace(
    expression: &str,
    lookup: Lookup,
    line: usize,
    levels: usize,
    result: &mut String,
) -> Result<(), TopologyError> {
    let (name, rest) = expression.split_at(name_length(expression));
    let value = lookup(name);
    let (operator, present) = match rest.strip_prefix(':') {
        Some(operator) => (operator, value.as_deref().is_some_and(|value| !value.is_empty())),
        None => (rest, value.is_some()),
    };
    let value = value.unwrap_or_default();
    let word = operator.get(1..).unwrap_or_default();
    let has_name = !name.is_empty();
    match operator.chars().next().filter(|_| has_name) {
        Some('-' | '=' | '?') if present => result.push_str(&value),
        Some('-' | '=') => expand_line(word, lookup, line, levels - 1, result)?,
        Some('+') if present => expand_line(word, lookup, line, levels - 1, result)?,
        Some('+') => {}
        Some('?') => {
            return Err(TopologyError::Variable {
                line,
                name: name.to_owned(),
                message: word.to_owned(),
            });
        }
        None if has_name && rest.is_empty() && present => result.push_str(&value),
        // A shell's own, such as ${name%.*}.
        _ => result.extend(["${", expression, "}"]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        expand(text, |name| match name {
            "SET" => Some("value".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn variables_and_their_defaults() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a ${SET} b", "a value b"),
            ("$SET/x", "value/x"),
            ("${SET:-other}", "value"),
            ("${EMPTY:-other}", "other"),
            ("${EMPTY-other}|${EMPTY}|$EMPTY", "||"),
            ("${UNSET-other}", "other"),
            ("${UNSET=other}", "other"),
            ("${UNSET:=quay.io/a/b:1}!", "quay.io/a/b:1!"),
            ("${UNSET:-${SET}-${GONE:-x}}!", "value-x!"),
            ("${SET+x}${SET:+y}${EMPTY+z}${EMPTY:+a}${UNSET+b}${UNSET:+c}", "xyz"),
            ("${SET?gone}", "value"),
            ("# about $SET\nx: $SET\n", "# about $SET\nx: value\n"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_a_shell_replaces_stays() {
        for text in [
            "for n in 1 2; do echo $n ${n} ${n%.*} ${#n} ${n//a/b}; done",
            "awk '{print $1, $2}'",
            "echo $(hostname) $? $! $@ $* $# $0 $- $$",
            "PS1=r1$ ",
            "grep 'x$'",
            "cost: 5$",
            "${open",
            "${}",
        ] {
            assert_eq!(expanded(text).unwrap(), text);
        }
        for (text, expected) in [
            ("$$SET", "$SET"),
            ("$${SET}", "${SET}"),
            ("$$n.$SET", "$n.value"),
            ("$$$SET", "$$value"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_required_variable_is_named_with_its_line() {
        let error = expanded("\n${UNSET:?name the image}").unwrap_err();
        assert!(error.contains("line 2") && error.contains("UNSET: name the image"), "{error}");
        assert!(expanded("${EMPTY:?}").is_err() && expanded("${EMPTY?}").is_ok());
    }

    #[test]
    fn deep_defaults_end() {
        let text = "${A:-".repeat(10_000) + &"}".repeat(10_000);
        assert!(expanded(&text).is_ok());
    }
}
