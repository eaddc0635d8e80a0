//! Received frames and frames to be sent: what the datapath (`pipeline`) and packet I/O (`ports`)
//! share.
//!
//! - [`frame`], [`batch`]: received frames, with the offloads that are still to be done
//! - [`tx_frame`], [`tx_batch`]: frames to be sent
//! - [`group`]: frames that are sent as one, and the queues by which they leave
//! - [`drop_reason`]: why a frame went no further

pub mod batch;
pub mod drop_reason;
pub mod frame;
pub mod group;
pub mod tx_batch;
pub mod tx_frame;

pub use batch::{Batch, FRAME_CAPACITY};
pub use drop_reason::DropReason;
pub use frame::{Checksum, ETHERNET, Frame, Gso, GsoKind, MACS, Offload, VlanTag};
pub use group::{Groups, GsoGroup, Queue, SHARED_HEADERS, SHARED_HEADERS_IPV6};
pub use tx_batch::{PART, TxBatch};
pub use tx_frame::{Destination, HEAD_CAPACITY, PUNT_TAG, PUNT_TPID, Payload, TxFrame, VtepId};
