//! Frames to be sent.

use core::ops::Range;

use crate::batch::Batch;
use crate::frame::Offload;
use crate::group::Queue;

/// The egress of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// An uplink.
    Uplink {
        /// Interface index.
        ifindex: u32,
        /// Index of the next hop's counters.
        path: u16,
        /// Whether the route to the VTEP is a default route.
        by_default: bool,
        /// Whether frames must leave one by one (next hops with `impaired`).
        impaired: bool,
    },
    /// The kernel bridge, through the bridge punt pair.
    Bridge,
    /// A host port, bypassing the bridge, by its interface index.
    Host(u32),
    /// An access port, by its number.
    Port(u16),
}

impl Destination {
    /// The queue by which the frame leaves.
    #[inline]
    #[must_use]
    pub const fn queue(&self) -> Queue {
        match self {
            Self::Uplink { .. } => Queue::Uplinks,
            Self::Host(_) => Queue::Hosts,
            Self::Bridge => Queue::Bridge,
            Self::Port(_) => Queue::Ports,
        }
    }
}

/// A remote VTEP, for its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VtepId {
    /// Its index in the tables.
    pub index: u32,
    /// The number of the assignment of the index to this VTEP. An index can be reused.
    pub assignment: u32,
}

/// Length of the 802.1ad tag that numbers the VNI of a frame for [`Destination::Bridge`], in bytes.
pub const PUNT_TAG: usize = 4;
/// Tag protocol identifier of that tag (802.1ad).
pub const PUNT_TPID: u16 = 0x88a8;

/// Capacity of a head in bytes: the outer headers and the inner headers of one segment.
pub const HEAD_CAPACITY: usize = 276;

/// The bytes of a frame that follow its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A range of a received frame of the same batch.
    Received {
        /// Index of the received frame in the batch.
        frame: u32,
        /// Range of its bytes.
        range: Range<u32>,
    },
    /// An owned copy, for a frame that waited for its next hop.
    Owned(Box<[u8]>),
}

impl Payload {
    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Received { range, .. } => range.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes after the head.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A frame to be sent: head, then body. The field order keeps everything that most frames need,
/// outer headers included, in two cache lines.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct TxFrame {
    /// The bytes after the head.
    pub body: Payload,
    /// The egress.
    pub to: Destination,
    /// The remote VTEP that the frame is for or came from. `None` if no table has it.
    pub vtep: Option<VtepId>,
    /// Offloads that are left to the kernel. Offsets count from the first byte of the head.
    pub offload: Offload,
    /// Index of the VNI, for its counters; 0 without one. It is the slot on the bridge punt pair as
    /// well.
    pub vni: u16,
    /// Number of frames that this is on the wire; more than one for a super-frame.
    pub segments: u16,
    head_length: u32,
    /// Length of the outer headers in the head of a frame for an uplink, in bytes.
    pub outer_length: u16,
    head: [u8; HEAD_CAPACITY],
}

/// Length of the outer headers over IPv4 in bytes: Ethernet, IPv4, UDP and VXLAN.
const OUTER_IPV4: u16 = 14 + 20 + 8 + 8;

impl TxFrame {
    /// A frame with an empty head.
    #[must_use]
    pub const fn new(to: Destination, vni: u16, body: Payload, offload: Offload) -> Self {
        Self {
            to,
            vni,
            vtep: None,
            offload,
            body,
            segments: 1,
            head_length: 0,
            outer_length: OUTER_IPV4,
            head: [0; HEAD_CAPACITY],
        }
    }

    /// Resets to an empty head, and to the length of outer headers over IPv4. The old bytes are not
    /// cleared.
    #[inline(always)]
    pub fn reset(&mut self, to: Destination, vni: u16, body: Payload, offload: Offload) {
        (self.to, self.vni, self.vtep, self.segments) = (to, vni, None, 1);
        (self.body, self.offload) = (body, offload);
        (self.head_length, self.outer_length) = (0, OUTER_IPV4);
    }

    /// The head's bytes.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.head_length as usize).unwrap_or_default()
    }

    /// Appends `bytes` to the head. Returns `false` if they do not fit.
    #[inline]
    #[must_use]
    pub fn extend_head(&mut self, bytes: &[u8]) -> bool {
        let start = self.head_length as usize;
        let end = start + bytes.len();
        match self.head.get_mut(start..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.head_length = end as u32;
                true
            }
            None => false,
        }
    }

    /// Appends `length` bytes to the head and returns them for writing. `None` if they do not fit.
    #[inline(always)]
    #[must_use]
    pub fn append_head(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.head_length as usize;
        let room = self.head.get_mut(start..start + length)?;
        self.head_length = (start + length) as u32;
        Some(room)
    }

    /// Makes a head of `N` bytes and returns it for writing. It always fits.
    #[inline(always)]
    pub fn start_head<const N: usize>(&mut self) -> &mut [u8; N] {
        const { assert!(N <= HEAD_CAPACITY) };
        self.head_length = N as u32;
        let Some(head) = self.head.first_chunk_mut() else { unreachable!("checked above") };
        head
    }

    /// The bytes of the head, for patching.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.get_mut(..self.head_length as usize).unwrap_or_default()
    }

    /// The bytes of the body. `batch` must be the batch that the frame was made from.
    #[inline]
    #[must_use]
    pub fn body<'a>(&'a self, batch: &Batch<'a>) -> &'a [u8] {
        match &self.body {
            Payload::Received { frame, range } => batch
                .frame(*frame as usize)
                .and_then(|frame| frame.data.get(range.start as usize..range.end as usize))
                .unwrap_or_default(),
            Payload::Owned(bytes) => bytes,
        }
    }

    /// Length of head and body in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.head_length as usize + self.body.len()
    }

    /// Whether there is nothing to send.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Head and body in one vector, for tests, replay and frames that are held.
    #[must_use]
    pub fn to_vec(&self, batch: &Batch<'_>) -> Vec<u8> {
        let mut whole = self.head().to_vec();
        whole.extend_from_slice(self.body(batch));
        whole
    }
}
