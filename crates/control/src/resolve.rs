//! From the address of a remote VTEP to its next hops.

pub mod resolver;
pub(crate) mod underlay;
