//! The section `[probing]`.

use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;
use std::{fmt, fs};

use path::{Scheme, SprayOptions};
use pathmap::Key;
use pathmap::placer::{Moves, Options};
use pathmap::prober::Settings;

use super::file::{File, MarksChoice, OrderChoice, ProbingSection, SprayingSection};
use super::{ConfigurationError, VniSettings};

/// The configuration of probing and placement.
#[derive(Debug, Clone)]
pub struct Probing {
    /// The key that all leaves share.
    pub key: Key,
    /// How to probe.
    pub settings: Settings,
    /// How to place.
    pub options: Options,
    /// Whether paths to VTEPs that answer no probes are traced by expired TTLs.
    pub trace: bool,
    /// How to spray packets; `None` if they cannot be.
    pub spray: Option<SprayOptions>,
}

impl fmt::Display for Probing {
    /// All but the key. A number stands for that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, settings, options, trace, spray: _ } = self;
        let Settings { interval, ports, most_ports, rate, .. } = settings;
        let number = key.number([0; 3]);
        write!(f, "key number {number:08x}, every {interval:?}, {ports} to {most_ports} ports, ")?;
        write!(f, "{rate} probes/s, {} queue pairs, ", options.most)?;
        write!(f, "idle after {:?}, moves {:?}, ", options.idle, options.moves)?;
        let traces = if *trace { "traced" } else { "not traced" };
        write!(f, "paths without answers {traces}")
    }
}

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
    let ProbingSection { interval_ms, ports, most_ports, rate, queue_pairs, idle, moves, .. } =
        &file.probing;
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
        moves: if moves.unwrap_or(true) { Moves::AfterPause } else { Moves::Never },
        settle: settings.interval * 2 + Duration::from_millis(20),
    };
    let spray = spraying(file)?;
    let Some(key) = key(file)? else { return Ok(None) };
    Ok(Some(Probing { key, settings, options, trace: trace.unwrap_or(true), spray }))
}

/// How to spray packets; `None` with standalone VNIs, whose bridge cannot hold frames back.
fn spraying(file: &File) -> Result<Option<SprayOptions>, ConfigurationError> {
    let SprayingSection { scheme, order, marks } = &file.spraying;
    let default = SprayOptions::default();
    let named = |name: &String| {
        let scheme = name.parse().ok().filter(|scheme| *scheme != Scheme::Ecmp);
        scheme.ok_or_else(|| ConfigurationError::Value {
            place: file.place("spraying.scheme"),
            problem: format!(
                "'{name}' is no scheme (expected prime-like, bitmap, mixed, reps or oblivious)"
            ),
        })
    };
    let scheme = scheme.as_ref().map_or(Ok(default.scheme), named)?;
    let restores_order = *order != Some(OrderChoice::None);
    let hides_marks = *marks == Some(MarksChoice::Most);
    let options = SprayOptions { scheme, restores_order, hides_marks };
    Ok(file.standalone.is_empty().then_some(options))
}

/// The key of the section or of the file that it names.
fn key(file: &File) -> Result<Option<Key>, ConfigurationError> {
    let wrong = |name: &str, problem: String| ConfigurationError::Value {
        place: file.place(name),
        problem,
    };
    let (name, secret) = match (&file.probing.key, &file.probing.key_file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let problem = "there is a key already in probing.key; remove one of them".to_owned();
            return Err(wrong("probing.key-file", problem));
        }
        (Some(secret), None) => {
            file.path.as_deref().into_iter().for_each(warn_of_readers);
            ("probing.key", secret.clone())
        }
        (None, Some(path)) => {
            let folder = file.path.as_deref().and_then(Path::parent);
            let path = folder.map_or_else(|| path.clone(), |folder| folder.join(path));
            let text = fs::read_to_string(&path).map_err(|error| {
                wrong("probing.key-file", format!("{} cannot be read: {error}", path.display()))
            })?;
            warn_of_readers(&path);
            ("probing.key-file", text.strip_suffix('\n').unwrap_or(&text).to_owned())
        }
    };
    let key = Key::new(secret.as_bytes()).map_err(|error| wrong(name, error.to_string()))?;
    Ok(Some(key))
}

/// Warns of a file with a key that all users can read.
fn warn_of_readers(path: &Path) {
    if is_readable_by_others(path) {
        tracing::warn!(
            "{0} has the key of probing, and every user can read it: chmod 640 {0}",
            path.display()
        );
    }
}

fn is_readable_by_others(path: &Path) -> bool {
    // A file that is gone again is read by nobody.
    fs::metadata(path).is_ok_and(|file| file.mode() & 0o004 != 0)
}

/// Checks that a policy that needs probes has a key for them.
pub(super) fn check<'s>(
    file: &File,
    mut settings: impl Iterator<Item = &'s VniSettings>,
) -> Result<(), ConfigurationError> {
    let has_key = file.probing.key.is_some() || file.probing.key_file.is_some();
    if has_key || settings.all(|vni| !vni.policy.places_queue_pairs()) {
        return Ok(());
    }
    let problem = "the policies qp-pin and spray need a key for probes, the same on all leaves: for example, take the output of \
                   'openssl rand -hex 16'"
        .to_owned();
    Err(ConfigurationError::Value { place: file.place("probing.key"), problem })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    /// A file for the key, of this test alone.
    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("vtepd-key-{name}-{}", std::process::id()))
    }

    fn of(key: Option<&str>, key_file: Option<&Path>) -> Result<Option<Key>, ConfigurationError> {
        let (key, key_file) = (key.map(str::to_owned), key_file.map(Path::to_owned));
        let probing = ProbingSection { key, key_file, ..ProbingSection::default() };
        super::key(&File { probing, path: Some(path("configuration")), ..File::default() })
    }

    #[test]
    fn the_key_is_in_the_section_or_in_a_file() {
        let file = path("file");
        fs::write(&file, format!("{SECRET}\n")).unwrap();
        let number = |key: Result<Option<Key>, _>| key.unwrap().unwrap().number([1]);
        let expected = number(of(Some(SECRET), None));
        assert_eq!(number(of(None, Some(&file))), expected);
        // Beside the configuration file.
        let name = PathBuf::from(file.file_name().unwrap());
        assert_eq!(number(of(None, Some(&name))), expected);
        assert!(of(None, None).unwrap().is_none());
        fs::write(&file, "short\n").unwrap();
        for (key, key_file, expected) in [
            (Some(SECRET), &file, "there is a key already"),
            (None, &file, "probing.key-file: a key has 16 to 32 bytes, not 5"),
            (None, &path("none"), "cannot be read: No such file"),
        ] {
            let error = of(key, Some(key_file)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_file_that_all_users_can_read_is_found() {
        let file = path("mode");
        fs::write(&file, SECRET).unwrap();
        let readable = [0o600, 0o640, 0o644, 0o604, 0o660].map(|mode| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            is_readable_by_others(&file)
        });
        fs::remove_file(&file).unwrap();
        assert_eq!(
            (readable, is_readable_by_others(&file)),
            ([false, false, true, true, false], false)
        );
    }
}
