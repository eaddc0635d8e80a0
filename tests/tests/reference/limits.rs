//! `docs/design/limits.md`: each row names the test that fills what it is about, or says why there
//! is none.

use std::path::Path;

use crate::named_tests::{all, quoted};

#[test]
fn the_tests_of_limits_exist() {
    let tests = all();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/design/limits.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        let test = cells[5];
        let has_reason = test.strip_prefix("none: ").is_some_and(|reason| reason.len() > 10);
        assert!(has_reason || test.starts_with('`'), "neither a test nor a reason: {row}");
        for name in quoted(test).filter(|_| !has_reason) {
            assert!(tests.contains(name), "there is no test {name}: {row}");
        }
    }
}
