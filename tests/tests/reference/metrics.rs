//! `docs/reference/metrics.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use pipeline::VtepId;
use telemetry::{
    LeftView, PathView, PortFrames, PortView, ProbedView, ProbingView, SourceView, TierView, View,
    VniView, render,
};
use wire::Vni;

use super::compare;

const HEAD: &str = "\
# Metrics

`GET /metrics` answers in the OpenMetrics format, by default at `http://127.0.0.1:9472/metrics` in
the network namespace of the leaf (`[metrics] listen`, `--metrics-listen`). `deploy/monitoring` has
a Prometheus configuration and a Grafana dashboard. Clients that do not accept
`application/openmetrics-text`, such as `curl`, get Prometheus' older text format.

Counters start at zero when vtepd starts. `vtepd_dropped_frames_total` has its reason as a label:
see [drop reasons](drop-reasons.md). Reasons of `vtepd_left_to_kernel` are slugs:
see [what stays with the kernel](left-to-kernel.md).

This page is generated from the code (`crates/telemetry/src/exposition.rs`).

| metric | type | labels | meaning |
|---|---|---|---|
";

/// A view with one of each, so that every metric has a sample.
fn one_of_each() -> View {
    let vni = Vni::try_from(10).unwrap();
    let text = || "x".to_owned();
    View {
        workers: vec![Default::default()],
        vnis: vec![VniView {
            slot: 1,
            vni,
            netdev: text(),
            policy: text(),
            datapath: "userspace",
            remote_macs: 0,
            flood_vteps: 0,
        }],
        paths: vec![PathView { path: 0, uplink: text(), gateway: IpAddr::V4(Ipv4Addr::LOCALHOST) }],
        // Counters of no VTEP belong to assignment 0.
        peers: vec![(VtepId { index: 0, assignment: 0 }, IpAddr::V4(Ipv4Addr::UNSPECIFIED))],
        left: vec![LeftView { netdev: text(), vni: text(), reason: "x", policy: text() }],
        ports: vec![PortView {
            port: text(),
            bridge: text(),
            vni,
            reason: None,
            frames: Some(PortFrames::default()),
        }],
        sources: vec![SourceView { name: "x", state: text(), swept: 0 }],
        steering: vec![("x", 0)],
        learned: vec![("x", 0)],
        moves: vec![("x", 0)],
        not_learned: vec![("x", 0)],
        probing: Some(ProbingView {
            vteps: vec![ProbedView {
                address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                ready: true,
                traced: false,
                known: 0,
                dead: 0,
                unknown: 0,
                spray_paths: 4,
                sprayed: [("sent", 9), ("unmarked", 8), ("marked", 1), ("lost", 0)],
                tiers: vec![TierView { mmr: 1.0, floor: 1.0, jain: 1.0 }],
            }],
            queue_pairs: 0,
            same_links: [("x", 0); 3],
            moves: vec![("x", 0)],
            forgotten: 0,
            beyond: vec![("x", 0)],
            messages: vec![("x", 0)],
        }),
        ..View::default()
    }
}

/// Names of the labels of a sample, `name{label="value",…} value`.
fn labels(sample: &str) -> Option<String> {
    let (_, rest) = sample.split_once('{')?;
    let (inner, _) = rest.rsplit_once('}')?;
    let names = inner.split("\",").filter_map(|label| label.split_once("=\""));
    Some(names.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", "))
}

#[test]
fn the_reference_of_metrics_is_up_to_date() {
    let text = render(&Arc::default(), one_of_each()).unwrap();
    let mut types = BTreeMap::new();
    let mut samples: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            types.insert(name, kind);
        } else if !line.starts_with('#') {
            let name = &line[..line.find(['{', ' ']).unwrap()];
            samples.entry(name.strip_suffix("_total").unwrap_or(name)).or_insert(line);
        }
    }
    let mut page = HEAD.to_owned();
    for (name, help) in text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .filter_map(|l| l.split_once(' '))
    {
        let kind = types[name];
        let suffix = if kind == "counter" { "_total" } else { "" };
        let labels = samples.get(name).and_then(|sample| labels(sample)).unwrap_or_default();
        writeln!(page, "| `{name}{suffix}` | {kind} | {labels} | {} |", help.trim_end_matches('.'))
            .unwrap();
    }
    compare("docs/reference/metrics.md", &page);
}
