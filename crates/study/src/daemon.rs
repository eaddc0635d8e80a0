//! vtepd on a node: start, change of policy at run time, and metrics.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use experiment::random::SEED;
use fabric::metrics;
use fabric::node::{Node, NodeError};
use fabric::process::{Identity, wait_until};

pub use path::{Policy, Scheme};

/// vtepd could not be run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// An operation on the node failed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// vtepd ended.
    #[error("vtepd on {node} ended: {reason}")]
    Ended {
        /// The node.
        node: String,
        /// The last line of its log.
        reason: String,
    },
    /// vtepd runs, but does not forward with the policy.
    #[error("vtepd on {node} does not forward with {policy} after {limit:?}: {reason}")]
    NotReady {
        /// The node.
        node: String,
        /// The requested policy.
        policy: String,
        /// The time limit.
        limit: Duration,
        /// What the metrics report instead.
        reason: String,
    },
}

/// A scheme of the policy `spray`, by its name.
///
/// # Errors
/// A message with the names.
pub fn scheme(name: &str) -> Result<Scheme, String> {
    let all = Scheme::ALL.into_iter().filter(|scheme| *scheme != Scheme::Ecmp);
    let names: Vec<&str> = all.clone().map(Scheme::name).collect();
    let mut named = all.filter(|scheme| scheme.name() == name);
    named.next().ok_or_else(|| format!("'{name}' is no scheme: expected {}", names.join(", ")))
}

/// The datapaths of vtepd: `datapath` of its configuration file.
pub const DATAPATHS: [&str; 4] = ["auto", "kernel", "offload", "userspace"];
/// The number of ports of `qp-bins`. It is vtepd's default and that of the ScaleAcross paper.
pub const BINS: usize = 4;
/// The scheme of `spray`. It is vtepd's default.
pub const SCHEME: Scheme = Scheme::PrimeLike;

/// The key of all probes in a fabric. Everybody who reads this knows it.
const KEY: &str = "key-of-this-emulated-fabric";

/// The line of the configuration file before the name of the scheme.
const SCHEME_KEY: &str = "[spraying]\nscheme = ";

/// The time between two questions to a vtepd that starts. An answer takes time from the start.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The settings of vtepd that measurements compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// The name of the datapath; `None` for vtepd's default.
    pub datapath: Option<String>,
    /// The number of ports of `qp-bins`.
    pub bins: usize,
    /// The scheme of `spray`. vtepd reads it at its start only.
    pub scheme: Scheme,
    /// The seed of the hashes.
    pub seed: u64,
}

impl From<Policy> for Settings {
    fn from(policy: Policy) -> Self {
        Self { policy, datapath: None, bins: BINS, scheme: SCHEME, seed: SEED }
    }
}

impl Settings {
    /// The text of the configuration file.
    fn text(&self) -> String {
        let Self { policy, datapath, bins, scheme, seed } = self;
        let datapath = datapath.as_ref().map(|datapath| format!("datapath = \"{datapath}\"\n"));
        format!(
            "[takeover]\n{}\n[entropy]\npolicy = \"{policy}\"\nbins = {bins}\nseed = {seed}\n\n\
             [probing]\nkey = \"{KEY}\"\n\n{SCHEME_KEY}\"{scheme}\"\n\n[metrics]\nlisten = \"{}\"\n",
            datapath.unwrap_or_default(),
            metrics::ADDRESS
        )
    }
}

/// vtepd on a node. It ends with the fabric.
#[derive(Debug, Clone)]
pub struct Daemon {
    node: Node,
    identity: Identity,
}

impl Daemon {
    /// Starts `program` on the node with additional arguments. It does not wait; use
    /// [`Daemon::wait`].
    ///
    /// # Errors
    /// If vtepd cannot be configured or started.
    pub fn start(
        node: &Node,
        program: &Path,
        settings: impl Into<Settings>,
        arguments: &[&str],
    ) -> Result<Self, DaemonError> {
        configure(node, &settings.into())?;
        let mut command = node.command(&[program])?;
        if !arguments.iter().any(|argument| argument.starts_with("--config")) {
            command.arg("--config").arg(configuration(node));
        }
        command.args(arguments);
        let identity = node.spawn_beside("vtepd", &mut command)?.identity;
        Ok(Self { node: node.clone(), identity })
    }

    /// The vtepd that already runs on the node.
    #[must_use]
    pub(crate) fn running(node: &Node, identity: Identity) -> Self {
        Self { node: node.clone(), identity }
    }

    /// Changes the configuration file and makes vtepd reload it, without a restart.
    ///
    /// # Errors
    /// If the configuration cannot be written or vtepd has ended.
    pub fn reload(&self, settings: impl Into<Settings>) -> Result<(), DaemonError> {
        configure(&self.node, &settings.into())?;
        self.identity.signal(Signal::SIGHUP).map_err(|_| self.ended())
    }

    /// The scheme with which it was started, if `lab` did that.
    #[must_use]
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        let text = std::fs::read_to_string(configuration(&self.node)).ok()?;
        let (_, name) = text.split_once(SCHEME_KEY)?;
        name.split('"').nth(1)?.parse().ok()
    }

    /// How often vtepd has read its configuration and published its tables. Both increase when a
    /// changed configuration takes effect. 0 if vtepd does not answer.
    #[must_use]
    pub fn generations(&self) -> [u64; 2] {
        let metrics = self.metrics().unwrap_or_default();
        ["vtepd_configuration_generation", "vtepd_snapshot_generation"].map(|name| {
            let value =
                metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            value.unwrap_or_default()
        })
    }

    /// Waits until vtepd forwards at least `vnis` VNIs, all with these settings.
    ///
    /// # Errors
    /// [`DaemonError::NotReady`] after `limit`; [`DaemonError::Ended`] if vtepd ends.
    pub fn wait(
        &self,
        settings: impl Into<Settings>,
        vnis: usize,
        limit: Duration,
    ) -> Result<(), DaemonError> {
        let settings = settings.into();
        let ready = |metrics: &str| forwards(metrics, &settings, vnis);
        self.wait_for(settings.policy.name(), limit, ready)
    }

    /// Waits until vtepd redirects frames, whatever its settings are.
    ///
    /// # Errors
    /// As [`Daemon::wait`].
    pub fn wait_until_ready(&self, limit: Duration) -> Result<(), DaemonError> {
        self.wait_for("its settings", limit, is_ready)
    }

    fn wait_for(
        &self,
        policy: &str,
        limit: Duration,
        ready: impl Fn(&str) -> Result<(), String>,
    ) -> Result<(), DaemonError> {
        let mut state = Err(String::new());
        wait_until(limit, || {
            state = self.metrics().and_then(|metrics| ready(&metrics));
            if state.is_err() {
                std::thread::sleep(ASK_AGAIN);
            }
            state.is_ok() || !self.identity.alive()
        });
        match state {
            Ok(()) => Ok(()),
            Err(_) if !self.identity.alive() => Err(self.ended()),
            Err(reason) => {
                let reason = format!("{reason}; its log ends: {}", self.last_words());
                Err(DaemonError::NotReady {
                    node: self.node.name().to_owned(),
                    policy: policy.to_owned(),
                    limit,
                    reason,
                })
            }
        }
    }

    /// The metrics in Prometheus' text format.
    ///
    /// # Errors
    /// A message, if vtepd does not answer.
    pub fn metrics(&self) -> Result<String, String> {
        metrics::read(&self.node.namespace().map_err(|error| error.to_string())?)
    }

    /// The process id and start time of vtepd.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn ended(&self) -> DaemonError {
        DaemonError::Ended { node: self.node.name().to_owned(), reason: self.last_words() }
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.node.log("vtepd")).unwrap_or_default();
        log.lines().last().unwrap_or("it wrote nothing").to_owned()
    }
}

/// The path of the configuration file of a node's vtepd.
#[must_use]
pub fn configuration(node: &Node) -> PathBuf {
    node.directory().join("vtepd.toml")
}

fn configure(node: &Node, settings: &Settings) -> Result<(), DaemonError> {
    let path = configuration(node);
    std::fs::write(&path, settings.text()).map_err(|source| node.file_error(&path, source).into())
}

/// Checks that the metrics report that frames are redirected.
fn is_ready(metrics: &str) -> Result<(), String> {
    let ready = metrics.lines().any(|line| line == "vtepd_ready 1");
    if ready { Ok(()) } else { Err("not attached yet".into()) }
}

/// Checks that the metrics report at least `vnis` forwarded VNIs, all with these settings. Otherwise
/// returns a message with what they report.
fn forwards(metrics: &str, settings: &Settings, vnis: usize) -> Result<(), String> {
    is_ready(metrics)?;
    let all: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("vtepd_vni_datapath{")).collect();
    let policy = format!("policy=\"{}\"", settings.policy);
    // By default, vtepd forwards by itself, in one of its own datapaths.
    let is_wanted = |line: &&&str| {
        line.contains(&policy)
            && match settings.datapath.as_deref() {
                Some("auto") => true,
                Some(name) => line.contains(&format!("datapath=\"{name}\"")),
                None => !line.contains("datapath=\"kernel\""),
            }
    };
    let wanted = all.iter().filter(is_wanted).count();
    if settings.policy.places_queue_pairs() {
        let probed: Vec<&str> =
            metrics.lines().filter(|line| line.starts_with("vtepd_probing_ready{")).collect();
        let ready = probed.iter().filter(|line| line.ends_with(" 1")).count();
        if ready == 0 || ready < probed.len() {
            return Err(format!("the paths to {ready} of {} VTEPs are known", probed.len()));
        }
    }
    if all.len() >= vnis && wanted == all.len() {
        return Ok(());
    }
    let left: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("vtepd_left_to_kernel{")).collect();
    Err(format!("{wanted} of {} VNIs, expected {vnis} {}", all.len(), left.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_tell_when_settings_are_in_force() {
        let vni = |vni, datapath, policy| {
            format!(
                "vtepd_vni_datapath{{vni=\"{vni}\",netdev=\"vx{vni}\",datapath=\"{datapath}\",\
                 policy=\"{policy}\"}} 1\n"
            )
        };
        let check = |metrics: &str, settings: &Settings, vnis| forwards(metrics, settings, vnis);
        let (hash, bins) = (Settings::from(Policy::QpHash), Settings::from(Policy::QpBins));
        let one = vni(1, "userspace", "qp-hash");
        let both = format!("# TYPE x\nvtepd_ready 1\n{one}{}", vni(2, "userspace", "qp-hash"));
        assert_eq!(check(&both, &hash, 2), Ok(()));
        assert!(check(&both, &hash, 3).is_err());
        assert!(check(&both, &bins, 2).is_err());
        let mixed = format!("vtepd_ready 1\n{one}{}", vni(2, "userspace", "five-tuple"));
        assert!(check(&mixed, &hash, 2).unwrap_err().starts_with("1 of 2"));
        assert!(check(&both.replace("ready 1", "ready 0"), &hash, 2).is_err());
        assert_eq!(check(&both.replace("userspace", "offload"), &hash, 2), Ok(()));
        let left = format!("vtepd_ready 1\n{one}{}", vni(2, "kernel", "qp-hash"));
        assert!(check(&left, &hash, 2).unwrap_err().starts_with("1 of 2"));
        let auto = Settings { datapath: Some("auto".into()), ..hash.clone() };
        assert_eq!(check(&left, &auto, 2), Ok(()));
        let kernel = Settings { datapath: Some("kernel".into()), ..hash };
        assert!(check(&left, &kernel, 2).is_err());
        assert_eq!(check(&left.replace("userspace", "kernel"), &kernel, 2), Ok(()));
    }
}
