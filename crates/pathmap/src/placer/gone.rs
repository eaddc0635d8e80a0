//! Queue pairs that were forgotten, with the path that they had last.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Flow, FlowId, Placer};
use crate::load::Link;

/// How long a queue pair that was forgotten is remembered here.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The most queue pairs that are remembered. Then each new one takes the place of the oldest.
const MOST: usize = 4096;

/// A queue pair that was forgotten.
#[derive(Debug, Clone)]
pub struct Gone {
    /// Which one, from 0 in the order in which they were forgotten.
    pub number: u64,
    /// The queue pair.
    pub id: FlowId,
    /// What was known of it. [`Flow::active`] tells when it sent last, to half a second.
    pub flow: Flow,
    /// The links of its path, as far as they were known.
    pub links: Vec<Link>,
    /// When it was forgotten.
    pub at: Duration,
}

/// The queue pairs that were forgotten last.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    queue: VecDeque<Gone>,
    next: u64,
}

impl Remembered {
    /// Remembers a queue pair that is forgotten `now`.
    fn push(&mut self, id: FlowId, flow: Flow, links: Vec<Link>, now: Duration) {
        let is_old = |gone: &Gone| now.saturating_sub(gone.at) >= REMEMBERED;
        while self.queue.len() >= MOST || self.queue.front().is_some_and(is_old) {
            self.queue.pop_front();
        }
        self.queue.push_back(Gone { number: self.next, id, flow, links, at: now });
        self.next += 1;
    }

    fn from(&self, number: u64, most: usize, now: Duration) -> impl Iterator<Item = &Gone> {
        let first = self.queue.front().map_or(self.next, |gone| gone.number);
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        let some = self.queue.iter().skip(skipped);
        some.filter(move |gone| now.saturating_sub(gone.at) < REMEMBERED).take(most)
    }
}

impl Placer {
    /// Up to `most` of the queue pairs that were forgotten in the last hour, from this
    /// [number](Gone::number) on, oldest first. At most 4,096 are remembered in all. One that came
    /// again and was forgotten again is there several times.
    pub fn gone(&self, number: u64, most: usize, now: Duration) -> impl Iterator<Item = &Gone> {
        self.gone_pairs.from(number, most, now)
    }

    /// Forgets a queue pair, and remembers which path it had.
    pub(super) fn forget(&mut self, id: &FlowId, now: Duration) {
        let Some(flow) = self.flows.remove(id) else { return };
        let counter = flow.counter;
        let paths = self.targets.get(&id.target);
        self.sums.change((id.target, counter), (flow.counted, None), paths, self.measured);
        self.shares.give_back(id, now);
        if let Some((channel, queue_pair)) = id.channel() {
            self.pairing.remove(channel, queue_pair, flow.port);
        }
        self.untell(id, counter);
        self.counts.forgotten += 1;
        self.revision = self.revision.next();
        self.unwritten.insert(counter);
        self.recall(counter);
        let links = self.links(id.target, flow.path);
        self.gone_pairs.push(*id, flow, links, now);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use path::{CounterId, Key, PathId};
    use wire::QueuePair;

    use super::super::{Reading, Target};
    use super::*;

    fn remember(remembered: &mut Remembered, queue_pair: u32, now: Duration) {
        let address = |last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
        let target =
            Target { local: address(1), address: address(2), port: 4789, by_kernel: false };
        let key = Key::QueuePair {
            source: address(3),
            destination: address(4),
            queue_pair: QueuePair::try_from(queue_pair).unwrap(),
        };
        let path = PathId { hop: 7, source_port: 50_000 };
        let counters = (CounterId::FIRST, Reading::default());
        let flow = Flow::new((path, false), counters, 1, Duration::ZERO);
        remembered.push(FlowId { vni: 10, key, target }, flow, vec![Link::Uplink(7)], now);
    }

    fn numbers(remembered: &Remembered, from: u64, most: usize, now: Duration) -> Vec<u64> {
        remembered.from(from, most, now).map(|gone| gone.number).collect()
    }

    #[test]
    fn they_are_remembered_for_an_hour() {
        let mut remembered = Remembered::default();
        let [begin, middle] = [0, 3000].map(Duration::from_secs);
        remember(&mut remembered, 0x11, begin);
        remember(&mut remembered, 0x12, middle);
        let second = Duration::from_secs(1);
        assert_eq!(numbers(&remembered, 0, 9, REMEMBERED - second), [0, 1]);
        assert_eq!(numbers(&remembered, 0, 1, REMEMBERED), [1]);
        remember(&mut remembered, 0x13, REMEMBERED);
        assert_eq!(remembered.queue.len(), 2, "what is too old takes no memory");
        assert_eq!(numbers(&remembered, 0, 9, middle + REMEMBERED), [2]);
    }

    #[test]
    fn the_oldest_make_room_and_numbers_go_on() {
        let mut remembered = Remembered::default();
        let most = u64::try_from(MOST).unwrap();
        for number in 0..most + 3 {
            remember(&mut remembered, u32::try_from(number).unwrap(), Duration::ZERO);
        }
        assert_eq!(remembered.queue.len(), MOST);
        assert_eq!(numbers(&remembered, 0, 2, Duration::ZERO), [3, 4], "0 to 2 are gone");
        assert_eq!(numbers(&remembered, 5, 2, Duration::ZERO), [5, 6]);
        assert_eq!(numbers(&remembered, most + 2, 9, Duration::ZERO), [most + 2]);
        assert!(numbers(&remembered, most + 3, 9, Duration::ZERO).is_empty());
    }
}
