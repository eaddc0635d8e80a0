//! Data-plane learning (RFC 7348 section 4.1): what a VNI with it goes by, and what a frame says.

use std::net::Ipv4Addr;
use std::time::Duration;

use wire::MacAddr;

use crate::hash::TableMap;

/// What a VNI goes by whose netdev has `learning` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learning {
    /// Index of the vxlan netdev, which reports name.
    pub ifindex: u32,
    /// When the kernel removes an entry that is not refreshed; `None`: never.
    pub ageing: Option<Duration>,
    /// Entries that no frame moves (`permanent` or `static`), and the VTEP of each.
    pub fixed: TableMap<MacAddr, Ipv4Addr>,
}

/// A frame said that this address is behind this VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Index of the vxlan netdev.
    pub ifindex: u32,
    /// The inner source address.
    pub mac: MacAddr,
    /// The outer source address.
    pub vtep: Ipv4Addr,
}
