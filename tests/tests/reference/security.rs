//! `SECURITY.md`: each threat names the tests that show what vtepd does about it.

use std::path::Path;

use crate::named_tests::{all, quoted};

#[test]
fn the_tests_of_threats_exist() {
    let tests = all();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| threat"));
    let mut threats = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(quoted(cells[2]).next().is_some(), "no test: {row}");
        for name in quoted(cells[2]) {
            assert!(tests.contains(name), "there is no test {name}: {row}");
        }
        threats += 1;
    }
    assert!(threats > 20, "{threats} threats");
}
