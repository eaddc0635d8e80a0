//! The numbers in the names of variants that `[sweep]` makes, such as `far.delay-5ms.loss-0.1`.

/// The keys of `[sweep]` that make variants, and the unit of their numbers here.
pub const KEYS: [(&str, &str); 6] = [
    ("bytes", "bytes"),
    ("message", "bytes"),
    ("delay", "ms"),
    ("jitter", "ms"),
    ("loss", "%"),
    ("rate", "kbit/s"),
];

/// The number of a key in the name of a variant, in its unit in [`KEYS`].
#[must_use]
pub fn value(variant: &str, key: &str) -> Option<f64> {
    find(variant, key).map(|(_, value, _)| value)
}

/// The key of an axis to scale, and its values: if these variants differ by the number of one key.
#[must_use]
pub fn axis(variants: &[&str]) -> Option<(&'static str, &'static str, Vec<f64>)> {
    let (first, rest) = variants.split_first()?;
    if rest.is_empty() {
        return None;
    }
    KEYS.into_iter().find_map(|(key, unit)| {
        let (before, _, after) = find(first, key)?;
        let same = |variant: &&str| {
            let found = find(variant, key)?;
            ((found.0, found.2) == (before, after)).then_some(found.1)
        };
        let values: Option<Vec<f64>> = variants.iter().map(same).collect();
        Some((key, unit, values?))
    })
}

/// What is before the key, its number, and what follows.
fn find<'a>(variant: &'a str, key: &str) -> Option<(&'a str, f64, &'a str)> {
    let (at, _) = variant.match_indices(key).find(|(at, _)| {
        variant.get(..*at).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    })?;
    let text = variant.get(at + key.len()..)?.strip_prefix('-')?;
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    // Without a unit, the dot before the next key was taken for one of the number.
    let unit = if digits.ends_with('.') { "" } else { rest.split('.').next().unwrap_or_default() };
    let scale = match unit {
        "ns" => 1e-6,
        "us" => 1e-3,
        "ms" | "" => 1.0,
        "s" => 1e3,
        "min" => 60e3,
        _ => return None,
    };
    let number: f64 = digits.trim_end_matches('.').parse().ok()?;
    let after = if digits.ends_with('.') { text.get(end - 1..)? } else { rest.get(unit.len()..)? };
    Some((variant.get(..at)?, number * scale, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_variants() {
        let name = "far.delay-500us.loss-0.1.rate-20000";
        let all = ["delay", "loss", "rate", "jitter"].map(|key| value(name, key));
        assert_eq!(all, [Some(0.5), Some(0.1), Some(20_000.0), None]);
        assert_eq!(value("delay-2s", "delay"), Some(2000.0));
        assert_eq!(value("bytes-100.message-5", "bytes"), Some(100.0));
        assert_eq!(value("mydelay-2s", "delay"), None);
        assert_eq!(value("delay-x", "delay"), None);
    }

    #[test]
    fn an_axis_is_what_alone_differs() {
        let of = |names: &[&str]| axis(names).map(|(key, _, values)| (key, values));
        assert_eq!(of(&["delay-1ms", "delay-10ms"]), Some(("delay", vec![1.0, 10.0])));
        let loss = ["far.loss-0", "far.loss-0.5"];
        assert_eq!(of(&loss), Some(("loss", vec![0.0, 0.5])));
        assert_eq!(of(&["far.loss-0", "near.loss-0.5"]), None);
        assert_eq!(of(&["delay-1ms.loss-0", "delay-2ms.loss-0"]), Some(("delay", vec![1.0, 2.0])));
        assert_eq!(of(&["delay-1ms.loss-0", "delay-2ms.loss-1"]), None, "both differ");
        assert_eq!(of(&["delay-1ms"]), None, "one value has no scale");
        assert_eq!(of(&["bfd", "plain"]), None);
    }
}
