//! vtepd's gRPC API: messages, server and client, generated from `proto/vtepd/v1`, and the socket
//! between them.
//!
//! - [`v1`]: the generated code. The schema documents each field. Messages serialise to JSON with
//!   the schema's names
//! - [`address`]: the address of the socket
//! - [`listen`]: the daemon's end, which checks the client's user
//! - [`mod@connect`]: the client's end

pub mod address;
pub mod connect;
pub mod listen;

pub use address::Address;
pub use connect::{Client, ConnectError, channel, connect};
pub use listen::{ListenError, Listener};

/// Generated from `proto/vtepd/v1/vtepd.proto`.
#[allow(
    missing_docs,
    reason = "the schema's comments are the documentation, and what has none says it by its name"
)]
pub mod v1 {
    include!("generated/vtepd.v1.rs");
}

/// The schema as a `FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// Serialises a number as text.
pub(crate) fn as_text<S: serde::Serializer>(
    number: &u64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Whether a process may talk to a peer over an abstract socket, which has no permissions of its
/// own. The peer must run as root or as the same user. The daemon checks clients, and a client
/// checks the daemon, because any user can bind a free name.
#[must_use]
const fn trusts(own_uid: u32, peer_uid: u32) -> bool {
    peer_uid == 0 || peer_uid == own_uid
}
