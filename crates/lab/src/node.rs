//! A node as its processes see it: its network namespace, its `/sys`, and files of its own at the
//! paths where ContainerLab would bind them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::unistd::User;

use crate::frr;
use crate::frr_root::{self, PROGRAMS, VTYSH};
use crate::netns::{Namespace, NetnsError};
use crate::process::{Process, ProcessError};
use crate::state::{Record, State, StateError};
use crate::topology;

/// Directories that each node with FRR has for itself, by what they are called in its state
/// directory.
const PRIVATE: [(&str, &str); 4] =
    [("etc", "/etc/frr"), ("run", "/run/frr"), ("lib", "/var/lib/frr"), ("tmp", "/var/tmp/frr")];

/// A node could not be set up, or something could not be run in it.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its namespace, or a command in it.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A process in it.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A bound file is missing outside.
    #[error("{node}: bound file {} is missing", .path.display())]
    BindSource {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// There is nothing to bind over: unlike a container, a namespace sees this machine's files.
    #[error("{node}: cannot bind to {}: there is no such file on this machine, and lab makes none", .path.display())]
    BindTarget {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// A file system could not be mounted in the node's own view.
    #[error("{node}: cannot mount {}", .target.display())]
    Mount {
        /// The node.
        node: String,
        /// Where.
        target: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the node could not be made.
    #[error("{node}: cannot write {}", .path.display())]
    File {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// This machine lacks a program.
    #[error("{0} is not installed")]
    NotInstalled(String),
    /// What `entrypoint` and `cmd` ask for has ended, and nobody waits for that.
    #[error("{node}: {program} has ended: {said}")]
    Ended {
        /// The node.
        node: String,
        /// The program.
        program: String,
        /// The last line of its log.
        said: String,
    },
    /// Its health check has failed as often as it may.
    #[error("{node}: is not healthy: '{test}' fails")]
    Sick {
        /// The node.
        node: String,
        /// The test.
        test: String,
    },
    /// The configuration was refused by FRR, or a daemon did not come up.
    #[error("{node}: FRR did not start: {reason}")]
    Frr {
        /// The node.
        node: String,
        /// What it said.
        reason: String,
    },
}

/// A node of a fabric that is up.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) settings: topology::Node,
    pub(crate) state: State,
}

impl Node {
    /// Its name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace. What is run there directly sees the machine's own `/sys` and `/etc/frr`;
    /// [`Node::run`] and [`Node::spawn`] see the node's.
    ///
    /// # Errors
    /// If it is gone.
    pub fn namespace(&self) -> Result<Namespace, NodeError> {
        Ok(Namespace::open(&self.namespace)?)
    }

    /// A directory for files of this node. It goes when the fabric goes.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.state.node(&self.name)
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// With its standard error if it exits with anything but 0.
    pub fn run(&self, words: &[&str]) -> Result<String, NodeError> {
        let output = self.output(&mut self.command(words)?)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        Err(NodeError::Netns(NetnsError::Failed {
            namespace: self.name.clone(),
            command: words.join(" "),
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(said).trim().to_owned(),
        }))
    }

    /// Runs a command to its end, whatever its exit status. Standard streams that `command` does
    /// not set are captured.
    ///
    /// # Errors
    /// If it could not be started.
    pub fn output(&self, command: &mut Command) -> Result<Output, NodeError> {
        let text = format!("{command:?}");
        self.enter(|| command.output())?
            .map_err(|source| NetnsError::Start { command: text, source }.into())
    }

    /// Runs a command to its end on the caller's own terminal.
    ///
    /// # Errors
    /// If it could not be started.
    pub fn status<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<ExitStatus, NodeError> {
        let mut command = self.command(words)?;
        command.stdin(Stdio::inherit());
        let text = format!("{command:?}");
        self.enter(|| command.status())?
            .map_err(|source| NetnsError::Start { command: text, source }.into())
    }

    /// Starts a process that outlives the caller and ends with the fabric. `name` names it in
    /// lists, and its log: both output streams go to `DIRECTORY/NAME.log`.
    ///
    /// # Errors
    /// If the program cannot be started or recorded.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Record, NodeError> {
        let path = self.log(name);
        let file_error =
            |source| NodeError::File { node: self.name.clone(), path: path.clone(), source };
        let log = File::options().append(true).create(true).open(&path).map_err(file_error)?;
        let errors = log.try_clone().map_err(file_error)?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let process = self.enter(|| Process::spawn(command))??;
        let record =
            Record { node: self.name.clone(), name: name.to_owned(), identity: process.identity() };
        self.state.record(&record)?;
        process.detach();
        Ok(record)
    }

    /// Ends one of the node's FRR daemons by this signal and starts it again with its
    /// configuration.
    ///
    /// # Errors
    /// If it is not one of them, does not end or does not start.
    pub fn restart_frr(&self, daemon: &str, signal: Signal) -> Result<(), NodeError> {
        frr::restart(self, daemon, signal)
    }

    /// What a process of [`Node::spawn`] has written.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.log"))
    }

    /// A command of words, with the node's environment.
    ///
    /// # Errors
    /// If there are no words.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<Command, NodeError> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| NodeError::NotInstalled(String::new()))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(&self.settings.env).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs `f` in a thread of its own that sees what the node's processes see.
    pub(crate) fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NodeError> {
        self.namespace()?.enter(|| {
            self.mount_view()?;
            Ok(f())
        })?
    }

    /// Gives the calling thread a mount namespace of its own. Made afresh for each process, so that
    /// nothing has to be kept alive, and nothing can be left mounted.
    fn mount_view(&self) -> Result<(), NodeError> {
        let attach = |source: Option<&Path>, target: &Path, kind: Option<&str>, flags| {
            mount(source, target, kind, flags, None::<&str>).map_err(|errno| NodeError::Mount {
                node: self.name.clone(),
                target: target.to_owned(),
                source: errno.into(),
            })
        };
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|errno| attach_error(&self.name, Path::new("/"), errno.into()))?;
        let root = Path::new("/");
        attach(None, root, None, MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
        attach(Some(Path::new("sysfs")), Path::new("/sys"), Some("sysfs"), MsFlags::empty())?;
        for (name, target) in self.private() {
            attach(Some(&self.directory().join(name)), Path::new(target), None, MsFlags::MS_BIND)?;
        }
        for bind in &self.settings.binds {
            attach(Some(&bind.source), &bind.target, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
            if bind.read_only {
                let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
                attach(None, &bind.target, None, flags)?;
            }
        }
        let Some(frr_root) = self.frr_root() else { return Ok(()) };
        for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys")] {
            attach(
                Some(Path::new(kind)),
                &frr_root::below(frr_root, target),
                Some(kind),
                MsFlags::empty(),
            )?;
        }
        let shared = self.private().map(|(_, target)| target).chain(["/dev"]);
        for path in shared {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            attach(Some(Path::new(path)), &frr_root::below(frr_root, path), None, flags)?;
        }
        for (wrapper, program) in [("programs", PROGRAMS), ("vtysh", VTYSH)] {
            attach(
                Some(&self.directory().join(wrapper)),
                Path::new(program),
                None,
                MsFlags::MS_BIND,
            )?;
        }
        Ok(())
    }

    /// Makes the node's directories and the files that binds cover.
    pub(crate) fn prepare(&self) -> Result<(), NodeError> {
        self.state.make(&self.directory())?;
        let frr = match self.frr_root() {
            Some(root) => frr_root::user(root),
            None => User::from_name("frr")
                .ok()
                .flatten()
                .map(|user| (user.uid.as_raw(), user.gid.as_raw())),
        };
        if self.has_frr() && (frr.is_none() || !Path::new(VTYSH).exists()) {
            return Err(NodeError::NotInstalled("FRR (Debian package frr)".into()));
        }
        for (name, target) in self.private() {
            let directory = self.directory().join(name);
            self.state.make(&directory)?;
            self.state.make(Path::new(target))?;
            if let Some((user, group)) = frr {
                chown(&directory, Some(user), Some(group))
                    .map_err(|source| self.file_error(&directory, source))?;
            }
        }
        if let Some(root) = self.frr_root() {
            for (_, target) in self.private() {
                self.state.make(&frr_root::below(root, target))?;
            }
            frr_root::write_wrappers(root, &self.directory())
                .map_err(|(path, source)| self.file_error(&path, source))?;
        }
        for bind in &self.settings.binds {
            self.prepare_bind(bind)?;
        }
        Ok(())
    }

    fn prepare_bind(&self, bind: &topology::Bind) -> Result<(), NodeError> {
        let node = || self.name.clone();
        if !bind.source.exists() {
            return Err(NodeError::BindSource { node: node(), path: bind.source.clone() });
        }
        let private = self.private().find_map(|(name, target)| {
            let below = bind.target.strip_prefix(target).ok()?;
            Some(self.directory().join(name).join(below))
        });
        let Some(cover) = private else {
            let target = bind.target.exists();
            return if target {
                Ok(())
            } else {
                Err(NodeError::BindTarget { node: node(), path: bind.target.clone() })
            };
        };
        if bind.source.is_dir() {
            return Ok(self.state.make(&cover)?);
        }
        if let Some(parent) = cover.parent() {
            self.state.make(parent)?;
        }
        fs::write(&cover, []).map_err(|source| self.file_error(&cover, source))
    }

    /// Whether FRR is to run here: its `daemons` file, or the directory that holds it, is bound.
    pub(crate) fn has_frr(&self) -> bool {
        self.daemons_file().is_some()
    }

    /// The root that FRR runs from here, if not this machine's.
    pub(crate) fn frr_root(&self) -> Option<&Path> {
        self.settings.frr_root.as_deref().filter(|_| self.has_frr())
    }

    /// Where the node's `/etc/frr/daemons` lies outside.
    pub(crate) fn daemons_file(&self) -> Option<PathBuf> {
        self.settings.binds.iter().rev().find_map(|bind| {
            let below = Path::new("/etc/frr/daemons").strip_prefix(&bind.target).ok()?;
            let path = if below.as_os_str().is_empty() {
                bind.source.clone()
            } else {
                bind.source.join(below)
            };
            path.is_file().then_some(path)
        })
    }

    fn private(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        let frr = self.has_frr();
        PRIVATE.into_iter().filter(move |_| frr)
    }

    pub(crate) fn file_error(&self, path: &Path, source: io::Error) -> NodeError {
        NodeError::File { node: self.name.clone(), path: path.to_owned(), source }
    }
}

fn attach_error(node: &str, target: &Path, source: io::Error) -> NodeError {
    NodeError::Mount { node: node.to_owned(), target: target.to_owned(), source }
}
