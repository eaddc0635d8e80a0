//! Replaces variables such as `${NAME}` in a topology file before the YAML is parsed, as
//! ContainerLab does.

use super::error::TopologyError;

/// Replaces `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:=default}` with the values of
/// `lookup`. An unset variable without a default is an error; ContainerLab would insert nothing.
pub(crate) fn expand(
    text: &str,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, TopologyError> {
    // Variables in comments are not replaced.
    text.split_inclusive('\n')
        .map(|line| {
            if line.trim_start().starts_with('#') {
                Ok(line.to_owned())
            } else {
                expand_line(line, &lookup)
            }
        })
        .collect()
}

fn expand_line(
    line: &str,
    lookup: &impl Fn(&str) -> Option<String>,
) -> Result<String, TopologyError> {
    let mut result = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let (expression, remaining) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or_else(|| TopologyError::Variable {
                expression: after.trim_end().to_owned(),
            })?,
            None => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                after.split_at(end)
            }
        };
        result.push_str(&value(expression, lookup)?);
        rest = remaining;
    }
    result.push_str(rest);
    Ok(result)
}

fn value(
    expression: &str,
    lookup: &impl Fn(&str) -> Option<String>,
) -> Result<String, TopologyError> {
    let refused = || TopologyError::Variable { expression: expression.to_owned() };
    let (name, default) = match expression.split_once(':') {
        None => (expression, None),
        Some((name, default)) => {
            (name, Some(default.strip_prefix(['-', '=']).ok_or_else(refused)?))
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(refused());
    }
    lookup(name)
        .filter(|value| !value.is_empty())
        .or(default.map(str::to_owned))
        .ok_or_else(refused)
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
            ("${UNSET:=quay.io/a/b:1}!", "quay.io/a/b:1!"),
            ("# about $UNSET\nx: $SET\n", "# about $UNSET\nx: value\n"),
        ] {
            assert_eq!(expanded(text).unwrap(), expected);
        }
    }

    #[test]
    fn what_cannot_be_replaced_is_refused_by_name() {
        for text in ["${UNSET}", "$UNSET", "${UNSET:?gone}", "${open", "${}", "cost: 5$"] {
            assert!(expanded(text).unwrap_err().contains("cannot replace"), "{text}");
        }
        assert!(expanded("a ${WHERE} b").unwrap_err().contains("WHERE"));
    }
}
