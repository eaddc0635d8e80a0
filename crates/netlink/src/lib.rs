//! The kernel's view over rtnetlink: messages, dump, monitor, request.

mod message;

pub use message::{
    Address, FdbEntry, Link, LinkKind, Message, Neighbour, NextHop, NextHopKind, Operation, Route,
    RouteNextHop, RouteTarget, Vxlan,
};
