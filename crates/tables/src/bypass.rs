//! The bypass: frames that go straight from hosts' bridge ports to the worker, and from there to
//! hosts.

use std::time::Duration;

use wire::MacAddr;

use crate::snapshot::Slot;

/// A port of a bridge in which hosts' frames may skip it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BypassPort {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name, for logs.
    pub name: String,
    /// Interface index of its bridge's vxlan netdev.
    pub netdev: u32,
    /// The slot of its bridge's VNI.
    pub slot: Slot,
    /// Longest Ethernet frame, in bytes with header, that both the vxlan netdev and the underlay
    /// let through.
    pub frame_limit: u32,
    /// Whether frames of its hosts may skip the bridge. If not, its hook only listens: who speaks
    /// there has come, for all that is known, and must not be sought behind a VTEP by the other
    /// ports any more.
    pub sends: bool,
    /// Whether frames for its hosts may skip the bridge, too, if it sends: not where the bridge
    /// learns from what the VNI's frames bring, nor where a queueing discipline of the port does
    /// something to single packets.
    pub delivers: bool,
    /// The port's MTU in bytes. Longer packets for its hosts go by the bridge, which may fragment
    /// them.
    pub mtu: u32,
    /// How often the bridge has to see a frame of each host that is talking: well within its ageing
    /// time.
    pub refresh: Duration,
}

/// A bridge port to which frames may be sent past the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenPort {
    /// Interface index.
    pub ifindex: u32,
    /// The port's MTU in bytes. Longer packets go by the bridge.
    pub mtu: u32,
}

/// Where a MAC address is that the bypass goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The bridge has it on this port.
    Port {
        /// Interface index of the port.
        port: u32,
        /// The MAC address.
        mac: MacAddr,
    },
    /// The bridge has it behind the vxlan netdev, and the VNI's FDB behind a VTEP.
    Remote {
        /// The VNI's slot.
        slot: Slot,
        /// The MAC address.
        mac: MacAddr,
    },
}

/// An address came to a place, or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceChange {
    /// The place.
    pub place: Place,
    /// Whether it is there now.
    pub there: bool,
}
