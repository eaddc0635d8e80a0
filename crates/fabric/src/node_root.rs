//! A node's own root file system, as a container has: overlays over the machine's file systems. What
//! the node writes stays in a tmpfs, and is gone with the node.
//!
//! Only root of the machine reaches the root by its path. Processes of the node need no path to it:
//! they begin there.
//!
//! The mounts are made once for each node, below its directory. They are the root in the mount
//! namespace of the node's first process, which all others share.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{chdir, chroot, pivot_root};

use crate::process::Identity;
use crate::topology::Tmpfs;

/// What failed: the path, and the cause.
pub(crate) type Failed = (PathBuf, io::Error);

/// The tmpfs in the node's directory, which has all of these.
const BASE: &str = "root";
/// The root itself, in the tmpfs.
const MERGED: &str = "merged";
/// The file in the tmpfs that identifies the node's first process.
const INIT: &str = "init";

/// Mount points that are not the machine's files, or are a node's own.
const OWN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// Parts of `/dev` that are no devices: those of the machine's processes, and file systems.
const NO_DEVICES: [&str; 5] = ["shm", "mqueue", "pts", "hugepages", "log"];
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

/// Writes down the node's first process.
pub(crate) fn set_init(directory: &Path, init: Identity) -> Result<(), Failed> {
    let text = format!("{} {}", init.pid, init.start_time);
    try_at(&directory.join(BASE).join(INIT), |path| fs::write(path, text))
}

/// The node's first process.
pub(crate) fn init(directory: &Path) -> Result<Identity, Failed> {
    try_at(&directory.join(BASE).join(INIT), |path| {
        let text = fs::read_to_string(path)?;
        let read = text.split_once(' ').and_then(|(pid, start_time)| {
            Some(Identity { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
        });
        read.filter(|init| init.alive()).ok_or_else(|| io::ErrorKind::NotFound.into())
    })
}

/// Mounts a tmpfs at a path in the node's root, which exists.
pub(crate) fn mount_tmpfs(directory: &Path, target: &Path, options: &Tmpfs) -> Result<(), Failed> {
    try_at(&resolved(directory, target)?, |target| {
        let flags = MsFlags::from_bits_truncate(options.flags);
        Ok(mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.data.as_str()))?)
    })
}

/// Mounts a file or directory of the machine, with all below it, at a path in the node's root, which
/// exists. The caller is in a mount namespace from which nothing gets back to the machine's: otherwise,
/// what is mounted or unmounted below the target would be so below the source.
pub(crate) fn bind(
    directory: &Path,
    source: &Path,
    target: &Path,
    is_read_only: bool,
) -> Result<(), Failed> {
    try_at(&resolved(directory, target)?, |target| {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(source), target, None::<&str>, flags, None::<&str>)?;
        if is_read_only { set_read_only(target) } else { Ok(()) }
    })
}

/// The path on the machine of a path in the node's root. Links lead to where they do in the node.
fn resolved(directory: &Path, target: &Path) -> Result<PathBuf, Failed> {
    let target = within(directory, || try_at(target, |target| fs::canonicalize(target)))?;
    Ok(path(directory).join(target.strip_prefix("/").unwrap_or(&target)))
}

/// Makes the root of a node with this host name and these lines of `/etc/hosts`. The caller is in the
/// node's network namespace.
///
/// # Errors
/// If the kernel has no overlays, or the caller may not mount.
pub(crate) fn create(directory: &Path, hostname: &str, hosts: &str) -> Result<(), Failed> {
    let base = directory.join(BASE);
    let root = path(directory);
    try_at(&base, |base| {
        fs::create_dir_all(base)?;
        Ok(mount(Some("lab"), base, Some("tmpfs"), MsFlags::empty(), Some("mode=700"))?)
    })?;
    try_at(&root, |path| fs::create_dir(path))?;
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
    try_at(&root.join("sys"), |target| {
        Ok(mount(Some("sysfs"), target, Some("sysfs"), MsFlags::empty(), None::<&str>)?)
    })?;
    make_devices(&root.join("dev"))?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{hosts}");
    for (name, text) in [("etc/hostname", format!("{hostname}\n")), ("etc/hosts", hosts)] {
        // The file of the machine may be a link.
        let _ = fs::remove_file(root.join(name));
        try_at(&root.join(name), |path| fs::write(path, &text))?;
    }
    Ok(())
}

/// Makes `/dev` of a node: with the machine's devices, as in a privileged container, and shared memory
/// of its own.
fn make_devices(target: &Path) -> Result<(), Failed> {
    let tmpfs = |target: &Path, options: &str| {
        Ok(mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::MS_NOSUID, Some(options))?)
    };
    try_at(target, |target| tmpfs(target, "mode=755"))?;
    copy_devices(Path::new("/dev"), target)?;
    try_at(&target.join("shm"), |target| {
        fs::create_dir(target)?;
        tmpfs(target, "mode=1777,size=64m")
    })?;
    try_at(&target.join("mqueue"), |target| fs::create_dir(target))?;
    // The terminals are the machine's: that of a user of `lab exec` has its name.
    try_at(&target.join("pts"), |target| {
        fs::create_dir(target)?;
        Ok(mount(Some("/dev/pts"), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    })
}

/// Makes the devices and links of a directory in another one.
fn copy_devices(from: &Path, to: &Path) -> Result<(), Failed> {
    for entry in try_at(from, |from| fs::read_dir(from))?.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        // It may just have gone.
        let Ok(found) = source.symlink_metadata() else { continue };
        let kind = found.file_type();
        let is_other = NO_DEVICES.iter().any(|name| source == Path::new("/dev").join(name));
        if is_other {
            continue;
        } else if kind.is_dir() {
            try_at(&target, |target| fs::create_dir(target))?;
            copy_devices(&source, &target)?;
        } else if kind.is_symlink() {
            try_at(&target, |target| symlink(fs::read_link(&source)?, target))?;
        } else if kind.is_char_device() || kind.is_block_device() {
            let flag = if kind.is_char_device() { SFlag::S_IFCHR } else { SFlag::S_IFBLK };
            try_at(&target, |target| {
                match mknod(target, flag, Mode::empty(), found.rdev()) {
                    // Some containers may make no devices.
                    Err(Errno::EPERM) => {
                        fs::write(target, [])?;
                        let bind = MsFlags::MS_BIND;
                        mount(Some(&source), target, None::<&str>, bind, None::<&str>)?;
                    }
                    made => made?,
                }
                chown(target, Some(found.uid()), Some(found.gid()))?;
                fs::set_permissions(target, fs::Permissions::from_mode(found.mode() & 0o7777))
            })?;
        }
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

/// Makes the node's root that of all processes of the calling thread's mount namespace, which is not
/// the machine's.
pub(crate) fn enter(directory: &Path) -> Result<(), Failed> {
    try_at(&path(directory).join("dev/mqueue"), |target| {
        match mount(Some("mqueue"), target, Some("mqueue"), MsFlags::empty(), None::<&str>) {
            // The kernel has none, or the file has another `/dev`.
            Err(Errno::ENODEV | Errno::ENOENT) => Ok(()),
            mounted => Ok(mounted?),
        }
    })?;
    // Files that the lab writes for the node, such as vtepd's configuration. Not its root again.
    try_at(&own_directory(directory), |target| {
        fs::create_dir_all(target)?;
        mount(Some(directory), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        set_read_only(target)
    })?;
    try_at(&path(directory), |root| {
        chdir(root)?;
        // The machine's root is now mounted over the node's, where no path from `/` leads.
        pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        Ok(chdir("/")?)
    })
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
        Ok(mount(Some("lab"), target, Some("overlay"), limits(lower)?, Some(options.as_str()))?)
    })
}

/// What the mount at a path does not allow: set-user-ID programs, devices, any programs. Neither do
/// those over it.
fn limits(path: &Path) -> io::Result<MsFlags> {
    let found = statvfs(path)?.flags();
    let all = [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ];
    Ok(all.into_iter().filter(|(flag, _)| found.contains(*flag)).map(|(_, flag)| flag).collect())
}

fn read_only(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    set_read_only(target)
}

/// Makes a bind mount read-only. A remount clears the flags that it does not name.
fn set_read_only(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | limits(target)?;
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
