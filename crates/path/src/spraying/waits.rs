//! How long packets wait on each path. A path is passed over while they wait much longer there than on
//! another one.
//!
//! Marks and losses say that a queue is long, and not how long it is. Where hosts send as much as
//! all paths carry, all queues are long. Then the shares of the paths must follow their rates, or all
//! that hosts have on its way ends up in the queue of the slowest one.

use super::pool::{Backlog, Pool};

/// How much longer packets may wait on one path than on another, in nanoseconds. It is about the time
/// between two reports: differences that are smaller cannot be known.
pub(super) const SLACK: u64 = 2_000_000;

/// The queue of a path.
#[derive(Debug, Clone, Copy)]
struct Queue {
    is_down: bool,
    /// Packets on their way.
    packets: u64,
    /// What is known of it.
    backlog: Backlog,
}

impl Queue {
    /// How long one more packet waits, in nanoseconds.
    const fn wait(&self) -> u64 {
        if self.is_down {
            return u64::MAX;
        }
        self.backlog.wait(self.packets)
    }
}

/// How long packets wait on each path, as one worker knows it.
#[derive(Debug, Clone)]
pub(super) struct Waits {
    queues: Box<[Queue]>,
    /// Packets may wait so long.
    most: u64,
    /// Whether no path has a queue, and none is down.
    are_even: bool,
}

impl Waits {
    pub(super) fn of(pool: &Pool) -> Self {
        let mut own = Self { queues: Box::default(), most: u64::MAX, are_even: true };
        own.learn(pool);
        own
    }

    /// Follows the feedback of a pool.
    pub(super) fn learn(&mut self, pool: &Pool) {
        let queue = |known| match known {
            None => Queue { is_down: true, packets: 0, backlog: Backlog::default() },
            Some((backlog, packets)) => Queue { is_down: false, packets, backlog },
        };
        self.queues = pool.backlogs().map(queue).collect();
        self.are_even =
            self.queues.iter().all(|queue| !queue.is_down && queue.backlog.service == 0);
        self.limit();
    }

    /// Returns the shortest wait, and allows little more.
    fn limit(&mut self) -> u64 {
        let least = self.queues.iter().map(Queue::wait).min().unwrap_or(0);
        self.most = least.saturating_add(SLACK);
        least
    }

    /// The path for some packets: `first` or, if packets wait too long there, another one of the `next`
    /// that the scheme gives.
    #[inline]
    pub(super) fn admit(
        &mut self,
        first: usize,
        packets: u16,
        next: impl FnMut() -> usize,
    ) -> usize {
        if self.are_even {
            return first;
        }
        let number = self.choose(first, next);
        if let Some(queue) = self.queues.get_mut(number) {
            queue.packets += u64::from(packets);
        }
        number
    }

    fn choose(&mut self, first: usize, mut next: impl FnMut() -> usize) -> usize {
        let is_short = |own: &Self, number: usize| {
            own.queues.get(number).is_some_and(|of| of.wait() <= own.most)
        };
        if is_short(self, first) {
            return first;
        }
        // All may have longer queues since the last feedback.
        let least = self.limit();
        let mut number = first;
        // `next` may begin in the middle of a round, so two rounds have a whole one.
        for _ in 0..2 * self.queues.len() {
            if is_short(self, number) {
                return number;
            }
            number = next();
        }
        // The scheme avoids all paths with room. This one has the shortest queue.
        self.queues.iter().position(|queue| queue.wait() == least).unwrap_or(first)
    }
}
