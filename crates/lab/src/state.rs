//! The state of a fabric on disk while it is up. From it, a later process can end exactly the
//! processes that were started.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::topology::Topology;
use fabric::process::Identity;

const BASE: &str = "/run/vtepd-lab";
const KEPT: &str = "kept";

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file of the state cannot be read or written.
    #[error("cannot use {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the state does not have the expected content.
    #[error("{} is damaged", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// Another process is building or removing the same fabric.
    #[error("another lab process is using fabric '{0}'")]
    Busy(String),
}

/// A record of a process that was started in a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the node.
    pub node: String,
    /// The name of the process, for example `bgpd`.
    pub name: String,
    /// The id and start time of the process.
    #[serde(flatten)]
    pub identity: Identity,
}

/// The lock that is held while a fabric is built or removed.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "held, not used")] UnixListener);

/// The state directory of a fabric, `/run/vtepd-lab/NAME`.
#[derive(Debug, Clone)]
pub(crate) struct State {
    directory: PathBuf,
}

impl State {
    pub(crate) fn of(name: &str) -> Self {
        Self { directory: Path::new(BASE).join(name) }
    }

    /// The names of all fabrics that have a state directory.
    pub(crate) fn list() -> Vec<String> {
        let Ok(entries) = fs::read_dir(BASE) else { return Vec::new() };
        let directories =
            entries.flatten().filter(|entry| entry.path().join("topology.json").exists());
        let mut names: Vec<_> =
            directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Prevents other processes from building or removing the fabric until the lock is dropped or
    /// its holder dies. It is an abstract socket, so no file has to be removed.
    pub(crate) fn lock(name: &str) -> Result<Lock, StateError> {
        let address = SocketAddr::from_abstract_name(format!("vtepd-lab/{name}"));
        match address.and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(listener) => Ok(Lock(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(StateError::Busy(name.to_owned()))
            }
            Err(source) => Err(StateError::Io { path: BASE.into(), source }),
        }
    }

    /// The directory of a node.
    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.directory.join("nodes").join(node)
    }

    pub(crate) fn create(&self, topology: &Topology) -> Result<(), StateError> {
        self.make(&self.directory)?;
        let path = self.directory.join("topology.json");
        let text = serde_json::to_vec(topology)
            .map_err(|source| StateError::Damaged { path: path.clone(), source })?;
        fs::write(&path, text).map_err(|source| StateError::Io { path, source })
    }

    pub(crate) fn topology(&self) -> Result<Topology, StateError> {
        let path = self.directory.join("topology.json");
        let text =
            fs::read(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|source| StateError::Damaged { path, source })
    }

    /// Creates a directory and its parents.
    #[expect(clippy::unused_self, reason = "only directories of the state are made")]
    pub(crate) fn make(&self, path: &Path) -> Result<(), StateError> {
        fs::create_dir_all(path).map_err(|source| StateError::Io { path: path.to_owned(), source })
    }

    /// Records that the fabric is to stay up until it is removed.
    pub(crate) fn keep(&self) -> Result<(), StateError> {
        let path = self.directory.join(KEPT);
        fs::write(&path, b"").map_err(|source| StateError::Io { path, source })
    }

    /// Whether the fabric was kept on purpose.
    pub(crate) fn is_kept(&self) -> bool {
        self.directory.join(KEPT).exists()
    }

    pub(crate) fn remove(&self) -> Result<(), StateError> {
        match fs::remove_dir_all(&self.directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StateError::Io { path: self.directory.clone(), source })
            }
            _ => {
                // This succeeds only if no other fabric has a state.
                let _ = fs::remove_dir(BASE);
                Ok(())
            }
        }
    }

    /// Appends one line for the process with a single write, so that a killed writer leaves no
    /// partial line.
    pub(crate) fn record(&self, record: &Record) -> Result<(), StateError> {
        let path = self.processes();
        let mut line = serde_json::to_vec(record)
            .map_err(|source| StateError::Damaged { path: path.clone(), source })?;
        line.push(b'\n');
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(&line))
            .map_err(|source| StateError::Io { path, source })
    }

    pub(crate) fn records(&self) -> Result<Vec<Record>, StateError> {
        let path = self.processes();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            result => result.map_err(|source| StateError::Io { path: path.clone(), source })?,
        };
        let parse = |line| {
            serde_json::from_str(line)
                .map_err(|source| StateError::Damaged { path: path.clone(), source })
        };
        text.lines().map(parse).collect()
    }

    fn processes(&self) -> PathBuf {
        self.directory.join("processes.jsonl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_works_on_a_fabric_at_a_time() {
        let name = format!("state-test-{}", std::process::id());
        let lock = State::lock(&name).unwrap();
        assert!(matches!(State::lock(&name), Err(StateError::Busy(_))));
        drop(lock);
        drop(State::lock(&name).unwrap());
    }

    #[test]
    fn records_come_back() {
        let state = State {
            directory: std::env::temp_dir().join(format!("lab-state-{}", std::process::id())),
        };
        state.make(&state.directory).unwrap();
        assert_eq!(state.records().unwrap(), []);
        let record = |name: &str, pid| Record {
            node: "leaf1".into(),
            name: name.into(),
            identity: Identity { pid, start_time: 7 },
        };
        state.record(&record("zebra", 10)).unwrap();
        state.record(&record("bgpd", 11)).unwrap();
        assert_eq!(state.records().unwrap(), [record("zebra", 10), record("bgpd", 11)]);
        state.remove().unwrap();
        state.remove().unwrap();
    }
}
