//! VNIs whose frames kernel VXLAN encapsulates, and whose queue pairs `qp-pin` places.

use std::net::IpAddr;

use path::Entropy;
use wire::Vni;

use crate::fdb::Fdb;

/// A tunnel of kernel VXLAN whose queue pairs `qp-pin` places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedTunnel {
    /// The VNI.
    pub vni: Vni,
    /// This leaf's VTEP address.
    pub local: IpAddr,
    /// UDP destination port.
    pub destination_port: u16,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// A VNI whose frames kernel VXLAN encapsulates, and whose queue pairs `qp-pin` places.
#[derive(Debug, Clone)]
pub struct KernelVni {
    /// Name of its vxlan netdev.
    pub netdev: String,
    /// Its tunnel.
    pub tunnel: PinnedTunnel,
    /// The ports of its frames that are not placed. `qp-pin` uses the same range.
    pub entropy: Entropy,
    /// Whether the kernel looks up the route for each frame.
    pub route_per_frame: bool,
    /// Remote MAC addresses and the VTEPs behind which they are.
    pub fdb: Fdb,
}
