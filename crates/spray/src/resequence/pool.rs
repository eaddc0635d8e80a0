//! The packets that wait, of all queue pairs.

use super::Counts;
use crate::signal::Nanos;

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Waiting<C> {
    pub(super) copy: C,
    pub(super) since: Nanos,
    pub(super) uses: Option<u32>,
}

/// A fixed number of packets.
#[derive(Debug)]
pub(super) struct Pool<C> {
    packets: Box<[Option<Waiting<C>>]>,
    free: Vec<u16>,
    pub(super) counts: Counts,
}

impl<C> Pool<C> {
    pub(super) fn new(packets: u16) -> Self {
        Self {
            packets: (0..packets).map(|_| None).collect(),
            free: (0..packets).collect(),
            counts: Counts::default(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn held(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    /// Keeps a packet. `None` if the pool is full.
    pub(super) fn put(&mut self, waiting: Waiting<C>) -> Option<u16> {
        let index = self.free.pop()?;
        *self.packets.get_mut(usize::from(index))? = Some(waiting);
        self.counts.waited += 1;
        Some(index)
    }

    /// Takes a packet out.
    pub(super) fn take(&mut self, now: Nanos, index: u16) -> Option<Waiting<C>> {
        let waiting = self.packets.get_mut(usize::from(index))?.take()?;
        self.free.push(index);
        self.counts.longest_wait = self.counts.longest_wait.max(now.saturating_sub(waiting.since));
        Some(waiting)
    }

    /// Since when a packet waits.
    pub(super) fn since(&self, index: u16) -> Option<Nanos> {
        Some(self.packets.get(usize::from(index))?.as_ref()?.since)
    }
}
