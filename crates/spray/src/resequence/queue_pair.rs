//! The order of one queue pair.

use wire::Psn;

use super::pool::{Pool, Waiting};
use super::{Delivery, Outcome, Packet, WINDOW};
use crate::signal::Nanos;

const PSN: u32 = 0x00ff_ffff;
/// How far packets may be behind the one that comes first.
const BEFORE: u32 = WINDOW as u32 / 2;
/// No packet waits at this place of the ring.
const NONE: u16 = u16::MAX;

/// How far a PSN is behind `start`: −2²³ to 2²³ − 1.
const fn since(psn: u32, start: u32) -> i32 {
    Psn::new(psn).since(Psn::new(start))
}

/// The time, and how long a packet, a beginning and a gap last.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) now: Nanos,
    pub(super) timer: Nanos,
    pub(super) settling: Nanos,
    pub(super) recovery: Nanos,
}

/// What is known about the next PSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It is `next`.
    Ordered,
    /// It is the one that comes: a read request used an unknown number.
    Open,
    /// It is the lowest of those that wait when the time is over.
    Settling,
    /// The gap at `next` did not close. Packets from `after` on pass, until a time.
    Gap { after: u32, until: Nanos },
}

/// The order of one queue pair.
#[derive(Debug)]
pub(super) struct QueuePair<K> {
    pub(super) key: Option<K>,
    /// The number of its host; `None` if hosts are not told apart.
    host: Option<u8>,
    /// When its last packet came.
    pub(super) last: Nanos,
    /// When its packets stop waiting, if any does.
    pub(super) deadline: Nanos,
    /// Whether it is in the list of those of which packets wait.
    pub(super) is_listed: bool,
    next: u32,
    mode: Mode,
    held: u16,
    /// Places in the pool, by PSN.
    ring: [u16; WINDOW as usize],
}

impl<K> Default for QueuePair<K> {
    fn default() -> Self {
        let (key, mode, ring) = (None, Mode::Ordered, [NONE; WINDOW as usize]);
        Self {
            key,
            host: None,
            last: 0,
            deadline: 0,
            is_listed: false,
            next: 0,
            mode,
            held: 0,
            ring,
        }
    }
}

impl<K> QueuePair<K> {
    pub(super) const fn is_waiting(&self) -> bool {
        self.held != 0
    }

    /// Begins with the first packet of a queue pair. No packet waits here.
    pub(super) fn begin(&mut self, (key, host): (K, Option<u8>), first: Packet, times: Times) {
        (self.key, self.host) = (Some(key), host);
        self.begin_anew(first.psn & PSN, times);
    }

    /// Begins with a packet in front of which others may still come. No packet waits.
    fn begin_anew(&mut self, psn: u32, times: Times) {
        (self.next, self.mode) = (psn, Mode::Ordered);
        if times.settling > 0 {
            (self.next, self.mode) = (psn.wrapping_sub(BEFORE) & PSN, Mode::Settling);
        }
    }

    /// The time in which packets came in front of the first one is over.
    fn settle<C>(
        &mut self,
        times: Times,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) {
        if let Some(psn) = self.lowest() {
            (self.next, self.mode) = (psn, Mode::Ordered);
        }
        self.drain(times, pool, deliver);
    }

    /// The time of packets that wait is over. Returns whether a gap did not close.
    pub(super) fn expire<C>(
        &mut self,
        times: Times,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) -> bool {
        if self.mode == Mode::Settling {
            self.settle(times, pool, deliver);
            return false;
        }
        self.flush(times, pool, deliver);
        true
    }

    pub(super) fn receive<C>(
        &mut self,
        times: Times,
        packet: Packet,
        pool: &mut Pool<C>,
        copy: impl FnOnce() -> C,
        deliver: &mut impl FnMut(Delivery<C>),
    ) -> Outcome {
        let psn = packet.psn & PSN;
        if self.mode == Mode::Settling
            && (!(0..i32::from(WINDOW)).contains(&since(psn, self.next))
                || !pool.has_room(self.host))
        {
            self.settle(times, pool, deliver);
        }
        match self.mode {
            Mode::Ordered | Mode::Settling => {}
            Mode::Open if since(psn, self.next) >= 0 => {
                (self.next, self.mode) = (psn, Mode::Ordered);
            }
            Mode::Open => {}
            Mode::Gap { after, until } if times.now >= until => {
                (self.next, self.mode) = (after, Mode::Ordered);
            }
            Mode::Gap { after, until } if since(psn, after) >= 0 => {
                let after = psn.wrapping_add(packet.uses.unwrap_or(1)) & PSN;
                self.mode = Mode::Gap { after, until };
                deliver(Delivery::Arrived);
                return Outcome::Delivered;
            }
            Mode::Gap { .. } if since(psn, self.next) >= 0 => self.mode = Mode::Ordered,
            Mode::Gap { .. } => {}
        }
        if since(psn, self.next) < 0 && times.settling > 0 && pool.has_room(self.host) {
            // Sent again. Packets before it may have been, too, and take longer.
            self.flush(times, pool, deliver);
            self.begin_anew(psn, times);
        }
        let distance = since(psn, self.next);
        if distance == 0 && self.mode != Mode::Settling {
            deliver(Delivery::Arrived);
            self.advance(times.now, psn, packet.uses, pool, deliver);
            self.drain(times, pool, deliver);
            return Outcome::Delivered;
        }
        if distance < -i32::from(WINDOW) {
            self.flush(times, pool, deliver);
            self.mode = Mode::Ordered;
            self.advance(times.now, psn, packet.uses, pool, deliver);
        }
        if distance < 0 {
            deliver(Delivery::Arrived);
            return Outcome::Delivered;
        }
        let is_near = distance < i32::from(WINDOW);
        if is_near && self.at(psn) != NONE {
            pool.counts.duplicates += 1;
            return Outcome::Duplicate;
        }
        if !is_near || !pool.has_room(self.host) {
            let is_share = is_near && !pool.is_full();
            pool.counts.flushed_by_share += u64::from(is_share);
            pool.counts.flushed_by_bound += u64::from(!is_share);
            let arrived = (psn, packet.uses.unwrap_or(1));
            self.flush_around(times, Some(arrived), pool, deliver);
            return Outcome::Delivered;
        }
        let waiting = Waiting { copy: copy(), since: times.now, uses: packet.uses };
        let (Some(index), Some(place)) = (pool.put(self.host, waiting), self.place(psn)) else {
            return Outcome::Waits;
        };
        *place = index;
        let is_settling = self.mode == Mode::Settling;
        let time = if is_settling { times.settling } else { times.timer };
        let deadline = times.now.saturating_add(time);
        self.deadline = if self.held == 0 { deadline } else { self.deadline.min(deadline) };
        self.held += 1;
        Outcome::Waits
    }

    /// Delivers all packets that wait, in order. The gap at `next` stays open.
    fn flush<C>(
        &mut self,
        times: Times,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) {
        self.flush_around(times, None, pool, deliver);
    }

    /// As [`Self::flush`], with a packet that has arrived in its place among the others.
    fn flush_around<C>(
        &mut self,
        times: Times,
        mut arrived: Option<(u32, u32)>,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) {
        let next = self.next;
        let mut after = next;
        for psn in (0..u32::from(WINDOW)).map(|ahead| next.wrapping_add(ahead) & PSN) {
            if self.held == 0 && arrived.is_none() {
                break;
            }
            if let Some((_, uses)) = arrived.take_if(|(of, _)| *of == psn) {
                deliver(Delivery::Arrived);
                after = psn.wrapping_add(uses) & PSN;
            }
            if let Some(waiting) = self.take(times.now, psn, pool) {
                deliver(Delivery::Waited(waiting.copy));
                after = psn.wrapping_add(waiting.uses.unwrap_or(1)) & PSN;
            }
        }
        if let Some((psn, uses)) = arrived {
            deliver(Delivery::Arrived);
            after = psn.wrapping_add(uses) & PSN;
        }
        self.mode = Mode::Gap { after, until: times.now.saturating_add(times.recovery) };
    }

    /// Delivers what follows.
    fn drain<C>(
        &mut self,
        times: Times,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) {
        while self.held != 0 {
            if self.mode == Mode::Open {
                let Some(psn) = self.lowest() else { break };
                (self.next, self.mode) = (psn, Mode::Ordered);
            }
            let psn = self.next;
            let Some(waiting) = self.take(times.now, psn, pool) else { break };
            deliver(Delivery::Waited(waiting.copy));
            self.advance(times.now, psn, waiting.uses, pool, deliver);
        }
        // The gap is another one now. A path with a long queue closes one after the other.
        if self.held != 0 {
            self.deadline = times.now.saturating_add(times.timer);
        }
    }

    /// The packet with this PSN is delivered. No packet may wait between it and the next one.
    fn advance<C>(
        &mut self,
        now: Nanos,
        psn: u32,
        uses: Option<u32>,
        pool: &mut Pool<C>,
        deliver: &mut impl FnMut(Delivery<C>),
    ) {
        let uses_known = uses.unwrap_or(1);
        self.next = psn.wrapping_add(uses_known) & PSN;
        if uses.is_none() {
            self.mode = Mode::Open;
        }
        let between = 1..uses_known.min(u32::from(WINDOW));
        for waiting in between.filter_map(|ahead| self.take(now, psn.wrapping_add(ahead), pool)) {
            deliver(Delivery::Waited(waiting.copy));
        }
    }

    /// The first PSN ahead of which a packet waits.
    fn lowest(&self) -> Option<u32> {
        if self.held == 0 {
            return None;
        }
        let mut ahead = (0..u32::from(WINDOW)).map(|ahead| self.next.wrapping_add(ahead) & PSN);
        ahead.find(|&psn| self.at(psn) != NONE)
    }

    fn place(&mut self, psn: u32) -> Option<&mut u16> {
        self.ring.get_mut((psn % u32::from(WINDOW)) as usize)
    }

    fn at(&self, psn: u32) -> u16 {
        self.ring.get((psn % u32::from(WINDOW)) as usize).copied().unwrap_or(NONE)
    }

    fn take<C>(&mut self, now: Nanos, psn: u32, pool: &mut Pool<C>) -> Option<Waiting<C>> {
        let index = core::mem::replace(self.place(psn)?, NONE);
        let waiting = pool.take(now, self.host, index)?;
        self.held -= 1;
        Some(waiting)
    }
}
