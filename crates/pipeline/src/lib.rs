//! Encapsulate and decapsulate batches of frames against a snapshot: no I/O, no async, no clock.
//!
//! - [`frame`], [`batch`], [`tx_batch`]: what comes in and what goes out
//! - [`engine`]: one worker's state, and the accounts it keeps
//! - [`encapsulate`], [`decapsulate`]: the two directions
//! - [`bridge`]: a bridge of our own, where there is none of the kernel's
//! - `decide`: where a frame goes, asked by [`encapsulate`] and by [`mod@explain`]
//! - [`mod@explain`], [`mod@explain_received`]: what would become of a frame, either way
//! - `flows`: what was decided about RoCE flows, remembered
//! - `senders`: who sends to which VNI, remembered
//! - `hosts`: which frames skip the bridge on their way to a host
//! - `outer`: the outer headers' bytes
//! - [`gso`], `partial`, `crc32c`: what senders left to somebody below
//! - [`unresolved`]: frames whose next hop is not resolved yet
//! - [`learn`]: which VTEP a source address came from, where the data plane is to learn it
//! - [`aggregate`], `coalesce`: frames of one flow that leave as one
//! - [`drop_reason`], [`counters`]: what became of every frame

pub mod aggregate;
pub mod batch;
pub mod bridge;
pub mod bundle;
pub mod counters;
pub mod decapsulate;
pub mod drop_reason;
pub mod encapsulate;
pub mod engine;
pub mod explain;
pub mod explain_received;
pub mod frame;
pub mod gso;
pub mod learn;
pub mod tx_batch;
pub mod unresolved;

mod crc32c;
mod csum_offload;
mod decap_cache;
mod encap_cache;
mod host_delivery;
mod lookup;
mod outer;
mod tcp_gro;

pub use batch::{Batch, Cursor, Destination, FRAME_CAPACITY, Payload, TxFrame};
pub use bridge::{AccessTerms, Bridge, BridgeLimits, Place, Station};
pub use counters::Counters;
pub use drop_reason::DropReason;
pub use engine::Pipeline;
pub use explain::{Explanation, explain};
pub use explain_received::explain_received;
pub use frame::{Checksum, Frame, Gso, GsoKind, Offload, VlanTag};
pub use host_delivery::PAUSE;
pub use tx_batch::{PART, TxBatch};
pub use unresolved::Adjacency;
