//! Events in the order of their times.
//!
//! Near events are in a ring of buckets, each for a short time, and are sorted when their bucket's
//! time comes. Far events, such as timers, are in a heap. Events of the same time come in the order
//! in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Picos;

/// The time of all buckets together, as a power of two of picoseconds: 4.2 µs. It is longer than
/// most links.
const SPAN: u32 = 22;
/// Events for which a bucket keeps room. Few have more, and each of them at some time.
const KEPT: usize = 16;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A packet has passed a link.
    Arrive(u32),
    /// A flow starts.
    Start(u32),
    /// The oldest packet of a flow may be lost.
    Timer(u32),
    /// A fault begins or ends.
    Fault(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) at: Picos,
    pub(crate) what: What,
}

/// Events to come.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    buckets: Vec<Vec<Event>>,
    /// The time of a bucket, as a power of two of picoseconds.
    width: u32,
    /// The bucket of the time, counted from time 0.
    today: u64,
    /// The events of this bucket in their order, and how many of them were taken.
    current: Vec<Event>,
    taken: usize,
    /// The events in buckets.
    near: usize,
    far: BinaryHeap<Reverse<(Picos, u64, What)>>,
    /// Numbers the far events.
    added: u64,
}

impl Calendar {
    /// A calendar for so many ports. With a bucket for each port, a bucket has few events.
    pub(crate) fn new(ports: u32) -> Self {
        let bits = ports.clamp(64, 1 << 16).next_power_of_two().trailing_zeros();
        Self { buckets: vec![Vec::new(); 1 << bits], width: SPAN - bits, ..Self::default() }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Picos, what: What) {
        let day = at >> self.width;
        let event = Event { at, what };
        if day <= self.today {
            let rest = self.current.get(self.taken..).unwrap_or_default();
            let before = rest.partition_point(|other| other.at <= at);
            self.current.insert(self.taken + before, event);
            return;
        }
        let mask = self.buckets.len() as u64 - 1;
        match self.buckets.get_mut((day & mask) as usize) {
            Some(bucket) if day - self.today <= mask => {
                bucket.push(event);
                self.near += 1;
            }
            _ => {
                self.far.push(Reverse((at, self.added, what)));
                self.added += 1;
            }
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        loop {
            if let Some(&event) = self.current.get(self.taken) {
                self.taken += 1;
                return Some(event);
            }
            self.next_day()?;
        }
    }

    /// Goes to the next day, or to the next one with an event if none is near.
    fn next_day(&mut self) -> Option<()> {
        self.current.clear();
        self.taken = 0;
        let far = self.far.peek().map(|Reverse((at, ..))| at >> self.width);
        self.today = match (self.near, far) {
            (0, None) => return None,
            (0, Some(day)) => day,
            _ => self.today + 1,
        };
        while let Some(Reverse((at, ..))) = self.far.peek()
            && at >> self.width <= self.today
        {
            let Reverse((at, _, what)) = self.far.pop()?;
            self.current.push(Event { at, what });
        }
        let mask = self.buckets.len() as u64 - 1;
        let bucket = self.buckets.get_mut((self.today & mask) as usize)?;
        self.near -= bucket.len();
        self.current.append(bucket);
        bucket.shrink_to(KEPT);
        // The sort is stable.
        self.current.sort_by_key(|event| event.at);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use spray::Random;

    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times_and_then_as_added() {
        let mut random = Random::new(1);
        let mut calendar = Calendar::new(100);
        let mut expected = std::collections::BTreeSet::new();
        let (mut now, mut number) = (0, 0);
        for _ in 0..20_000 {
            for _ in 0..random.below(3) {
                // Some now, most near, some far, and often the same time.
                let wait = [0, 4096, 1 << 21, 1 << 30][random.below(4) as usize];
                let at = now + random.below(wait / 1000 + 1) * 1000;
                calendar.push(at, What::Arrive(number));
                expected.insert((at, number));
                number += 1;
            }
            let event = calendar.pop();
            let first = expected.pop_first();
            assert_eq!(
                event.map(|event| (event.at, event.what)),
                first.map(|(at, number)| (at, What::Arrive(number)))
            );
            now = first.map_or(now, |(at, _)| at);
        }
        assert!(number > 15_000);
    }

    /// Bursts of events, in each bucket in turn, leave no room behind.
    #[test]
    fn a_burst_takes_memory_while_it_lasts() {
        let mut calendar = Calendar::new(64);
        for day in 1..200 {
            (0..100).for_each(|number| calendar.push(day << calendar.width, What::Start(number)));
            (0..100).for_each(|_| assert!(calendar.pop().is_some()));
        }
        let room: usize = calendar.buckets.iter().map(Vec::capacity).sum();
        assert!(room <= 64 * KEPT, "{room} events");
    }

    #[test]
    fn an_event_is_sixteen_bytes() {
        assert_eq!(size_of::<Event>(), 16);
    }
}
