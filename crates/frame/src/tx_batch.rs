//! A batch of frames to be sent, and the groups in which they leave. It reuses its memory.

use core::ops::{Deref, DerefMut};

use crate::batch::Batch;
use crate::drop_reason::DropReason;
use crate::frame::Offload;
use crate::group::{Groups, GsoGroup, Queue};
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
    /// What leaves together. Empty before the batch is finished.
    groups: Groups,
}

impl TxBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A finished batch of frames that leave one by one.
    #[must_use]
    pub fn of(frames: impl IntoIterator<Item = TxFrame>) -> Self {
        let mut batch = Self::new();
        frames.into_iter().for_each(|frame| batch.push(frame));
        Queue::ALL.into_iter().for_each(|queue| batch.separate(queue));
        batch
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.length = 0;
        self.groups.clear();
        if std::mem::take(&mut self.owning) {
            // Frees the bytes that the frames own.
            self.frames.clear();
        }
        if self.frames.capacity() > 2 * PART {
            self.shrink();
        }
    }

    /// Makes each frame of a queue a group of its own.
    pub fn separate(&mut self, queue: Queue) {
        let start = self.groups.list.len();
        let frames = self.frames.get(..self.length).unwrap_or_default();
        let ours = frames.iter().zip(0u32..).filter(|(frame, _)| frame.to.queue() == queue);
        self.groups.list.extend(ours.map(|(frame, index)| GsoGroup::single(frame, index)));
        self.groups.set_queue(queue, start);
    }

    /// The groups in which the frames leave.
    #[inline]
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The groups, for ports to write their outcomes.
    #[inline]
    pub const fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }

    /// The frames and their groups, for grouping.
    #[inline]
    pub fn split_mut(&mut self) -> (&mut [TxFrame], &mut Groups) {
        (self.frames.get_mut(..self.length).unwrap_or_default(), &mut self.groups)
    }

    /// The first error among the outcomes of all groups, for senders without a pipeline.
    ///
    /// # Errors
    /// Why a group was not sent.
    pub fn outcome(&self) -> Result<(), DropReason> {
        self.groups.list.iter().try_for_each(|group| group.outcome)
    }

    /// The frames of a group, in order.
    #[inline]
    pub fn members<'a>(&'a self, group: &GsoGroup) -> impl Iterator<Item = &'a TxFrame> + use<'a> {
        self.groups.members(group).filter_map(|index| self.frames.get(index))
    }

    /// The frame whose headers describe the group.
    #[inline]
    #[must_use]
    pub fn first(&self, group: &GsoGroup) -> Option<&TxFrame> {
        self.frames.get(group.first as usize)
    }

    /// Calls `piece` with each run of bytes of a group, in order: two for each frame. `batch` must be the batch that the frames were made from.
    #[inline]
    pub fn for_each_piece<'a>(
        &'a self,
        group: &GsoGroup,
        batch: &Batch<'a>,
        mut piece: impl FnMut(&'a [u8]),
    ) {
        let mut members = self.members(group);
        if let Some(first) = members.next() {
            piece(first.head());
            piece(first.body(batch));
        }
        for frame in members {
            piece(frame.head().get(group.shared..).unwrap_or_default());
            piece(frame.body(batch));
        }
    }

    /// The bytes of a group in one vector, for tests and replay.
    #[must_use]
    pub fn to_vec(&self, group: &GsoGroup, batch: &Batch<'_>) -> Vec<u8> {
        let mut whole = Vec::new();
        self.for_each_piece(group, batch, |piece| whole.extend_from_slice(piece));
        whole
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
        vni: u16,
        body: Payload,
        offload: Offload,
    ) -> Option<&mut TxFrame> {
        if self.length == self.frames.len() {
            self.grow();
        }
        let transmit = self.frames.get_mut(self.length)?;
        self.length += 1;
        transmit.reset(to, vni, body, offload);
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
    use crate::tx_frame::VtepId;

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
                transmit.vtep = Some(VtepId { index: 1, assignment: 2 });
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
