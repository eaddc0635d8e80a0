//! vtepd's gRPC API: messages, server and client, generated from `proto/vtepd/v1`, and the socket
//! between them.
//!
//! - [`v1`]: the generated code; the schema says what each field means. Messages serialise to JSON
//!   with the schema's names
//! - [`address`]: where the socket is
//! - [`listen`]: the daemon's end, which lets in only who may
//! - [`connect`]: the client's end

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
    tonic::include_proto!("vtepd.v1");
}

/// The schema as a `FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Writes a number as text.
pub(crate) fn as_text<S: serde::Serializer>(
    number: &u64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Who may speak with whom over an abstract socket, which has no permissions of its own: root with
/// everybody, and everybody with themselves. The daemon asks it of a client, and the client of the
/// daemon, for anybody can take a free name.
#[must_use]
const fn trusts(own_uid: u32, peer_uid: u32) -> bool {
    peer_uid == 0 || peer_uid == own_uid
}
