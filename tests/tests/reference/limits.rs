//! `docs/design/limits.md`: each row names the test that fills what it is about.

use std::path::Path;

/// Rows that have no test.
const UNTESTED: usize = 3;

/// All Rust files below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "target") {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(entry).unwrap());
        }
    }
}

#[test]
fn the_tests_of_limits_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    for folder in ["crates", "tests"] {
        sources(&root.join(folder), &mut text);
    }
    let page = std::fs::read_to_string(root.join("docs/design/limits.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what"));
    let mut untested = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        let tests = cells[5].split('`').skip(1).step_by(2);
        untested.extend((cells[5] == "none").then_some(cells[0]));
        assert!(cells[5] == "none" || cells[5].starts_with('`'), "{row}");
        for test in tests {
            assert!(text.contains(&format!("fn {test}()")), "there is no test {test}: {row}");
        }
    }
    assert_eq!(untested.len(), UNTESTED, "{untested:?}");
}
