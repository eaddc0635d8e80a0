//! What a parser of values says, in the words of someone who writes files.

/// Names of values and types, and what they are called here.
const FOUND: [(&str, &str); 6] = [
    ("integer `", "the number "),
    ("floating point `", "the number "),
    ("boolean `", ""),
    ("string ", "the text "),
    ("map", "a table"),
    ("sequence", "a list"),
];
const WANTED: [(&str, &str); 14] = [
    ("a nonzero u32", "a whole number above 0"),
    ("f64", "a number"),
    ("u64", "a whole number, 0 or more"),
    ("u32", "a whole number, 0 or more"),
    ("u16", "a whole number, 0 to 65535"),
    ("u8", "a whole number, 0 to 255"),
    ("usize", "a whole number, 0 or more"),
    ("i64", "a whole number"),
    ("a string", "a text in quotes"),
    ("string", "a text in quotes"),
    ("a boolean", "true or false"),
    ("a sequence", "a list in [ ]"),
    ("a map", "a table"),
    ("struct", "a table"),
];
/// Names differ by at most this share of their letters, rounded up.
const SIMILAR: usize = 4;

/// The message of a parser without names of types, and with the name that was probably meant.
/// `rest`: the file from the wrong value on.
#[must_use]
pub fn plain(message: &str, rest: &str) -> String {
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|start| message.strip_prefix(start));
    if let Some((found, wanted)) = wrong.and_then(|text| text.rsplit_once(", expected ")) {
        // A table where a list of tables is expected.
        if (found, wanted) == ("map", "a sequence")
            && let Some((name, _)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            && !name.starts_with('[')
        {
            return format!("there may be several of these: write [[{name}]], not [{name}]");
        }
        return format!("this is {}: expected {}", value(found), kind(wanted));
    }
    match meant(message) {
        Some(name) => format!("{message}; did you mean `{name}`?"),
        None => message.to_owned(),
    }
}

/// A value in words.
fn value(found: &str) -> String {
    let known = FOUND.iter().find_map(|(start, word)| Some((found.strip_prefix(start)?, word)));
    match known {
        Some((rest, word)) => format!("{word}{}", rest.trim_end_matches('`')),
        None => found.to_owned(),
    }
}

/// A type in words.
fn kind(wanted: &str) -> &str {
    let is = |(name, _): &&(&str, &str)| wanted.split(' ').eq(name.split(' '));
    let of_struct = wanted.starts_with("struct ").then_some("a table");
    WANTED.iter().find(is).map(|(_, word)| *word).or(of_struct).unwrap_or(wanted)
}

/// The expected name that is most like the unknown one.
fn meant(message: &str) -> Option<&str> {
    let mut names = message.strip_prefix("unknown ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let near = names.map(|name| (distance(unknown, name), name)).min()?;
    (near.0 <= unknown.chars().count().div_ceil(SIMILAR)).then_some(near.1)
}

/// How many letters differ: to insert, to delete, to replace, or to exchange with the next one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // The last three rows of the table.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, own) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in b.iter().enumerate() {
            let at = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
            let replaced = at(&last, j) + usize::from(own != other);
            let mut least = replaced.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let turned = i > 0 && j > 0 && a.get(i - 1) == Some(other) && b.get(j - 1) == Some(own);
            if turned {
                least = least.min(at(&before, j - 1) + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_in_words() {
        for (said, words) in [
            (
                "invalid type: string \"x\", expected f64",
                "this is the text \"x\": expected a number",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "this is the number 1.5: expected a whole number, 0 or more",
            ),
            (
                "invalid value: integer `-1`, expected a nonzero u32",
                "this is the number -1: expected a whole number above 0",
            ),
            (
                "invalid type: boolean `true`, expected struct Traffic",
                "this is true: expected a table",
            ),
            ("invalid type: map, expected a sequence", "this is a table: expected a list in [ ]"),
            ("missing field `title`", "missing field `title`"),
        ] {
            assert_eq!(plain(said, "x = 1"), words);
        }
        let one = plain("invalid type: map, expected a sequence", "[published]\nwhat = 'x'");
        assert_eq!(one, "there may be several of these: write [[published]], not [published]");
    }

    #[test]
    fn a_name_that_was_meant() {
        let unknown = |name: &str| {
            plain(&format!("unknown field `{name}`, expected one of `sweep`, `sites`, `seed`"), "")
        };
        assert!(unknown("sweeps").ends_with("; did you mean `sweep`?"));
        assert!(unknown("swepe").ends_with("; did you mean `sweep`?"), "two letters exchanged");
        assert!(unknown("topology").ends_with("`seed`"), "{}", unknown("topology"));
        assert_eq!(distance("all-reduce-rnig", "all-reduce-ring"), 1);
        assert_eq!(
            [distance("", "abc"), distance("abc", ""), distance("kitten", "sitting")],
            [3, 3, 3]
        );
    }
}
