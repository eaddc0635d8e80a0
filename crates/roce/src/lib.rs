//! RoCEv2 endpoints without I/O: no sockets, no clock, no threads.
//!
//! Frames and the time go in, frames and completions come out:
//! - [`Endpoint`]: the queue pairs of a host; [`Connection`]: the two ends of one of them
//! - [`WorkRequest`], [`Completion`]: writes, sends and reads
//! - [`Frames`]: frames to send, one by one or in a [`Group`] for UDP segmentation
//! - [`Settings`]: MTU, window, timers, rate, order
//! - [`Congestion`]: congestion control, by notifications ([`dcqcn`]) or acknowledgements ([`nscc`])
//! - [`Memory`]: what requests read and write
//! - [`Counters`], [`Histogram`]: what a NIC counts, and completion times
//! - [`SourcePort`]: the UDP source ports of NICs
//!
//! A connection is reliable. Lost, doubled, delayed and reordered frames are repaired by going back
//! to the first packet that is missing (InfiniBand architecture volume 1, section 9.7). With
//! [`Order::Place`], packets that arrive early are kept, and only those that are missing are sent
//! again.

mod congestion;
mod context;
mod counters;
mod early;
mod endpoint;
mod frames;
mod histogram;
mod memory;
mod outstanding;
mod packet;
mod queue_pair;
mod request;
mod requester;
mod responder;
mod settings;
mod source_port;
mod work;

pub mod dcqcn;
pub mod nscc;

pub use congestion::{Acknowledged, Congestion};
pub use counters::Counters;
pub use endpoint::{Endpoint, EndpointError};
pub use frames::{Frames, Group};
pub use histogram::Histogram;
pub use memory::{Memory, Pattern, Region};
pub use packet::{Address, OVERHEAD};
pub use queue_pair::{Connection, End};
pub use settings::{Order, SettingError, Settings, timeout};
pub use source_port::SourcePort;
pub use work::{Completion, Handle, LENGTH_MAX, Operation, Place, Receive, Status, WorkRequest};
