//! Frames on their way in and out of the pipeline, in memory that is allocated once.

use core::ops::Range;
use std::net::Ipv4Addr;

use tables::{NextHop, VtepIndex};

use crate::frame::{Checksum, Frame, Offload, VlanTag};

/// Bytes that one received frame may have: an IPv4 packet of 65,535 bytes behind an Ethernet header and two tags.
pub const FRAME_CAPACITY: usize = 65_535 + 14 + 8;

/// Bytes of both addresses, and of a tag.
const MACS: usize = 12;
const TAG: usize = 4;

/// What is known of one received frame beside its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Received {
    /// Length in bytes, at most the room for one frame.
    pub length: usize,
    /// See [`Frame::vlan`].
    pub vlan: Option<VlanTag>,
    /// See [`Frame::offload`].
    pub offload: Offload,
}

/// Received frames.
#[derive(Debug)]
pub struct Batch {
    memory: Box<[u8]>,
    received: Vec<Received>,
    capacity: usize,
    /// Bytes that one frame may have.
    room: usize,
    /// Distance between two frames in bytes: their room, rounded up to whole cache lines.
    stride: usize,
}

impl Batch {
    /// Room for `capacity` frames.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_room(capacity, FRAME_CAPACITY)
    }

    /// Room for `capacity` frames of `room` bytes at most.
    #[must_use]
    pub fn with_room(capacity: usize, room: usize) -> Self {
        let room = room.clamp(1, FRAME_CAPACITY);
        let stride = room.next_multiple_of(64);
        Self {
            memory: vec![0; capacity * stride].into_boxed_slice(),
            received: Vec::with_capacity(capacity),
            capacity,
            room,
            stride,
        }
    }

    /// Number of frames held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.received.len()
    }

    /// Whether no frame is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.received.clear();
    }

    /// The frame at `index`.
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Frame<'_>> {
        let about = self.received.get(index)?;
        let start = index * self.stride;
        let data = self.memory.get(start..start + about.length)?;
        Some(Frame { data, vlan: about.vlan, offload: about.offload })
    }

    /// All frames.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.len()).filter_map(|index| self.frame(index))
    }

    /// Memory for the whole batch, one frame's worth each: a port writes here, then calls [`Self::push`] in order.
    pub fn room(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let room = self.room;
        self.memory.chunks_exact_mut(self.stride).filter_map(move |chunk| chunk.get_mut(..room))
    }

    /// Takes the next frame, whose bytes stand in [`Self::room`] already. Ignored once the batch is full.
    pub fn push(&mut self, received: Received) {
        if self.received.len() < self.capacity {
            let length = received.length.min(self.room);
            self.received.push(Received { length, ..received });
        }
    }

    /// Puts the tags that the kernel took out of the frames back into them. A frame that has no room for its tag is left empty.
    pub fn insert_tags(&mut self) {
        for (about, chunk) in self.received.iter_mut().zip(self.memory.chunks_exact_mut(self.stride)) {
            let Some(tag) = about.vlan.take() else { continue };
            let length = about.length + TAG;
            if about.length < MACS || length > self.room {
                about.length = 0;
                continue;
            }
            chunk.copy_within(MACS..about.length, MACS + TAG);
            let bytes = tag.tpid.to_be_bytes().into_iter().chain(tag.tci.to_be_bytes());
            chunk.iter_mut().skip(MACS).zip(bytes).for_each(|(place, byte)| *place = byte);
            about.length = length;
            if let Checksum::Partial { start, .. } = &mut about.offload.checksum {
                *start = start.saturating_add(TAG as u16);
            }
        }
    }

    /// Copies a frame in: for tests, replay and in-memory ports.
    ///
    /// Returns whether there was room for it.
    pub fn copy(&mut self, frame: Frame<'_>) -> bool {
        let index = self.received.len();
        if index >= self.capacity || frame.data.len() > self.room {
            return false;
        }
        let Some(room) = self.memory.get_mut(index * self.stride..index * self.stride + frame.data.len())
        else {
            return false;
        };
        room.copy_from_slice(frame.data);
        self.push(Received { length: frame.data.len(), vlan: frame.vlan, offload: frame.offload });
        true
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
    },
    /// The bridge, through its splice.
    Bridge,
    /// An access port, by its number.
    Port(u16),
}

impl Destination {
    /// The uplink of this next hop.
    pub(crate) const fn uplink(hop: &NextHop) -> Self {
        Self::Uplink { ifindex: hop.ifindex, path: hop.path, by_default: hop.by_default }
    }
}

/// Longest head: outer headers, then the inner headers of one segment.
pub const HEAD_CAPACITY: usize = 256;

/// Where the bytes behind the head are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
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

impl Body {
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

/// One frame to be sent: head, then body.
#[derive(Debug, Clone)]
pub struct Transmit {
    /// Where to.
    pub to: Destination,
    /// Slot of the VNI it belongs to, for its counters.
    pub slot: u16,
    /// The VTEP that it is for or came from, if a table names it; for its counters.
    pub vtep: Option<(VtepIndex, Ipv4Addr)>,
    /// What is left to whoever is below; offsets count from the head's first byte.
    pub offload: Offload,
    /// The rest of the frame.
    pub body: Body,
    /// Frames that this is on the wire: more than one for a super-frame.
    pub segments: u16,
    head_length: u16,
    head: [u8; HEAD_CAPACITY],
}

impl Transmit {
    /// A frame with an empty head.
    #[must_use]
    pub const fn new(to: Destination, slot: u16, body: Body, offload: Offload) -> Self {
        Self { to, slot, vtep: None, offload, body, segments: 1, head_length: 0, head: [0; HEAD_CAPACITY] }
    }

    /// The head's bytes.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_length)).unwrap_or_default()
    }

    /// Appends to the head.
    ///
    /// Returns whether there was room for it.
    #[inline]
    #[must_use]
    pub fn extend_head(&mut self, bytes: &[u8]) -> bool {
        let start = usize::from(self.head_length);
        let end = start + bytes.len();
        match self.head.get_mut(start..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.head_length = end as u16;
                true
            }
            None => false,
        }
    }

    /// Appends so many bytes to the head, to be written now; `None` if there is no room for them.
    #[inline]
    #[must_use]
    pub fn append_head<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        let start = usize::from(self.head_length);
        let room = self.head.get_mut(start..)?.first_chunk_mut()?;
        self.head_length = (start + N) as u16;
        Some(room)
    }

    /// The head's bytes, to be patched.
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.get_mut(..usize::from(self.head_length)).unwrap_or_default()
    }

    /// The body's bytes.
    #[must_use]
    pub fn body<'a>(&'a self, batch: &'a Batch) -> &'a [u8] {
        match &self.body {
            Body::Received { frame, range } => batch
                .frame(*frame as usize)
                .and_then(|frame| frame.data.get(range.start as usize..range.end as usize))
                .unwrap_or_default(),
            Body::Owned(bytes) => bytes,
        }
    }

    /// Length of head and body in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.head_length) + self.body.len()
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole frame in one piece: for tests, replay and frames that are held.
    #[must_use]
    pub fn to_vec(&self, batch: &Batch) -> Vec<u8> {
        let mut whole = self.head().to_vec();
        whole.extend_from_slice(self.body(batch));
        whole
    }
}
