//! The sending end of a flow.
//!
//! It sends while its window allows: lost packets first, the lowest number first, then new ones.

use std::collections::VecDeque;

use roce::nscc::{Network, Nscc};
use spray::{Entropy, Nanos, Random, Signal, Spray as _, Sprayer};

use crate::packet::{HEADER, Kind, Packet, flag};
use crate::time::Picos;

/// What acknowledgements tell a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feedback {
    /// The path and the mark of the packet that caused the acknowledgement. After a timeout the
    /// sender does not know the path, and blames path 0.
    Acknowledged,
    /// The sender remembers the path of each packet. All packets that are newly acknowledged count:
    /// only the one that caused the acknowledgement may have had a mark, because marks are
    /// acknowledged at once.
    EachPacket,
}

/// What is known about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    Lost,
    Arrived,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    sent_at: Picos,
    entropy: u16,
    size: u16,
    state: State,
    /// How often it was repeated.
    times: u8,
    probe: bool,
}

/// What happened to a flow's packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) retransmitted: u64,
    pub(crate) probes: u64,
    pub(crate) acks: u64,
    pub(crate) nacks: u64,
    pub(crate) timeouts: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.retransmitted += other.retransmitted;
        self.probes += other.probes;
        self.acks += other.acks;
        self.nacks += other.nacks;
        self.timeouts += other.timeouts;
    }
}

/// The sending end of a flow.
#[derive(Debug)]
pub(crate) struct Sender {
    flow: u32,
    /// Bytes that were never sent, with headers.
    backlog: u64,
    /// The numbers from here on have a record.
    below: u32,
    records: VecDeque<Record>,
    /// Lost packets, the highest number first.
    lost: Vec<u32>,
    /// What was sent when, the oldest first.
    log: VecDeque<(Picos, u32)>,
    under_way: i64,
    received: u32,
    window: Nscc,
    full: u16,
    probed_at: Option<Picos>,
    /// Whether the host has it in its list of flows that can send.
    pub(crate) listed: bool,
    /// Whether a timer event is to come.
    pub(crate) timed: bool,
    pub(crate) counts: Counts,
    pub(crate) random: Random,
}

/// The time for schemes.
const fn nanos(time: Picos) -> Nanos {
    time / 1000
}

impl Sender {
    pub(crate) fn new(flow: u32, bytes: u64, network: Network, random: Random) -> Self {
        let payload = u64::from(network.packet - HEADER);
        Self {
            flow,
            backlog: bytes + bytes.div_ceil(payload) * u64::from(HEADER),
            below: 0,
            records: VecDeque::new(),
            lost: Vec::new(),
            log: VecDeque::new(),
            under_way: 0,
            received: 0,
            window: Nscc::new(network),
            full: network.packet,
            probed_at: None,
            listed: false,
            timed: false,
            counts: Counts::default(),
            random,
        }
    }

    fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number.checked_sub(self.below)? as usize)
    }

    fn record_mut(&mut self, number: u32) -> Option<&mut Record> {
        self.records.get_mut(number.checked_sub(self.below)? as usize)
    }

    /// The number after the highest one.
    fn end(&self) -> u32 {
        self.below + self.records.len() as u32
    }

    /// Whether everything is acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.backlog == 0 && self.records.is_empty()
    }

    /// The lost packet that is next, and its length.
    fn next_lost(&mut self) -> Option<(u32, u16)> {
        loop {
            let &number = self.lost.last()?;
            match self.record(number) {
                Some(record) if record.state == State::Lost => return Some((number, record.size)),
                _ => self.lost.pop(),
            };
        }
    }

    fn next_new(&self) -> Option<u16> {
        (self.backlog > 0).then(|| self.backlog.min(self.full.into()) as u16)
    }

    /// Whether it has something to send and its window allows it.
    pub(crate) fn can_send(&mut self) -> bool {
        let size = self.next_lost().map(|(_, size)| size).or_else(|| self.next_new());
        size.is_some_and(|size| self.fits(size))
    }

    fn fits(&self, size: u16) -> bool {
        self.window.window() >= self.under_way + i64::from(size)
    }

    /// The next packet. Call it only if [`Self::can_send`].
    pub(crate) fn send(&mut self, now: Picos, sprayer: &mut Sprayer) -> Option<Packet> {
        let lost = self.next_lost();
        let size = lost.map(|(_, size)| size).or_else(|| self.next_new())?;
        let entropy = sprayer.next(nanos(now), &mut self.random);
        let mut packet = match lost {
            Some((number, _)) => {
                self.lost.pop();
                self.counts.retransmitted += 1;
                let probe = self.record(number).is_some_and(|record| record.probe);
                let kind = if probe { Kind::Probe } else { Kind::Data };
                self.under_way += if probe { 0 } else { size.into() };
                Packet::new(kind, flag::ANSWER | flag::AGAIN, self.flow, number)
            }
            None => {
                self.backlog -= u64::from(size);
                self.under_way += i64::from(size);
                self.counts.packets += 1;
                let full = self.under_way + i64::from(size) >= self.window.window();
                let asks = if self.backlog == 0 || full { flag::ANSWER } else { 0 };
                Packet::new(Kind::Data, asks, self.flow, self.end())
            }
        };
        packet.size = size;
        packet.entropy = entropy.0;
        self.remember(&packet, now);
        Some(packet)
    }

    /// A packet that was sent takes another path than the scheme said.
    pub(crate) fn takes_path(&mut self, packet: &Packet) {
        if let Some(record) = self.record_mut(packet.number) {
            record.entropy = packet.entropy;
        }
    }

    /// A packet without data that makes the receiver tell what it has.
    fn probe(&mut self, now: Picos, sprayer: &mut Sprayer) -> Packet {
        let entropy = sprayer.next(nanos(now), &mut self.random);
        let mut packet = Packet::new(Kind::Probe, flag::ANSWER, self.flow, self.end());
        packet.entropy = entropy.0;
        self.counts.probes += 1;
        self.probed_at = Some(now);
        self.remember(&packet, now);
        packet
    }

    fn remember(&mut self, packet: &Packet, now: Picos) {
        if self.log.len() == self.log.capacity() {
            // What was answered makes room.
            let _ = self.oldest();
        }
        self.log.push_back((now, packet.number));
        let probe = packet.kind() == Kind::Probe;
        let (entropy, size) = (packet.entropy, packet.size);
        match self.record_mut(packet.number) {
            Some(record) => {
                record.sent_at = now;
                record.entropy = entropy;
                record.state = State::UnderWay;
                record.times = record.times.saturating_add(1);
            }
            None => self.records.push_back(Record {
                sent_at: now,
                entropy,
                size,
                state: State::UnderWay,
                times: 0,
                probe,
            }),
        }
    }

    /// An acknowledgement has arrived.
    pub(crate) fn on_ack(
        &mut self,
        now: Picos,
        ack: &Packet,
        sprayer: &mut Sprayer,
        feedback: Feedback,
    ) {
        self.counts.acks += 1;
        // An older acknowledgement may arrive later.
        let newer = ack.received.wrapping_sub(self.received).cast_signed().max(0);
        let bytes = newer.cast_unsigned();
        self.received = self.received.wrapping_add(bytes);
        self.under_way -= i64::from(bytes);
        let repeated = u8::from(ack.has(flag::AGAIN));
        let valid = |record: &&Record| {
            record.state == State::UnderWay && record.times == repeated && !record.probe
        };
        let round_trip = self.record(ack.number).filter(valid).map(|record| now - record.sent_at);
        let mut good = |record: &Record, number: u32| {
            if feedback == Feedback::EachPacket && number != ack.number && !record.probe {
                sprayer.feedback(nanos(now), Entropy(record.entropy), Signal::Good(1));
            }
        };
        while self.below < ack.below
            && let Some(record) = self.records.pop_front()
        {
            match record.state {
                State::UnderWay => good(&record, self.below),
                // It was taken off when it seemed lost.
                State::Lost => self.under_way += in_window(&record),
                State::Arrived => {}
            }
            self.below += 1;
        }
        let (mut map, begin) = (ack.map, ack.map_begin());
        while map != 0 {
            let number = begin + map.trailing_zeros();
            map &= map - 1;
            let offset = number.checked_sub(self.below).map(|offset| offset as usize);
            let Some(record) = offset.and_then(|at| self.records.get_mut(at)) else { continue };
            match record.state {
                State::UnderWay => good(record, number),
                State::Lost => self.under_way += in_window(record),
                State::Arrived => {}
            }
            record.state = State::Arrived;
        }
        let marked = ack.has(flag::MARKED);
        let signal = if marked { Signal::Marked(1) } else { Signal::Good(1) };
        sprayer.feedback(nanos(now), Entropy(ack.entropy), signal);
        self.window.on_ack(now, marked, round_trip, bytes, self.under_way);
    }

    /// A trimmed packet has arrived.
    pub(crate) fn on_nack(&mut self, now: Picos, nack: &Packet, sprayer: &mut Sprayer) {
        self.counts.nacks += 1;
        let Some(record) = self.record_mut(nack.number) else { return };
        if record.state != State::UnderWay {
            return;
        }
        record.state = State::Lost;
        let (round_trip, size) = (now - record.sent_at, record.size);
        self.window.on_nack(now, round_trip, size, self.under_way);
        self.under_way -= i64::from(size);
        self.add_lost(nack.number);
        // Behind the last switch there is only one path.
        let signal = match (nack.has(flag::LAST_HOP), nack.has(flag::MARKED)) {
            (false, _) => Signal::Lost(1),
            (true, true) => Signal::Marked(1),
            (true, false) => Signal::Good(1),
        };
        sprayer.feedback(nanos(now), Entropy(nack.entropy), signal);
    }

    fn add_lost(&mut self, number: u32) {
        let at = self.lost.partition_point(|&other| other > number);
        if self.lost.get(at) != Some(&number) {
            self.lost.insert(at, number);
        }
    }

    /// The time at which the oldest packet that is under way was sent, and its number.
    pub(crate) fn oldest(&mut self) -> Option<(Picos, u32)> {
        loop {
            let &(at, number) = self.log.front()?;
            match self.record(number) {
                Some(record) if record.state == State::UnderWay && record.sent_at == at => {
                    return Some((at, number));
                }
                _ => self.log.pop_front(),
            };
        }
    }

    /// The oldest packet that is under way seems lost. Gives its length if it is the only one that
    /// waits for its repetition.
    pub(crate) fn on_timeout(
        &mut self,
        now: Picos,
        sprayer: &mut Sprayer,
        feedback: Feedback,
    ) -> Option<u16> {
        let (_, number) = self.oldest()?;
        let alone = self.next_lost().is_none();
        let record = self.record_mut(number)?;
        record.state = State::Lost;
        let record = *record;
        self.counts.timeouts += 1;
        let blamed = if feedback == Feedback::EachPacket { record.entropy } else { 0 };
        sprayer.feedback(nanos(now), Entropy(blamed), Signal::Silent);
        self.under_way -= in_window(&record);
        self.window.on_timeout(record.size);
        self.add_lost(number);
        alone.then_some(record.size)
    }

    /// A probe, if a packet of this length does not fit into the window, at most once a round trip.
    pub(crate) fn probe_if_full(
        &mut self,
        now: Picos,
        size: u16,
        round_trip: Picos,
        sprayer: &mut Sprayer,
    ) -> Option<Packet> {
        let lately = self.probed_at.is_some_and(|at| now - at < round_trip);
        (!lately && !self.fits(size)).then(|| self.probe(now, sprayer))
    }

    /// What it waits for, in words.
    pub(crate) fn waits_for(&mut self, ends: (u32, u32), now: Picos) -> String {
        let arrived = self.below;
        let left = self.backlog.div_ceil(self.full.into());
        let all = u64::from(self.end()) + left;
        let lost = self.lost.len();
        match self.oldest().and_then(|(at, number)| Some((at, number, *self.record(number)?))) {
            Some((at, number, record)) => format!(
                "{arrived} of {all} packets are acknowledged; packet {number}, sent {} times, last \
                 {:.1} µs ago on path {}, is not",
                u32::from(record.times) + 1,
                (now - at) as f64 / 1e6,
                record.entropy
            ),
            None if lost > 0 => format!(
                "{arrived} of {all} packets are acknowledged; {lost} lost packets wait for the \
                 window of {} bytes or for host {}'s line",
                self.window.window(),
                ends.0
            ),
            None => format!(
                "{arrived} of {all} packets are acknowledged; the next waits for host \
                 {}'s line",
                ends.0
            ),
        }
    }
}

/// The bytes that a packet takes of the window. A probe takes none.
fn in_window(record: &Record) -> i64 {
    if record.probe { 0 } else { record.size.into() }
}

#[cfg(test)]
mod tests {
    use spray::Scheme;
    use spray::order::Tiers;

    use super::*;

    /// What is remembered of packets is what is under way, and not the whole flow.
    #[test]
    fn answered_packets_take_no_memory() {
        let mut random = Random::new(1);
        let tiers = Tiers::new(&[4]).unwrap();
        let mut sprayer = Sprayer::new(Scheme::Oblivious, tiers, (10_000, 100), &mut random);
        let (packet, header, target) = (4160, HEADER, 5_000_000);
        let network = Network { round_trip: 10_000_000, product: 125e3, packet, header, target };
        let mut sender = Sender::new(0, 4_000_000, network, random);
        let mut received = 0_u32;
        for number in 0..900 {
            let now = u64::from(number) * 1000;
            let sent = sender.send(now, &mut sprayer).unwrap();
            received += u32::from(sent.size);
            let mut ack = Packet::new(Kind::Ack, flag::ANSWER, 0, number);
            (ack.below, ack.received) = (number + 1, received);
            sender.on_ack(now + 500, &ack, &mut sprayer, Feedback::Acknowledged);
        }
        assert!(sender.log.capacity() + sender.records.capacity() <= 16, "{:?}", sender.log);
    }
}
