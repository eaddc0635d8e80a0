//! Recognises ids that were seen before (RFC 4303 section 3.4.3 describes such a window).

use std::time::Duration;

/// Ids that may arrive late: those below the highest one by less than this.
const WINDOW: u32 = 4096;
const WORDS: usize = WINDOW as usize / 64;
/// After this time without an id, a sender is silent.
const SILENCE: Duration = Duration::from_secs(10);

/// The ids of one sender. It starts a new epoch, with a higher number, when it starts again.
#[derive(Debug, Clone)]
pub struct Window {
    epoch: u32,
    highest: u32,
    seen: [u64; WORDS],
    last: Duration,
}

impl Window {
    /// A window whose first id is this one.
    #[must_use]
    pub fn new(epoch: u32, id: u32, now: Duration) -> Self {
        let mut window = Self { epoch, highest: id, seen: [0; WORDS], last: now };
        window.mark(id);
        window
    }

    /// Whether the id is new.
    #[must_use]
    pub fn is_new(&self, epoch: u32, id: u32) -> bool {
        if epoch != self.epoch {
            return epoch > self.epoch;
        }
        id > self.highest || self.highest - id < WINDOW && !self.is_seen(id)
    }

    /// Whether this epoch may be one of a silent sender whose clock was set back before it started
    /// again.
    #[must_use]
    pub const fn may_be_set_back(&self, epoch: u32, now: Duration) -> bool {
        epoch < self.epoch && now.saturating_sub(self.last).as_nanos() > SILENCE.as_nanos()
    }

    /// Whether the id is new. If so, it is remembered.
    pub fn accept(&mut self, epoch: u32, id: u32, now: Duration) -> bool {
        if !self.is_new(epoch, id) {
            return false;
        }
        if epoch != self.epoch {
            *self = Self::new(epoch, id, now);
            return true;
        }
        if id > self.highest {
            let passed = (id - self.highest).min(WINDOW);
            (1..=passed).for_each(|n| self.clear(self.highest.wrapping_add(n)));
            self.highest = id;
        }
        self.last = now;
        self.mark(id);
        true
    }

    const fn place(id: u32) -> (usize, u64) {
        let bit = id % WINDOW;
        (bit as usize / 64, 1 << (bit % 64))
    }

    fn is_seen(&self, id: u32) -> bool {
        let (word, bit) = Self::place(id);
        self.seen.get(word).is_some_and(|word| word & bit != 0)
    }

    fn mark(&mut self, id: u32) {
        let (word, bit) = Self::place(id);
        self.seen.get_mut(word).into_iter().for_each(|word| *word |= bit);
    }

    fn clear(&mut self, id: u32) {
        let (word, bit) = Self::place(id);
        self.seen.get_mut(word).into_iter().for_each(|word| *word &= !bit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_accepted_once_and_an_old_epoch_never() {
        let now = Duration::from_secs(100);
        let mut window = Window::new(5, 10, now);
        let accepted = |window: &mut Window, ids: &[u32]| {
            ids.iter().map(|id| window.accept(5, *id, now)).collect::<Vec<_>>()
        };
        assert_eq!(
            accepted(&mut window, &[10, 12, 11, 11, 12, 9]),
            [false, true, true, false, false, true]
        );
        assert_eq!(
            accepted(&mut window, &[5000, 905, 904, 5000 + 4096, 5000]),
            [true, true, false, true, false]
        );
        assert_eq!(accepted(&mut window, &[u32::MAX, 20_000]), [true, false]);
        assert!(!window.accept(4, 1, now));
        assert!(window.accept(6, 1, now) && !window.accept(6, 1, now));
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(!window.accept(5, 1, after(11)));
        let set_back = [(5, 9), (5, 11), (6, 11), (7, 11)];
        let set_back = set_back.map(|(epoch, at)| window.may_be_set_back(epoch, after(at)));
        assert_eq!(set_back, [false, true, false, false]);
    }
}
