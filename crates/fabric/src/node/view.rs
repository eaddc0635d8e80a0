//! What a process of a node sees: its namespaces, its root and its mounts.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, umask};

use super::{Node, NodeError, TOP, attach_error};
use crate::bring_up::own_program;
use crate::frr_root;
use crate::node_root;
use crate::process::{self, Process, wait_until};
use crate::state::Record;

/// The name of a node's first process in records. Programs of a topology file are called otherwise.
pub(crate) const INIT: &str = "lab init";
/// How long the first process of a node may take.
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// Which namespaces a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Those of the node.
    Inside,
    /// Those of the node but for processes and System V IPC, which are the machine's.
    Beside,
}

impl Node {
    /// Starts a process with this view. It outlives the caller only if it is detached.
    pub(crate) fn start(&self, view: View, command: &mut Command) -> Result<Process, NodeError> {
        let child = self.enter(view, || process::start(command))??;
        Ok(Process::of(child))
    }

    /// Starts the first process of the node. Its namespaces are those of all others.
    pub(crate) fn start_init(&self) -> Result<(), NodeError> {
        let directory = self.directory();
        let path = self.log(INIT);
        let log = || File::options().append(true).create(true).open(&path);
        let file_error = |source| self.file_error(&path, source);
        let (input, ready) = io::pipe().map_err(file_error)?;
        let mut command = Command::new(own_program()?);
        // At the machine's root, and so at the node's later.
        command.arg("init").args(self.procs()).stdin(input).current_dir(TOP);
        command.stdout(log().map_err(file_error)?).stderr(log().map_err(file_error)?);
        let failed =
            |(target, source): node_root::Failed| attach_error(&self.name, &target, source);
        let started = self.namespace()?.enter(move || {
            let split =
                |spaces| unshare(spaces).map_err(|errno| failed(("/".into(), errno.into())));
            split(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
            attach(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_SLAVE)
                .map_err(failed)?;
            // Of the thread's UTS namespace.
            let path = Path::new("/proc/sys/kernel/hostname");
            fs::write(path, self.hostname()).map_err(|error| self.file_error(path, error))?;
            self.mount_all()?;
            if !self.settings.machine_pids {
                // From now on, this thread can start processes, and no threads.
                split(CloneFlags::CLONE_NEWPID)?;
            }
            // Its root will be the node's, too. It finds its program before that.
            let child = process::start(&mut command)?;
            let result = self.mount_rest().map_err(failed);
            // It waits for this.
            drop(ready);
            Ok::<_, NodeError>((child, result))
        })?;
        let (child, mounted) = started?;
        let init = Process::of(child);
        mounted?;
        let identity = init.identity();
        self.state.record(&Record { node: self.name.clone(), name: INIT.into(), identity })?;
        node_root::set_init(&directory, identity).map_err(failed)?;
        init.detach();
        let proc = PathBuf::from(format!("/proc/{}/root/proc/1", identity.pid));
        let is_ready = || self.settings.machine_pids || proc.exists();
        wait_until(INIT_LIMIT, || is_ready() || !identity.alive());
        if is_ready() {
            return Ok(());
        }
        let log = fs::read_to_string(self.log(INIT)).unwrap_or_default();
        Err(NodeError::Ended {
            node: self.name.clone(),
            program: INIT.into(),
            last_line: log.lines().last().unwrap_or("no message").to_owned(),
        })
    }

    /// Where the first process mounts its `/proc`.
    fn procs(&self) -> Vec<PathBuf> {
        if self.settings.machine_pids {
            return Vec::new();
        }
        let root = self.frr_root().map(|root| frr_root::below(root, "/proc"));
        root.into_iter().chain([PathBuf::from("/proc")]).collect()
    }

    /// Mounts what the node's root lacks, and makes it that of the mount namespace.
    fn mount_rest(&self) -> Result<(), node_root::Failed> {
        let directory = self.directory();
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        let proc = Path::new("/proc");
        if self.settings.machine_pids {
            attach(Some(proc), &node_root::path(&directory).join("proc"), None, bind)?;
        }
        node_root::enter(&directory)?;
        let Some(root) = self.frr_root() else { return Ok(()) };
        let shared = self.private().map(|(_, target)| target).chain(["/dev", "/sys"]);
        let proc = self.settings.machine_pids.then_some("/proc");
        for path in shared.chain(proc) {
            attach(Some(Path::new(path)), &frr_root::below(root, path), None, bind)?;
        }
        Ok(())
    }

    /// Runs `f` in a new thread with the namespaces and mounts of the node's processes. It stays in
    /// its PID namespace: only processes that it starts are in the node's.
    pub(super) fn enter<T: Send>(
        &self,
        view: View,
        f: impl FnOnce() -> T + Send,
    ) -> Result<T, NodeError> {
        let failed =
            |(target, source): node_root::Failed| attach_error(&self.name, &target, source);
        if self.container.is_some() {
            return self.namespace()?.enter(|| {
                unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
                    .map_err(|errno| failed(("/".into(), errno.into())))?;
                let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
                attach(None, Path::new("/"), None, slave).map_err(failed)?;
                attach(Some(Path::new("sysfs")), Path::new("/sys"), Some("sysfs"), NONE)
                    .map_err(failed)?;
                Ok(f())
            })?;
        }
        let spaces = self.spaces(view)?;
        let here = std::env::current_dir().unwrap_or_default();
        thread::scope(|scope| {
            let inside = || {
                join(&spaces, view).map_err(failed)?;
                // It may be a directory that only the machine has, for example in /run.
                let _ = nix::unistd::chdir(&here);
                if view == View::Inside {
                    umask(Mode::S_IWGRP | Mode::S_IWOTH);
                }
                Ok(f())
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The namespaces of the first process. That of mounts is the last one: `/proc` changes with it.
    fn spaces(&self, view: View) -> Result<Vec<(File, CloneFlags)>, NodeError> {
        let init =
            || node_root::init(&self.directory()).map_err(|(at, why)| self.file_error(&at, why));
        let pid = init()?.pid;
        let inside = [("pid", CloneFlags::CLONE_NEWPID), ("ipc", CloneFlags::CLONE_NEWIPC)];
        let all = [
            ("net", CloneFlags::CLONE_NEWNET),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        let inside = inside.into_iter().filter(|_| view == View::Inside);
        let open = |(name, flag)| {
            let path = PathBuf::from(format!("/proc/{pid}/ns/{name}"));
            let file = File::open(&path).map_err(|source| self.file_error(&path, source))?;
            Ok((file, flag))
        };
        let spaces = inside.chain(all).map(open).collect::<Result<_, NodeError>>()?;
        // No other process has its number meanwhile.
        init().map(|_| spaces)
    }
}

const NONE: MsFlags = MsFlags::empty();

/// Gives these namespaces to the calling thread.
fn join(spaces: &[(File, CloneFlags)], view: View) -> Result<(), node_root::Failed> {
    let root = Path::new("/");
    let at_root = |errno: nix::Error| (root.to_owned(), errno.into());
    // A thread that changes its root shares none with others.
    unshare(CloneFlags::CLONE_FS).map_err(at_root)?;
    spaces.iter().try_for_each(|(file, flag)| setns(file, *flag)).map_err(at_root)?;
    if view == View::Inside {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(at_root)?;
    attach(None, root, None, MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    attach(Some(Path::new("proc")), Path::new("/proc"), Some("proc"), NONE)
}

fn attach(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> Result<(), node_root::Failed> {
    mount(source, target, kind, flags, None::<&str>)
        .map_err(|errno| (target.to_owned(), errno.into()))
}
