//! A received frame: its bytes, and the metadata that the kernel delivers beside them.

/// Length of an Ethernet header without tags, in bytes.
pub const ETHERNET: usize = 14;
/// Length of the two MAC addresses at the start of an Ethernet header, in bytes.
pub const MACS: usize = 12;

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
    /// The checksum field is complete as it stands; nothing has verified it.
    #[default]
    AsIs,
    /// The kernel reports it as valid (`VIRTIO_NET_HDR_F_DATA_VALID`).
    Valid,
    /// The field holds the pseudo header's sum only (`VIRTIO_NET_HDR_F_NEEDS_CSUM`). Offsets are in
    /// bytes.
    Partial {
        /// Start of the summed bytes, from the frame's first byte.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

/// The protocol of a super-frame's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size (`UDP_SEGMENT`).
    Udp,
}

/// Segmentation that the sender of a super-frame left to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gso {
    /// The protocol of the segments.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last.
    pub size: u16,
    /// TCP with ECN: the CWR flag belongs to the first segment only (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
}

impl Gso {
    /// The most segments of a super-frame that is split: 64 kB with the MTU of 576 that every IPv4
    /// host accepts (RFC 791). A sender with a packet socket may ask for 65,535. BPF programs leave
    /// such frames to the kernel.
    pub const MOST_SEGMENTS: usize = 128;

    /// Whether a super-frame with so many bytes of payload has at most [`Self::MOST_SEGMENTS`].
    #[must_use]
    pub const fn has_few_segments(&self, payload: usize) -> bool {
        payload <= self.size as usize * Self::MOST_SEGMENTS
    }
}

/// Checksum and segmentation that the sender left to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// State of the checksum.
    pub checksum: Checksum,
    /// Segmentation to do; `None` if it is not a super-frame.
    pub gso: Option<Gso>,
}

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Bytes from the destination MAC address on, without FCS.
    pub data: &'a [u8],
    /// The outermost tag, if the kernel removed it from the bytes.
    pub vlan: Option<VlanTag>,
    /// Offloads that are still to be done.
    pub offload: Offload,
}
