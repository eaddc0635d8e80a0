//! What a process of a node sees: its namespaces, its root and its mounts.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;

use super::{Node, NodeError, attach_error};
use crate::bring_up::own_program;
use crate::frr_root::{self, PROGRAMS, VTYSH};
use crate::node_root;
use crate::process::{self, Process, wait_until};

/// The name of a node's first process in records. Programs of a topology file are called otherwise.
pub(crate) const INIT: &str = "lab init";
/// How long the first process of a node may take.
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// Which namespaces and files a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// The node's.
    Inside,
    /// The node's but for process ids, which are the machine's.
    Beside,
    /// The machine's, and a new PID namespace.
    First,
}

impl Node {
    /// Starts a process with this view. It outlives the caller only if it is detached.
    pub(crate) fn start(&self, view: View, command: &mut Command) -> Result<Process, NodeError> {
        let child = self.enter(view, || process::start(command))??;
        Ok(Process::of(child))
    }

    /// Starts the first process of the node, which keeps its PID namespace.
    pub(crate) fn start_init(&self) -> Result<(), NodeError> {
        let proc = node_root::proc(&self.directory());
        let mut command = Command::new(own_program()?);
        let record =
            self.spawn_with((View::First, Stdio::null()), INIT, command.arg("init").arg(&proc))?;
        let is_mounted = || proc.join("1").exists();
        wait_until(INIT_LIMIT, || is_mounted() || !record.identity.alive());
        if !is_mounted() {
            let log = fs::read_to_string(self.log(INIT)).unwrap_or_default();
            return Err(NodeError::Ended {
                node: self.name.clone(),
                program: INIT.into(),
                last_line: log.lines().last().unwrap_or("no message").to_owned(),
            });
        }
        node_root::keep_pids(&self.directory(), record.identity.pid)
            .map_err(|(target, source)| attach_error(&self.name, &target, source))
    }

    /// Runs `f` in a new thread that sees the same namespaces and mounts as the node's processes,
    /// but for the PID namespace: only processes that it starts are in it.
    pub(super) fn enter<T: Send>(
        &self,
        view: View,
        f: impl FnOnce() -> T + Send,
    ) -> Result<T, NodeError> {
        if view == View::First {
            return thread::scope(|scope| {
                let first = || {
                    unshare(CloneFlags::CLONE_NEWPID)
                        .map_err(|errno| attach_error(&self.name, Path::new("/"), errno.into()))?;
                    Ok(f())
                };
                scope.spawn(first).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
        }
        let inside =
            view == View::Inside && self.container.is_none() && !self.settings.machine_pids;
        let directory = self.directory();
        let pids = inside.then(|| self.open(&node_root::pids(&directory), OFlag::O_RDONLY));
        let pids = pids.transpose()?;
        self.namespace()?.enter(|| {
            self.mount_view(inside.then(|| node_root::proc(&directory)).as_deref())?;
            if let Some(pids) = pids {
                setns(pids, CloneFlags::CLONE_NEWPID)
                    .map_err(|errno| self.file_error(&node_root::pids(&directory), errno.into()))?;
            }
            Ok(f())
        })?
    }

    fn open(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, NodeError> {
        nix::fcntl::open(path, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| self.file_error(path, errno.into()))
    }

    /// Gives the calling thread its own mount namespace with the node's mounts. It is made anew for
    /// each process, so no mount has to be kept or removed. `proc` is the node's `/proc`; without
    /// it, the machine's stays.
    fn mount_view(&self, proc: Option<&Path>) -> Result<(), NodeError> {
        let attach = |source: Option<&Path>, target: &Path, kind: Option<&str>, flags| {
            mount(source, target, kind, flags, None::<&str>).map_err(|errno| NodeError::Mount {
                node: self.name.clone(),
                target: target.to_owned(),
                source: errno.into(),
            })
        };
        let root = Path::new("/");
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
            .map_err(|errno| attach_error(&self.name, root, errno.into()))?;
        attach(None, root, None, MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
        if self.container.is_some() {
            return attach(
                Some(Path::new("sysfs")),
                Path::new("/sys"),
                Some("sysfs"),
                MsFlags::empty(),
            );
        }
        // The node's own root has none of the sources.
        let open = |source: PathBuf| self.open(&source, OFlag::O_PATH);
        let mut outside = Vec::new();
        for (name, target) in self.private() {
            outside.push((open(self.directory().join(name))?, PathBuf::from(target), false));
        }
        for bind in &self.settings.binds {
            outside.push((open(bind.source.clone())?, bind.target.clone(), bind.read_only));
        }
        let last = self.last_mounts(proc)?;
        let mounted =
            |(target, source): node_root::Failed| attach_error(&self.name, &target, source);
        let here = node_root::enter(&self.directory()).map_err(mounted)?;
        // Of the thread's UTS namespace.
        let path = Path::new("/proc/sys/kernel/hostname");
        fs::write(path, self.hostname()).map_err(|error| self.file_error(path, error))?;
        let attach_all = |sources: Vec<(OwnedFd, PathBuf, bool)>| {
            sources.iter().try_for_each(|(source, target, read_only)| {
                let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
                attach(Some(&source), target, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
                if *read_only {
                    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
                    attach(None, target, None, flags)?;
                }
                Ok::<_, NodeError>(())
            })
        };
        attach_all(outside)?;
        if let Some(frr_root) = self.frr_root() {
            let shared = self.private().map(|(_, target)| target).chain(["/dev", "/proc", "/sys"]);
            for path in shared {
                let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
                attach(Some(Path::new(path)), &frr_root::below(frr_root, path), None, flags)?;
            }
        }
        attach_all(last)?;
        node_root::leave(&here).map_err(mounted)
    }

    /// Sources and targets of the last mounts: those below other ones, and `/proc`, through which
    /// descriptors are mounted.
    fn last_mounts(&self, proc: Option<&Path>) -> Result<Vec<(OwnedFd, PathBuf, bool)>, NodeError> {
        let mut mounts = Vec::new();
        let mut add = |source: &Path, target| {
            mounts.push((self.open(source, OFlag::O_PATH)?, target, false));
            Ok::<_, NodeError>(())
        };
        let frr_root = self.frr_root();
        if frr_root.is_some() {
            add(&self.directory().join("programs"), PathBuf::from(PROGRAMS))?;
            add(&self.directory().join("vtysh"), PathBuf::from(VTYSH))?;
        }
        if let Some(proc) = proc {
            frr_root.map_or(Ok(()), |root| add(proc, frr_root::below(root, "/proc")))?;
            add(proc, PathBuf::from("/proc"))?;
        }
        Ok(mounts)
    }
}
