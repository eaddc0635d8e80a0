//! The tests that documents name.

use std::collections::BTreeSet;
use std::path::Path;

/// The names of all tests: functions behind an attribute of a test.
pub(crate) fn all() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = BTreeSet::new();
    for folder in ["crates", "tests"] {
        collect(&root.join(folder), &mut names);
    }
    names
}

fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "target") {
            collect(&entry, names);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            names.extend(tests_in(&std::fs::read_to_string(entry).unwrap()));
        }
    }
}

/// The names of the tests in a source file.
fn tests_in(source: &str) -> Vec<String> {
    let (mut is_test, mut names) = (false, Vec::new());
    for line in source.lines().map(str::trim_start) {
        if ["#[test]", "#[root_test", "#[tokio::test"].iter().any(|of| line.starts_with(of)) {
            is_test = true;
        } else if let Some((_, named)) = line.split_once("fn ").filter(|_| is_test) {
            names.extend(named.split('(').next().map(str::to_owned));
            is_test = false;
        }
    }
    names
}

#[test]
fn tests_are_functions_behind_their_attribute() {
    let source = "#[test]\nfn one() {}\nfn none() {}\n#[root_test(alone)]\n#[ignore]\n\
                  async fn two() {}\nproptest! {\n    #[test]\n    fn three(x in 0..9) {}\n}\n";
    assert_eq!(tests_in(source), ["one", "two", "three"]);
}

/// The names between backquotes in a cell of a table.
pub(crate) fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}
