//! The kernel's view over rtnetlink: messages, dump, monitor, request.

mod attribute;
mod decode;
mod encode;
mod error;
mod fdb;
mod filter;
mod kernel;
mod message;
mod request;
mod socket;

pub use decode::{DecodeError, Malformed, Messages, decode};
pub use error::Error;
pub use fdb::{FdbChange, FdbWrite};
pub use filter::{Direction, Filter};
pub use kernel::{Event, Kernel};
pub use message::{
    Address, BridgePort, FdbEntry, Link, LinkKind, Message, Neighbour, NextHop, NextHopKind, Operation,
    Route, RouteNextHop, RouteTarget, Vxlan,
};
pub use request::{Dump, LinkChange, Requests, Veth, VethEnd};
