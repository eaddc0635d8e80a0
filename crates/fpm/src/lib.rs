//! zebra's FPM stream: framing, netlink and protobuf payloads, and the server.

mod frame;
mod generation;
mod peer;
mod protobuf;
mod replay;
mod server;
mod transaction;

pub use frame::{Encoding, Frame, FrameError, Framer};
pub use generation::{Generation, ZebraTraits};
pub use peer::Users;
pub use protobuf::ProtobufError;
pub use replay::{ReplayError, Replayed, replay};
pub use server::{BindError, DEFAULT_ADDRESS, Disconnect, Event, Server};
pub use transaction::{Error, Transaction, decode_frame};
