//! UDP super-frames on veth links.

use std::io;

use ports::ethtool;

/// The feature of interfaces that take UDP super-frames whole.
pub const SEGMENTATION: &str = "tx-udp-segmentation";

/// Has the kernel cut the UDP super-frames that leave by an interface of the calling thread's
/// namespace. Otherwise a veth link carries them whole. RoCE endpoints that are opened afterwards
/// send super-frames.
///
/// # Errors
/// When the kernel refuses.
pub fn cut_super_frames(interface: &str) -> io::Result<()> {
    ethtool::switch_off(interface, &[SEGMENTATION])
}
