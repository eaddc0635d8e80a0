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

/// Gives an open file or directory to the user who called sudo.
fn give_to_user(file: impl AsFd) -> io::Result<()> {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (None, None) => Ok(()),
        (user, group) => fchown(file, user, group),
    }
}

/// Writes a file that the user has named. A new file belongs to the user who called sudo.
///
/// # Errors
/// If it cannot be written.
pub fn write_for_user(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = match File::create_new(path) {
        Ok(file) => {
            give_to_user(&file)?;
            file
        }
        // Such as an earlier result, or /dev/stdout.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).truncate(true).open(path)?
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)
}

/// An open directory. What is created in it belongs to the user who called sudo.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
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
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty()).map_err(refused)?;
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
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.existing(name, flags)
            }
            created => created,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is a link.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.existing(name, OFlag::O_RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Opens a file that has one name, here.
    fn existing(&self, name: &str, flags: OFlag) -> io::Result<File> {
        // A FIFO would block.
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty()).map_err(refused)?);
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() != 1 {
            return Err(io::Error::other("it is a link, or no file: remove it"));
        }
        Ok(file)
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
    struct Place(PathBuf);

    impl Place {
        fn new(story: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("lab-owner-{story}-{}", std::process::id()));
            fs::create_dir_all(path.join("results")).unwrap();
            fs::create_dir(path.join("outside")).unwrap();
            fs::write(path.join("precious"), "x").unwrap();
            Self(path)
        }

        fn folder(&self) -> Folder {
            Folder::open(&self.0.join("results")).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let outside = fs::read_dir(self.0.join("outside")).unwrap().count();
            assert_eq!((fs::read(self.0.join("precious")).unwrap(), outside), (b"x".to_vec(), 0));
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn links_in_the_directory_are_not_followed() {
        let place = Place::new("links");
        let folder = place.folder();
        let (precious, own) = (place.0.join("precious"), place.0.join("results"));
        for name in ["report.html", "report.html.new", "runs.jsonl", "dangling.new"] {
            symlink(&precious, own.join(name)).unwrap();
        }
        symlink("../new", own.join("dangling")).unwrap();
        for name in ["report.html", "dangling"] {
            folder.write(Path::new(name), b"new").unwrap();
            assert_eq!(folder.read(name).unwrap(), b"new");
        }
        assert!(!place.0.join("new").exists());
        for result in [folder.append("runs.jsonl").map(drop), folder.read("runs.jsonl").map(drop)] {
            assert!(result.unwrap_err().to_string().contains("it is a link"));
        }
        fs::hard_link(&precious, own.join("hard")).unwrap();
        assert!(folder.append("hard").unwrap_err().to_string().contains("it is a link"));
        nix::unistd::mkfifo(&own.join("fifo"), Mode::S_IRWXU).unwrap();
        assert!(folder.read("fifo").is_err() && folder.append("fifo").is_err());
    }

    #[test]
    fn nothing_is_written_outside_of_the_directory() {
        let place = Place::new("outside");
        let folder = place.folder();
        symlink("../outside", place.0.join("results/topologies")).unwrap();
        for path in
            ["topologies/x", "topologies/a/x", "../outside/x", "a/../../outside/x", "..", ""]
        {
            assert!(folder.write(Path::new(path), b"new").is_err(), "{path}");
        }
        let absolute = place.0.join("outside/x");
        assert!(folder.write(&absolute, b"new").is_err());
        folder.write(Path::new("a/b/x"), b"new").unwrap();
        assert_eq!(fs::read(place.0.join("results/a/b/x")).unwrap(), b"new");
    }

    #[test]
    fn a_directory_that_is_not_there_is_created_and_a_named_link_is_followed() {
        let place = Place::new("created");
        let inner = place.0.join("one/two");
        Folder::open(&inner).unwrap().write(Path::new("x"), b"new").unwrap();
        let link = place.0.join("link");
        symlink(&inner, &link).unwrap();
        assert_eq!(Folder::open(&link).unwrap().read("x").unwrap(), b"new");
        let dangling = place.0.join("dangling");
        symlink(place.0.join("outside/x"), &dangling).unwrap();
        assert!(Folder::open(&dangling).is_err());
    }
}
