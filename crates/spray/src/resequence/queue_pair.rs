//! The order of one queue pair.

use wire::Psn;

use super::pool::{Pool, Waiting};
use super::{Delivery, Outcome, Packet, WINDOW};
use crate::signal::Nanos;

const PSN: u32 = 0x00ff_ffff;
/// How far packets may be behind the one that comes first.
const BEFORE: u32 = WINDOW as u32 / 2;
/// So many packets in a row before the next one are sent again, and so is the first one after a silence.
/// Others may come late: they were sent before a NAK, and overtaken by their repetition.
const AGAIN: u8 = 4;
/// No packet has this PSN.
const NOT_PLAIN: u32 = u32::MAX;
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

/// What the receipt of a packet, or the end of a wait, works with.
pub(super) struct Step<'a, C, F> {
    pub(super) times: Times,
    pub(super) pool: &'a mut Pool<C>,
    pub(super) deliver: F,
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
    /// Packets from that gap to `after` come again: the receiver has dropped them. It waits for `next`,
    /// so nothing is gained by delivering others before that time.
    Again { after: u32, until: Nanos },
}

/// The order of one queue pair.
#[derive(Debug)]
pub(super) struct QueuePair<K> {
    pub(super) key: Option<K>,
    /// How many queue pairs have begun at this place.
    pub(super) begun: u32,
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
    /// The next PSN, if there is nothing to do for its packet but to deliver it: the mode is
    /// [`Mode::Ordered`], nothing waits, the last one was not behind, and there is no `resume`.
    /// It is in the upper 24 bits, where it wraps by itself. Otherwise [`NOT_PLAIN`]. Meanwhile, `next`
    /// stays behind.
    plain: u32,
    /// Packets in a row that are before the next one.
    behind: u8,
    /// Where the order goes on if packets before it, that seemed to be sent again, are not.
    resume: Option<u32>,
    held: u16,
    /// Places in the pool, by PSN.
    ring: [u16; WINDOW as usize],
}

impl<K> Default for QueuePair<K> {
    fn default() -> Self {
        let (key, mode, ring) = (None, Mode::Ordered, [NONE; WINDOW as usize]);
        Self {
            key,
            begun: 0,
            host: None,
            last: 0,
            deadline: 0,
            is_listed: false,
            next: 0,
            mode,
            plain: NOT_PLAIN,
            behind: 0,
            resume: None,
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
        (self.key, self.host, self.begun) = (Some(key), host, self.begun.wrapping_add(1));
        self.begin_anew(first.psn & PSN, times);
        self.note_if_plain();
    }

    /// Begins with a packet in front of which others may still come. No packet waits.
    fn begin_anew(&mut self, psn: u32, times: Times) {
        (self.next, self.mode, self.resume) = (psn, Mode::Ordered, None);
        if times.settling > 0 {
            (self.next, self.mode) = (psn.wrapping_sub(BEFORE) & PSN, Mode::Settling);
        }
    }

    /// When a packet that arrives now stops waiting.
    fn end(&self, times: Times) -> Nanos {
        let now = times.now;
        match self.mode {
            Mode::Settling => now.saturating_add(times.settling),
            Mode::Again { until, .. } => now.saturating_add(times.timer).max(until),
            _ => now.saturating_add(times.timer),
        }
    }

    /// The time in which packets came in front of the first one is over.
    fn settle<C>(&mut self, step: &mut Step<'_, C, impl FnMut(Delivery<C>)>) {
        if let Some(psn) = self.lowest() {
            (self.next, self.mode) = (psn, Mode::Ordered);
        }
        self.drain(step);
    }

    /// The time of packets that wait is over. Returns whether a gap did not close.
    pub(super) fn expire<C>(&mut self, step: &mut Step<'_, C, impl FnMut(Delivery<C>)>) -> bool {
        let is_gap = self.stop_waiting(step);
        self.note_if_plain();
        is_gap
    }

    fn stop_waiting<C>(&mut self, step: &mut Step<'_, C, impl FnMut(Delivery<C>)>) -> bool {
        if self.mode == Mode::Settling {
            self.settle(step);
            return false;
        }
        if let Some(resume) = self.resume.take() {
            // What seemed to be sent again was only late.
            let next = self.next;
            let before = u32::try_from(since(resume, next)).unwrap_or(0).min(WINDOW.into());
            for psn in (0..before).map(|ahead| next.wrapping_add(ahead) & PSN) {
                if let Some(waiting) = self.take(step.times.now, psn, step.pool) {
                    (step.deliver)(Delivery::Waited(waiting.copy));
                }
            }
            (self.next, self.mode) = (resume, Mode::Ordered);
            self.drain(step);
            return false;
        }
        self.flush(None, step);
        true
    }

    /// Goes on behind a packet that uses one PSN, if it is the next one and none waits: almost all, if
    /// paths are alike. The low 24 bits of the PSN count.
    #[inline(always)]
    pub(super) fn advance_plainly(&mut self, psn: u32) -> bool {
        let is_next = psn << 8 == self.plain;
        if is_next {
            self.plain = self.plain.wrapping_add(1 << 8);
        }
        is_next
    }

    pub(super) fn receive<C>(
        &mut self,
        packet: Packet,
        copy: impl FnOnce() -> C,
        step: &mut Step<'_, C, impl FnMut(Delivery<C>)>,
    ) -> Outcome {
        if packet.uses == Some(1) && self.advance_plainly(packet.psn & PSN) {
            (step.deliver)(Delivery::Arrived);
            return Outcome::Delivered;
        }
        if self.plain != NOT_PLAIN {
            self.next = self.plain >> 8;
        }
        let outcome = self.put_in_order(packet, copy, step);
        self.note_if_plain();
        outcome
    }

    fn note_if_plain(&mut self) {
        let is_ordered = self.mode == Mode::Ordered && self.resume.is_none();
        let is_plain = is_ordered && self.held == 0 && self.behind == 0;
        self.plain = if is_plain { self.next << 8 } else { NOT_PLAIN };
    }

    fn put_in_order<C>(
        &mut self,
        packet: Packet,
        copy: impl FnOnce() -> C,
        step: &mut Step<'_, C, impl FnMut(Delivery<C>)>,
    ) -> Outcome {
        let psn = packet.psn & PSN;
        if self.mode == Mode::Settling
            && (!(0..i32::from(WINDOW)).contains(&since(psn, self.next))
                || !step.pool.has_room(self.host))
        {
            self.settle(step);
        }
        match self.mode {
            Mode::Ordered | Mode::Settling | Mode::Again { .. } => {}
            Mode::Open if since(psn, self.next) >= 0 => {
                (self.next, self.mode) = (psn, Mode::Ordered);
            }
            Mode::Open => {}
            Mode::Gap { after, until } if step.times.now >= until => {
                (self.next, self.mode) = (after, Mode::Ordered);
            }
            Mode::Gap { after, until } if since(psn, after) >= 0 => {
                let after = psn.wrapping_add(packet.uses.unwrap_or(1)) & PSN;
                self.mode = Mode::Gap { after, until };
                (step.deliver)(Delivery::Arrived);
                return Outcome::Delivered;
            }
            Mode::Gap { after, until } if since(psn, self.next) >= 0 => {
                self.mode = Mode::Again { after, until };
            }
            Mode::Gap { .. } => {}
        }
        self.set_back(psn, step);
        let distance = since(psn, self.next);
        if distance == 0 && self.mode != Mode::Settling {
            (step.deliver)(Delivery::Arrived);
            self.advance(psn, packet.uses, step);
            self.drain(step);
            return Outcome::Delivered;
        }
        if distance < -i32::from(WINDOW) {
            self.flush(None, step);
            self.mode = Mode::Ordered;
            self.advance(psn, packet.uses, step);
        }
        if distance < 0 {
            (step.deliver)(Delivery::Arrived);
            return Outcome::Delivered;
        }
        let is_near = distance < i32::from(WINDOW);
        if is_near && self.at(psn) != NONE {
            step.pool.counts.duplicates += 1;
            return Outcome::Duplicate;
        }
        if !is_near || !step.pool.has_room(self.host) {
            self.exceed(packet, is_near, step);
            return Outcome::Delivered;
        }
        let waiting = Waiting { copy: copy(), since: step.times.now, uses: packet.uses };
        let (Some(index), Some(place)) = (step.pool.put(self.host, waiting), self.place(psn))
        else {
            return Outcome::Waits;
        };
        *place = index;
        let deadline = self.end(step.times);
        self.deadline = if self.held == 0 { deadline } else { self.deadline.min(deadline) };
        self.held += 1;
        Outcome::Waits
    }

    /// Begins anew with a packet before the next one, if that is sent again and not only late.
    fn set_back<C>(&mut self, psn: u32, step: &mut Step<'_, C, impl FnMut(Delivery<C>)>) {
        let distance = since(psn, self.next);
        self.behind = if distance < 0 { self.behind.saturating_add(1) } else { 0 };
        let is_far = distance < -i32::from(WINDOW);
        let was_silent = step.times.now.saturating_sub(self.last) >= step.times.timer;
        let is_again = is_far || self.behind >= AGAIN || distance < 0 && was_silent;
        if !is_again || step.times.settling == 0 || !step.pool.has_room(self.host) {
            return;
        }
        // Packets before it may have been sent again, too, and take longer.
        let resume = self.resume.unwrap_or(self.next);
        let resume = match self.mode {
            Mode::Gap { after, .. } | Mode::Again { after, .. } if since(after, resume) > 0 => {
                after
            }
            _ => resume,
        };
        self.flush(None, step);
        self.begin_anew(psn, step.times);
        self.resume = Some(resume).filter(|_| !is_far);
    }

    /// Delivers all packets that wait, and one that may not: it is too far ahead, or there is no room.
    fn exceed<C>(
        &mut self,
        packet: Packet,
        is_near: bool,
        step: &mut Step<'_, C, impl FnMut(Delivery<C>)>,
    ) {
        let is_share = is_near && !step.pool.is_full();
        step.pool.counts.flushed_by_share += u64::from(is_share);
        step.pool.counts.flushed_by_bound += u64::from(!is_share);
        let arrived = (packet.psn & PSN, packet.uses.unwrap_or(1));
        self.flush(Some(arrived), step);
        // No sender has so much on its way: what is missing is not missed any more.
        if let Mode::Gap { after, .. } = self.mode
            && !is_near
        {
            (self.next, self.mode, self.resume) = (after, Mode::Ordered, None);
        }
    }

    /// Delivers all packets that wait, in order, and one that has arrived in its place among them. The
    /// gap at `next` stays open.
    fn flush<C>(
        &mut self,
        mut arrived: Option<(u32, u32)>,
        step: &mut Step<'_, C, impl FnMut(Delivery<C>)>,
    ) {
        let next = self.next;
        let mut after = next;
        for psn in (0..u32::from(WINDOW)).map(|ahead| next.wrapping_add(ahead) & PSN) {
            if self.held == 0 && arrived.is_none() {
                break;
            }
            if let Some((_, uses)) = arrived.take_if(|(of, _)| *of == psn) {
                (step.deliver)(Delivery::Arrived);
                after = psn.wrapping_add(uses) & PSN;
            }
            if let Some(waiting) = self.take(step.times.now, psn, step.pool) {
                (step.deliver)(Delivery::Waited(waiting.copy));
                after = psn.wrapping_add(waiting.uses.unwrap_or(1)) & PSN;
            }
        }
        if let Some((psn, uses)) = arrived {
            (step.deliver)(Delivery::Arrived);
            after = psn.wrapping_add(uses) & PSN;
        }
        self.mode = Mode::Gap { after, until: step.times.now.saturating_add(step.times.recovery) };
    }

    /// Delivers what follows.
    fn drain<C>(&mut self, step: &mut Step<'_, C, impl FnMut(Delivery<C>)>) {
        while self.held != 0 {
            if self.mode == Mode::Open {
                let Some(psn) = self.lowest() else { break };
                (self.next, self.mode) = (psn, Mode::Ordered);
            }
            let psn = self.next;
            let Some(waiting) = self.take(step.times.now, psn, step.pool) else { break };
            (step.deliver)(Delivery::Waited(waiting.copy));
            self.advance(psn, waiting.uses, step);
        }
        // The gap is another one now. A path with a long queue closes one after the other.
        if self.held != 0 {
            self.deadline = self.end(step.times);
        }
    }

    /// The packet with this PSN is delivered. No packet may wait between it and the next one.
    fn advance<C>(
        &mut self,
        psn: u32,
        uses: Option<u32>,
        step: &mut Step<'_, C, impl FnMut(Delivery<C>)>,
    ) {
        let uses_known = uses.unwrap_or(1);
        self.next = psn.wrapping_add(uses_known) & PSN;
        let is_over = |after| since(self.next, after) >= 0;
        if self.resume.is_some_and(is_over) {
            self.resume = None;
        }
        self.mode = match self.mode {
            _ if uses.is_none() => Mode::Open,
            Mode::Again { after, .. } if is_over(after) => Mode::Ordered,
            mode => mode,
        };
        for ahead in 1..uses_known.min(u32::from(WINDOW)) {
            if let Some(waiting) = self.take(step.times.now, psn.wrapping_add(ahead), step.pool) {
                (step.deliver)(Delivery::Waited(waiting.copy));
            }
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

    /// Takes out all packets that wait, whatever is known about the next one.
    pub(super) fn take_out<C>(
        &mut self,
        now: Nanos,
        pool: &mut Pool<C>,
        taken: &mut impl FnMut(C),
    ) {
        // Each place of the ring once.
        for place in 0..u32::from(WINDOW) {
            if let Some(waiting) = self.take(now, place, pool) {
                taken(waiting.copy);
            }
        }
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
