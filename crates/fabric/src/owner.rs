//! Files for the user who called sudo. That user can change a directory while root writes into it,
//! so files are opened below an open directory, links are not followed, and owners are set by
//! descriptor.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Links that the kernel makes, and a device. All of /dev would have /dev/shm, where anybody writes.
const OF_THE_KERNEL: [&str; 5] =
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd", "/dev/null"];
/// Flags that follow no link, and do not wait for the other end of a FIFO.
const SAFELY: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);
/// Flags that open a directory and follow no link.
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// Gives an open file or directory to the user who called sudo.
fn give_to_user(file: impl AsFd) -> io::Result<()> {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (None, None) => Ok(()),
        (user, group) => fchown(file, user, group),
    }
}

/// Writes a file that the user has named. A new file belongs to the user who called sudo. Others
/// may have put a link there, which is not followed; those of the kernel are, such as /dev/stdout.
///
/// # Errors
/// If it cannot be written, or is a link.
pub fn write_for_user(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_for_user(path)?.write_all(bytes)
}

/// Opens an empty file for [`write_for_user`], or for what is written little by little.
///
/// # Errors
/// As [`write_for_user`].
pub fn create_for_user(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Ok(file) => {
            give_to_user(&file)?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if OF_THE_KERNEL.iter().any(|of| path.starts_with(of)) {
                File::options().write(true).truncate(true).open(path)
            } else {
                let flags = OFlag::O_WRONLY | SAFELY;
                let file = File::from(open(path, flags, Mode::empty()).map_err(refused)?);
                the_only_name(&file)?;
                file.set_len(0)?;
                Ok(file)
            }
        }
        Err(error) => Err(error),
    }
}

/// An open directory. What is created in it belongs to the user who called sudo.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a directory that exists.
    ///
    /// # Errors
    /// As open(2).
    pub fn existing(path: &Path) -> io::Result<Self> {
        let fd = open(path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a directory, or creates it with its parents.
    ///
    /// # Errors
    /// As mkdir(2) and open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, path: path.to_owned() }),
            Err(Errno::ENOENT) => {
                let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(Errno::ENOENT.into());
                };
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                fs::create_dir_all(parent)?;
                let fd = open(parent, flags, Mode::empty())?;
                Self { fd, path: parent.to_owned() }.below(Path::new(name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory in this one, or creates it.
    fn below(&self, name: &Path) -> io::Result<Self> {
        let made = match mkdirat(&self.fd, name, Mode::from_bits_truncate(0o755)) {
            Err(Errno::EEXIST) => false,
            made => made.map(|()| true)?,
        };
        let fd = openat(&self.fd, name, DIRECTORY, Mode::empty()).map_err(refused)?;
        if made {
            give_to_user(&fd)?;
        }
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Whether it has no files.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(fs::read_dir(&self.path)?.next().is_none())
    }

    /// Writes a file, also in directories below, which are created. It is written under another name
    /// first, so that a full disk leaves the earlier one.
    ///
    /// # Errors
    /// If it cannot be written; if the path leads out of the directory.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut parts = path.components();
        let last = parts.next_back();
        let mut folder = None::<Self>;
        for part in parts {
            folder = Some(folder.as_ref().unwrap_or(self).below(plain(Some(part))?)?);
        }
        folder.as_ref().unwrap_or(self).replace(plain(last)?, bytes)
    }

    fn replace(&self, name: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut new = name.as_os_str().to_owned();
        new.push(".new");
        let new = Path::new(&new);
        let unlink = || unlinkat(&self.fd, new, UnlinkatFlags::NoRemoveDir);
        match unlink() {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let written = self.create(new, OFlag::O_WRONLY).and_then(|mut file| {
            file.write_all(bytes)?;
            Ok(renameat(&self.fd, new, &self.fd, name)?)
        });
        if written.is_err() {
            // It may not exist.
            let _ = unlink();
        }
        written
    }

    /// Creates a file that does not exist yet.
    fn create(&self, name: &Path, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::from_bits_truncate(0o644))?;
        give_to_user(&fd)?;
        Ok(fd.into())
    }

    /// Opens a file to which lines are appended, or creates it.
    ///
    /// # Errors
    /// If it cannot be opened, or is a link.
    pub fn append(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_APPEND;
        match self.create(Path::new(name), flags) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.file(name, flags),
            created => created,
        }
    }

    /// Reads a file, also in directories below.
    ///
    /// # Errors
    /// If it cannot be read, or has more than 1 GiB; if a component of the path is a link, or leads out
    /// of the directory.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.file(name, OFlag::O_RDONLY)?;
        if file.metadata()?.len() > LONGEST {
            return Err(io::Error::other("it has more than 1 GiB"));
        }
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::read`], as text.
    ///
    /// # Errors
    /// As [`Self::read`]; if it is not UTF-8.
    pub fn read_text(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name)?).map_err(io::Error::other)
    }

    /// Opens a file that has one name, here or in directories below.
    fn file(&self, path: &str, flags: OFlag) -> io::Result<File> {
        let mut parts = Path::new(path).components();
        let last = parts.next_back();
        let mut folder = None::<OwnedFd>;
        for part in parts {
            let within = folder.as_ref().unwrap_or(&self.fd);
            let opened = openat(within, plain(Some(part))?, DIRECTORY, Mode::empty());
            folder = Some(opened.map_err(refused)?);
        }
        let within = folder.as_ref().unwrap_or(&self.fd);
        let opened = openat(within, plain(last)?, flags | SAFELY, Mode::empty());
        let file = File::from(opened.map_err(refused)?);
        the_only_name(&file)?;
        Ok(file)
    }
}

/// An error if an open file is none, or has other names.
fn the_only_name(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 {
        Ok(())
    } else {
        Err(io::Error::other("it is a link, or no file: remove it"))
    }
}

/// The component of a path, if it leads down.
fn plain(part: Option<Component<'_>>) -> io::Result<&Path> {
    match part {
        Some(Component::Normal(name)) => Ok(Path::new(name)),
        _ => Err(io::Error::other("the path leads out of the directory")),
    }
}

/// Names the cause if a link was not followed.
fn refused(error: Errno) -> io::Error {
    match error {
        Errno::ELOOP | Errno::ENOTDIR => {
            io::Error::other("it is a link, or no directory: remove it")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory, and a file outside of it that must stay as it is.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            fs::create_dir(place.join("results")).unwrap();
            fs::create_dir(place.join("outside")).unwrap();
            fs::write(place.join("precious"), "x").unwrap();
            place
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn folder(&self) -> Folder {
            Folder::open(&self.join("results")).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let outside = fs::read_dir(self.join("outside")).unwrap().count();
            assert_eq!((fs::read(self.join("precious")).unwrap(), outside), (b"x".to_vec(), 0));
        }
    }

    #[test]
    fn links_in_the_directory_are_not_followed() {
        let place = Place::new();
        let folder = place.folder();
        let (precious, own) = (place.join("precious"), place.join("results"));
        for name in ["report.html", "report.html.new", "runs.jsonl", "dangling.new"] {
            symlink(&precious, own.join(name)).unwrap();
        }
        symlink("../new", own.join("dangling")).unwrap();
        for name in ["report.html", "dangling"] {
            folder.write(Path::new(name), b"new").unwrap();
            assert_eq!(folder.read(name).unwrap(), b"new");
        }
        assert!(!place.join("new").exists());
        for result in [folder.append("runs.jsonl").map(drop), folder.read("runs.jsonl").map(drop)] {
            assert!(result.unwrap_err().to_string().contains("it is a link"));
        }
        fs::hard_link(&precious, own.join("hard")).unwrap();
        assert!(folder.append("hard").unwrap_err().to_string().contains("it is a link"));
        nix::unistd::mkfifo(&own.join("fifo"), Mode::S_IRWXU).unwrap();
        assert!(folder.read("fifo").is_err() && folder.append("fifo").is_err());
        let sparse = File::create(own.join("sparse")).unwrap();
        sparse.set_len(LONGEST + 1).unwrap();
        assert!(folder.read("sparse").unwrap_err().to_string().contains("1 GiB"));
    }

    #[test]
    fn a_named_file_is_no_link_of_somebody_else() {
        let place = Place::new();
        let (precious, named) = (place.join("precious"), place.join("report.html"));
        symlink(&precious, &named).unwrap();
        assert!(write_for_user(&named, b"new").unwrap_err().to_string().contains("it is a link"));
        fs::remove_file(&named).unwrap();
        fs::hard_link(&precious, &named).unwrap();
        assert!(write_for_user(&named, b"new").unwrap_err().to_string().contains("it is a link"));
        fs::remove_file(&named).unwrap();
        nix::unistd::mkfifo(&named, Mode::S_IRWXU).unwrap();
        assert!(write_for_user(&named, b"new").is_err());
        fs::remove_file(&named).unwrap();
        for bytes in [&b"longer"[..], b"new"] {
            write_for_user(&named, bytes).unwrap();
            assert_eq!(fs::read(&named).unwrap(), bytes);
        }
        write_for_user(Path::new("/dev/null"), b"new").unwrap();
        let shared = PathBuf::from(format!("/dev/shm/lab-owner-{}", std::process::id()));
        symlink(&precious, &shared).unwrap();
        let written = write_for_user(&shared, b"new");
        fs::remove_file(&shared).unwrap();
        assert!(written.unwrap_err().to_string().contains("it is a link"));
    }

    #[test]
    fn nothing_is_written_outside_of_the_directory() {
        let place = Place::new();
        let folder = place.folder();
        symlink("../outside", place.join("results/topologies")).unwrap();
        for path in
            ["topologies/x", "topologies/a/x", "../outside/x", "a/../../outside/x", "..", ""]
        {
            assert!(folder.write(Path::new(path), b"new").is_err(), "{path}");
        }
        let absolute = place.join("outside/x");
        assert!(folder.write(&absolute, b"new").is_err());
        folder.write(Path::new("a/b/x"), b"new").unwrap();
        assert_eq!(fs::read(place.join("results/a/b/x")).unwrap(), b"new");
    }

    #[test]
    fn nothing_is_read_outside_of_the_directory() {
        let place = Place::new();
        let folder = place.folder();
        folder.write(Path::new("a/b/x"), b"new").unwrap();
        assert_eq!(folder.read("a/b/x").unwrap(), b"new");
        assert_eq!(folder.read("a/c/x").unwrap_err().kind(), io::ErrorKind::NotFound);
        let own = place.join("results");
        symlink("..", own.join("up")).unwrap();
        symlink(place.0.path(), own.join("a/up")).unwrap();
        let absolute = place.join("precious");
        for path in
            ["up/precious", "a/up/precious", "../precious", "a/../../precious", "..", "", "/"]
                .into_iter()
                .chain(absolute.to_str())
        {
            assert!(folder.read(path).is_err(), "{path}");
        }
        assert!(folder.read("up/precious").unwrap_err().to_string().contains("it is a link"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_created_and_a_named_link_is_followed() {
        let place = Place::new();
        let inner = place.join("one/two");
        Folder::open(&inner).unwrap().write(Path::new("x"), b"new").unwrap();
        let link = place.join("link");
        symlink(&inner, &link).unwrap();
        assert_eq!(Folder::open(&link).unwrap().read("x").unwrap(), b"new");
        let dangling = place.join("dangling");
        symlink(place.join("outside/x"), &dangling).unwrap();
        assert!(Folder::open(&dangling).is_err());
    }
}
