//! Parses the settings of a node at one level: defaults, kind, group or node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Uid, User};
use serde_norway::Value;

use super::stages::{healthcheck, stages};
use super::value::{
    Result, expected, fields, seconds, sequence, string, strings, truth, unsupported, words,
};
use super::{container, management};
use crate::model::{Bind, Node};

/// Keys that describe a container and have no effect on a namespace.
const HARMLESS: [&str; 13] = [
    "auto-remove",
    "cgroup-parent",
    "cgroupns-mode",
    "credentials",
    "image-pull-policy",
    "link-apply-mode",
    "password",
    "position",
    "runtime",
    "security-opts",
    "suppress-startup-config",
    "enforce-startup-config",
    "username",
];

/// Keys whose effect a program in the node might miss. A note names them.
const MISSED: [&str; 11] = [
    "config",
    "cpu",
    "cpu-set",
    "devices",
    "license",
    "memory",
    "mgmt-ipv6",
    "ports",
    "restart-policy",
    "shm-size",
    "startup-config",
];

/// Keys that namespaces cannot support, with advice for the user.
const REFUSED: [(&str, &str); 4] = [
    ("certificate", "make it beforehand and bind it"),
    ("volumes", "give them as binds, source:target"),
    ("extras", "a linux node has none"),
    (
        "impairments",
        "ContainerLab has no such key either; put a node between that runs 'lab wan' (see scaleacross.clab.yml)",
    ),
];

/// The names of root.
const ROOT: [&str; 4] = ["root", "0", "root:root", "0:0"];

/// `network-mode:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Network {
    /// A namespace with `eth0` in the management network.
    Bridge,
    /// A namespace with the node's links only.
    None,
    /// The namespace of this node.
    Container(String),
}

impl Network {
    /// The node whose namespace it is, if it is another's.
    pub(super) fn owner(self) -> Option<String> {
        match self {
            Self::Container(owner) => Some(owner),
            Self::Bridge | Self::None => None,
        }
    }
}

/// The settings of one level.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) kind: Option<String>,
    /// `type:`.
    pub(super) variant: Option<String>,
    pub(super) image: Option<String>,
    pub(super) node: Node,
    pub(super) network: Option<Network>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) startup_delay: Option<u64>,
    pub(super) env_files: Vec<PathBuf>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) privileged: Option<bool>,
    /// Whether there is `cap-add:`.
    pub(super) capabilities: bool,
    /// Keys of [`MISSED`].
    pub(super) missed: BTreeSet<&'static str>,
}

/// Settings of one level. Relative paths begin at `directory`.
pub(super) fn settings(place: &str, value: &Value, directory: &Path) -> Result<Settings> {
    let mut settings = Settings::default();
    for (key, value) in fields(place, value)? {
        let place = format!("{place}.{key}");
        let node = &mut settings.node;
        match key {
            "kind" => settings.kind = Some(string(&place, value)?),
            "type" => settings.variant = Some(string(&place, value)?),
            "image" => settings.image = Some(string(&place, value)?),
            "group" => node.group = Some(string(&place, value)?),
            "network-mode" => {
                settings.network = Some(network_mode(&place, &string(&place, value)?)?)
            }
            "entrypoint" => settings.entrypoint = Some(words(&place, &string(&place, value)?)?),
            "cmd" => settings.cmd = Some(words(&place, &string(&place, value)?)?),
            "startup-delay" => {
                settings.startup_delay = Some(seconds(&place, value)?).filter(|delay| *delay > 0);
            }
            "env" => node.env = imported(strings(&place, value)?, std::env::vars()),
            "labels" => settings.labels = strings(&place, value)?,
            "env-files" => {
                for value in sequence(&place, value)? {
                    settings.env_files.push(directory.join(in_home(&string(&place, value)?)));
                }
            }
            "sysctls" => {
                node.sysctls = strings(&place, value)?;
                if let Some(name) = node.sysctls.keys().find(|name| !name.starts_with("net.")) {
                    return Err(unsupported(
                        &format!("{place}.{name}"),
                        "it is the machine's, not a namespace's",
                    ));
                }
            }
            "exec" => {
                for value in sequence(&place, value)? {
                    node.exec.push(words(&place, &string(&place, value)?)?);
                }
            }
            "binds" => {
                for value in sequence(&place, value)? {
                    node.binds.push(bind(&place, &string(&place, value)?)?);
                }
            }
            "hostname" => node.hostname = Some(hostname(&place, &string(&place, value)?)?),
            "user" if ROOT.contains(&string(&place, value)?.as_str()) => {}
            "user" => return Err(unsupported(&place, "commands are run as root")),
            "stages" => node.stages = stages(&place, value)?,
            "healthcheck" => node.healthcheck = Some(healthcheck(&place, value)?),
            "tmpfs" => node.tmpfs = container::tmpfs(&place, value)?,
            "dns" => node.resolver = Some(container::resolver(&place, value)?),
            "pid-mode" => match string(&place, value)?.as_str() {
                "host" => node.machine_pids = true,
                _ => return Err(unsupported(&place, "host is; without it, a node has its own")),
            },
            "cap-add" => settings.capabilities = true,
            "privileged" => settings.privileged = Some(truth(&place, value)?),
            "mgmt-ipv4" => node.management = Some(management::address(&place, value)?),
            "aliases" => {
                for value in sequence(&place, value)? {
                    node.aliases.push(hostname(&place, &string(&place, value)?)?);
                }
            }
            key if HARMLESS.contains(&key) => {}
            key => {
                if let Some(key) = MISSED.iter().find(|missed| **missed == key) {
                    settings.missed.insert(key);
                    continue;
                }
                let why = REFUSED.iter().find(|(name, _)| *name == key).map_or("", |(_, why)| why);
                return Err(unsupported(&place, why));
            }
        }
    }
    Ok(settings)
}

fn network_mode(place: &str, mode: &str) -> Result<Network> {
    match mode.split_once(':') {
        None if mode == "none" => Ok(Network::None),
        None if mode == "bridge" => Ok(Network::Bridge),
        Some(("container", node)) if !node.is_empty() => Ok(Network::Container(node.to_owned())),
        _ => Err(unsupported(place, "none and container:NODE are")),
    }
}

/// Parses `source:target[:options]`. Of the options, only `ro` has an effect.
fn bind(place: &str, text: &str) -> Result<Bind> {
    const FORM: &str = "source:target[:ro]";
    let mut parts = text.split(':');
    let (Some(source), Some(target), options, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(expected(place, FORM));
    };
    let mut read_only = false;
    for option in options.into_iter().flat_map(|options| options.split(',')) {
        match option {
            "ro" => read_only = true,
            // SELinux labels and mount propagation have no meaning here: each process has a mount
            // namespace of its own.
            "rw" | "z" | "Z" | "rshared" | "rslave" | "rprivate" | "shared" | "slave"
            | "private" => {}
            _ => return Err(expected(place, FORM)),
        }
    }
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !target.starts_with('/') || !Path::new(target).components().all(is_plain) {
        return Err(expected(place, "an absolute path without '..' behind the colon"));
    }
    // `placeholders` may make it an absolute path.
    Ok(Bind { source: in_home(source), target: target.into(), read_only })
}

/// A path whose `~` is the user's home directory; with sudo, that of who called it.
fn in_home(path: &str) -> PathBuf {
    let below = path.strip_prefix('~').filter(|below| below.is_empty() || below.starts_with('/'));
    let caller = || {
        let id = std::env::var("SUDO_UID").ok()?.parse().ok()?;
        Some(User::from_uid(Uid::from_raw(id)).ok()??.dir)
    };
    match below.zip(caller().or_else(std::env::home_dir)) {
        Some((below, home)) => home.join(below.trim_start_matches('/')),
        None => path.into(),
    }
}

/// A host name: at most 64 bytes, as sethostname(2).
fn hostname(place: &str, name: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match (1..=64).contains(&name.len()) && name.chars().all(plain) {
        true => Ok(name.to_owned()),
        false => Err(expected(place, "a host name of 1 to 64 letters, digits, '-', '.' and '_'")),
    }
}

/// The environment of a level; with `__IMPORT_ENVS: true` also what it lacks of the machine's.
fn imported(
    mut own: BTreeMap<String, String>,
    of_machine: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    if own.get("__IMPORT_ENVS").is_some_and(|value| value == "true") {
        for (name, value) in of_machine {
            own.entry(name).or_insert(value);
        }
    }
    own
}

/// The environment variables of labels: `CLAB_LABEL_` and the name in capital letters, with `_` for
/// `-`, `+`, `.` and `/`, and without other characters.
pub(super) fn of_labels(
    labels: BTreeMap<String, String>,
) -> impl Iterator<Item = (String, String)> {
    let letter = |c: char| match c {
        '-' | '+' | '.' | '/' => Some('_'),
        c if c.is_ascii_alphanumeric() || c == '_' => Some(c.to_ascii_uppercase()),
        _ => None,
    };
    labels.into_iter().map(move |(name, value)| {
        let name: String = name.chars().filter_map(letter).collect();
        (format!("CLAB_LABEL_{name}"), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_the_machine_fills_gaps_if_asked() {
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let machine = || [("A", "machine"), ("B", "machine")].map(text).into_iter();
        let own = BTreeMap::from([("A", "own"), ("__IMPORT_ENVS", "true")].map(text));
        let all = imported(own, machine());
        assert_eq!((all["A"].as_str(), all["B"].as_str()), ("own", "machine"));
        assert!(imported(BTreeMap::new(), machine()).is_empty());
    }
}
