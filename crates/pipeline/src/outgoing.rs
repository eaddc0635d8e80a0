//! Frames on their way out, whose memory is kept from batch to batch.

use core::ops::{Deref, DerefMut};

use crate::batch::{Body, Destination, Transmit};
use crate::frame::Offload;

/// Frames to be sent after which the rest of a batch waits for its next part. A frame's copies for one flood list are
/// never separated, so a part may be longer by those.
pub const PART: usize = 2048;

/// Frames to be sent, in order.
///
/// Not a vector: to clear the 256 bytes of a new head takes as long as to encapsulate a frame. So what was sent is written over.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Those to be sent, then those that were.
    frames: Vec<Transmit>,
    length: usize,
    /// Whether some frame may own its bytes.
    owning: bool,
}

impl Outgoing {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { frames: Vec::new(), length: 0, owning: false }
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.length = 0;
        if std::mem::take(&mut self.owning) {
            // No memory of theirs is kept.
            self.frames.clear();
        }
        if self.frames.capacity() > 2 * PART {
            self.shrink();
        }
    }

    /// Whether the rest of a batch should wait until this is sent.
    pub(crate) const fn is_part(&self) -> bool {
        self.length >= PART
    }

    /// Frames that there is memory for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.frames.capacity()
    }

    /// Returns the memory of an unusually long part.
    #[cold]
    fn shrink(&mut self) {
        self.frames.truncate(PART);
        self.frames.shrink_to(PART);
    }

    /// Appends a frame.
    pub fn push(&mut self, transmit: Transmit) {
        self.owning |= matches!(transmit.body, Body::Owned(_));
        self.frames.truncate(self.length);
        self.frames.push(transmit);
        self.length += 1;
    }

    /// Appends a frame with an empty head, to be written where it stays.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        to: Destination,
        slot: u16,
        body: Body,
        offload: Offload,
    ) -> Option<&mut Transmit> {
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
        let nothing = Body::Received { frame: 0, range: 0..0 };
        self.frames.push(Transmit::new(Destination::Bridge, 0, nothing, Offload::default()));
    }

    /// Takes the last frame back.
    pub(crate) fn pop(&mut self) -> Option<Transmit> {
        self.frames.truncate(self.length);
        let last = self.frames.pop()?;
        self.length -= 1;
        Some(last)
    }
}

impl Deref for Outgoing {
    type Target = [Transmit];

    fn deref(&self) -> &[Transmit] {
        self.frames.get(..self.length).unwrap_or_default()
    }
}

impl DerefMut for Outgoing {
    fn deref_mut(&mut self) -> &mut [Transmit] {
        self.frames.get_mut(..self.length).unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a Outgoing {
    type Item = &'a Transmit;
    type IntoIter = core::slice::Iter<'a, Transmit>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(out: &Outgoing) -> Vec<usize> {
        out.iter().map(Transmit::len).collect()
    }

    fn body(length: u32) -> Body {
        Body::Received { frame: 0, range: 0..length }
    }

    #[test]
    fn what_was_sent_is_written_over_and_nothing_of_it_shows() {
        let mut out = Outgoing::new();
        for round in 0..3 {
            out.clear();
            for length in 1..4 {
                let transmit = out.append(Destination::Port(1), 7, body(length), Offload::default()).unwrap();
                assert!(transmit.head().is_empty() && transmit.vtep.is_none() && transmit.segments == 1);
                assert!(transmit.extend_head(&[round; 10]));
                transmit.vtep = Some((tables::VtepIndex(1), [1, 2, 3, 4].into()));
                transmit.segments = 9;
            }
            assert_eq!(lengths(&out), [11, 12, 13]);
            assert!(out.iter().all(|transmit| transmit.head() == [round; 10]));
        }
        assert_eq!(out.pop().map(|transmit| transmit.len()), Some(13));
        out.push(Transmit::new(Destination::Bridge, 1, Body::Owned([0; 99].into()), Offload::default()));
        assert_eq!(lengths(&out), [11, 12, 99]);
        out.clear();
        assert!(out.is_empty() && out.frames.is_empty(), "bytes that frames own are freed");
        assert!(out.pop().is_none());
    }
}
