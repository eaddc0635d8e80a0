//! One FPM frame is one transaction.
//!
//! zebra 8.4 replaces a route with a delete and an add in one frame. Applied separately, the route
//! would be missing for a moment. The messages of a frame therefore stay together, and an error in
//! one of them rejects the whole frame.

use netlink::{Message, Messages};

use crate::frame::{Encoding, Frame};
use crate::protobuf::{self, ProtobufError};

/// Changes from zebra that must be applied together, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// The messages of one frame; none for an empty frame.
    pub messages: Vec<Message>,
}

/// A frame whose payload is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The payload is not valid netlink. The offset inside `source` is relative to the payload.
    #[error("FPM payload at byte {offset} of the stream: {source}")]
    Netlink {
        /// Byte offset of the payload in the stream.
        offset: u64,
        /// The error.
        source: netlink::DecodeError,
    },
    /// The payload is not valid protobuf.
    #[error("FPM payload at byte {offset} of the stream: {source}")]
    Protobuf {
        /// Byte offset of the payload in the stream.
        offset: u64,
        /// The error.
        source: ProtobufError,
    },
}

/// Decodes a frame's payload.
///
/// # Errors
/// When any part of it is malformed.
pub fn decode_frame(frame: &Frame) -> Result<Transaction, Error> {
    let offset = frame.payload_offset();
    let messages = match frame.encoding {
        Encoding::Netlink => Messages::new(&frame.payload)
            .collect::<Result<_, _>>()
            .map_err(|source| Error::Netlink { offset, source })?,
        Encoding::Protobuf => {
            protobuf::decode(&frame.payload).map_err(|source| Error::Protobuf { offset, source })?
        }
    };
    Ok(Transaction { messages })
}
