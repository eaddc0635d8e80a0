//! A batch of frames to be sent, which reuses its memory.

use core::ops::{Deref, DerefMut};

use crate::frame::Offload;
use crate::tx_frame::{Destination, Payload, TxFrame};

/// Number of frames after which a batch is sent before the rest of its source batch is processed.
/// The copies for one flood list are never separated, so a part may exceed this by those copies.
pub const PART: usize = 2048;

/// Frames to be sent, in order.
///
/// Unlike in a vector, removed frames stay allocated and are overwritten. Zeroing the 256 bytes of
/// each new head would cost about as much as encapsulation.
#[derive(Debug, Default)]
pub struct TxBatch {
    /// The first `length` are to be sent. The others are kept for reuse.
    frames: Vec<TxFrame>,
    length: usize,
    /// Whether any frame may own its bytes.
    owning: bool,
}

impl TxBatch {
    /// An empty batch.
    #[must_use]
    pub const fn new() -> Self {
        Self { frames: Vec::new(), length: 0, owning: false }
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.length = 0;
        if std::mem::take(&mut self.owning) {
            // Frees the bytes that the frames own.
            self.frames.clear();
        }
        if self.frames.capacity() > 2 * PART {
            self.shrink();
        }
    }

    /// Whether the batch should be sent before more frames are added.
    #[inline]
    #[must_use]
    pub const fn is_part(&self) -> bool {
        self.length >= PART
    }

    /// Number of frames for which memory is allocated.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.frames.capacity()
    }

    /// Frees the excess memory of an unusually long part.
    #[cold]
    fn shrink(&mut self) {
        self.frames.truncate(PART);
        self.frames.shrink_to(PART);
    }

    /// Appends a frame.
    pub fn push(&mut self, transmit: TxFrame) {
        self.owning |= matches!(transmit.body, Payload::Owned(_));
        self.frames.truncate(self.length);
        self.frames.push(transmit);
        self.length += 1;
    }

    /// Appends a frame with an empty head and returns it for writing in place.
    #[inline(always)]
    pub fn append(
        &mut self,
        to: Destination,
        slot: u16,
        body: Payload,
        offload: Offload,
    ) -> Option<&mut TxFrame> {
        if self.length == self.frames.len() {
            self.grow();
        }
        let transmit = self.frames.get_mut(self.length)?;
        self.length += 1;
        transmit.reset(to, slot, body, offload);
        Some(transmit)
    }

    #[cold]
    fn grow(&mut self) {
        let nothing = Payload::Received { frame: 0, range: 0..0 };
        self.frames.push(TxFrame::new(Destination::Bridge, 0, nothing, Offload::default()));
    }

    /// Removes and returns the last frame.
    pub fn pop(&mut self) -> Option<TxFrame> {
        self.frames.truncate(self.length);
        let last = self.frames.pop()?;
        self.length -= 1;
        Some(last)
    }
}

impl Deref for TxBatch {
    type Target = [TxFrame];

    #[inline]
    fn deref(&self) -> &[TxFrame] {
        self.frames.get(..self.length).unwrap_or_default()
    }
}

impl DerefMut for TxBatch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [TxFrame] {
        self.frames.get_mut(..self.length).unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a TxBatch {
    type Item = &'a TxFrame;
    type IntoIter = core::slice::Iter<'a, TxFrame>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(out: &TxBatch) -> Vec<usize> {
        out.iter().map(TxFrame::len).collect()
    }

    fn body(length: u32) -> Payload {
        Payload::Received { frame: 0, range: 0..length }
    }

    #[test]
    fn what_was_sent_is_written_over_and_nothing_of_it_shows() {
        let mut out = TxBatch::new();
        for round in 0..3 {
            out.clear();
            for length in 1..4 {
                let transmit =
                    out.append(Destination::Port(1), 7, body(length), Offload::default()).unwrap();
                assert!(
                    transmit.head().is_empty() && transmit.vtep.is_none() && transmit.segments == 1
                );
                assert!(transmit.extend_head(&[round; 10]));
                transmit.vtep = Some((1, [1, 2, 3, 4].into()));
                transmit.segments = 9;
            }
            assert_eq!(lengths(&out), [11, 12, 13]);
            assert!(out.iter().all(|transmit| transmit.head() == [round; 10]));
        }
        assert_eq!(out.pop().map(|transmit| transmit.len()), Some(13));
        out.push(TxFrame::new(
            Destination::Bridge,
            1,
            Payload::Owned([0; 99].into()),
            Offload::default(),
        ));
        assert_eq!(lengths(&out), [11, 12, 99]);
        out.clear();
        assert!(out.is_empty() && out.frames.is_empty(), "bytes that frames own are freed");
        assert!(out.pop().is_none());
    }
}
