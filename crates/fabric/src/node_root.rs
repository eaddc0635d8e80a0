//! A node's own root file system, as a container has: overlays over the machine's file systems. What
//! the node writes stays in a tmpfs, and is gone with the node.
//!
//! The mounts are made once for each node, below its directory. Each process of the node gets a
//! mount namespace of its own in which they are the root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot, pivot_root};

use crate::topology::Tmpfs;

/// What failed: the path, and the cause.
pub(crate) type Failed = (PathBuf, io::Error);

/// The tmpfs in the node's directory, which has all of these.
const BASE: &str = "root";
/// The root itself, in the tmpfs.
const MERGED: &str = "merged";
/// The `/proc` of the node's processes, in the tmpfs.
const PROC: &str = "proc";
/// Their PID namespace, in the tmpfs.
const PIDS: &str = "pids";

/// Mount points that are not the machine's files, or are a node's own.
const OWN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// Kinds of file systems without files of the machine, and those of its containers.
const WITHOUT_FILES: [&str; 6] = ["autofs", "binfmt_misc", "fusectl", "nsfs", "overlay", "proc"];

/// The path on the machine of the node's root.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join(BASE).join(MERGED)
}

/// The path on the machine of the node's directory in its root, where it has the same name.
fn own_directory(directory: &Path) -> PathBuf {
    path(directory).join(directory.strip_prefix("/").unwrap_or(directory))
}

/// Where the node's first process mounts its `/proc`.
pub(crate) fn proc(directory: &Path) -> PathBuf {
    directory.join(BASE).join(PROC)
}

/// The node's PID namespace, once [`keep_pids`] has put it there.
pub(crate) fn pids(directory: &Path) -> PathBuf {
    directory.join(BASE).join(PIDS)
}

/// Mounts the PID namespace of a process where [`pids`] says.
pub(crate) fn keep_pids(directory: &Path, pid: i32) -> Result<(), Failed> {
    try_at(&pids(directory), |path| {
        fs::File::create_new(path)?;
        let source = format!("/proc/{pid}/ns/pid");
        Ok(mount(Some(source.as_str()), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    })
}

/// Mounts a tmpfs at a path in the node's root, which exists.
pub(crate) fn mount_tmpfs(directory: &Path, target: &Path, options: &Tmpfs) -> Result<(), Failed> {
    within(directory, || {
        try_at(target, |target| {
            let flags = MsFlags::from_bits_truncate(options.flags);
            Ok(mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.data.as_str()))?)
        })
    })
}

/// Makes the root of a node with this host name and these lines of `/etc/hosts`.
///
/// # Errors
/// If the kernel has no overlays, or the caller may not mount.
pub(crate) fn create(directory: &Path, hostname: &str, hosts: &str) -> Result<(), Failed> {
    let base = directory.join(BASE);
    let root = path(directory);
    try_at(&base, |base| {
        fs::create_dir_all(base)?;
        Ok(mount(Some("lab"), base, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?)
    })?;
    try_at(&root, |path| fs::create_dir(path))?;
    try_at(&proc(directory), |path| fs::create_dir(path))?;
    overlay(Path::new("/"), &base.join("0"), &root)?;
    for (index, point) in mount_points().iter().enumerate() {
        let below = point.strip_prefix("/").unwrap_or(point);
        let target = root.join(below);
        // A file system that can be no lower one is read-only.
        if overlay(point, &base.join(format!("{}", index + 1)), &target).is_err() {
            try_at(&target, |target| read_only(point, target))?;
        }
    }
    // What BusyBox, as in Alpine's images, calls the shell. `/bin` may be a link.
    within(directory, || match Path::new("/bin/ash") {
        ash if ash.exists() => Ok(()),
        ash => try_at(ash, |path| symlink("sh", path)),
    })?;
    let run = base.join("run");
    try_at(&run, |path| fs::create_dir(path))?;
    let flags = MsFlags::MS_BIND;
    try_at(&root.join("run"), |target| {
        Ok(mount(Some(&run), target, None::<&str>, flags, None::<&str>)?)
    })?;
    try_at(&own_directory(directory), |path| fs::create_dir_all(path))?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{hosts}");
    for (name, text) in [("etc/hostname", format!("{hostname}\n")), ("etc/hosts", hosts)] {
        // The file of the machine may be a link.
        let _ = fs::remove_file(root.join(name));
        try_at(&root.join(name), |path| fs::write(path, &text))?;
    }
    Ok(())
}

/// Removes the root. It is no error if there is none.
///
/// # Errors
/// If it cannot be unmounted.
pub(crate) fn remove(directory: &Path) -> Result<(), Failed> {
    match umount2(&directory.join(BASE), MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(errno) => Err((directory.join(BASE), errno.into())),
    }
}

/// Runs `f` in a thread whose root is the node's, so that links lead to where they do in the node.
pub(crate) fn within<T: Send>(
    directory: &Path,
    f: impl FnOnce() -> Result<T, Failed> + Send,
) -> Result<T, Failed> {
    let root = path(directory);
    let inside = || {
        try_at(&root, |root| {
            unshare(CloneFlags::CLONE_FS)?;
            chroot(root)?;
            Ok(chdir("/")?)
        })?;
        f()
    };
    thread::scope(|scope| {
        scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes the node's root that of the calling thread, which has a mount namespace of its own. Until
/// [`leave`], open files of the machine can still be mounted, and the working directory must not
/// change. Returns where it was.
pub(crate) fn enter(directory: &Path) -> Result<PathBuf, Failed> {
    let root = path(directory);
    let here = std::env::current_dir().unwrap_or_default();
    for path in ["/proc", "/dev"] {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        try_at(&root.join(path.trim_start_matches('/')), |target| {
            Ok(mount(Some(path), target, None::<&str>, flags, None::<&str>)?)
        })?;
    }
    // Files that the lab writes for the node, such as vtepd's configuration. Not its root again.
    try_at(&own_directory(directory), |target| {
        Ok(mount(Some(directory), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    })?;
    try_at(&root.join("sys"), |target| {
        Ok(mount(Some("sysfs"), target, Some("sysfs"), MsFlags::empty(), None::<&str>)?)
    })?;
    try_at(&root, |root| {
        chdir(root)?;
        // The machine's root is now mounted over the node's, where no path from `/` leads.
        Ok(pivot_root(".", ".")?)
    })?;
    Ok(here)
}

/// Unmounts the machine's root, and returns to the working directory.
pub(crate) fn leave(here: &Path) -> Result<(), Failed> {
    try_at(Path::new("/"), |root| {
        umount2(".", MntFlags::MNT_DETACH)?;
        Ok(chdir(root)?)
    })?;
    // It may be one that only the machine has, for example in /run.
    let _ = chdir(here);
    Ok(())
}

/// Mounts `lower` at `target` so that writes go to `base`.
fn overlay(lower: &Path, base: &Path, target: &Path) -> Result<(), Failed> {
    let [upper, work] = ["upper", "work"].map(|name| base.join(name));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    try_at(target, |target| {
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        // The root of an overlay has the owner and the mode of its upper directory.
        let from = fs::metadata(lower)?;
        chown(&upper, Some(from.uid()), Some(from.gid()))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(from.mode() & 0o7777))?;
        Ok(mount(Some("lab"), target, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?)
    })
}

fn read_only(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    Ok(mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?)
}

/// The directories where the machine has other file systems mounted, outermost first.
fn mount_points() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut points: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let point = Path::new(mount.split(' ').nth(4)?);
            let kind = kind.split(' ').next()?;
            let counts = point != Path::new("/")
                && !OWN.iter().any(|own| point.starts_with(own))
                && !WITHOUT_FILES.contains(&kind)
                // Not to be written in the options of a mount, or escaped in the table.
                && !point.to_string_lossy().contains([',', ':', '\\'])
                && point.is_dir();
            counts.then(|| point.to_owned())
        })
        .collect();
    points.sort();
    points.dedup();
    points
}

fn try_at<T>(path: &Path, f: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, Failed> {
    f(path).map_err(|error| (path.to_owned(), error))
}
