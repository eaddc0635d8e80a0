//! A network namespace that only this process holds: it and all that is in it end with the process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sched::{CloneFlags, setns, unshare};

/// See the module's description.
#[derive(Debug)]
pub struct PrivateNamespace(File);

impl PrivateNamespace {
    /// Makes an empty namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or when the system's limit of namespaces is reached.
    pub fn create() -> io::Result<Self> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// Runs `f` on a thread of its own inside the namespace. Sockets that it opens stay there.
    ///
    /// # Errors
    /// As setns(2), or as `f`.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            setns(&self.0, CloneFlags::CLONE_NEWNET)?;
            f()
        })
    }
}

impl AsFd for PrivateNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread's namespace ends with it, so that no other code can find itself in the wrong one.
fn on_a_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(f).join())
        .map_err(|_| io::Error::other("a thread in a namespace panicked"))?
}

/// The cookie of the namespace that a socket belongs to (`SO_NETNS_COOKIE`, Linux 5.14): unique while the machine runs.
///
/// # Errors
/// As getsockopt(2): older kernels do not know it.
pub fn cookie(socket: impl AsFd) -> io::Result<u64> {
    /// `include/uapi/asm-generic/socket.h`.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: pointer and length describe `cookie`.
    let got = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length)
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}
