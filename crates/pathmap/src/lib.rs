//! Path discovery between VTEPs, and placement of queue pairs on known paths. Without I/O: time,
//! packets and randomness are arguments. Times are durations since an arbitrary start.
//!
//! - [`message`]: probes and answers as bytes
//! - [`key`]: their authentication
//! - [`packet`]: the outer packet of a message
//! - [`limit`], [`replay`]: rate limits, and ids that were seen before
//! - [`prober`]: which (next hop, port) pairs of a remote VTEP are probed when, and what is known
//! - [`responder`]: answers the probes of others
//! - [`placer`]: the queue pairs and their paths
//! - [`cm`], [`pairing`]: which two queue pairs are the directions of a connection
//! - [`way`]: whether two opposite paths use the same links
//! - [`load`]: the load of links; [`plan`]: which path is next
//! - [`trace`]: paths to a VTEP that answers no probes, by expired TTLs
//! - [`bfd`]: Bidirectional Forwarding Detection, an alternative to probes for paths in use
//! - [`balance`]: maximum over mean, Jain's index, and the integer floor

pub mod balance;
pub mod bfd;
pub mod cm;
pub mod key;
pub mod limit;
pub mod load;
pub mod message;
pub mod packet;
pub mod pairing;
pub mod placer;
pub mod plan;
pub mod prober;
mod random;
pub mod replay;
pub mod responder;
pub mod trace;
pub mod way;

pub use key::Key;
pub use message::{Answer, Message, MessageError, Probe, Report};
pub use placer::{Placement, Placer};
pub use prober::{Pair, Prober, Settings};
pub use random::Random;
pub use responder::Responder;
pub use trace::Tracer;
pub use way::{Common, Way};
