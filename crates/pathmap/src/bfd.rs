//! Bidirectional Forwarding Detection (RFC 5880) inside VXLAN (RFC 8971), in asynchronous mode.
//!
//! - [`control`]: control packets as bytes
//! - [`packet`]: their packets
//! - [`session`]: the state machine and the timers of a session
//! - [`watch`]: all sessions of a VTEP
//! - [`order`]: the order in which answers take paths

pub mod control;
pub mod order;
pub mod packet;
pub mod session;
pub mod watch;

pub use control::{Control, ControlError, Diagnostic, State};
pub use session::{Role, Session, Timers};
pub use watch::Watch;
