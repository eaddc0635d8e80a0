//! The receiving end of a flow: places packets in any order, and acknowledges them.

use std::collections::VecDeque;

use crate::packet::{Kind, Packet, flag};

/// Which packets from a number on have arrived.
#[derive(Debug, Default)]
struct Map {
    /// The number of the first bit, a multiple of 64.
    start: u32,
    words: VecDeque<u64>,
}

impl Map {
    fn word(&self, number: u32) -> u64 {
        let at = number.checked_sub(self.start).map(|offset| offset as usize / 64);
        at.and_then(|at| self.words.get(at)).copied().unwrap_or_default()
    }

    fn has(&self, number: u32) -> bool {
        self.word(number) >> (number % 64) & 1 == 1
    }

    fn set(&mut self, number: u32) {
        let Some(offset) = number.checked_sub(self.start) else { return };
        let at = offset as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        if let Some(word) = self.words.get_mut(at) {
            *word |= 1 << (number % 64);
        }
    }

    /// The 64 bits from a number on.
    fn bits(&self, number: u32) -> u64 {
        let shift = number % 64;
        let high = if shift == 0 { 0 } else { self.word(number + (64 - shift)) << (64 - shift) };
        self.word(number) >> shift | high
    }

    /// Forgets the words below a number.
    fn forget(&mut self, below: u32) {
        while below >= self.start + 64 {
            self.words.pop_front();
            self.start += 64;
        }
    }
}

/// The receiving end of a flow.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// All packets below this number have arrived.
    below: u32,
    map: Map,
    /// The packets that arrived and are not below.
    early: u32,
    /// Bytes that arrived, modulo 2³².
    received: u32,
    /// Bytes that arrived since the last acknowledgement.
    silent: u32,
    /// Whether the sender wanted an answer while packets were missing.
    asked: bool,
}

impl Receiver {
    /// The answer to a packet, if it gets one now. Data is acknowledged after `every` bytes; or at
    /// once if it is marked, the first, repeated, or if the sender asks.
    pub(crate) fn receive(&mut self, packet: &Packet, every: u32) -> Option<Packet> {
        let known = packet.number < self.below || self.map.has(packet.number);
        match packet.kind() {
            Kind::Trimmed if known => Some(self.acknowledge(packet, false)),
            Kind::Trimmed => {
                let kept = [flag::MARKED, flag::AGAIN, flag::LAST_HOP].into_iter();
                let flags = kept.filter(|&flag| packet.has(flag)).sum();
                let mut nack = Packet::new(Kind::Nack, flags, packet.flow(), packet.number);
                nack.entropy = packet.entropy;
                Some(nack)
            }
            Kind::Probe => {
                if !known {
                    self.place(packet.number);
                }
                self.silent = if known { 0 } else { self.silent };
                Some(self.acknowledge(packet, !known))
            }
            _ => self.receive_data(packet, known, every),
        }
    }

    fn receive_data(&mut self, packet: &Packet, known: bool, every: u32) -> Option<Packet> {
        let marked = packet.has(flag::MARKED);
        self.silent += u32::from(packet.size);
        if known {
            self.silent = 0;
            return Some(self.acknowledge(packet, marked));
        }
        let asks = packet.has(flag::ANSWER);
        let mut now = marked || asks || self.received == 0 || self.silent >= every;
        self.received = self.received.wrapping_add(packet.size.into());
        self.asked |= asks;
        let was_next = packet.number == self.below;
        self.place(packet.number);
        if was_next && self.early == 0 && self.asked {
            self.asked = false;
            now = true;
        }
        if !now {
            return None;
        }
        self.silent = 0;
        Some(self.acknowledge(packet, marked || asks))
    }

    /// Notes that a packet has arrived.
    fn place(&mut self, number: u32) {
        self.map.set(number);
        self.early += 1;
        if number == self.below {
            while self.map.has(self.below) {
                self.below += 1;
                self.early -= 1;
            }
            self.map.forget(self.below);
        }
    }

    /// `from_packet`: whether the map begins with the packet.
    fn acknowledge(&self, packet: &Packet, from_packet: bool) -> Packet {
        // A trimmed packet says nothing about marks.
        let marked = packet.has(flag::MARKED) && packet.kind() != Kind::Trimmed;
        let flags = if marked { flag::MARKED } else { 0 }
            | if packet.has(flag::AGAIN) { flag::AGAIN } else { 0 };
        let begin = if from_packet { flag::ANSWER } else { 0 };
        let mut ack = Packet::new(Kind::Ack, flags | begin, packet.flow(), packet.number);
        ack.entropy = packet.entropy;
        ack.below = self.below;
        ack.received = self.received;
        ack.map = self.map.bits(ack.map_begin());
        ack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(number: u32, flags: u8) -> Packet {
        Packet { size: 4150, entropy: 9, ..Packet::new(Kind::Data, flags, 3, number) }
    }

    fn answer(receiver: &mut Receiver, number: u32, flags: u8) -> Option<(u32, u32, u64)> {
        let ack = receiver.receive(&data(number, flags), 16_384)?;
        assert_eq!((ack.flow(), ack.kind(), ack.entropy), (3, Kind::Ack, 9));
        Some((ack.below, ack.map_begin(), ack.map))
    }

    #[test]
    fn four_packets_have_one_acknowledgement() {
        let mut receiver = Receiver::default();
        let acks: Vec<u32> =
            (0..9).filter(|&number| answer(&mut receiver, number, 0).is_some()).collect();
        // The first, and then each fourth.
        assert_eq!(acks, [0, 4, 8]);
        assert_eq!(receiver.received, 9 * 4150);
    }

    #[test]
    fn marks_questions_and_closed_gaps_are_answered_at_once() {
        let mut receiver = Receiver::default();
        assert_eq!(answer(&mut receiver, 0, 0), Some((1, 2, 0)));
        assert_eq!(answer(&mut receiver, 2, flag::MARKED), Some((1, 2, 1)));
        assert_eq!(answer(&mut receiver, 4, flag::ANSWER), Some((1, 4, 1)));
        assert_eq!(answer(&mut receiver, 3, 0), None);
        // The gap closes, and an answer was wanted.
        assert_eq!(answer(&mut receiver, 1, 0), Some((5, 6, 0)));
        assert_eq!(answer(&mut receiver, 5, 0), None);
        // Repeated.
        assert_eq!(answer(&mut receiver, 3, 0), Some((6, 7, 0)));
        assert_eq!(receiver.received, 6 * 4150);
    }

    #[test]
    fn the_map_has_sixty_four_packets() {
        let mut receiver = Receiver::default();
        for number in (1..200).step_by(2) {
            receiver.receive(&data(number, 0), u32::MAX);
        }
        let (below, begin, map) = answer(&mut receiver, 160, flag::MARKED).unwrap();
        assert_eq!((below, begin), (0, 160));
        let odd = (1..40).step_by(2).fold(1, |map, bit| map | 1_u64 << bit);
        assert_eq!(map, odd);
        let ack = receiver.receive(&data(100, 0), 0).unwrap();
        assert_eq!((ack.map_begin(), ack.map), (37, 0x5555_5555_5555_5555 | 1 << 63));
        for number in (0..200).step_by(2) {
            receiver.receive(&data(number, 0), u32::MAX);
        }
        assert_eq!((receiver.below, receiver.early), (200, 0));
        assert!(receiver.map.words.len() <= 1);
    }

    #[test]
    fn trimmed_packets_get_a_negative_answer_unless_they_are_there() {
        let mut receiver = Receiver::default();
        let mut packet = data(1, flag::MARKED);
        packet.trim(true);
        let nack = receiver.receive(&packet, 0).unwrap();
        assert_eq!((nack.kind(), nack.number, nack.entropy), (Kind::Nack, 1, 9));
        assert!(nack.has(flag::MARKED) && nack.has(flag::LAST_HOP));
        receiver.receive(&data(1, 0), 0);
        let ack = receiver.receive(&packet, 0).unwrap();
        assert_eq!((ack.kind(), ack.has(flag::MARKED)), (Kind::Ack, false));
    }

    #[test]
    fn a_probe_has_a_number_but_no_bytes() {
        let mut receiver = Receiver::default();
        let ack = receiver.receive(&Packet::new(Kind::Probe, flag::ANSWER, 3, 0), 0).unwrap();
        assert_eq!((ack.below, ack.received), (1, 0));
    }
}
