//! Batches of received frames.

use crate::frame::Frame;

/// Largest size of a received frame in bytes: an IPv4 packet of 65,535 bytes, an Ethernet header
/// and two tags.
pub const FRAME_CAPACITY: usize = 65_535 + 14 + 8;

/// A batch of received frames. Their bytes stay in the buffers of the port.
#[derive(Debug)]
pub struct Batch<'a> {
    frames: Vec<Frame<'a>>,
    capacity: usize,
}

impl<'a> Batch<'a> {
    /// An empty batch with space for `capacity` frames.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity), capacity }
    }

    /// A batch with a capacity of zero.
    #[must_use]
    pub const fn none() -> Self {
        Self { frames: Vec::new(), capacity: 0 }
    }

    /// Number of frames held.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame is held.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the batch has reached its capacity.
    #[inline]
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.frames.len() >= self.capacity
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// The frame at `index`.
    #[inline]
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Frame<'a>> {
        self.frames.get(index).copied()
    }

    /// All frames.
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = &Frame<'a>> {
        self.frames.iter()
    }

    /// The frames from `index` on.
    #[inline]
    #[must_use]
    pub fn frames_from(&self, index: u32) -> &[Frame<'a>] {
        self.frames.get(index as usize..).unwrap_or_default()
    }

    /// Adds a frame. Returns `false` if the batch is full.
    #[inline]
    pub fn push(&mut self, frame: Frame<'a>) -> bool {
        let room = !self.is_full();
        if room {
            self.frames.push(frame);
        }
        room
    }
}
