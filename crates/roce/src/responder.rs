//! The responder of a reliable connection: executes requests in order, and answers them
//! (InfiniBand architecture 9.7.4 and 9.7.5).
//!
//! With `order = place`, requests that arrive early are kept until their turn. If such a packet of a
//! write has a RETH, its bytes go to their place at once.

use std::collections::VecDeque;

use wire::QueuePair;
use wire::roce::opcode;

use crate::context::Context;
use crate::early::{AHEAD, Early, Kept, Sack};
use crate::memory::Memory;
use crate::packet::{Header, Packet, Remote, SELECTIVE};
use crate::request::Emission;
use crate::work::{Completion, Place, Receive};
use wire::Psn;

/// Syndromes (InfiniBand architecture tables 43 to 45). An acknowledgement carries no credits.
const ACKNOWLEDGE: u8 = 0x1f;
const RNR: u8 = 0x20;
const SEQUENCE_ERROR: u8 = 0x60;
const INVALID_REQUEST: u8 = 0x61;
const ACCESS_ERROR: u8 = 0x62;
/// Maximum number of answers that wait to be sent. Further read requests are not executed; the
/// requester's timer repeats them.
const REPLIES: usize = 512;

/// An answer that waits to be sent. Answers leave in the order of their sequence numbers.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Acknowledge { psn: Psn, syndrome: u8, marked: bool, sack: Option<Sack> },
    Read { psn: Psn, place: Place, rest: u32, first: bool },
}

impl Reply {
    const fn nak(psn: Psn, syndrome: u8) -> Self {
        Self::Acknowledge { psn, syndrome, marked: false, sack: None }
    }

    /// Whether a mark caused it, if it is a positive acknowledgement.
    const fn mark(&mut self) -> Option<&mut bool> {
        match self {
            Self::Acknowledge { syndrome: ACKNOWLEDGE, marked, .. }
            | Self::Acknowledge { sack: Some(_), marked, .. } => Some(marked),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
}

/// The payload of a request.
#[derive(Debug, Clone, Copy)]
enum Body<'a> {
    Bytes(&'a [u8]),
    /// So many bytes that are in the memory already.
    Placed(u32),
}

/// A message of which packets are missing.
#[derive(Debug, Clone, Copy)]
struct Message {
    kind: Kind,
    /// Where the next byte goes.
    place: Place,
    /// How many bytes may follow.
    room: u32,
    length: u32,
    /// The receive buffer of a send.
    receive: Option<u64>,
}

/// The place of a packet in its message.
#[derive(Debug, Clone, Copy)]
struct Part {
    kind: Kind,
    first: bool,
    last: bool,
}

impl Part {
    const fn of(code: u8) -> Option<Self> {
        let (kind, first, last) = match code {
            opcode::RC_SEND_FIRST => (Kind::Send, true, false),
            opcode::RC_SEND_MIDDLE => (Kind::Send, false, false),
            opcode::RC_SEND_LAST | opcode::RC_SEND_LAST_IMMEDIATE => (Kind::Send, false, true),
            opcode::RC_SEND_ONLY | opcode::RC_SEND_ONLY_IMMEDIATE => (Kind::Send, true, true),
            opcode::RC_WRITE_FIRST => (Kind::Write, true, false),
            opcode::RC_WRITE_MIDDLE => (Kind::Write, false, false),
            opcode::RC_WRITE_LAST | opcode::RC_WRITE_LAST_IMMEDIATE => (Kind::Write, false, true),
            opcode::RC_WRITE_ONLY | opcode::RC_WRITE_ONLY_IMMEDIATE => (Kind::Write, true, true),
            _ => return None,
        };
        Some(Self { kind, first, last })
    }
}

/// The buffers of a receive queue.
#[derive(Debug, Default)]
struct Receives {
    posted: VecDeque<Receive>,
    /// A buffer that is posted again immediately.
    endless: Option<Receive>,
}

impl Receives {
    fn take(&mut self) -> Option<Receive> {
        self.posted.pop_front().or(self.endless)
    }
}

/// The responder of one connection.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The number of the next request.
    expected: Psn,
    /// Number of completed messages, 24 bits.
    sequence: u32,
    message: Option<Message>,
    receives: Receives,
    replies: VecDeque<Reply>,
    /// Requests after `expected`.
    kept: Kept,
    /// Bytes of requests since the last acknowledgement.
    unacknowledged: u32,
    /// Whether a NAK was sent for `expected`. Later packets are not answered before it arrives.
    refused: bool,
    failed: bool,
}

impl Responder {
    pub(crate) fn new(first: Psn) -> Self {
        Self { expected: first, ..Self::default() }
    }

    pub(crate) fn post(&mut self, receive: Receive) {
        self.receives.posted.push_back(receive);
    }

    pub(crate) const fn post_endless(&mut self, receive: Receive) {
        self.receives.endless = Some(receive);
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Handles a request packet.
    pub(crate) fn request(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) {
        if self.failed {
            return;
        }
        let ahead = packet.header.psn.since(self.expected);
        if ahead > 0 {
            self.early(ahead, packet, memory, context);
            return;
        }
        if ahead < 0 {
            self.duplicate(packet, context);
            return;
        }
        if !self.take(&packet.header, Body::Bytes(packet.payload), memory, context) {
            return;
        }
        let mut closes = false;
        while let Some(early) = self.kept.take() {
            let body = match &early.payload {
                Ok(bytes) => Body::Bytes(bytes),
                Err(length) => Body::Placed(*length),
            };
            closes = true;
            if !self.take(&early.header, body, memory, context) {
                return;
            }
        }
        self.acknowledge(packet, closes, context);
    }

    /// Executes the request whose turn it is, or refuses it. Returns whether it was executed.
    fn take(
        &mut self,
        header: &Header,
        body: Body<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> bool {
        let done = match (header.opcode, header.remote) {
            (opcode::RC_READ_REQUEST, Some(remote)) if self.message.is_none() => {
                self.read(header.psn, remote, context)
            }
            (code, _) => Part::of(code)
                .ok_or(INVALID_REQUEST)
                .and_then(|part| self.execute(part, header, body, memory, context)),
        };
        match done {
            Ok(packets) => {
                self.expected = self.expected.plus(packets);
                self.kept.advance(packets);
                self.refused = false;
            }
            Err(syndrome) => {
                self.refused = true;
                self.reply(Reply::nak(header.psn, syndrome));
                if syndrome >= INVALID_REQUEST {
                    context.counters.req_remote_access_errors += 1;
                    self.failed = true;
                }
            }
        }
        done.is_ok()
    }

    /// Acknowledges what has arrived if `packet` is a reason: it asks for that, closes a gap, has a
    /// mark, or completes a number of bytes. The answer to a read acknowledges it (9.7.5.1.2).
    fn acknowledge(&mut self, packet: &Packet<'_>, closes: bool, context: &Context<'_>) {
        let settings = context.settings;
        let length = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        self.unacknowledged = self.unacknowledged.saturating_add(length);
        let many = settings.acknowledge_bytes;
        let is_read = packet.header.opcode == opcode::RC_READ_REQUEST;
        if packet.header.acknowledge && !is_read
            || closes
            || packet.congested && settings.acknowledge_marked
            || many > 0 && self.unacknowledged >= many
        {
            self.unacknowledged = 0;
            self.confirm(packet, context);
        }
    }

    /// Queues an acknowledgement that `packet` caused.
    fn confirm(&mut self, packet: &Packet<'_>, context: &Context<'_>) {
        let psn = self.expected.previous();
        let (cause, map) = (packet.header.psn, self.kept.map());
        let selective = context.settings.places() && (cause != psn || !map.is_empty());
        let marked = packet.congested && context.settings.nscc.is_some();
        let sack = selective.then_some(Sack { cause, map });
        let syndrome = if selective { SELECTIVE << 5 } else { ACKNOWLEDGE };
        self.reply(Reply::Acknowledge { psn, syndrome, marked, sack });
    }

    /// A request that arrived before those that precede it.
    fn early(
        &mut self,
        ahead: i32,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) {
        context.counters.out_of_sequence += 1;
        if !context.settings.places() {
            if !std::mem::replace(&mut self.refused, true) {
                self.reply(Reply::nak(self.expected, SEQUENCE_ERROR));
            }
            return;
        }
        let Ok(ahead) = usize::try_from(ahead) else { return };
        if self.kept.has(ahead) {
            context.counters.duplicate_request += 1;
            self.confirm(packet, context);
            return;
        }
        let Packet { header, payload, .. } = *packet;
        let Ok(length) = u32::try_from(payload.len()) else { return };
        // Without room, it is as if it were lost.
        if ahead >= AHEAD || length > context.settings.mtu {
            return;
        }
        context.counters.kept_out_of_order += 1;
        let write = Part::of(header.opcode).is_some_and(|part| part.kind == Kind::Write);
        let placed = write
            && context.settings.reth_in_each
            && header.remote.is_some_and(|remote| {
                length == 0 || memory.write(remote.key, remote.address, payload)
            });
        let payload = if placed { Err(length) } else { Ok(payload.to_vec()) };
        self.kept.keep(ahead, Early { header, payload });
        self.acknowledge(packet, false, context);
    }

    /// A request that was executed before. A read is executed again; anything else is only
    /// acknowledged (9.7.4.3).
    fn duplicate(&mut self, packet: &Packet<'_>, context: &mut Context<'_>) {
        context.counters.duplicate_request += 1;
        if let (opcode::RC_READ_REQUEST, Some(remote)) =
            (packet.header.opcode, packet.header.remote)
        {
            self.answer_read(packet.header.psn, remote);
        } else {
            self.confirm(packet, context);
        }
    }

    /// Executes a read in order. Returns the number of sequence numbers that it takes.
    fn read(&mut self, psn: Psn, remote: Remote, context: &Context<'_>) -> Result<u32, u8> {
        if remote.length > crate::work::LENGTH_MAX {
            return Err(INVALID_REQUEST);
        }
        if !self.answer_read(psn, remote) {
            // The requester has more reads outstanding than it may.
            return Err(INVALID_REQUEST);
        }
        self.sequence = (self.sequence + 1) & 0xff_ffff;
        Ok(context.settings.packets(remote.length))
    }

    fn answer_read(&mut self, psn: Psn, remote: Remote) -> bool {
        let place = Place { key: remote.key, address: remote.address };
        let room = self.replies.len() < REPLIES;
        if room {
            let rest = remote.length.min(crate::work::LENGTH_MAX);
            self.replies.push_back(Reply::Read { psn, place, rest, first: true });
        }
        room
    }

    /// Executes a packet of a send or write. The error is the syndrome of a NAK.
    fn execute(
        &mut self,
        part: Part,
        header: &Header,
        body: Body<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<u32, u8> {
        let length = match body {
            Body::Bytes(bytes) => u32::try_from(bytes.len()).map_err(|_| INVALID_REQUEST)?,
            Body::Placed(length) => length,
        };
        let mtu = context.settings.mtu;
        let fits = if part.last { length <= mtu } else { length == mtu };
        // Messages do not interleave (9.7.4.1.6).
        let continues = self.message.is_some_and(|message| message.kind == part.kind);
        if !fits || part.first == self.message.is_some() || !part.first && !continues {
            return Err(INVALID_REQUEST);
        }
        let not_ready = RNR | context.settings.rnr_timer & 31;
        let mut message = match self.message {
            Some(message) => message,
            None => self.begin(part.kind, header).ok_or_else(|| {
                context.counters.out_of_buffer += 1;
                not_ready
            })?,
        };
        let rest = message.room.checked_sub(length).ok_or(INVALID_REQUEST)?;
        let Place { key, address } = message.place;
        if header.remote.is_some_and(|remote| (remote.key, remote.address) != (key, address)) {
            return Err(INVALID_REQUEST);
        }
        let consumes = part.last && part.kind == Kind::Write && header.immediate.is_some();
        if consumes {
            let Some(receive) = self.receives.take() else {
                context.counters.out_of_buffer += 1;
                return Err(not_ready);
            };
            message.receive = Some(receive.id);
        }
        if let Body::Bytes(bytes) = body
            && length > 0
            && !memory.write(key, address, bytes)
        {
            return Err(ACCESS_ERROR);
        }
        message.place = message.place.plus(length.into());
        message.room = rest;
        message.length += length;
        self.message = (!part.last).then_some(message);
        if part.last {
            if part.kind == Kind::Write && rest > 0 {
                return Err(INVALID_REQUEST);
            }
            self.sequence = (self.sequence + 1) & 0xff_ffff;
            if let Some(id) = message.receive {
                context.completions.push_back(Completion::Received {
                    queue_pair: context.queue_pair,
                    id,
                    length: message.length,
                    immediate: header.immediate,
                });
            }
        }
        Ok(1)
    }

    /// Begins a message; `None` if a send finds no buffer.
    fn begin(&mut self, kind: Kind, header: &Header) -> Option<Message> {
        let (place, room, receive) = match (kind, header.remote) {
            (Kind::Write, Some(Remote { address, key, length })) => {
                (Place { key, address }, length, None)
            }
            _ => {
                let receive = self.receives.take()?;
                (receive.place, receive.length, Some(receive.id))
            }
        };
        Some(Message { kind, place, room, length: 0, receive })
    }

    /// Queues an acknowledgement or NAK. An acknowledgement replaces one that has not been sent, and
    /// keeps its mark.
    fn reply(&mut self, mut reply: Reply) {
        if let Some(before) = self.replies.back_mut()
            && let Some(earlier) = before.mark()
            && let Some(mark) = reply.mark()
        {
            *mark |= *earlier;
            *before = reply;
        } else if self.replies.len() < 2 * REPLIES {
            self.replies.push_back(reply);
        }
    }

    /// The next answer: an acknowledgement, or a packet of a read response.
    pub(crate) fn next(
        &mut self,
        destination: QueuePair,
        context: &Context<'_>,
    ) -> Option<Emission> {
        let sequence = self.sequence;
        let mtu = context.settings.mtu;
        let reply = self.replies.front_mut()?;
        let (emission, done) = match reply {
            Reply::Acknowledge { psn, syndrome, marked, sack } => {
                let mut header = Header::new(opcode::RC_ACKNOWLEDGE, destination, *psn);
                header.syndrome = Some((*syndrome, sequence));
                (header.congestion, header.sack) = (*marked, *sack);
                (Emission { header, payload: Place::default(), length: 0 }, true)
            }
            Reply::Read { psn, place, rest, first } => {
                let length = (*rest).min(mtu);
                let last = *rest <= mtu;
                let code = match (*first, last) {
                    (true, true) => opcode::RC_READ_RESPONSE_ONLY,
                    (true, false) => opcode::RC_READ_RESPONSE_FIRST,
                    (false, false) => opcode::RC_READ_RESPONSE_MIDDLE,
                    (false, true) => opcode::RC_READ_RESPONSE_LAST,
                };
                let mut header = Header::new(code, destination, *psn);
                if *first || last {
                    header.syndrome = Some((ACKNOWLEDGE, sequence));
                }
                let emission = Emission { header, payload: *place, length: length as usize };
                (*psn, *place, *first) = (psn.plus(1), place.plus(length.into()), false);
                *rest -= length;
                (emission, last)
            }
        };
        if done {
            self.replies.pop_front();
        }
        Some(emission)
    }

    /// The memory of a read could not be read: the rest of it is refused.
    pub(crate) fn refuse_read(&mut self, psn: Psn) {
        if let Some(Reply::Read { psn: next, .. }) = self.replies.front()
            && *next == psn.plus(1)
        {
            self.replies.pop_front();
        }
        self.replies.push_front(Reply::nak(psn, ACCESS_ERROR));
        self.failed = true;
    }
}
