//! Figures and sentences as text.

use ratatui::text::Line;

/// A figure with an SI prefix and three digits, such as `8.00 k`.
#[must_use]
pub(super) fn scaled(value: f64) -> String {
    if value < 9.95 {
        let text = format!("{value:.1}");
        return text.strip_suffix(".0").unwrap_or(&text).to_owned();
    }
    if value < 999.5 {
        return format!("{value:.0}");
    }
    let mut scaled = value;
    for prefix in ["k", "M", "G", "T", "P"] {
        scaled /= 1000.0;
        if scaled < 999.5 || prefix == "P" {
            let digits = match scaled {
                scaled if scaled < 9.995 => 2,
                scaled if scaled < 99.95 => 1,
                _ => 0,
            };
            return format!("{scaled:.digits$} {prefix}");
        }
    }
    String::new()
}

/// A figure with its unit.
#[must_use]
pub(super) fn with_unit(value: f64, unit: &str) -> String {
    match scaled(value) {
        // The prefix belongs to the unit where the unit has a symbol.
        text if unit == "bit/s" && text.ends_with(char::is_alphabetic) => format!("{text}{unit}"),
        text => format!("{text} {unit}"),
    }
}

/// A figure without unit, or `-` if it is unknown.
#[must_use]
pub(super) fn plain(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), scaled)
}

/// Parts in lines of this width, `gap` between them. A longer part is in a line of its own.
fn fill<'a>(parts: impl Iterator<Item = &'a str>, gap: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let length = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(line) if length(line) + length(gap) + length(part) <= width => {
                *line += gap;
                *line += part;
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// A sentence in lines of this width.
#[must_use]
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    fill(text.split_whitespace(), " ", width)
}

/// Phrases in lines of this width. A phrase is not divided.
#[must_use]
pub(super) fn phrases(parts: &[String], width: usize) -> Vec<String> {
    fill(parts.iter().map(String::as_str), "  ", width)
}

/// A bar of this width in eighths of a column. `share` is from 0 to 1; more than 0 shows.
#[must_use]
pub(super) fn bar(share: f64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let most = width * 8;
    let eighths = (share.clamp(0.0, 1.0) * most as f64).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1).min(most) } else { 0 };
    let part = PARTS.get(eighths % 8).copied().unwrap_or_default();
    "█".repeat(eighths / 8) + part
}

/// The lines of a buffer's text, as ratatui's.
#[must_use]
pub(super) fn lines(lines: Vec<String>) -> Vec<Line<'static>> {
    lines.into_iter().map(Line::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        for (value, text) in [
            (0.0, "0"),
            (0.3, "0.3"),
            (0.98, "1"),
            (5.0, "5"),
            (9.96, "10"),
            (640.4, "640"),
            (999.6, "1.00 k"),
            (8000.0, "8.00 k"),
            (12_345.0, "12.3 k"),
            (999_400.0, "999 k"),
            (999_600.0, "1.00 M"),
            (3.2e9, "3.20 G"),
            (4e18, "4000 P"),
        ] {
            assert_eq!(scaled(value), text, "{value}");
        }
        assert_eq!(with_unit(2.5e6, "bit/s"), "2.50 Mbit/s");
        assert_eq!(with_unit(8.0, "bit/s"), "8 bit/s");
        assert_eq!(with_unit(8000.0, "frames/s"), "8.00 k frames/s");
        assert_eq!([plain(None), plain(Some(7.0))], ["-", "7"]);
    }

    #[test]
    fn sentences_and_phrases_are_wrapped_between_words() {
        assert_eq!(wrapped("a bc def g", 4), ["a bc", "def", "g"]);
        assert_eq!(wrapped("abcdefgh i", 4), ["abcdefgh", "i"]);
        let parts = ["up 3 s", "0 frames/s", "x"].map(str::to_owned);
        assert_eq!(phrases(&parts, 18), ["up 3 s  0 frames/s", "x"]);
        assert_eq!(phrases(&parts, 17), ["up 3 s", "0 frames/s  x"]);
    }

    #[test]
    fn a_bar_has_eighths_of_a_column() {
        let bars = [0.0, 1.0, 0.5, 0.0001, 0.4375, 7.0].map(|share| bar(share, 4));
        assert_eq!(bars, ["", "████", "██", "▏", "█▊", "████"]);
        assert_eq!(bar(1.0, 0), "");
    }
}
