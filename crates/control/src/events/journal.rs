//! The journal: the last [`CAPACITY`] events. Any number of readers read it, each at its own pace. No
//! reader delays the writer: a slow one gets the number of events that it lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::events::event::Event;

/// Number of events that the journal keeps.
pub const CAPACITY: usize = 8192;

/// An event in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// Counts from 1, without gaps.
    pub sequence: u64,
    /// When it was written.
    pub time: SystemTime,
    /// What happened.
    pub event: Event,
}

/// The last events. Clones share one journal.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ring: Mutex<VecDeque<Arc<Stamped>>>,
    /// The sequence number of the last event.
    last: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self(Arc::new(Shared { ring: Mutex::default(), last: watch::Sender::new(0) }))
    }
}

impl Journal {
    /// Appends an event. The oldest one is dropped if the journal is full.
    pub fn write(&self, event: Event) {
        let mut ring = self.ring();
        let sequence = *self.0.last.borrow() + 1;
        if ring.len() >= CAPACITY {
            ring.pop_front();
        }
        ring.push_back(Arc::new(Stamped { sequence, time: SystemTime::now(), event }));
        drop(ring);
        self.0.last.send_replace(sequence);
    }

    /// The sequence number of the last event, 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        *self.0.last.borrow()
    }

    /// A reader that starts after the event with this number. It reads events that the journal
    /// still has first.
    #[must_use]
    pub fn read_after(&self, sequence: u64) -> Reader {
        Reader { journal: self.clone(), last: self.0.last.subscribe(), read: sequence }
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<Arc<Stamped>>> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A position in a [`Journal`].
#[derive(Debug)]
pub struct Reader {
    journal: Journal,
    last: watch::Receiver<u64>,
    read: u64,
}

/// What a [`Reader`] returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The next event.
    Event(Arc<Stamped>),
    /// This many events were dropped before they were read.
    Lost(u64),
}

impl Reader {
    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Read> {
        let ring = self.journal.ring();
        let first = ring.front()?.sequence;
        let lost = first.saturating_sub(self.read + 1);
        if lost > 0 {
            self.read += lost;
            return Some(Read::Lost(lost));
        }
        let place = usize::try_from(self.read + 1 - first).ok()?;
        let event = Arc::clone(ring.get(place)?);
        self.read = event.sequence;
        Some(Read::Event(event))
    }

    /// Waits for the next event. Cancel-safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Read {
        loop {
            self.last.mark_unchanged();
            if let Some(read) = self.try_next() {
                return read;
            }
            // The sender lives in the journal that this reader holds.
            let _ = self.last.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(number: usize) -> Event {
        Event::Warning(number.to_string())
    }

    #[test]
    fn every_reader_reads_everything_in_order() {
        let journal = Journal::default();
        let mut early = journal.read_after(0);
        assert_eq!(early.try_next(), None);
        (0..3).for_each(|number| journal.write(warning(number)));
        let mut late = journal.read_after(journal.last());
        journal.write(warning(3));
        let read = |reader: &mut Reader| {
            std::iter::from_fn(|| reader.try_next())
                .map(|read| match read {
                    Read::Event(stamped) => (stamped.sequence, stamped.event.to_string()),
                    Read::Lost(lost) => panic!("{lost} lost"),
                })
                .collect::<Vec<_>>()
        };
        let expected = (1..).zip(["0", "1", "2", "3"].map(str::to_owned)).collect::<Vec<_>>();
        assert_eq!(read(&mut early), expected);
        assert_eq!(read(&mut late), expected[3..]);
        assert_eq!(read(&mut journal.read_after(2)), expected[2..]);
        assert_eq!(journal.read_after(99).try_next(), None);
    }

    #[test]
    fn a_slow_reader_is_told_how_many_events_it_lost() {
        let journal = Journal::default();
        let mut reader = journal.read_after(0);
        journal.write(warning(0));
        assert!(matches!(reader.try_next(), Some(Read::Event(_))));
        (0..CAPACITY + 10).for_each(|number| journal.write(warning(number)));
        assert_eq!(reader.try_next(), Some(Read::Lost(10)));
        let Some(Read::Event(next)) = reader.try_next() else { panic!("an event") };
        assert_eq!(next.sequence, 12);
        assert_eq!(std::iter::from_fn(|| reader.try_next()).count(), CAPACITY - 1);
    }

    #[tokio::test]
    async fn a_reader_sleeps_until_something_happens() {
        let journal = Journal::default();
        let mut reader = journal.read_after(0);
        let (read, ()) = tokio::join!(reader.next(), async { journal.write(warning(7)) });
        let Read::Event(stamped) = read else { panic!("an event") };
        assert_eq!((stamped.sequence, stamped.event.kind()), (1, "warning"));
    }
}
