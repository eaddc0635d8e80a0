//! The lengths of files and functions of the crates in `crates/`, without their tests.

use std::path::Path;

use crate::sources;

/// Lines of the longest source file.
const FILE: usize = 500;
/// Lines of the longest function, from its name to its closing brace.
const FUNCTION: usize = 80;

/// Files, and functions as `FILE FUNCTION`, that may be longer, each with its reason.
const LONG: [(&str, &str); 0] = [];

/// Those that are being split.
const PENDING: [&str; 18] = [
    "crates/vtepd/src/takeover.rs prepare",
    "crates/bpf/programs/steering.bpf.c",
    "crates/bpf/src/bypass.rs",
    "crates/netlink/src/request.rs",
    "crates/pipeline/src/bridge.rs",
    "crates/tables/src/snapshot.rs",
    "crates/telemetry/src/exposition.rs",
    "crates/telemetry/src/exposition.rs vnis",
    "crates/vtepctl/src/commands.rs",
    "crates/vtepctl/src/commands.rs answer",
    "crates/vtepctl/src/commands.rs counters",
    "crates/vtepd/src/api/tell.rs counters",
    "crates/vtepd/src/config.rs load",
    "crates/vtepd/src/daemon.rs run_until_replaced",
    "crates/vtepd/src/metrics_view.rs view",
    "crates/vtepd/src/standalone.rs",
    "crates/wire/src/dissect.rs",
    "crates/worker/src/worker.rs",
];

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
        if !path.starts_with("crates/") || path.contains("/tests/") {
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
    let listed =
        |what: &str| LONG.iter().any(|(named, _)| *named == what) || PENDING.contains(&what);
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
