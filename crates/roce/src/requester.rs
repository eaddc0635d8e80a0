//! The requester of a reliable connection: sends requests, handles acknowledgements and read
//! responses, and goes back to what is missing (InfiniBand architecture 9.7.5 to 9.7.8).

use std::collections::VecDeque;

use wire::QueuePair;
use wire::roce::opcode;

use crate::context::Context;
use crate::memory::Memory;
use crate::packet::{Header, Remote};
use crate::psn::Psn;
use crate::settings::{Settings, rnr_time};
use crate::work::{Operation, Place, Status, WorkRequest};

/// A request that is not complete.
#[derive(Debug, Clone)]
struct Request {
    work: WorkRequest,
    first: Psn,
    packets: u32,
    posted: u64,
    /// Read responses that have arrived.
    answered: u32,
}

impl Request {
    const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// The first response that is missing, if it is a read.
    const fn missing(&self) -> Option<Psn> {
        match self.work.operation {
            Operation::Read { .. } if self.answered < self.packets => {
                Some(self.first.plus(self.answered))
            }
            _ => None,
        }
    }

    const fn is_read(&self) -> bool {
        matches!(self.work.operation, Operation::Read { .. })
    }
}

/// A packet to be sent: its headers, and where its payload is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emission {
    pub(crate) header: Header,
    pub(crate) payload: Place,
    pub(crate) length: usize,
}

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
            (3, 0) => Self::SequenceError,
            (3, 1) => Self::Refused(Status::InvalidRequest),
            (3, 2) => Self::Refused(Status::RemoteAccess),
            (3, 3) => Self::Refused(Status::RemoteOperation),
            _ => Self::Reserved,
        }
    }
}

/// The requester of one connection.
#[derive(Debug)]
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
}

impl Requester {
    pub(crate) const fn new(first: Psn) -> Self {
        Self {
            queue: VecDeque::new(),
            assigned: first,
            acked: first,
            next: first,
            cursor: 0,
            highest: first,
            reads: 0,
            unrequested: 0,
            deadline: None,
            not_before: 0,
            retries: 0,
            asked_again: false,
            failed: None,
        }
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

    /// When [`Self::next`] may have a packet, apart from pacing: now, later, or only after input.
    pub(crate) fn ready(&self, now: u64, settings: &Settings) -> Option<u64> {
        let request = self.queue.get(self.cursor)?;
        let full = self.next.since(self.acked) >= settings.window_packets();
        let blocked = request.is_read() && self.reads >= settings.reads;
        (!full && !blocked).then_some(self.not_before.max(now))
    }

    pub(crate) const fn deadline(&self) -> Option<u64> {
        self.deadline
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
        let request = self.queue.get(self.cursor)?;
        let at = u32::try_from(self.next.since(request.first)).ok()?;
        let repeated = self.next.is_before(self.highest);
        let settings = context.settings;
        let offset = u64::from(at) * u64::from(settings.mtu);
        let rest = u64::from(request.work.length).saturating_sub(offset);
        let local = request.work.local.plus(offset);
        let emission = if let Operation::Read { remote } = request.work.operation {
            let remote = remote.plus(offset);
            let length = u32::try_from(rest).ok()?;
            let mut header = Header::new(opcode::RC_READ_REQUEST, destination, self.next);
            header.remote = Some(Remote { address: remote.address, key: remote.key, length });
            self.next = request.end();
            self.reads += 1;
            self.cursor += 1;
            Emission { header, payload: local, length: 0 }
        } else {
            let last = at + 1 == request.packets;
            let code = code(request.work.operation, at == 0, last);
            let mut header = Header::new(code, destination, self.next);
            if at == 0
                && let Operation::Write { remote, .. } = request.work.operation
            {
                let Place { key, address } = remote;
                header.remote = Some(Remote { address, key, length: request.work.length });
            }
            if last
                && let Operation::Write { immediate, .. } | Operation::Send { immediate } =
                    request.work.operation
            {
                header.immediate = immediate;
            }
            self.next = self.next.plus(1);
            self.cursor += usize::from(last);
            self.unrequested += 1;
            header.acknowledge = last
                || self.unrequested >= settings.acknowledge_every
                || self.next.since(self.acked) >= settings.window_packets();
            if header.acknowledge {
                self.unrequested = 0;
            }
            let length = usize::try_from(rest.min(settings.mtu.into())).ok()?;
            Emission { header, payload: local, length }
        };
        context.counters.retransmitted_packets += u64::from(repeated);
        if self.highest.is_before(self.next) {
            self.highest = self.next;
        }
        self.deadline.get_or_insert(context.now.saturating_add(settings.timeout));
        Some(emission)
    }

    /// Handles an acknowledgement or NAK.
    pub(crate) fn acknowledged(&mut self, psn: Psn, syndrome: u8, context: &mut Context<'_>) {
        let answer = Answer::of(syndrome);
        if let Answer::Acknowledge = answer {
            self.advance(psn.plus(1), context);
            return;
        }
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
                self.go_back(psn, context);
                self.not_before = context.now.saturating_add(rnr_time(timer));
                self.deadline = None;
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
        if self.deadline.is_none_or(|deadline| deadline > context.now) {
            return;
        }
        context.counters.local_ack_timeout_err += 1;
        if self.may_retry(context) {
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
            self.go_back(reached, context);
            self.asked_again = true;
        }
        progress
    }

    /// Sends again from `psn` on.
    fn go_back(&mut self, psn: Psn, context: &Context<'_>) {
        if !psn.is_before(self.next) {
            return;
        }
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
    }
}

/// The opcode of a packet of a send or write.
const fn code(operation: Operation, first: bool, last: bool) -> u8 {
    match (operation, first, last) {
        (Operation::Send { immediate: None }, true, true) => opcode::RC_SEND_ONLY,
        (Operation::Send { .. }, true, true) => opcode::RC_SEND_ONLY_IMMEDIATE,
        (Operation::Send { .. }, true, false) => opcode::RC_SEND_FIRST,
        (Operation::Send { .. }, false, false) => opcode::RC_SEND_MIDDLE,
        (Operation::Send { immediate: None }, false, true) => opcode::RC_SEND_LAST,
        (Operation::Send { .. }, false, true) => opcode::RC_SEND_LAST_IMMEDIATE,
        (Operation::Write { immediate: None, .. }, true, true) => opcode::RC_WRITE_ONLY,
        (Operation::Write { .. }, true, true) => opcode::RC_WRITE_ONLY_IMMEDIATE,
        (Operation::Write { .. }, true, false) => opcode::RC_WRITE_FIRST,
        (Operation::Write { .. }, false, false) => opcode::RC_WRITE_MIDDLE,
        (Operation::Write { immediate: None, .. }, false, true) => opcode::RC_WRITE_LAST,
        (Operation::Write { .. }, false, true) => opcode::RC_WRITE_LAST_IMMEDIATE,
        (Operation::Read { .. }, ..) => opcode::RC_READ_REQUEST,
    }
}
