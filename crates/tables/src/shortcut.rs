//! The shortcut: hosts' frames that go straight from their bridge port to the worker.

use std::time::Duration;

use wire::MacAddr;

use crate::snapshot::Slot;

/// A bridge port whose hosts' frames may skip the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortcutPort {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name, for logs.
    pub name: String,
    /// Interface index of its bridge's vxlan netdev.
    pub netdev: u32,
    /// The slot of its bridge's VNI.
    pub slot: Slot,
    /// Longest Ethernet frame, in bytes with header, that both the vxlan netdev and the underlay let through.
    pub frame_limit: u32,
    /// How often the bridge has to see a frame of each host that is talking: well within its ageing time.
    pub refresh: Duration,
}

/// Where a MAC address is that the shortcut goes by.
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
