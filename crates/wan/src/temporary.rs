//! Changes with an end. `lab wan` ends them itself, so that they end although the program that made
//! them was killed.

use std::time::Duration;

use super::control::Change;

/// What undoes changes that have an end. Each property of a direction is in one of them at most.
#[derive(Debug, Default)]
pub(super) struct Temporary(Vec<End>);

/// The end of a change.
#[derive(Debug)]
struct End {
    at: Duration,
    direction: usize,
    undo: Change,
}

impl Temporary {
    /// Notes a change of a direction. `before` are its properties before the change. Returns what
    /// undoes the change: properties that an earlier change had set for a time get the values from
    /// before that one, which ends now.
    pub(super) fn changed(
        &mut self,
        now: Duration,
        direction: usize,
        change: &Change,
        before: &Change,
    ) -> Change {
        let mut undo = before.clone();
        for end in self.0.iter_mut().filter(|end| end.direction == direction) {
            undo = end.undo.named_by(change).or(&undo);
            end.undo = end.undo.not_named_by(change);
        }
        self.0.retain(|end| !end.undo.is_empty());
        if let Some(time) = change.time {
            let at = now.saturating_add(Duration::from_nanos(time));
            self.0.push(End { at, direction, undo: undo.named_by(change) });
        }
        undo
    }

    /// When the next change ends.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.iter().map(|end| end.at).min()
    }

    /// The directions whose changes have ended, with what undoes these.
    pub(super) fn ended(&mut self, now: Duration) -> Vec<(usize, Change)> {
        let ended = self.0.extract_if(.., |end| end.at <= now);
        ended.map(|end| (end.direction, end.undo)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn delay(delay: u64) -> Change {
        Change { delay: Some(delay), ..Change::default() }
    }

    fn for_seconds(seconds: u64, change: Change) -> Change {
        Change { time: Some(seconds * 1_000_000_000), ..change }
    }

    /// All properties, with this delay.
    fn all(delay: u64) -> Change {
        Change {
            jitter: Some(0),
            loss: Some(0.0),
            rate: Some(0),
            queue: Some(9),
            ..self::delay(delay)
        }
    }

    #[test]
    fn a_change_ends_after_its_time_and_others_stay() {
        let mut temporary = Temporary::default();
        let loss = Change { loss: Some(0.5), ..Change::default() };
        assert_eq!(temporary.changed(s(0), 1, &for_seconds(5, delay(7)), &all(1)), all(1));
        temporary.changed(s(1), 1, &loss, &all(7));
        assert_eq!(temporary.next(), Some(s(5)));
        assert_eq!(temporary.ended(s(4)), []);
        // A shorter delay may have lowered the jitter.
        let undo = Change { jitter: Some(0), ..delay(1) };
        assert_eq!(temporary.ended(s(5)), [(1, undo)]);
        assert_eq!((temporary.next(), temporary.ended(s(9))), (None, vec![]));
    }

    #[test]
    fn a_later_change_ends_an_earlier_one() {
        let mut temporary = Temporary::default();
        temporary.changed(s(0), 0, &for_seconds(60, delay(7)), &all(1));
        temporary.changed(s(0), 1, &for_seconds(60, delay(7)), &all(2));
        // What it replaces is what was there before both.
        assert_eq!(temporary.changed(s(1), 0, &for_seconds(10, delay(8)), &all(7)), all(1));
        assert_eq!(temporary.next(), Some(s(11)));
        assert_eq!(temporary.ended(s(11)).len(), 1);
        // One for good leaves nothing to undo.
        temporary.changed(s(12), 1, &delay(9), &all(7));
        assert_eq!(temporary.next(), None);
    }

    #[test]
    fn a_question_ends_nothing() {
        let mut temporary = Temporary::default();
        temporary.changed(s(0), 0, &for_seconds(60, delay(7)), &all(1));
        assert_eq!(temporary.changed(s(1), 0, &Change::default(), &all(7)), all(7));
        assert_eq!(temporary.next(), Some(s(60)));
    }
}
