//! The position in a batch of which a part has been processed.

/// Position in a batch at which the next call continues. A batch whose frames are flooded to many
/// VTEPs is sent in parts. This bounds memory and the time between two reads of the clock; see
/// [`frame::PART`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Index of the next frame in the batch.
    pub(crate) frame: u32,
    /// Index of that frame's next segment. It is above 0 only if the first segments are sent.
    pub(crate) segment: u32,
}

impl Cursor {
    /// The first segment of the frame at index `frame`.
    pub(crate) const fn at(frame: u32) -> Self {
        Self { frame, segment: 0 }
    }

    /// Number of frames, in a batch of `length`, of which no segment has been sent yet.
    #[must_use]
    pub const fn untouched(&self, length: usize) -> usize {
        length.saturating_sub(self.frame as usize + (self.segment > 0) as usize)
    }
}
