//! The kernel's view over rtnetlink: messages, dump, monitor, request.

mod attribute;
mod decode;
mod message;

pub use decode::{DecodeError, Malformed, Messages, decode};
pub use message::{
    Address, BridgePort, FdbEntry, Link, LinkKind, Message, Neighbour, NextHop, NextHopKind, Operation,
    Route, RouteNextHop, RouteTarget, Vxlan,
};
