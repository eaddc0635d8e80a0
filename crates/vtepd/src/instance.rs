//! One vtepd per network namespace: an abstract Unix socket is the lock. It belongs to the namespace and goes with the process.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Name of the socket, after the leading zero byte; `ss -xl` shows it as `@vtepd`.
const NAME: &[u8] = b"vtepd";

/// The lock.
#[derive(Debug)]
pub struct Instance(#[allow(dead_code, reason = "held, not used")] UnixListener);

/// The lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Somebody has it.
    #[error(
        "another vtepd (process {pid}) has this network namespace already; stop it first, or run in another namespace"
    )]
    Running {
        /// Process id, as this process's PID namespace numbers it; 0 where it cannot be seen from here.
        pid: i32,
    },
    /// The system refused.
    #[error("the lock of this network namespace (abstract socket @vtepd) cannot be had: {0}")]
    System(#[from] io::Error),
}

impl Instance {
    /// Takes the lock of the calling thread's network namespace.
    ///
    /// # Errors
    /// When another vtepd has it.
    pub fn lock() -> Result<Self, InstanceError> {
        let address = address()?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(InstanceError::Running { pid: holder()? })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The process that has the lock of the calling thread's network namespace, as [`InstanceError::Running`] has it.
pub fn running() -> Option<i32> {
    holder().ok()
}

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

fn holder() -> io::Result<i32> {
    let stream = UnixStream::connect_addr(&address()?)?;
    Ok(getsockopt(&stream, PeerCredentials).map_or(0, |credentials| credentials.pid()))
}
