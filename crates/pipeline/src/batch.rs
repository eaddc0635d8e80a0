//! Frames on their way in and out of the pipeline.

use core::ops::Range;
use std::net::Ipv4Addr;

use tables::{NextHop, VtepIndex};

use crate::frame::{Frame, Offload};

/// Bytes that one received frame may have: an IPv4 packet of 65,535 bytes behind an Ethernet header
/// and two tags.
pub const FRAME_CAPACITY: usize = 65_535 + 14 + 8;

/// Received frames, whose bytes stay where the port has them.
#[derive(Debug)]
pub struct Batch<'a> {
    frames: Vec<Frame<'a>>,
    capacity: usize,
}

impl<'a> Batch<'a> {
    /// Room for `capacity` frames.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity), capacity }
    }

    /// A batch that stays empty.
    #[must_use]
    pub const fn none() -> Self {
        Self { frames: Vec::new(), capacity: 0 }
    }

    /// Number of frames held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether there is no room for another frame.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.frames.len() >= self.capacity
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// The frame at `index`.
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Frame<'a>> {
        self.frames.get(index).copied()
    }

    /// All frames.
    pub fn frames(&self) -> impl Iterator<Item = &Frame<'a>> {
        self.frames.iter()
    }

    /// The frames from this index on.
    pub(crate) fn frames_from(&self, index: u32) -> &[Frame<'a>] {
        self.frames.get(index as usize..).unwrap_or_default()
    }

    /// Takes another frame. Returns whether there was room for it.
    pub fn push(&mut self, frame: Frame<'a>) -> bool {
        let room = !self.is_full();
        if room {
            self.frames.push(frame);
        }
        room
    }
}

/// Where the work on a batch goes on. One that is flooded to many VTEPs is sent in parts, so that
/// memory and the time between two looks at the clock stay bounded: see [`crate::PART`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Index of the next frame in the batch.
    pub(crate) frame: u32,
    /// The next segment of that frame: more than 0 only where its first segments are sent.
    pub(crate) segment: u32,
}

impl Cursor {
    /// The first segment of the frame at this index.
    pub(crate) const fn at(frame: u32) -> Self {
        Self { frame, segment: 0 }
    }

    /// Frames of a batch of this length of which nothing has been sent yet.
    #[must_use]
    pub const fn untouched(&self, length: usize) -> usize {
        length.saturating_sub(self.frame as usize + (self.segment > 0) as usize)
    }
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// An uplink.
    Uplink {
        /// Its interface index.
        ifindex: u32,
        /// Index of the next hop's counters.
        path: u16,
        /// Whether a default route leads there.
        by_default: bool,
        /// Whether frames leave one by one ([`NextHop::impaired`]).
        impaired: bool,
    },
    /// The bridge, through its punt pair.
    Bridge,
    /// A host's port of the bridge, past the bridge, by its interface index.
    Host(u32),
    /// The same, by way of the bridge's punt pair, in a bundle ([`crate::bundle`]).
    BundledHost(u32),
    /// An access port, by its number.
    Port(u16),
}

impl Destination {
    /// Whether it is the interface that a socket is bound to, not one that the destination names.
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        matches!(self, Self::Bridge | Self::BundledHost(_) | Self::Port(_))
    }

    /// The uplink of this next hop.
    pub(crate) const fn uplink(hop: &NextHop) -> Self {
        Self::Uplink {
            ifindex: hop.ifindex,
            path: hop.path,
            by_default: hop.by_default,
            impaired: hop.impaired,
        }
    }
}

/// Longest head: outer headers, then the inner headers of one segment.
pub const HEAD_CAPACITY: usize = 256;

/// Where the bytes behind the head are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A range of a received frame of the same batch.
    Received {
        /// Index in the batch.
        frame: u32,
        /// Bytes of it.
        range: Range<u32>,
    },
    /// Bytes of their own: a frame that waited for its next hop.
    Owned(Box<[u8]>),
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Received { range, .. } => range.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    /// Whether there is nothing behind the head.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One frame to be sent: head, then body. In this order all of it that most frames need, outer
/// headers included, is two cache lines.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct TxFrame {
    /// The rest of the frame.
    pub body: Payload,
    /// Where to.
    pub to: Destination,
    /// The VTEP that it is for or came from, if a table names it; for its counters.
    pub vtep: Option<(VtepIndex, Ipv4Addr)>,
    /// What is left to whoever is below; offsets count from the head's first byte.
    pub offload: Offload,
    /// Slot of the VNI it belongs to, for its counters.
    pub slot: u16,
    /// Frames that this is on the wire: more than one for a super-frame.
    pub segments: u16,
    head_length: u32,
    head: [u8; HEAD_CAPACITY],
}

impl TxFrame {
    /// A frame with an empty head.
    #[must_use]
    pub const fn new(to: Destination, slot: u16, body: Payload, offload: Offload) -> Self {
        Self {
            to,
            slot,
            vtep: None,
            offload,
            body,
            segments: 1,
            head_length: 0,
            head: [0; HEAD_CAPACITY],
        }
    }

    /// Becomes a frame with an empty head; the bytes of the one before stay behind it.
    #[inline(always)]
    pub(crate) fn reset(&mut self, to: Destination, slot: u16, body: Payload, offload: Offload) {
        (self.to, self.slot, self.vtep, self.segments) = (to, slot, None, 1);
        (self.body, self.offload, self.head_length) = (body, offload, 0);
    }

    /// The head's bytes.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.head_length as usize).unwrap_or_default()
    }

    /// Appends to the head.
    ///
    /// Returns whether there was room for it.
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

    /// Appends so many bytes to the head, to be written now; `None` if there is no room for them.
    #[inline]
    #[must_use]
    pub fn append_head<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        let start = self.head_length as usize;
        let room = self.head.get_mut(start..)?.first_chunk_mut()?;
        self.head_length = (start + N) as u32;
        Some(room)
    }

    /// The head's bytes, to be patched.
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.get_mut(..self.head_length as usize).unwrap_or_default()
    }

    /// The body's bytes.
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
    #[must_use]
    pub fn len(&self) -> usize {
        self.head_length as usize + self.body.len()
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole frame in one piece: for tests, replay and frames that are held.
    #[must_use]
    pub fn to_vec(&self, batch: &Batch<'_>) -> Vec<u8> {
        let mut whole = self.head().to_vec();
        whole.extend_from_slice(self.body(batch));
        whole
    }
}
