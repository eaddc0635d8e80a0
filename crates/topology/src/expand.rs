//! Replaces variables such as `${NAME}` in a topology file before the YAML is parsed, as
//! ContainerLab does with hellt/envsubst 0.2, which leaves variables that are not set.

use super::error::TopologyError;

/// Replaces variables with the values of `lookup`:
///
/// - `$NAME` and `${NAME}`: the value. If it is not set or empty, `$NAME` for both
/// - `${NAME-x}`, `${NAME=x}`: `x` if it is not set; with `:-` and `:=` also if it is empty
/// - `${NAME+x}`, `${NAME:+x}`: `x` if it is set, otherwise nothing
/// - `${NAME?x}`: refused with the message `x` if it is not set; with `:?` also if it is empty.
///   ContainerLab ignores `?x`
/// - `$$`: `$`, and what follows is no name
///
/// `x` ends at the first `}`. It is `$OTHER` for the value of another variable, or text. Names have
/// letters, digits and `_`, and do not begin with a digit. Other operators, such as a shell's
/// `${NAME%.*}`, are ignored. `$(`, `$1` and `${#NAME}` stay as they are, and so do comment lines, in
/// which ContainerLab replaces, too.
///
/// # Errors
/// [`TopologyError::Variable`] for `?`, [`TopologyError::OpenBracket`] without a `}` in the line.
pub(crate) fn expand(
    text: &str,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, TopologyError> {
    let mut result = String::with_capacity(text.len());
    for (line, text) in (1..).zip(text.split_inclusive('\n')) {
        if text.trim_start().starts_with('#') {
            result.push_str(text);
        } else {
            expand_line(text, &Variables { lookup: &lookup, line }, &mut result)?;
        }
    }
    Ok(result)
}

/// The variables of the environment, for a line of the file.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    line: usize,
}

fn expand_line(
    text: &str,
    variables: &Variables<'_>,
    result: &mut String,
) -> Result<(), TopologyError> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        rest = if let Some(escaped) = after.strip_prefix('$') {
            result.push('$');
            escaped
        } else if let Some(inner) = after.strip_prefix('{') {
            if inner.starts_with(|first: char| first.is_ascii_digit()) {
                result.push_str("${");
                inner
            } else {
                let line = variables.line;
                let (expression, rest) =
                    inner.split_once('}').ok_or(TopologyError::OpenBracket { line })?;
                result.push_str(&variables.replaced(expression)?);
                rest
            }
        } else {
            let (name, rest) = after.split_at(name_length(after));
            result.push_str(&variables.value(name));
            rest
        };
    }
    result.push_str(rest);
    Ok(())
}

/// The length in bytes of the name at the beginning of `text`; 0 if it begins with none.
fn name_length(text: &str) -> usize {
    let length = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let begins_with_digit = text.starts_with(|first: char| first.is_ascii_digit());
    if begins_with_digit || text.get(..length) == Some("_") { 0 } else { length }
}

impl Variables<'_> {
    /// The value of a variable; `$NAME` if it is not set or empty.
    fn value(&self, name: &str) -> String {
        let value = (self.lookup)(name).filter(|value| !name.is_empty() && !value.is_empty());
        value.unwrap_or_else(|| format!("${name}"))
    }

    /// What replaces `${EXPRESSION}`.
    fn replaced(&self, expression: &str) -> Result<String, TopologyError> {
        let (name, mut rest) = expression.split_at(name_length(expression));
        if name.is_empty() {
            return Ok(format!("${{{expression}}}"));
        }
        let (is_set, value) = ((self.lookup)(name).is_some(), self.value(name));
        let is_empty = (self.lookup)(name).is_none_or(|value| value.is_empty());
        if let Some(message) = rest.strip_prefix(":?").filter(|_| is_empty) {
            return Err(self.required(name, message));
        }
        if let Some(message) = rest.strip_prefix('?').filter(|_| !is_set) {
            return Err(self.required(name, message));
        }
        let (mut operator, mut default) = ("", None);
        while !rest.is_empty() {
            let found = [":-", ":=", ":+", "-", "=", "+"];
            let found = found.into_iter().find(|operator| rest.starts_with(*operator));
            if let Some(found) = found {
                (operator, rest) = rest.split_at(found.len());
            } else if let Some(other) = rest.strip_prefix('$') {
                let end = other.find(|c: char| !c.is_alphanumeric() && c != '_');
                let (other, behind) = other.split_at(end.unwrap_or(other.len()));
                (default, rest) = (Some(self.value(other)), behind);
            } else {
                (default, rest) = (Some(rest.to_owned()), "");
            }
        }
        Ok(match (operator, default) {
            (":-" | ":=", Some(default)) if is_empty => default,
            ("-" | "=", Some(default)) if !is_set => default,
            ("+" | ":+", Some(default)) if is_set => default,
            ("+" | ":+", Some(_)) => String::new(),
            _ => value,
        })
    }

    fn required(&self, name: &str, message: &str) -> TopologyError {
        let (name, message) = (name.to_owned(), message.to_owned());
        TopologyError::Variable { line: self.line, name, message }
    }
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

    /// The values are those that hellt/envsubst gives.
    #[test]
    fn variables_and_their_defaults() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a ${SET} b", "a value b"),
            ("$SET/x", "value/x"),
            ("${SET:-other}|${SET:-}", "value|value"),
            ("${EMPTY:-other}|${EMPTY-other}|${EMPTY}|$EMPTY", "other|$EMPTY|$EMPTY|$EMPTY"),
            ("${UNSET-other}|${UNSET:-}|${UNSET}x|$UNSET", "other|$UNSET|$UNSETx|$UNSET"),
            ("${UNSET=other}", "other"),
            ("${UNSET:=quay.io/a/b:1}!", "quay.io/a/b:1!"),
            ("${UNSET:-$SET}|${UNSET:-$GONE}|${UNSET:-a$SET}", "value|$GONE|a$SET"),
            ("${UNSET:-$SET/x}|${UNSET:-a-b}|${UNSET:--x}", "/x|a-b|x"),
            ("${UNSET:-${SET}}!|${UNSET:-$1}", "{SET}!|$1"),
            ("${SET+x}${SET:+y}${EMPTY+z}${EMPTY:+a}${UNSET+b}${UNSET:+c}", "xyza"),
            ("${SET?gone}|${EMPTY?}", "value|$EMPTY"),
            ("# about $SET ${\nx: $SET\n", "# about $SET ${\nx: value\n"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_a_shell_replaces_stays() {
        for text in [
            "for n in 1 2; do echo $n ${#n}; done",
            "awk '{print $1, $2}' ${1} $_ ${_}",
            "echo $(hostname) $? $! $@ $* $# $0 $-",
            "PS1=r1$ ",
            "grep 'x$'",
            "cost: 5$",
            "${}",
        ] {
            assert_eq!(expanded(text).unwrap(), text);
        }
        for (text, expected) in [
            ("$$SET", "$SET"),
            ("$${SET}", "${SET}"),
            ("$$n.$SET", "$n.value"),
            ("$$$SET", "$value"),
            ("$$(hostname) $$2 $$$$", "$(hostname) $2 $$"),
            // The text of a shell with other operators needs `$$`.
            ("${n%.*} ${n//a/b} $${n%.*}", "$n $n ${n%.*}"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_required_variable_is_named_with_its_line() {
        let error = expanded("\n${UNSET:?name the image}").unwrap_err();
        assert!(error.contains("line 2") && error.contains("UNSET: name the image"), "{error}");
        assert!(expanded("${EMPTY:?}").is_err() && expanded("${EMPTY?}").is_ok());
        let error = expanded("a\nb ${open\n}").unwrap_err();
        assert_eq!(error, "line 2: '${' without '}': write '$${' for a '${' of a command");
    }
}
