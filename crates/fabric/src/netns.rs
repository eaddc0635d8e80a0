//! Named network namespaces, as `ip netns` manages them (in `/run/netns`).
//!
//! A new thread enters the namespace, not the whole process. Processes that it starts inherit the
//! namespace, and the thread ends with the closure.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::process::{Process, ProcessError, in_words};
use crate::progress::note;
use crate::rtnl::{Rtnl, RtnlError, VethEnd};
use crate::settings;

const RUN_NETNS: &str = "/run/netns";

/// A namespace could not be created, entered or removed, or a command in it failed.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// `/run/netns/NAME` could not be opened.
    #[error("no network namespace '{name}'")]
    Open {
        /// The namespace.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The namespace could not be created. It needs `CAP_SYS_ADMIN`.
    #[error("cannot create network namespace '{name}': {cause}")]
    Create {
        /// The namespace.
        name: String,
        /// The cause.
        cause: io::Error,
    },
    /// The namespace could not be deleted.
    #[error("cannot delete network namespace '{name}': {cause}")]
    Delete {
        /// The namespace.
        name: String,
        /// The cause.
        cause: io::Error,
    },
    /// A netlink request in the namespace failed.
    #[error("{name}: {error}")]
    Rtnl {
        /// The namespace.
        name: String,
        /// The error.
        error: RtnlError,
    },
    /// A setting could not be given the kernel's default.
    #[error("cannot set {} in network namespace '{name}' as the kernel does by default: make /proc/sys writable", .path.display())]
    Setting {
        /// The namespace.
        name: String,
        /// The setting, below `/proc/sys`.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// `setns(2)` failed. It needs `CAP_SYS_ADMIN`.
    #[error("cannot enter network namespace '{name}'")]
    Enter {
        /// The namespace.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// A command could not be started.
    #[error("cannot start '{command}'")]
    Start {
        /// The command and its arguments.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// A command exited with an error.
    #[error("'{command}'{} failed ({status}): {stderr}", place(.namespace))]
    Failed {
        /// The namespace; empty for the caller's own.
        namespace: String,
        /// The command and its arguments.
        command: String,
        /// The exit status.
        status: String,
        /// The standard error of the command, or its standard output if that was empty.
        stderr: String,
    },
    /// A process could not be started or waited for.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

fn place(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!(" in {namespace}") }
}

/// A named network namespace. [`Namespace::create`] returns an owned one, which is deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    owned: bool,
}

impl Namespace {
    /// Creates the namespace with the kernel's default settings, whatever the machine's are, and
    /// sets its loopback interface up. Dropping the value deletes it.
    ///
    /// # Errors
    /// [`NetnsError::Create`] if the name exists already or the caller is not root.
    pub fn create(name: impl Into<String>) -> Result<Self, NetnsError> {
        let name = name.into();
        bind(&name).map_err(|cause| NetnsError::Create { name: name.clone(), cause })?;
        let namespace = Self { name, owned: true };
        namespace.set_defaults()?;
        namespace.rtnl(|rtnl| rtnl.set_up("lo", true))?;
        Ok(namespace)
    }

    /// Gives the settings that a new namespace inherits from the machine, below `net.ipv4.conf` and
    /// `net.ipv6.conf`, the kernel's defaults: for `all` interfaces and those to come.
    ///
    /// # Errors
    /// [`NetnsError::Setting`] if `/proc/sys` is read-only and a setting differs.
    pub fn set_defaults(&self) -> Result<(), NetnsError> {
        self.enter(settings::set_defaults)?.map_err(|(path, source)| NetnsError::Setting {
            name: self.name.clone(),
            path,
            source,
        })
    }

    /// Opens an existing namespace. Dropping the value leaves it in place.
    ///
    /// # Errors
    /// [`NetnsError::Open`] if there is no namespace of that name.
    pub fn open(name: impl Into<String>) -> Result<Self, NetnsError> {
        let namespace = Self { name: name.into(), owned: false };
        namespace.file()?;
        Ok(namespace)
    }

    /// Leaves the namespace in place when this value is dropped.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.owned = false;
        self
    }

    /// The name under `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path `/run/netns/NAME`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(RUN_NETNS).join(&self.name)
    }

    /// What tells this namespace from a later one of the same name: the number of its inode.
    ///
    /// # Errors
    /// [`NetnsError::Open`] if there is no namespace of that name.
    pub fn inode(&self) -> Result<u64, NetnsError> {
        let metadata = std::fs::metadata(self.path());
        let metadata =
            metadata.map_err(|source| NetnsError::Open { name: self.name.clone(), source })?;
        Ok(metadata.ino())
    }

    pub(crate) fn file(&self) -> Result<File, NetnsError> {
        File::open(self.path())
            .map_err(|source| NetnsError::Open { name: self.name.clone(), source })
    }

    /// Runs `f` in a new thread inside the namespace and waits for it. Sockets that `f` opens stay
    /// in the namespace, also after it returns them. A panic in `f` is propagated to the caller.
    ///
    /// Inside, `/proc/thread-self/net` belongs to the namespace; `/proc/net` and `/sys` are still
    /// the caller's.
    ///
    /// # Errors
    /// [`NetnsError::Open`] or [`NetnsError::Enter`]; `f` has not run then.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let file = self.file()?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(&file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
                Ok(f())
            });
            match inside.join() {
                Ok(result) => {
                    result.map_err(|source| NetnsError::Enter { name: self.name.clone(), source })
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Starts `f` in a new thread inside the namespace and does not wait for it. If the namespace
    /// cannot be entered, the thread returns that error.
    ///
    /// # Errors
    /// [`NetnsError::Open`] if the namespace no longer exists.
    pub fn thread<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<thread::JoinHandle<Result<T, NetnsError>>, NetnsError> {
        let file = self.file()?;
        let name = self.name.clone();
        Ok(thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET)
                .map_err(|errno| NetnsError::Enter { name, source: errno.into() })?;
            Ok(f())
        }))
    }

    /// Runs `f` with a netlink socket in the namespace, as [`Namespace::enter`] does.
    ///
    /// # Errors
    /// [`NetnsError::Rtnl`] if the socket cannot be opened or `f` returns an error.
    pub fn rtnl<T: Send>(
        &self,
        f: impl FnOnce(&Rtnl) -> Result<T, RtnlError> + Send,
    ) -> Result<T, NetnsError> {
        self.enter(|| f(&Rtnl::open()?))?
            .map_err(|error| NetnsError::Rtnl { name: self.name.clone(), error })
    }

    /// Runs a command inside the namespace, waits for it and returns its standard output.
    ///
    /// # Errors
    /// [`NetnsError::Failed`] if the exit status is not 0; with the command's standard error.
    pub fn run<S: AsRef<OsStr> + Sync>(&self, command: &[S]) -> Result<String, NetnsError> {
        let output = self.output(command)?;
        succeeded(&self.name, command, &output)
    }

    /// Runs a command inside the namespace and waits for it, whatever its exit status.
    ///
    /// # Errors
    /// Only if it could not be started.
    pub fn output<S: AsRef<OsStr> + Sync>(&self, command: &[S]) -> Result<Output, NetnsError> {
        self.enter(|| output(command))?
    }

    /// Starts a process inside the namespace. The returned guard kills it when dropped.
    ///
    /// # Errors
    /// If the namespace no longer exists or the program cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Process, NetnsError> {
        Ok(self.enter(|| Process::spawn(command))??)
    }

    /// The ids of all processes in the namespace, whatever started them.
    ///
    /// # Errors
    /// [`NetnsError::Open`] if the namespace no longer exists.
    pub fn pids(&self) -> Result<Vec<i32>, NetnsError> {
        let io_error = |source| NetnsError::Open { name: self.name.clone(), source };
        let inode = self.inode()?;
        let mut pids = Vec::new();
        for entry in std::fs::read_dir("/proc").map_err(io_error)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if std::fs::metadata(entry.path().join("ns/net")).is_ok_and(|ns| ns.ino() == inode) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = delete(&self.name)
        {
            note(error);
        }
    }
}

/// The names of all namespaces that start with `prefix`, sorted.
#[must_use]
pub fn list(prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(RUN_NETNS) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// Deletes a namespace by name. The kernel removes its links once no process and no socket uses it.
///
/// # Errors
/// [`NetnsError::Delete`] if there is no namespace of that name.
pub fn delete(name: &str) -> Result<(), NetnsError> {
    let path = PathBuf::from(RUN_NETNS).join(name);
    umount2(&path, MntFlags::MNT_DETACH)
        .map_err(io::Error::from)
        .and_then(|()| std::fs::remove_file(&path))
        .map_err(|cause| NetnsError::Delete { name: name.to_owned(), cause })
}

/// Creates a namespace and binds it to `/run/netns/NAME`. `rtnetlink` can do this too, but forks
/// the process, which is not safe in a program with threads. A thread of its own suffices.
fn bind(name: &str) -> io::Result<()> {
    let (directory, path) = (Path::new(RUN_NETNS), Path::new(RUN_NETNS).join(name));
    std::fs::create_dir_all(directory)?;
    // As `ip netns add`: other mount namespaces must see a namespace come and go.
    let share = || {
        mount(
            None::<&str>,
            directory,
            None::<&str>,
            MsFlags::MS_SHARED | MsFlags::MS_REC,
            None::<&str>,
        )
    };
    if share() == Err(Errno::EINVAL) {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(directory), directory, None::<&str>, flags, None::<&str>)?;
        share()?;
    }
    File::create_new(&path)?;
    let create = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let own = Some("/proc/thread-self/ns/net");
        Ok(mount(own, &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    };
    let created = thread::scope(|scope| {
        scope.spawn(create).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if created.is_err() {
        // The name is free again. The first error is the one to report.
        let _ = std::fs::remove_file(&path);
    }
    created
}

/// Connects two namespaces by a veth pair and sets both ends up. `mtu` is in bytes.
///
/// # Errors
/// The kernel's error, for example that a name is taken.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str), mtu: u32) -> Result<(), NetnsError> {
    let end = |name| VethEnd { name, mac: None, mtu };
    veth_pair((a.0, end(a.1)), (b.0, end(b.1)))
}

/// Connects two namespaces by a veth pair with these settings and sets both ends up.
///
/// # Errors
/// The kernel's error, for example that a name is taken.
pub fn veth_pair(a: (&Namespace, VethEnd), b: (&Namespace, VethEnd)) -> Result<(), NetnsError> {
    let other = b.0.file()?;
    a.0.rtnl(|rtnl| rtnl.add_veth(a.1, b.1, Some(&other)))?;
    b.0.rtnl(|rtnl| rtnl.set_up(b.1.name, true))
}

/// Runs a command in the caller's own namespace and returns its standard output.
///
/// # Errors
/// [`NetnsError::Failed`] if the exit status is not 0; with the command's standard error.
pub fn run<S: AsRef<OsStr>>(command: &[S]) -> Result<String, NetnsError> {
    succeeded("", command, &output(command)?)
}

fn output<S: AsRef<OsStr>>(command: &[S]) -> Result<Output, NetnsError> {
    let start_error = |source| NetnsError::Start { command: in_words(command), source };
    let (program, arguments) =
        command.split_first().ok_or_else(|| start_error(io::ErrorKind::NotFound.into()))?;
    Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(start_error)
}

/// The standard output of a command in a namespace or node.
///
/// # Errors
/// [`NetnsError::Failed`] if the exit status is not 0.
pub(crate) fn succeeded<S: AsRef<OsStr>>(
    namespace: &str,
    command: &[S],
    output: &Output,
) -> Result<String, NetnsError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    Err(NetnsError::Failed {
        namespace: namespace.to_owned(),
        command: in_words(command),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(message).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_message() {
        let error = run(&["sh", "-c", "echo broken >&2; exit 3"]).unwrap_err().to_string();
        assert!(
            error.contains("sh -c") && error.contains("broken") && error.contains('3'),
            "{error}"
        );
        let error = Namespace::open("lab-no-such").unwrap_err().to_string();
        assert_eq!(error, "no network namespace 'lab-no-such'");
    }
}
