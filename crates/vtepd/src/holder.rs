//! The owner of an abstract Unix socket. Any user may bind any abstract name, so vtepd asks the
//! kernel for the credentials of the listener (`SO_PEERCRED`).

use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket,
    sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

/// How long to wait for room in the listener's queue of connections. A working listener accepts
/// immediately.
const FULL: Duration = Duration::from_secs(1);
/// Time between two attempts to connect.
const STEP: Duration = Duration::from_millis(10);

/// The process that listens on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its process id in this process's PID namespace; 0 if it is not visible from there.
    pub pid: i32,
    /// Its user id.
    pub uid: u32,
}

impl Holder {
    /// The process that listens on an abstract name in the calling thread's network namespace.
    ///
    /// # Errors
    /// When nothing listens there, or the listener's queue stays full.
    pub(crate) fn of(name: &[u8]) -> io::Result<Self> {
        Self::until(name, Instant::now() + FULL)
    }

    /// The trusted processes that listen on some of these names. Others may hold any number of
    /// names with full queues, so names without room wait for one time together.
    pub(crate) fn trusted_of(names: Vec<String>) -> Vec<(String, Self)> {
        let start = Instant::now();
        let mut found = Vec::new();
        let mut ask = |name: String, until| match Self::until(name.as_bytes(), until) {
            Ok(holder) if holder.is_trusted() => {
                found.push((name, holder));
                None
            }
            Ok(_) => None,
            Err(error) => {
                let again = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                again.contains(&error.kind()).then_some(name)
            }
        };
        let full: Vec<String> = names.into_iter().filter_map(|name| ask(name, start)).collect();
        full.into_iter().for_each(|name| drop(ask(name, start + FULL)));
        found
    }

    fn until(name: &[u8], until: Instant) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let address = UnixAddr::new_abstract(name)?;
        loop {
            match connect(socket.as_raw_fd(), &address) {
                Ok(()) => break,
                Err(Errno::EAGAIN | Errno::EINTR) if Instant::now() < until => {
                    std::thread::sleep(STEP)
                }
                Err(error) => return Err(error.into()),
            }
        }
        let credentials = getsockopt(&socket, PeerCredentials)?;
        Ok(Self { pid: credentials.pid(), uid: credentials.uid() })
    }

    /// Whether it runs as root or as the user of this process.
    pub(crate) fn is_trusted(self) -> bool {
        [0, geteuid().as_raw()].contains(&self.uid)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "a process in another container, of user {}", self.uid),
            pid => write!(f, "process {pid} of user {}", self.uid),
        }
    }
}
