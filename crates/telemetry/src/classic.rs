//! Prometheus' older text format, for clients that do not ask for OpenMetrics, such as `curl`.
//!
//! Both formats differ here only in comments: help and type of a counter have the name of its
//! samples, with `_total` (Prometheus, "Exposition formats", text format 0.0.4).

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The content type of the format.
pub(crate) const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text in the older format.
pub(crate) fn classic(openmetrics: &str) -> String {
    let named = |line: &'_ str, what: &str| -> Option<(String, String)> {
        let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
        Some((name.to_owned(), rest.to_owned()))
    };
    let types = openmetrics.lines().filter_map(|line| named(line, "# TYPE "));
    let counters: BTreeSet<String> =
        types.filter(|(_, kind)| kind == "counter").map(|(name, _)| name).collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let of_counter = ["# HELP ", "# TYPE "].into_iter().find_map(|what| {
            let (name, rest) = named(line, what)?;
            counters.contains(&name).then(|| format!("{what}{name}_total {rest}"))
        });
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", of_counter.as_deref().unwrap_or(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_help_under_the_name_of_their_samples() {
        let text = "# HELP vtepd_frames Frames .\n# TYPE vtepd_frames counter\n\
            vtepd_frames_total{to=\"a\"} 7\n# HELP vtepd_ready Whether.\n# TYPE vtepd_ready gauge\n\
            vtepd_ready 1\n# EOF\n";
        let expected = "# HELP vtepd_frames_total Frames .\n# TYPE vtepd_frames_total counter\n\
            vtepd_frames_total{to=\"a\"} 7\n# HELP vtepd_ready Whether.\n# TYPE vtepd_ready gauge\n\
            vtepd_ready 1\n";
        assert_eq!(classic(text), expected);
    }
}
