//! Generates `docs/reference/drop-reasons.md`: `VTEPD_UPDATE_DOCS=1 cargo test -p pipeline
//! reference` writes it.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::path::Path;

use pipeline::DropReason;

const HEAD: &str = "\
# Drop reasons

Every frame that a worker drops is counted with one reason. `vtepctl drops` shows the reasons that
occurred, `vtepctl drops --all` shows every one. The metric `vtepd_dropped_frames_total` has the
reason as its label.

This page is generated from the code (`crates/pipeline/src/drop_reason.rs`).

| reason | meaning |
|---|---|
";

#[test]
fn the_reference_of_drop_reasons_is_up_to_date() {
    let mut page = HEAD.to_owned();
    for reason in DropReason::ALL {
        writeln!(page, "| `{}` | {} |", reason.label(), reason.sentence().trim()).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/drop-reasons.md");
    if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/reference/drop-reasons.md is out of date: see {}", file!());
}
