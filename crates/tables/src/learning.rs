//! Data-plane learning (RFC 7348 section 4.1).

use std::net::IpAddr;
use std::time::Duration;

use wire::MacAddr;

use crate::hash::TableMap;

/// What a worker needs to learn MAC addresses of a VNI whose netdev has `learning` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learning {
    /// Interface index of the vxlan netdev, which identifies it in reports.
    pub ifindex: u32,
    /// The ageing time of the netdev. The kernel removes an entry that is not refreshed within it.
    /// `None`: entries do not age.
    pub ageing: Option<Duration>,
    /// Entries that no frame moves (`permanent` or `static`), each with its VTEP.
    pub fixed: TableMap<MacAddr, IpAddr>,
}

impl Learning {
    /// Reports of a known address per ageing time. The kernel may miss all but one of them.
    pub const REFRESHES: u32 = 4;
}

/// A worker's report: a received frame shows that this MAC address is behind this VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Interface index of the vxlan netdev.
    pub ifindex: u32,
    /// The inner source address.
    pub mac: MacAddr,
    /// The outer source address.
    pub vtep: IpAddr,
}
