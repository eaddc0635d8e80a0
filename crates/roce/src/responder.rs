//! The responder of a reliable connection: executes requests in order, and answers them
//! (InfiniBand architecture 9.7.4 and 9.7.5).

use std::collections::VecDeque;

use wire::QueuePair;
use wire::roce::opcode;

use crate::context::Context;
use crate::memory::Memory;
use crate::packet::{Header, Packet, Remote};
use crate::psn::Psn;
use crate::requester::Emission;
use crate::work::{Completion, Place, Receive};

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
    Acknowledge { psn: Psn, syndrome: u8 },
    Read { psn: Psn, place: Place, rest: u32, first: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
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
#[derive(Debug)]
pub(crate) struct Responder {
    /// The number of the next request.
    expected: Psn,
    /// Number of completed messages, 24 bits.
    sequence: u32,
    message: Option<Message>,
    receives: Receives,
    replies: VecDeque<Reply>,
    /// Whether a NAK was sent for `expected`. Later packets are not answered before it arrives.
    refused: bool,
    failed: bool,
}

impl Responder {
    pub(crate) fn new(first: Psn) -> Self {
        Self {
            expected: first,
            sequence: 0,
            message: None,
            receives: Receives::default(),
            replies: VecDeque::new(),
            refused: false,
            failed: false,
        }
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
            context.counters.out_of_sequence += 1;
            if !std::mem::replace(&mut self.refused, true) {
                self.reply(self.expected, SEQUENCE_ERROR);
            }
            return;
        }
        if ahead < 0 {
            self.duplicate(packet, context);
            return;
        }
        let done = match (packet.header.opcode, packet.header.remote) {
            (opcode::RC_READ_REQUEST, Some(remote)) if self.message.is_none() => {
                self.read(packet.header.psn, remote, context)
            }
            (code, _) => Part::of(code)
                .ok_or(INVALID_REQUEST)
                .and_then(|part| self.execute(part, packet, memory, context)),
        };
        match done {
            Ok(packets) => {
                self.expected = self.expected.plus(packets);
                self.refused = false;
                if packet.header.acknowledge {
                    self.reply(self.expected.previous(), ACKNOWLEDGE);
                }
            }
            Err(syndrome) => {
                self.refused = true;
                self.reply(packet.header.psn, syndrome);
                if syndrome >= INVALID_REQUEST {
                    context.counters.req_remote_access_errors += 1;
                    self.failed = true;
                }
            }
        }
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
            self.reply(self.expected.previous(), ACKNOWLEDGE);
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
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<u32, u8> {
        let length = u32::try_from(packet.payload.len()).map_err(|_| INVALID_REQUEST)?;
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
            None => self.begin(part.kind, packet).ok_or_else(|| {
                context.counters.out_of_buffer += 1;
                not_ready
            })?,
        };
        let rest = message.room.checked_sub(length).ok_or(INVALID_REQUEST)?;
        let consumes = part.last && part.kind == Kind::Write && packet.header.immediate.is_some();
        if consumes {
            let Some(receive) = self.receives.take() else {
                context.counters.out_of_buffer += 1;
                return Err(not_ready);
            };
            message.receive = Some(receive.id);
        }
        let Place { key, address } = message.place;
        if length > 0 && !memory.write(key, address, packet.payload) {
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
                    immediate: packet.header.immediate,
                });
            }
        }
        Ok(1)
    }

    /// Begins a message; `None` if a send finds no buffer.
    fn begin(&mut self, kind: Kind, packet: &Packet<'_>) -> Option<Message> {
        let (place, room, receive) = match (kind, packet.header.remote) {
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

    /// Queues an acknowledgement or NAK. It replaces an acknowledgement that has not been sent.
    fn reply(&mut self, psn: Psn, syndrome: u8) {
        if let Some(Reply::Acknowledge { psn: last, syndrome: ACKNOWLEDGE }) =
            self.replies.back_mut()
            && syndrome == ACKNOWLEDGE
        {
            *last = psn;
            return;
        }
        if self.replies.len() < 2 * REPLIES {
            self.replies.push_back(Reply::Acknowledge { psn, syndrome });
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
            Reply::Acknowledge { psn, syndrome } => {
                let mut header = Header::new(opcode::RC_ACKNOWLEDGE, destination, *psn);
                header.syndrome = Some((*syndrome, sequence));
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
        self.replies.push_front(Reply::Acknowledge { psn, syndrome: ACCESS_ERROR });
        self.failed = true;
    }
}
