//! The rules of "Crates" in ARCHITECTURE.md: dependencies between crates, files with `unsafe`, the
//! length of files and functions, and circles of imports.

mod cycles;
mod oldest_rust;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Crates of this project that each crate may use, as in ARCHITECTURE.md's table.
const MAY_USE: [(&str, &[&str]); 35] = [
    ("wire", &[]),
    ("path", &["wire", "spray"]),
    ("pathmap", &["wire", "path", "spray"]),
    ("tables", &["wire", "path"]),
    ("frame", &[]),
    ("spray", &["wire"]),
    ("sim", &["wire", "quantity", "roce", "spray"]),
    ("vteps", &["wire", "path", "frame", "spray", "tables", "pipeline", "ports", "sim"]),
    ("pipeline", &["wire", "path", "frame", "tables", "spray"]),
    ("roce", &["wire", "quantity"]),
    ("quantity", &[]),
    ("ports", &["wire", "frame", "netlink"]),
    ("bpf", &["wire", "path", "tables", "netlink"]),
    ("worker", &["wire", "frame", "tables", "pipeline", "ports", "bpf", "netlink"]),
    ("netlink", &["wire"]),
    ("fpm", &["netlink"]),
    ("control", &["wire", "path", "tables", "netlink", "fpm"]),
    ("telemetry", &["wire", "frame", "pipeline"]),
    ("api", &[]),
    (
        "configuration",
        &[
            "wire", "path", "pathmap", "tables", "pipeline", "ports", "bpf", "worker", "fpm",
            "control", "api",
        ],
    ),
    (
        "vtepd",
        &[
            "configuration",
            "wire",
            "path",
            "pathmap",
            "frame",
            "tables",
            "pipeline",
            "ports",
            "bpf",
            "worker",
            "netlink",
            "fpm",
            "control",
            "telemetry",
            "api",
            "manual",
            "terminal",
        ],
    ),
    ("vtepctl", &["wire", "api", "manual", "pcapng", "terminal"]),
    ("pcapng", &[]),
    ("experiment", &["quantity", "spray"]),
    ("planner", &[]),
    (
        "study",
        &[
            "path",
            "api",
            "roce",
            "experiment",
            "planner",
            "quantity",
            "fabric",
            "traffic",
            "wan",
            "sim",
            "vteps",
        ],
    ),
    (
        "lab",
        &[
            "api",
            "wire",
            "path",
            "roce",
            "experiment",
            "manual",
            "pcapng",
            "pipeline",
            "planner",
            "ports",
            "quantity",
            "fabric",
            "traffic",
            "wan",
            "sim",
            "study",
            "terminal",
            "testbed",
            "web",
        ],
    ),
    ("web", &["api", "experiment", "fabric", "netlink", "traffic"]),
    ("testbed", &["wire", "frame", "pipeline", "ports", "fabric"]),
    ("topology", &["wire", "experiment"]),
    ("fabric", &["wire", "frame", "netlink", "ports", "experiment", "terminal", "topology"]),
    ("traffic", &["wire", "frame", "netlink", "ports", "quantity", "roce", "experiment", "fabric"]),
    ("wan", &["wire", "netlink", "pipeline", "roce", "experiment", "fabric"]),
    ("terminal", &[]),
    ("manual", &[]),
];

/// Crates that access time, sockets or the system. The crates of the datapath may not use them.
const SYSTEM: [&str; 8] = ["tokio", "nix", "libc", "socket2", "aya", "axum", "netlink-sys", "mio"];
const PURE: [&str; 11] = [
    "wire", "path", "pathmap", "frame", "spray", "sim", "tables", "pipeline", "quantity", "roce",
    "planner",
];

/// Members of the workspace outside `crates/`.
const MEMBERS: [&str; 7] = [
    "tests",
    "tests/frames",
    "tests/macros",
    "tests/root-test",
    "tests/suite",
    "benches",
    "benches/frames",
];

/// Files with `unsafe` outside `ports` and `bpf`, each with its reason.
const UNSAFE: [(&str, &str); 1] = [(
    "benches/frames/src/counting.rs",
    "an allocator that counts; the trait is unsafe to implement",
)];

/// Files with `eprintln!`, each with its reason.
const PRINTS: [(&str, &str); 2] = [
    ("crates/vtepctl/src/capture.rs", "numbers"),
    ("crates/vtepctl/src/main.rs", "errors, which it escapes"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn manifest(folder: &Path) -> Table {
    let path = folder.join("Cargo.toml");
    std::fs::read_to_string(&path)
        .unwrap()
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every default member of the workspace: all but the fuzz targets.
fn members() -> BTreeMap<String, (PathBuf, Table)> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.extend(MEMBERS.map(|folder| root().join(folder)));
    let with_name = |folder: PathBuf| {
        let manifest = manifest(&folder);
        (manifest["package"]["name"].as_str().unwrap().to_owned(), (folder, manifest))
    };
    folders.into_iter().filter(|folder| folder.join("Cargo.toml").exists()).map(with_name).collect()
}

fn dependencies(manifest: &Table, section: &str) -> BTreeSet<String> {
    let direct = manifest.get(section);
    let targets = manifest.get("target").and_then(Value::as_table);
    let by_target =
        targets.into_iter().flat_map(Table::values).filter_map(|target| target.get(section));
    direct
        .into_iter()
        .chain(by_target)
        .flat_map(|table| table.as_table().unwrap().keys().cloned())
        .collect()
}

fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            files(&entry, extensions, found);
        } else if name.rsplit_once('.').is_some_and(|(_, end)| extensions.contains(&end)) {
            found.push(entry);
        }
    }
}

/// The files with these extensions: path from the root, and text.
fn sources(extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&root(), extensions, &mut found);
    let relative = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(), text)
    };
    found.into_iter().map(relative).collect()
}

#[test]
fn each_crate_uses_what_it_may() {
    let members = members();
    let crates: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (name, (folder, manifest)) in &members {
        if !folder.starts_with(root().join("crates")) {
            continue;
        }
        let (_, may) = MAY_USE
            .iter()
            .find(|(listed, _)| listed == name)
            .unwrap_or_else(|| panic!("{name} is not in MAY_USE"));
        let uses = dependencies(manifest, "dependencies");
        let own: Vec<&String> =
            uses.iter().filter(|other| crates.contains(other.as_str())).collect();
        let forbidden: Vec<_> = own.iter().filter(|other| !may.contains(&other.as_str())).collect();
        assert!(forbidden.is_empty(), "{name} may not use {forbidden:?}");
        if PURE.contains(&name.as_str()) {
            let system: Vec<_> =
                uses.iter().filter(|other| SYSTEM.contains(&other.as_str())).collect();
            assert!(system.is_empty(), "{name} uses {system:?}");
        }
    }
    assert!(crates.iter().all(|name| members.contains_key(*name)), "a crate of MAY_USE is missing");
}

/// The table in ARCHITECTURE.md equals [`MAY_USE`].
#[test]
fn architecture_names_every_crate() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            Some((cells.next()?.trim().trim_end_matches('`'), cells.nth(1)?.trim()))
        })
        .collect();
    for (name, may) in MAY_USE {
        let cell =
            rows.get(name).unwrap_or_else(|| panic!("{name} is not in ARCHITECTURE.md's table"));
        if cell.starts_with('`') {
            let said: BTreeSet<&str> =
                cell.split(',').map(|word| word.trim().trim_matches('`')).collect();
            assert_eq!(said, may.iter().copied().collect(), "what {name} may use");
        }
    }
}

/// Tests may panic, and have lints of their own.
#[test]
fn every_member_inherits_the_lints() {
    for (name, (_, manifest)) in members() {
        let lints = &manifest["lints"];
        let inherits = lints.get("workspace").and_then(Value::as_bool);
        if ["vtepd-tests", "test-frames"].contains(&name.as_str()) {
            for lint in ["missing_docs", "unreachable_pub", "unsafe_code"] {
                assert_eq!(lints["rust"][lint].as_str(), Some("deny"), "{name}: {lint}");
            }
        } else {
            assert_eq!(inherits, Some(true), "{name}");
        }
    }
    let workspace = manifest(&root());
    let lints = &workspace["workspace"]["lints"];
    for (group, lint) in [
        ("rust", "missing_docs"),
        ("rust", "unreachable_pub"),
        ("rust", "unsafe_code"),
        ("clippy", "incompatible_msrv"),
        ("clippy", "undocumented_unsafe_blocks"),
        ("clippy", "unwrap_used"),
        ("clippy", "expect_used"),
        ("clippy", "panic"),
        ("clippy", "indexing_slicing"),
    ] {
        assert_eq!(lints[group][lint].as_str(), Some("deny"), "{group}::{lint}");
    }
}

#[test]
fn unsafe_stands_in_ports_and_bpf_only() {
    // Concatenated, so that this file does not contain the words.
    let words = ["fn", "impl", "{", "extern", "trait"].map(|next| format!("{} {next}", "unsafe"));
    for (path, text) in sources(&["rs"]) {
        let code = text.lines().map(|line| line.split("//").next().unwrap());
        let found = code.filter(|line| words.iter().any(|word| line.contains(word))).count();
        let allowed = ["crates/ports/", "crates/bpf/"].iter().any(|room| path.starts_with(room))
            || UNSAFE.iter().any(|(named, _)| *named == path);
        assert!(found == 0 || allowed, "{found} unsafe in {path}");
    }
    for (path, _) in UNSAFE {
        assert!(root().join(path).exists(), "{path} is in the list and nowhere else");
    }
}

/// The attributes of a file, each from `#[` or `#![` to its closing bracket, also over several
/// lines.
fn attributes(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("#[").chain(text.match_indices("#![")) {
        let mut depth = 0;
        let end = text[start..].char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            (c == ']' && depth == 0).then_some(start + at)
        });
        found.extend(end.map(|end| &text[start..end]));
    }
    found
}

/// Whether an attribute allows a lint against panics.
fn allows_panics(attribute: &str) -> bool {
    let lints = ["unwrap_used", "expect_used", "panic", "indexing_slicing"];
    let words: Vec<&str> =
        attribute.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').collect();
    let takes_back = words.iter().any(|word| ["allow", "expect"].contains(word));
    takes_back && lints.iter().any(|lint| words.contains(&format!("clippy::{lint}").as_str()))
}

/// `eprintln!` escapes nothing, and panics where standard error is closed.
#[test]
fn what_terminals_show_is_escaped() {
    let own = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    for (path, text) in sources(&["rs"]).into_iter().filter(|(path, _)| own(path)) {
        let prints = text.contains("eprintln!") || text.contains("eprint!");
        let listed = PRINTS.iter().any(|(named, _)| *named == path);
        assert!(listed || !prints, "{path} prints what may control a terminal");
        assert!(!listed || prints, "{path} is in the list for nothing");
    }
}

/// What may panic says so in its manifest, or is `#[cfg(test)]`. No file allows panics by itself.
#[test]
fn nobody_allows_panics() {
    for (path, text) in sources(&["rs"]) {
        let allows = attributes(&text).into_iter().any(allows_panics);
        assert!(!allows, "{path} allows what the workspace denies");
    }
}

/// Test targets with a harness of their own would drop `#[test]` functions without a word.
#[test]
fn tests_that_need_root_have_the_right_attribute() {
    for (_, (folder, manifest)) in members() {
        for target in manifest.get("test").and_then(Value::as_array).into_iter().flatten() {
            let name = target["name"].as_str().unwrap();
            assert_eq!(target["harness"].as_bool(), Some(false), "{name}");
            let mut found = Vec::new();
            files(&folder.join("tests").join(name), &["rs"], &mut found);
            assert!(!found.is_empty(), "{name} is a folder");
            for path in found {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("#[test]"), "{}: #[root_test]", path.display());
            }
        }
    }
}

/// The check above recognises attributes over several lines, and `expect` attributes.
#[test]
fn attributes_that_allow_panics_are_seen_in_every_form() {
    let lint = format!("clippy::{}", "unwrap_used");
    for text in [
        format!("#![allow({lint})]"),
        format!(
            "#![allow(\n    clippy::pedantic,\n    {lint},\n    reason = \"[brackets] (too)\"\n)]"
        ),
        format!("#[expect({lint}, reason = \"never\")]"),
        format!("#[cfg_attr(test, allow({lint}))]"),
    ] {
        assert!(attributes(&text).into_iter().any(allows_panics), "{text}");
    }
    for text in
        ["#[expect(deprecated)]", "#[derive(Debug)]", "let x = y.expect(\"clippy::unwrap_used\");"]
    {
        assert!(!attributes(text).into_iter().any(allows_panics), "{text}");
    }
}
