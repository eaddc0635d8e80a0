//! Reading of files that a user names: a signal ends the wait for a pipe, and a file that has no
//! end is refused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The most bytes of a file. The largest shipped one, a table of measured paths, has below 1 MB.
pub const MOST_BYTES: u64 = 256 << 20;

/// Reads a file or a pipe to its end.
///
/// # Errors
/// `Interrupted` after a signal, if there was nothing to read; `FileTooLarge` above [`MOST_BYTES`];
/// `UnexpectedEof` for a FIFO that no process writes; those of open(2) and read(2).
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A FIFO without a writer would block open(2), which the kernel restarts after a signal.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    loop {
        let left = MOST_BYTES + 1 - bytes.len() as u64;
        match (&file).take(left).read_to_end(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&file)?,
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    if bytes.len() as u64 > MOST_BYTES {
        let text = format!("the file has more than {} MiB", MOST_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    if bytes.is_empty() && !file.metadata()?.is_file() {
        let text = "nothing was written to it";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(bytes)
}

/// As [`read`], for UTF-8.
///
/// # Errors
/// Those of [`read`]; `InvalidData` for other text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8")
    })
}

/// Waits for more. Unlike read(2), poll(2) is never restarted after a signal (signal(7)).
fn wait(file: &File) -> io::Result<()> {
    let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    match poll(&mut polled, PollTimeout::NONE) {
        Err(Errno::EINTR) => Err(io::ErrorKind::Interrupted.into()),
        result => result.map(|_| ()).map_err(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pipe_is_read_to_its_end_and_a_fifo_without_a_writer_is_an_error() {
        let (ours, theirs) = nix::unistd::pipe().unwrap();
        let writer = std::thread::spawn(move || {
            let mut writer = File::from(theirs);
            for part in ["name: ", "a\n"] {
                std::thread::sleep(Duration::from_millis(20));
                writer.write_all(part.as_bytes()).unwrap();
            }
        });
        let path = format!("/proc/self/fd/{}", ours.as_raw_fd());
        assert_eq!(read_text(Path::new(&path)).unwrap(), "name: a\n");
        writer.join().unwrap();

        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(&fifo).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(endless.to_string(), "the file has more than 256 MiB");
    }
}
