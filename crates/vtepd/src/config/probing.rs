//! The section `[probing]`.

use std::ops::RangeInclusive;
use std::time::Duration;

use path::Policy;
use pathmap::Key;
use pathmap::placer::{Moves, Options};
use pathmap::prober::Settings;

use super::file::{File, ProbingSection};
use super::{ConfigurationError, VniSettings};
use crate::probing::Probing;

/// A number of the section, if it is in its range.
fn number<T: PartialOrd + std::fmt::Display>(
    file: &File,
    key: &str,
    given: Option<T>,
    range: RangeInclusive<T>,
    default: T,
) -> Result<T, ConfigurationError> {
    let Some(given) = given else { return Ok(default) };
    if range.contains(&given) {
        return Ok(given);
    }
    let problem = format!("expected {} to {}", range.start(), range.end());
    Err(ConfigurationError::Value { place: file.place(&format!("probing.{key}")), problem })
}

/// How to probe; `None` without a key.
pub(super) fn probing(file: &File) -> Result<Option<Probing>, ConfigurationError> {
    let ProbingSection { key, interval_ms, .. } = &file.probing;
    let ProbingSection { ports, most_ports, rate, queue_pairs, idle, moves, .. } = &file.probing;
    let ProbingSection { detector, trace, .. } = &file.probing;
    if detector.is_some() {
        let problem = "BFD over VXLAN was removed; remove this line: probes find dead paths faster"
            .to_owned();
        return Err(ConfigurationError::Value { place: file.place("probing.detector"), problem });
    }
    let (probes, places) = (Settings::default(), Options::default());
    let ports = number(file, "ports", *ports, 1..=1024, probes.ports)?;
    let default = probes.most_ports.max(ports);
    let settings = Settings {
        interval: Duration::from_millis(number(file, "interval-ms", *interval_ms, 10..=1000, 50)?),
        ports,
        most_ports: number(file, "most-ports", *most_ports, ports..=1024, default)?,
        rate: number(file, "rate", *rate, 100..=20_000, probes.rate)?,
        ..probes
    };
    let options = Options {
        most: number(file, "queue-pairs", *queue_pairs, 1..=1_000_000, places.most)?,
        idle: Duration::from_secs(number(file, "idle", *idle, 1..=3600, places.idle.as_secs())?),
        moves: if moves.unwrap_or(true) { Moves::AfterGap } else { Moves::Never },
        settle: settings.interval * 2 + Duration::from_millis(20),
    };
    let Some(secret) = key else { return Ok(None) };
    let key = Key::new(secret.as_bytes()).map_err(|error| ConfigurationError::Value {
        place: file.place("probing.key"),
        problem: error.to_string(),
    })?;
    Ok(Some(Probing { key, settings, options, trace: trace.unwrap_or(true) }))
}

/// Checks that a policy that needs probes has a key for them.
pub(super) fn check<'s>(
    file: &File,
    mut settings: impl Iterator<Item = &'s VniSettings>,
) -> Result<(), ConfigurationError> {
    if file.probing.key.is_some() || settings.all(|vni| vni.policy != Policy::QpPin) {
        return Ok(());
    }
    let problem = "the policy qp-pin needs a key for probes, the same on all leaves: for example, take the output of \
                   'openssl rand -hex 16'"
        .to_owned();
    Err(ConfigurationError::Value { place: file.place("probing.key"), problem })
}
