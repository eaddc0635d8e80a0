//! One direction of a link: two queues and a line.
//!
//! Data waits in one queue, all else in a second one that is served first. A packet that leaves the
//! data queue may get an ECN mark. When the data queue is full, the arriving packet or the newest
//! one in it loses its data, and the rest goes to the second queue.

use std::collections::VecDeque;

use spray::Random;

use crate::packet::{Packet, Packets, flag};
use crate::time::{Picos, Rate};

/// No packet.
pub(crate) const NONE: u32 = u32::MAX;

/// The queues of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the data queue. The other queue has twice as many.
    pub bytes: u32,
    /// With more bytes in the queue, packets may be marked.
    pub mark_from: u32,
    /// With more bytes in the queue, all packets are marked.
    pub mark_all: u32,
    /// Whether packets are trimmed when the queue is full. Otherwise they are lost.
    pub trim: bool,
}

impl Limits {
    /// These limits times a factor, for a link with another rate.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let scaled = |bytes: u32| (f64::from(bytes) * factor) as u32;
        Self {
            bytes: scaled(self.bytes),
            mark_from: scaled(self.mark_from),
            mark_all: scaled(self.mark_all),
            trim: self.trim,
        }
    }
}

/// What a port did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of data packets that were sent.
    pub data_bytes: u64,
    /// Data packets that got a mark.
    pub marked: u64,
    /// Packets that lost their data.
    pub trimmed: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// The most bytes in the data queue.
    pub longest: u32,
}

/// One direction of a link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// The time at which the line is free.
    pub(crate) free_at: Picos,
    /// The time that a packet spends on the line after it has left.
    pub(crate) delay: Picos,
    pub(crate) rate: Rate,
    /// The packet that is sent, or [`NONE`].
    pub(crate) sending: u32,
    data: VecDeque<u32>,
    control: VecDeque<u32>,
    /// Bytes in the queues, with the packet that is sent.
    data_bytes: u32,
    control_bytes: u32,
    pub(crate) limits: Limits,
    /// The node at the other end.
    pub(crate) to: u32,
    pub(crate) to_host: bool,
    /// Whether all packets are lost, and nobody knows.
    pub(crate) silent: bool,
    pub(crate) counters: Counters,
    random: Option<Random>,
}

impl Port {
    pub(crate) fn new(rate: Rate, delay: Picos, limits: Limits, random: Random) -> Self {
        Self { delay, rate, limits, sending: NONE, random: Some(random), ..Self::default() }
    }

    /// A uniformly distributed number below `bound`.
    fn below(&mut self, bound: u32) -> u32 {
        self.random.as_mut().map_or(0, |random| random.below(bound.into()) as u32)
    }

    /// Puts a packet into a queue. Gives the packet that is lost, if any.
    pub(crate) fn enqueue(&mut self, id: u32, packets: &mut Packets) -> Option<u32> {
        let packet = &packets[id];
        if !packet.is_data() {
            return self.enqueue_control(id, packet.size.into());
        }
        let size = u32::from(packet.size);
        let mut excess = None;
        if self.data_bytes + size > self.limits.bytes {
            if self.below(2) == 0
                && let Some(newest) = self.data.pop_back()
            {
                self.data_bytes -= u32::from(packets[newest].size);
                excess = Some(newest);
            } else {
                return self.trim(id, packets);
            }
        }
        self.data.push_back(id);
        self.data_bytes += size;
        self.counters.longest = self.counters.longest.max(self.data_bytes);
        excess.and_then(|newest| self.trim(newest, packets))
    }

    fn trim(&mut self, id: u32, packets: &mut Packets) -> Option<u32> {
        if !self.limits.trim {
            self.counters.lost += 1;
            return Some(id);
        }
        self.counters.trimmed += 1;
        let packet = &mut packets[id];
        packet.trim(self.to_host);
        self.enqueue_control(id, packet.size.into())
    }

    fn enqueue_control(&mut self, id: u32, size: u32) -> Option<u32> {
        if self.control_bytes + size > self.limits.bytes.saturating_mul(2) {
            self.counters.lost += 1;
            return Some(id);
        }
        self.control.push_back(id);
        self.control_bytes += size;
        None
    }

    /// The packet that is sent has left. It may get a mark.
    pub(crate) fn complete(&mut self, packets: &mut Packets) {
        let packet = &mut packets[self.sending];
        self.sending = NONE;
        let size = u32::from(packet.size);
        if !packet.is_data() {
            self.control_bytes -= size;
            return;
        }
        self.data_bytes -= size;
        self.counters.data_bytes += u64::from(size);
        let Limits { mark_from, mark_all, .. } = self.limits;
        let left = self.data_bytes;
        if left > mark_from
            && (left > mark_all || self.below(mark_all - mark_from) < left - mark_from)
        {
            self.counters.marked += 1;
            packet.set(flag::MARKED);
        }
    }

    /// Takes the packet that is sent next from a queue.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.control.pop_front().or_else(|| self.data.pop_front())
    }

    /// A host's port gets a packet when it can send it.
    pub(crate) fn count_in(&mut self, packet: &Packet) {
        let size = u32::from(packet.size);
        if packet.is_data() {
            self.data_bytes += size;
        } else {
            self.control_bytes += size;
        }
    }

    /// Begins to send a packet. Gives the time at which it arrives at the other end.
    pub(crate) fn send(&mut self, id: u32, size: u16, at: Picos) -> Picos {
        self.sending = id;
        self.free_at = at + self.rate.time(size.into());
        self.free_at + self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Kind;

    fn port(limits: Limits) -> Port {
        Port::new(Rate::new(100e9), 1000, limits, Random::new(1))
    }

    fn data(packets: &mut Packets, number: u32) -> u32 {
        packets.add(Packet { size: 1000, ..Packet::new(Kind::Data, 0, 1, number) })
    }

    #[test]
    fn a_full_queue_trims_the_newest_or_the_arriving_packet() {
        let limits = Limits { bytes: 5000, mark_from: 5000, mark_all: 5000, trim: true };
        let mut port = port(limits);
        let mut packets = Packets::default();
        for number in 0..105 {
            let id = data(&mut packets, number);
            assert_eq!(port.enqueue(id, &mut packets), None);
        }
        assert_eq!((port.data.len(), port.control.len(), port.counters.trimmed), (5, 100, 100));
        let waiting: Vec<u32> = port.data.iter().map(|&id| packets[id].number).collect();
        assert_eq!(waiting[..4], [0, 1, 2, 3]);
        let trimmed: Vec<u32> = port.control.iter().map(|&id| packets[id].number).collect();
        let newest = trimmed.windows(2).filter(|pair| pair[1] < pair[0] || pair[1] > pair[0] + 1);
        assert!(newest.count() > 20, "{trimmed:?}");
        // What carries no data goes first.
        let next = port.next().unwrap();
        assert_eq!((packets[next].kind(), packets[next].size), (Kind::Trimmed, 64));
    }

    #[test]
    fn without_trimming_and_with_a_full_second_queue_packets_are_lost() {
        let limits = Limits { bytes: 1000, mark_from: 1000, mark_all: 1000, trim: false };
        let mut packets = Packets::default();
        let mut lossy = port(limits);
        let ids: Vec<u32> = (0..2).map(|number| data(&mut packets, number)).collect();
        assert_eq!(lossy.enqueue(ids[0], &mut packets), None);
        assert!(lossy.enqueue(ids[1], &mut packets).is_some());
        let mut port = port(Limits { trim: true, ..limits });
        for number in 0..100 {
            let ack = packets.add(Packet::new(Kind::Ack, 0, 1, number));
            assert_eq!(port.enqueue(ack, &mut packets).is_some(), number >= 31);
        }
        assert_eq!(port.counters.lost, 69);
    }

    #[test]
    fn marks_depend_on_what_a_packet_leaves_behind() {
        let limits = Limits { bytes: 40_000, mark_from: 10_000, mark_all: 30_000, trim: true };
        let mut marks = [0; 40];
        for seed in 0..400 {
            let mut port = Port { random: Some(Random::new(seed)), ..port(limits) };
            let mut packets = Packets::default();
            for number in 0..40 {
                let id = data(&mut packets, number);
                port.enqueue(id, &mut packets);
            }
            for left in (0..40).rev() {
                let id = port.next().unwrap();
                port.send(id, 1000, 0);
                port.complete(&mut packets);
                marks[left] += u32::from(packets[id].has(flag::MARKED));
            }
        }
        assert_eq!(marks[..=10], [0; 11]);
        assert_eq!(marks[31..], [400; 9]);
        assert!((160..240).contains(&marks[20]), "{marks:?}");
    }
}
