//! Restores the order of a reliable connection's requests behind paths of different delay.
//!
//! The order is that of the inner packet sequence numbers (PSNs), modulo 2²⁴ (InfiniBand
//! architecture 9.7.1). So spraying needs no byte on the wire. A packet that is next is delivered at
//! once, and only packets that must wait are copied. They wait in a pool of a fixed size, for a
//! limited time. Beyond the limits, packets are delivered in the order that is known, and counted.
//! The receiver then sees a gap and asks for the packets again: correctness does not depend on this.
//!
//! | PSN | what happens |
//! |---|---|
//! | the next one | delivered, and all that follow it |
//! | the first one, or before the next one after a silence or the fourth in a row (sent again) | waits for others before it; the sequence begins with the lowest |
//! | before the next one, alone | delivered: it was overtaken by its repetition |
//! | ahead, and not there yet | waits |
//! | ahead, and waits already | dropped |
//! | further ahead than [`WINDOW`], or the pool or the share of its host is full | all are delivered |
//! | a packet ahead waits longer than the timer | all are delivered |
//!
//! After a gap that did not close, packets that are ahead pass without waiting: the receiver drops
//! them until it has the missing one. The first packet that is sent again restores the order from
//! the gap on, because a receiver of go-back-N waits for exactly that. Packets then wait longer than the
//! timer: all from the gap on are sent again, and some paths still have queues. If the gap does not close
//! for [`Limits::recovery`], the order goes on behind it.
//!
//! Packets that are sent again take different paths, too, and so do the first ones of a connection. So
//! the one that comes first need not be the first one.
//!
//! A read request uses as many PSNs as its answer has packets. If the caller does not know how many,
//! the packet behind it is delivered as it comes.

mod pool;
mod queue_pair;

use core::hash::{BuildHasher, Hash};

use pool::Pool;
use queue_pair::{QueuePair, Step, Times};

use crate::signal::Nanos;

/// How far ahead of the next packet of its queue pair a packet may wait, in PSNs.
pub const WINDOW: u16 = 256;
/// Queue pairs among which the one that was silent longest makes room for a new one.
const SET: usize = 8;

/// Where a queue pair is, as long as no other one takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    index: u32,
    begun: u32,
}

impl Place {
    /// No queue pair is there.
    pub const NONE: Self = Self { index: u32::MAX, begun: 0 };
}

/// The PSN and what it tells about the packet behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Packet sequence number. The low 24 bits count.
    pub psn: u32,
    /// The PSNs that the packet uses: 1, or more for a read request. `None` if unknown.
    pub uses: Option<u32>,
}

/// What is delivered to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery<C> {
    /// The packet that has just arrived.
    Arrived,
    /// A packet that waited.
    Waited(C),
}

/// What became of a packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was delivered.
    Delivered,
    /// It was copied, and waits.
    Waits,
    /// A packet with its PSN waits already. It is to be dropped.
    Duplicate,
}

/// Limits of memory and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs that are remembered, at least 8. Each takes about 600 bytes.
    pub queue_pairs: u32,
    /// Packets of all queue pairs that wait, 1 to 65,535.
    pub packets: u16,
    /// After a gap that did not close, the order goes on behind it after this time in nanoseconds.
    pub recovery: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue_pairs: 1024, packets: 4096, recovery: 100_000_000 }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that waited.
    pub waited: u64,
    /// Packets that were dropped, because one with the same PSN waited.
    pub duplicates: u64,
    /// Gaps that did not close before the timer.
    pub flushed_by_timer: u64,
    /// Gaps that did not close within [`WINDOW`] or the pool.
    pub flushed_by_bound: u64,
    /// Gaps that did not close within the share of their host.
    pub flushed_by_share: u64,
    /// Packets of queue pairs for which there was no room.
    pub crowded: u64,
    /// The longest time that a packet waited, in nanoseconds.
    pub longest_wait: Nanos,
}

/// Restores the order of the packets of each queue pair. `K` names a queue pair, `C` is a copy of a
/// packet that waits.
#[derive(Debug)]
pub struct Resequencer<K, C, S> {
    /// Sets of [`SET`] queue pairs. The hash of a key chooses the set.
    queue_pairs: Box<[QueuePair<K>]>,
    hasher: S,
    /// Tells the host that sends the packets of a queue pair, if hosts have shares.
    host: Option<fn(&S, &K) -> u64>,
    pool: Pool<C>,
    /// Indices of queue pairs of which packets wait, or waited since the last call of `expire`.
    waiting: Vec<u32>,
    /// No packet waits longer than until then. It may be early: what waited may be delivered.
    earliest: Nanos,
    timer: Nanos,
    settling: Nanos,
    recovery: Nanos,
}

impl<K: Copy + Eq + Hash, C, S: BuildHasher> Resequencer<K, C, S> {
    /// Allocates all memory. Senders choose keys, so `hasher` needs a secret. A packet waits at most
    /// `timer` nanoseconds for the one before it.
    #[must_use]
    pub fn new(limits: Limits, timer: Nanos, hasher: S) -> Self {
        let sets = (limits.queue_pairs as usize / SET).max(1);
        Self {
            queue_pairs: (0..sets * SET).map(|_| QueuePair::default()).collect(),
            hasher,
            host: None,
            pool: Pool::new(limits.packets.max(1)),
            waiting: Vec::with_capacity(sets * SET),
            earliest: Nanos::MAX,
            timer,
            settling: 0,
            recovery: limits.recovery,
        }
    }

    /// Shares the pool between hosts: `host` is a hash of the host that sends the packets of a queue pair.
    /// One host has at most as much room as it leaves free, so at most half of the pool.
    #[must_use]
    pub fn with_shares(self, host: fn(&S, &K) -> u64) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Changes how long a packet waits for the one before it, in nanoseconds, and how long for others
    /// before it if it is the first one of its queue pair, or is sent again (0 at first: these do not
    /// wait). Packets that wait keep their times.
    pub fn set_times(&mut self, timer: Nanos, settling: Nanos) {
        (self.timer, self.settling) = (timer, settling);
    }

    const fn times(&self, now: Nanos) -> Times {
        Times { now, timer: self.timer, settling: self.settling, recovery: self.recovery }
    }

    /// Where a queue pair is, if it is remembered.
    #[must_use]
    pub fn find(&self, key: &K) -> Option<Place> {
        let index = self.place(*key)?;
        let known = self.queue_pairs.get(index).filter(|known| known.key.as_ref() == Some(key))?;
        Some(Place { index: index as u32, begun: known.begun })
    }

    /// Whether a packet that uses one PSN (the low 24 bits) is the next one of the queue pair that is
    /// found there, and none waits. If so, it is delivered with that. Otherwise nothing has
    /// changed, and [`Self::receive`] is to be called. It saves the search for the queue pair.
    #[inline(always)]
    pub fn is_next(&mut self, now: Nanos, at: Place, psn: u32) -> bool {
        let known = self.queue_pairs.get_mut(at.index as usize);
        let Some(known) = known.filter(|known| known.begun == at.begun) else { return false };
        let is_next = known.advance_plainly(psn);
        if is_next {
            known.last = now;
        }
        is_next
    }

    /// A packet of a queue pair has arrived. If it must wait, `copy` is called. `deliver` gets what
    /// the host is to have now, in order.
    pub fn receive(
        &mut self,
        now: Nanos,
        key: K,
        packet: Packet,
        copy: impl FnOnce() -> C,
        mut deliver: impl FnMut(Delivery<C>),
    ) -> Outcome {
        let Some(index) = self.place(key) else {
            self.pool.counts.crowded += 1;
            deliver(Delivery::Arrived);
            return Outcome::Delivered;
        };
        let times = self.times(now);
        let Some(queue_pair) = self.queue_pairs.get_mut(index) else { return Outcome::Delivered };
        if queue_pair.key != Some(key) {
            let host = self.host.map(|host| (host(&self.hasher, &key) >> 56) as u8);
            queue_pair.begin((key, host), packet, times);
        }
        let mut step = Step { times, pool: &mut self.pool, deliver };
        let outcome = queue_pair.receive(packet, copy, &mut step);
        queue_pair.last = now;
        if queue_pair.is_waiting() {
            self.earliest = self.earliest.min(queue_pair.deadline);
            if !core::mem::replace(&mut queue_pair.is_listed, true) {
                self.waiting.push(index as u32);
            }
        }
        outcome
    }

    /// Delivers what has waited too long.
    pub fn expire(&mut self, now: Nanos, mut deliver: impl FnMut(K, C)) {
        if now < self.earliest {
            return;
        }
        self.earliest = Nanos::MAX;
        let times = self.times(now);
        let Self { queue_pairs, pool, waiting, earliest, .. } = self;
        waiting.retain(|&index| {
            let Some(queue_pair) = queue_pairs.get_mut(index as usize) else { return false };
            let is_waiting = queue_pair.is_waiting();
            if is_waiting && now < queue_pair.deadline {
                *earliest = (*earliest).min(queue_pair.deadline);
                return true;
            }
            if let (true, Some(key)) = (is_waiting, queue_pair.key) {
                let deliver = |delivery| {
                    if let Delivery::Waited(copy) = delivery {
                        deliver(key, copy);
                    }
                };
                let is_gap = queue_pair.expire(&mut Step { times, pool, deliver });
                pool.counts.flushed_by_timer += u64::from(is_gap);
            }
            queue_pair.is_listed = queue_pair.is_waiting();
            if queue_pair.is_listed {
                *earliest = (*earliest).min(queue_pair.deadline);
            }
            queue_pair.is_listed
        });
    }

    /// Takes out all packets that wait, in no order: they are not delivered.
    pub fn clear(&mut self, now: Nanos, mut taken: impl FnMut(&K)) {
        for index in self.waiting.drain(..) {
            let Some(queue_pair) = self.queue_pairs.get_mut(index as usize) else { continue };
            queue_pair.is_listed = false;
            if let Some(key) = queue_pair.key {
                queue_pair.take_out(now, &mut self.pool, &mut |_| taken(&key));
            }
        }
        self.earliest = Nanos::MAX;
    }

    /// When [`Self::expire`] has something to do at the earliest. `None` if no packet waits.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        (self.held() != 0).then_some(self.earliest)
    }

    /// Packets that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.pool.held()
    }

    /// What happened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.pool.counts
    }

    /// The index of a queue pair, or where it may begin: instead of the one of its set that was
    /// silent longest and of which no packet waits.
    fn place(&self, key: K) -> Option<usize> {
        let sets = self.queue_pairs.len() / SET;
        let first = (self.hasher.hash_one(key) % sets as u64) as usize * SET;
        let set = self.queue_pairs.get(first..first + SET)?;
        if let Some(found) = set.iter().position(|queue_pair| queue_pair.key == Some(key)) {
            return Some(first + found);
        }
        let free = set.iter().enumerate().filter(|(_, queue_pair)| !queue_pair.is_waiting());
        let oldest = free.min_by_key(|(_, queue_pair)| (queue_pair.key.is_some(), queue_pair.last));
        oldest.map(|(at, _)| first + at)
    }
}
