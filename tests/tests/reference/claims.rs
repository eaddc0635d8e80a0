//! The report of `docs/guide/spraying.md` beside published claims, from the simulator's results.

use std::fmt::Write as _;

use serde_json::Value;

use super::compare;

const GUIDE: &str = "docs/guide/spraying.md";
const BEGIN: &str = "<!-- From benches/results/sim.json: see tests/tests/reference. -->\n";
const END: &str = "<!-- end -->\n";

/// The cases, and how the report names them.
const CASES: [(&str, &str); 4] = [
    ("permutation-2M", "permutation"),
    ("permutation-2M-degraded-4", "four slow links"),
    ("dead-link-1", "a link that dies silently"),
    ("ordered-25%", "a quarter of the flows ordered"),
];
/// Ours, on known paths and with numbers that switches hash.
const OURS: [(&str, &str); 2] =
    [("known-prime-like-16-log", "16 known paths"), ("prime-like-64-log", "64 hashed numbers")];
const REPS: &str = "reps-64";
/// Bytes of the state of `prime-like` for each path.
const STATE: u32 = 24;

/// The times of a case by scheme, in the order of the results: the end of its last sprayed flow in
/// microseconds. Where no flow is ordered, that is its last flow.
fn times(report: &Value, case: &str) -> Vec<(String, f64)> {
    let rows = report["rows"].as_array().unwrap();
    let mut times: Vec<(String, f64)> = Vec::new();
    for unit in ["last sprayed flow, µs", "last flow, µs"] {
        for row in rows.iter().filter(|row| row["unit"] == unit) {
            let of = row["case"].as_str().unwrap().split_once(", ");
            let Some((_, scheme)) = of.filter(|(name, _)| *name == case) else { continue };
            if times.iter().all(|(known, _)| known != scheme) {
                times.push((scheme.to_owned(), row["vtepd"].as_f64().unwrap()));
            }
        }
    }
    times
}

fn time(times: &[(String, f64)], scheme: &str) -> f64 {
    times.iter().find(|(name, _)| name == scheme).unwrap_or_else(|| panic!("{scheme}")).1
}

/// How much earlier one ends than another one, in words.
fn beside(own: f64, other: f64) -> String {
    let gain = (1.0 - own / other) * 100.0;
    let word = if gain < 0.0 { "**later**" } else { "earlier" };
    format!("{:.1} % {word} ({own:.1} and {other:.1} µs)", gain.abs())
}

/// The table of claims, and that of all schemes which end earlier than ours.
fn section(report: &Value) -> String {
    let all = CASES.map(|(case, _)| times(report, case));
    let mut page = "\n| claim | published | here |\n|---|---|---|\n".to_owned();
    let mut row = |claim: &str, published: &str, here: &str| {
        writeln!(page, "| {claim} | {published} | {here} |").unwrap();
    };
    let gains = |case: usize| {
        let reps = time(&all[case], REPS);
        let of = |(scheme, what): (&str, &str)| {
            format!("{what}: {} than REPS", beside(time(&all[case], scheme), reps))
        };
        OURS.map(of).join("; ")
    };
    row("PRIME: permutation", "up to 15 % better than the state of the art", &gains(0));
    for case in [1, 2] {
        let claim = format!("PRIME: degraded network, here {}", CASES[case].1);
        row(&claim, "up to 27 % better", &gains(case));
    }
    let claim = format!("PRIME: ordered and unordered traffic, here {}", CASES[3].1);
    row(&claim, "no figure in the abstract", &gains(3));
    let lost = |scheme: &str| time(&all[2], scheme) - time(&all[0], scheme);
    let [known, hashed] = OURS.map(|(scheme, what)| format!("{what}: {:.1} µs", lost(scheme)));
    row(
        "REPS: a failed link",
        "left in less than 100 µs",
        &format!("the last flow ends later by: REPS {:.1} µs; {known}; {hashed}", lost(REPS)),
    );
    let [known, hashed] = [16 * STATE, 64 * STATE];
    row(
        "REPS: state of a connection",
        "less than 25 bytes",
        &format!("**{known} bytes** for 16 known paths, {hashed} for 64 numbers, of two hosts"),
    );
    page.push_str(
        "\nAll rows in which another scheme ends earlier than ours, by the last sprayed flow:\n\n\
         | case | ours | ends | earlier | ends |\n|---|---|---|---|---|\n",
    );
    for (times, (_, case)) in all.iter().zip(CASES) {
        for (scheme, what) in OURS {
            let own = time(times, scheme);
            for (other, end) in times.iter().filter(|(_, end)| *end < own) {
                // Ours on known paths is no rival of ours on hashed numbers.
                if OURS.iter().all(|(ours, _)| ours != other) {
                    let row = format!("{case} | {what} | {own:.2} | `{other}` | {end:.2}");
                    writeln!(page, "| {row} |").unwrap();
                }
            }
        }
    }
    page.push('\n');
    page
}

#[test]
fn the_report_beside_published_claims_is_up_to_date() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |name: &str| std::fs::read_to_string(format!("{root}/{name}")).unwrap();
    let report = serde_json::from_str(&read("benches/results/sim.json")).unwrap();
    let guide = read(GUIDE);
    let (before, rest) = guide.split_once(BEGIN).expect("the begin of the report");
    let (_, after) = rest.split_once(END).expect("the end of the report");
    compare(GUIDE, format!("{before}{BEGIN}{}{END}{after}", section(&report)));
}

#[test]
fn a_scheme_that_ends_earlier_has_a_row() {
    let row = |case: &str, scheme: &str, unit: &str, time: f64| serde_json::json!({"case": format!("{case}, {scheme}"), "unit": unit, "vtepd": time});
    let mut rows = Vec::new();
    for (case, _) in CASES {
        rows.push(row(case, REPS, "last flow, µs", 200.0));
        rows.push(row(case, OURS[0].0, "last sprayed flow, µs", 190.0));
        rows.push(row(case, OURS[1].0, "last sprayed flow, µs", 201.0));
    }
    // The last sprayed flow counts, and not an ordered one.
    rows.push(row("ordered-25%", "bitmap-64", "last flow, µs", 500.0));
    rows.push(row("ordered-25%", "bitmap-64", "last sprayed flow, µs", 189.0));
    let page = section(&serde_json::json!({ "rows": rows }));
    assert!(
        page.contains("16 known paths: 5.0 % earlier (190.0 and 200.0 µs) than REPS"),
        "{page}"
    );
    assert!(page.contains("64 hashed numbers: 0.5 % **later** (201.0 and 200.0 µs)"), "{page}");
    let (_, losses) = page.split_once("All rows").unwrap();
    assert_eq!(losses.matches("| 64 hashed numbers | 201.00 | `reps-64` | 200.00 |").count(), 4);
    assert_eq!(losses.matches("| 16 known paths | 190.00 | `bitmap-64` | 189.00 |").count(), 1);
    assert_eq!(losses.matches("`bitmap-64`").count(), 2, "{losses}");
}
