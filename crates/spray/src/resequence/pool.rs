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

/// Hosts whose packets are counted. Others have the number of one of these by chance, and share its room.
const HOSTS: usize = u8::MAX as usize + 1;

/// A fixed number of packets.
#[derive(Debug)]
pub(super) struct Pool<C> {
    packets: Box<[Option<Waiting<C>>]>,
    free: Vec<u16>,
    /// The packets of each host.
    of_hosts: Box<[u16; HOSTS]>,
    pub(super) counts: Counts,
}

impl<C> Pool<C> {
    pub(super) fn new(packets: u16) -> Self {
        Self {
            packets: (0..packets).map(|_| None).collect(),
            free: (0..packets).collect(),
            of_hosts: Box::new([0; HOSTS]),
            counts: Counts::default(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether a packet of a host may wait. A host has at most as much room as it leaves free, as in the
    /// shared buffer of a switch (dynamic thresholds; A. K. Choudhury and E. L. Hahne, 1998). So one host
    /// has at most half, and another one always has room.
    pub(super) fn has_room(&self, host: Option<u8>) -> bool {
        let of = host.map_or(0, |host| self.of_hosts.get(usize::from(host)).copied().unwrap_or(0));
        usize::from(of) < self.free.len()
    }

    pub(super) fn held(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    /// Keeps a packet of a host. `None` if the pool is full.
    pub(super) fn put(&mut self, host: Option<u8>, waiting: Waiting<C>) -> Option<u16> {
        let index = self.free.pop()?;
        if let Some(of) = host.and_then(|host| self.of_hosts.get_mut(usize::from(host))) {
            *of += 1;
        }
        *self.packets.get_mut(usize::from(index))? = Some(waiting);
        self.counts.waited += 1;
        Some(index)
    }

    /// Takes a packet of a host out.
    pub(super) fn take(&mut self, now: Nanos, host: Option<u8>, index: u16) -> Option<Waiting<C>> {
        let waiting = self.packets.get_mut(usize::from(index))?.take()?;
        if let Some(of) = host.and_then(|host| self.of_hosts.get_mut(usize::from(host))) {
            *of = of.saturating_sub(1);
        }
        self.free.push(index);
        self.counts.longest_wait = self.counts.longest_wait.max(now.saturating_sub(waiting.since));
        Some(waiting)
    }
}
