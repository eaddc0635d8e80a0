//! A frame as ports hand it over: its bytes, and what the kernel keeps beside them.

/// Length of an Ethernet header without tags, in bytes.
pub(crate) const ETHERNET: usize = 14;
/// Of the two addresses that it begins with.
pub(crate) const MACS: usize = 12;

/// An 802.1Q or 802.1ad tag that the kernel delivered outside the frame's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol identifier, 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: u16,
}

/// State of a frame's layer-4 checksum (`include/uapi/linux/virtio_net.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// As the bytes say; nobody has looked at it.
    #[default]
    AsIs,
    /// Found right by the sender's kernel (`VIRTIO_NET_HDR_F_DATA_VALID`).
    Valid,
    /// Only the pseudo header is summed (`VIRTIO_NET_HDR_F_NEEDS_CSUM`); offsets in bytes.
    Partial {
        /// Where summing starts, from the frame's first byte.
        start: u16,
        /// Where the result goes, from `start`.
        offset: u16,
    },
}

/// What a super-frame is to be cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size (`UDP_SEGMENT`).
    Udp,
}

/// Segmentation of a super-frame that the sender left to somebody below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gso {
    /// What it is cut into.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last.
    pub size: u16,
    /// TCP with ECN: the CWR flag belongs to the first segment only (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
}

/// Work that the sender left to somebody below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// The checksum's state.
    pub checksum: Checksum,
    /// Segmentation to do, if it is a super-frame.
    pub gso: Option<Gso>,
}

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From the destination MAC to the last byte, without FCS.
    pub data: &'a [u8],
    /// The outermost tag, where the kernel took it out of the bytes.
    pub vlan: Option<VlanTag>,
    /// What is left to be done.
    pub offload: Offload,
}
