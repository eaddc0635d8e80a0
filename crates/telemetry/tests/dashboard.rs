//! Checks that the Grafana dashboard uses only metrics that exist.

#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;

use telemetry::{View, render};

/// The names of vtepd's metrics in a text, without the suffix of counters.
fn names(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    text.match_indices("vtepd_")
        .map(|(at, _)| {
            let rest = &text[at..];
            let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
            name.strip_suffix("_total").unwrap_or(name).to_owned()
        })
        .collect()
}

#[test]
fn every_metric_that_the_dashboard_asks_for_exists() {
    let text = render(&Arc::default(), View::default()).unwrap();
    let help =
        text.lines().filter(|line| line.starts_with("# HELP ")).collect::<Vec<_>>().join("\n");
    let existing = names(&help);
    assert!(existing.contains("vtepd_path_frames"), "{existing:?}");
    let asked = names(include_str!("../../../deploy/monitoring/grafana-vtepd.json"));
    let missing: Vec<&String> = asked.difference(&existing).collect();
    assert!(asked.len() > 8 && missing.is_empty(), "no such metrics: {missing:?}");
}
