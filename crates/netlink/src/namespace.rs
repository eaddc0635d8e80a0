//! A network namespace that only this process holds. It and everything in it end with the process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace without a name, held by an open file.
#[derive(Debug)]
pub struct PrivateNamespace(File);

impl PrivateNamespace {
    /// Creates an empty namespace. The calling thread stays in its own.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or when the system's limit of namespaces is reached.
    pub fn create() -> io::Result<Self> {
        on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// Runs `f` on a new thread inside the namespace. Sockets that it opens stay in the namespace.
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

/// Runs `f` on a new thread, so that no other code can run in the wrong namespace afterwards.
fn on_a_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(f).join())
        .map_err(|_| io::Error::other("a thread in a namespace panicked"))?
}
