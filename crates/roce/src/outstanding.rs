//! What a requester has sent and does not know to have arrived: for selective retransmission, and
//! for congestion control by round trip times.

use std::collections::VecDeque;

use crate::early::Map;
use wire::Psn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    /// A selective acknowledgement has it.
    Arrived,
    Lost,
}

/// A packet that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    first: Psn,
    /// One past the last sequence number that it takes: a read takes one for each response.
    end: Psn,
    at: u64,
    bytes: u32,
    state: State,
    /// Whether it was sent more than once.
    again: bool,
    read: bool,
}

/// The packet that was sent last of those that have arrived, and its round trip time.
#[derive(Debug, Clone, Copy)]
struct Newest {
    at: u64,
    psn: Psn,
    round_trip: u64,
}

impl Newest {
    /// Whether it was sent after `packet`.
    const fn is_after(&self, packet: &Sent) -> bool {
        packet.at < self.at || packet.at == self.at && packet.first.is_before(self.psn)
    }
}

/// The packets from the oldest that is not acknowledged, in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    packets: VecDeque<Sent>,
    /// Bytes of payload that are neither acknowledged nor lost.
    under_way: u64,
    lost: usize,
    newest: Option<Newest>,
    /// When a packet that others overtook counts as lost.
    overtaken_at: Option<u64>,
    /// Bytes acknowledged and bytes lost since they were taken.
    covered: u32,
    lost_bytes: u32,
}

impl Outstanding {
    pub(crate) const fn under_way(&self) -> u64 {
        self.under_way
    }

    pub(crate) const fn overtaken_at(&self) -> Option<u64> {
        self.overtaken_at
    }

    /// Adds a packet that takes the numbers from `first` to before `end`. `bytes`: of its payload;
    /// `None` for a read.
    pub(crate) fn push(
        &mut self,
        (first, end): (Psn, Psn),
        at: u64,
        bytes: Option<u32>,
        again: bool,
    ) {
        let (read, bytes) = (bytes.is_none(), bytes.unwrap_or(0));
        self.under_way += u64::from(bytes);
        self.packets.push_back(Sent { first, end, at, bytes, state: State::UnderWay, again, read });
    }

    /// The place of the packet that has this number.
    fn find(&self, psn: Psn) -> Option<usize> {
        let at = self.packets.partition_point(|packet| !psn.is_before(packet.end));
        self.packets.get(at).is_some_and(|packet| !psn.is_before(packet.first)).then_some(at)
    }

    /// The round trip time of a packet whose acknowledgement arrives now, if it is the first one
    /// and the packet was sent once.
    pub(crate) fn round_trip(&mut self, psn: Psn, now: u64) -> Option<u64> {
        let packet = self.packets.get(self.find(psn)?)?;
        if packet.again || packet.state == State::Arrived || packet.read {
            return None;
        }
        let round_trip = now.saturating_sub(packet.at);
        let newest = Newest { at: packet.at, psn, round_trip };
        if self.newest.is_none_or(|newest| newest.is_after(packet)) {
            self.newest.get_or_insert(newest).round_trip = round_trip;
        } else {
            self.newest = Some(newest);
        }
        Some(round_trip)
    }

    /// All packets before `acked` have arrived.
    pub(crate) fn acknowledge(&mut self, acked: Psn) {
        while let Some(packet) = self.packets.front().copied()
            && !acked.is_before(packet.end)
        {
            self.packets.pop_front();
            self.arrived(&packet);
        }
    }

    fn arrived(&mut self, packet: &Sent) {
        match packet.state {
            State::Arrived => return,
            State::UnderWay => self.under_way -= u64::from(packet.bytes),
            State::Lost => self.lost -= 1,
        }
        self.covered = self.covered.saturating_add(packet.bytes);
        if let Some(newest) = &mut self.newest
            && !packet.again
            && !newest.is_after(packet)
        {
            (newest.at, newest.psn) = (packet.at, packet.first);
        }
    }

    /// Packets after `base` have arrived as the map says. Returns whether this was news.
    pub(crate) fn arrive(&mut self, base: Psn, map: &Map) -> bool {
        let mut news = false;
        for at in 0..self.packets.len() {
            let Some(packet) = self.packets.get_mut(at) else { break };
            let ahead = packet.first.since(base);
            if packet.state != State::Arrived && usize::try_from(ahead).is_ok_and(|at| map.has(at))
            {
                let before = *packet;
                packet.state = State::Arrived;
                self.arrived(&before);
                news = true;
            }
        }
        news
    }

    /// Packets that others overtook by more than `reordering` nanoseconds are lost (RFC 8985,
    /// section 6.2).
    pub(crate) fn detect(&mut self, now: u64, reordering: u64) {
        self.overtaken_at = None;
        let Some(newest) = self.newest else { return };
        for at in 0..self.packets.len() {
            let Some(packet) = self.packets.get(at) else { break };
            if packet.state != State::UnderWay || !newest.is_after(packet) {
                continue;
            }
            let expires = packet.at.saturating_add(newest.round_trip).saturating_add(reordering);
            if expires <= now {
                self.lose_at(at);
            } else {
                self.overtaken_at = Some(self.overtaken_at.map_or(expires, |at| at.min(expires)));
            }
        }
    }

    fn lose_at(&mut self, at: usize) {
        let Some(packet) = self.packets.get_mut(at) else { return };
        match packet.state {
            State::Lost => return,
            State::UnderWay => self.under_way -= u64::from(packet.bytes),
            // It had arrived, but was not executed: it counts as acknowledged already.
            State::Arrived => packet.bytes = 0,
        }
        packet.state = State::Lost;
        self.lost += 1;
        self.lost_bytes = self.lost_bytes.saturating_add(packet.bytes);
    }

    /// The packet with this number is to be sent again, even if it has arrived.
    pub(crate) fn lose(&mut self, psn: Psn) {
        if let Some(at) = self.find(psn) {
            self.lose_at(at);
        }
    }

    /// All packets from this number on are to be sent again.
    pub(crate) fn lose_from(&mut self, psn: Psn) {
        let first = self.find(psn).unwrap_or(self.packets.len());
        (first..self.packets.len()).for_each(|at| self.lose_at(at));
    }

    /// Packets that were sent until `time` are lost, unless they have arrived. A read that has
    /// arrived lacks its response. The first packet lacks its acknowledgement, and asks for it.
    pub(crate) fn lose_until(&mut self, time: u64) {
        for at in 0..self.packets.len() {
            let Some(packet) = self.packets.get(at) else { break };
            let lacks = at == 0 || packet.read || packet.state == State::UnderWay;
            if packet.at <= time && lacks {
                self.lose_at(at);
            }
        }
    }

    /// When the oldest packet was sent.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.packets.front().map(|packet| packet.at)
    }

    /// Forgets the packets from this number on, which are sent again in order. The first one of
    /// them was lost.
    pub(crate) fn go_back(&mut self, psn: Psn) {
        let first = self.find(psn).unwrap_or(self.packets.len());
        self.lose_at(first);
        for packet in self.packets.drain(first..) {
            match packet.state {
                State::UnderWay => self.under_way -= u64::from(packet.bytes),
                State::Lost => self.lost -= 1,
                State::Arrived => {}
            }
        }
    }

    pub(crate) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// The first number of the first lost packet, which is sent again now.
    pub(crate) fn repeat(&mut self, now: u64) -> Option<Psn> {
        let packet = self.packets.iter_mut().find(|packet| packet.state == State::Lost)?;
        (packet.state, packet.at, packet.again) = (State::UnderWay, now, true);
        self.lost -= 1;
        self.under_way += u64::from(packet.bytes);
        Some(packet.first)
    }

    /// Bytes that were acknowledged since the last call.
    pub(crate) fn take_covered(&mut self) -> u32 {
        std::mem::take(&mut self.covered)
    }

    /// Bytes that were lost since the last call.
    pub(crate) fn take_lost(&mut self) -> u32 {
        std::mem::take(&mut self.lost_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(outstanding: &mut Outstanding) -> (u32, u32) {
        (outstanding.take_covered(), outstanding.take_lost())
    }

    fn psn(number: u32) -> Psn {
        Psn::new(0xff_fffe).plus(number)
    }

    /// Packets 0 to 7 with 100 bytes, sent at 0, 10, …, 70.
    fn eight() -> Outstanding {
        let mut outstanding = Outstanding::default();
        for number in 0..8 {
            let range = (psn(number), psn(number + 1));
            outstanding.push(range, u64::from(number) * 10, Some(100), false);
        }
        outstanding
    }

    fn map(numbers: &[usize]) -> Map {
        let mut map = Map::default();
        numbers.iter().for_each(|number| map.set(*number));
        map
    }

    #[test]
    fn a_packet_is_lost_once_others_overtook_it_by_the_time_of_reordering() {
        let mut outstanding = eight();
        // Packet 3 causes an acknowledgement: 0 and 1 are covered, 2 is missing.
        assert_eq!(outstanding.round_trip(psn(3), 100), Some(70));
        outstanding.acknowledge(psn(2));
        assert!(outstanding.arrive(psn(2), &map(&[1])));
        assert!(!outstanding.arrive(psn(2), &map(&[1])));
        assert_eq!((outstanding.under_way(), news(&mut outstanding)), (500, (300, 0)));
        outstanding.detect(100, 50);
        // Packet 2 was sent at 20, and 70 + 50 later it is lost.
        assert_eq!((outstanding.overtaken_at(), outstanding.has_lost()), (Some(140), false));
        outstanding.detect(140, 50);
        assert_eq!((outstanding.overtaken_at(), news(&mut outstanding)), (None, (0, 100)));
        assert_eq!(outstanding.repeat(141), Some(psn(2)));
        assert_eq!((outstanding.repeat(141), outstanding.under_way()), (None, 500));
        // A round trip time of a repeated packet is not known.
        assert_eq!(outstanding.round_trip(psn(2), 200), None);
        outstanding.acknowledge(psn(8));
        assert_eq!((outstanding.under_way(), news(&mut outstanding)), (0, (500, 0)));
    }

    #[test]
    fn packets_that_were_sent_at_the_same_time_overtake_each_other_by_number() {
        let mut outstanding = Outstanding::default();
        for number in 0..3 {
            outstanding.push((psn(number), psn(number + 1)), 5, Some(100), false);
        }
        outstanding.round_trip(psn(1), 15);
        outstanding.arrive(psn(0), &map(&[1]));
        outstanding.detect(1000, 0);
        assert_eq!(outstanding.repeat(1000), Some(psn(0)));
        assert!(!outstanding.has_lost());
    }

    #[test]
    fn a_timeout_and_a_step_back_keep_the_sum_of_bytes() {
        let mut outstanding = eight();
        outstanding.arrive(psn(0), &map(&[1, 2]));
        outstanding.lose_until(40);
        assert_eq!((outstanding.under_way(), news(&mut outstanding)), (300, (200, 300)));
        // A packet that arrived but could not be executed is repeated.
        outstanding.lose(psn(1));
        let repeated: Vec<_> = std::iter::from_fn(|| outstanding.repeat(90)).collect();
        assert_eq!(repeated, [0, 1, 3, 4].map(psn));
        outstanding.go_back(psn(4));
        assert_eq!((outstanding.under_way(), outstanding.has_lost()), (200, false));
        outstanding.acknowledge(psn(4));
        assert_eq!((outstanding.under_way(), outstanding.oldest()), (0, None));
    }
}
