//! Splits commands into words, as ContainerLab's parser does (google/shlex).

use std::str::Chars;

/// The words of a command. Differs from a shell in double quotes: a backslash there takes the next
/// character as it is, whichever it is.
///
/// - white space separates words
/// - `'text'` is taken as it is; `"text"` has backslashes
/// - `#` at the beginning of a word begins a comment up to the end of the line
///
/// Returns `None` if quotes are open, or a backslash is the last character.
pub(super) fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = text.chars();
    while let Some(word) = word(&mut rest)? {
        words.push(word);
    }
    Some(words)
}

/// The next word; `Some(None)` at the end.
fn word(rest: &mut Chars) -> Option<Option<String>> {
    let mut word: Option<String> = None;
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\r' | '\n' if word.is_some() => break,
            ' ' | '\t' | '\r' | '\n' => continue,
            '#' if word.is_none() => {
                rest.find(|c| *c == '\n');
                continue;
            }
            _ => {}
        }
        let word = word.get_or_insert_default();
        match c {
            '\\' => word.push(rest.next()?),
            '\'' | '"' => loop {
                match rest.next()? {
                    end if end == c => break,
                    '\\' if c == '"' => word.push(rest.next()?),
                    other => word.push(other),
                }
            },
            c => word.push(c),
        }
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_containerlab() {
        for (text, words) in [
            ("", &[][..]),
            (" ip  link\tset\r\neth1 up ", &["ip", "link", "set", "eth1", "up"]),
            (r#"sh -c "printf 'a\tb'""#, &["sh", "-c", "printf 'atb'"]),
            (r#"echo "a\"b" "\$x" "\\" "\n""#, &["echo", "a\"b", "$x", "\\", "n"]),
            (r#"echo 'a\tb' 'a"b' a\ b \#c"#, &["echo", r"a\tb", "a\"b", "a b", "#c"]),
            (r#"a"b 'c"'d "e' "" ''"#, &["ab 'cd \"e", "", ""]),
            ("ls a#b # c 'd\nls", &["ls", "a#b", "ls"]),
            ("# all", &[]),
            ("echo '# ä' \"#\"", &["echo", "# ä", "#"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        for open in ["a 'b", "a \"b", "a \\", "\"a\\", "'"] {
            assert_eq!(split(open), None, "{open}");
        }
    }
}
