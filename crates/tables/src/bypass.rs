//! The bridge bypass: frames between host ports and workers that do not pass the kernel bridge.

use std::time::Duration;

use wire::MacAddr;

use crate::snapshot::{VniIndex, VtepIndex};

/// A host port whose frames may use the bridge bypass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BypassPort {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name, for logs.
    pub name: String,
    /// Interface index of its bridge's vxlan netdev.
    pub netdev: u32,
    /// The index of its bridge's VNI.
    pub index: VniIndex,
    /// Longest Ethernet frame that both the vxlan netdev and the underlay forward, in bytes, with
    /// header.
    pub frame_limit: u32,
    /// Whether frames from its hosts may use the bypass. If not, its program only watches source
    /// addresses: a host that sends here may have moved, so the other ports must not look for it
    /// behind a VTEP.
    pub sends: bool,
    /// Whether frames for its hosts may use the bypass, if `sends` is set. Not if the bridge learns
    /// from the vxlan netdev, nor if the port's queueing discipline shapes or impairs packets.
    pub delivers: bool,
    /// The port's MTU in bytes. Longer packets for its hosts pass the bridge, which may fragment
    /// them.
    pub mtu: u32,
    /// How often one frame of each active host passes the bridge. Well below the bridge's ageing
    /// time.
    pub refresh: Duration,
}

/// A bridge port to which workers may send frames without the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenPort {
    /// Interface index.
    pub ifindex: u32,
    /// The port's MTU in bytes. Longer packets pass the bridge.
    pub mtu: u32,
}

/// The location of a MAC address, for the bridge bypass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MacLocation {
    /// The bridge has it on this port.
    Port {
        /// Interface index of the port.
        port: u32,
        /// The index of the VNI of its bridge.
        index: VniIndex,
        /// The MAC address.
        mac: MacAddr,
    },
    /// The bridge has it behind the vxlan netdev, and the FDB of the VNI behind a VTEP.
    Remote {
        /// The VNI's index.
        index: VniIndex,
        /// The VTEP.
        vtep: VtepIndex,
        /// The MAC address.
        mac: MacAddr,
    },
}

/// A MAC address has appeared at a location or has left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacLocationChange {
    /// The location.
    pub location: MacLocation,
    /// Whether it is there now.
    pub there: bool,
}
