//! Frames whose next hop has no MAC address yet: a small queue for each, as the kernel's neighbours have
//! (`net.ipv4.neigh.*.unres_qlen`), bounded in number and in time.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tables::{NextHop, Snapshot, VtepIndex};

use crate::batch::{Batch, Body, Destination, Transmit};
use crate::drop_reason::DropReason;

/// Frames that may wait for one next hop: about what the kernel's default of 212,992 bytes holds of full frames.
pub const PER_NEXT_HOP: usize = 128;
/// How long a frame waits: the kernel gives up after three probes one second apart.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Requests to resolve the same next hop are this far apart.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// A next hop: interface index and gateway.
pub type Adjacency = (u32, IpAddr);

#[derive(Debug)]
struct Held {
    vtep: VtepIndex,
    hash: u64,
    transmit: Transmit,
    since: Instant,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Held>,
    asked: Option<Instant>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Hold {
    queues: HashMap<Adjacency, Queue>,
    requests: Vec<Adjacency>,
    length: usize,
}

impl Hold {
    /// Frames that wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether none waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Keeps a finished frame that only lacks its next hop's MAC address.
    ///
    /// # Errors
    /// [`DropReason::HoldQueueFull`] when [`PER_NEXT_HOP`] frames wait for it already.
    pub fn push(
        &mut self,
        transmit: &Transmit,
        batch: &Batch,
        (hop, vtep, hash): (&NextHop, VtepIndex, u64),
        now: Instant,
    ) -> Result<(), DropReason> {
        let adjacency = (hop.ifindex, hop.gateway);
        let queue = self.queues.entry(adjacency).or_default();
        if queue.asked.is_none_or(|asked| now.duration_since(asked) >= ASK_AGAIN) {
            queue.asked = Some(now);
            self.requests.push(adjacency);
        }
        if queue.frames.len() >= PER_NEXT_HOP {
            return Err(DropReason::HoldQueueFull);
        }
        let body = Body::Owned(transmit.body(batch).into());
        let mut owned = Transmit::new(transmit.to, transmit.slot, body, transmit.offload);
        // A head fits where a head was.
        let _ = owned.extend_head(transmit.head());
        queue.frames.push_back(Held { vtep, hash, transmit: owned, since: now });
        self.length += 1;
        Ok(())
    }

    /// Moves every frame whose next hop is known by now to `out`, gives those up that waited too long.
    pub fn release(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Vec<Transmit>,
        mut give_up: impl FnMut(DropReason, u16),
    ) {
        let mut kept = 0;
        self.queues.retain(|_, queue| {
            queue.frames.retain_mut(|held| {
                let hop = snapshot.vtep(held.vtep).and_then(|vtep| vtep.paths.choose(held.hash));
                if let Some(hop) = hop
                    && let Some(mac) = hop.destination_mac
                {
                    let head = held.transmit.head_mut();
                    for (to, from) in head.iter_mut().zip(mac.0.iter().chain(&hop.source_mac.0)) {
                        *to = *from;
                    }
                    held.transmit.to = Destination::Uplink { ifindex: hop.ifindex, path: hop.path };
                    out.push(held.transmit.clone());
                    return false;
                }
                if now.duration_since(held.since) >= PATIENCE {
                    give_up(DropReason::NextHopUnresolved, held.transmit.slot);
                    return false;
                }
                true
            });
            kept += queue.frames.len();
            !queue.frames.is_empty()
        });
        self.length = kept;
    }

    /// Gives up all frames.
    pub fn clear(&mut self, reason: DropReason, mut give_up: impl FnMut(DropReason, u16)) {
        for queue in self.queues.values() {
            for held in &queue.frames {
                give_up(reason, held.transmit.slot);
            }
        }
        self.queues.clear();
        self.length = 0;
    }

    /// Next hops that the kernel should be asked to resolve.
    pub fn requests(&mut self) -> impl Iterator<Item = Adjacency> + '_ {
        self.requests.drain(..)
    }
}
