//! What all ports have in common.

use core::ops::Range;
use std::io;
use std::os::fd::BorrowedFd;

use frame::{Batch, Queue, TxBatch};

/// Where frames come from and where they go.
///
/// A worker is generic over its ports, so no call goes through a table of functions.
pub trait Port {
    /// Frames that have arrived since the last call. Does not wait. A frame that could not be read
    /// is empty.
    ///
    /// # Errors
    /// When the port is gone. It then stays empty.
    fn receive(&mut self) -> io::Result<&Batch<'_>>;

    /// The batch that [`Self::receive`] returned last.
    fn batch(&self) -> &Batch<'_>;

    /// Sends groups of a finished batch, by their indices and in their order, and writes their
    /// outcomes. `batch` must be the batch that the frames were made from.
    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>);

    /// As [`Self::transmit`], for all groups of a queue.
    fn transmit_queue(&mut self, batch: &Batch<'_>, out: &mut TxBatch, queue: Queue) {
        self.transmit(batch, out, out.groups().of(queue));
    }

    /// Returns how many frames were lost since the last call because the port had no room for them.
    ///
    /// # Errors
    /// As the port's system calls.
    fn overruns(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    /// Whether lost frames are known that [`Self::overruns`] has not returned yet. Makes no system
    /// call.
    fn has_overruns(&self) -> bool {
        false
    }

    /// Whether [`Self::overruns`] has to be called periodically, also while nothing arrives.
    fn may_stick(&self) -> bool {
        false
    }

    /// Clears a pending error, such as ENETDOWN. Otherwise the port would stay ready.
    fn clear_error(&self) {}

    /// The descriptors to wait for.
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::empty()
    }
}
