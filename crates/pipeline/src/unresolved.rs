//! Queues of frames whose next hop has no MAC address yet. As in the kernel's neighbour table
//! (`net.ipv4.neigh.*.unres_qlen`), they are bounded in length and time.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use frame::{Batch, DropReason, Payload, TxBatch, TxFrame};
use tables::{NextHop, Snapshot, VtepIndex};

use crate::lookup::{Path, uplink};

/// Largest number of frames that wait for one next hop. The kernel's default of 212,992 bytes holds
/// about as many full-sized frames.
pub const PER_NEXT_HOP: usize = 128;
/// Longest time that a frame waits. The kernel gives up after three probes one second apart.
pub const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// Interval between requests to resolve the same next hop.
pub const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

/// A next hop: interface index and gateway.
pub type Adjacency = (u32, IpAddr);

#[derive(Debug)]
struct Held {
    adjacency: Adjacency,
    vtep: VtepIndex,
    /// The outer destination address in the frame's header.
    remote: IpAddr,
    hash: u64,
    /// Identity of the next hop that the policy named; `None` if the hash selects it.
    pinned: Option<u64>,
    transmit: TxFrame,
    since: Instant,
}

/// What to do with a held frame.
enum Fate<'a> {
    Send(&'a NextHop),
    /// Keep waiting, for this next hop if there is a route at all.
    Wait(Option<&'a NextHop>),
    GiveUp(DropReason),
}

impl Held {
    fn fate<'a>(&self, snapshot: &'a Snapshot, now: Instant) -> Fate<'a> {
        let vtep = snapshot.vtep(self.vtep);
        if vtep.is_some_and(|vtep| vtep.address != self.remote) {
            // The index has been reused for another VTEP.
            return Fate::GiveUp(DropReason::NoRoute);
        }
        let hop = vtep.and_then(|vtep| {
            let pinned = self.pinned.and_then(|identity| vtep.paths.find(identity));
            pinned.or_else(|| vtep.paths.choose(self.hash))
        });
        match hop {
            Some(hop) if self.transmit.len() > hop.mtu as usize + 14 => {
                Fate::GiveUp(DropReason::TooBig)
            }
            Some(hop) if hop.destination_mac.is_some() => Fate::Send(hop),
            _ if now.duration_since(self.since) < LONGEST_WAIT => Fate::Wait(hop),
            Some(_) => Fate::GiveUp(DropReason::NextHopUnresolved),
            None => Fate::GiveUp(DropReason::NoRoute),
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: usize,
    requested: Option<Instant>,
}

/// Frames that wait for a next hop.
#[derive(Debug, Default)]
pub struct Unresolved {
    /// In the order of arrival, across all next hops. The frames of a flow therefore leave in order
    /// even if its next hop has changed.
    frames: VecDeque<Held>,
    queues: HashMap<Adjacency, Queue>,
    requests: Vec<Adjacency>,
}

impl Unresolved {
    /// Number of waiting frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Holds a finished frame that only lacks the MAC address of its next hop.
    ///
    /// # Errors
    /// [`DropReason::HoldQueueFull`] if [`PER_NEXT_HOP`] frames already wait for the next hop.
    pub(crate) fn push(
        &mut self,
        mut transmit: TxFrame,
        batch: &Batch<'_>,
        (path, vtep): (&Path<'_>, VtepIndex),
        now: Instant,
    ) -> Result<(), DropReason> {
        let hop = path.choice.hop;
        let adjacency = (hop.ifindex, hop.gateway);
        let queue = self.queues.entry(adjacency).or_default();
        queue.ask(adjacency, now, &mut self.requests);
        if queue.waiting >= PER_NEXT_HOP {
            return Err(DropReason::HoldQueueFull);
        }
        queue.waiting += 1;
        transmit.body = Payload::Owned(transmit.body(batch).into());
        let (remote, hash) = (path.vtep.address, path.choice.hash);
        let pinned = path.choice.is_pinned.then_some(hop.identity);
        self.frames.push_back(Held { adjacency, vtep, remote, hash, pinned, transmit, since: now });
        Ok(())
    }

    /// Moves frames whose next hop is resolved to `out`. Calls `give_up` for those that waited too
    /// long or can no longer be sent.
    pub(crate) fn release(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut TxBatch,
        mut give_up: impl FnMut(DropReason, u16),
    ) {
        for queue in self.queues.values_mut() {
            queue.waiting = 0;
        }
        for _ in 0..self.frames.len() {
            let Some(mut held) = self.frames.pop_front() else { break };
            match held.fate(snapshot, now) {
                Fate::Send(hop) => {
                    let addresses = hop
                        .destination_mac
                        .unwrap_or_default()
                        .0
                        .into_iter()
                        .chain(hop.source_mac.0);
                    for (to, from) in held.transmit.head_mut().iter_mut().zip(addresses) {
                        *to = from;
                    }
                    held.transmit.to = uplink(hop);
                    out.push(held.transmit);
                }
                Fate::GiveUp(reason) => give_up(reason, held.transmit.vni),
                Fate::Wait(hop) => {
                    if let Some(hop) = hop {
                        held.adjacency = (hop.ifindex, hop.gateway);
                    }
                    let queue = self.queues.entry(held.adjacency).or_default();
                    queue.waiting += 1;
                    if hop.is_some() {
                        queue.ask(held.adjacency, now, &mut self.requests);
                    }
                    self.frames.push_back(held);
                }
            }
        }
        self.queues.retain(|_, queue| queue.waiting > 0);
    }

    /// Drops all frames and calls `give_up` with the slot of each.
    pub(crate) fn clear(&mut self, mut give_up: impl FnMut(u16)) {
        for held in self.frames.drain(..) {
            give_up(held.transmit.vni);
        }
        self.queues.clear();
    }

    /// Returns and clears the next hops that the kernel should resolve.
    pub(crate) fn requests(&mut self) -> impl Iterator<Item = Adjacency> + '_ {
        self.requests.drain(..)
    }
}

impl Queue {
    fn ask(&mut self, adjacency: Adjacency, now: Instant, requests: &mut Vec<Adjacency>) {
        if self.requested.is_none_or(|requested| now.duration_since(requested) >= REQUEST_INTERVAL)
        {
            self.requested = Some(now);
            requests.push(adjacency);
        }
    }
}
