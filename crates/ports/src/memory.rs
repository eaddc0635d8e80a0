//! Ports in memory, for simulations and tests.

use core::ops::Range;
use std::collections::VecDeque;
use std::io;

use frame::{Batch, Frame, Offload, TxBatch};

use crate::port::Port;

/// Maximum number of frames in a batch.
const BATCH: usize = 64;

/// A frame that a [`MemoryPort`] has sent: a single frame or a super-frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentFrame {
    /// Bytes from the destination MAC address on.
    pub data: Vec<u8>,
    /// Offloads that are still to be done.
    pub offload: Offload,
}

impl SentFrame {
    /// The frame as another port receives it.
    #[must_use]
    pub fn frame(&self) -> Frame<'_> {
        Frame { data: &self.data, vlan: None, offload: self.offload }
    }
}

/// A port that receives prepared frames and keeps what it sends.
#[derive(Debug)]
pub struct MemoryPort<'a> {
    waiting: VecDeque<Frame<'a>>,
    batch: Batch<'a>,
    sent: Vec<SentFrame>,
}

impl<'a> MemoryPort<'a> {
    /// A port at which these frames arrive, in batches of at most 64.
    #[must_use]
    pub fn new(frames: impl IntoIterator<Item = Frame<'a>>) -> Self {
        let waiting = frames.into_iter().collect();
        Self { waiting, batch: Batch::new(BATCH), sent: Vec::new() }
    }

    /// Returns what was sent since the last call.
    pub fn take_sent(&mut self) -> Vec<SentFrame> {
        std::mem::take(&mut self.sent)
    }
}

impl Port for MemoryPort<'_> {
    fn receive(&mut self) -> io::Result<&Batch<'_>> {
        self.batch.clear();
        while !self.batch.is_full()
            && let Some(frame) = self.waiting.pop_front()
        {
            self.batch.push(frame);
        }
        Ok(&self.batch)
    }

    fn batch(&self) -> &Batch<'_> {
        &self.batch
    }

    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>) {
        for index in groups {
            let Some(group) = out.groups().list.get(index) else { return };
            self.sent.push(SentFrame { data: out.to_vec(group, batch), offload: group.offload });
            if let Some(group) = out.groups_mut().list.get_mut(index) {
                group.outcome = Ok(());
            }
        }
    }
}
