//! The requester of a reliable connection: sends requests, handles acknowledgements and read
//! responses, and repeats what is missing (InfiniBand architecture 9.7.5 to 9.7.8).
//!
//! With `order = drop` it goes back to the first number that is missing. With `order = place` its
//! next number never decreases, and [`Outstanding`] says what is to be sent again.

use std::collections::VecDeque;

use wire::QueuePair;

use crate::congestion::Acknowledged;
use crate::context::Context;
use crate::memory::Memory;
use crate::outstanding::Outstanding;
use crate::packet::{Header, SELECTIVE};
use crate::request::{Emission, Request};
use crate::settings::{Settings, rnr_time};
use crate::work::{Status, WorkRequest};
use wire::Psn;

/// What to do with an acknowledgement's syndrome (InfiniBand architecture table 43).
enum Answer {
    Acknowledge,
    NotReady(u8),
    SequenceError,
    Refused(Status),
    Reserved,
}

impl Answer {
    const fn of(syndrome: u8) -> Self {
        match (syndrome >> 5, syndrome & 31) {
            (0, _) => Self::Acknowledge,
            (1, timer) => Self::NotReady(timer),
            (SELECTIVE, _) => Self::Acknowledge,
            (3, 0) => Self::SequenceError,
            (3, 1) => Self::Refused(Status::InvalidRequest),
            (3, 2) => Self::Refused(Status::RemoteAccess),
            (3, 3) => Self::Refused(Status::RemoteOperation),
            _ => Self::Reserved,
        }
    }
}

/// The requester of one connection.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    /// The number of the next request that is posted.
    assigned: Psn,
    /// The oldest number that is not acknowledged.
    acked: Psn,
    /// The number to send next, and the place of its request in the queue.
    next: Psn,
    cursor: usize,
    /// One past the highest number that was sent.
    highest: Psn,
    /// Reads before `cursor`.
    reads: u32,
    /// Packets since an acknowledgement was requested.
    unrequested: u32,
    /// When the retransmission timer expires.
    deadline: Option<u64>,
    /// Nothing is sent before this time, because the receiver has no buffer.
    not_before: u64,
    /// Retransmissions since the last progress.
    retries: u32,
    /// Whether a missing read response was asked for since the last progress.
    asked_again: bool,
    failed: Option<Status>,
    /// What is not acknowledged, if the settings want to know.
    outstanding: Outstanding,
    /// Bytes of payload that congestion control allows to be under way.
    pub(crate) limit: Option<u64>,
}

impl Requester {
    pub(crate) fn new(first: Psn) -> Self {
        Self { assigned: first, acked: first, next: first, highest: first, ..Self::default() }
    }

    /// Requests that are not complete.
    pub(crate) fn pending(&self) -> usize {
        self.queue.len()
    }

    pub(crate) const fn failed(&self) -> Option<Status> {
        self.failed
    }

    pub(crate) fn post(&mut self, work: WorkRequest, context: &mut Context<'_>) {
        let packets = context.settings.packets(work.length);
        let first = self.assigned;
        let request = Request { work, first, packets, posted: context.now, answered: 0 };
        if self.failed.is_some() {
            context.complete(&request.work, request.posted, Status::Flushed);
            return;
        }
        self.assigned = request.end();
        self.queue.push_back(request);
    }

    /// Bytes of payload that are under way.
    pub(crate) const fn under_way(&self) -> u64 {
        self.outstanding.under_way()
    }

    /// Bytes of payload that were found to be lost since the last call.
    pub(crate) fn take_lost(&mut self) -> u32 {
        self.outstanding.take_lost()
    }

    /// Whether congestion control does not allow `packets` more.
    fn is_limited(&self, packets: u64, settings: &Settings) -> bool {
        let under_way = self.outstanding.under_way();
        let then = under_way + packets * u64::from(settings.mtu);
        self.limit.is_some_and(|limit| under_way > 0 && then > limit)
    }

    /// When [`Self::next`] may have a packet, apart from pacing: now, later, or only after input.
    pub(crate) fn ready(&self, now: u64, settings: &Settings) -> Option<u64> {
        if self.is_limited(1, settings) {
            return None;
        }
        if self.outstanding.has_lost() {
            return Some(self.not_before.max(now));
        }
        let request = self.queue.get(self.cursor)?;
        let full = self.next.since(self.acked) >= settings.window_packets();
        let blocked = request.is_read() && self.reads >= settings.reads;
        (!full && !blocked).then_some(self.not_before.max(now))
    }

    /// When a timer expires.
    pub(crate) fn deadline(&self) -> Option<u64> {
        [self.deadline, self.outstanding.overtaken_at()].into_iter().flatten().min()
    }

    /// The next packet, if one may be sent now.
    pub(crate) fn next(
        &mut self,
        destination: QueuePair,
        context: &mut Context<'_>,
    ) -> Option<Emission> {
        if self.ready(context.now, context.settings)? > context.now {
            return None;
        }
        self.deadline.get_or_insert(context.now.saturating_add(context.settings.timeout));
        if self.outstanding.has_lost() {
            return self.repeat(destination, context);
        }
        let settings = context.settings;
        let request = self.queue.get(self.cursor)?;
        let (psn, repeated) = (self.next, self.next.is_before(self.highest));
        let mut emission = request.emission(psn, destination, settings)?;
        let length = (!request.is_read()).then_some(emission.length as u32);
        self.next = if request.is_read() { request.end() } else { psn.plus(1) };
        self.reads += u32::from(request.is_read());
        let last = self.next == request.end();
        self.cursor += usize::from(last);
        if settings.remembers() {
            self.outstanding.push((psn, self.next), context.now, length, repeated);
        }
        if length.is_some() {
            self.unrequested += 1;
            emission.header.acknowledge = last
                || self.unrequested >= settings.acknowledge_every
                || self.next.since(self.acked) >= settings.window_packets()
                || self.is_limited(1, settings);
            if emission.header.acknowledge {
                self.unrequested = 0;
            }
        }
        context.counters.retransmitted_packets += u64::from(repeated);
        if self.highest.is_before(self.next) {
            self.highest = self.next;
        }
        Some(emission)
    }

    /// The first packet that was lost, once more.
    fn repeat(&mut self, destination: QueuePair, context: &mut Context<'_>) -> Option<Emission> {
        let psn = self.outstanding.repeat(context.now)?;
        let at = self.queue.partition_point(|request| !psn.is_before(request.end()));
        let request = self.queue.get(at)?;
        let psn = request.missing().unwrap_or(psn);
        let mut emission = request.emission(psn, destination, context.settings)?;
        emission.header.acknowledge = !request.is_read();
        context.counters.retransmitted_packets += 1;
        Some(emission)
    }

    /// Handles an acknowledgement or NAK. Returns what it tells congestion control.
    pub(crate) fn acknowledged(
        &mut self,
        header: &Header,
        syndrome: u8,
        context: &mut Context<'_>,
    ) -> Acknowledged {
        let cause = header.sack.map_or(header.psn, |sack| sack.cause);
        let round_trip = self.outstanding.round_trip(cause, context.now);
        match Answer::of(syndrome) {
            Answer::Acknowledge => {
                self.advance(header.psn.plus(1), context);
                if context.settings.places() {
                    self.selected(header, context);
                }
            }
            answer => self.refused(header.psn, answer, context),
        }
        Acknowledged {
            bytes: self.outstanding.take_covered(),
            round_trip,
            marked: header.congestion,
            under_way: self.outstanding.under_way(),
        }
    }

    /// Handles the map of a selective acknowledgement, and finds what was lost.
    fn selected(&mut self, header: &Header, context: &mut Context<'_>) {
        if let Some(sack) = &header.sack {
            context.counters.selective_acks_received += 1;
            if self.outstanding.arrive(header.psn.plus(1), &sack.map) {
                self.retries = 0;
                self.deadline = Some(context.now.saturating_add(context.settings.timeout));
            }
        }
        self.outstanding.detect(context.now, context.settings.reordering);
    }

    /// Handles a NAK.
    fn refused(&mut self, psn: Psn, answer: Answer, context: &mut Context<'_>) {
        // A NAK for what is acknowledged or was not sent is old.
        if psn.is_before(self.acked) || !psn.is_before(self.next) {
            return;
        }
        let progress = self.advance(psn, context);
        match answer {
            Answer::SequenceError => {
                context.counters.packet_seq_err += 1;
                if progress || self.may_retry(context) {
                    self.go_back(psn, context);
                }
            }
            Answer::NotReady(timer) => {
                context.counters.rnr_nak_received += 1;
                self.not_before = context.now.saturating_add(rnr_time(timer));
                if context.settings.places() {
                    self.outstanding.lose(psn);
                    self.deadline = Some(self.not_before.saturating_add(context.settings.timeout));
                } else {
                    self.go_back(psn, context);
                    self.deadline = None;
                }
            }
            Answer::Refused(status) => {
                context.counters.req_remote_access_errors += 1;
                self.fail(status, context);
            }
            Answer::Acknowledge | Answer::Reserved => {}
        }
    }

    /// Handles a packet of a read response.
    pub(crate) fn responded(
        &mut self,
        psn: Psn,
        payload: &[u8],
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) {
        if psn.is_before(self.acked) || !psn.is_before(self.highest) {
            return;
        }
        // A response acknowledges the requests before it (9.7.5.1.2).
        self.advance(psn, context);
        let Some(request) = self.queue.front_mut() else { return };
        if request.missing() != Some(psn) {
            return;
        }
        let offset = u64::from(request.answered) * u64::from(context.settings.mtu);
        let rest = u64::from(request.work.length).saturating_sub(offset);
        if payload.len() as u64 != rest.min(context.settings.mtu.into()) {
            return;
        }
        let place = request.work.local.plus(offset);
        if !memory.write(place.key, place.address, payload) {
            self.fail(Status::LocalProtection, context);
            return;
        }
        request.answered += 1;
        self.advance(psn.plus(1), context);
    }

    /// Handles the expiry of the retransmission timer.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        let (now, timeout) = (context.now, context.settings.timeout);
        if self.outstanding.overtaken_at().is_some_and(|at| at <= now) {
            self.outstanding.detect(now, context.settings.reordering);
        }
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        // The oldest packet may have been repeated lately.
        if context.settings.places()
            && let Some(at) = self.outstanding.oldest()
            && at.saturating_add(timeout) > now
        {
            self.deadline = Some(at.saturating_add(timeout));
            return;
        }
        context.counters.local_ack_timeout_err += 1;
        if !self.may_retry(context) {
            return;
        }
        if context.settings.places() {
            self.outstanding.lose_until(now.saturating_sub(timeout));
            self.deadline = Some(now.saturating_add(timeout));
        } else {
            self.go_back(self.acked, context);
        }
    }

    /// Everything before `end` has arrived, except for read responses. Returns whether this was
    /// news.
    fn advance(&mut self, end: Psn, context: &mut Context<'_>) -> bool {
        if !self.acked.is_before(end) || self.highest.is_before(end) {
            return false;
        }
        let mut reached = end;
        while let Some(front) = self.queue.front() {
            if let Some(missing) = front.missing() {
                if missing.is_before(end) {
                    reached = missing;
                }
                break;
            }
            if end.is_before(front.end()) {
                break;
            }
            let Some(done) = self.queue.pop_front() else { break };
            if self.cursor > 0 {
                self.cursor -= 1;
                self.reads = self.reads.saturating_sub(u32::from(done.is_read()));
            }
            context.complete(&done.work, done.posted, Status::Success);
        }
        let progress = self.acked.is_before(reached);
        if progress {
            self.acked = reached;
            self.outstanding.acknowledge(reached);
            self.retries = 0;
            self.asked_again = false;
            if self.next.is_before(self.acked) {
                self.next = self.acked;
                self.cursor = 0;
                self.reads = 0;
            }
            let outstanding = self.acked.is_before(self.next);
            self.deadline =
                outstanding.then(|| context.now.saturating_add(context.settings.timeout));
        }
        if reached.is_before(end) && !self.asked_again {
            context.counters.implied_nak_seq_err += 1;
            if context.settings.places() {
                self.outstanding.lose(reached);
            } else {
                self.go_back(reached, context);
            }
            self.asked_again = true;
        }
        progress
    }

    /// Sends again from `psn` on.
    fn go_back(&mut self, psn: Psn, context: &Context<'_>) {
        if !psn.is_before(self.next) {
            return;
        }
        if context.settings.places() {
            self.outstanding.lose_from(psn);
            return;
        }
        self.outstanding.go_back(psn);
        self.next = psn;
        self.cursor = self.queue.iter().take_while(|r| !psn.is_before(r.end())).count();
        let before = self.queue.iter().take(self.cursor).filter(|request| request.is_read());
        self.reads = u32::try_from(before.count()).unwrap_or(u32::MAX);
        self.unrequested = 0;
        self.deadline = Some(context.now.saturating_add(context.settings.timeout));
    }

    /// Counts a retry. Fails if there were too many.
    fn may_retry(&mut self, context: &mut Context<'_>) -> bool {
        if self.retries >= context.settings.retries {
            context.counters.req_transport_retries_exceeded += 1;
            self.fail(Status::RetryExceeded, context);
            return false;
        }
        self.retries += 1;
        true
    }

    /// Ends all requests: the first with this status.
    pub(crate) fn fail(&mut self, status: Status, context: &mut Context<'_>) {
        self.failed = Some(status);
        self.deadline = None;
        let statuses = std::iter::once(status).chain(std::iter::repeat(Status::Flushed));
        for (request, status) in self.queue.drain(..).zip(statuses) {
            context.complete(&request.work, request.posted, status);
        }
        (self.cursor, self.reads) = (0, 0);
        self.outstanding = Outstanding::default();
    }
}
