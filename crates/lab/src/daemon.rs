//! vtepd on a node: start, change of policy at run time, and metrics.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::netns::Namespace;
use crate::node::{Node, NodeError};
use crate::process::{Identity, wait_until};
use crate::random::SEED;

/// The address of vtepd's metrics endpoint inside the node's namespace.
pub const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9472);

const TIMEOUT: Duration = Duration::from_secs(2);

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
        policy: Policy,
        /// The time limit.
        limit: Duration,
        /// What the metrics report instead.
        reason: String,
    },
}

/// The policy by which vtepd chooses the outer UDP source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A hash of the inner flow, as in the kernel.
    FiveTuple,
    /// Queue pairs are distributed over [`BINS`] fixed ports.
    QpBins,
    /// A hash of the queue pair.
    QpHash,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::FiveTuple => "five-tuple",
            Self::QpBins => "qp-bins",
            Self::QpHash => "qp-hash",
        })
    }
}

/// The number of ports of `qp-bins`. It is vtepd's default and that of the ScaleAcross paper.
pub const BINS: usize = 4;

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
        policy: Policy,
        arguments: &[&str],
    ) -> Result<Self, DaemonError> {
        configure(node, policy)?;
        let mut command = node.command(&[program])?;
        command.arg("--config").arg(configuration(node)).args(arguments);
        let identity = node.spawn("vtepd", &mut command)?.identity;
        Ok(Self { node: node.clone(), identity })
    }

    /// Changes the policy in the configuration file and makes vtepd reload it, without a restart.
    ///
    /// # Errors
    /// If the configuration cannot be written or vtepd has ended.
    pub fn reload(&self, policy: Policy) -> Result<(), DaemonError> {
        configure(&self.node, policy)?;
        self.identity.signal(Signal::SIGHUP).map_err(|_| self.ended())
    }

    /// Waits until vtepd forwards at least `vnis` VNIs, all with this policy.
    ///
    /// # Errors
    /// [`DaemonError::NotReady`] after `limit`; [`DaemonError::Ended`] if vtepd ends.
    pub fn wait(&self, policy: Policy, vnis: usize, limit: Duration) -> Result<(), DaemonError> {
        let mut state = Err(String::new());
        wait_until(limit, || {
            state = self.metrics().and_then(|metrics| forwards(&metrics, policy, vnis));
            state.is_ok() || !self.identity.alive()
        });
        match state {
            Ok(()) => Ok(()),
            Err(_) if !self.identity.alive() => Err(self.ended()),
            Err(reason) => {
                let reason = format!("{reason}; its log ends: {}", self.last_words());
                Err(DaemonError::NotReady {
                    node: self.node.name().to_owned(),
                    policy,
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
        metrics(&self.node.namespace().map_err(|error| error.to_string())?)
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

/// Reads the metrics of the vtepd that runs in a namespace.
///
/// # Errors
/// A message, if vtepd does not answer.
pub fn metrics(namespace: &Namespace) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&METRICS, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    namespace
        .enter(get)
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("no metrics: {error}"))
}

/// The path of the configuration file of a node's vtepd.
#[must_use]
pub fn configuration(node: &Node) -> PathBuf {
    node.directory().join("vtepd.toml")
}

fn configure(node: &Node, policy: Policy) -> Result<(), DaemonError> {
    let path = configuration(node);
    let text = format!(
        "[entropy]\npolicy = \"{policy}\"\nbins = {BINS}\nseed = {SEED}\n\n[metrics]\nlisten = \"{METRICS}\"\n"
    );
    std::fs::write(&path, text).map_err(|source| node.file_error(&path, source).into())
}

/// Checks that the metrics report at least `vnis` forwarded VNIs, all with this policy. Otherwise
/// returns a message with what they report.
fn forwards(metrics: &str, policy: Policy, vnis: usize) -> Result<(), String> {
    if !metrics.lines().any(|line| line == "vtepd_ready 1") {
        return Err("not attached yet".into());
    }
    let all: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("vtepd_vni_info{")).collect();
    let wanted = format!("policy=\"{policy}\"");
    let by_policy = all.iter().filter(|line| line.contains(&wanted)).count();
    if all.len() >= vnis && by_policy == all.len() {
        return Ok(());
    }
    let left: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("vtepd_left_to_kernel{")).collect();
    Err(format!("{by_policy} of {} VNIs, expected {vnis} {}", all.len(), left.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_tell_when_a_policy_is_in_force() {
        let vni = |vni, policy| {
            format!("vtepd_vni_info{{vni=\"{vni}\",netdev=\"vx{vni}\",policy=\"{policy}\"}} 1\n")
        };
        let both = format!("# TYPE x\nvtepd_ready 1\n{}{}", vni(1, "qp-hash"), vni(2, "qp-hash"));
        assert_eq!(forwards(&both, Policy::QpHash, 2), Ok(()));
        assert!(forwards(&both, Policy::QpHash, 3).is_err());
        assert!(forwards(&both, Policy::QpBins, 2).is_err());
        let mixed = format!("vtepd_ready 1\n{}{}", vni(1, "qp-hash"), vni(2, "five-tuple"));
        assert!(forwards(&mixed, Policy::QpHash, 2).unwrap_err().starts_with("1 of 2"));
        assert!(forwards(&both.replace("ready 1", "ready 0"), Policy::QpHash, 2).is_err());
    }
}
