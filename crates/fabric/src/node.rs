//! A node as its processes see it: a network namespace, a host name, its own root file system, and
//! bind mounts at the paths that ContainerLab would use.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::{User, mkfifo};

pub(crate) use self::view::{INIT, View};
use crate::frr_root::{self, PROGRAMS, VTYSH};
use crate::netns::{Namespace, NetnsError, succeeded};
use crate::node_root;
use crate::process::{ProcessError, words_of};
use crate::state::{Record, State, StateError};
use crate::topology;

mod view;

/// Variables that commands of a node have as the caller has them, and otherwise as in a container.
const KEPT: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root")];

/// Where commands of a topology file run.
pub(crate) const TOP: &str = "/";

/// Private directories of a node with FRR: the name in the node's state directory, and the path
/// where it is mounted.
const PRIVATE: [(&str, &str); 4] =
    [("etc", "/etc/frr"), ("run", "/run/frr"), ("lib", "/var/lib/frr"), ("tmp", "/var/tmp/frr")];

/// A node could not be set up, or a command in it failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The namespace, or a command in it, failed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A process could not be started, signalled or waited for.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The state on disk cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The source of a bind mount is missing.
    #[error("{node}: bound file {} is missing", .path.display())]
    BindSource {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// A file system could not be mounted in the node's mount namespace.
    #[error("{node}: cannot mount {}", .target.display())]
    Mount {
        /// The node.
        node: String,
        /// The mount point.
        target: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of the node cannot be read or written.
    #[error("{node}: cannot use {}", .path.display())]
    File {
        /// The node.
        node: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program is not installed on this machine.
    #[error("{0} is not installed")]
    NotInstalled(String),
    /// The program of `entrypoint` and `cmd` has ended, and no node waits for its end.
    #[error("{node}: {program} has ended: {last_line}")]
    Ended {
        /// The node.
        node: String,
        /// The program.
        program: String,
        /// The last line of its log.
        last_line: String,
    },
    /// FRR refused its configuration, or a daemon did not start.
    #[error("{node}: FRR did not start: {reason}")]
    Frr {
        /// The node.
        node: String,
        /// The reason, usually from the daemon's log.
        reason: String,
    },
}

/// What is mounted in a node's root: a tmpfs, or a path of the machine that may be read-only.
enum Mount<'a> {
    Tmpfs(&'a topology::Tmpfs),
    Bind(PathBuf, bool),
}

/// A node of a fabric that is up.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) settings: topology::Node,
    pub(crate) state: State,
    /// The container of ContainerLab whose namespace it is; `None` if the lab made the namespace.
    pub(crate) container: Option<String>,
}

impl Node {
    /// The node's name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its bridge, if it is one. A bridge in the namespace of another node is called
    /// `BRIDGE|NODE` in the topology.
    pub(crate) fn bridge(&self) -> &str {
        self.name.split('|').next().unwrap_or_default()
    }

    /// The network namespace. Processes that are started with it see the machine's own `/sys` and
    /// `/etc/frr`. Those of [`Node::run`] and [`Node::spawn`] see the node's.
    ///
    /// # Errors
    /// If the namespace no longer exists.
    pub fn namespace(&self) -> Result<Namespace, NodeError> {
        Ok(Namespace::open(&self.namespace)?)
    }

    /// A directory for files of this node. It is removed with the fabric.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.state.node(&self.name)
    }

    /// Runs a command in `/`, waits for it and returns its standard output.
    ///
    /// # Errors
    /// If the exit status is not 0; with the standard error, or the standard output if that is
    /// empty.
    pub fn run(&self, words: &[&str]) -> Result<String, NodeError> {
        self.run_while(words, &|| true)
    }

    /// As [`Node::run`]. The command is killed when `go_on` returns false.
    pub(crate) fn run_while(
        &self,
        words: &[&str],
        go_on: &dyn Fn() -> bool,
    ) -> Result<String, NodeError> {
        Ok(succeeded(&self.name, words, &self.output_of(words, go_on)?)?)
    }

    /// The output of a command that runs with the node's files: in its container if it has one.
    fn output_of(&self, words: &[&str], go_on: &dyn Fn() -> bool) -> Result<Output, NodeError> {
        let Some(container) = &self.container else {
            return self.output(self.command(words)?.current_dir(TOP), go_on);
        };
        let mut command = Command::new("docker");
        command.args(["exec", container]).args(words).stdin(Stdio::null());
        let text = words_of(&command);
        command.output().map_err(|source| NetnsError::Start { command: text, source }.into())
    }

    /// Runs a command and waits for its end, whatever its exit status. What it leaves running writes
    /// to nobody.
    ///
    /// # Errors
    /// If the command could not be started.
    fn output(&self, command: &mut Command, go_on: &dyn Fn() -> bool) -> Result<Output, NodeError> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = match self.start(View::Inside, command) {
            Err(NodeError::Process(ProcessError::Start { command, source })) => {
                return Err(NetnsError::Start { command, source }.into());
            }
            started => started?,
        };
        Ok(process.output(go_on)?)
    }

    /// Runs a command on the caller's terminal and waits for it.
    ///
    /// # Errors
    /// If the command could not be started.
    pub fn status<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<ExitStatus, NodeError> {
        let mut command = self.command(words)?;
        command.stdin(Stdio::inherit());
        let text = words_of(&command);
        self.enter(View::Inside, || command.status())?
            .map_err(|source| NetnsError::Start { command: text, source }.into())
    }

    /// Starts a process that outlives the caller and ends with the fabric. `name` identifies it in
    /// lists. Standard output and error go to the log file `DIRECTORY/NAME.log`.
    ///
    /// # Errors
    /// If the program cannot be started or recorded.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Record, NodeError> {
        self.spawn_with((View::Inside, Stdio::null()), name, command)
    }

    /// As [`Node::spawn`], for the program of a container: it runs in `/`, and waits when it reads its
    /// standard input, which is a terminal that nobody types on in ContainerLab. A shell stays.
    pub(crate) fn spawn_main(
        &self,
        name: &str,
        command: &mut Command,
    ) -> Result<Record, NodeError> {
        let path = self.directory().join("input");
        let open = || {
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // As long as it is open for writing, too, it has no end.
            let input = File::options().read(true).write(true).open(&path)?;
            fs::remove_file(&path).map(|()| input)
        };
        let input = open().map_err(|source| self.file_error(&path, source))?;
        self.spawn_with((View::Inside, input.into()), name, command.current_dir(TOP))
    }

    /// As [`Node::spawn`], for a program beside the node, as in a container of its own that shares
    /// the network namespace. It sees the machine's processes, so that it can check who asks it.
    ///
    /// # Errors
    /// As [`Node::spawn`].
    pub fn spawn_beside(&self, name: &str, command: &mut Command) -> Result<Record, NodeError> {
        self.spawn_with((View::Beside, Stdio::null()), name, command)
    }

    fn spawn_with(
        &self,
        (view, input): (View, Stdio),
        name: &str,
        command: &mut Command,
    ) -> Result<Record, NodeError> {
        let path = self.log(name);
        let file_error =
            |source| NodeError::File { node: self.name.clone(), path: path.clone(), source };
        let log = File::options().append(true).create(true).open(&path).map_err(file_error)?;
        let errors = log.try_clone().map_err(file_error)?;
        command.stdin(input).stdout(log).stderr(errors);
        let process = self.start(view, command)?;
        let record =
            Record { node: self.name.clone(), name: name.to_owned(), identity: process.identity() };
        self.state.record(&record)?;
        process.detach();
        Ok(record)
    }

    /// The path of the log of a process that [`Node::spawn`] started.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.log"))
    }

    /// Builds a command from a list of words, with the node's environment: that of the file and, as
    /// in a container, nothing of the caller's but [`KEPT`] and its terminal.
    ///
    /// # Errors
    /// If the list is empty.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Result<Command, NodeError> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| NodeError::NotInstalled(String::new()))?;
        let mut command = Command::new(program);
        let kept = KEPT
            .map(|(name, usual)| (name, std::env::var_os(name).unwrap_or_else(|| usual.into())));
        let terminal = std::env::var_os("TERM").map(|terminal| ("TERM", terminal));
        command.args(arguments).env_clear().envs(kept).envs(terminal);
        command.env("HOSTNAME", self.hostname()).envs(&self.settings.env);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Creates the node's directories, and the mount points of binds in them. `hosts` are lines of
    /// `/etc/hosts`.
    pub(crate) fn prepare(&self, hosts: &str) -> Result<(), NodeError> {
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
        self.namespace()?
            .enter(|| node_root::create(&self.directory(), self.hostname(), hosts))?
            .map_err(|failed| self.mount_error(failed))?;
        self.settings.resolver.as_ref().map_or(Ok(()), |text| self.write_resolver(text))?;
        for (name, _) in self.private() {
            let directory = self.directory().join(name);
            self.state.make(&directory)?;
            if let Some((user, group)) = frr {
                chown(&directory, Some(user), Some(group))
                    .map_err(|source| self.file_error(&directory, source))?;
            }
        }
        let Some(root) = self.frr_root() else { return Ok(()) };
        for (_, target) in self.private() {
            self.make_target(&frr_root::below(root, target), true)?;
        }
        frr_root::write_wrappers(root, &self.directory())
            .map_err(|(path, source)| self.file_error(&path, source))
    }

    /// Mounts in the node's root what it has of its own, and what the file says. The caller is in the
    /// node's mount namespace.
    fn mount_all(&self) -> Result<(), NodeError> {
        let own = |name| Mount::Bind(self.directory().join(name), false);
        let mut mounts: Vec<(PathBuf, Mount<'_>)> =
            self.private().map(|(name, target)| (target.into(), own(name))).collect();
        let tmpfs = self.settings.tmpfs.iter();
        mounts.extend(tmpfs.map(|(target, options)| (target.clone(), Mount::Tmpfs(options))));
        let binds = self.settings.binds.iter();
        mounts.extend(
            binds.map(|bind| {
                (bind.target.clone(), Mount::Bind(bind.source.clone(), bind.read_only))
            }),
        );
        // As Docker does: none hides another one below it.
        mounts.sort_by_key(|(target, _)| target.components().count());
        if self.frr_root().is_some() {
            mounts.push((PROGRAMS.into(), own("programs")));
            mounts.push((VTYSH.into(), own("vtysh")));
        }
        mounts.iter().try_for_each(|(target, mount)| self.mount(target, mount))
    }

    /// Mounts something in the node's root.
    fn mount(&self, target: &Path, mount: &Mount<'_>) -> Result<(), NodeError> {
        let directory = self.directory();
        let is_directory = match mount {
            Mount::Tmpfs(_) => true,
            Mount::Bind(source, _) if source.exists() => source.is_dir(),
            Mount::Bind(source, _) => {
                let (node, path) = (self.name.clone(), source.clone());
                return Err(NodeError::BindSource { node, path });
            }
        };
        self.make_target(target, is_directory)?;
        let mounted = match mount {
            Mount::Tmpfs(options) => node_root::mount_tmpfs(&directory, target, options),
            Mount::Bind(source, is_read_only) => {
                node_root::bind(&directory, source, target, *is_read_only)
            }
        };
        mounted.map_err(|failed| self.mount_error(failed))
    }

    fn mount_error(&self, (target, source): node_root::Failed) -> NodeError {
        attach_error(&self.name, &target, source)
    }

    fn write_resolver(&self, text: &str) -> Result<(), NodeError> {
        // Without servers of its own, a node has those of the machine.
        let of_machine = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let is_server = |line: &&str| line.split_whitespace().next() == Some("nameserver");
        let servers = of_machine.lines().filter(is_server);
        let servers = servers.filter(|_| !text.lines().any(|line| is_server(&line)));
        let servers: String = servers.map(|line| format!("{line}\n")).collect();
        let write = || {
            let path = Path::new("/etc/resolv.conf");
            // The file of the machine may be a link.
            let _ = fs::remove_file(path);
            fs::write(path, format!("{text}{servers}")).map_err(|error| (path.to_owned(), error))
        };
        node_root::within(&self.directory(), write)
            .map_err(|(path, source)| self.file_error(&path, source))
    }

    /// Makes the target of a bind in the node's root, unless it exists.
    fn make_target(&self, target: &Path, is_directory: bool) -> Result<(), NodeError> {
        let make = || {
            if target.exists() {
                return Ok(());
            }
            let made = if is_directory {
                fs::create_dir_all(target)
            } else {
                target
                    .parent()
                    .map_or(Ok(()), fs::create_dir_all)
                    .and_then(|()| fs::write(target, []))
            };
            made.map_err(|error| (target.to_owned(), error))
        };
        node_root::within(&self.directory(), make)
            .map_err(|(path, source)| self.file_error(&path, source))
    }

    /// The host name.
    pub(crate) fn hostname(&self) -> &str {
        self.settings.hostname.as_deref().unwrap_or(&self.name)
    }

    /// Whether FRR runs on this node: a file of `/etc/frr`, or a directory that has its `daemons`, is
    /// bound, and the node has no program of its own, or that of FRR's image.
    pub(crate) fn has_frr(&self) -> bool {
        let bound = self.settings.binds.iter().any(|bind| bind.target.starts_with("/etc/frr"));
        !self.settings.has_own_program() && (bound || self.daemons_file().is_some())
    }

    /// The root file system that FRR runs from on this node; `None` for the machine's own.
    pub(crate) fn frr_root(&self) -> Option<&Path> {
        self.settings.frr_root.as_deref().filter(|_| self.has_frr())
    }

    /// The path on the machine of the node's `/etc/frr/daemons`.
    pub(crate) fn daemons_file(&self) -> Option<PathBuf> {
        let mut binds: Vec<&topology::Bind> = self.settings.binds.iter().collect();
        // The deepest one is above the others, and of two the later one.
        binds.sort_by_key(|bind| bind.target.components().count());
        binds.iter().rev().find_map(|bind| {
            let below = Path::new("/etc/frr/daemons").strip_prefix(&bind.target).ok()?;
            let path = if below.as_os_str().is_empty() {
                bind.source.clone()
            } else {
                bind.source.join(below)
            };
            path.is_file().then_some(path)
        })
    }

    fn private(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let frr = self.has_frr() && self.container.is_none();
        // One below a bound directory is the file's.
        let is_bound = |target: &str| {
            let mut binds = self.settings.binds.iter().map(|bind| bind.target.as_path());
            binds.any(|above| Path::new(target) != above && Path::new(target).starts_with(above))
        };
        PRIVATE.into_iter().filter(move |(_, target)| frr && !is_bound(target))
    }

    /// A file of the node cannot be used.
    #[must_use]
    pub fn file_error(&self, path: &Path, source: io::Error) -> NodeError {
        NodeError::File { node: self.name.clone(), path: path.to_owned(), source }
    }
}

fn attach_error(node: &str, target: &Path, source: io::Error) -> NodeError {
    NodeError::Mount { node: node.to_owned(), target: target.to_owned(), source }
}
