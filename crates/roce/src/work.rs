//! Work requests and their completions.

use serde::{Deserialize, Serialize};

/// A place in the memory of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The key of the memory region.
    pub key: u32,
    /// The virtual address.
    pub address: u64,
}

impl Place {
    /// The place `bytes` further.
    pub(crate) const fn plus(self, bytes: u64) -> Self {
        Self { key: self.key, address: self.address.wrapping_add(bytes) }
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Sends a message into a buffer that the receiver has posted.
    Send {
        /// Four bytes for the receiving application.
        immediate: Option<u32>,
    },
    /// Writes into the remote memory.
    Write {
        /// Where the bytes go.
        remote: Place,
        /// Four bytes for the receiving application. They consume a receive buffer.
        immediate: Option<u32>,
    },
    /// Reads from the remote memory.
    Read {
        /// Where the bytes are.
        remote: Place,
    },
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// A number for the application, which its completion repeats.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// Where the bytes come from, or go to for a read.
    pub local: Place,
    /// The number of bytes, at most [`LENGTH_MAX`].
    pub length: u32,
}

/// Maximum length of a message in bytes. InfiniBand allows 2³¹; here, at most a fourth of the
/// packet sequence numbers are in use with the smallest MTU.
pub const LENGTH_MAX: u32 = 1 << 30;

/// A receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// A number for the application, which its completion repeats.
    pub id: u64,
    /// Where a message is stored. A write with immediate data does not use it.
    pub place: Place,
    /// The size of the buffer in bytes.
    pub length: u32,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It was executed.
    #[error("success")]
    Success,
    /// The peer did not answer any retransmission.
    #[error("transport retry counter exceeded: the peer does not answer")]
    RetryExceeded,
    /// The peer refused the opcode or length.
    #[error("remote invalid request error: the peer refused the request")]
    InvalidRequest,
    /// The peer refused the address or key.
    #[error("remote access error: the peer refused the memory address or key")]
    RemoteAccess,
    /// The peer reported an error of its own.
    #[error("remote operation error: the peer failed")]
    RemoteOperation,
    /// The local memory could not be read or written.
    #[error("local protection error: the local memory address is invalid")]
    LocalProtection,
    /// An earlier request of the queue pair failed.
    #[error("work request flushed: an earlier request of the queue pair failed")]
    Flushed,
}

/// A queue pair of an endpoint, by its place in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub usize);

/// Something that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// A request of this host.
    Request {
        /// The queue pair.
        queue_pair: Handle,
        /// The number of the request.
        id: u64,
        /// How it ended.
        status: Status,
        /// The time from posting to its last acknowledgement, in nanoseconds.
        nanoseconds: u64,
    },
    /// A message from the peer.
    Received {
        /// The queue pair.
        queue_pair: Handle,
        /// The number of the receive buffer.
        id: u64,
        /// The length of the message.
        length: u32,
        /// Its immediate data.
        immediate: Option<u32>,
    },
}
