//! What can go wrong between this process and the kernel.

use std::io;

use nix::libc::{EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT};

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a netlink socket failed.
    #[error("netlink socket: {operation}: {source}")]
    Socket {
        /// What was being done.
        operation: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{operation}: {source}{}{explanation}", if explanation.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked for.
        operation: String,
        /// The kernel's error number.
        source: io::Error,
        /// The kernel's own words (extended acknowledgement), or nothing.
        explanation: String,
    },
    /// Every attempt at a dump was overtaken by changes (`NLM_F_DUMP_INTR`).
    #[error("{operation}: changed {attempts} times while it was being read")]
    Interrupted {
        /// What was being read.
        operation: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// A datagram longer than the receive buffer.
    #[error("a netlink datagram of {length} bytes does not fit the buffer of {capacity}")]
    Truncated {
        /// Bytes of the datagram.
        length: usize,
        /// Bytes of the buffer.
        capacity: usize,
    },
    /// The worker that a request ran on did not finish: the runtime is shutting down.
    #[error("the runtime ended during a netlink request")]
    RuntimeEnded,
}

impl Error {
    /// The kernel's error number, where it refused something.
    #[must_use]
    pub fn refusal(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether a privilege is missing for what was done with a socket.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Socket { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether a socket could not be opened because the kernel does not have the protocol.
    pub(crate) fn is_missing_protocol(&self) -> bool {
        match self {
            Self::Socket { source, .. } => {
                matches!(
                    source.raw_os_error(),
                    Some(EPROTONOSUPPORT | EAFNOSUPPORT | ESOCKTNOSUPPORT)
                )
            }
            _ => false,
        }
    }
}
