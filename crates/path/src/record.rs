//! What the frames of a queue pair tell about its transport: missing and repeated packet sequence
//! numbers (PSNs), negative acknowledgements and congestion.
//!
//! Only requests of a reliable connection have a sequence here. Acknowledgements and read responses
//! carry the PSNs of the other direction. PSNs are compared modulo 2²⁴ (InfiniBand architecture
//! 9.7.1). `crates/bpf/programs/record.bpf.h` does the same; a kernel test compares the two.

use core::fmt;
use core::ops::{Add, AddAssign};
use core::sync::atomic::{AtomicU64, Ordering};

use wire::Psn;
use wire::roce::opcode;

use crate::path_id::CounterId;

/// Reliable connection: the last and the only packet of a send with invalidation, and both atomic
/// operations (InfiniBand architecture 9.2.1 table 35).
const RC_REQUESTS_BEHIND_ACKNOWLEDGE: u32 = 1 << 0x13 | 1 << 0x14 | 1 << 0x16 | 1 << 0x17;

/// Whether a packet has a PSN of its reliable connection's requests.
#[inline]
#[must_use]
pub const fn is_request(opcode: u8) -> bool {
    opcode <= opcode::RC_READ_REQUEST
        || (opcode < 32 && RC_REQUESTS_BEHIND_ACKNOWLEDGE >> opcode & 1 == 1)
}

/// The fields of a RoCE frame that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Opcode ([`wire::roce::opcode`]).
    pub opcode: u8,
    /// Packet sequence number; the low 24 bits count.
    pub sequence: u32,
    /// Syndrome, if it is an acknowledgement ([`wire::roce::Aeth`]).
    pub syndrome: u8,
    /// Whether the inner IP header has the mark "congestion experienced" (RFC 3168).
    pub is_marked: bool,
}

impl Packet {
    /// Reads the fields. `tos` is the type of service or traffic class. `transport` is what follows
    /// the UDP header; a missing syndrome is 0. `None` without a complete base transport header.
    #[inline(always)]
    #[must_use]
    pub fn of(tos: u8, transport: &[u8]) -> Option<Self> {
        let [opcode, _, _, _, _, _, _, _, _, high, middle, low] = *transport.first_chunk()?;
        Some(Self {
            opcode,
            sequence: u32::from_be_bytes([0, high, middle, low]),
            syndrome: transport.get(12).copied().unwrap_or(0),
            is_marked: tos & 3 == 3,
        })
    }

    /// Whether it has a PSN of the connection's requests.
    const fn is_request(self) -> bool {
        is_request(self.opcode)
    }

    /// Whether it is a NAK that is not "receiver not ready".
    const fn is_nak(self) -> bool {
        self.opcode == opcode::RC_ACKNOWLEDGE && self.syndrome & 0x60 == 0x60
    }
}

/// Number of counters.
const COUNTERS: usize = 5;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// PSNs that were skipped.
    pub gaps: u64,
    /// Requests whose PSN was not ahead of all before: retransmitted, or reordered on the way here.
    pub repeats: u64,
    /// Acknowledgements that are NAKs, without "receiver not ready".
    pub naks: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// Frames with the mark "congestion experienced" in the inner IP header.
    pub marks: u64,
}

impl Counts {
    /// Nothing.
    pub const NONE: Self = Self::of_words([0; COUNTERS]);

    const fn words(self) -> [u64; COUNTERS] {
        [self.gaps, self.repeats, self.naks, self.cnps, self.marks]
    }

    const fn of_words([gaps, repeats, naks, cnps, marks]: [u64; COUNTERS]) -> Self {
        Self { gaps, repeats, naks, cnps, marks }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let (mut now, earlier) = (self.words(), earlier.words());
        now.iter_mut().zip(earlier).for_each(|(now, earlier)| *now = now.wrapping_sub(earlier));
        Self::of_words(now)
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (mut sum, other) = (self.words(), other.words());
        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
        Self::of_words(sum)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Where the sequence of a queue pair is: the highest PSN in bits 0 to 23, flags above, and in the
/// upper half the number of frames that were recorded, modulo 2³².
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State(u64);

impl State {
    /// A PSN was seen.
    const KNOWN: u64 = 1 << 24;
    /// The highest PSN is that of a read request. It takes as many as its response has packets, so
    /// the next one is not known.
    const OPEN: u64 = 1 << 25;

    /// Number of frames that were recorded, modulo 2³².
    #[must_use]
    pub const fn frames(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The state before the first frame of another queue pair.
    const fn restarted(self) -> Self {
        Self(self.0 >> 32 << 32)
    }

    /// The state after a frame, and what is to be counted.
    #[inline(always)]
    #[must_use]
    pub const fn after(self, packet: Packet) -> (Self, Counts) {
        let mut counts = Counts {
            gaps: 0,
            repeats: 0,
            naks: packet.is_nak() as u64,
            cnps: (packet.opcode == opcode::CONGESTION_NOTIFICATION) as u64,
            marks: packet.is_marked as u64,
        };
        let counted = self.0.wrapping_add(1 << 32);
        if !packet.is_request() {
            return (Self(counted), counts);
        }
        let sequence = Psn::new(packet.sequence);
        if self.0 & Self::KNOWN != 0 {
            let ahead = sequence.since(Psn::new(self.0 as u32));
            if ahead <= 0 {
                counts.repeats = 1;
                return (Self(counted), counts);
            }
            if self.0 & Self::OPEN == 0 {
                counts.gaps = (ahead - 1) as u64;
            }
        }
        let open = if packet.opcode == opcode::RC_READ_REQUEST { Self::OPEN } else { 0 };
        let known = Self::KNOWN | open | sequence.get() as u64;
        (Self(counted >> 32 << 32 | known), counts)
    }
}

/// Words of a record: the state and the counters.
pub const WORDS: usize = 1 + COUNTERS;

/// The record of a queue pair, in memory that may be shared with programs. There is no lock: if two
/// CPUs update a record at once, updates get lost, and [`State::frames`] falls behind.
pub type Record = [AtomicU64; WORDS];

/// The records of queue pairs.
pub trait Records: fmt::Debug + Send + Sync {
    /// The record of a queue pair, by its counters.
    fn record(&self, counter: CounterId) -> Option<&Record>;
}

impl Records for Vec<Record> {
    fn record(&self, counter: CounterId) -> Option<&Record> {
        self.get(counter.index())
    }
}

/// Records a frame.
#[inline(always)]
pub(crate) fn update([state, counters @ ..]: &Record, packet: Packet) {
    let (next, counts) = State(state.load(Ordering::Relaxed)).after(packet);
    if counts != Counts::NONE {
        for (counter, more) in counters.iter().zip(counts.words()) {
            let value = counter.load(Ordering::Relaxed).wrapping_add(more);
            counter.store(value, Ordering::Relaxed);
        }
    }
    // The last step, so that of two updates at once one gets lost.
    state.store(next.0, Ordering::Release);
}

/// Forgets the sequence, for another queue pair.
pub(crate) fn restart([state, ..]: &Record) {
    state.store(State(state.load(Ordering::Relaxed)).restarted().0, Ordering::Relaxed);
}

/// The counters, and the number of frames modulo 2³².
pub(crate) fn read([state, counters @ ..]: &Record) -> (Counts, u32) {
    let frames = State(state.load(Ordering::Acquire)).frames();
    let words = counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    (Counts::of_words(words), frames)
}

#[cfg(test)]
mod tests;
