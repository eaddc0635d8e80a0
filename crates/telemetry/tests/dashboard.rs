//! Checks that the Grafana dashboard uses only metrics that exist.

#![cfg(test)]

use std::collections::BTreeSet;
use std::sync::Arc;

use telemetry::{ProbingView, View, render};

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
    let view = View { probing: Some(ProbingView::default()), ..View::default() };
    let text = render(&Arc::default(), view).unwrap();
    let help =
        text.lines().filter(|line| line.starts_with("# HELP ")).collect::<Vec<_>>().join("\n");
    let existing = names(&help);
    assert!(existing.contains("vtepd_path_frames"), "{existing:?}");
    let asked = names(include_str!("../../../deploy/monitoring/grafana-vtepd.json"));
    let missing: Vec<&String> = asked.difference(&existing).collect();
    assert!(asked.len() > 8 && missing.is_empty(), "no such metrics: {missing:?}");
}

/// Two fabrics may have leaves of the same name.
#[test]
fn every_question_of_the_dashboard_is_about_the_chosen_fabrics_and_leaves() {
    let text = include_str!("../../../deploy/monitoring/grafana-vtepd.json");
    let asked: Vec<&str> =
        text.lines().filter(|line| line.trim().starts_with("\"expr\"")).collect();
    assert!(asked.len() > 15, "{asked:?}");
    let chosen = r#"{topology=~\"$topology\", instance=~\"$leaf\"}"#;
    let others: Vec<&&str> = asked
        .iter()
        .filter(|line| line.matches("vtepd_").count() != line.matches(chosen).count())
        .collect();
    assert!(others.is_empty(), "{others:?}");
}
