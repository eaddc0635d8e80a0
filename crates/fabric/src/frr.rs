//! FRR on a node: which daemons its `daemons` file enables, and how they start.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::frr_root::{self, PROGRAMS};
use crate::netns::NetnsError;
use crate::node::{Node, NodeError};
use crate::process::wait_until;
use crate::state::Record;

/// How long a daemon may take to open its vty socket.
const START_LIMIT: Duration = Duration::from_secs(20);

/// All daemons that `frrinit.sh` knows, in its order. The first ones start even if they are not
/// enabled.
const DAEMONS: [&str; 20] = [
    "mgmtd", "zebra", "staticd", "bgpd", "ripd", "ripngd", "ospfd", "ospf6d", "isisd", "babeld",
    "pimd", "pim6d", "ldpd", "nhrpd", "eigrpd", "sharpd", "pbrd", "bfdd", "fabricd", "vrrpd",
];

/// A daemon to start.
#[derive(Debug, PartialEq, Eq)]
struct Daemon {
    name: &'static str,
    options: Vec<String>,
}

/// Parses a `daemons` file. It is a shell script, of which only plain assignments are supported.
fn daemons(text: &str, programs: &Path) -> Result<Vec<Daemon>, String> {
    let mut settings = BTreeMap::new();
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let understood = line.split_once('=').and_then(|(name, value)| {
            let value = shlex::split(value).filter(|words| words.len() <= 1)?;
            Some((name, value.into_iter().next().unwrap_or_default()))
        });
        let (name, value) =
            understood.ok_or_else(|| format!("the line '{line}' is not supported"))?;
        settings.insert(name, value);
    }
    let get = |name: &str| settings.get(name).map_or("", String::as_str);

    let mut daemons = Vec::new();
    for name in DAEMONS {
        let enabled = !matches!(get(name), "" | "no" | "0");
        let always = match name {
            "zebra" | "staticd" => true,
            // Exists since FRR 9, and always runs where it exists.
            "mgmtd" => programs.join(name).exists(),
            _ => false,
        };
        if !enabled && !always {
            continue;
        }
        if !get(&format!("{name}_instances")).is_empty() {
            return Err(format!("{name}_instances is not supported"));
        }
        let mut options = Vec::new();
        if !get("frr_profile").is_empty() {
            options.extend(["-F".to_owned(), get("frr_profile").to_owned()]);
        }
        for text in [get("frr_global_options"), get(&format!("{name}_options"))] {
            let words = shlex::split(text)
                .ok_or_else(|| format!("open quotes in the options of {name}"))?;
            // The lab supervises the processes, so they must not become daemons.
            options.extend(words.into_iter().filter(|word| word != "-d" && word != "--daemon"));
        }
        daemons.push(Daemon { name, options });
    }
    Ok(daemons)
}

/// Starts the daemons that the node's `daemons` file enables and loads its `frr.conf`. Returns what
/// they refused of it: as in FRR's image, that does not keep them from running.
pub(crate) fn start(node: &Node) -> Result<Option<String>, NodeError> {
    enabled(node)?.iter().try_for_each(|daemon| launch(node, daemon))?;
    if node.has_frr() { load(node, &["vtysh", "-b"]) } else { Ok(None) }
}

/// Loads `frr.conf`. Returns what was refused of it.
fn load(node: &Node, words: &[&str]) -> Result<Option<String>, NodeError> {
    match node.run(words) {
        Ok(_) => Ok(None),
        Err(NodeError::Netns(NetnsError::Failed { stderr, .. })) => Ok(Some(stderr)),
        Err(error) => Err(error),
    }
}

/// The first two bytes of the addresses that ContainerLab gives to `eth0`.
const MANAGEMENT: [u8; 2] = [172, 20];

/// Gives zebra the router identifier that a container's `eth0` would give it, if the node has
/// neither that nor another IPv4 address. `index` numbers the nodes.
pub(crate) fn identify(node: &Node, index: usize) -> Result<(), NodeError> {
    if !node.has_frr() || node.settings.management.is_some() {
        return Ok(());
    }
    // FRR 8 says nothing without an identifier, later versions 0.0.0.0.
    let shown = node.run(&["vtysh", "-c", "show ip router-id"])?;
    let mut addresses = shown.split_whitespace().filter_map(|word| word.parse::<Ipv4Addr>().ok());
    if addresses.any(|address| !address.is_unspecified()) {
        return Ok(());
    }
    let [high, low] = u16::try_from(20 * 256 + index + 2).unwrap_or(u16::MAX).to_be_bytes();
    let [first, second] = MANAGEMENT;
    let id = Ipv4Addr::new(first, second, high, low);
    let command = format!("ip router-id {id}");
    node.run(&["vtysh", "-c", "configure terminal", "-c", &command]).map(drop)
}

impl Node {
    /// Whether the node's `daemons` file enables a daemon.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn enables(&self, name: &str) -> Result<bool, NodeError> {
        Ok(enabled(self)?.iter().any(|daemon| daemon.name == name))
    }

    /// Ends all FRR daemons of the node with a signal, and waits for their end.
    ///
    /// # Errors
    /// If a daemon does not end.
    pub fn end_frr(&self, signal: Signal) -> Result<(), NodeError> {
        let daemons = enabled(self)?;
        let own = |record: &&Record| {
            record.node == self.name() && daemons.iter().any(|daemon| daemon.name == record.name)
        };
        let records = self.state.records()?;
        let running: Vec<&Record> =
            records.iter().filter(own).filter(|record| record.identity.alive()).collect();
        for record in &running {
            record.identity.signal(signal)?;
        }
        for Record { name, identity, .. } in running {
            if !wait_until(START_LIMIT, || !identity.alive()) {
                return Err(failed(self, format!("{name} does not end by {signal}")));
            }
            // A killed daemon leaves its socket behind.
            let _ = fs::remove_file(socket(self, name));
        }
        Ok(())
    }

    /// Starts all FRR daemons of the node again, with its `frr.conf`.
    ///
    /// # Errors
    /// If a daemon does not start.
    pub fn start_frr(&self) -> Result<(), NodeError> {
        start(self).map(drop)
    }

    /// Ends one of the node's FRR daemons with a signal, waits for its end, and starts it again
    /// with its part of `frr.conf`.
    ///
    /// # Errors
    /// If the node does not run this daemon, or the daemon does not end or start.
    pub fn restart_frr(&self, name: &str, signal: Signal) -> Result<(), NodeError> {
        let daemon = enabled(self)?.into_iter().find(|daemon| daemon.name == name);
        let daemon = daemon.ok_or_else(|| failed(self, format!("{name} is not enabled")))?;
        let records = self.state.records()?;
        let running = records.iter().filter(|record| {
            record.node == self.name() && record.name == name && record.identity.alive()
        });
        for record in running {
            record.identity.signal(signal)?;
            if !wait_until(START_LIMIT, || !record.identity.alive()) {
                return Err(failed(self, format!("{name} does not end by {signal}")));
            }
        }
        // A killed daemon leaves its socket behind.
        let _ = fs::remove_file(socket(self, daemon.name));
        launch(self, &daemon)?;
        load(self, &["vtysh", "-b", "-d", name]).map(drop)
    }
}

fn failed(node: &Node, reason: String) -> NodeError {
    NodeError::Frr { node: node.name().to_owned(), reason }
}

fn programs(node: &Node) -> PathBuf {
    node.frr_root().map_or_else(|| PROGRAMS.into(), |root| frr_root::below(root, PROGRAMS))
}

/// The vty socket, which a daemon opens when it is ready.
fn socket(node: &Node, daemon: &str) -> PathBuf {
    node.directory().join("run").join(format!("{daemon}.vty"))
}

/// The daemons that the node's `daemons` file enables; empty on a node without FRR.
fn enabled(node: &Node) -> Result<Vec<Daemon>, NodeError> {
    if !node.has_frr() {
        return Ok(Vec::new());
    }
    // As in FRR's image, whose own file enables no daemon: zebra and staticd.
    let Some(path) = node.daemons_file() else {
        return daemons("", &programs(node)).map_err(|reason| failed(node, reason));
    };
    let text =
        experiment::input::read_text(&path).map_err(|source| node.file_error(&path, source))?;
    daemons(&text, &programs(node)).map_err(|reason| failed(node, reason))
}

fn launch(node: &Node, daemon: &Daemon) -> Result<(), NodeError> {
    let program = programs(node).join(daemon.name);
    if !program.exists() {
        return Err(NodeError::NotInstalled(format!("{} (Debian package frr)", program.display())));
    }
    // In the node's mount namespace, the program is at this path.
    let mut command = node.command(&[Path::new(PROGRAMS).join(daemon.name)])?;
    let record = node.spawn(daemon.name, command.args(&daemon.options))?;
    let socket = socket(node, daemon.name);
    wait_until(START_LIMIT, || socket.exists() || !record.identity.alive());
    if !socket.exists() {
        let log = fs::read_to_string(node.log(daemon.name)).unwrap_or_default();
        let message = log.lines().last().unwrap_or("no message");
        return Err(failed(
            node,
            format!("{} ended or did not open its vty socket: {message}", daemon.name),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_file_says_what_runs_and_how() {
        let text = "# comment\nbgpd=yes\nospfd=no\nvtysh_enable=yes\nzebra_options=\"  -A 127.0.0.1 -d -M dplane_fpm_nl\"\n\
                    bfdd=yes\nbgpd_options='-A ::1'\n#bgpd_options=\nMAX_FDS=1024\n";
        let none = Path::new("/nonexistent");
        let daemons = daemons(text, none).unwrap();
        let names: Vec<_> = daemons.iter().map(|daemon| daemon.name).collect();
        assert_eq!(names, ["zebra", "staticd", "bgpd", "bfdd"]);
        assert_eq!(daemons[0].options, ["-A", "127.0.0.1", "-M", "dplane_fpm_nl"]);
        assert_eq!(daemons[2].options, ["-A", "::1"]);
        assert!(daemons[3].options.is_empty());
    }

    #[test]
    fn what_only_a_shell_understands_is_refused() {
        let daemons = |text| daemons(text, Path::new("/nonexistent"));
        assert!(daemons("bgpd=yes; echo a b").unwrap_err().contains("bgpd=yes; echo"));
        assert!(daemons("if true").unwrap_err().contains("not supported"));
        assert!(daemons("ospfd=yes\nospfd_instances=1,2").unwrap_err().contains("ospfd_instances"));
    }
}
