//! What a batch is processed with, and where the results go.

use std::time::Instant;

use frame::{Batch, TxBatch};
use tables::Snapshot;

use crate::steps::Step;

/// A batch that is being processed, and what it is processed with.
#[derive(Debug)]
pub(crate) struct Run<'a, 'f, P, O> {
    pub(crate) batch: &'a Batch<'f>,
    pub(crate) snapshot: &'a Snapshot,
    /// The time at which the batch was received.
    pub(crate) now: Instant,
    pub(crate) policies: &'a mut P,
    pub(crate) out: &'a mut O,
}

/// Receives the frames to be sent. [`crate::explain()`] also wants to know how they came about.
pub(crate) trait Output {
    /// The frames to be sent.
    fn frames(&mut self) -> &mut TxBatch;

    /// Records a step if somebody wants to know.
    fn record(&mut self, step: impl FnOnce() -> Step);
}

impl Output for TxBatch {
    #[inline(always)]
    fn frames(&mut self) -> &mut TxBatch {
        self
    }

    #[inline(always)]
    fn record(&mut self, _: impl FnOnce() -> Step) {}
}
