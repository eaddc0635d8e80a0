//! Cases that another simulator ran: `sim::reference`. These are the seeds and cases that take a few
//! seconds; `benches/run sim` runs all.

#![cfg(test)]

use sim::matrix::Matrix;
use sim::reference::{Row, flows, rows, scenario, spraying};
use sim::{Outcome, run};

/// The seeds of a case and a scheme.
fn outcomes(case: &str, scheme: &str, seeds: u64) -> Vec<Outcome> {
    let spraying = spraying(scheme).unwrap();
    let outcomes: Vec<Outcome> =
        (1..=seeds).map(|seed| run(&scenario(case, spraying, 128, seed), seed)).collect();
    for outcome in &outcomes {
        assert_eq!(outcome.unfinished, [], "{case} {scheme}");
    }
    outcomes
}

fn mean(outcomes: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(figure).sum::<f64>() / outcomes.len() as f64
}

fn completion(outcome: &Outcome) -> f64 {
    outcome.completion().unwrap()
}

/// The end of the last sprayed flow.
fn last_sprayed(outcome: &Outcome) -> f64 {
    let sprayed = outcome.flows.iter().filter(|flow| !flow.ordered);
    sprayed.filter_map(|flow| flow.time()).fold(0.0, f64::max)
}

fn near(what: &str, ours: f64, theirs: f64, share: f64) {
    assert!((ours - theirs).abs() <= share * theirs, "{what}: {ours:.1}, reference {theirs:.1}");
}

/// Compares a case with the reference, and gives our means with the schemes.
fn compare(case: &str, schemes: &[&str]) {
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.case == case).collect();
    let mut own = Vec::new();
    for scheme in schemes {
        let row = rows.iter().find(|row| row.scheme == *scheme).unwrap();
        let outcomes = outcomes(case, scheme, row.seeds);
        let time = mean(&outcomes, completion);
        let what = format!("{case} {scheme}");
        near(&what, time, row.completion[0], 0.1);
        for (name, ours, theirs) in [
            ("acks", mean(&outcomes, |outcome| outcome.acks as f64), row.acks),
            ("nacks", mean(&outcomes, |outcome| outcome.nacks as f64), row.nacks),
            (
                "retransmitted",
                mean(&outcomes, |outcome| outcome.retransmitted as f64),
                row.retransmitted,
            ),
        ] {
            if theirs > 100.0 {
                near(&format!("{what} {name}"), ours, theirs, 0.25);
            }
        }
        if let Some(sprayed) = row.sprayed {
            near(&format!("{what} sprayed"), mean(&outcomes, last_sprayed), sprayed, 0.1);
        }
        own.push((time, row));
    }
    for (faster, fast) in &own {
        for (slower, slow) in &own {
            if fast.completion[2] < slow.completion[1] {
                let names = (&fast.scheme, &slow.scheme);
                assert!(faster < slower, "{case} {names:?}: {faster} {slower}");
            }
        }
    }
}

/// Means of five seeds of a scheme that is not in the reference.
fn own(case: &str, scheme: &str, figure: impl Fn(&Outcome) -> f64) -> f64 {
    mean(&outcomes(case, scheme, 5), figure)
}

#[test]
fn matrices_are_those_of_the_reference() {
    let text = include_str!("reference/permutation-2M-ordered-25-1.cm");
    let own = Matrix { nodes: 128, flows: flows("ordered-25%", 128, 1) };
    assert_eq!(own.text(), text);
    assert_eq!(Matrix::parse(text), Ok(own));
}

#[test]
fn permutation() {
    compare("permutation-2M", &["oblivious-64", "reps-64", "bitmap-64", "mixed-64"]);
}

#[test]
fn four_slow_links() {
    compare("permutation-2M-degraded-4", &["oblivious-64", "reps-64", "bitmap-64", "mixed-64"]);
}

#[test]
fn each_packet_acknowledged() {
    compare("permutation-2M-ack-each", &["reps-64", "bitmap-64"]);
    compare("permutation-2M-ack-each-degraded-4", &["reps-64", "bitmap-64"]);
}

#[test]
fn a_silently_dead_link() {
    compare("dead-link-1", &["oblivious-64", "reps-64", "mixed-64"]);
}

#[test]
fn ordered_flows_beside_sprayed_ones() {
    compare("ordered-25%", &["reps-64", "bitmap-64"]);
}

#[test]
fn incast() {
    compare("incast-32", &["bitmap-64"]);
    let row = rows().into_iter().find(|row| row.case == "incast-32").unwrap();
    near("incast", own("incast-32", "ecmp", completion), row.completion[0], 0.01);
}

#[test]
fn rings() {
    compare("ring-2M", &["oblivious-64"]);
    compare("ring-2M-degraded-4", &["oblivious-64", "reps-64"]);
}

/// PRIME-like on known paths beside REPS of the reference and of our own.
#[test]
fn prime_like_on_known_paths() {
    let known = "known-prime-like-16-log";
    let reps = |case: &str| {
        let row = rows().into_iter().find(|row| row.case == case && row.scheme == "reps-64");
        row.unwrap().completion[0].min(own(case, "reps-64", completion))
    };
    let healthy = own("permutation-2M", known, completion);
    assert!(healthy <= 185.0 && healthy <= 0.85 * reps("permutation-2M"), "{healthy}");
    let slow = own("permutation-2M-degraded-4", known, completion);
    assert!(slow <= 230.0 && slow <= 0.8 * reps("permutation-2M-degraded-4"), "{slow}");
    let dead = own("dead-link-1", known, completion);
    assert!(dead <= 260.0, "{dead}");
    let sprayed = own("ordered-25%", known, last_sprayed);
    assert!(sprayed <= 205.0, "{sprayed}");
}

/// Where paths are hashed, PRIME-like is not worse than penalties by visits.
#[test]
fn prime_like_on_hashed_values() {
    for case in ["permutation-2M", "permutation-2M-degraded-4", "ordered-25%", "dead-link-1"] {
        let ours = own(case, "prime-like-64-log", last_sprayed);
        let bitmap = own(case, "bitmap-64", last_sprayed);
        assert!(ours <= 1.02 * bitmap, "{case}: {ours} {bitmap}");
    }
}
