//! The lengths of files and functions of the crates in `crates/`, without their tests and generated
//! code.

use std::path::Path;

use crate::sources;

/// Lines of the longest source file.
const FILE: usize = 500;
/// Lines of the longest function, from its name to its closing brace.
const FUNCTION: usize = 80;

/// Lines of the largest crate: what a reader can keep in mind.
const CRATE: usize = 10_000;

/// Files, and functions as `FILE FUNCTION`, that may be longer, each with its reason.
const LONG: [(&str, &str); 0] = [];

/// Whether a line starts a function. rustfmt has put its closing brace at the same indent.
fn starts_function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = public.trim_start_matches(|c| c != ' ').trim_start();
    }
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?.split(['(', '<']).next()?;
    (!line.ends_with([';', '}'])).then_some(name)
}

/// The functions of a file, with the number of their lines.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = starts_function(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &&str| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest == "}" || rest.ends_with(';') && !rest.starts_with(' '))
        };
        let length = lines[start..].iter().position(is_end).expect("an end of the function") + 1;
        found.push((name, length));
    }
    found
}

#[test]
fn functions_are_measured() {
    let text =
        "fn a() {}\npub(crate) async fn b<T>(\n    x: u8,\n) {\n    fn c() {\n    }\n}\nfn d();\n";
    assert_eq!(functions(text), [("b", 6), ("c", 2)]);
}

#[test]
fn no_file_or_function_is_too_long() {
    let mut long = Vec::new();
    for (path, text) in sources(&["rs", "c", "h"]) {
        let is_generated = path.contains("/generated/");
        if !path.starts_with("crates/") || path.contains("/tests/") || is_generated {
            continue;
        }
        let lines = text.lines().count();
        if lines > FILE {
            long.push((path.clone(), lines));
        }
        if Path::new(&path).extension().is_some_and(|extension| extension == "rs") {
            let functions = functions(&text).into_iter().filter(|(_, lines)| *lines > FUNCTION);
            long.extend(functions.map(|(name, lines)| (format!("{path} {name}"), lines)));
        }
    }
    let listed = |what: &str| LONG.iter().any(|(named, _)| *named == what);
    let wrong: Vec<_> = long.iter().filter(|(what, _)| !listed(what)).collect();
    assert!(
        wrong.is_empty(),
        "longer than {FILE} lines a file or {FUNCTION} a function: split them: {wrong:#?}"
    );
    for (named, _) in LONG {
        assert!(long.iter().any(|(what, _)| what == named), "{named} is in the list for nothing");
    }
    assert!(LONG.len() <= 5);
}

#[test]
fn no_crate_is_too_large() {
    let mut lines: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for (path, text) in sources(&["rs"]) {
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            continue;
        }
        let Some((name, "src", _)) = path.strip_prefix("crates/").and_then(|rest| {
            let (name, rest) = rest.split_once('/')?;
            let (folder, file) = rest.split_once('/')?;
            Some((name, folder, file))
        }) else {
            continue;
        };
        *lines.entry(name.to_owned()).or_default() += text.lines().count();
    }
    lines.retain(|_, lines| *lines > CRATE);
    assert!(lines.is_empty(), "more than {CRATE} lines: split the crates {lines:#?}");
}
