//! Encapsulation and decapsulation of batches of frames against a snapshot. The crate does no I/O,
//! is not async and reads no clock.
//!
//! - [`engine`]: the state of one worker, and its counters
//! - [`encapsulate`], [`decapsulate`]: the two directions
//! - [`bridge`], `switch`: the bridge of standalone mode, where there is no kernel bridge
//! - `lookup`: where a frame goes, and its [`policies`] for the path
//! - `run`: what a batch is processed with
//! - [`mod@explain`], [`mod@explain_received`]: process one frame and describe what happened to it
//! - `steps`: what the datapath reports for that
//! - `encap_cache`: decisions about known RoCE flows
//! - `decap_cache`: known pairs of remote VTEP and VNI
//! - `sprayed`: counts sprayed packets, and restores their order
//! - `host_delivery`: which decapsulated frames bypass the bridge
//! - `outer`, `received`: the outer headers of frames to be sent, and of received ones
//! - [`gso`], `csum_offload`, `crc32c`: segmentation and checksums that senders left to the device
//! - [`unresolved`]: frames that wait for the MAC address of their next hop
//! - [`learn`]: data-plane learning of source addresses
//! - [`grouping`]: frames of one flow that are sent as one super-frame
//! - [`counters`]: accounting for every frame; [`dropped`]: the last ones that were dropped

// The fixtures of `tests/frames` name the crate.
#[cfg(test)]
extern crate self as pipeline;

pub mod bridge;
pub mod counters;
pub mod decapsulate;
pub mod dropped;
pub mod encapsulate;
pub mod engine;
pub mod explain;
pub mod explain_received;
pub mod grouping;
pub mod gso;
pub mod learn;
pub mod policies;
pub mod unresolved;

mod crc32c;
mod csum_offload;
mod cursor;
mod decap_cache;
mod encap_cache;
mod host_delivery;
mod identification;
mod lookup;
mod outer;
mod received;
mod run;
mod sprayed;
mod steps;
mod switch;

pub use bridge::{AccessPortSettings, Bridge, BridgeLimits, Location, Station};
pub use counters::Counters;
pub use cursor::Cursor;
pub use decapsulate::SHORTEST_INNER;
pub use encap_cache::CachedFlow;
pub use engine::Pipeline;
pub use explain::{Explanation, explain, explain_switched};
pub use explain_received::explain_received;
pub use frame::{
    Batch, Checksum, Destination, DropReason, FRAME_CAPACITY, Frame, Gso, GsoKind, Offload, PART,
    Payload, TxBatch, TxFrame, VlanTag, VtepId,
};
pub use grouping::Grouper;
pub use host_delivery::PAUSE;
pub use identification::Identifications;
pub use path::Pins;
pub use policies::{Configured, Policies};
pub use unresolved::Adjacency;
