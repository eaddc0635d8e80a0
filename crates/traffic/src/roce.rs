//! RoCE-shaped traffic: many queue pairs with correct headers and ICRC. Frames are numbered and
//! checked at the receiver.

mod connection;
mod error;
mod frame;
mod sink;
mod source;

pub use connection::{Connection, connections};
pub use error::RoceError;
pub use frame::{Addresses, FrameTemplate, PAYLOAD_MAX, PAYLOAD_MIN, Seen, see};
pub use sink::{QueuePairReport, Report, Sink};
pub use source::{Limit, Sent, Source};

pub use ::roce::SourcePort;
