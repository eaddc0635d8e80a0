//! Errors of netlink operations.

use std::io;

use nix::libc::{EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT};

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a netlink socket failed.
    #[error("netlink socket: {operation}: {source}")]
    Socket {
        /// The operation.
        operation: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{operation}: {source}{}{explanation}", if explanation.is_empty() { "" } else { ": " })]
    Refused {
        /// The operation.
        operation: String,
        /// The kernel's error number.
        source: io::Error,
        /// The kernel's text (extended acknowledgement); may be empty.
        explanation: String,
    },
    /// Changes interrupted every attempt at a dump (`NLM_F_DUMP_INTR`).
    #[error("{operation}: changed {attempts} times while it was being read")]
    Interrupted {
        /// The operation.
        operation: String,
        /// Number of attempts.
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
    /// The runtime shut down before the request was finished.
    #[error("the runtime ended during a netlink request")]
    RuntimeEnded,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

impl Error {
    /// The kernel's error number, if it refused a request.
    #[must_use]
    pub fn refusal(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether an operation on a socket failed because a privilege is missing.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Socket { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether a socket could not be opened because the kernel lacks the protocol.
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
