//! One FPM frame is one transaction.
//!
//! zebra 8.4 replaces a route with a delete and an add in one frame; who applies them one by one
//! has a moment without the route. So the messages of a frame stay together, and a frame with
//! anything malformed in it counts as a whole.

use netlink::{Message, Messages};

use crate::frame::{Encoding, Frame};
use crate::protobuf::{self, ProtobufError};

/// What zebra wants done at once, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// The messages of one frame; none for an empty frame.
    pub messages: Vec<Message>,
}

/// A frame whose payload is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not netlink; the error's offset is relative to the payload.
    #[error("FPM payload at byte {offset} of the stream: {source}")]
    Netlink {
        /// Byte of the stream at which the payload starts.
        offset: u64,
        /// What is wrong.
        source: netlink::DecodeError,
    },
    /// Not FRR's protobuf.
    #[error("FPM payload at byte {offset} of the stream: {source}")]
    Protobuf {
        /// Byte of the stream at which the payload starts.
        offset: u64,
        /// What is wrong.
        source: ProtobufError,
    },
}

/// Reads a frame's payload.
///
/// # Errors
/// When anything in it is malformed.
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
