//! How many exploring probes may wait for their answers at once.
//!
//! On a machine that emulates a whole fabric, all leaves explore at the same time and share its CPUs.
//! Without a limit, queues grow until packets of BFD are late or lost. So answers that come late make
//! the window smaller before anything is lost, as in TCP Vegas and LEDBAT (RFC 6817). Probes of paths
//! in use are not counted: they are few, and have to be sent in time.

use std::time::Duration;

/// The smallest window, with which exploring begins.
const LEAST: u32 = 8;
/// The largest one.
const MOST: u32 = 256;
/// An answer is late if it takes this much longer than twice the shortest time.
const QUEUEING: Duration = Duration::from_millis(10);
/// For how long the shortest time of an answer counts, at least: the path may become longer.
const MEMORY: Duration = Duration::from_secs(10);

/// The number of probes that may wait for their answers.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    waiting: u32,
    /// The shortest times of answers: in this period of [`MEMORY`], and in the one before.
    fastest: [Duration; 2],
    /// When this period began.
    period: Duration,
    /// When the window became smaller.
    cut: Duration,
    /// Probes without an answer minus answers, if that is more than nothing.
    missed: u32,
}

impl Window {
    pub(super) const fn new() -> Self {
        let (fastest, zero) = ([Duration::MAX; 2], Duration::ZERO);
        Self { size: LEAST, waiting: 0, fastest, period: zero, cut: zero, missed: 0 }
    }

    /// Whether a probe may be sent.
    pub(super) const fn has_room(&self) -> bool {
        self.waiting < self.size
    }

    /// Probes are sent.
    pub(super) const fn sent(&mut self, probes: u32) {
        self.waiting += probes;
    }

    /// The answer to a probe arrived in time.
    pub(super) fn answered(&mut self, now: Duration, delay: Duration) {
        self.waiting = self.waiting.saturating_sub(1);
        self.missed = self.missed.saturating_sub(1);
        if !self.heard(now, delay) {
            self.size = (self.size + 1).min(MOST);
        }
    }

    /// An answer took this time. It may have come after the probe was given up. Returns whether it
    /// is late.
    pub(super) fn heard(&mut self, now: Duration, delay: Duration) -> bool {
        let [current, before] = self.fastest;
        self.fastest = match now.saturating_sub(self.period) >= MEMORY {
            true => {
                self.period = now;
                [delay, current]
            }
            false => [current.min(delay), before],
        };
        let is_late = delay > self.fastest[0].min(self.fastest[1]) * 2 + QUEUEING;
        if is_late {
            self.shrink(now, delay);
        }
        is_late
    }

    /// A probe was not answered in time. That is a reason to explore more slowly if most are not.
    pub(super) fn missed(&mut self, now: Duration, timeout: Duration) {
        self.waiting = self.waiting.saturating_sub(1);
        self.missed += 1;
        if self.missed > LEAST {
            self.shrink(now, timeout);
        }
    }

    /// Halves the window, at most once in this time: the probes that are on their way belong to the
    /// window before.
    fn shrink(&mut self, now: Duration, time: Duration) {
        if now.saturating_sub(self.cut) >= time {
            self.size = (self.size / 2).max(LEAST);
            (self.cut, self.missed) = (now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Sends as many probes as there is room for.
    fn fill(window: &mut Window) -> u32 {
        let before = window.waiting;
        while window.has_room() {
            window.sent(1);
        }
        window.waiting - before
    }

    #[test]
    fn prompt_answers_double_the_window_in_each_round() {
        let mut window = Window::new();
        let mut sent = Vec::new();
        for round in 1..8 {
            sent.push(fill(&mut window));
            (0..window.waiting).for_each(|_| window.answered(ms(round), ms(1)));
        }
        assert_eq!(sent, [8, 16, 32, 64, 128, 256, 256]);
    }

    #[test]
    fn late_answers_halve_it_once_in_a_round() {
        let mut window = Window { size: 64, fastest: [ms(1); 2], ..Window::new() };
        fill(&mut window);
        window.answered(ms(100), ms(12));
        assert_eq!(window.size, 65, "twice the shortest time and 10 ms are not late");
        (0..10).for_each(|_| window.answered(ms(100), ms(40)));
        assert_eq!(window.size, 32);
        (0..10).for_each(|_| assert!(window.heard(ms(140), ms(40))));
        assert_eq!(window.size, 16);
        (200..400).step_by(50).for_each(|at| assert!(window.heard(ms(at), ms(40))));
        assert_eq!(window.size, LEAST);
    }

    #[test]
    fn a_longer_path_counts_as_the_shortest_after_a_while() {
        let mut window = Window { fastest: [ms(1); 2], ..Window::new() };
        for at in (0..25_000).step_by(30) {
            window.sent(1);
            window.answered(ms(at), ms(30));
            assert!(at > 10_000 || window.size < 2 * LEAST, "{window:?}");
        }
        assert!(window.size > 128, "{window:?}");
    }

    #[test]
    fn a_tenth_lost_does_not_matter_and_a_silent_peer_does() {
        let mut window = Window { size: 64, ..Window::new() };
        for at in 0..640 {
            window.sent(1);
            match at % 10 {
                0 => window.missed(ms(at), ms(25)),
                _ => window.answered(ms(at), ms(1)),
            }
        }
        assert_eq!(window.size, MOST);
        fill(&mut window);
        for at in 0..5 {
            (0..window.waiting).for_each(|_| window.missed(ms(1000 + 25 * at), ms(25)));
            fill(&mut window);
        }
        assert_eq!((window.size, window.waiting), (LEAST, LEAST));
    }
}
