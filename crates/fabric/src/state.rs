//! The state of a fabric on disk while it is up. From it, a later process can end exactly the
//! processes that were started.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use experiment::units::Name;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::abstract_socket::Peer;
use crate::process::Identity;
use crate::topology::Topology;

const BASE: &str = "/run/vtepd-lab";
const KEPT: &str = "kept";
/// The first file of a state directory. A directory without it is not the lab's.
const TOPOLOGY: &str = "topology.json";

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
    /// The directory was not made by the lab, so nothing in it is changed or removed.
    #[error("{} is not lab's: {why}; remove it yourself if nothing needs it", .path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// How that is seen.
        why: &'static str,
    },
    /// A process of another user has the name of the lock.
    #[error("@vtepd-lab/{name} belongs to {peer}, not to lab: end that process")]
    Taken {
        /// The fabric.
        name: String,
        /// The process.
        peer: String,
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
    pub(crate) fn of(name: &Name) -> Self {
        Self { directory: Path::new(BASE).join(name) }
    }

    /// The names of all fabrics that have a state directory.
    pub(crate) fn list() -> Vec<Name> {
        let Ok(entries) = fs::read_dir(BASE) else { return Vec::new() };
        let directories = entries.flatten().filter(|entry| entry.path().join(TOPOLOGY).exists());
        let mut names: Vec<Name> = directories
            .filter_map(|entry| entry.file_name().into_string().ok()?.parse().ok())
            .collect();
        names.sort();
        names
    }

    /// Prevents other processes from building or removing the fabric until the lock is dropped or
    /// its holder dies. It is an abstract socket, so no file has to be removed.
    pub(crate) fn lock(name: &Name) -> Result<Lock, StateError> {
        let address = SocketAddr::from_abstract_name(format!("vtepd-lab/{name}"));
        match address.and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(listener) => Ok(Lock(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match Peer::holding(&format!("vtepd-lab/{name}")) {
                    Some(peer) if !peer.is_trusted() => {
                        Err(StateError::Taken { name: name.to_string(), peer: peer.to_string() })
                    }
                    _ => Err(StateError::Busy(name.to_string())),
                }
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
        self.is_own()?;
        let path = self.directory.join(TOPOLOGY);
        let text = serde_json::to_vec(topology)
            .map_err(|source| StateError::Damaged { path: path.clone(), source })?;
        fs::write(&path, text).map_err(|source| StateError::Io { path, source })
    }

    pub(crate) fn topology(&self) -> Result<Topology, StateError> {
        self.is_own()?;
        let path = self.directory.join(TOPOLOGY);
        let text =
            fs::read(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|source| StateError::Damaged { path, source })
    }

    /// Creates a directory and its parents, whatever the umask is.
    #[expect(clippy::unused_self, reason = "only directories of the state are made")]
    pub(crate) fn make(&self, path: &Path) -> Result<(), StateError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|source| StateError::Io { path: path.to_owned(), source })
    }

    /// Whether the directory exists. The lab has made it: neither it nor its parent, [`BASE`], is a
    /// link, no other user can write to them, and it is empty or has a topology.
    ///
    /// # Errors
    /// [`StateError::Foreign`].
    fn is_own(&self) -> Result<bool, StateError> {
        for path in self.directory.parent().into_iter().chain([self.directory.as_path()]) {
            let foreign = |why| Err(StateError::Foreign { path: path.to_owned(), why });
            match fs::symlink_metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(source) => return Err(StateError::Io { path: path.to_owned(), source }),
                Ok(found) if !found.is_dir() => return foreign("it is no directory"),
                Ok(found) if found.uid() != geteuid().as_raw() => {
                    return foreign("it belongs to another user");
                }
                Ok(found) if found.mode() & 0o022 != 0 => {
                    return foreign("other users can write to it");
                }
                Ok(_) => {}
            }
        }
        let path = self.directory.clone();
        let mut entries =
            fs::read_dir(&path).map_err(|source| StateError::Io { path: path.clone(), source })?;
        if entries.next().is_some() && path.join(TOPOLOGY).symlink_metadata().is_err() {
            return Err(StateError::Foreign { path, why: "it has files, but no topology.json" });
        }
        Ok(true)
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

    /// Removes the directory. Processes of nodes can write below it, so links are not followed.
    ///
    /// # Errors
    /// [`StateError::Foreign`] if the lab has not made it. Nothing is removed then.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        if !self.is_own()? {
            return Ok(());
        }
        fs::remove_dir_all(&self.directory)
            .map_err(|source| StateError::Io { path: self.directory.clone(), source })?;
        // This succeeds only if no other fabric has a state.
        let _ = fs::remove_dir(BASE);
        Ok(())
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
        let name: Name = format!("state-test-{}", std::process::id()).parse().unwrap();
        let lock = State::lock(&name).unwrap();
        assert!(matches!(State::lock(&name), Err(StateError::Busy(_))));
        drop(lock);
        drop(State::lock(&name).unwrap());
    }

    fn topology() -> Topology {
        Topology::parse("name: x\ntopology: {nodes: {}}", "/".as_ref(), |_| None).unwrap()
    }

    #[test]
    fn only_what_the_lab_made_is_used_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        let state = State { directory: base.join("x") };
        let refused = |why: &str| {
            for result in [state.remove(), state.topology().map(drop), state.create(&topology())] {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("is not lab's") && error.contains(why), "{error}");
            }
        };
        // Files of somebody else, directly and by links.
        let other = base.join("other");
        state.make(&other).unwrap();
        fs::write(other.join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(&other, &state.directory).unwrap();
        refused("it is no directory");
        fs::remove_file(&state.directory).unwrap();
        state.make(&state.directory).unwrap();
        fs::write(state.directory.join("precious"), "x").unwrap();
        refused("it has files, but no topology.json");
        fs::remove_file(state.directory.join("precious")).unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        for path in [base, &state.directory] {
            mode(path, 0o777);
            refused("other users can write to it");
            mode(path, 0o755);
        }

        // A process of a node has left links.
        state.create(&topology()).unwrap();
        state.make(&state.node("leaf1")).unwrap();
        for target in [other.as_path(), &other.join("precious")] {
            let link = state.node("leaf1").join(target.file_name().unwrap());
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        state.remove().unwrap();
        assert!(!state.directory.exists() && other.join("precious").exists());
    }

    #[test]
    fn records_come_back() {
        let base = tempfile::tempdir().unwrap();
        let state = State { directory: base.path().join("x") };
        state.create(&topology()).unwrap();
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
