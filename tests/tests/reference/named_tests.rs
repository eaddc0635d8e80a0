//! The tests that documents name.

use std::collections::BTreeSet;
use std::path::Path;

/// The names of all tests: functions behind an attribute of a test.
pub(crate) fn all() -> BTreeSet<String> {
    named(&["#[test]", "#[root_test", "#[tokio::test"])
}

/// The names of the functions behind one of these attributes, in all sources.
fn named(attributes: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = BTreeSet::new();
    for folder in ["crates", "tests"] {
        collect(&root.join(folder), attributes, &mut names);
    }
    names
}

fn collect(folder: &Path, attributes: &[&str], names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "target") {
            collect(&entry, attributes, names);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            names.extend(behind(attributes, &std::fs::read_to_string(entry).unwrap()));
        }
    }
}

/// The names of the functions behind one of these attributes in a source file.
fn behind(attributes: &[&str], source: &str) -> Vec<String> {
    let (mut found, mut names) = (false, Vec::new());
    for line in source.lines().map(str::trim_start) {
        if attributes.iter().any(|of| line.starts_with(of)) {
            found = true;
        } else if let Some((_, named)) = line.split_once("fn ").filter(|_| found) {
            names.extend(named.split('(').next().map(str::to_owned));
            found = false;
        }
    }
    names
}

/// CI fails on a test that did not run and is not in its list.
#[test]
fn ci_allows_each_ignored_test() {
    let ci = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/run");
    let ci = std::fs::read_to_string(ci).unwrap();
    let allowed: BTreeSet<_> = ci
        .lines()
        .filter_map(|line| line.split_once(' ')?.0.rsplit_once("::"))
        .map(|(_, name)| name)
        .collect();
    let ignored = named(&["#[ignore"]);
    assert!(ignored.len() > 10, "{ignored:?}");
    for name in ignored {
        assert!(allowed.contains(name.as_str()), "{name} is ignored; .ci/run does not allow it");
    }
}

#[test]
fn tests_are_functions_behind_their_attribute() {
    let source = "#[test]\nfn one() {}\nfn none() {}\n#[root_test(alone)]\n#[ignore]\n\
                  async fn two() {}\nproptest! {\n    #[test]\n    fn three(x in 0..9) {}\n}\n";
    let attributes = ["#[test]", "#[root_test"];
    assert_eq!(behind(&attributes, source), ["one", "two", "three"]);
    assert_eq!(behind(&["#[ignore"], source), ["two"]);
}

/// The names between backquotes in a cell of a table.
pub(crate) fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}
